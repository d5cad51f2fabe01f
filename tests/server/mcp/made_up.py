"""Generated input for MCP: valid, nearly valid and invalid arguments, and malformed messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st

Json = Mapping[str, Any]

STORES = ("fuzzed", "fuzzed-too", "there-is-none")
IDS = ("a", "b", "it's", 'say "hi"', "a~r~b", "../x", "\u202eabc", "😀", "a/b", "%2e", "`", "\\", "\n")
ODD_TEXTS = (
    *("", " ", "\0", "\ud800", "x" * 600, "null", "-1", "NaN", "2020-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now"),
    *("MATCH (n) RETURN n", "RETURN 1; RETURN 2", "LOAD FROM '/etc/passwd' RETURN *", "RETURN $x", "CALL", "'", "/*"),
    *("0", "1", "latest", "1e400", "0001-01-01T00:00:00+23:59", "any", "*", "?", "a AND (", '"', "[", "^x:", "~~~"),
)
ODD_NUMBERS = (0, -1, 1, 7, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, 10**400, -(2**63) - 1, 0.5, 1e308, -0.0)


def schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a tool's arguments with all limits, including those that clients do not get."""
    [root], definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    return {**definitions[root["$ref"].rpartition("/")[2]], "$defs": definitions}


texts = st.sampled_from([*IDS, *ODD_TEXTS]) | st.text(max_size=20)
scalars = st.none() | st.booleans() | st.sampled_from(ODD_NUMBERS) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def nested(levels: int) -> Any:
    """Return objects nested ``depth`` levels deep."""
    value: Any = "deep"
    for _ in range(levels):
        value = {"a": value}
    return value


deep = st.sampled_from((3, 70, 200)).map(nested)


def fitting(schema: Json, definitions: Json) -> st.SearchStrategy[Any]:
    """Generate values that match a schema, with a preference for unusual texts and numbers."""
    if reference := schema.get("$ref"):
        return fitting(definitions[reference.rpartition("/")[2]], definitions)
    if choices := schema.get("anyOf"):
        return st.one_of([fitting(each, definitions) for each in choices])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    make = _OF_TYPE.get(schema.get("type", ""))
    return values if make is None else make(schema, definitions)


def _array(schema: Json, definitions: Json) -> st.SearchStrategy[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", 4)
    items = fitting(schema.get("items", {}), definitions)
    return st.lists(items, min_size=least, max_size=min(most, least + 3))


def _string(schema: Json, _: Json) -> st.SearchStrategy[Any]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 1_000)
    return texts.filter(lambda text: least <= len(text) <= most)


def _integer(schema: Json, _: Json) -> st.SearchStrategy[Any]:
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    return st.sampled_from([least, most]) | st.integers(least, min(most, least + 20))


def _number(schema: Json, _: Json) -> st.SearchStrategy[Any]:
    return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)


def _object(schema: Json, definitions: Json) -> st.SearchStrategy[dict[str, Any]]:
    properties: Json = schema.get("properties", {})
    if not properties:
        return st.dictionaries(st.text(max_size=5), values, max_size=3) | deep
    fields = {name: fitting(each, definitions) for name, each in properties.items()}
    required = set(schema.get("required", ()))
    for name, some in (("index", STORES), ("id", IDS), ("from", IDS), ("to", IDS), ("start_id", IDS)):
        if name in fields:
            fields[name] = st.sampled_from(some)
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in required},
        optional={name: each for name, each in fields.items() if name not in required},
    )


_OF_TYPE = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": lambda _schema, _definitions: st.booleans(),
}


def _broken(given: dict[str, Any], names: list[str], draw: Any) -> dict[str, Any]:
    """Generate arguments with one invalid field."""
    name = draw(st.sampled_from([*names, *given, "unknown"]))
    if draw(st.booleans()):
        return {key: value for key, value in given.items() if key != name}
    return given | {name: draw(values | deep)}


@st.composite
def arguments(draw: Any, schema: Json) -> Any:
    """Generate arguments of a tool: mostly valid, often with one or two faults, sometimes arbitrary."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    given = draw(fitting(schema, schema.get("$defs", {})))
    for _ in range(draw(st.integers(0, 2))):
        given = _broken(given, list(schema.get("properties", {})), draw)
    return given


METHODS = (
    *("tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list", "prompts/list"),
    *("prompts/get", "ping", "initialize", "completion/complete", "logging/setLevel", "resources/subscribe"),
    *(
        "server/discover",
        "tasks/get",
        "notifications/initialized",
        "notifications/cancelled",
        "no/such",
        "",
        "\0",
        "rpc.x",
    ),
)
URIS = (
    *("kgserve://stores", "kgserve://fuzzed", "kgserve://fuzzed/a", "kgserve://", "kgserve:///", "kgserve://%ff/%00"),
    *(
        "kgserve://../../etc",
        "file://localhost/etc/passwd",
        "http://127.0.0.1/",
        "kgserve://fuzzed/" + "x" * 5_000,
        "kgserve://fuzzed/a?content_offset=1",
        "kgserve://fuzzed/a?incoming_offset=x",
        "kgserve://stores?after=%00",
        "",
        ":",
        "%",
    ),
)
REFERENCES = (
    {"type": "ref/resource", "uri": "kgserve://{store}/{id}"},
    {"type": "ref/resource", "uri": "kgserve://{store}"},
    {"type": "ref/prompt", "name": "tidy_up"},
    {"type": "ref/prompt", "name": "no such"},
)
names = st.sampled_from(("record_and_recall", "list_stores", "kgserve", *URIS)) | texts
params = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"name": names, "arguments": values, "uri": names, "cursor": texts, "_meta": values}
    ),
    st.fixed_dictionaries({"uri": names}),
    st.fixed_dictionaries(
        {
            "ref": st.sampled_from(REFERENCES) | values,
            "argument": st.fixed_dictionaries(
                {"name": st.sampled_from(("store", "id", "type", "tag", "other")) | texts, "value": texts | values}
            ),
        },
        optional={"context": st.fixed_dictionaries({"arguments": st.fixed_dictionaries({"store": names})})},
    ),
    st.fixed_dictionaries({"level": st.sampled_from(("debug", "loud")) | values}),
    st.fixed_dictionaries({"name": names}, optional={"arguments": st.dictionaries(texts, texts, max_size=3)}),
    values,
    deep,
)
ids = st.one_of(st.integers(1, 99), scalars, values)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | scalars,
        "id": ids,
        "method": st.sampled_from(METHODS) | values,
        "params": params,
        "result": values,
        "error": values,
        "more": values,
    },
)
whole = st.builds(
    partial(dict, jsonrpc="2.0"), id=st.integers(1, 99) | texts, method=st.sampled_from(METHODS), params=params
)
messages = st.one_of(whole, envelopes, st.lists(whole | envelopes, max_size=3), values, deep)
"""Bodies in place of a JSON-RPC request: valid requests, nearly valid ones, batches and arbitrary values."""
