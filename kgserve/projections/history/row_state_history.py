"""Every state that the entities and relations of a store have had, in SQLite, from the first one still known.

A state is a row together with the commits between which it was current: from ``first`` up to but excluding ``last``,
which is None for current states. Readers address a moment by its sequence; `sequence_at` converts a time. Reads use
indexes and never scan: keys begin with the lookup columns, and states of one key are sorted.

The follower writes it from the journal after the response is sent. It remains valid where the journal is truncated, so
its commits are durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from typing_extensions import override

from kgserve.errors import Gone, Unavailable
from kgserve.platform.gil_yield import iterate_yielding_gil
from kgserve.platform.sqlite_files import ConcurrentSqliteDatabase, select_rows_by_in_list, vacuum_database
from kgserve.projections.history import history_sql as sql
from kgserve.projections.history import row_format
from kgserve.projections.history.page_checksums import PageChecksumFile, PageChecksumFileHeader, read_wal_frames
from kgserve.projections.history.salvage import (
    MissingHistoryCommitRange,
    SalvagedHistory,
    insert_history_gaps,
    merge_history_gaps,
    write_salvaged_history,
)
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow, EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.store_rows_digest import checksum_63bit
from kgserve.storage.model.write_batch import get_conflicting_node_head_versions

NO_SEQUENCE_LIMIT = (1 << 63) - 1
HISTORY_LOCK_TIMEOUT_SECONDS = 5.0
"""Maximum time that a write waits for another connection's lock."""
# Limits per slice of pruning, which takes about 10 ms: states examined, and bytes of the states deleted.
PRUNE_BATCH_STATES = 2_000
PRUNE_BATCH_BYTES = 8 << 20

Row = TypeVar("Row", NodeRow, EdgeRow, CrossStoreLinkRow)

_encode = msgspec.msgpack.Encoder().encode
log = structlog.get_logger()


class RowStateInterval(msgspec.Struct, Generic[Row], frozen=True):
    """Row, the commits between which it was current, and their times in microseconds."""

    row: Row
    first: int
    last: int | None
    started: int
    ended: int | None


class ContentCoAuthorEntry(msgspec.Struct, frozen=True):
    """Additional author of the content of a ``version``, with the first commit and its time in microseconds."""

    version: int
    created_by: str
    sequence: int
    time: int


class HistoryFile(ConcurrentSqliteDatabase):
    """SQLite file with the history of one store: every state that its rows have had."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises sqlite3.DatabaseError if it is not a history file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        super().__init__(_connect(path), path)
        self._log = path.with_name(f"{path.name}-wal")
        self._seal = PageChecksumFile(path)
        self._heads_changed, self._has_heads = 0, False
        self._refresh_heads()
        self._settled, self._oldest = self._writer.execute(sql.SELECT_EXTENT).fetchone()
        self._gaps: list[MissingHistoryCommitRange] = []
        self._load_gaps()
        if next(read_wal_frames(self._log), None) is not None:
            self._settled = 0
            self.checkpoint_and_seal()

    @override
    def close(self) -> None:
        # A file that was deleted or moved meanwhile is restored.
        with self._reading:
            self._reader.close()
        try:
            if not self.checkpoint_and_seal():
                # SQLite itself may checkpoint the rest of its log when it closes.
                self._seal.forget()
            elif not self.is_in_place:
                self._seal.restore_file()
        except (sqlite3.Error, OSError):
            log.exception("history_not_sealed", file=str(self.path))
        with self._writing:
            self._writer.close()
        self._seal.close()

    @property
    def is_in_place(self) -> bool:
        """True if the open file is still at its path."""
        return self._seal.is_in_place

    @property
    def sequence(self) -> int:
        """Last applied commit; 0 for none."""
        return self._read("SELECT sequence FROM cursor", {})[0][0]

    @property
    def heads_mark(self) -> int:
        """Generation of `heads`, changed with them; 0 while no version is in conflict."""
        return self._heads_changed if self._has_heads else 0

    @property
    def checkpointed_sequence(self) -> int:
        """Last commit in the main file; later ones are only in the log, and lost if that is damaged."""
        return self._settled

    @property
    def gaps(self) -> list[MissingHistoryCommitRange]:
        """Ranges of commits with missing states, lost with damaged pages; merged by table, without ids."""
        return self._gaps

    @property
    def has_open_gaps(self) -> bool:
        """True if current states are missing, until `restore` restores them."""
        return any(gap.last is None for gap in self._gaps)

    def _load_gaps(self) -> None:
        self._gaps = merge_history_gaps(
            MissingHistoryCommitRange(*found) for found in self._writer.execute(sql.SELECT_GAPS)
        )

    def _refresh_heads(self) -> None:
        self._heads_changed += 1
        self._has_heads = bool(self._writer.execute("SELECT EXISTS (SELECT * FROM head)").fetchone()[0])

    @property
    def oldest(self) -> int:
        """First commit as of which the history can be read; 0 if it is complete."""
        return self._oldest

    @property
    def bytes(self) -> int:
        """Size of the file without free pages, in bytes."""
        [(empty, pages)] = self._run_autocommit(sql.SELECT_EMPTY_PAGES)
        return (pages - empty) * sql.HISTORY_PAGE_BYTES

    def sequence_at(self, time: int, now: int | None = None) -> int:
        """Return the last commit up to a time in microseconds; 0 if no commit is that old.

        now: the current time in microseconds; commits stamped later count as made directly after their predecessor.
        """
        found = self._read("SELECT max(sequence) FROM moment WHERE time <= :time", {"time": time})[0][0] or 0
        if now is None:
            return found
        behind = self._read(sql.SELECT_NEXT_COMMIT_BEFORE_TIME, {"after": found, "now": now})
        if behind and not found:
            return 0
        [(last,)] = self._read(sql.SELECT_COMMIT_BEFORE, {"until": behind[0][0] if behind else NO_SEQUENCE_LIMIT})
        return last or found

    def time_of(self, sequence: int) -> int:
        """Return the time of the last commit up to a sequence, in microseconds; 0 if no commit is that old."""
        query = "SELECT time FROM moment WHERE sequence <= :at ORDER BY sequence DESC LIMIT 1"
        found = self._read(query, {"at": sequence})
        return found[0][0] if found else 0

    # Writing

    def take(self, changes: Sequence[ChangeSet]) -> None:
        """Apply consecutive change sets atomically; those already applied are skipped."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute("SELECT sequence FROM cursor").fetchone()[0]
            heads = [_apply_change_set(transaction, change) for change in changes if change.sequence > seen]
            transaction.execute("UPDATE cursor SET sequence = max(sequence, ?)", (changes[-1].sequence,))
            if any(heads):
                self._refresh_heads()
        self._checkpoint_if_long()

    def reset_to(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        sequence: int,
        time: int,
        links: Iterable[CrossStoreLinkRow] = (),
    ) -> None:
        """Discard everything and start with these rows; no commit before ``sequence`` is known afterwards."""
        with self._writing, self._writer as transaction:
            for table in (*sql.HISTORY_TABLES, "head", "said", "moment", "gap"):
                transaction.execute(f"DELETE FROM {table}")  # noqa: S608 - seven names
            transaction.executemany(
                sql.INSERT_NODE_STATE, (_node_values(row, row.sequence, row.updated_at) for row in nodes)
            )
            transaction.executemany(sql.INSERT_EDGE_STATE, (_edge_values(row, row.sequence, time) for row in edges))
            transaction.executemany(
                sql.INSERT_LINK_STATE, (_link_values(row, row.edge.sequence, time) for row in links)
            )
            transaction.execute("INSERT INTO moment VALUES (?, ?)", (sequence, time))
            transaction.execute("UPDATE cursor SET sequence = ?, oldest = ?", (sequence, sequence))
            self._oldest = sequence
            self._refresh_heads()
            self._load_gaps()
        self.checkpoint_and_seal()

    def load_salvaged_content(self, salvaged: SalvagedHistory) -> None:
        """Write the intact content of a damaged file into this empty one."""
        with self._writing:
            write_salvaged_history(salvaged, self._writer)
            _find_heads(self._writer)
            self._oldest = salvaged.oldest
            self._refresh_heads()
            self._load_gaps()
        self.checkpoint_and_seal()

    def restore(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        links: Iterable[CrossStoreLinkRow],
        sequence: int,
        time: int,
    ) -> None:
        """Make these rows the current states as of a commit; the gaps that lasted until then end.

        Commits that the file has not applied become a gap as well.
        """
        with self._writing, self._writer as transaction:
            [(seen, _)] = transaction.execute(sql.SELECT_EXTENT)
            if seen < sequence:
                if seen + 1 < sequence:
                    insert_history_gaps(
                        transaction, [MissingHistoryCommitRange(seen + 1, None, table) for table in sql.HISTORY_TABLES]
                    )
                transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (sequence, time))
                transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))
            transaction.execute(sql.CREATE_PRESENT_TABLE)
            restorer = _CurrentStateRestorer(transaction, time)
            for table, rows in (("node", nodes), ("edge", edges), ("link", links)):
                restorer.restore_rows(table, rows)
                transaction.execute(sql.UPDATE_ABSENT_END[table], {"at": min(seen + 1, sequence), "time": time})
                transaction.execute(sql.DELETE_PRESENT)
            transaction.execute(sql.UPDATE_STATE_ENDS, {"at": min(seen + 1, sequence), "time": time})
            transaction.execute(sql.UPDATE_GAPS_END, (sequence,))
            transaction.execute("DELETE FROM head")
        with self._writing:
            _find_heads(self._writer)
            self._refresh_heads()
            # Only now, so that concurrent readers are still refused.
            self._load_gaps()
        self.checkpoint_and_seal()

    def prune(self, before: int) -> int:
        """Delete the states that had ended by a commit. Return their number. Earlier commits can no longer be read.

        Versions that a node lists as conflicting heads are kept.
        """
        return sum(self.prune_in_slices(before))

    def prune_in_slices(self, before: int) -> Generator[int]:
        """Prune as `prune`, in slices. Yield the number of states deleted by each; iteration may be abandoned."""
        before = min(before, self.sequence)
        self._advance_oldest(before)
        for table in sql.HISTORY_TABLES:
            at: int | None = 0
            while at is not None:
                at, removed = self._prune_slice(table, at, before)
                yield removed
        while self._write(sql.DELETE_MOMENTS, {"before": before, "limit": PRUNE_BATCH_STATES}):
            yield 0
        yield from self._release_free_pages()

    def _release_free_pages(self) -> Iterator[int]:
        """Return free pages to the file system, 4 MiB at a time.

        A file created without incremental vacuum is rewritten if less than half of it is in use.
        """
        [(empty, pages)] = self._run_autocommit(sql.SELECT_EMPTY_PAGES)
        if self._run_autocommit(sql.SELECT_CAN_VACUUM) == [(1,)]:
            while empty:
                with self._writing:
                    # As a script: the statement returns one empty row per page, of which `execute` would fetch only
                    # one.
                    self._writer.executescript(sql.VACUUM_PAGES)
                yield 0
                [(empty, _)] = self._run_autocommit(sql.SELECT_EMPTY_PAGES)
        elif 2 * empty > pages:
            self._run_autocommit("VACUUM")
        # Pages that a reader still uses stay in the log until later.
        self.checkpoint_and_seal()

    def _run_autocommit(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that runs outside of transactions."""
        with self._writing:
            return self._writer.execute(statement).fetchall()

    def _advance_oldest(self, before: int) -> None:
        # Before any deletion, and in memory first: concurrent readers of earlier commits are then refused
        # (`_require_kept`).
        with self._writing, self._writer as transaction:
            self._oldest = max(self._oldest, before)
            transaction.execute("UPDATE cursor SET oldest = ?", (self._oldest,))
            transaction.execute(sql.DELETE_GAPS_UNTIL, (self._oldest,))
            self._load_gaps()

    def _prune_slice(self, table: str, after: int, before: int) -> tuple[int | None, int]:
        """Prune a slice. Return the start of the next one, None at the end, and the number of deleted states."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute(
                sql.SELECT_PRUNABLE_STATES[table], {"after": after, "limit": PRUNE_BATCH_STATES}
            ).fetchall()
            to_delete: list[tuple[int]] = []
            size = 0
            for number, last, length in seen:
                after = number
                if last is not None and last <= before:
                    to_delete.append((number,))
                    size += length
                if size >= PRUNE_BATCH_BYTES:
                    break
            if table == "node":
                transaction.executemany(sql.DELETE_CO_AUTHORS, to_delete)
            removed = transaction.executemany(sql.DELETE_STATE[table], to_delete).rowcount if to_delete else 0
        return (after if seen else None), removed

    def _write(self, statement: str, values: dict[str, Any]) -> int:
        with self._writing, self._writer as transaction:
            return transaction.execute(statement, values).rowcount

    def erase(self, ids: Iterable[str], former: Iterable[str], through: int) -> None:
        """Erase the states of the nodes ``ids`` and of their edges that began by a commit.

        The nodes ``former`` lose past states only. The file is rewritten, so its free pages and its log contain nothing
        of them. Concurrent reads continue.
        """
        with self._writing:
            with self._writer as transaction:
                for statement in sql.DELETE_NODE_THROUGH:
                    transaction.executemany(statement, ({"id": each, "through": through} for each in ids))
                transaction.executemany(
                    sql.DELETE_ENDED_NODE_STATES, ({"id": each, "through": through} for each in former)
                )
                self._refresh_heads()
            # The log is emptied before the pages can be sealed; after a crash in between, all rows are checked.
            self._seal.forget()
            vacuum_database(self._writer)
        self.checkpoint_and_seal(whole=True)

    # Pages and checksums

    def checkpoint_and_seal(self, *, whole: bool = False) -> bool:
        """Checkpoint the log and seal the changed pages. Return whether the log was moved completely.

        ``whole`` seals all pages. Pages that a reader still uses stay in the log. Raises sqlite3.Error and OSError.
        """
        with self._writing:
            changed = None if whole or self._seal.sealed() is None else self._seal.pages_in_log()
            busy, logged, moved = self._writer.execute(sql.CHECKPOINT_LOG).fetchone()
            if busy or logged != moved:
                return False
            try:
                sequence, oldest = self._writer.execute(sql.SELECT_EXTENT).fetchone()
                roots = dict(self._writer.execute(sql.SELECT_ROOT_PAGES))
                self._seal.seal(PageChecksumFileHeader(sequence, oldest, self._seal.pages, roots), changed)
            except BaseException:
                # The next write may reuse the log, which alone tells what has to be sealed.
                self._seal.forget()
                raise
            self._seal.record_checkpoint()
            self._settled = sequence
            self._truncate_log()
        return True

    def _truncate_log(self) -> None:
        """Empty a long log that has been moved completely, unless it is being read.

        SQLite itself would do so only at the next write.
        """
        with suppress(FileNotFoundError):
            if self._log.stat().st_size > sql.MAX_KEPT_LOG_BYTES:
                self._writer.execute("PRAGMA busy_timeout = 0")
                self._writer.execute(sql.TRUNCATE_LOG).fetchone()
                self._writer.execute(f"PRAGMA busy_timeout = {int(HISTORY_LOCK_TIMEOUT_SECONDS * 1000)}")

    def _checkpoint_if_long(self) -> None:
        if self._log.stat().st_size >= sql.CHECKPOINT_PAGES * sql.HISTORY_PAGE_BYTES:
            self.checkpoint_and_seal()

    def scrub(self, first: int, pages: int) -> tuple[list[int], int]:
        """Compare pages on disk with their checksums. Return those that differ, and the total number of pages.

        Raises OSError.
        """
        with self._writing:
            sealed = self._seal.sealed()
            if sealed is None:
                return [], 0
            self._seal.drop_cached(first, first + pages - 1)
            return self._seal.faults(sealed, first, first + pages - 1), sealed.pages

    # Reads. All raise sqlite3.DatabaseError if the file is damaged, and Gone for commits that are no longer known.

    def node_at(self, node_id: str, at: int) -> RowStateInterval[NodeRow] | None:
        """Return the state of a node as of a commit."""
        found = self._require_kept(at, self._nodes(sql.SELECT_NODE_AT, {"id": node_id, "at": at}))
        return next((state for state in found if state.last is None or state.last > at), None)

    def node_version(self, node_id: str, version: int) -> RowStateInterval[NodeRow] | None:
        """Return the state of a node with a version; the newest one if the node was deleted and created again."""
        found = self._nodes(sql.SELECT_NODE_VERSION, {"id": node_id, "version": version})
        if not found:
            self._require_no_gap(node_id, 0, NO_SEQUENCE_LIMIT)
        return next(iter(found), None)

    def heads(self, limit: int) -> list[RowStateInterval[NodeRow]]:
        """Return the known versions that nodes list as conflicting heads, by id and version."""
        return self._nodes(sql.SELECT_HEADS, {"limit": limit})

    def co_authors_of(self, node_id: str, versions: range, limit: int) -> list[ContentCoAuthorEntry]:
        """Return the additional authors of some versions of a node, in the order of commits."""
        values = {"id": node_id, "least": versions.start, "most": versions.stop - 1, "limit": limit}
        return [_parse_co_author(node_id, *found) for found in self._read(sql.SELECT_CO_AUTHORS, values)]

    def node_states(self, node_id: str, before: int, limit: int) -> list[RowStateInterval[NodeRow]]:
        """Return the states of a node that began before a commit, newest first."""
        found = self._nodes(sql.SELECT_NODE_STATES_BEFORE, {"id": node_id, "before": before, "limit": limit})
        known_from = found[-1].first if len(found) == limit else 0
        self._require_no_gap(
            node_id, (found[0].last or before) if has_complete_version_history(found, limit) else known_from, before
        )
        return found

    def node_states_after(self, node_id: str, after: int, limit: int) -> list[RowStateInterval[NodeRow]]:
        """Return the states of a node that began after a commit, oldest first."""
        found = self._nodes(sql.SELECT_NODE_STATES_AFTER, {"id": node_id, "after": after, "limit": limit})
        self._require_no_gap(node_id, after, found[-1].first + 1 if len(found) == limit else NO_SEQUENCE_LIMIT)
        return found

    def next_state(self, node_id: str, after: int) -> RowStateInterval[NodeRow] | None:
        """Return the first known state of a node that began after a commit; earlier ones may be missing."""
        return next(iter(self._nodes(sql.SELECT_NODE_STATES_AFTER, {"id": node_id, "after": after, "limit": 1})), None)

    def node_states_through(self, node_id: str, through: int) -> list[RowStateInterval[NodeRow]]:
        """Return all states of a node that began by a commit."""
        return self._nodes(sql.SELECT_NODE_STATES_THROUGH, {"id": node_id, "through": through})

    def scan_nodes(self, after: int, limit: int) -> tuple[list[RowStateInterval[NodeRow]], int | None]:
        """Return a slice of all node states, in no particular order, and the start of the next one, None at the end.

        after: 0, or the start that the previous call returned.
        """
        [(last,)] = self._read(sql.SELECT_SLICE_END, {"after": after, "limit": limit})
        if last is None:
            return [], None
        return self._nodes(sql.SELECT_NODE_SLICE, {"after": after, "last": last}), last

    def sources_of(self, node_id: str, relation_type: str) -> list[str]:
        """Return the nodes that have ever had a relation of a type to a node."""
        return [row[0] for row in self._read(sql.SELECT_SOURCES, {"id": node_id, "relation_type": relation_type})]

    def deleted_targets(
        self, relation_type: str, limit: int, *, has_later: bool = False
    ) -> list[RowStateInterval[NodeRow]]:
        """Return the last states of deleted nodes that were targets of a relation type, latest deletion first.

        limit: number of ended node states to examine, latest first. has_later: include earlier states of any node.
        """
        values = {"relation_type": relation_type, "limit": limit, "has_later": has_later}
        return self._nodes(sql.SELECT_DELETED_TARGETS, values)

    def nodes_ended(self, last: int, limit: int) -> list[RowStateInterval[NodeRow]]:
        """Return the states of nodes that ended with a commit."""
        return self._nodes(sql.SELECT_NODES_ENDED_AT, {"last": last, "limit": limit})

    def edges_ended(self, target: str, relation_type: str, last: int, limit: int) -> list[RowStateInterval[EdgeRow]]:
        """Return the states of relations of a type to a node that ended with a commit."""
        values = {"id": target, "relation_type": relation_type, "last": last, "limit": limit}
        return self._edges(sql.SELECT_EDGES_ENDED_AT, values)

    def nodes_at(self, at: int, type_: str | None, after: str | None, limit: int) -> list[RowStateInterval[NodeRow]]:
        """Return the next nodes as of a commit, in the order of their ids; of one type or of all."""
        values = {"at": at, "type": type_, "after": after or "", "limit": limit}
        return self._require_kept(
            at, self._nodes(sql.SELECT_NODES_AT if type_ is None else sql.SELECT_NODES_OF_TYPE_AT, values)
        )

    def outgoing(self, node_id: str, at: int, limit: int) -> list[RowStateInterval[EdgeRow]]:
        """Return the edges from a node as of a commit, sorted by target and type."""
        found = self._edges(sql.SELECT_OUT_EDGES_AT, {"id": node_id, "at": at, "limit": limit})
        # Sorted here, because SQLite would take 1.5 times as long; only the types are out of order.
        return self._require_kept(at, sorted(found, key=lambda state: state.row.key))

    def incoming(self, node_id: str, at: int, limit: int) -> list[RowStateInterval[EdgeRow]]:
        """Return the edges to a node as of a commit."""
        return self._require_kept(at, self._edges(sql.SELECT_IN_EDGES_AT, {"id": node_id, "at": at, "limit": limit}))

    def edges_at(self, at: int, after: EdgeKey, limit: int) -> list[RowStateInterval[EdgeRow]]:
        """Return the next edges as of a commit, in the order of their keys."""
        source, target, relation_type = after
        values = {"at": at, "source": source, "target": target, "relation_type": relation_type, "limit": limit}
        return self._require_kept(at, self._edges(sql.SELECT_EDGES_AT, values))

    def edge_state_numbers(self, node_id: str, limit: int) -> list[tuple[int, str]]:
        """Return up to ``limit`` states of edges from a node, as row number and target."""
        return self._read(sql.SELECT_EDGE_NUMBERS, {"id": node_id, "limit": limit})

    def edges_by_number_at(self, numbers: Sequence[int], at: int) -> list[RowStateInterval[EdgeRow]]:
        """Return the edge states with the given row numbers that were current as of a commit."""
        found = self._read_some(sql.SELECT_EDGES_BY_NUMBER_AT, numbers, at, at)
        return self._require_kept(at, _as_states(row_format.unpack_history_edge, found))

    def edges_by_number(self, numbers: Sequence[int]) -> list[RowStateInterval[EdgeRow]]:
        """Return the edge states with the given row numbers."""
        return _as_states(row_format.unpack_history_edge, self._read_some(sql.SELECT_EDGES_BY_NUMBER, numbers))

    def edge_lifetimes(self, numbers: Sequence[int]) -> Iterator[tuple[int, EdgeKey, int, int | None]]:
        """Yield row number, edge key, first and last commit of the edge states with the given row numbers."""
        found = self._read_some(sql.SELECT_EDGE_LIFETIMES, numbers)
        return ((number, (source, target, kind), first, last) for number, source, target, kind, first, last in found)

    def node_lifetimes(self, node_id: str, limit: int) -> list[tuple[int, int | None]]:
        """Return the first and last commits of the states of a node, newest first."""
        return self._read(sql.SELECT_NODE_LIFETIMES, {"id": node_id, "limit": limit})

    def degree_at(self, node_id: str, at: int, limit: int) -> tuple[int, int]:
        """Return the number of edges from and to a node as of a commit, and the number of edge states examined.

        At most ``limit`` states are examined in each direction.
        """
        count, looked_at = self._read(sql.SELECT_DEGREE, {"id": node_id, "at": at, "limit": limit})[0]
        return count, looked_at

    def commits_by_time(self, spans: int) -> tuple[list[int], list[int]]:
        """Return times that divide the known history into equal spans, and the last commit up to each time.

        Times are in microseconds. The first commit belongs to the first span. Where the clock was set back, commits
        count as made later.
        """
        first, last = self._read(sql.SELECT_TIME_RANGE, {})[0]
        if first is None:
            return [], []
        times = [first + (last - first) * step // spans for step in range(spans + 1)]
        commits = [max(self._oldest - 1, 0)]
        for time in times[1:]:
            found = self._read(sql.SELECT_LAST_COMMIT_AT_TIME, {"time": time})
            commits.append(max(commits[-1], found[0][0]))
        return times, commits

    def links_from(self, node_id: str, at: int, limit: int) -> list[RowStateInterval[CrossStoreLinkRow]]:
        """Return the links from a node as of a commit."""
        return self._require_kept(at, self._links(sql.SELECT_OUT_LINKS_AT, {"id": node_id, "at": at, "limit": limit}))

    def links_at(self, at: int, after: CrossStoreLinkKey, limit: int) -> list[RowStateInterval[CrossStoreLinkRow]]:
        """Return the next links as of a commit, in the order of source, store, target and type."""
        return self._require_kept(at, self._links(sql.SELECT_LINKS_AT, {"at": at, "limit": limit, **_link_key(after)}))

    def has_links(self) -> bool:
        """Return whether the store is known to have ever had a link."""
        return bool(self._read(sql.SELECT_HAS_LINKS, {})[0][0])

    def link_states(self, node_id: str, limit: int) -> list[RowStateInterval[CrossStoreLinkRow]]:
        """Return the states of links from a node, newest first."""
        return self._links(sql.SELECT_LINK_STATES_OF_SOURCE, {"id": node_id, "limit": limit})

    def _require_kept(self, at: int, found: list[RowStateInterval[Row]]) -> list[RowStateInterval[Row]]:
        """Return the result of a read as of a commit. Raises Gone if part of it may have been pruned meanwhile."""
        self.require_known(at)
        return found

    def require_known(self, at: int) -> None:
        """Raise Gone for a commit as of which the history is incomplete."""
        if at < self._oldest:
            raise history_begins_later_error(self._oldest)
        for gap in self._gaps:
            if gap.first <= at and (gap.last is None or at < gap.last):
                raise history_gap_error("as_of: the history of this store", gap.first, gap.last)

    def require_known_after(self, at: int) -> None:
        """Raise Gone if commits may be missing between one and the next whose time is known.

        A time between the two cannot be assigned to a commit.
        """
        if self._gaps:
            [(later,)] = self._read(sql.SELECT_NEXT_MOMENT, {"at": at})
            for gap in self._gaps:
                if gap.first < (later or NO_SEQUENCE_LIMIT) and (gap.last is None or gap.last > at + 1):
                    raise history_gap_error("as_of: the history of this store", gap.first, gap.last)

    def _require_no_gap(self, node_id: str, low: int, before: int) -> None:
        """Raise Gone if a state of a node may be missing that began before a commit and ended after ``low``."""
        if self._gaps:
            [(first, last)] = self._read(sql.SELECT_NODE_GAP, {"id": node_id, "low": low, "before": before})
            if first is not None:
                raise history_gap_error(f"the history of node {node_id!r}", first, None if last == before else last)

    def _nodes(self, query: str, values: dict[str, Any]) -> list[RowStateInterval[NodeRow]]:
        return self._states(row_format.unpack_history_node, query, values)

    def _edges(self, query: str, values: dict[str, Any]) -> list[RowStateInterval[EdgeRow]]:
        return self._states(row_format.unpack_history_edge, query, values)

    def _links(self, query: str, values: dict[str, Any]) -> list[RowStateInterval[CrossStoreLinkRow]]:
        return self._states(row_format.unpack_history_cross_store_link, query, values)

    def _read_some(self, query: str, numbers: Sequence[int], *before: int) -> list[tuple[Any, ...]]:
        with self._reading:
            return [*select_rows_by_in_list(self._reader.execute, query, numbers, before=before)]

    def _states(
        self, unpack: Callable[..., Row | None], query: str, values: dict[str, Any]
    ) -> list[RowStateInterval[Row]]:
        return _as_states(unpack, self._read(query, values))


def has_complete_version_history(states: Sequence[RowStateInterval[NodeRow]], limit: int) -> bool:
    """Return whether the states of a node, newest first, are complete, including those before the oldest.

    Versions count up by one, also where a deleted node is created again. Fewer than ``limit`` must begin with version
    1.
    """
    steps = all(newer.row.version == older.row.version + 1 for newer, older in pairwise(states))
    return bool(states) and steps and (len(states) == limit or states[-1].row.version == 1)


def _as_states(unpack: Callable[..., Row | None], found: Iterable[tuple[Any, ...]]) -> list[RowStateInterval[Row]]:
    return [decode_history_row_state(unpack, *each) for each in found]


def decode_history_row_state(
    unpack: Callable[..., Row | None], content: bytes | None, expected: int, *rest: Any
) -> RowStateInterval[Row]:
    """Return the state in a result row. Raises sqlite3.DatabaseError if it does not match its checksum."""
    row = unpack(content, expected, *rest[4:])
    if row is None:
        raise sqlite3.DatabaseError("a state does not match its checksum")
    return RowStateInterval(row, *rest[:4])


def _apply_change_set(transaction: sqlite3.Connection, change: ChangeSet) -> bool:
    """Apply a change set. Return whether the conflicting versions of any node changed."""
    at, time = change.sequence, change.time
    if change.said:
        said = ((each.id, ContentCoAuthorEntry(each.version, each.created_by, at, time)) for each in change.said)
        transaction.executemany(sql.INSERT_CO_AUTHOR, (_co_author_values(*each) for each in said))
    if not change.size:  # no state changed
        return False
    gone = (*change.edges_deleted, *(row.key for row in change.edges_updated))
    transaction.executemany(sql.UPDATE_EDGE_END, [{**_key(key), "at": at, "time": time} for key in gone])
    ended = (*change.nodes_deleted, *(row.id for row in change.nodes_updated))
    transaction.executemany(sql.UPDATE_NODE_END, [{"id": node_id, "at": at, "time": time} for node_id in ended])
    nodes = (*change.nodes_created, *change.nodes_updated)
    transaction.executemany(sql.INSERT_NODE_STATE, (_node_values(row, at, time) for row in iterate_yielding_gil(nodes)))
    heads = _update_heads(transaction, ended, change.nodes_updated)
    edges = (*change.edges_created, *change.edges_updated)
    transaction.executemany(sql.INSERT_EDGE_STATE, (_edge_values(row, at, time) for row in iterate_yielding_gil(edges)))
    transaction.executemany(
        sql.UPDATE_EDGE_ROW,
        [_row_update_values(_key(row.key), row_format.pack_history_edge(row)) for row in change.edges_touched],
    )
    if change.links is not None:
        _apply_links(transaction, change)
    transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (at, time))
    return heads


def _update_heads(transaction: sqlite3.Connection, over: Iterable[str], rows: Iterable[NodeRow]) -> bool:
    named = [(row.id, version) for row in rows for version in get_conflicting_node_head_versions(row)]
    if not named and not transaction.execute("SELECT EXISTS (SELECT * FROM head)").fetchone()[0]:
        return False
    gone = transaction.executemany(sql.DELETE_HEADS, ((node_id,) for node_id in over)).rowcount
    transaction.executemany(sql.INSERT_HEAD, named)
    return bool(named) or gone > 0


def _apply_links(transaction: sqlite3.Connection, change: ChangeSet) -> None:
    at, time = change.sequence, change.time
    gone = (*change.links_deleted, *(row.key for row in change.links_updated))
    transaction.executemany(sql.UPDATE_LINK_END, [{**_link_key(key), "at": at, "time": time} for key in gone])
    links = (*change.links_created, *change.links_updated)
    transaction.executemany(sql.INSERT_LINK_STATE, (_link_values(row, at, time) for row in links))
    transaction.executemany(
        sql.UPDATE_LINK_ROW,
        [
            _row_update_values(_link_key(row.key), row_format.pack_history_cross_store_link(row))
            for row in change.links_touched
        ],
    )


def _row_update_values(key: dict[str, Any], stored: row_format.PackedRow) -> dict[str, Any]:
    return {**key, "row": stored.content, "hash": stored.hash}


def _link_key(key: CrossStoreLinkKey) -> dict[str, Any]:
    return {**_key(key.edge), "store": key.store}


def _key(key: EdgeKey) -> dict[str, Any]:
    return {"source": key[0], "target": key[1], "relation_type": key[2]}


def _node_values(row: NodeRow, at: int, time: int) -> tuple[Any, ...]:
    return row.id, at, row.version, row.type, time, *row_format.pack_history_node(row)


def _edge_values(row: EdgeRow, at: int, time: int) -> tuple[Any, ...]:
    return row.source, row.target, row.relation_type, at, row.version, time, *row_format.pack_history_edge(row)


def _link_values(row: CrossStoreLinkRow, at: int, time: int) -> tuple[Any, ...]:
    source, target, relation_type = row.edge.key
    return (
        source,
        row.store,
        target,
        relation_type,
        at,
        row.edge.version,
        time,
        *row_format.pack_history_cross_store_link(row),
    )


def _co_author_values(node_id: str, said: ContentCoAuthorEntry) -> tuple[Any, ...]:
    values = (node_id, *msgspec.structs.astuple(said))
    return *values, checksum_63bit(_encode(values))


def _parse_co_author(node_id: str, *found: Any) -> ContentCoAuthorEntry:
    said = ContentCoAuthorEntry(*found[:-1])
    if _co_author_values(node_id, said)[-1] != found[-1]:
        raise sqlite3.DatabaseError("an author entry does not match its checksum")
    return said


def history_begins_later_error(oldest: int) -> Gone:
    """Return the error for a commit before the first one that is known."""
    return Gone(f"as_of: the history of this store begins at sequence {oldest}", oldest)


def history_gap_error(what: str, first: int, last: int | None) -> Gone | Unavailable:
    """Return the error for states lost with a damaged part of the file; temporary while ``last`` is None."""
    if last is None:
        message = f"{what} was damaged and is being repaired from sequence {first} on; try again shortly"
        return Unavailable(message, retry_after=1)
    return Gone(
        f"{what} has a gap from sequence {first} up to sequence {last}: that part of its file was damaged or lost and "
        f"could not be recovered. The history before sequence {first}, and from sequence {last} on, can be read",
        last,
    )


def is_database_damage_error(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error means a damaged or foreign file; subclasses mean a full disk, a lock and the like."""
    return type(error) is sqlite3.DatabaseError


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=HISTORY_LOCK_TIMEOUT_SECONDS, check_same_thread=False)
    try:
        if connection.execute(sql.SELECT_IS_FOREIGN, {"version": sql.HISTORY_VERSION}).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is not a history file")
        has_head_table = connection.execute(sql.SELECT_HAS_HEAD_TABLE).fetchone()[0]
        connection.executescript(sql.HISTORY_SCHEMA)
        if not connection.execute(sql.SELECT_HAS_EDGE_KEY).fetchone()[0]:
            connection.execute(sql.CREATE_EDGE_SOURCE_INDEX)
        if not has_head_table:
            _find_heads(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class _CurrentStateRestorer:
    """Restoration of the current states that a history lacks."""

    def __init__(self, transaction: sqlite3.Connection, time: int) -> None:
        self._transaction = transaction
        self._time = time

    def restore_rows(
        self, table: str, rows: Iterable[NodeRow] | Iterable[EdgeRow] | Iterable[CrossStoreLinkRow]
    ) -> None:
        """Add the rows that are missing, as they are now, and mark those that are current."""
        for row in iterate_yielding_gil(rows):
            number = self._matching_state(table, row)
            if number is None:
                number = self._add(table, row)
            self._transaction.execute(sql.INSERT_PRESENT, (number,))

    def _matching_state(self, table: str, row: NodeRow | EdgeRow | CrossStoreLinkRow) -> int | None:
        """Return the number of the current state that equals a row, None if none does."""
        found = self._transaction.execute(sql.SELECT_PRESENT_STATE[table], _key_of(row)).fetchone()
        if found is None:
            return None
        if found[1] == _packed(row).hash:
            return found[0]
        # Files of older versions use another row format.
        [state] = self._transaction.execute(sql.SELECT_STATE_BY_NUMBER[table], (found[0],))
        return found[0] if _UNPACK[table](*state) == row else None

    def _add(self, table: str, row: NodeRow | EdgeRow | CrossStoreLinkRow) -> int:
        if isinstance(row, NodeRow):
            values, sequence = _node_values(row, row.sequence, row.updated_at), row.sequence
        elif isinstance(row, EdgeRow):
            values, sequence = _edge_values(row, row.sequence, self._time_of_commit(row.sequence)), row.sequence
        else:
            sequence = row.edge.sequence
            values = _link_values(row, sequence, self._time_of_commit(sequence))
        number = self._transaction.execute(_ADD[table], values).lastrowid
        self._transaction.execute(sql.DELETE_GAP, (table, values[0], sequence))
        return number or 0

    def _time_of_commit(self, sequence: int) -> int:
        found = self._transaction.execute(sql.SELECT_COMMIT_TIME, (sequence,)).fetchone()
        return found[0] if found else self._time


_ADD = {"node": sql.INSERT_NODE_STATE, "edge": sql.INSERT_EDGE_STATE, "link": sql.INSERT_LINK_STATE}
_UNPACK: dict[str, Callable[..., NodeRow | EdgeRow | CrossStoreLinkRow | None]] = {
    "node": row_format.unpack_history_node,
    "edge": row_format.unpack_history_edge,
    "link": row_format.unpack_history_cross_store_link,
}


def _key_of(row: NodeRow | EdgeRow | CrossStoreLinkRow) -> tuple[Any, ...]:
    if isinstance(row, NodeRow):
        return (row.id,)
    return row.key if isinstance(row, EdgeRow) else (*row.edge.key, row.store)


def _packed(row: NodeRow | EdgeRow | CrossStoreLinkRow) -> row_format.PackedRow:
    if isinstance(row, NodeRow):
        return row_format.pack_history_node(row)
    return (
        row_format.pack_history_edge(row) if isinstance(row, EdgeRow) else row_format.pack_history_cross_store_link(row)
    )


def _find_heads(connection: sqlite3.Connection) -> None:
    found = connection.execute(sql.SELECT_POSSIBLE_HEADS)
    rows = (row_format.unpack_history_node(*each) for each in found)
    named = [
        (row.id, version) for row in rows if row is not None for version in get_conflicting_node_head_versions(row)
    ]
    with connection as transaction:
        transaction.executemany(sql.INSERT_HEAD, named)
