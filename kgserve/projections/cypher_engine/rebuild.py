"""Construction of an engine file from the current rows, or from a snapshot and the journal after it."""

from __future__ import annotations

import logging
import shutil
import time
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from kgserve.errors import EngineFailed
from kgserve.projections.cypher_engine.engine.engine_handle import EngineHandle, EngineOptions, build_engine_file
from kgserve.projections.cypher_engine.engine.files import delete_engine_file
from kgserve.projections.cypher_engine.engine.protocol import ApplyNetChangeRequest
from kgserve.storage.current_rows_rebuild import (
    MAX_KEPT_SNAPSHOTS,
    link_current_snapshot_rows,
    publish_rows_folder_as_snapshot,
    recreate_empty_folder,
    seconds_since_perf_counter,
    write_current_rows_to_folder,
)
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import (
    materialize_journal,
    measure_unsnapshotted_bytes,
    read_cross_store_links_as_of,
)
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.store_rows_digest import digest_and_count_rows
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.row_json_encoder import RowsDamaged
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

InlineRows: TypeAlias = tuple[ApplyNetChangeRequest, StoreState]
MAX_INLINE_REBUILD_ROWS = 2_000
MAX_INLINE_REBUILD_BYTES = 4 << 20
"""Limits up to which an engine file is built from rows in memory, without Parquet files."""
MAX_ROWS_AFTER_SNAPSHOT = 2_000
ROWS_WRITTEN_PER_ROW_APPLIED = 200
"""Rows of a snapshot that can be written in the time in which the engine applies one changed row."""
# A rebuild that read this many journal bytes leaves a snapshot, so that the next one reads less.
SNAPSHOT_AFTER_BYTES = 16 << 20


class EngineFileBuildRequest(NamedTuple):
    """Request to build an engine file.

    An empty ``reason`` marks the first build. The file has at least the columns of ``width``. With ``may_lag`` it may
    lack the last commits: it is built from a snapshot if only a few rows changed after it, so that not all rows have to
    be written once more.
    """

    reason: str
    width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN
    may_lag: bool = False


def rebuild_cypher_engine_file(
    layout: StoreLayout,
    journal: Journal,
    current_rows: CurrentRowsProjection,
    options: EngineOptions,
    path: Path,
    request: EngineFileBuildRequest,
) -> EngineHandle:
    """Build and open an engine file at ``path`` from the current rows.

    Damaged rows are replaced by the snapshot and the journal.

    Raises JournalDamaged if neither a snapshot nor the whole journal is left, StorageFull if the disk is full, and
    Unavailable once the store is closing.
    """
    started = time.perf_counter()
    reason, width = request.reason, request.width
    # The first build of a store is routine and logged at debug level.
    level = logging.WARNING if reason and not width else logging.DEBUG
    log.log(level, "rebuild_started", store=layout.name, reason=reason)
    few = (
        read_current_rows_if_few(current_rows)
        if measure_unsnapshotted_bytes(layout, journal)[0] < SNAPSHOT_AFTER_BYTES
        else None
    )
    if few is not None:
        engine = build_engine_file(path, *few, options, width)
    else:
        engine = _rebuild_from_files(layout, journal, current_rows, options, path, request)
    if width is NodeEdgeColumnSet.LINKS and current_rows.rows().linked:
        _add_links(engine, layout, journal)
    log.log(
        level,
        "rebuild_done",
        store=layout.name,
        sequence=engine.state.sequence,
        seconds=seconds_since_perf_counter(started),
    )
    return engine


def _add_links(engine: EngineHandle, layout: StoreLayout, journal: Journal) -> None:
    """Add the links as of the commit of a new engine file."""
    try:
        for some in read_cross_store_links_as_of(layout, journal, engine.state.sequence):
            net = NetChange()
            net.links_created = {row.key: row for row in some}
            engine.apply(net, engine.state, recorded=False)
    except BaseException:
        engine.retire()
        raise


def _rebuild_from_files(
    layout: StoreLayout,
    journal: Journal,
    current_rows: CurrentRowsProjection,
    options: EngineOptions,
    path: Path,
    request: EngineFileBuildRequest,
) -> EngineHandle:
    width = request.width
    rows = layout.scratch / f"of-{path.name}"
    folded = link_current_snapshot_rows(
        layout, current_rows.state, rows, lambda saved: request.may_lag and _has_few_changes_since(journal, saved)
    ) or write_current_rows_to_folder(layout, journal, current_rows, rows, options.closing, lambda: True)
    try:
        engine = build_engine_file(path, rows, folded.state, options, width)
    except EngineFailed:
        # An edge that the engine had lost was not listed when its node was deleted.
        log.exception("edges_without_nodes", store=layout.name)
        delete_engine_file(path)
        folded = materialize_journal(layout, journal, recreate_empty_folder(rows), drop_loose=True)
        engine = build_engine_file(path, rows, folded.state, options, width)
    state = folded.state
    if folded.is_digest_replaced:
        log.error("digest_rebased", store=layout.name, sequence=state.sequence, nodes=state.nodes, edges=state.edges)
    if folded.is_digest_replaced or measure_unsnapshotted_bytes(layout, journal)[0] >= SNAPSHOT_AFTER_BYTES:
        publish_rows_folder_as_snapshot(layout, journal, rows, state)
        snapshot.remove_old_snapshots(layout.journal, MAX_KEPT_SNAPSHOTS)
    else:
        shutil.rmtree(rows)
    return engine


def _has_few_changes_since(journal: Journal, saved: StoreState) -> bool:
    """Return whether applying the commits after a state is cheaper than writing all of its rows."""
    most = min(MAX_ROWS_AFTER_SNAPSHOT, (saved.nodes + saved.edges) // ROWS_WRITTEN_PER_ROW_APPLIED)
    changed = accumulate(change.size for change in journal.read(saved.sequence))
    return all(count <= most for count in changed)


def read_current_rows_if_few(current_rows: CurrentRowsProjection) -> InlineRows | None:
    """Return the current rows and their state if they are few enough to need no files; otherwise None."""
    try:
        with current_rows.reading() as rows:
            state, size = rows.state, rows.base.size + rows.delta.bytes
            if state.nodes + state.edges > MAX_INLINE_REBUILD_ROWS or size > MAX_INLINE_REBUILD_BYTES:
                return None
            nodes, edges = [*rows.all_nodes()], [*rows.all_edges()]
    except (RowsDamaged, msgspec.MsgspecError):
        return None
    if digest_and_count_rows(nodes, edges) != (state.digest, state.nodes, state.edges):
        return None
    return ApplyNetChangeRequest(None, nodes, [], [], [], edges, [], []), state
