"""Notes of camggould/kb, from its SQLite file, as nodes and edges.

The mapping is that of memgraph's kbmigrate: a note is a node of type ``fact`` with its title as summary, and its links
are edges of type ``cites``. Workspaces become an attribute, because an import has one store.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    ImportRecord,
    ImportSourceTable,
    InvalidCell,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
    parse_json_cell,
)
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import MAX_SUMMARY_BYTES

SQLITE_SIGNATURE = b"SQLite format 3\0"
KB_INDEX_PATH = Path(".kb", "index.db")
"""Path of the database in a folder of kb."""
KB_CREATED_BY = "kb-migration"
KB_NODE_TYPE = "fact"
KB_RELATION_TYPE = "cites"

_REQUIRED_COLUMNS = frozenset({"id", "title", "body"})
_MAPPED_COLUMNS = _REQUIRED_COLUMNS | {"tags", "links"}
_SQLITE_LOG_SUFFIXES = ("-wal", "-journal")
_LAYERS_BY_TEXT = {str(layer): layer for layer in range(4)}
_Row = Mapping[str, Any]


def is_sqlite_file(path: Path) -> bool:
    """Return whether a file is a SQLite database, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_SIGNATURE)) == SQLITE_SIGNATURE


def is_kb_notes_folder(path: Path) -> bool:
    """Return whether a folder contains the index of kb's notes."""
    return (path / KB_INDEX_PATH).is_file()


@contextmanager
def open_kb_notes_and_links(path: Path) -> Generator[list[ImportSourceTable]]:
    """Open a file or a folder of kb, and yield its notes, then their links. The file is never changed.

    Raises InvalidInput for a file that is not kb's.
    """
    file = path / KB_INDEX_PATH if path.is_dir() else path
    if not is_sqlite_file(file):
        raise InvalidInput(f"{path} is not a SQLite database; kb keeps one as {KB_INDEX_PATH} in its folder")
    with _database(file) as connection:
        columns = _columns(connection, path)

        def rows() -> Iterator[_Row]:
            yield from _rows(connection, path, columns)

        # Both come from one table, which is read twice, because nodes must precede their edges.
        yield [
            ImportSourceTable(path.name, "row", _records(rows, _note)),
            ImportSourceTable(path.name, "row", _link_records(rows)),
        ]


@contextmanager
def _database(file: Path) -> Generator[sqlite3.Connection]:
    """Yield a read-only connection to a file; to a copy if a log must still be applied to it."""
    logs = [log for end in _SQLITE_LOG_SUFFIXES if (log := file.with_name(file.name + end)).exists()]
    with tempfile.TemporaryDirectory(prefix="kgserve-") as folder:
        opened, options = file, "mode=ro&immutable=1"
        if logs:
            opened, options = Path(folder, file.name), "mode=rw"
            for each in (file, *logs):
                shutil.copyfile(each, opened.with_name(each.name))
        address = f"file:{quote(str(opened.absolute()))}?{options}"
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            yield connection


def _columns(connection: sqlite3.Connection, path: Path) -> list[str]:
    try:
        columns = [str(row[1]) for row in connection.execute("PRAGMA table_info(notes)")]
        tables = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error as error:
        raise InvalidInput(f"{path}: SQLite cannot read it: {error}") from error
    if not {*columns} >= _REQUIRED_COLUMNS:
        found = ", ".join(sorted(tables)) or "none"
        raise InvalidInput(f"{path} is a SQLite database, but not one of kb: it has the tables {found}")
    return columns


def _rows(connection: sqlite3.Connection, path: Path, columns: list[str]) -> Iterator[_Row]:
    order = "created, id" if "created" in columns else "id"
    try:
        with closing(connection.execute(f"SELECT * FROM notes ORDER BY {order}")) as found:  # noqa: S608 - constants
            names = [column[0] for column in found.description]
            for values in found:
                yield dict(zip(names, values, strict=True))
    except sqlite3.Error as error:
        raise InvalidInput(f"{path}: SQLite cannot read it to its end: {error}") from error


def _records(rows: Callable[[], Iterator[_Row]], convert: Callable[[_Row], dict[str, Any]]) -> Iterator[ImportRecord]:
    for number, row in enumerate(rows(), 1):
        try:
            yield encode_node_ndjson_line(number, convert(row))
        except InvalidCell as error:
            yield RejectedImportRow(number, str(error))


def _note(row: _Row) -> dict[str, Any]:
    texts = {name: _text(name, value) for name, value in row.items()}
    if not texts["id"]:
        raise InvalidCell("has no id")
    title, body = texts["title"], texts["body"]
    is_long = len(title.encode("utf-8", "replace")) > MAX_SUMMARY_BYTES
    return {
        "id": texts["id"],
        "type": KB_NODE_TYPE,
        "content": f"{title}\n{body}" if is_long else body,
        "summary": None if is_long else title or None,
        "tags": _names("tags", texts.get("tags", "")) or None,
        "layer": _LAYERS_BY_TEXT.get(texts.get("layer", "")),
        "created_at": _moment(texts.get("created", "")),
        "updated_at": _moment(texts.get("modified", "")),
        "created_by": KB_CREATED_BY,
        "attributes": {f"kb_{name}": text for name, text in texts.items() if text and name not in _MAPPED_COLUMNS},
    }


def _link_records(rows: Callable[[], Iterator[_Row]]) -> Iterator[ImportRecord]:
    for number, row in enumerate(rows(), 1):
        try:
            source, links = _text("id", row["id"]), _names("links", _text("links", row.get("links")))
        except InvalidCell as error:
            yield RejectedImportRow(number, str(error))
            continue
        for target in links:
            values = {"from": source, "to": target, "relation_type": KB_RELATION_TYPE, "created_by": KB_CREATED_BY}
            yield encode_edge_ndjson_line(number, values)


def _names(column: str, text: str) -> list[str]:
    """Return the texts in a JSON array; none for an empty cell. Raises InvalidCell."""
    if not text.strip():
        return []
    found: list[Any] = parse_json_cell(column, text, list)
    for each in found:
        if not isinstance(each, str):
            raise InvalidCell(f"{column} contains {each!r}, which is not a string")
    return found


def _text(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        raise InvalidCell(f"{column} contains bytes instead of text")
    return str(value)


def _moment(text: str) -> str | None:
    """Return a time that the exchange format accepts, else None; other times are kept as an attribute only."""
    try:
        parse_rfc3339_timestamp(text)
    except ValueError:
        return None
    return text
