"""Every state that the entities and relations of a store have had, in SQLite, from the first that is still known.

A state is a row together with the commits between which it held: from ``first``, up to but not with ``last``, which is
None while it holds. A reader asks for a moment as a sequence; `sequence_at` finds the one for a time. Nothing that was
asked for needs a scan: keys begin with what is looked for, and states of one key are in order.

It is fed from the journal, after the answer, and goes on where the journal no longer reaches: so commits are durable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from typing_extensions import override

from kgserve.errors import Gone, Unavailable
from kgserve.platform.gil import cooperative
from kgserve.platform.sqlite_files import WrittenBesideReading, of_some, write_anew
from kgserve.projections.history import packing
from kgserve.projections.history import statements as sql
from kgserve.projections.history.salvage import Gap, Salvaged, add_gaps, merged, write_whole
from kgserve.projections.history.seal import PageSeal, Sealed, frames
from kgserve.storage.model.batch import conflicts
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.digest import checksum
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow

FOREVER = (1 << 63) - 1
HISTORY_LOCK_TIMEOUT_SECONDS = 5.0
"""So long whoever writes waits for another one's lock."""
# A slice of pruning takes about 10 ms: so many states are looked at, and of those to go so many bytes taken.
PRUNE_BATCH_STATES = 2_000
PRUNE_BATCH_BYTES = 8 << 20

Row = TypeVar("Row", NodeRow, EdgeRow, LinkRow)

_encode = msgspec.msgpack.Encoder().encode
log = structlog.get_logger()


class RowState(msgspec.Struct, Generic[Row], frozen=True):
    """A row, the commits from and until which it held, and their times in microseconds."""

    row: Row
    first: int
    last: int | None
    started: int
    ended: int | None


class SaidBy(msgspec.Struct, frozen=True):
    """Who else has put what a ``version`` says, by which commit first, and when, in microseconds."""

    version: int
    created_by: str
    sequence: int
    time: int


class History(WrittenBesideReading):
    """The file of one store."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises sqlite3.DatabaseError for a file that is none of ours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        super().__init__(_connect(path), path)
        self._log = path.with_name(f"{path.name}-wal")
        self._seal = PageSeal(path)
        self._heads_changed, self._has_heads = 0, False
        self._note_heads()
        self._settled, self._oldest = self._writer.execute(sql.SELECT_EXTENT).fetchone()
        self._gaps: list[Gap] = []
        self._note_gaps()
        if next(frames(self._log), None) is not None:
            self._settled = 0
            self.settle()

    @override
    def close(self) -> None:
        """Release the file, sealed. One that was deleted or moved meanwhile is put back."""
        with self._reading:
            self._reader.close()
        try:
            if not self.settle():
                # SQLite itself may move the rest of its log when it closes.
                self._seal.forget()
            elif not self.is_in_place:
                self._seal.put_back()
        except (sqlite3.Error, OSError):
            log.exception("history_not_sealed", file=str(self.path))
        with self._writing:
            self._writer.close()
        self._seal.close()

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still where it was opened."""
        return self._seal.is_in_place

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; 0 for none."""
        return self._read("SELECT sequence FROM cursor", {})[0][0]

    @property
    def heads_mark(self) -> int:
        """Another number each time that `heads` are others; 0 while there are none."""
        return self._heads_changed if self._has_heads else 0

    @property
    def settled(self) -> int:
        """The last commit that is in the file itself: what is only in its log is lost when that is damaged."""
        return self._settled

    @property
    def gaps(self) -> list[Gap]:
        """The commits as of which something is missing, for what was lost with damaged pages; by table, without ids."""
        return self._gaps

    @property
    def has_open_gaps(self) -> bool:
        """Whether some of what holds at present is missing, too, until `restore` brings it back."""
        return any(gap.last is None for gap in self._gaps)

    def _note_gaps(self) -> None:
        self._gaps = merged(Gap(*found) for found in self._writer.execute(sql.SELECT_GAPS))

    def _note_heads(self) -> None:
        self._heads_changed += 1
        self._has_heads = bool(self._writer.execute("SELECT EXISTS (SELECT * FROM head)").fetchone()[0])

    @property
    def oldest(self) -> int:
        """The first commit as of which it can answer; 0 when it knows everything."""
        return self._oldest

    @property
    def bytes(self) -> int:
        """What the file takes for what it holds, pages that hold nothing left out."""
        [(empty, pages)] = self._outside(sql.SELECT_EMPTY_PAGES)
        return (pages - empty) * sql.HISTORY_PAGE_BYTES

    def sequence_at(self, time: int, now: int | None = None) -> int:
        """Return the last commit up to a time in microseconds; 0 when there was none yet.

        now: the present time in microseconds; commits stamped after it count as made right after the one before them.
        """
        found = self._read("SELECT max(sequence) FROM moment WHERE time <= :time", {"time": time})[0][0] or 0
        if now is None:
            return found
        behind = self._read(sql.SELECT_NEXT_COMMIT_BEFORE_TIME, {"after": found, "now": now})
        if behind and not found:
            return 0
        [(last,)] = self._read(sql.SELECT_COMMIT_BEFORE, {"until": behind[0][0] if behind else FOREVER})
        return last or found

    def time_of(self, sequence: int) -> int:
        """When the last commit up to a sequence was made, in microseconds; 0 when there was none yet."""
        query = "SELECT time FROM moment WHERE sequence <= :at ORDER BY sequence DESC LIMIT 1"
        found = self._read(query, {"at": sequence})
        return found[0][0] if found else 0

    # Writing

    def take(self, changes: Sequence[ChangeSet]) -> None:
        """Take in consecutive change sets, all or none of them; those that it has seen are left out."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute("SELECT sequence FROM cursor").fetchone()[0]
            heads = [_take(transaction, change) for change in changes if change.sequence > seen]
            transaction.execute("UPDATE cursor SET sequence = max(sequence, ?)", (changes[-1].sequence,))
            if any(heads):
                self._note_heads()
        self._settle_if_long()

    def begin_at(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        sequence: int,
        time: int,
        links: Iterable[LinkRow] = (),
    ) -> None:
        """Forget everything and begin with these rows: no earlier moment than ``sequence`` is known then."""
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
            self._note_heads()
            self._note_gaps()
        self.settle()

    def fill(self, salvaged: Salvaged) -> None:
        """Take in what was found whole in a damaged file; this one is empty."""
        with self._writing:
            write_whole(salvaged, self._writer)
            _find_heads(self._writer)
            self._oldest = salvaged.oldest
            self._note_heads()
            self._note_gaps()
        self.settle()

    def restore(
        self, nodes: Iterable[NodeRow], edges: Iterable[EdgeRow], links: Iterable[LinkRow], sequence: int, time: int
    ) -> None:
        """Have the present be what these rows are, as of a commit; what was missing until then is a gap that ends.

        Commits that the file has not seen are a gap as well.
        """
        with self._writing, self._writer as transaction:
            [(seen, _)] = transaction.execute(sql.SELECT_EXTENT)
            if seen < sequence:
                if seen + 1 < sequence:
                    add_gaps(transaction, [Gap(seen + 1, None, table) for table in sql.HISTORY_TABLES])
                transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (sequence, time))
                transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))
            transaction.execute(sql.CREATE_PRESENT_TABLE)
            present = _Present(transaction, time)
            for table, rows in (("node", nodes), ("edge", edges), ("link", links)):
                present.bring(table, rows)
                transaction.execute(sql.UPDATE_ABSENT_END[table], {"at": min(seen + 1, sequence), "time": time})
                transaction.execute(sql.DELETE_PRESENT)
            transaction.execute(sql.UPDATE_STATE_ENDS, {"at": min(seen + 1, sequence), "time": time})
            transaction.execute(sql.UPDATE_GAPS_END, (sequence,))
            transaction.execute("DELETE FROM head")
        with self._writing:
            _find_heads(self._writer)
            self._note_heads()
            # Only now: who reads meanwhile is still refused.
            self._note_gaps()
        self.settle()

    def prune(self, before: int) -> int:
        """Forget the states that had ended by a commit; how many those were. Earlier moments are gone then.

        Versions that a node names as other heads stay.
        """
        return sum(self.pruning(before))

    def pruning(self, before: int) -> Generator[int]:
        """As `prune`, in slices: how many states each has forgotten. What is still to come may as well be left."""
        before = min(before, self.sequence)
        self._begin_later(before)
        for table in sql.HISTORY_TABLES:
            at: int | None = 0
            while at is not None:
                at, removed = self._prune_slice(table, at, before)
                yield removed
        while self._write(sql.DELETE_MOMENTS, {"before": before, "limit": PRUNE_BATCH_STATES}):
            yield 0
        yield from self._giving_back()

    def _giving_back(self) -> Iterator[int]:
        """Give the pages that hold nothing back to the file system, 4 MiB at a time.

        A file from before that was foreseen is written anew, if less than half of it holds anything.
        """
        [(empty, pages)] = self._outside(sql.SELECT_EMPTY_PAGES)
        if self._outside(sql.SELECT_CAN_VACUUM) == [(1,)]:
            while empty:
                with self._writing:
                    # As a script: it answers with rows without columns, a page each, of which `execute` asks for one.
                    self._writer.executescript(sql.VACUUM_PAGES)
                yield 0
                [(empty, _)] = self._outside(sql.SELECT_EMPTY_PAGES)
        elif 2 * empty > pages:
            self._outside("VACUUM")
        # Pages that a reader still uses stay in the log until later.
        self.settle()

    def _outside(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement outside of transactions answers."""
        with self._writing:
            return self._writer.execute(statement).fetchall()

    def _begin_later(self, before: int) -> None:
        # Before anything goes, and in memory first: who then still reads an earlier moment is told (`_still_known`).
        with self._writing, self._writer as transaction:
            self._oldest = max(self._oldest, before)
            transaction.execute("UPDATE cursor SET oldest = ?", (self._oldest,))
            transaction.execute(sql.DELETE_GAPS_UNTIL, (self._oldest,))
            self._note_gaps()

    def _prune_slice(self, table: str, after: int, before: int) -> tuple[int | None, int]:
        """Where the next slice begins, None for nowhere, and how many states are gone."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute(
                sql.SELECT_PRUNABLE_STATES[table], {"after": after, "limit": PRUNE_BATCH_STATES}
            ).fetchall()
            going: list[tuple[int]] = []
            size = 0
            for number, last, length in seen:
                after = number
                if last is not None and last <= before:
                    going.append((number,))
                    size += length
                if size >= PRUNE_BATCH_BYTES:
                    break
            if table == "node":
                transaction.executemany(sql.DELETE_CO_AUTHORS, going)
            removed = transaction.executemany(sql.DELETE_STATE[table], going).rowcount if going else 0
        return (after if seen else None), removed

    def _write(self, statement: str, values: dict[str, Any]) -> int:
        with self._writing, self._writer as transaction:
            return transaction.execute(statement, values).rowcount

    def erase(self, ids: Iterable[str], former: Iterable[str], through: int) -> None:
        """Leave no state of some nodes and of their edges that began by a commit, and none of others that was over.

        The file is written anew: nothing of them is in its free pages or its log. Who reads goes on.
        """
        with self._writing:
            with self._writer as transaction:
                for statement in sql.DELETE_NODE_THROUGH:
                    transaction.executemany(statement, ({"id": each, "through": through} for each in ids))
                transaction.executemany(
                    sql.DELETE_ENDED_NODE_STATES, ({"id": each, "through": through} for each in former)
                )
                self._note_heads()
            # The log is emptied before the pages can be sealed: if that is as far as it goes, all rows are checked.
            self._seal.forget()
            write_anew(self._writer)
        self.settle(whole=True)

    # Its pages

    def settle(self, *, whole: bool = False) -> bool:
        """Move the log into the file, and seal the pages that changed, or the whole file; whether all was moved.

        Pages that a reader still uses stay in the log. Raises sqlite3.Error and OSError.
        """
        with self._writing:
            changed = None if whole or self._seal.sealed() is None else self._seal.logged()
            busy, logged, moved = self._writer.execute(sql.CHECKPOINT_LOG).fetchone()
            if busy or logged != moved:
                return False
            sequence, oldest = self._writer.execute(sql.SELECT_EXTENT).fetchone()
            roots = dict(self._writer.execute(sql.SELECT_ROOT_PAGES))
            self._seal.seal(Sealed(sequence, oldest, self._seal.pages, roots), changed)
            self._seal.note_moved()
            self._settled = sequence
        return True

    def _settle_if_long(self) -> None:
        if self._log.stat().st_size >= sql.CHECKPOINT_PAGES * sql.HISTORY_PAGE_BYTES:
            self.settle()

    def scrub(self, first: int, pages: int) -> tuple[list[int], int]:
        """Read pages from the disk and compare them with their seal: those that differ, and how many there are in all.

        Raises OSError.
        """
        with self._writing:
            sealed = self._seal.sealed()
            if sealed is None:
                return [], 0
            self._seal.drop_cached(first, first + pages - 1)
            return self._seal.faults(sealed, first, first + pages - 1), sealed.pages

    # Reading; all raise sqlite3.DatabaseError when the file is damaged, and Gone for a moment that is no longer known

    def node_at(self, node_id: str, at: int) -> RowState[NodeRow] | None:
        """The state of a node as of a commit."""
        found = self._still_known(at, self._nodes(sql.SELECT_NODE_AT, {"id": node_id, "at": at}))
        return next((state for state in found if state.last is None or state.last > at), None)

    def node_version(self, node_id: str, version: int) -> RowState[NodeRow] | None:
        """The state of a node with this version; the newest, should it have been deleted and made again."""
        found = self._nodes(sql.SELECT_NODE_VERSION, {"id": node_id, "version": version})
        if not found:
            self._require_no_gap(node_id, 0, FOREVER)
        return next(iter(found), None)

    def heads(self, limit: int) -> list[RowState[NodeRow]]:
        """Versions that nodes name as other heads, by id and version: those that are known."""
        return self._nodes(sql.SELECT_HEADS, {"limit": limit})

    def said_of(self, node_id: str, versions: range, limit: int) -> list[SaidBy]:
        """Who else has said what some versions of a node say, in the order of commits."""
        values = {"id": node_id, "least": versions.start, "most": versions.stop - 1, "limit": limit}
        return [_said_by(node_id, *found) for found in self._read(sql.SELECT_CO_AUTHORS, values)]

    def node_states(self, node_id: str, before: int, limit: int) -> list[RowState[NodeRow]]:
        """The states of a node, newest first, that began before a commit."""
        found = self._nodes(sql.SELECT_NODE_STATES_BEFORE, {"id": node_id, "before": before, "limit": limit})
        known_from = found[-1].first if len(found) == limit else 0
        self._require_no_gap(node_id, (found[0].last or before) if is_unbroken(found, limit) else known_from, before)
        return found

    def node_states_after(self, node_id: str, after: int, limit: int) -> list[RowState[NodeRow]]:
        """The states of a node, oldest first, that began after a commit."""
        found = self._nodes(sql.SELECT_NODE_STATES_AFTER, {"id": node_id, "after": after, "limit": limit})
        self._require_no_gap(node_id, after, found[-1].first + 1 if len(found) == limit else FOREVER)
        return found

    def next_state(self, node_id: str, after: int) -> RowState[NodeRow] | None:
        """The first state of a node that is known to have begun after a commit; others may be missing before it."""
        return next(iter(self._nodes(sql.SELECT_NODE_STATES_AFTER, {"id": node_id, "after": after, "limit": 1})), None)

    def node_states_until(self, node_id: str, through: int) -> list[RowState[NodeRow]]:
        """All states of a node that began by a commit."""
        return self._nodes(sql.SELECT_NODE_STATES_THROUGH, {"id": node_id, "through": through})

    def sources_of(self, node_id: str, relation_type: str) -> list[str]:
        """The nodes from which a relation of a type has ever led to a node."""
        return [row[0] for row in self._read(sql.SELECT_SOURCES, {"id": node_id, "relation_type": relation_type})]

    def deleted_targets(self, relation_type: str, limit: int) -> list[RowState[NodeRow]]:
        """Return the last states of deleted nodes to which relations of a type led until then, latest deletion first.

        limit: ended states of nodes that are looked at, the latest ones.
        """
        return self._nodes(sql.SELECT_DELETED_TARGETS, {"relation_type": relation_type, "limit": limit})

    def edges_ended(self, target: str, relation_type: str, last: int, limit: int) -> list[RowState[EdgeRow]]:
        """Return the states of relations of a type to a node that a commit ended."""
        values = {"id": target, "relation_type": relation_type, "last": last, "limit": limit}
        return self._edges(sql.SELECT_EDGES_ENDED_AT, values)

    def nodes_at(self, at: int, type_: str | None, after: str | None, limit: int) -> list[RowState[NodeRow]]:
        """The next nodes in the order of their ids as of a commit, of one type or of all."""
        values = {"at": at, "type": type_, "after": after or "", "limit": limit}
        return self._still_known(
            at, self._nodes(sql.SELECT_NODES_AT if type_ is None else sql.SELECT_NODES_OF_TYPE_AT, values)
        )

    def outgoing(self, node_id: str, at: int, limit: int) -> list[RowState[EdgeRow]]:
        """Edges that started at a node as of a commit, by where they lead and their types."""
        found = self._edges(sql.SELECT_OUT_EDGES_AT, {"id": node_id, "at": at, "limit": limit})
        # Here, for SQLite takes half as long again for it: they are in order but for types.
        return self._still_known(at, sorted(found, key=lambda state: state.row.key))

    def incoming(self, node_id: str, at: int, limit: int) -> list[RowState[EdgeRow]]:
        """Edges that ended at a node as of a commit."""
        return self._still_known(at, self._edges(sql.SELECT_IN_EDGES_AT, {"id": node_id, "at": at, "limit": limit}))

    def edges_at(self, at: int, after: EdgeKey, limit: int) -> list[RowState[EdgeRow]]:
        """The next edges in the order of their keys as of a commit."""
        source, target, relation_type = after
        values = {"at": at, "source": source, "target": target, "relation_type": relation_type, "limit": limit}
        return self._still_known(at, self._edges(sql.SELECT_EDGES_AT, values))

    def numbers_from(self, node_id: str, limit: int) -> list[tuple[int, str]]:
        """Every state that an edge from a node has had, as a number, and where the edge leads; at most so many."""
        return self._read(sql.SELECT_EDGE_NUMBERS, {"id": node_id, "limit": limit})

    def edges_numbered(self, numbers: Sequence[int], at: int) -> list[RowState[EdgeRow]]:
        """Those of some states of edges that held as of a commit."""
        found = self._read_some(sql.SELECT_EDGES_BY_NUMBER_AT, numbers, at, at)
        return self._still_known(at, _as_states(packing.edge, found))

    def edge_states(self, numbers: Sequence[int]) -> list[RowState[EdgeRow]]:
        """Some states of edges."""
        return _as_states(packing.edge, self._read_some(sql.SELECT_EDGES_BY_NUMBER, numbers))

    def edge_lives(self, numbers: Sequence[int]) -> Iterator[tuple[int, EdgeKey, int, int | None]]:
        """Some states of edges: the number, the edge, and the commits from and until which it held."""
        found = self._read_some(sql.SELECT_EDGE_LIFETIMES, numbers)
        return ((number, (source, target, kind), first, last) for number, source, target, kind, first, last in found)

    def node_lives(self, node_id: str, limit: int) -> list[tuple[int, int | None]]:
        """The commits from and until which the states of a node held, newest first."""
        return self._read(sql.SELECT_NODE_LIFETIMES, {"id": node_id, "limit": limit})

    def degree_at(self, node_id: str, at: int, limit: int) -> tuple[int, int]:
        """How many edges started and ended at a node as of a commit, and how many of their states were looked at.

        Either way, at most so many are looked at.
        """
        count, looked_at = self._read(sql.SELECT_DEGREE, {"id": node_id, "at": at, "limit": limit})[0]
        return count, looked_at

    def commits_by_time(self, spans: int) -> tuple[list[int], list[int]]:
        """Times in microseconds that part what is known into spans of one length, and the last commit up to each.

        The first commit of all is in the first span. Where the clock was set back, commits count as made later.
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

    def links_from(self, node_id: str, at: int, limit: int) -> list[RowState[LinkRow]]:
        """Links that led from a node as of a commit."""
        return self._still_known(at, self._links(sql.SELECT_OUT_LINKS_AT, {"id": node_id, "at": at, "limit": limit}))

    def links_at(self, at: int, after: LinkKey, limit: int) -> list[RowState[LinkRow]]:
        """The next links in the order of their sources, stores, targets and types as of a commit."""
        return self._still_known(at, self._links(sql.SELECT_LINKS_AT, {"at": at, "limit": limit, **_link_key(after)}))

    def has_links(self) -> bool:
        """Whether a link has ever been there, as far as is known."""
        return bool(self._read(sql.SELECT_HAS_LINKS, {})[0][0])

    def link_states(self, node_id: str, limit: int) -> list[RowState[LinkRow]]:
        """The states of links from a node, newest first."""
        return self._links(sql.SELECT_LINK_STATES_OF_SOURCE, {"id": node_id, "limit": limit})

    def _still_known(self, at: int, found: list[RowState[Row]]) -> list[RowState[Row]]:
        """What was found for a moment. Raises Gone if some of it may have been forgotten meanwhile."""
        self.require_known(at)
        return found

    def require_known(self, at: int) -> None:
        """Raise Gone for a commit as of which it does not know everything."""
        if at < self._oldest:
            raise gone(self._oldest)
        for gap in self._gaps:
            if gap.first <= at and (gap.last is None or at < gap.last):
                raise in_gap("as_of: the history of this store", gap.first, gap.last)

    def require_known_after(self, at: int) -> None:
        """Raise Gone where commits after one may be missing, up to the next one whose time is known.

        A time between the two cannot be assigned to a commit.
        """
        if self._gaps:
            [(later,)] = self._read(sql.SELECT_NEXT_MOMENT, {"at": at})
            for gap in self._gaps:
                if gap.first < (later or FOREVER) and (gap.last is None or gap.last > at + 1):
                    raise in_gap("as_of: the history of this store", gap.first, gap.last)

    def _require_no_gap(self, node_id: str, low: int, before: int) -> None:
        """Raise Gone where a state of a node may be missing that began before a commit and ended after ``low``."""
        if self._gaps:
            [(first, last)] = self._read(sql.SELECT_NODE_GAP, {"id": node_id, "low": low, "before": before})
            if first is not None:
                raise in_gap(f"the history of node {node_id!r}", first, None if last == before else last)

    def _nodes(self, query: str, values: dict[str, Any]) -> list[RowState[NodeRow]]:
        return self._states(packing.node, query, values)

    def _edges(self, query: str, values: dict[str, Any]) -> list[RowState[EdgeRow]]:
        return self._states(packing.edge, query, values)

    def _links(self, query: str, values: dict[str, Any]) -> list[RowState[LinkRow]]:
        return self._states(packing.link, query, values)

    def _read_some(self, query: str, numbers: Sequence[int], *before: int) -> list[tuple[Any, ...]]:
        with self._reading:
            return [*of_some(self._reader.execute, query, numbers, before=before)]

    def _states(self, unpack: Callable[..., Row | None], query: str, values: dict[str, Any]) -> list[RowState[Row]]:
        return _as_states(unpack, self._read(query, values))


def is_unbroken(states: Sequence[RowState[NodeRow]], limit: int) -> bool:
    """Whether none is missing between states of a node, newest first, nor before the oldest.

    Versions count up by one, also where a deleted node is made again. Fewer than ``limit`` must begin with version 1.
    """
    steps = all(newer.row.version == older.row.version + 1 for newer, older in pairwise(states))
    return bool(states) and steps and (len(states) == limit or states[-1].row.version == 1)


def _as_states(unpack: Callable[..., Row | None], found: Iterable[tuple[Any, ...]]) -> list[RowState[Row]]:
    return [state(unpack, *each) for each in found]


def state(unpack: Callable[..., Row | None], content: bytes | None, expected: int, *rest: Any) -> RowState[Row]:
    """The state in what was found. Raises sqlite3.DatabaseError when it does not fit its checksum."""
    row = unpack(content, expected, *rest[4:])
    if row is None:
        raise sqlite3.DatabaseError("a state does not fit its checksum")
    return RowState(row, *rest[:4])


def _take(transaction: sqlite3.Connection, change: ChangeSet) -> bool:
    """Take in a change set; whether nodes name other versions beside them than before."""
    at, time = change.sequence, change.time
    if change.said:
        said = ((each.id, SaidBy(each.version, each.created_by, at, time)) for each in change.said)
        transaction.executemany(sql.INSERT_CO_AUTHOR, (_said_values(*each) for each in said))
    if not change.size:  # as of it is as of the one before
        return False
    gone = (*change.edges_deleted, *(row.key for row in change.edges_updated))
    transaction.executemany(sql.UPDATE_EDGE_END, [{**_key(key), "at": at, "time": time} for key in gone])
    ended = (*change.nodes_deleted, *(row.id for row in change.nodes_updated))
    transaction.executemany(sql.UPDATE_NODE_END, [{"id": node_id, "at": at, "time": time} for node_id in ended])
    nodes = (*change.nodes_created, *change.nodes_updated)
    transaction.executemany(sql.INSERT_NODE_STATE, (_node_values(row, at, time) for row in cooperative(nodes)))
    heads = _take_heads(transaction, ended, change.nodes_updated)
    edges = (*change.edges_created, *change.edges_updated)
    transaction.executemany(sql.INSERT_EDGE_STATE, (_edge_values(row, at, time) for row in cooperative(edges)))
    transaction.executemany(
        sql.UPDATE_EDGE_ROW, [_touched(_key(row.key), packing.stored_edge(row)) for row in change.edges_touched]
    )
    if change.links is not None:
        _take_links(transaction, change)
    transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (at, time))
    return heads


def _take_heads(transaction: sqlite3.Connection, over: Iterable[str], rows: Iterable[NodeRow]) -> bool:
    named = [(row.id, version) for row in rows for version in conflicts(row)]
    if not named and not transaction.execute("SELECT EXISTS (SELECT * FROM head)").fetchone()[0]:
        return False
    gone = transaction.executemany(sql.DELETE_HEADS, ((node_id,) for node_id in over)).rowcount
    transaction.executemany(sql.INSERT_HEAD, named)
    return bool(named) or gone > 0


def _take_links(transaction: sqlite3.Connection, change: ChangeSet) -> None:
    at, time = change.sequence, change.time
    gone = (*change.links_deleted, *(row.key for row in change.links_updated))
    transaction.executemany(sql.UPDATE_LINK_END, [{**_link_key(key), "at": at, "time": time} for key in gone])
    links = (*change.links_created, *change.links_updated)
    transaction.executemany(sql.INSERT_LINK_STATE, (_link_values(row, at, time) for row in links))
    transaction.executemany(
        sql.UPDATE_LINK_ROW, [_touched(_link_key(row.key), packing.stored_link(row)) for row in change.links_touched]
    )


def _touched(key: dict[str, Any], stored: packing.PackedRow) -> dict[str, Any]:
    return {**key, "row": stored.content, "hash": stored.hash}


def _link_key(key: LinkKey) -> dict[str, Any]:
    return {**_key(key.edge), "store": key.store}


def _key(key: EdgeKey) -> dict[str, Any]:
    return {"source": key[0], "target": key[1], "relation_type": key[2]}


def _node_values(row: NodeRow, at: int, time: int) -> tuple[Any, ...]:
    return row.id, at, row.version, row.type, time, *packing.stored_node(row)


def _edge_values(row: EdgeRow, at: int, time: int) -> tuple[Any, ...]:
    return *row.key, at, row.version, time, *packing.stored_edge(row)


def _link_values(row: LinkRow, at: int, time: int) -> tuple[Any, ...]:
    source, target, relation_type = row.edge.key
    return source, row.store, target, relation_type, at, row.edge.version, time, *packing.stored_link(row)


def _said_values(node_id: str, said: SaidBy) -> tuple[Any, ...]:
    values = (node_id, *msgspec.structs.astuple(said))
    return *values, checksum(_encode(values))


def _said_by(node_id: str, *found: Any) -> SaidBy:
    said = SaidBy(*found[:-1])
    if _said_values(node_id, said)[-1] != found[-1]:
        raise sqlite3.DatabaseError("who has said something does not fit its checksum")
    return said


def gone(oldest: int) -> Gone:
    """The error for a moment before the first one that is known."""
    return Gone(f"as_of: the history of this store begins at sequence {oldest}", oldest)


def in_gap(what: str, first: int, last: int | None) -> Gone | Unavailable:
    """The error for what is missing since a part of the file was damaged; for now alone while `last` is to come."""
    if last is None:
        message = f"{what} was damaged, and is being put right from sequence {first} on"
        return Unavailable(message, retry_after=1)
    return Gone(
        f"{what} has a gap from sequence {first} up to sequence {last}: that part of its file was damaged or lost, and "
        f"could not be saved. What was before sequence {first} can be read, and from sequence {last} on",
        last,
    )


def tells_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether a file is not what it was, or none of ours; its subclasses are for a full disk, a lock and the like."""
    return type(error) is sqlite3.DatabaseError


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=HISTORY_LOCK_TIMEOUT_SECONDS, check_same_thread=False)
    try:
        if connection.execute(sql.SELECT_IS_FOREIGN, {"version": sql.HISTORY_VERSION}).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is of another kind")
        knows_heads = connection.execute(sql.SELECT_HAS_HEAD_TABLE).fetchone()[0]
        connection.executescript(sql.HISTORY_SCHEMA)
        if not connection.execute(sql.SELECT_HAS_EDGE_KEY).fetchone()[0]:
            connection.execute(sql.CREATE_EDGE_SOURCE_INDEX)
        if not knows_heads:
            _find_heads(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class _Present:
    """The present being brought into a history that lacks some of it."""

    def __init__(self, transaction: sqlite3.Connection, time: int) -> None:
        self._transaction = transaction
        self._time = time

    def bring(self, table: str, rows: Iterable[NodeRow] | Iterable[EdgeRow] | Iterable[LinkRow]) -> None:
        """Add the rows that are not there as they are now, and mark those that stay."""
        for row in cooperative(rows):
            number = self._held(table, row)
            if number is None:
                number = self._add(table, row)
            self._transaction.execute(sql.INSERT_PRESENT, (number,))

    def _held(self, table: str, row: NodeRow | EdgeRow | LinkRow) -> int | None:
        """The number of the state that says what a row does."""
        found = self._transaction.execute(sql.SELECT_PRESENT_STATE[table], _key_of(row)).fetchone()
        if found is None:
            return None
        if found[1] == _stored(row).hash:
            return found[0]
        # Rows from before are kept otherwise.
        [state] = self._transaction.execute(sql.SELECT_STATE_BY_NUMBER[table], (found[0],))
        return found[0] if _UNPACK[table](*state) == row else None

    def _add(self, table: str, row: NodeRow | EdgeRow | LinkRow) -> int:
        if isinstance(row, NodeRow):
            values, sequence = _node_values(row, row.sequence, row.updated_at), row.sequence
        elif isinstance(row, EdgeRow):
            values, sequence = _edge_values(row, row.sequence, self._began(row.sequence)), row.sequence
        else:
            sequence = row.edge.sequence
            values = _link_values(row, sequence, self._began(sequence))
        number = self._transaction.execute(_ADD[table], values).lastrowid
        self._transaction.execute(sql.DELETE_GAP, (table, values[0], sequence))
        return number or 0

    def _began(self, sequence: int) -> int:
        found = self._transaction.execute(sql.SELECT_COMMIT_TIME, (sequence,)).fetchone()
        return found[0] if found else self._time


_ADD = {"node": sql.INSERT_NODE_STATE, "edge": sql.INSERT_EDGE_STATE, "link": sql.INSERT_LINK_STATE}
_UNPACK: dict[str, Callable[..., NodeRow | EdgeRow | LinkRow | None]] = {
    "node": packing.node,
    "edge": packing.edge,
    "link": packing.link,
}


def _key_of(row: NodeRow | EdgeRow | LinkRow) -> tuple[Any, ...]:
    if isinstance(row, NodeRow):
        return (row.id,)
    return row.key if isinstance(row, EdgeRow) else (*row.edge.key, row.store)


def _stored(row: NodeRow | EdgeRow | LinkRow) -> packing.PackedRow:
    if isinstance(row, NodeRow):
        return packing.stored_node(row)
    return packing.stored_edge(row) if isinstance(row, EdgeRow) else packing.stored_link(row)


def _find_heads(connection: sqlite3.Connection) -> None:
    found = connection.execute(sql.SELECT_POSSIBLE_HEADS)
    rows = (packing.node(*each) for each in found)
    named = [(row.id, version) for row in rows if row is not None for version in conflicts(row)]
    with connection as transaction:
        transaction.executemany(sql.INSERT_HEAD, named)
