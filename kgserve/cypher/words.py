"""The words of Kùzu's Cypher, by what they do, in upper case; and the functions and types that a text may name.

Functions that read files or change anything are left out, and those that fail the engine: DESIGN.md says how.
"""

from __future__ import annotations

FIRST = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL"})
"""What a reading statement may begin with."""

WRITES = frozenset({"CREATE", "MERGE", "SET", "DELETE", "DETACH"})
"""Clauses that change rows."""

_FORBIDDEN = """
LOAD COPY EXPORT IMPORT ATTACH USE INSTALL UNINSTALL UPDATE EXTENSION DATABASE
BEGIN COMMIT ROLLBACK CHECKPOINT TRANSACTION COMMIT_SKIP_CHECKPOINT ROLLBACK_SKIP_CHECKPOINT
DROP ALTER RENAME ADD TABLE MACRO SEQUENCE COMMENT PROFILE PROJECT PROJECT_GRAPH HINT MULTI_JOIN
"""
FORBIDDEN = frozenset(_FORBIDDEN.split())
"""Words of statements that read or write files, change settings or tables, or end the transaction around them."""

_OTHERS = """
ACYCLIC ALL AND ANY AS ASC ASCENDING BY CASE CAST COLUMN CONTAINS COUNT CYCLE DBTYPE DECIMAL DEFAULT DESC
DESCENDING DISTINCT ELSE END ENDS EXISTS EXPLAIN EXTERNAL FALSE FORCE FROM GLOB GRAPH GROUP HEADERS IF IN
INCREMENT IS JOIN KEY L_SKIP LIMIT LOGICAL MAP MAXVALUE MINVALUE NO NODE NONE NOT NULL ON ONLY OR ORDER PASSWORD
PRIMARY RDFGRAPH READ REL ROLE SHORTEST SINGLE SKIP START STARTS STRUCT THEN TO TRAIL TRUE TYPE UNION USER WHEN
WHERE WRITE WSHORTEST XOR YIELD
"""
KEYWORDS = FIRST | WRITES | FORBIDDEN | frozenset(_OTHERS.split())
"""All words with a meaning of their own to the engine, and some that only look so."""

OPERATORS = frozenset({"AND", "OR", "XOR", "NOT", "IN", "IS", "STARTS", "ENDS", "CONTAINS"})
"""Words that make an expression deeper for the engine."""

_BEFORE_PARENTHESIS = """
ACYCLIC AND AS BY CALL CASE CONTAINS CREATE DELETE DISTINCT ELSE IN LIMIT MATCH MERGE NOT ON OR RETURN SET SHORTEST
SKIP THEN TRAIL UNWIND WHEN WHERE WITH WSHORTEST XOR
"""
BEFORE_PARENTHESIS = frozenset(_BEFORE_PARENTHESIS.split())
"""Words that a parenthesis may follow without being called."""

QUANTIFIERS = frozenset({"ALL", "ANY", "NONE", "SINGLE"})

CLAUSES = frozenset({"MATCH", "UNWIND", "WITH", "RETURN", "CALL", "CREATE", "MERGE", "SET", "DELETE", "UNION"})
"""Words that begin a clause."""
ENDS = CLAUSES | {"OPTIONAL", "DETACH", "ORDER", "SKIP", "LIMIT", "WHERE", "ON"}
"""Words before which a clause or a part of it ends."""

AGGREGATES = frozenset({"avg", "collect", "count", "count_if", "max", "min", "sum"})

_GRAPH = "end_node id is_acyclic is_trail keys label labels length nodes properties rels relationships start_node"
_NUMBERS = """
abs acos asin atan atan2 bitshift_left bitshift_right bitwise_and bitwise_or bitwise_xor cbrt ceil ceiling cos cot
degrees even floor gamma lgamma ln log log10 log2 negate pi pow radians round sign sin sqrt tan
"""
_TEXTS = """
concat concat_ws contains ends_with lcase left lower lpad ltrim md5 octet_length prefix regexp_extract
regexp_extract_all regexp_matches regexp_replace regexp_split_to_array repeat reverse right rpad rtrim
sha256 size split_part starts_with string substr substring suffix to_string tolower toupper trim ucase upper
"""
_LISTS = """
array_cosine_similarity array_distance array_dot_product array_inner_product array_squared_distance
list_any_value list_append list_cat list_concat list_contains list_distinct list_element list_extract list_filter
list_has list_has_all list_indexof list_position list_prepend list_product list_reverse list_reverse_sort
list_sort list_sum list_to_string list_transform list_unique range
"""
_MAPS = "cardinality element_at map map_extract map_keys map_values struct_extract struct_pack"
_TIMES = """
century current_date current_timestamp date date_part date_trunc datepart datetrunc dayname duration epoch_ms interval
last_day make_date monthname timestamp to_days to_epoch_ms to_hours to_milliseconds to_minutes to_months
to_seconds to_timestamp to_years
"""
JSON = frozenset({"json_array_length", "json_contains", "json_extract", "json_valid", "to_json"})
"""Ladybug has none of them: they are in an extension that it would have to fetch."""
_CASTS = """
cast coalesce gen_random_uuid greatest hash ifnull least nullif typeof uuid to_bool to_date to_double to_float to_int128
to_int16 to_int32 to_int64 to_int8 to_uint16 to_uint32 to_uint64 to_uint8
"""

_ALL = f"{_GRAPH} {_NUMBERS} {_TEXTS} {_LISTS} {_MAPS} {_TIMES} {_CASTS}"
ALLOWED = AGGREGATES | JSON | frozenset(_ALL.split())
"""Functions, in lower case."""

LAMBDAS = frozenset({"list_filter", "list_transform"})
"""The only ones that take a function; in any other place one crashes the engine."""

BUILDERS = frozenset(
    {"list_append", "list_cat", "list_concat", "list_prepend", "map", "range", "repeat", "lpad", "rpad"}
)
"""Their results can be larger than what they are given."""

CALLS = frozenset({"db_version", "show_connection", "show_functions", "show_indexes", "show_tables", "table_info"})
"""What CALL may name: it changes nothing and shows no path."""

_TYPES = """
BOOL BOOLEAN DATE DOUBLE FLOAT FLOAT8 FLOAT4 INT INT8 INT16 INT32 INT64 INT128 INTEGER BIGINT SMALLINT STRING
TIMESTAMP UINT8 UINT16 UINT32 UINT64 UUID DECIMAL
"""
TYPES = frozenset(_TYPES.split())
"""What CAST may make, and lists and arrays of these."""

INTERVALS = frozenset({"to_days", "to_hours", "to_milliseconds", "to_minutes", "to_months", "to_seconds", "to_years"})
