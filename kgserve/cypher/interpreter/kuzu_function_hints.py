"""openCypher replacements for functions that only Kùzu's dialect of Cypher has."""

from __future__ import annotations

_TABLE = """
list_contains list_has = x IN list
list_concat list_cat = list + other
list_append = list + [x]
list_prepend = [x] + list
list_sort = COLLECT { UNWIND list AS each RETURN each ORDER BY each }
list_reverse_sort = COLLECT { UNWIND list AS each RETURN each ORDER BY each DESC }
list_distinct = COLLECT { UNWIND list AS each RETURN DISTINCT each }
list_unique = COUNT { UNWIND list AS each RETURN DISTINCT each }
list_reverse = reverse(list)
list_sum = reduce(sum = 0, x IN list | sum + x)
list_product = reduce(product = 1, x IN list | product * x)
list_element list_extract element_at = list[position - 1]
list_position list_indexof = [i IN range(1, size(list)) WHERE list[i - 1] = x][0]
list_any_value = [x IN list WHERE x IS NOT NULL][0]
list_has_all = all(x IN other WHERE x IN list)
list_filter = [x IN list WHERE x > 0]
list_transform = [x IN list | x + 1]
list_to_string = reduce(text = '', x IN list | text + ',' + toString(x))
concat = a + b
concat_ws = a + ', ' + b
contains = text CONTAINS part
starts_with prefix = text STARTS WITH part
ends_with suffix = text ENDS WITH part
lcase = toLower(text)
ucase = toUpper(text)
substr = substring(text, start - 1, length)
split_part = split(text, ',')[position - 1]
repeat = reduce(text = '', i IN range(1, count) | text + part)
regexp_matches = text =~ '.*pattern.*'
cardinality = size(text)
pow = a ^ b
ln = log(x)
log2 = log(x) / log(2)
cbrt = x ^ (1.0 / 3)
negate = -x
greatest = CASE WHEN a > b THEN a ELSE b END
least = CASE WHEN a < b THEN a ELSE b END
ifnull = coalesce(a, b)
start_node = startNode(r)
end_node = endNode(r)
label = labels(n)[0]
typeof = valueType(x)
gen_random_uuid uuid = randomUUID()
string to_string to_json = toString(x)
to_bool = toBoolean(x)
to_double to_float = toFloat(x)
to_int8 to_int16 to_int32 to_int64 to_int128 to_uint8 to_uint16 to_uint32 to_uint64 cast = toInteger(x)
to_date = date(text)
make_date = date({year: y, month: m, day: d})
current_date = date()
current_timestamp = datetime()
epoch_ms = datetime({epochMillis: x})
to_timestamp = datetime({epochSeconds: x})
to_epoch_ms = d.epochMillis
date_part datepart century = d.year
date_trunc datetrunc = date.truncate('month', d)
last_day = date.truncate('month', d) + duration({months: 1}) - duration({days: 1})
dayname = d.dayOfWeek
monthname = d.month
interval = duration(text)
to_years = duration({years: x})
to_months = duration({months: x})
to_days = duration({days: x})
to_hours = duration({hours: x})
to_minutes = duration({minutes: x})
to_seconds = duration({seconds: x})
to_milliseconds = duration({milliseconds: x})
map struct_pack = {name: x}
map_keys = keys(m)
map_values = [k IN keys(m) | m[k]]
map_extract struct_extract json_extract = m.name
json_array_length = size(m.name)
array_cosine_similarity = 2 * vector.similarity.cosine(a, b) - 1
array_dot_product array_inner_product = reduce(sum = 0.0, i IN range(0, size(a) - 1) | sum + a[i] * b[i])
array_squared_distance = 1 / vector.similarity.euclidean(a, b) - 1
array_distance = sqrt(1 / vector.similarity.euclidean(a, b) - 1)
is_trail = size(relationships(p)) = COUNT { UNWIND relationships(p) AS each RETURN DISTINCT each }
is_acyclic = size(nodes(p)) = COUNT { UNWIND nodes(p) AS each RETURN DISTINCT each }
"""


def _read(table: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in table.strip().splitlines():
        names, _, form = line.partition(" = ")
        found |= dict.fromkeys(names.split(), form)
    return found


NEAREST_FORMS = _read(_TABLE)
"""Expressions by the engine's function that they replace; others have no counterpart."""


def describe_kuzu_only_function(name: str) -> str:
    """Describe why a statement cannot call a function of Kùzu, and the nearest form that works."""
    message = f"{name}() is a function of the engine, for statements with :Entity and columns only"
    form = NEAREST_FORMS.get(name)
    return message if form is None else f"{message}; here, write {form}"
