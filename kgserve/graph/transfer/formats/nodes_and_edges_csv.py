"""CSV as kgserve writes it: one file of nodes and one of edges, RFC 4180, UTF-8, attributes and tags as JSON text.

CSV with other columns is read with a mapping of columns to nodes and edges. Texts of a mapping are templates:
``person:{id}`` is ``person:`` followed by the value of column ``id``; ``{{`` and ``}}`` are literal braces.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    EDGE_FILE_COLUMNS,
    EDGE_FILE_FIELDS,
    KIND_EDGES,
    KIND_NODES,
    MAX_LINE_BYTES,
    NODE_FILE_COLUMNS,
    ExportNodeEdgeSplitter,
    ImportRecord,
    ImportSourceTable,
    InvalidCell,
    RejectedImportRow,
    detect_node_or_edge_table,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
    encode_tags_cell,
    raw_json_to_text,
    record_values,
    table_row_to_ndjson_line,
)
from kgserve.platform.codecs import convert_plain_value_to_type, locate_validation_error
from kgserve.platform.duplicate_json_keys import decode_json_with_unique_keys
from kgserve.storage.model import node_edge_fields
from kgserve.storage.model.node_edge_fields import EDGE, NODE, STRING_TYPE, TIMESTAMP_TYPE, RowField, RowFieldGroups

TableFileOpener = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens the file of nodes, or of edges; one at a time."""

DEFAULT_ENCODING = "utf-8"
_MAX_ROW_CHARS = 16 << 20
# The limit is global to the process and defaults to 128 KiB; contents may have 1 MiB.
csv.field_size_limit(MAX_LINE_BYTES)


def write_nodes_and_edges_csv(blocks: Iterable[bytes], sink: TableFileOpener) -> int:
    """Write an export as CSV, one file of nodes and one of edges; return the number of its lines."""
    lines = ExportNodeEdgeSplitter(blocks)
    with sink(KIND_NODES) as file:
        _write(
            file,
            NODE_FILE_COLUMNS,
            (_cells(KIND_NODES, record_values(node)) for batch in lines.nodes() for node in batch),
        )
    with sink(KIND_EDGES) as file:
        _write(
            file,
            EDGE_FILE_COLUMNS,
            (_cells(KIND_EDGES, record_values(edge)) for batch in lines.edges() for edge in batch),
        )
    return lines.count


def _write(file: BinaryIO, header: tuple[str, ...], rows: Iterable[list[Any]]) -> None:
    text = TextIOWrapper(file, encoding=DEFAULT_ENCODING, newline="", write_through=False)
    try:
        # The writer quotes texts that contain a character of the line terminator.
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(header)
        writer.writerows(rows)
    finally:
        text.detach()


def _cells(kind: str, values: tuple[Any, ...]) -> list[Any]:
    cells = list(values)
    for place, text_of in _CELL_WRITERS[kind]:
        cells[place] = text_of(cells[place])
    return cells


def _cell_writers(known: tuple[RowField, ...]) -> list[tuple[int, Callable[[Any], str]]]:
    """Return the positions of cells that are converted, with the conversions. Numbers round-trip unchanged."""
    special = {"attributes": raw_json_to_text, "tags": encode_tags_cell}
    return [(place, special[field.name]) for place, field in enumerate(known) if field.name in special]


_CELL_WRITERS = {KIND_NODES: _cell_writers(NODE.exchanged), KIND_EDGES: _cell_writers(EDGE_FILE_FIELDS)}
_COLUMN_TYPES = {field.wire: field.type for field in (*NODE.exchanged, *EDGE_FILE_FIELDS)}


class CsvReader:
    """A CSV file being read: its header, then its rows, numbered as in a spreadsheet."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        stack: ExitStack,
        *,
        delimiter: str = ",",
        quote: str = '"',
        encoding: str = DEFAULT_ENCODING,
    ) -> None:
        """Read the header; ``stack`` detaches the file. Raises InvalidInput without a header."""
        self.name = name
        # Undecodable bytes become lone surrogates, so that only their row is refused, not the file.
        self._encoding = encoding
        codec = "utf-8-sig" if encoding.lower().replace("_", "-") in {"utf-8", "utf8"} else encoding
        self._text = TextIOWrapper(file, encoding=codec, errors="surrogateescape", newline="")
        stack.callback(self._text.detach)
        self._row_chars = 0
        self._number = 1
        self._rows = csv.reader(self._lines(), delimiter=delimiter, quotechar=quote, strict=True)
        try:
            self.header = next(self._rows, [])
        except csv.Error as error:
            raise InvalidInput(f"{name}: the header cannot be read as CSV: {error}") from None
        if not any(self.header):
            raise InvalidInput(f"{name}: has no header; the first row must name the columns")

    def rows(self) -> Iterator[tuple[int, dict[str, str] | str]]:
        """Yield the number and cells of each row, or its fault; empty rows are skipped."""
        width = len(self.header)
        while True:
            self._number = number = self._number + 1
            self._row_chars = 0
            try:
                cells = next(self._rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, f"is not a valid CSV row: {error}"
                continue
            if len(cells) == width:
                yield number, dict(zip(self.header, cells, strict=True))
            elif cells:
                yield number, f"has {len(cells)} cells where the header has {width}"

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the file. Raises InvalidInput for a row that would exhaust the memory."""
        while line := self._line():
            self._row_chars += len(line)
            if self._row_chars > _MAX_ROW_CHARS:
                raise InvalidInput(f"{self.name} row {self._number}: is longer than {_MAX_ROW_CHARS:,} characters")
            yield line

    def _line(self) -> str:
        try:
            return self._text.readline(_MAX_ROW_CHARS + 1)
        except UnicodeError as error:
            place = f"{self.name} row {self._number}"
            raise InvalidInput(f"{place}: is not valid {self._encoding} text: {error}") from None


class CsvTable:
    """A CSV file of nodes or edges with all or some columns of an export. Raises InvalidInput for other columns."""

    def __init__(self, file: BinaryIO, name: str, stack: ExitStack) -> None:
        self._table = CsvReader(file, name, stack)
        self.kind = detect_node_or_edge_table(name, self._table.header)

    def part(self) -> ImportSourceTable:
        """Return its rows, numbered as in a spreadsheet: the header is row 1."""
        return ImportSourceTable(self._table.name, "row", _records(self._table, self.kind))


def _records(table: CsvReader, kind: str) -> Iterator[ImportRecord]:
    for number, cells in table.rows():
        if isinstance(cells, str):
            yield RejectedImportRow(number, cells)
            continue
        try:
            values: dict[str, Any] = {
                column: _value(column, text) for column, text in cells.items() if text or column == "content"
            }
        except InvalidCell as error:
            yield RejectedImportRow(number, str(error))
        else:
            yield table_row_to_ndjson_line(kind, number, values)


def _value(column: str, text: str) -> Any:
    match _COLUMN_TYPES[column]:
        case node_edge_fields.INT64_TYPE:
            return parse_integer_cell(column, text)
        case node_edge_fields.DOUBLE_TYPE:
            return parse_finite_float(column, text)
        case _:
            return text


def parse_integer_cell(column: str, text: str) -> int:
    """Parse an integer. Raises InvalidCell."""
    try:
        return int(text)
    except ValueError:
        raise InvalidCell(f"{column} is {text[:80]!r}, which is not an integer") from None


def parse_finite_float(column: str, text: str) -> float:
    """Parse a number that JSON can represent. Raises InvalidCell."""
    try:
        value = float(text)
    except ValueError:
        raise InvalidCell(f"{column} is {text[:80]!r}, which is not a number") from None
    if value - value != 0:
        raise InvalidCell(f"{column} is {text[:80]!r}, which is not a finite number")
    return value


AttributeValueType = Literal["text", "int", "float", "bool", "json", "datetime"]
_Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
_TEMPLATE_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TEXT_TYPES = {STRING_TYPE, TIMESTAMP_TYPE}
_TRUE_WORDS = frozenset({"true", "yes", "y", "1", "t"})
_FALSE_WORDS = frozenset({"false", "no", "n", "0", "f"})


class CsvAttributeColumn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Column of a CSV file that is stored as an attribute with another name, and the type of its values."""

    column: str
    type: AttributeValueType = "text"


class CsvTagsColumnMapping(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A column of tags."""

    column: str
    separator: Annotated[str, msgspec.Meta(min_length=1)] = ","


class CsvNodeTableMapping(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Mapping of a CSV file's rows to nodes. Texts are templates; several ``content`` are joined by line breaks."""

    file: str
    id: str
    type: str
    content: str | list[str] = ""
    attributes: dict[str, AttributeValueType | CsvAttributeColumn] = {}
    summary: str = ""
    tags: CsvTagsColumnMapping | None = None
    created_by: str = ""
    valid_from: str = ""
    valid_to: str = ""
    freshness_at: str = ""


class CsvEdgeTableMapping(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Mapping of a CSV file's rows to edges. Texts are templates; ``to_graph`` is the store of ``to``, if another."""

    file: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    to_graph: str = ""
    weight: str = ""
    ordinal: str = ""
    attributes: dict[str, AttributeValueType | CsvAttributeColumn] = {}
    created_by: str = ""
    valid_from: str = ""
    valid_to: str = ""


class CsvImportMapping(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A mapping file: the CSV dialect, and the contents of the files. Paths are relative to it."""

    nodes: list[CsvNodeTableMapping] = []
    edges: list[CsvEdgeTableMapping] = []
    delimiter: _Character = ","
    quote: _Character = '"'
    encoding: str = "utf-8"


def read_csv_import_mapping(path: Path) -> CsvImportMapping:
    """Return the mapping in a TOML or JSON file. Raises InvalidInput naming the faulty field."""
    try:
        text = path.read_bytes()
        data = decode_json_with_unique_keys(text) if path.suffix.lower() == ".json" else tomllib.loads(text.decode())
        mapping = convert_plain_value_to_type(data, CsvImportMapping)
        # Also refuses Python codecs that are not text encodings, such as base64.
        TextIOWrapper(BytesIO(), encoding=mapping.encoding, errors="surrogateescape").read()
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, CsvImportMapping)
        raise InvalidInput(f"{path.name}: {fault.path or 'the mapping'}: {fault.message}", (fault,)) from None
    except LookupError as error:
        raise InvalidInput(f"{path.name}: encoding: {error}", (FieldError("encoding", str(error)),)) from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        language = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise InvalidInput(f"{path.name} cannot be read as {language}: {error}") from None
    if not mapping.nodes and not mapping.edges:
        raise InvalidInput(f"{path.name}: has neither nodes nor edges; add a [[nodes]] or an [[edges]] table")
    return mapping


def open_mapped_csv_tables(
    mapping: CsvImportMapping, folder: Path, files: Sequence[Path], stack: ExitStack
) -> list[ImportSourceTable]:
    """Return the parts of all tables, or of those whose ``files`` are given; nodes first.

    Raises InvalidInput for a missing column, before rows are read, and for files that are not in the mapping.
    """
    given = {file.name: file for file in files}
    named = {Path(table.file).name for table in (*mapping.nodes, *mapping.edges)}
    if unknown := sorted(given.keys() - named):
        raise InvalidInput(
            f"these files are not in the mapping: {', '.join(unknown)}; it names {', '.join(sorted(named))}"
        )
    parts: list[ImportSourceTable] = []
    read = set[str]()
    for kind, tables in (("nodes", mapping.nodes), ("edges", mapping.edges)):
        for index, table in enumerate(tables):
            name = Path(table.file).name
            if not given or name in given:
                path = given.get(name, folder / table.file)
                rows = _MappedFile(mapping, table, path, stack, f"{kind}[{index}]")
                parts.append(ImportSourceTable(name, "row", rows.records(table, is_optional=table.file in read)))
                read.add(table.file)
    return parts


class _EmptyRequiredCell(InvalidCell):
    """An empty cell of a column that an id, an end or a type needs."""


class _MappedFile:
    """A file with the columns that its mapping requires."""

    def __init__(
        self,
        mapping: CsvImportMapping,
        table: CsvNodeTableMapping | CsvEdgeTableMapping,
        path: Path,
        stack: ExitStack,
        place: str,
    ) -> None:
        try:
            file = stack.enter_context(path.open("rb"))
        except (OSError, ValueError) as error:
            reason = f"{path}: {error.strerror if isinstance(error, OSError) else error}"
            raise InvalidInput.at(f"{place}.file", reason) from error
        self._table = CsvReader(
            file, table.file, stack, delimiter=mapping.delimiter, quote=mapping.quote, encoding=mapping.encoding
        )
        self._check(table, place)

    def records(
        self, table: CsvNodeTableMapping | CsvEdgeTableMapping, *, is_optional: bool = False
    ) -> Iterator[ImportRecord]:
        """Yield a record for each row; with ``is_optional``, rows that lack a required cell are left out."""
        for number, cells in self._table.rows():
            if isinstance(cells, str):
                yield RejectedImportRow(number, cells)
                continue
            try:
                yield (
                    _node(number, table, cells)
                    if isinstance(table, CsvNodeTableMapping)
                    else _edge(number, table, cells)
                )
            except InvalidCell as error:
                if not (is_optional and isinstance(error, _EmptyRequiredCell)):
                    yield RejectedImportRow(number, str(error))

    def _check(self, table: CsvNodeTableMapping | CsvEdgeTableMapping, place: str) -> None:
        for field, column in _columns(table):
            if column not in self._table.header:
                header = ", ".join(self._table.header[:20])
                message = f"{table.file} has no column {column!r}; it has {header}"
                raise InvalidInput.at(f"{place}.{field}", message)
            if self._table.header.count(column) > 1:
                message = f"{table.file} has more than one column {column!r}"
                raise InvalidInput.at(f"{place}.{field}", message)


def _columns(table: CsvNodeTableMapping | CsvEdgeTableMapping) -> Iterator[tuple[str, str]]:
    for field in table.__struct_fields__:
        value: Any = getattr(table, field)
        if field == "attributes":
            for name, wanted in value.items():
                yield f"attributes.{name}", wanted.column if isinstance(wanted, CsvAttributeColumn) else name
        elif isinstance(value, CsvTagsColumnMapping):
            yield "tags.column", value.column
        elif field != "file" and value:
            for text in value if isinstance(value, list) else [value]:
                yield from ((field, column) for column in _placeholder_columns(text, field))


def _placeholder_columns(template: str, field: str) -> Iterator[str]:
    for found in _TEMPLATE_PLACEHOLDER.finditer(template):
        if found[0] in {"{", "}"}:
            message = f"{template!r} has an unmatched brace; write {{{{ or }}}} for a literal brace"
            raise InvalidInput.at(field, message)
        if found[1] is not None:
            yield found[1]


def _fill(template: str, cells: dict[str, str]) -> str:
    return _TEMPLATE_PLACEHOLDER.sub(lambda found: found[0][0] if found[1] is None else cells[found[1]], template)


def _node(number: int, table: CsvNodeTableMapping, cells: dict[str, str]) -> ImportRecord:
    contents = [table.content] if isinstance(table.content, str) else table.content
    texts = (_fill(content, cells) for content in contents)
    values: dict[str, Any] = {
        "id": _fill_required("id", table.id, cells),
        "type": _fill_required("type", table.type, cells),
        "content": "\n".join(text for text in texts if text),
        "attributes": _attributes(table.attributes, cells),
        **_extras(table, NODE, cells),
    }
    if table.tags is not None:
        tags = (tag.strip() for tag in cells[table.tags.column].split(table.tags.separator))
        values["tags"] = [tag for tag in tags if tag]
    return encode_node_ndjson_line(number, values)


def _edge(number: int, table: CsvEdgeTableMapping, cells: dict[str, str]) -> ImportRecord:
    weight, ordinal = _fill(table.weight, cells), _fill(table.ordinal, cells)
    values: dict[str, Any] = {
        "from": _fill_required("from", table.source, cells),
        "to": _fill_required("to", table.target, cells),
        "relation_type": _fill_required("relation_type", table.relation_type, cells),
        "to_graph": _fill(table.to_graph, cells) or None,
        "weight": parse_finite_float("weight", weight) if weight else None,
        "ordinal": parse_integer_cell("ordinal", ordinal) if ordinal else None,
        "attributes": _attributes(table.attributes, cells),
        **_extras(table, EDGE, cells),
    }
    return encode_edge_ndjson_line(number, values)


def _extras(
    table: CsvNodeTableMapping | CsvEdgeTableMapping, fields: RowFieldGroups, cells: dict[str, str]
) -> dict[str, str | None]:
    """Return the optional texts and times."""
    filled = (
        (field, _fill(getattr(table, field.name, ""), cells)) for field in fields.optional if field.type in _TEXT_TYPES
    )
    return {
        field.name: _moment(field.name, text) if field.type is TIMESTAMP_TYPE else text or None
        for field, text in filled
    }


def _fill_required(field: str, template: str, cells: dict[str, str]) -> str:
    """Fill in a template whose columns must all have values: ``person:`` alone would be the same id for many rows."""
    for column in _placeholder_columns(template, field):
        if not cells[column]:
            raise _EmptyRequiredCell(f"{field}: column {column} is empty")
    return _fill(template, cells)


def _attributes(wanted: dict[str, AttributeValueType | CsvAttributeColumn], cells: dict[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, found in wanted.items():
        column, kind = (found.column, found.type) if isinstance(found, CsvAttributeColumn) else (name, found)
        if cells[column]:
            attributes[name] = _mapped_value(column, kind, cells[column])
    return attributes


def _mapped_value(column: str, kind: AttributeValueType, text: str) -> Any:
    match kind:
        case "int":
            return parse_integer_cell(column, text)
        case "float":
            return parse_finite_float(column, text)
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
    if word not in _TRUE_WORDS | _FALSE_WORDS:
        raise InvalidCell(f"{column} is {text[:80]!r}, which is neither true nor false")
    return word in _TRUE_WORDS


def _json(column: str, text: str) -> Any:
    try:
        return decode_json_with_unique_keys(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidCell(f"{column} is not JSON: {error}") from None


def _moment(column: str, text: str) -> str | None:
    """Convert an ISO 8601 time, as Python parses it, to RFC 3339; without a zone it is UTC, a date is midnight."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.isoformat()
    except ValueError:
        raise InvalidCell(f"{column} is {text[:80]!r}, which is not a time such as 2025-07-15T12:00:00Z") from None
