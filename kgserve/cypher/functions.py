"""The functions that a caller's text may call, and the types it may cast to.

Left out on purpose are those that read files or change anything, and those that fail the engine: DESIGN.md says how.
"""

from __future__ import annotations

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
_OTHERS = """
cast coalesce gen_random_uuid greatest hash ifnull least nullif typeof uuid to_bool to_date to_double to_float to_int128
to_int16 to_int32 to_int64 to_int8 to_uint16 to_uint32 to_uint64 to_uint8
"""

_ALL = f"{_GRAPH} {_NUMBERS} {_TEXTS} {_LISTS} {_MAPS} {_TIMES} {_OTHERS}"
ALLOWED = AGGREGATES | JSON | frozenset(_ALL.split())
"""Lower case."""

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
