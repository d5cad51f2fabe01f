"""Signatures of functions for which the engine would implicitly convert arguments to text.

A signature lists the kinds of the arguments and of the result. A letter represents several kinds (`_KINDS_BY_LETTER`),
``.`` any kind; ``?`` marks an optional and ``*`` a repeated argument.
"""

from __future__ import annotations

from typing import NamedTuple

from kgserve.cypher.types import NUMBER_KINDS

_KINDS_BY_LETTER: dict[str, frozenset[str]] = {
    "T": frozenset({"text", "json"}),
    "I": frozenset({"integer"}),
    "N": NUMBER_KINDS,
    "B": frozenset({"boolean"}),
    "L": frozenset({"list"}),
    "S": frozenset({"text", "list", "entries"}),
    "W": frozenset({"date", "time", "duration"}),
    "O": frozenset({"integer", "float", "decimal", "text", "boolean", "date", "time", "uuid", "json", "duration"}),
    "P": frozenset({"path", "relations"}),
}
_SIGNATURES_TABLE = """
lower lcase tolower upper ucase toupper trim ltrim rtrim reverse = T -> text
concat = T* -> text
concat_ws = TT* -> text
left right = TI -> text
substr = TII -> text
substring = TII? -> text
repeat = TI -> text
lpad rpad = TIT -> text
split_part = TTI -> text
md5 sha256 = T -> text
contains starts_with ends_with prefix suffix = TT -> boolean
regexp_matches = TT -> boolean
regexp_replace = TTTT? -> text
regexp_extract = TTI? -> text
regexp_extract_all = TTI? -> list text
regexp_split_to_array = TT -> list text
size = S -> integer
octet_length = . -> integer
abs negate = N -> first
ceil ceiling floor = N -> first
round = NI -> float
sign = N -> integer
sqrt cbrt ln log log2 log10 acos asin gamma lgamma = N -> nan
pow atan2 = NN -> nan
cos sin tan cot atan degrees radians = N -> nan
pi = -> float
even = N -> first
bitwise_and bitwise_or bitwise_xor bitshift_left bitshift_right = II -> integer
length = P -> integer
nodes = P -> list node
rels relationships = P -> list relation
is_trail is_acyclic = P -> boolean
id = . -> id
label = . -> text
labels = . -> list text
keys = . -> list text
properties = .. -> list engine
start_node end_node = . -> node
range = III? -> list integer
collect = . -> list first
count = . -> count
sum = N -> sum
avg = N -> average
min max = O -> first
list_sort list_reverse_sort = LT?T? -> first
list_reverse list_distinct = L -> first
list_append list_prepend = L. -> first
list_concat list_cat = LL -> first
list_contains list_has = L. -> boolean
list_has_all = LL -> boolean
list_position list_indexof = L. -> integer
list_sum list_product = L -> element
list_any_value = L -> element
list_unique = L -> integer
list_element list_extract = LI -> element
list_to_string = TL -> text
list_filter = L. -> first
list_transform = L. -> transformed
array_cosine_similarity array_distance array_dot_product array_inner_product array_squared_distance = .. -> nan
cardinality = . -> integer
element_at map_extract = .. -> engine
map_keys map_values = . -> engine
map = .. -> entries
struct_extract = .T -> engine
struct_pack = .* -> engine
date = T -> date
timestamp = T -> time
interval duration = T -> duration
current_date = -> date
current_timestamp = -> engine
last_day = W -> date
make_date = III -> date
dayname monthname = W -> text
date_part datepart = TW -> integer
date_trunc datetrunc = TW -> engine
century = W -> integer
epoch_ms to_timestamp = N -> time
to_epoch_ms = W -> integer
to_days to_hours to_milliseconds to_minutes to_months to_seconds to_years = I -> duration
json_extract = .. -> json?
json_array_length = . -> integer
json_contains json_valid = .* -> boolean
to_json = . -> json
coalesce ifnull = .* -> joined
nullif = .. -> null first
greatest least = O* -> joined
typeof = . -> text
hash = . -> integer
uuid = T -> uuid
gen_random_uuid = -> uuid
string to_string = . -> text
to_bool = . -> boolean
to_date = . -> date
to_double to_float = . -> nan
to_int8 to_int16 to_int32 to_int64 to_int128 to_uint8 to_uint16 to_uint32 to_uint64 = . -> integer
cast = .. -> engine
"""


class FunctionSignature(NamedTuple):
    """Signature of a function: argument kinds, minimum number, whether the last repeats, and the result."""

    arguments: tuple[frozenset[str] | None, ...]
    least: int
    repeats: bool
    result: str

    def accepts(self, number: int) -> frozenset[str] | None:
        """Return the kinds accepted for argument ``number``, from 0; None for any."""
        if not self.arguments:
            return None
        return self.arguments[min(number, len(self.arguments) - 1)]


def _signature(arguments: str, result: str) -> FunctionSignature:
    letters = [each for each in arguments if each not in "?*"]
    least = len(letters) - arguments.count("?")
    return FunctionSignature(tuple(_KINDS_BY_LETTER.get(each) for each in letters), least, "*" in arguments, result)


def _read(table: str) -> dict[str, FunctionSignature]:
    found: dict[str, FunctionSignature] = {}
    for line in table.strip().splitlines():
        names, _, rest = line.partition("=")
        arguments, _, result = rest.partition("->")
        found |= dict.fromkeys(names.split(), _signature(arguments.strip(), result.strip()))
    return found


FUNCTION_SIGNATURES = _read(_SIGNATURES_TABLE)

KIND_BY_CAST_TYPE = {
    "BOOL": "boolean", "BOOLEAN": "boolean", "DATE": "date", "DOUBLE": "float", "FLOAT": "float", "FLOAT8": "float",
    "FLOAT4": "float", "INT": "integer", "INT8": "integer", "INT16": "integer", "INT32": "integer",
    "INT64": "integer", "INT128": "integer", "INTEGER": "integer", "BIGINT": "integer", "SMALLINT": "integer",
    "STRING": "text", "TIMESTAMP": "time", "UINT8": "integer", "UINT16": "integer", "UINT32": "integer",
    "UINT64": "integer", "UUID": "uuid", "DECIMAL": "decimal",
}  # fmt: skip
"""Kind of value that each CAST type produces."""
