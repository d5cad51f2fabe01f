"""Check and repair stores while no server has them open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from typing_extensions import override

from kgserve.admin.future_timestamp_repair import count_future_timestamps, repair_future_timestamps
from kgserve.cluster.journal_replicated_log_sync import read_replicated_log_copy_position
from kgserve.errors import Conflict, JournalDamaged, KgserveError, NoStore
from kgserve.platform.access.audit import count_damaged_audit_lines
from kgserve.platform.access.authentication import KeyFileDamaged, read_api_keys
from kgserve.platform.file_permissions import (
    PermissionRepairResult,
    restrict_data_folder_permissions,
    restrict_folder_permissions,
)
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.projections.cypher_engine.engine import files
from kgserve.projections.history.recovery import (
    describe_history_gap,
    find_history_file_damage,
    read_history_gaps,
    salvage_history,
)
from kgserve.storage.commit_clock import CLUSTER_REPAIR_TIMES_ADVICE
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import describe_journal_segment, list_journal_segments
from kgserve.storage.journal.journal_reader import find_oldest_journal_sequence
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.store_folder_layout import (
    EngineCleanCloseMarker,
    StoreLayout,
    engine_wal_path,
    read_last_history_sequence,
)
from kgserve.stores.journal_salvage import salvage_damaged_store as salvage_store
from kgserve.stores.local_placement import NODE_FILE, StorePlacement
from kgserve.stores.pool import StorePool

DATA_FOLDER_REPORT_NAME = "data folder"
"""Name of the data folder in reports; no store can have this name."""


class StoreCheckFinding(msgspec.Struct, frozen=True):
    """Result of checking one part of a store."""

    part: str
    ok: bool
    detail: str


class StoreCheckReport(msgspec.Struct, frozen=True):
    """Results of checking one store."""

    store: str
    ok: bool
    findings: list[StoreCheckFinding]


def check_data_folder(
    settings: Settings, store: str | None, mended: PermissionRepairResult
) -> Iterator[StoreCheckReport]:
    """Yield a report if files next to the stores are damaged, or if other users had access to the data folder.

    Only the folder of ``store`` is searched for such files, if one is named. ``mended`` is what was just closed. Files
    within a closed folder are unreachable whatever their modes are; they are closed here without a report.
    """
    if store is None:
        within = restrict_data_folder_permissions(settings.data_dir, whole=True)
    else:
        within = restrict_folder_permissions(StoreLayout(settings.data_dir, check_store_name(store)).root, whole=True)
    faults: list[tuple[str, str]] = []
    if within.still_open:
        first, number = within.still_open[0], len(within.still_open)
        faults.append(
            ("modes", f"other users may have access: the modes of {first} and {number - 1} more cannot be changed")
        )
    elif mended.closed:
        faults.append(("modes", f"other users had access; removed it from {mended.closed} files and folders"))
    try:
        read_api_keys(settings.data_dir)
    except KeyFileDamaged as error:
        faults.append(("keys", str(error)))
    if damaged := count_damaged_audit_lines(settings.data_dir):
        counts = ", ".join(f"{count} of {name}" for name, count in damaged.items())
        faults.append(("audit log", f"lines are incomplete or damaged and are left out: {counts}"))
    if faults:
        findings = [StoreCheckFinding(part, ok=False, detail=detail) for part, detail in faults]
        yield StoreCheckReport(DATA_FOLDER_REPORT_NAME, ok=False, findings=findings)


_NEVER_COMPACT_MB = 1 << 40


class StoppedNodePlacement(StorePlacement):
    """Placement of the stores in the folder of a stopped cluster node, for checks that write no commits."""

    @override
    def _check_folder(self) -> None:
        """Accept the folder of a cluster node."""


class StoreRepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Requested repairs: rebuild the engine's file, salvage a damaged journal, replace future times."""

    rebuild: bool = False
    salvage: bool = False
    times: bool = False


def repair_and_check_stores(
    settings: Settings, store: str | None, repairs: StoreRepairOptions
) -> Iterator[StoreCheckReport]:
    """Yield reports of one store or all, after the requested repairs.

    The caller holds the data folder's lock. Stores of a cluster's node are checked without changing their journals.
    Raises NotFound for a store that does not exist.
    """
    is_clustered = (settings.data_dir / NODE_FILE).exists()
    if is_clustered:
        # A compaction would begin the journal with a snapshot that the cluster does not know.
        settings = msgspec.structs.replace(settings, compact_wal_mb=_NEVER_COMPACT_MB)
    with StorePool(settings, StoppedNodePlacement if is_clustered else StorePlacement) as pool:
        names = pool.names() if store is None else [store]
        for name in names:
            layout = pool.layout(name)
            if not layout.exists:
                raise NoStore(name)
            findings = list(_check_store(pool, layout, repairs))
            yield StoreCheckReport(name, all(finding.ok for finding in findings), findings)


def _check_store(pool: StorePool, layout: StoreLayout, repairs: StoreRepairOptions) -> Iterator[StoreCheckFinding]:
    if repairs.salvage:
        yield from _salvage(pool, layout)
        yield from _salvage_history(layout)
    yield _check_part("settings", lambda: _settings(layout))
    if layout.journal.is_dir():
        yield from _journal(layout.journal)
    if isinstance(pool.placement, StoppedNodePlacement):
        yield _check_part("copy of the log", lambda: _copied_log(pool, layout))
    left, sizes = (
        layout.engine_mark(),
        (files.file_size(layout.engine), files.file_size(engine_wal_path(layout.engine))),
    )
    if repairs.rebuild:
        layout.invalidate_projections()
    yield _check_part("rows", lambda: _rows(pool, layout.name))
    yield _check_part("links", lambda: _links(pool, layout.name))
    yield _check_part("history", lambda: _history(layout))
    yield _check_part("times", lambda: _times(pool, layout.name, repair=repairs.times))
    yield _check_part("numbering", lambda: _last_versions(pool, layout.name))
    yield _check_part("engine file", lambda: _engine_file(pool, layout.name, left, sizes))
    yield _check_part("engine", lambda: _engine(pool, layout.name))


def _salvage(pool: StorePool, layout: StoreLayout) -> Iterator[StoreCheckFinding]:
    try:
        for done in salvage_store(layout, pool.settings):
            yield StoreCheckFinding("salvage", ok=True, detail=done)
    except (KgserveError, OSError) as error:
        yield StoreCheckFinding("salvage", ok=False, detail=str(error))


def _check_part(part: str, look: Callable[[], str]) -> StoreCheckFinding:
    try:
        return StoreCheckFinding(part, ok=True, detail=look())
    except (KgserveError, OSError) as error:
        return StoreCheckFinding(part, ok=False, detail=str(error))


def _journal(folder: Path) -> Iterator[StoreCheckFinding]:
    snapshots = snapshot.list_journal_snapshots(folder)
    yield from (_check_part(f"snapshot {path.name}", lambda p=path: _snapshot(p)) for path in snapshots)
    yield from (
        _check_part(f"segment {s.path.name}", lambda s=s: describe_journal_segment(s))
        for s in list_journal_segments(folder)
    )


def _settings(layout: StoreLayout) -> str:
    fault, known = layout.settings_fault(), layout.description() is not None
    policy = layout.load_description().conflict_policy
    if fault:
        mended = "it was repaired without loss" if known else "no copy is readable, so defaults are used"
        raise JournalDamaged(f"{fault}; {mended}")
    return f"in the journal and in store.json; conflict policy {policy}"


def _snapshot(path: Path) -> str:
    manifest = snapshot.verify_snapshot(path)
    state = manifest.state
    if snapshot.digest_and_count_snapshot_rows(path) != (state.digest, state.nodes, state.edges):
        raise JournalDamaged(f"{path}: its rows do not match its digest")
    return f"{state.nodes} nodes, {state.edges} edges at sequence {state.sequence}"


def _rows(pool: StorePool, name: str) -> str:
    with pool.lease(name) as leased:
        if not leased.check_rows():
            raise JournalDamaged("the rows did not match the digest; they were rebuilt from the journal")
        state = leased.state
    return f"{state.nodes} nodes, {state.edges} edges at sequence {state.sequence}; digest agrees"


def _copied_log(pool: StorePool, layout: StoreLayout) -> str:
    reached = read_replicated_log_copy_position(layout.root)
    if reached is None:
        return (
            "unknown: the node adds the store to the cluster, or renames its folder to .aside-… if the cluster has it"
        )
    with pool.lease(layout.name) as leased:
        last = leased.state.sequence
    if last < reached.sequence:
        raise JournalDamaged(
            f"the journal ends at sequence {last}, but {reached.sequence} was recorded; the node reads the rest from "
            "the cluster's log when it opens the store"
        )
    return f"up to sequence {reached.sequence} certainly, position {reached.position}; the journal ends at {last}"


def _links(pool: StorePool, name: str) -> str:
    with pool.lease(name) as leased:
        if not leased.links.check():
            raise JournalDamaged("the links did not match their digest; they were rebuilt from the journal")
        with leased.reading_links() as (_, links):
            return f"{0 if links is None else links.state.count} edges into other stores"


def _salvage_history(layout: StoreLayout) -> Iterator[StoreCheckFinding]:
    """Salvage a damaged history, unless the journal has all of it and the next start can rebuild it."""
    try:
        if not layout.journal.is_dir() or find_oldest_journal_sequence(layout.journal) == 1:
            return
        fault = find_history_file_damage(layout.history)
        if fault is None or fault.is_older_copy:
            # All rows of an older copy are whole: the next start applies the journal and reports the gap.
            return
        found, aside = salvage_history(layout.history)
    except (OSError, sqlite3.Error) as error:
        yield StoreCheckFinding("salvage", ok=False, detail=f"the history: {error}")
        return
    counts = ", ".join(f"{len(rows)} states of {table}s" for table, rows in found.rows.items())
    missing = f"{found.missing} are missing" if found.missing else "nothing is missing"
    kept = "" if aside is None else f"; the damaged file is {aside.name}"
    yield StoreCheckFinding("salvage", ok=True, detail=f"the history: {counts} are whole, {missing}{kept}")


def _history(layout: StoreLayout) -> str:
    if layout.read_description_or_default().history == "none":
        return "no history is kept"
    fault = find_history_file_damage(layout.history)
    if fault is not None:
        raise JournalDamaged(
            f"{fault.reason}; the next start of the server, or doctor --salvage, keeps the undamaged part and reports "
            "the gaps"
        )
    if not layout.history.exists():
        if layout.journal.is_dir() and find_oldest_journal_sequence(layout.journal) > 1:
            raise JournalDamaged("the file is missing, and the journal does not reach back to the beginning")
        return "no file exists yet"
    gaps = read_history_gaps(layout.history)
    if gaps:
        raise JournalDamaged(f"it has gaps since it was damaged: {', '.join(map(describe_history_gap, gaps))}")
    return f"all pages are intact; seen up to sequence {read_last_history_sequence(layout)}"


def require_repairs_in_place(data_dir: Path, repairs: StoreRepairOptions) -> None:
    """Raise Conflict for repairs of journals in the data folder of a cluster node, whose commits are in the log."""
    if not (data_dir / NODE_FILE).exists():
        return
    if repairs.times:
        raise Conflict(
            f"{data_dir} belongs to a node of a cluster, whose commits are in the log: {CLUSTER_REPAIR_TIMES_ADVICE}"
        )
    if repairs.salvage:
        raise Conflict(
            f"{data_dir} belongs to a node of a cluster, whose commits are in the log: move the damaged store's folder "
            "out of the data folder and start the node; it fetches the store from the cluster when it is next asked for"
        )


def _times(pool: StorePool, name: str, *, repair: bool) -> str:
    with pool.lease(name) as leased:
        if repair and (repaired := repair_future_timestamps(leased)):
            return f"{repaired} rows and access counters with future times were set to the current time"
        found = count_future_timestamps(leased)
    if found.count:
        advice = f"`kgserve doctor {name} --repair-times` sets them to the current time"
        raise Conflict(f"{found}; {advice}, if the clock of this machine is right")
    return "no time lies in the future"


def _last_versions(pool: StorePool, name: str) -> str:
    with pool.lease(name) as leased:
        if not leased.ended.check():
            raise JournalDamaged("the last versions of deleted nodes were damaged; they were rebuilt from the journal")
    return "last versions of deleted nodes are intact"


def _engine_file(pool: StorePool, name: str, left: EngineCleanCloseMarker | None, sizes: tuple[int, int]) -> str:
    """Return the state in which the engine's file was found; ``sizes`` are bytes of the file and its log."""
    if not sum(sizes):
        return "no file exists: no Cypher query has run since it was last removed"
    size = "{:.1f} MiB, its log {:.1f} MiB".format(*(each / MEBIBYTE for each in sizes))
    if left is None:
        return f"{size}; it was not closed cleanly, so it cannot be relied on"
    with pool.lease(name) as leased:
        last = leased.state.sequence
    return f"{size}; closed at sequence {left.state.sequence}, the journal is at {last}"


def _engine(pool: StorePool, name: str) -> str:
    with pool.lease(name) as leased:
        engine = leased.engine
        with engine.reading(timeout=0):
            pass
        agreed = leased.check_engine()
        state = leased.state
    if engine.found_damaged:
        raise JournalDamaged(f"{engine.found_damaged}; it was rebuilt from the journal")
    if not agreed:
        raise JournalDamaged("its rows did not match the digest; it was rebuilt from the journal")
    how = "rebuilt from the journal; " if engine.rebuilds else ""
    return f"{how}{state.nodes} nodes, {state.edges} edges at sequence {state.sequence}; digest agrees"
