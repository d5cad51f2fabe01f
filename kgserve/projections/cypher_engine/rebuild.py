"""Building an engine's file: from the current rows, or from a snapshot and the journal after it."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from kgserve.errors import EngineFailed
from kgserve.projections.cypher_engine.engine.engine import Engine, EngineOptions, build
from kgserve.projections.cypher_engine.engine.files import remove
from kgserve.projections.cypher_engine.engine.protocol import Change
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import all_links, fold_journal, unsnapshotted_bytes
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.digest import measure
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.rebuild import MAX_SNAPSHOTS, install_snapshot, seconds_since, write_current_rows
from kgserve.storage.rows.encoding import RowsDamaged
from kgserve.storage.rows.view import RowsView

log = structlog.get_logger()

Few: TypeAlias = tuple[Change, StoreState]
MAX_INLINE_REBUILD_ROWS = 2_000
MAX_INLINE_REBUILD_BYTES = 4 << 20
"""Rows that an engine's file is made of without files of rows: that takes milliseconds."""
# A rebuild that had this much journal to read leaves a snapshot, so that the next one has less.
SNAPSHOT_AFTER_BYTES = 16 << 20


def rebuild(
    layout: Layout,
    journal: Journal,
    present: RowsView,
    options: EngineOptions,
    path: Path,
    reason: str,
    *,
    width: ColumnSet = ColumnSet.PLAIN,
) -> Engine:
    """Build an engine file at ``path`` of the present rows, or if they are not whole of snapshot and journal; open it.

    It has the columns of a ``width`` even if no row needs them yet. Without a ``reason`` it is the first one.

    Raises JournalDamaged when neither a snapshot nor the whole journal is left, StorageFull when the disk is full, and
    Unavailable once the store is closing.
    """
    started = time.perf_counter()
    # The first engine file of a store is made in the same way, and nobody needs to hear of it.
    level = logging.WARNING if reason and not width else logging.DEBUG
    log.log(level, "rebuild_started", store=layout.name, reason=reason)
    few = few_rows(present) if unsnapshotted_bytes(layout, journal)[0] < SNAPSHOT_AFTER_BYTES else None
    if few is not None:
        engine = build(path, *few, options, width)
    else:
        engine = _rebuild_of_files(layout, journal, present, options, path, width)
    if width is ColumnSet.LINKS and present.rows().linked:
        _add_links(engine, layout, journal)
    log.log(level, "rebuild_done", store=layout.name, sequence=engine.state.sequence, seconds=seconds_since(started))
    return engine


def _add_links(engine: Engine, layout: Layout, journal: Journal) -> None:
    """Give a new engine's file the links as of the commit that it is of."""
    try:
        for some in all_links(layout, journal, engine.state.sequence):
            net = NetChange()
            net.links_created = {row.key: row for row in some}
            engine.apply(net, engine.state, recorded=False)
    except BaseException:
        engine.retire()
        raise


def _rebuild_of_files(
    layout: Layout, journal: Journal, present: RowsView, options: EngineOptions, path: Path, width: ColumnSet
) -> Engine:
    rows = layout.scratch / f"of-{path.name}"
    folded = write_current_rows(layout, journal, present, rows, options.closing, lambda: True)
    try:
        engine = build(path, rows, folded.state, options, width)
    except EngineFailed:
        # An edge that the engine had lost was not named when its node was deleted.
        log.exception("edges_without_nodes", store=layout.name)
        remove(path)
        folded = fold_journal(layout, journal, rows, drop_loose=True)
        engine = build(path, rows, folded.state, options, width)
    state = folded.state
    if folded.rebased:
        log.error("digest_rebased", store=layout.name, sequence=state.sequence, nodes=state.nodes, edges=state.edges)
    if folded.rebased or unsnapshotted_bytes(layout, journal)[0] >= SNAPSHOT_AFTER_BYTES:
        install_snapshot(layout, journal, rows, state)
        snapshot.remove_but_newest(layout.journal, MAX_SNAPSHOTS)
    else:
        shutil.rmtree(rows)
    return engine


def few_rows(present: RowsView) -> Few | None:
    """The present rows and their state, if they are so few that no files of them need be written."""
    try:
        with present.reading() as rows:
            state, size = rows.state, rows.base.size + rows.delta.bytes
            if state.nodes + state.edges > MAX_INLINE_REBUILD_ROWS or size > MAX_INLINE_REBUILD_BYTES:
                return None
            nodes, edges = [*rows.all_nodes()], [*rows.all_edges()]
    except (RowsDamaged, msgspec.MsgspecError):
        return None
    if measure(nodes, edges) != (state.digest, state.nodes, state.edges):
        return None
    return Change(None, nodes, [], [], [], edges, [], []), state
