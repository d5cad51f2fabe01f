"""Every state that the entities and relations of a store have had, in SQLite, from the first that is still known.

A state is a row together with the commits between which it held: from ``first``, up to but not with ``last``, which is
None while it holds. A reader asks for a moment as a sequence; `sequence_at` finds the one for a time. Nothing that was
asked for needs a scan: keys begin with what is looked for, and states of one key are in order.

It is fed from the journal, after the answer, and goes on where the journal no longer reaches: so commits are durable.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

from kgserve.decoding import msgpack_decoder
from kgserve.errors import Gone
from kgserve.history import statements as sql
from kgserve.model.change import ChangeSet
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow

FOREVER = (1 << 63) - 1
# A slice of pruning takes about 10 ms: so many states are looked at, and of those to go so many bytes taken.
PRUNED_AT_ONCE = 2_000
PRUNED_BYTES = 8 << 20

Row = TypeVar("Row", NodeRow, EdgeRow)

_encode = msgspec.msgpack.Encoder().encode
_node = msgpack_decoder(NodeRow).decode
_edge = msgpack_decoder(EdgeRow).decode


class State(msgspec.Struct, Generic[Row], frozen=True):
    """A row, the commits from and until which it held, and their times in microseconds."""

    row: Row
    first: int
    last: int | None
    started: int
    ended: int | None


class History:
    """One connection that writes and one that reads, each used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises sqlite3.DatabaseError for a file that is none of ours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer = _connect(path)
        self._reader = sqlite3.connect(path, check_same_thread=False)
        self._oldest: int = self._writer.execute("SELECT oldest FROM cursor").fetchone()[0]

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; 0 for none."""
        return self._read("SELECT sequence FROM cursor", {})[0][0]

    @property
    def oldest(self) -> int:
        """The first commit as of which it can answer; 0 when it knows everything."""
        return self._oldest

    def sequence_at(self, time: int) -> int:
        """The last commit up to a time in microseconds; 0 when there was none yet."""
        found = self._read("SELECT max(sequence) FROM moment WHERE time <= :time", {"time": time})[0][0]
        return found or 0

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
            for change in changes:
                if change.sequence > seen:
                    _take(transaction, change)
            transaction.execute("UPDATE cursor SET sequence = max(sequence, ?)", (changes[-1].sequence,))

    def begin_at(self, nodes: Iterable[NodeRow], edges: Iterable[EdgeRow], sequence: int, time: int) -> None:
        """Forget everything and begin with these rows: no earlier moment than ``sequence`` is known then."""
        with self._writing, self._writer as transaction:
            for table in ("node", "edge", "moment"):
                transaction.execute(f"DELETE FROM {table}")  # noqa: S608 - three names
            transaction.executemany(sql.ADD_NODE, (_node_values(row, row.sequence, row.updated_at) for row in nodes))
            transaction.executemany(sql.ADD_EDGE, (_edge_values(row, row.sequence, time) for row in edges))
            transaction.execute("INSERT INTO moment VALUES (?, ?)", (sequence, time))
            transaction.execute("UPDATE cursor SET sequence = ?, oldest = ?", (sequence, sequence))
            self._oldest = sequence

    def prune(self, before: int) -> int:
        """Forget the states that had ended by a commit; how many those were. Earlier moments are gone then."""
        return sum(self.pruning(before))

    def pruning(self, before: int) -> Generator[int]:
        """As `prune`, in slices: how many states each has forgotten. What is still to come may as well be left."""
        before = min(before, self.sequence)
        self._begin_later(before)
        for table in ("node", "edge"):
            at: int | None = 0
            while at is not None:
                at, removed = self._prune_slice(table, at, before)
                yield removed
        while self._write(sql.PRUNE_MOMENTS, {"before": before, "limit": PRUNED_AT_ONCE}):
            yield 0

    def _begin_later(self, before: int) -> None:
        # Before anything goes, and in memory first: who then still reads an earlier moment is told (`_still_known`).
        with self._writing, self._writer as transaction:
            self._oldest = max(self._oldest, before)
            transaction.execute("UPDATE cursor SET oldest = ?", (self._oldest,))

    def _prune_slice(self, table: str, after: int, before: int) -> tuple[int | None, int]:
        """Where the next slice begins, None for nowhere, and how many states are gone."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute(sql.SLICE[table], {"after": after, "limit": PRUNED_AT_ONCE}).fetchall()
            going: list[tuple[int]] = []
            size = 0
            for number, last, length in seen:
                after = number
                if last is not None and last <= before:
                    going.append((number,))
                    size += length
                if size >= PRUNED_BYTES:
                    break
            transaction.executemany(sql.FORGET[table], going)
        return (after if seen else None), len(going)

    def _write(self, statement: str, values: dict[str, Any]) -> int:
        with self._writing, self._writer as transaction:
            return transaction.execute(statement, values).rowcount

    def close(self) -> None:
        """Release the file."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    # Reading; all raise sqlite3.DatabaseError when the file is damaged, and Gone for a moment that is no longer known

    def node_at(self, node_id: str, at: int) -> State[NodeRow] | None:
        """The state of a node as of a commit."""
        found = self._still_known(at, self._nodes(sql.NODE_AT, {"id": node_id, "at": at}))
        return next((state for state in found if state.last is None or state.last > at), None)

    def node_version(self, node_id: str, version: int) -> State[NodeRow] | None:
        """The state of a node with this version; the newest, should it have been deleted and made again."""
        return next(iter(self._nodes(sql.NODE_VERSION, {"id": node_id, "version": version})), None)

    def node_states(self, node_id: str, before: int, limit: int) -> list[State[NodeRow]]:
        """The states of a node, newest first, that began before a commit."""
        return self._nodes(sql.NODE_STATES, {"id": node_id, "before": before, "limit": limit})

    def node_states_after(self, node_id: str, after: int, limit: int) -> list[State[NodeRow]]:
        """The states of a node, oldest first, that began after a commit."""
        return self._nodes(sql.NODE_STATES_AFTER, {"id": node_id, "after": after, "limit": limit})

    def nodes_at(self, at: int, type_: str | None, after: str | None, limit: int) -> list[State[NodeRow]]:
        """The next nodes in the order of their ids as of a commit, of one type or of all."""
        values = {"at": at, "type": type_, "after": after or "", "limit": limit}
        return self._still_known(at, self._nodes(sql.LIST if type_ is None else sql.LIST_TYPE, values))

    def outgoing(self, node_id: str, at: int, limit: int) -> list[State[EdgeRow]]:
        """Edges that started at a node as of a commit."""
        return self._still_known(at, self._edges(sql.OUT, {"id": node_id, "at": at, "limit": limit}))

    def incoming(self, node_id: str, at: int, limit: int) -> list[State[EdgeRow]]:
        """Edges that ended at a node as of a commit."""
        return self._still_known(at, self._edges(sql.IN, {"id": node_id, "at": at, "limit": limit}))

    def edges_at(self, at: int, after: EdgeKey, limit: int) -> list[State[EdgeRow]]:
        """The next edges in the order of their keys as of a commit."""
        source, target, relation_type = after
        values = {"at": at, "source": source, "target": target, "relation_type": relation_type, "limit": limit}
        return self._still_known(at, self._edges(sql.EDGES, values))

    def _still_known(self, at: int, found: list[State[Row]]) -> list[State[Row]]:
        """What was found for a moment. Raises Gone if some of it may have been forgotten meanwhile."""
        if at < self._oldest:
            raise gone(self._oldest)
        return found

    def _nodes(self, query: str, values: dict[str, Any]) -> list[State[NodeRow]]:
        return [
            State(_node(_intact(content, checksum)), *rest) for content, checksum, *rest in self._read(query, values)
        ]

    def _edges(self, query: str, values: dict[str, Any]) -> list[State[EdgeRow]]:
        return [
            State(_edge(_intact(content, checksum)), *rest) for content, checksum, *rest in self._read(query, values)
        ]

    def _read(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()


def _take(transaction: sqlite3.Connection, change: ChangeSet) -> None:
    if not change.size:  # as of it is as of the one before
        return
    at, time = change.sequence, change.time
    gone = (*change.edges_deleted, *(row.key for row in change.edges_updated))
    transaction.executemany(sql.CLOSE_EDGE, [{**_key(key), "at": at, "time": time} for key in gone])
    ended = (*change.nodes_deleted, *(row.id for row in change.nodes_updated))
    transaction.executemany(sql.CLOSE_NODE, [{"id": node_id, "at": at, "time": time} for node_id in ended])
    nodes = (*change.nodes_created, *change.nodes_updated)
    transaction.executemany(sql.ADD_NODE, (_node_values(row, at, time) for row in nodes))
    edges = (*change.edges_created, *change.edges_updated)
    transaction.executemany(sql.ADD_EDGE, (_edge_values(row, at, time) for row in edges))
    transaction.executemany(sql.TOUCH_EDGE, [{**_key(row.key), **_stored(row)} for row in change.edges_touched])
    transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (at, time))


def _key(key: EdgeKey) -> dict[str, Any]:
    return {"source": key[0], "target": key[1], "relation_type": key[2]}


def _node_values(row: NodeRow, at: int, time: int) -> tuple[Any, ...]:
    content = _encode(row)
    return row.id, at, row.version, row.type, time, content, _checksum(content)


def _edge_values(row: EdgeRow, at: int, time: int) -> tuple[Any, ...]:
    content = _encode(row)
    return *row.key, at, row.version, time, content, _checksum(content)


def _stored(row: EdgeRow) -> dict[str, Any]:
    content = _encode(row)
    return {"row": content, "hash": _checksum(content)}


def _intact(content: bytes | None, checksum: int) -> bytes:
    if content is None or _checksum(content) != checksum:
        raise sqlite3.DatabaseError("a state does not fit its checksum")
    return content


def _checksum(content: bytes) -> int:
    # SQLite's integers are signed.
    return xxhash.xxh3_64_intdigest(content) >> 1


def gone(oldest: int) -> Gone:
    """The error for a moment before the first one that is known."""
    return Gone(f"as_of: the history of this store begins at sequence {oldest}", oldest)


def tells_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether a file is not what it was, or none of ours; its subclasses are for a full disk, a lock and the like."""
    return type(error) is sqlite3.DatabaseError


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        if connection.execute(sql.IS_FOREIGN, {"version": sql.VERSION}).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is of another kind")
        connection.executescript(sql.SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection
