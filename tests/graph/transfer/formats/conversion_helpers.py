"""Shared helpers of the format tests: lines of generated or real exports, and their conversion."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from hypothesis import strategies as st

from kgserve.client.json_lines_stream import write_atomically
from kgserve.graph.transfer.formats.graphml import write_graphml
from kgserve.graph.transfer.formats.import_export_files import (
    detect_import_format,
    node_and_edge_file_paths,
    open_import_source_tables,
    write_node_and_edge_files,
)
from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap, ImportSourceTable

FIXTURES = Path(__file__).parent / "fixtures"
FORMATS = ("csv", "parquet", "graphml")
Row = dict[str, Any]

ADVERSARIAL_TEXTS = (
    "",
    '"',
    "a,b;c\td",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "'quoted",
    "line\nline\r\nline\rend\n",
    "\x00 NUL, \x1b escape, \x7f, \x85, \u2028",
    "\ufffe\uffff",
    "_x0041_ _x005F_ _x00",
    "_x0041\x0b",
    "]]> & <b> &#13; &amp;",
    "🦕👩🏽‍🚀",
    "שלום \u202eRTL\u202c",
    "\ufeffBOM",
    " blanks ",
    "NULL",
    "\\N \\n",
)


def row(line: bytes) -> Row:
    return msgspec.json.decode(line)


def blocks(rows: Iterable[Row], size: int = 97) -> list[bytes]:
    """Split lines into chunks, as a connection may."""
    whole = b"".join(msgspec.json.encode(each) + b"\n" for each in rows)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def write(kind: str, lines: Iterable[bytes], folder: Path) -> Path:
    """Write an export; return the path to import it from."""
    path = folder / f"out.{kind}"
    if kind == "graphml":
        with path.open("wb") as file:
            write_graphml(lines, file)
        return path
    with ExitStack() as stack:
        nodes, edges = node_and_edge_file_paths(path, kind)
        opened: dict[str, BinaryIO] = {
            "nodes": stack.enter_context(write_atomically(nodes)),
            "edges": stack.enter_context(write_atomically(edges)),
        }
        write_node_and_edge_files(kind, lines, lambda part: _NonClosingFile(opened[part]))
    return path


class _NonClosingFile:
    """A file that stays open after a `with` block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> BinaryIO:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.flush()


def read(*paths: Path, kind: str | None = None, mapping: Path | None = None) -> tuple[list[Row], list[str]]:
    """Return the rows of an import, and its faults with their places."""
    with ExitStack() as stack:
        return collect_rows(open_import_source_tables(kind or detect_import_format(paths), paths, stack, mapping))


def collect_rows(parts: Iterable[ImportSourceTable]) -> tuple[list[Row], list[str]]:
    conversion = ImportLinesWithSourceMap(parts)
    rows = [row(line) for block in conversion.blocks() for line in block.split(b"\n") if line]
    return rows, [fault.message for fault in conversion.faults]


_times = st.sampled_from(
    (
        "0001-01-01T00:00:00.000000Z",
        "1969-12-31T23:59:59.999999Z",
        "2025-07-15T12:00:00.000001Z",
        "9999-12-31T23:59:59.999999Z",
    )
)
texts = st.one_of(st.sampled_from(ADVERSARIAL_TEXTS), st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
_names = texts.filter(bool)
_shares = st.floats(0, 1).filter(lambda share: share > 0 or str(share) == "0.0")
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
_attributes = st.dictionaries(
    texts | st.sampled_from(("type", "content", "id", "weight", "attributes")), _values, max_size=4
)
_nodes = st.fixed_dictionaries(
    {
        "kind": st.just("node"),
        "id": _names,
        "type": _names,
        "content": texts,
        "attributes": _attributes,
        "version": st.integers(1, (1 << 53) - 1),
        "created_at": _times,
        "updated_at": _times,
    },
    optional={
        "summary": _names,
        "tags": st.lists(_names, min_size=1, max_size=3),
        "freshness_at": _times,
        "created_by": _names,
        "valid_from": _times,
        "valid_to": _times,
        "name": _names,
        "confidence": st.floats(0, 1),
        "confidence_at": _times,
        "importance": st.floats(0, 1),
        "source": _names,
        "context": _names,
        "layer": st.integers(0, 3),
        "ended": st.sampled_from(("merged", "pruned")),
        "former_from": _times,
        "former_to": _times,
        "belongs_to": _names,
        "access_count": st.integers(1, (1 << 53) - 1),
        "last_accessed_at": _times,
        "access_confidence": _shares,
    },
)
_edges = st.fixed_dictionaries(
    {
        "kind": st.just("edge"),
        "from": _names,
        "to": _names,
        "relation_type": _names,
        "weight": st.floats(allow_nan=False, allow_infinity=False),
        "attributes": _attributes,
        "version": st.integers(1, (1 << 53) - 1),
    },
    optional={
        "ordinal": st.integers(-(1 << 53), 1 << 53),
        "created_by": _names,
        "valid_from": _times,
        "valid_to": _times,
    },
)
exports = st.tuples(st.lists(_nodes, max_size=4), st.lists(_edges, max_size=4)).map(lambda both: [*both[0], *both[1]])
"""Rows of generated exports."""
