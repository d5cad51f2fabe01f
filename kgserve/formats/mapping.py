"""CSV of any columns: a mapping says which of them make nodes and edges.

Texts are templates: ``person:{id}`` is what the column ``id`` holds after ``person:``, ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kgserve.decoding import convert, decode_json, place_of
from kgserve.errors import FieldError, InvalidInput
from kgserve.formats.csv_pair import Table, real_number, whole_number
from kgserve.formats.lines import BadCell, Part, Record, Wrong, edge, node
from kgserve.model.fields import EDGE, NODE, TEXT, TIME, Fields

Kind = Literal["text", "int", "float", "bool", "json", "datetime"]
_Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TEXTS = {TEXT, TIME}
_TRUE = frozenset({"true", "yes", "y", "1", "t"})
_FALSE = frozenset({"false", "no", "n", "0", "f"})


class Attribute(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A column that becomes an attribute of another name."""

    column: str
    type: Kind = "text"


class Tags(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A column of tags."""

    column: str
    separator: Annotated[str, msgspec.Meta(min_length=1)] = ","


class NodeTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file whose rows are nodes. Texts are templates; ``content`` may be several, one below the other."""

    file: str
    id: str
    type: str
    content: str | list[str] = ""
    attributes: dict[str, Kind | Attribute] = {}
    summary: str = ""
    tags: Tags | None = None
    created_by: str = ""
    valid_from: str = ""
    valid_to: str = ""
    freshness_at: str = ""


class EdgeTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file whose rows are edges. Texts are templates; where ``to_graph`` comes to one it is the store of ``to``."""

    file: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    to_graph: str = ""
    weight: str = ""
    ordinal: str = ""
    attributes: dict[str, Kind | Attribute] = {}
    created_by: str = ""
    valid_from: str = ""
    valid_to: str = ""


class Mapping(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A mapping file: how the CSV files are written, and what is in them. Paths are relative to it."""

    nodes: list[NodeTable] = []
    edges: list[EdgeTable] = []
    delimiter: _Character = ","
    quote: _Character = '"'
    encoding: str = "utf-8"


def read_mapping(path: Path) -> Mapping:
    """The mapping in a TOML or JSON file. Raises InvalidInput naming the place that is wrong."""
    try:
        text = path.read_bytes()
        data = decode_json(text) if path.suffix.lower() == ".json" else tomllib.loads(text.decode())
        mapping = convert(data, Mapping)
        # As `Table` reads: refuses also what Python has as an encoding and is none of texts, as base64.
        TextIOWrapper(BytesIO(), encoding=mapping.encoding, errors="surrogateescape").read()
    except msgspec.ValidationError as error:
        fault = place_of(error, Mapping)
        raise InvalidInput(f"{path.name}: {fault.path or 'the mapping'}: {fault.message}", (fault,)) from None
    except LookupError as error:
        raise InvalidInput(f"{path.name}: encoding: {error}", (FieldError("encoding", str(error)),)) from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        language = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise InvalidInput(f"{path.name} cannot be read as {language}: {error}") from None
    if not mapping.nodes and not mapping.edges:
        raise InvalidInput(f"{path.name}: names neither nodes nor edges; add a [[nodes]] or an [[edges]] table")
    return mapping


def mapped(mapping: Mapping, folder: Path, files: Sequence[Path], stack: ExitStack) -> list[Part]:
    """The parts of all tables, or of those whose ``files`` are named; nodes first.

    Raises InvalidInput when a column is missing, before anything is read, and for files that the mapping does not name.
    """
    given = {file.name: file for file in files}
    named = {Path(table.file).name for table in (*mapping.nodes, *mapping.edges)}
    if unknown := sorted(given.keys() - named):
        raise InvalidInput(f"the mapping says nothing of {', '.join(unknown)}; it names {', '.join(sorted(named))}")
    parts: list[Part] = []
    for kind, tables in (("nodes", mapping.nodes), ("edges", mapping.edges)):
        for index, table in enumerate(tables):
            name = Path(table.file).name
            if not given or name in given:
                path = given.get(name, folder / table.file)
                rows = _Rows(mapping, table, path, stack, f"{kind}[{index}]")
                parts.append(Part(name, "row", rows.records(table)))
    return parts


class _Rows:
    """One file with the columns that its mapping wants."""

    def __init__(
        self, mapping: Mapping, table: NodeTable | EdgeTable, path: Path, stack: ExitStack, place: str
    ) -> None:
        try:
            file = stack.enter_context(path.open("rb"))
        except (OSError, ValueError) as error:
            reason = f"{path}: {error.strerror if isinstance(error, OSError) else error}"
            raise InvalidInput(f"{place}.file: {reason}", (FieldError(f"{place}.file", reason),)) from error
        self._table = Table(
            file, table.file, stack, delimiter=mapping.delimiter, quote=mapping.quote, encoding=mapping.encoding
        )
        self._check(table, place)

    def records(self, table: NodeTable | EdgeTable) -> Iterator[Record]:
        """A record for each row."""
        for number, cells in self._table.rows():
            if isinstance(cells, str):
                yield Wrong(number, cells)
                continue
            try:
                yield _node(number, table, cells) if isinstance(table, NodeTable) else _edge(number, table, cells)
            except BadCell as error:
                yield Wrong(number, str(error))

    def _check(self, table: NodeTable | EdgeTable, place: str) -> None:
        for field, column in _columns(table):
            if column not in self._table.header:
                there = ", ".join(self._table.header[:20])
                message = f"{table.file} has no column {column!r}; it has {there}"
                raise InvalidInput(f"{place}.{field}: {message}", (FieldError(f"{place}.{field}", message),))
            if self._table.header.count(column) > 1:
                message = f"{table.file} has more than one column {column!r}"
                raise InvalidInput(f"{place}.{field}: {message}", (FieldError(f"{place}.{field}", message),))


def _columns(table: NodeTable | EdgeTable) -> Iterator[tuple[str, str]]:
    for field in table.__struct_fields__:
        value: Any = getattr(table, field)
        if field == "attributes":
            for name, wanted in value.items():
                yield f"attributes.{name}", wanted.column if isinstance(wanted, Attribute) else name
        elif isinstance(value, Tags):
            yield "tags.column", value.column
        elif field != "file" and value:
            for text in value if isinstance(value, list) else [value]:
                yield from ((field, column) for column in _named(text, field))


def _named(template: str, field: str) -> Iterator[str]:
    for found in _PLACE.finditer(template):
        if found[0] in {"{", "}"}:
            message = f"{template!r} has a brace without its other half; write {{{{ or }}}} for a brace"
            raise InvalidInput(f"{field}: {message}", (FieldError(field, message),))
        if found[1] is not None:
            yield found[1]


def _filled(template: str, cells: dict[str, str]) -> str:
    return _PLACE.sub(lambda found: found[0][0] if found[1] is None else cells[found[1]], template)


def _node(number: int, table: NodeTable, cells: dict[str, str]) -> Record:
    contents = [table.content] if isinstance(table.content, str) else table.content
    texts = (_filled(content, cells) for content in contents)
    values: dict[str, Any] = {
        "id": _needed("id", table.id, cells),
        "type": _needed("type", table.type, cells),
        "content": "\n".join(text for text in texts if text),
        "attributes": _attributes(table.attributes, cells),
        **_extras(table, NODE, cells),
    }
    if table.tags is not None:
        tags = (tag.strip() for tag in cells[table.tags.column].split(table.tags.separator))
        values["tags"] = [tag for tag in tags if tag]
    return node(number, values)


def _edge(number: int, table: EdgeTable, cells: dict[str, str]) -> Record:
    weight, ordinal = _filled(table.weight, cells), _filled(table.ordinal, cells)
    values: dict[str, Any] = {
        "from": _needed("from", table.source, cells),
        "to": _needed("to", table.target, cells),
        "relation_type": _needed("relation_type", table.relation_type, cells),
        "to_graph": _filled(table.to_graph, cells) or None,
        "weight": real_number("weight", weight) if weight else None,
        "ordinal": whole_number("ordinal", ordinal) if ordinal else None,
        "attributes": _attributes(table.attributes, cells),
        **_extras(table, EDGE, cells),
    }
    return edge(number, values)


def _extras(table: NodeTable | EdgeTable, fields: Fields, cells: dict[str, str]) -> dict[str, str | None]:
    """The texts and times among the extras."""
    filled = (
        (field, _filled(getattr(table, field.name, ""), cells)) for field in fields.optional if field.type in _TEXTS
    )
    return {field.name: _moment(field.name, text) if field.type is TIME else text or None for field, text in filled}


def _needed(field: str, template: str, cells: dict[str, str]) -> str:
    """A template of which every column must hold something: ``person:`` alone would be one id for many rows."""
    for column in _named(template, field):
        if not cells[column]:
            raise BadCell(f"{field}: column {column} is empty")
    return _filled(template, cells)


def _attributes(wanted: dict[str, Kind | Attribute], cells: dict[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, found in wanted.items():
        column, kind = (found.column, found.type) if isinstance(found, Attribute) else (name, found)
        if cells[column]:
            attributes[name] = _value(column, kind, cells[column])
    return attributes


def _value(column: str, kind: Kind, text: str) -> Any:
    match kind:
        case "int":
            return whole_number(column, text)
        case "float":
            return real_number(column, text)
        case "bool":
            return _flag(column, text)
        case "json":
            return _json(column, text)
        case "datetime":
            return _moment(column, text)
        case "text":
            return text


def _flag(column: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise BadCell(f"{column} is {text[:80]!r}, which is neither true nor false")
    return word in _TRUE


def _json(column: str, text: str) -> Any:
    try:
        return decode_json(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadCell(f"{column} is not JSON: {error}") from None


def _moment(column: str, text: str) -> str | None:
    """RFC 3339 of what Python takes for ISO 8601; a time without a zone is UTC, a day begins at midnight."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.isoformat()
    except ValueError:
        raise BadCell(f"{column} is {text[:80]!r}, which is no time such as 2025-07-15T12:00:00Z") from None
