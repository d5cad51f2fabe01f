"""Backward compatibility: snapshots and frames written before rows had extras."""

from __future__ import annotations

import hashlib
import io
import struct
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import FRAME_MAGIC, Journal, encode_journal_frame, read_journal_frame
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_fields import EdgeExtras, EdgeExtrasUpsert, NodeExtras, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.storage.journal.history import SEGMENT, History, mixed

NODE_COLUMNS = ("id", "type", "content", "attributes", "version", "sequence", "created_at", "updated_at")
EDGE_COLUMNS = ("from", "to", "relation_type", "weight", "attributes", "version", "sequence")
# Computed and written by that version for `mixed`.
DIGEST = 0x71B512932B1DFCF8A2A453B4B979E64A
FRAME = "27375b3d06a925c58fd84fd7cab9a4f576d3273fa4a768c73a533668966e3b04"
EXTRAS = NodeExtrasUpsert("short", ("x", "y"), 0, "ada", -5, 5)


def old_snapshot(folder: Path, history: History) -> Path:
    """Write a snapshot with eight node columns and seven edge columns."""
    rows = folder / "rows"
    rows.mkdir()
    edges = [row for row in history.workspace.edges.values() if row is not None]
    nodes = list(history.workspace.nodes.values())
    for name, columns, values in (
        (snapshot.NODES_FILE, NODE_COLUMNS, [msgspec.structs.astuple(row)[:8] for row in nodes]),
        (snapshot.EDGES_FILE, EDGE_COLUMNS, [msgspec.structs.astuple(row)[:7] for row in edges]),
    ):
        table = pa.table(dict(zip(columns, map(list, zip(*values, strict=True)), strict=True)))
        times = [
            field if not field.name.endswith("_at") else field.with_type(pa.timestamp("us")) for field in table.schema
        ]
        pq.write_table(table.cast(pa.schema(times)), rows / name)
    return snapshot.publish_journal_snapshot(rows, folder, history.state)


def old_frame(changes: list[ChangeSet]) -> bytes:
    """Return a frame whose rows end before the extras."""
    payload = msgspec.msgpack.encode([_old(change) for change in changes])
    header = struct.pack("<4sIQIq", FRAME_MAGIC, len(payload), changes[0].sequence, len(changes), changes[-1].time)
    return header + struct.pack("<Q", xxhash.xxh3_64_intdigest(header + payload)) + payload


def _old(change: ChangeSet) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(change, builtin_types=(bytes,))
    fields.pop("last_versions", None)
    for name in ("nodes_created", "nodes_updated", "edges_created", "edges_updated", "edges_touched"):
        if name in fields:
            fields[name] = [row[:-1] for row in fields[name]]
    return fields


def extended(history: History) -> History:
    """Add extras to rows: one node, one edge, and one node that loses them again."""
    history.add(
        WriteBatch(
            nodes=[NodeUpsert(0, "a", extras=EXTRAS), NodeUpsert(1, "d", extras=EXTRAS)],
            edges=[
                EdgeUpsert(0, ("a", "b", "r"), extras=EdgeExtrasUpsert(0, "", 1, None)),
                EdgeUpsert(1, ("a", "e", "r")),
            ],
        )
    )
    history.add(WriteBatch(delete_nodes=["d"], nodes=[NodeUpsert(0, "d", "t")]))
    return history


def rows_of(folder: Path) -> tuple[set[NodeRow], set[EdgeRow]]:
    return set(snapshot.read_snapshot_nodes(folder)), set(snapshot.read_snapshot_edges(folder))


def rows_planned(history: History) -> tuple[set[NodeRow], set[EdgeRow]]:
    return set(history.workspace.nodes.values()), {row for row in history.workspace.edges.values() if row is not None}


def test_digest_equals_that_of_old_version() -> None:
    assert mixed().state.digest == DIGEST


def test_old_snapshot_is_readable_and_matches_digest(tmp_path: Path) -> None:
    history = mixed()
    folder = old_snapshot(tmp_path, history)
    assert snapshot.verify_snapshot(folder).state == history.state
    assert snapshot.digest_and_count_snapshot_rows(folder) == (DIGEST, history.state.nodes, history.state.edges)
    assert rows_of(folder) == rows_planned(history)
    assert {row.extras for row in (*snapshot.read_snapshot_nodes(folder), *snapshot.read_snapshot_edges(folder))} == {
        None
    }


def test_extras_are_merged_into_old_snapshot(tmp_path: Path) -> None:
    history = mixed()
    base, before = old_snapshot(tmp_path, history), len(history.changes)
    extended(history)
    rows = tmp_path / "folded"
    rows.mkdir()
    folded = materialize_rows_to_parquet(base, history.changes[before:], rows)
    assert not folded.is_digest_replaced
    newer = snapshot.publish_journal_snapshot(rows, tmp_path, folded.state)
    assert rows_of(newer) == rows_planned(history)
    assert snapshot.digest_and_count_snapshot_rows(newer) == (
        history.state.digest,
        history.state.nodes,
        history.state.edges,
    )
    extras = {row.id: row.extras for row in snapshot.read_snapshot_nodes(newer)}
    assert extras["a"] == NodeExtras("short", ("x", "y"), 0, "ada", -5, 5)
    assert (extras["b"], extras["d"]) == (None, None)
    assert {row.extras for row in snapshot.read_snapshot_edges(newer)} == {None, EdgeExtras(0, "", 1, None)}


@pytest.mark.parametrize("middle", range(9))
def test_folding_rows_with_extras_matches_plan(tmp_path: Path, middle: int) -> None:
    history = extended(mixed())
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    base = snapshot.publish_journal_snapshot(
        folders[0], tmp_path, materialize_rows_to_parquet(None, history.changes[:middle], folders[0]).state
    )
    folded = materialize_rows_to_parquet(base, history.changes[middle:], folders[1])
    assert (folded.state, folded.is_digest_replaced) == (history.state, False)
    assert rows_of(folders[1]) == rows_planned(history)


def test_old_frame_is_readable() -> None:
    history = mixed()
    frame = old_frame(history.changes)
    assert hashlib.sha256(frame).hexdigest() == FRAME, "the bytes differ from those of the old version"
    assert frame != encode_journal_frame(history.changes)
    assert read_journal_frame(io.BytesIO(frame), 0, len(frame)).changes() == history.changes


def test_journal_appends_after_old_frames(tmp_path: Path) -> None:
    history = mixed()
    before = len(history.changes)
    Journal.create(tmp_path, SEGMENT).close()
    (segment,) = tmp_path.glob("*.log")
    segment.write_bytes(old_frame(history.changes))
    extended(history)
    journal = Journal.open(tmp_path, SEGMENT, 0, None)
    try:
        assert journal.last == before
        journal.append(history.changes[before:])
        assert list(journal.read(0)) == history.changes
    finally:
        journal.close()
