"""Reading and writing GraphML: kgserve's own dialect, and those of NetworkX, yEd, Gephi and Neo4j.

Attributes with a scalar value are written as typed keys, so that other programs can read them. Keys must be declared
before the graph but are known only after it, so the body is written to a temporary file first. Files are parsed
incrementally by defusedxml, which refuses entities and external references.

XML 1.0 cannot represent most control characters, U+FFFE and U+FFFF. They are written as in ECMA-376 spreadsheets:
``_x000B_``. An underscore that would begin such a sequence is written as ``_x005F_``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, NamedTuple
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler

import msgspec
from defusedxml import DefusedXmlException
from defusedxml.sax import make_parser
from typing_extensions import override

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import EDGE_FILE_FIELDS as EXCHANGED
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    MAX_LINE_BYTES,
    ExportedEdgeLine,
    ExportedNodeLine,
    ExportNodeEdgeSplitter,
    ImportRecord,
    InvalidCell,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
    encode_tags_cell,
    parse_json_cell,
    record_values,
)
from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.node_edge_fields import DOUBLE_TYPE, INT64_TYPE, LINK_STORE_FIELD, NODE, RowField

_FORBIDDEN_CHARACTER = re.compile("_(?=x[0-9A-Fa-f]{4})|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ESCAPED_CHARACTER = re.compile("_x([0-9A-Fa-f]{4})_")
# Parsers normalize CR, CRLF and white space in attributes, unless it is written as character references.
_MARKUP_CHARACTER = re.compile('[&<>"\t\n\r]')
_CHARACTER_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}


def escape_xml(text: str) -> str:
    """Escape any text, for an element or an attribute."""
    return _MARKUP_CHARACTER.sub(
        lambda found: _CHARACTER_REFERENCES[found[0]], _FORBIDDEN_CHARACTER.sub(_escape_code, text)
    )


def unescape_xml_forbidden_characters(text: str) -> str:
    """Undo the escaping of characters that XML cannot represent."""
    return _ESCAPED_CHARACTER.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _escape_code(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"


GRAPHML_FORMAT_KEY = "kgserve_format"
GRAPHML_FORMAT = "1"
MAX_WRITTEN_KEYS = 1000
"""Attributes that get a key of their own; further ones are in the JSON of ``attributes``."""


def _kinds(fields: tuple[RowField, ...]) -> dict[str, str]:
    """Return the names of the fields written as data, with their GraphML types."""
    kinds = {
        field.wire: _GRAPHML_VALUE_TYPES.get(field.type, "string") for field in fields if field.wire not in _ID_FIELDS
    }
    return kinds | {"attributes": kinds.pop("attributes")}


_GRAPHML_VALUE_TYPES = {INT64_TYPE: "long", DOUBLE_TYPE: "double"}
_ID_FIELDS = {"id", "from", "to"}
GRAPHML_NODE_FIELDS, GRAPHML_EDGE_FIELDS = _kinds(NODE.exchanged) | {LINK_STORE_FIELD: "string"}, _kinds(EXCHANGED)
_DOCUMENT_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""

_decode = json_decoder(Any).decode
_encode = msgspec.json.Encoder().encode


class GraphMLKey(NamedTuple):
    """A declared attribute: of nodes or edges, its name, and its GraphML type."""

    of: str
    name: str
    type: str


def write_graphml(blocks: Iterable[bytes], file: BinaryIO, scratch: Path | None = None) -> int:
    """Write an export as GraphML, and return the number of its lines; the temporary file is in ``scratch``."""
    lines = ExportNodeEdgeSplitter(blocks)
    keys = _KeyTable()
    with tempfile.TemporaryFile(dir=scratch) as body:
        for nodes in lines.nodes():
            body.write("".join(_node(node, keys) for node in nodes).encode())
        targets = _LinkTargets()
        for edges in lines.edges():
            body.write("".join(targets.before(edge) + _edge(edge, keys) for edge in edges).encode())
        body.seek(0)
        file.write("".join([_DOCUMENT_HEAD, *keys.declarations(), '<graph edgedefault="directed">\n']).encode())
        copyfileobj(body, file)
    file.write(b"</graph>\n</graphml>\n")
    return lines.count


class _LinkTargets:
    """Targets of links, each written once as a node, because other readers require the ends of edges to exist."""

    def __init__(self) -> None:
        self._written: set[int] = set()

    def before(self, edge: ExportedEdgeLine) -> str:
        """Return the node that an edge needs, or an empty text."""
        name = _target(edge)
        # Stores hashes, because links may have many targets.
        if edge.to_graph is None or (hashed := hash(name)) in self._written:
            return ""
        self._written.add(hashed)
        return f'<node id="{escape_xml(name)}">{_data(f"node.{LINK_STORE_FIELD}", edge.to_graph)}</node>\n'


def _target(edge: ExportedEdgeLine) -> str:
    """Return the target of an edge; store names contain no slash."""
    return edge.target if edge.to_graph is None else f"{edge.to_graph}/{edge.target}"


class _KeyTable:
    """The keys of attributes, in order of first use."""

    def __init__(self) -> None:
        self._ids: dict[GraphMLKey, str] = {}

    def id(self, key: GraphMLKey) -> str | None:
        """Return the id of a key in the file; None above the limit."""
        found = self._ids.get(key)
        if found is None and len(self._ids) < MAX_WRITTEN_KEYS:
            found = self._ids[key] = f"{key.of[0]}{len(self._ids)}"
        return found

    def declarations(self) -> Iterator[str]:
        yield _key_declaration(
            GRAPHML_FORMAT_KEY,
            GraphMLKey("graph", GRAPHML_FORMAT_KEY, "string"),
            f"<default>{GRAPHML_FORMAT}</default>",
        )
        for of, fields in (("node", GRAPHML_NODE_FIELDS), ("edge", GRAPHML_EDGE_FIELDS)):
            for name, kind in fields.items():
                yield _key_declaration(f"{of}.{name}", GraphMLKey(of, name, kind))
        for key, name in self._ids.items():
            yield _key_declaration(name, key)


def _key_declaration(name: str, key: GraphMLKey, content: str = "") -> str:
    return (
        f'<key id="{name}" for="{key.of}" attr.name="{escape_xml(key.name)}" attr.type="{key.type}">{content}</key>\n'
    )


def _node(node: ExportedNodeLine, keys: _KeyTable) -> str:
    parts = [f'<node id="{escape_xml(node.id)}">', _data("node.content", node.content)]
    parts += _fields(_NODE_KEYS, record_values(node))
    parts += _attribute_data("node", node.attributes, GRAPHML_NODE_FIELDS, keys)
    return "".join([*parts, "</node>\n"])


def _edge(edge: ExportedEdgeLine, keys: _KeyTable) -> str:
    parts = [f'<edge source="{escape_xml(edge.source)}" target="{escape_xml(_target(edge))}">']
    parts += _fields(_EDGE_KEYS, record_values(edge))
    parts += _attribute_data("edge", edge.attributes, GRAPHML_EDGE_FIELDS, keys)
    return "".join([*parts, "</edge>\n"])


def _keys_of(of: str, fields: tuple[RowField, ...]) -> list[str]:
    """Return the keys of a record's values; "" for those written differently."""
    otherwise = {*_ID_FIELDS, "content", "attributes"}
    return ["" if field.wire in otherwise else f"{of}.{field.wire}" for field in fields]


_NODE_KEYS, _EDGE_KEYS = _keys_of("node", NODE.exchanged), _keys_of("edge", EXCHANGED)


def _fields(keys: list[str], values: tuple[Any, ...]) -> Iterator[str]:
    for key, value in zip(keys, values, strict=True):
        if key and value is not None and value != "":
            yield _data(key, encode_tags_cell(value) if isinstance(value, list) else str(value))


def _data(key: str, text: str) -> str:
    return f'<data key="{key}">{escape_xml(text)}</data>'


def _attribute_data(of: str, attributes: msgspec.Raw, taken: dict[str, str], keys: _KeyTable) -> Iterator[str]:
    rest: dict[str, Any] = {}
    for name, value in _decode(attributes).items():
        kind, text = _scalar_type(value)
        key = keys.id(GraphMLKey(of, name, kind)) if kind and name not in taken else None
        if key is None:
            rest[name] = value
        else:
            yield _data(key, text)
    if rest:
        yield _data(f"{of}.attributes", _encode(rest).decode())


def _scalar_type(value: object) -> tuple[str, str]:
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


GRAPHICS_KEY_TYPE = "graphics"
"""Type of keys whose data are drawings, of which only labels are read."""
LIST_KEY_TYPE = "list"
"""Type of keys that Neo4j's APOC declares with `attr.list`: their data are JSON arrays."""


class GraphMLElement(msgspec.Struct):
    """A node or an edge being read: line, id or ends, and the texts of its data by key."""

    line: int
    edge: bool
    attributes: dict[str, str]
    data: list[tuple[GraphMLKey, str]] = []
    label: str = ""
    directed: bool = True
    parent: str | None = None
    size: int = 0
    fault: str = ""


ElementDialect = Callable[[GraphMLElement], dict[str, Any]]
"""Converts an element to the fields of a line. Raises InvalidCell."""

DEFAULT_NODE_TYPE = "node"
DEFAULT_RELATION_TYPE = "RELATED_TO"
UNNAMED_KEY = "data"
"""Name of data without a key."""

_NODE_TYPE_KEYS = ("type", "kind", "labels")
_TITLE_KEYS = ("title",)
_CONTENT_KEYS = ("content", "label", "name", "description", "text")
_RELATION_TYPE_KEYS = ("relation_type", "label", "edge label", "type", "relationship", "interaction")
_INTEGER_KEY_TYPES = frozenset({"int", "long", "integer"})
_REAL_KEY_TYPES = frozenset({"float", "double"})
_NON_TEXT_KEY_TYPES = _INTEGER_KEY_TYPES | _REAL_KEY_TYPES | {"boolean"}
_OWN_EXTRA_FIELDS = frozenset({"created_by", "valid_from", "valid_to", "summary"})


def convert_kgserve_graphml_element(element: GraphMLElement) -> dict[str, Any]:
    """Convert an element written by `write_graphml`."""
    fields = _ends(element, unescape_xml_forbidden_characters)
    attributes: dict[str, Any] = {}
    known = GRAPHML_EDGE_FIELDS if element.edge else GRAPHML_NODE_FIELDS
    for key, text in element.data:
        if key.name not in known:
            attributes[unescape_xml_forbidden_characters(key.name)] = parse_graphml_typed_value(
                key, unescape_xml_forbidden_characters(text)
            )
        elif key.name == "attributes":
            attributes |= parse_json_cell("attributes", unescape_xml_forbidden_characters(text), dict)
        elif key.name == "tags":
            fields["tags"] = parse_json_cell("tags", unescape_xml_forbidden_characters(text), list)
        else:
            fields[key.name] = parse_graphml_typed_value(key, unescape_xml_forbidden_characters(text))
    fields["attributes"] = attributes
    if element.edge and (store := fields.get(LINK_STORE_FIELD)):
        fields["to"] = fields["to"].removeprefix(f"{store}/")
    return fields


def convert_foreign_graphml_element(element: GraphMLElement) -> dict[str, Any]:
    """Convert an element of another program; unknown data become attributes of the key's type."""
    fields = _ends(element, str)
    # Some programs write an absent number or flag as an empty element.
    named = _by_name((key, text) for key, text in element.data if text.strip() or key.type not in _NON_TEXT_KEY_TYPES)
    if element.edge:
        fields["relation_type"] = (
            _pop_first_text(named, _RELATION_TYPE_KEYS)
            or _element_attribute(element, "label")
            or element.label
            or DEFAULT_RELATION_TYPE
        )
        _take_weight(named, fields)
    else:
        labels = _element_attribute(element, "labels")
        _take_type(named, fields, labels)
        # Statements of Neo4j match its properties, so `name` or `title` also stays an attribute.
        taken = dict(named) if labels else named
        if "summary" not in named and (title := _pop_first_text(taken, _TITLE_KEYS)):
            fields["summary"] = title
        fields["content"] = _pop_first_text(taken, _CONTENT_KEYS) or element.label
        if labels:
            named.pop("content", None)
    attributes = _attributes(named, fields)
    if not element.directed and element.edge:
        attributes["directed"] = False
    if element.parent is not None:
        attributes["parent"] = element.parent
    fields["attributes"] = attributes
    return fields


def _by_name(data: Iterable[tuple[GraphMLKey, str]]) -> dict[str, tuple[GraphMLKey, str]]:
    """Return data by the names of their keys; another text under the same name becomes ``name (2)`` and so on."""
    named: dict[str, tuple[GraphMLKey, str]] = {}
    for key, text in data:
        name, count = key.name, 1
        while name in named and named[name][1] != text:
            count += 1
            name = f"{key.name} ({count})"
        named.setdefault(name, (key, text))
    return named


def parse_graphml_typed_value(key: GraphMLKey, text: str) -> Any:
    """Return a text as a value of its key's type. Raises InvalidCell; numbers that JSON cannot represent stay text."""
    try:
        if key.type in _INTEGER_KEY_TYPES:
            return int(text)
        if key.type in _REAL_KEY_TYPES:
            number = float(text)
            return number if number - number == 0 else text
    except ValueError:
        raise InvalidCell(f"{key.name} is {text[:80]!r}, which is not of type {key.type}") from None
    if key.type == "boolean":
        return _flag(key, text)
    return text


def _flag(key: GraphMLKey, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false", "1", "0"}:
        raise InvalidCell(f"{key.name} is {text[:80]!r}, which is not a boolean")
    return word in {"true", "1"}


def _ends(element: GraphMLElement, read: Callable[[str], str]) -> dict[str, Any]:
    wanted = {"source": "from", "target": "to"} if element.edge else {"id": "id"}
    for name in wanted:
        if name not in element.attributes:
            raise InvalidCell(f"has no {name}")
    return {field: read(element.attributes[name]) for name, field in wanted.items()}


def _element_attribute(element: GraphMLElement, name: str) -> str:
    """Return an attribute of the element itself, without the colons of Neo4j labels: ``:Person:Actor``."""
    return element.attributes.get(name, "").strip(":")


def _pop_first_text(named: dict[str, tuple[GraphMLKey, str]], names: tuple[str, ...]) -> str:
    """Remove and return the first of these with a text; empty ones before it are removed, too."""
    lower = {name.lower(): name for name in named}
    for name in names:
        found = lower.get(name)
        if found is not None and (text := named.pop(found)[1]).strip():
            return text
    return ""


def _take_type(named: dict[str, tuple[GraphMLKey, str]], fields: dict[str, Any], labels: str) -> None:
    found = labels or _pop_first_text(named, _NODE_TYPE_KEYS)
    names = [name for name in found.split(":") if name] if found.startswith(":") or labels else [found]
    if labels:
        named.pop("labels", None)
    fields["type"] = (names[0] if names else "") or DEFAULT_NODE_TYPE
    if len(names) > 1:
        fields["tags"] = names[1:]


def _take_weight(named: dict[str, tuple[GraphMLKey, str]], fields: dict[str, Any]) -> None:
    for name in ("weight", "Weight"):
        if name in named:
            weight = parse_graphml_typed_value(named[name][0]._replace(type="double"), named[name][1])
            if isinstance(weight, float):
                fields["weight"] = weight
                del named[name]
                return


def _attributes(named: dict[str, tuple[GraphMLKey, str]], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the remaining data; ``tags`` and ``attributes`` may be JSON in files that another program rewrote."""
    attributes: dict[str, Any] = {}
    for name, (key, text) in named.items():
        if name in _OWN_EXTRA_FIELDS and text:
            fields[name] = text
            continue
        value = parse_graphml_typed_value(key, text)
        try:
            if name == "tags" and isinstance(value, str):
                fields["tags"] = parse_json_cell(name, value, list)
                continue
            if name == "attributes" and isinstance(value, str):
                attributes |= parse_json_cell(name, value, dict)
                continue
        except InvalidCell:
            pass
        attributes[name] = _list_or_text(text) if key.type == LIST_KEY_TYPE else value
    return attributes


def _list_or_text(text: str) -> Any:
    try:
        return parse_json_cell("list", text, list)
    except InvalidCell:
        return text


PARSE_BLOCK_BYTES = 64 << 10
MAX_XML_DEPTH = 200
MAX_DECLARED_KEYS = 20_000


def read_graphml(file: BinaryIO, name: str) -> Iterator[ImportRecord]:
    """Yield nodes and edges in file order, numbered by the line on which each begins.

    Raises InvalidInput if the file is not GraphML, or contains XML that is refused; earlier records have been yielded.
    """
    place = name or "the body"
    handler = _GraphMLHandler()
    parser = make_parser()
    parser.setContentHandler(handler)
    handler.line = parser.getLineNumber
    idle = 0
    try:
        while piece := file.read(PARSE_BLOCK_BYTES):
            before = handler.events
            parser.feed(piece)
            idle = idle + len(piece) if handler.events == before else 0
            if idle > MAX_LINE_BYTES:
                line = parser.getLineNumber()
                raise InvalidInput(f"line {line}: one tag or comment is over {MAX_LINE_BYTES:,} bytes")
            yield from handler.take_records()
        parser.close()
    except DefusedXmlException as error:
        where = f"{place} line {parser.getLineNumber()}"
        raise InvalidInput(f"{where}: entities and external references are refused") from error
    except SAXParseException as error:
        where = f"{place} line {error.getLineNumber()}"
        raise InvalidInput(f"{where}: is not well-formed XML: {error.getMessage()}") from error
    except (SAXException, InvalidInput) as error:
        raise InvalidInput(f"{place} {error}") from error
    except (LookupError, ValueError) as error:
        raise InvalidInput(f"{place} has an unsupported encoding: {error}; convert it to UTF-8") from error
    yield from handler.take_records()
    if not handler.is_graphml:
        raise InvalidInput(f"{place} is not GraphML: it contains no <graphml> element")


class _GraphMLHandler(ContentHandler):
    """SAX handler that collects elements; ``events`` grows with every parser event."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Any = None
        self.events = 0
        self.is_graphml = False
        self._keys: dict[str, GraphMLKey] = {}
        self._defaults: dict[GraphMLKey, str] = {}
        self._flavour: ElementDialect = convert_foreign_graphml_element
        self._depth = 0
        self._open: list[GraphMLElement] = []
        self._key: GraphMLKey | None = None
        self._data_depth = 0
        self._key_declaration: GraphMLKey | None = None
        self._text: list[str] | None = None
        self._text_depth = 0
        self._directed = [True]
        self._done: list[ImportRecord] = []

    def take_records(self) -> list[ImportRecord]:
        """Return the completed records, and forget them."""
        done, self._done = self._done, []
        return done

    @override
    def startElement(self, name: str, attrs: Any) -> None:
        self.events += 1
        self._depth += 1
        if self._depth > MAX_XML_DEPTH:
            raise InvalidInput(f"line {self.line()}: elements are nested more than {MAX_XML_DEPTH} deep")
        local = name.rpartition(":")[2]
        if self._key is None:
            self._start(local, attrs)
        elif local in {"NodeLabel", "EdgeLabel"}:
            self._collect()

    def _start(self, local: str, attrs: Any) -> None:
        match local:
            case "graphml":
                self.is_graphml = True
            case "key":
                self._declare(dict(attrs))
            case "default" if self._key_declaration is not None:
                self._collect()
            case "graph":
                self._directed.append(attrs.get("edgedefault", "directed") != "undirected")
            case "node" | "edge":
                self._begin(local, dict(attrs))
            case "hyperedge":
                self._done.append(
                    RejectedImportRow(self.line(), "a hyperedge joins more than two nodes; it was skipped")
                )
            case "data":
                self._data(attrs.get("key", ""))
            case _:
                pass

    @override
    def endElement(self, name: str) -> None:
        self.events += 1
        if self._text is not None and self._depth == self._text_depth:
            self._take_text("".join(self._text))
            self._text = None
        if self._key is not None:
            if self._depth == self._data_depth:
                self._key = None
        else:
            self._close(name.rpartition(":")[2])
        self._depth -= 1

    @override
    def characters(self, content: str) -> None:
        self.events += 1
        if self._text is None or self._depth != self._text_depth:
            return
        self._text.append(content)
        if self._open:
            self._open[-1].size += len(content)
            if self._open[-1].size > MAX_LINE_BYTES:
                raise InvalidInput(f"line {self._open[-1].line}: one element is over {MAX_LINE_BYTES:,} characters")

    def _collect(self) -> None:
        self._text, self._text_depth = [], self._depth

    def _declare(self, attributes: dict[str, str]) -> None:
        if len(self._keys) >= MAX_DECLARED_KEYS:
            raise InvalidInput(f"line {self.line()}: more than {MAX_DECLARED_KEYS:,} keys are declared")
        drawn = any(name.startswith("yfiles.") for name in attributes)
        name = attributes.get("attr.name", attributes.get("id", ""))
        kind = LIST_KEY_TYPE if "attr.list" in attributes else attributes.get("attr.type", "string")
        kind = GRAPHICS_KEY_TYPE if drawn else kind
        key = GraphMLKey(attributes.get("for", "all"), name, kind)
        self._keys[attributes.get("id", "")] = self._key_declaration = key
        if attributes.get("id") == GRAPHML_FORMAT_KEY:
            self._flavour = convert_kgserve_graphml_element

    def _begin(self, kind: str, attributes: dict[str, str]) -> None:
        parent = self._open[-1].attributes.get("id") if self._open and not self._open[-1].edge else None
        element = GraphMLElement(self.line(), kind == "edge", attributes, parent=parent)
        element.directed = attributes.get("directed", "true" if self._directed[-1] else "false") == "true"
        self._open.append(element)

    def _data(self, key: str) -> None:
        if not self._open:
            return
        # Data of an undeclared key are text, named by the id of the key.
        known = self._keys.get(key) or GraphMLKey("all", key or UNNAMED_KEY, "string")
        self._key, self._data_depth = known, self._depth
        self._collect()

    def _take_text(self, text: str) -> None:
        if self._key_declaration is not None and self._key is None:
            self._defaults[self._key_declaration] = text
        elif self._key is not None and self._depth > self._data_depth:
            self._open[-1].label = self._open[-1].label or text.strip()
        elif self._key is not None and self._key.type != GRAPHICS_KEY_TYPE:
            self._open[-1].data.append((self._key, text))

    def _close(self, local: str) -> None:
        match local:
            case "key":
                self._key_declaration = None
            case "graph":
                self._directed.pop()
            case "node" | "edge":
                if (record := self._record(self._open.pop())) is not None:
                    self._done.append(record)
            case _:
                pass

    def _record(self, element: GraphMLElement) -> ImportRecord | None:
        """Return the record of an element; None for a node that exists only as the target of a link."""
        if element.fault:
            return RejectedImportRow(element.line, element.fault)
        of = "edge" if element.edge else "node"
        for key, text in self._defaults.items():
            if key.of in {of, "all"} and all(known != key for known, _ in element.data):
                element.data.append((key, text))
        try:
            values = self._flavour(element)
        except ValueError as error:
            return RejectedImportRow(element.line, str(error))
        if not element.edge and LINK_STORE_FIELD in values:
            return None
        return (
            encode_edge_ndjson_line(element.line, values)
            if element.edge
            else encode_node_ndjson_line(element.line, values)
        )
