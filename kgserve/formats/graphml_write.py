"""GraphML: attributes of one value as typed keys, so that NetworkX, Gephi, yEd and igraph see them as their own.

Keys must be declared before the graph, and are known after it: the body is written to a temporary file first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, NamedTuple

import msgspec

from kgserve.decoding import json_decoder
from kgserve.formats.columns import tags_text
from kgserve.formats.lines import EdgeRecord, Lines, NodeRecord
from kgserve.formats.xml_text import xml_text
from kgserve.model.fields import EDGE, NODE, REAL, WHOLE, Field

FORMAT_KEY = "kgserve_format"
FORMAT = "1"
MAX_KEYS = 1000
"""Attributes that get a key of their own; those beyond are in the JSON of ``attributes``."""


def _kinds(fields: tuple[Field, ...]) -> dict[str, str]:
    """What the fields that are data are called, and their types."""
    kinds = {field.wire: _KINDS.get(field.type, "string") for field in fields if field.wire not in _ENDS}
    return kinds | {"attributes": kinds.pop("attributes")}


_KINDS = {WHOLE: "long", REAL: "double"}
_ENDS = {"id", "from", "to"}
NODE_FIELDS, EDGE_FIELDS = _kinds(NODE.exchanged), _kinds(EDGE.exchanged)
_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""

_decode = json_decoder(Any).decode
_encode = msgspec.json.Encoder().encode


class Key(NamedTuple):
    """A declared attribute: of nodes or edges, its name, and its type in GraphML."""

    of: str
    name: str
    type: str


def write_graphml(blocks: Iterable[bytes], file: BinaryIO, scratch: Path | None = None) -> int:
    """Write an export; the number of its lines. The temporary file is made in ``scratch``."""
    lines = Lines(blocks)
    keys = _Keys()
    with tempfile.TemporaryFile(dir=scratch) as body:
        for nodes in lines.nodes():
            body.write("".join(_node(node, keys) for node in nodes).encode())
        for edges in lines.edges():
            body.write("".join(_edge(edge, keys) for edge in edges).encode())
        body.seek(0)
        file.write("".join([_HEAD, *keys.declarations(), '<graph edgedefault="directed">\n']).encode())
        copyfileobj(body, file)
    file.write(b"</graph>\n</graphml>\n")
    return lines.count


class _Keys:
    """The keys of attributes, in the order in which they were met."""

    def __init__(self) -> None:
        self._ids: dict[Key, str] = {}

    def id(self, key: Key) -> str | None:
        """What a key is called in the file; None when there are too many."""
        found = self._ids.get(key)
        if found is None and len(self._ids) < MAX_KEYS:
            found = self._ids[key] = f"{key.of[0]}{len(self._ids)}"
        return found

    def declarations(self) -> Iterator[str]:
        yield _declared(FORMAT_KEY, Key("graph", FORMAT_KEY, "string"), f"<default>{FORMAT}</default>")
        for of, fields in (("node", NODE_FIELDS), ("edge", EDGE_FIELDS)):
            for name, kind in fields.items():
                yield _declared(f"{of}.{name}", Key(of, name, kind))
        for key, name in self._ids.items():
            yield _declared(name, key)


def _declared(name: str, key: Key, content: str = "") -> str:
    return f'<key id="{name}" for="{key.of}" attr.name="{xml_text(key.name)}" attr.type="{key.type}">{content}</key>\n'


def _node(node: NodeRecord, keys: _Keys) -> str:
    parts = [f'<node id="{xml_text(node.id)}">', _data("node.content", node.content)]
    parts += _fields("node", zip(_NODE_DATA, _data_of_node(node), strict=True))
    parts += _attributes("node", node.attributes, NODE_FIELDS, keys)
    return "".join([*parts, "</node>\n"])


def _edge(edge: EdgeRecord, keys: _Keys) -> str:
    parts = [f'<edge source="{xml_text(edge.source)}" target="{xml_text(edge.target)}">']
    parts += _fields("edge", zip(_EDGE_DATA, _data_of_edge(edge), strict=True))
    parts += _attributes("edge", edge.attributes, EDGE_FIELDS, keys)
    return "".join([*parts, "</edge>\n"])


_NODE_DATA = tuple(name for name in NODE_FIELDS if name not in {"content", "attributes"})
_EDGE_DATA = tuple(name for name in EDGE_FIELDS if name != "attributes")
_data_of_node, _data_of_edge = attrgetter(*_NODE_DATA), attrgetter(*_EDGE_DATA)


def _fields(of: str, fields: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in fields:
        text = tags_text(value) if name == "tags" else value
        if text is not None and text != "":
            yield _data(f"{of}.{name}", str(text))


def _data(key: str, text: str) -> str:
    return f'<data key="{key}">{xml_text(text)}</data>'


def _attributes(of: str, attributes: msgspec.Raw, taken: dict[str, str], keys: _Keys) -> Iterator[str]:
    rest: dict[str, Any] = {}
    for name, value in _decode(attributes).items():
        kind, text = _typed(value)
        key = keys.id(Key(of, name, kind)) if kind and name not in taken else None
        if key is None:
            rest[name] = value
        else:
            yield _data(key, text)
    if rest:
        yield _data(f"{of}.attributes", _encode(rest).decode())


def _typed(value: object) -> tuple[str, str]:
    match value:
        case str():
            return "string", value
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "long", str(value)
        case float():
            return "double", repr(value)
        case _:
            return "", ""
