"""Building blocks of generated statements: literals, columns, and functions with the kinds of their arguments."""

from __future__ import annotations

import random

from kgserve.cypher.lexer import ALLOWED_FUNCTIONS
from kgserve.storage.model.node_edge_fields import EDGE, EDGE_ENDPOINTS, NODE
from tests.cypher.reference.times import read_timestamp

_MAX = (1 << 63) - 1
INTEGERS = (
    0, 1, 2, 3, -1, -2, -7, 5, 7, 10, 64, 100, 255, 1 << 31, -(1 << 31), (1 << 53) + 1, _MAX, -_MAX, -_MAX - 1,
)  # fmt: skip
FLOATS = (
    ("0.0", 0.0), ("-0.0", -0.0), ("0.5", 0.5), ("1.0", 1.0), ("-1.5", -1.5), ("2.5", 2.5), ("3.0", 3.0), ("7.0", 7.0),
    ("0.1", 0.1), ("1e3", 1000.0), ("1.5e-3", 0.0015), ("2E2", 200.0), (".25", 0.25), ("1e-9", 1e-9), ("1e18", 1e18),
    ("9007199254740993.0", 9007199254740992.0), ("1e308", 1e308), ("-1e308", -1e308), ("5e-324", 5e-324),
    ("9.223372036854775807e18", 9.223372036854775807e18), ("100.0", 100.0), ("-2.0", -2.0),
)  # fmt: skip
TEXTS = (
    "", "a", "A", "ab", "abc", "Ab", "b", "1", "1.0", "01", " 1 ", "-5", "true", "false", "null", "NaN", "1e3", "x",
    "n1", "two\nlines", "tab\there", "back\\slash", "it's", 'say "hi"', "\r\n", "\b\f", "é", "É", "ß", "ü", "日本",
    "😀", "e\u0301", "İ", "ﬁ", "%", "_", "a.c", "a*", "[x]", "(", " ", "  pad  ", "\u00a0", "aaaa", "a,b,,c", "Task",
    "C:\\new\\table", "2024-02-29", "2024-02-29 12:30:00",
)  # fmt: skip
TIMESTAMPS = tuple(
    (text, read_timestamp(text))
    for text in (
        "2024-02-29 12:30:00", "1970-01-01", "1999-12-31 23:59:59.999999", "2026-11-28 00:00:00", "1969-07-20 20:17:40",
        "2000-01-01 00:00:00.5", "9999-12-31 23:59:59", "0001-01-01 00:00:00",
    )
)  # fmt: skip
_KINDS = {"STRING": "s", "INT64": "i", "DOUBLE": "f", "TIMESTAMP": "t", "STRING[]": "S", "INT64[]": "I"}
COLUMNS_OF_NODES = tuple((field.name, _KINDS[field.type.engine]) for field in NODE.whole if field.name != "attributes")
COLUMNS_OF_EDGES = tuple(
    (field.name, _KINDS[field.type.engine]) for field in EDGE.whole[EDGE_ENDPOINTS:] if field.name != "attributes"
)

_SIGNATURES = """
i: abs i | sign i | sign f | size s | size l | toInteger s | toInteger f | toInteger i | coalesce ii
i: coalesce iii | length s | bitwise_and ii | bitwise_or ii | bitwise_xor ii | octet_length s
i: list_position II | list_unique I | nullif ii | ifnull ii | greatest ii | least ii | list_sum I
i: list_extract Ii | head I | last I | list_product I | negate i | abs i | size S | size L | list_any_value I
i: date_part st | char_length s
f: abs f | ceil f | floor f | round f | sqrt f | sqrt i | exp f | log f | ln f | log10 f | log2 f | sin f
f: cos f | tan f | asin f | acos f | atan f | atan2 ff | degrees f | radians f | pow ff | pow ii | pi | e
f: toFloat s | toFloat i | toFloat f | coalesce ff | coalesce if | greatest ff | least fi | ceil i | floor i
f: round i | cbrt f | cot f | sign f | nullif fi | list_sum F | negate f | ifnull fi | round fi | log i
f: exp i
s: lower s | upper s | toLower s | toUpper s | trim s | ltrim s | rtrim s | reverse s | left si | right si
s: substring si | substring sii | replace sss | toString i | toString b | toString s | toString f
s: coalesce ss | concat ss | concat sss | lcase s | ucase s | lpad sis | rpad sis | repeat si | md5 s
s: sha256 s | split_part ssi | list_to_string sS | nullif ss | greatest ss | least ss | head S | last S
s: concat_ws sss | ifnull ss | substr sii | list_extract Si | string i
b: contains ss | starts_with ss | ends_with ss | prefix ss | suffix ss | toBoolean s | toBoolean b
b: list_contains Ii | list_contains Ss | coalesce bb | regexp_matches ss | list_has II | nullif bb | isEmpty s
b: isEmpty l | list_has_all II
t: timestamp s | coalesce tt | greatest tt | least tt | nullif tt
I: reverse I | tail I | range ii | range iii | list_reverse I | list_sort I | list_append Ii | list_prepend Ii
I: list_concat II | coalesce II | list_distinct I | list_cat II | list_reverse_sort I
S: reverse S | tail S | split ss | list_sort S | list_append Ss | list_concat SS | keys m | list_distinct S
S: string_split ss
L: reverse L | tail L | coalesce LL
x: coalesce xx
F: reverse F | tail F
"""


def read_signatures(lines: str) -> dict[str, tuple[str, ...]]:
    """Return the functions that give a kind, from lines of the kind and functions with the kinds of their arguments."""
    found: dict[str, list[str]] = {}
    for line in lines.strip().splitlines():
        kind, _, forms = line.partition(": ")
        found.setdefault(kind, []).extend(form.strip() for form in forms.split(" | "))
    return {kind: tuple(forms) for kind, forms in found.items()}


SIGNATURES = read_signatures(_SIGNATURES)
"""The functions that give a kind, with the kinds of their arguments."""

KNOWN = {
    kind: tuple(form for form in forms if form.partition(" ")[0].lower() in ALLOWED_FUNCTIONS)
    for kind, forms in SIGNATURES.items()
}
"""The functions that the product implements."""

_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\\": "\\\\"}


def written_text(value: str, choice: random.Random) -> str:
    """Return a random spelling of a text: either quote, with escapes or plain characters."""
    quote = choice.choice("'''\"")
    share = choice.choice((0.0, 0.1, 1.0))
    written = "".join(_character(each, quote, choice, share) for each in value)
    return f"{quote}{written}{quote}"


def _character(each: str, quote: str, choice: random.Random, share: float) -> str:
    if each == "\\":
        return "\\\\"
    if each == quote:
        return f"\\{quote}"
    if each in "'\"" and choice.random() < share:
        return f"\\{each}"
    if each in _ESCAPES and choice.random() < 0.7:
        return _ESCAPES[each]
    if ord(each) < 0x10000 and choice.random() < share / 3:
        return f"\\u{ord(each):04x}"
    return each
