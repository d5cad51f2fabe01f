"""Packed rows of the history: smaller than the originals, lossless, and compatible with rows of older versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history import row_format
from kgserve.projections.history.history_sql import HISTORY_SCHEMA
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeExtras
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow, EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.model.store_rows_digest import checksum_63bit

TIME = 1_700_000_000_123_456
STAMPS = format_rfc3339_timestamp(TIME), format_rfc3339_timestamp(TIME + 5)


def a_node(content: str = "text", extras: NodeExtras | None = None) -> NodeRow:
    return NodeRow("a", "t", content, '{"k":1}', 3, 7, TIME, TIME + 5, extras)


def an_edge(weight: float = 1.0, own: str = "{}", extras: EdgeExtras | None = None) -> EdgeRow:
    return EdgeRow("a", "b", "R", weight, encode_edge_attributes(*STAMPS, own), 3, 7, extras)


NODES = [a_node(), a_node(""), a_node("long " * 1_000), a_node(extras=NodeExtras(created_by="me", summary="s"))]
EDGES = [
    *map(an_edge, (0.0, -0.0, 1.0, 0.25, -3.0, 65_535.0, 1e300, float("inf"))),
    an_edge(own='{"k":[1,2]}'),
    an_edge(extras=EdgeExtras(created_by="me", ordinal=4)),
    # Times in a format that kgserve does not write.
    EdgeRow(
        "a", "b", "R", 1.0, encode_edge_attributes("2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "{}"), 3, 7
    ),
]


@pytest.mark.parametrize("row", NODES)
def test_a_node_round_trips(row: NodeRow) -> None:
    assert row_format.unpack_history_node(*row_format.pack_history_node(row), row.id, row.type, row.version) == row


@pytest.mark.parametrize("row", EDGES, ids=repr)
def test_edges_and_links_round_trip(row: EdgeRow) -> None:
    found = row_format.unpack_history_edge(*row_format.pack_history_edge(row), *row.key, row.version)
    assert repr(found) == repr(row)
    assert row_format.unpack_history_edge(*row_format.pack_history_edge(row), *row.key, row.version) == row
    link = CrossStoreLinkRow("other", row)
    assert (
        row_format.unpack_history_cross_store_link(
            *row_format.pack_history_cross_store_link(link), *row.key, row.version, "other"
        )
        == link
    )


def test_packed_rows_are_smaller() -> None:
    assert len(row_format.pack_history_edge(an_edge()).content) < 20
    assert len(row_format.pack_history_node(a_node("word " * 1_000)).content) < 500


def test_checksum_mismatches_in_row_and_columns_are_detected() -> None:
    content, sum_ = row_format.pack_history_edge(an_edge())
    assert row_format.unpack_history_edge(content, sum_, "a", "b", "R", 3) == an_edge()
    assert row_format.unpack_history_edge(content, sum_, "a", "c", "R", 3) is None
    assert row_format.unpack_history_edge(content, sum_, "a", "b", "R", 4) is None
    assert row_format.unpack_history_edge(content[:-1] + b"\x00", sum_, "a", "b", "R", 3) is None
    assert row_format.unpack_history_edge(None, sum_, "a", "b", "R", 3) is None


def test_a_file_of_an_older_version_is_read_and_continued(tmp_path: Path) -> None:
    """Its rows are plain MessagePack, with a checksum of these bytes only."""
    path = tmp_path / "history.sqlite"
    encode = msgspec.msgpack.Encoder().encode
    rows = a_node(), an_edge(), CrossStoreLinkRow("other", an_edge())
    node, edge, link = ((data, checksum_63bit(data)) for data in map(encode, rows))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(HISTORY_SCHEMA)
        with connection:
            connection.execute("INSERT INTO node VALUES ('a', 7, NULL, 3, 't', 1, NULL, ?, ?)", node)
            connection.execute("INSERT INTO edge VALUES ('a', 'b', 'R', 7, NULL, 3, 1, NULL, ?, ?)", edge)
            connection.execute("INSERT INTO link VALUES ('a', 'other', 'b', 'R', 7, NULL, 3, 1, NULL, ?, ?)", link)
    with closing(HistoryFile(path)) as history:
        [state] = history.nodes_at(7, None, None, 10)
        [of_edge] = history.outgoing("a", 7, 10)
        [of_link] = history.links_from("a", 7, 10)
        assert (state.row, of_edge.row, of_link.row) == rows
