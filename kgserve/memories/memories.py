"""The file of the memory view, and what is asked of it.

A view like any other: it carries the sequence that it has seen, is brought up to date before it is asked, and is built
anew whenever it does not fit. For that reason commits do not wait for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kgserve.memories import closure, naming, selecting
from kgserve.memories import statements as sql
from kgserve.memories.entries import TOTAL, LiveMemory, epoch_and_term, length_of_epoch, worth_at
from kgserve.memories.following import EdgesOf, Follower
from kgserve.memories.lookups import Lookups
from kgserve.memories.naming import EntityPage, EntityPlace, RelationFilter, RelationPage
from kgserve.memories.selecting import MemoryPage, MemoryPlace, Order, Sort
from kgserve.model import decay
from kgserve.model.change import Access, NetChange
from kgserve.model.decay import LEAST_KEY, HalfLives, Worth, least_key
from kgserve.model.listing import Counted, MemoryFilter
from kgserve.model.names import folded
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.sqlite_files import of_some, opened, write_anew

_ROWS_AT_ONCE = 5_000
_STATEMENTS = 512
_ALL = (1 << 63) - 1

_Row = TypeVar("_Row", NodeRow, EdgeRow)


class Fading(NamedTuple):
    """A place among the memories in the order of how much they have faded, within one half-life."""

    half: int = -1
    key: int = LEAST_KEY - 1
    id: str = ""

    @classmethod
    def of(cls, memory: LiveMemory) -> Fading:
        """Where a memory is."""
        worth = Worth(memory.confidence, memory.since)
        return cls(memory.half, decay.key(worth, memory.half or None), memory.id)


class Memories(Lookups):
    """The memory view of one store. For one thread at a time.

    A file that cannot be read, or has another format, is replaced by an empty one.
    """

    def __init__(self, path: Path | None, half_lives: HalfLives) -> None:
        """Open or create the file; without a path there are no memories, and no file."""
        self.path = path
        self.half_lives = half_lives
        script = sql.SETUP + sql.SCHEMA + "".join(f"{each};" for each in sql.INDEX)
        super().__init__(opened(path, script, sql.FORMAT, cached_statements=_STATEMENTS))

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 when it has seen nothing or failed."""
        try:
            return self._run(sql.SEQUENCE).fetchone()[0]
        except sqlite3.DatabaseError:
            return -1

    def close(self) -> None:
        """Release the file, with all that was taken in; if it is damaged, what can be read of it."""
        with suppress(sqlite3.Error):
            self.commit()
        super().close()

    # Following

    def apply(self, net: NetChange, sequence: int, edges_of: EdgesOf) -> None:
        """Take in what a group of writes changed; ``edges_of`` reads rows of this commit or a later one.

        It is seen here at once, and by others once that is committed: what fails takes all since the last time back.
        """
        try:
            Follower(self._connection, self.half_lives, edges_of).follow(net)
            self._run(sql.MOVE, (sequence,))
        except BaseException:
            self._connection.rollback()
            raise

    def commit(self) -> int:
        """Have other connections see what was taken in; the sequence that it goes up to."""
        self._connection.commit()
        return self.sequence

    def write_anew(self) -> None:
        """Leave nothing in the file of what it holds no more; all that was taken in is committed."""
        write_anew(self._connection)

    def rebuild(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        accesses: Iterable[Iterable[Access]],
        sequence: int,
    ) -> None:
        """Forget everything; take the nodes that are memories or have a name, edges from them, and all accesses."""
        self.commit()
        with self._connection as transaction:
            transaction.execute("BEGIN")
            for statement in (*sql.NO_INDEX, *sql.EMPTY):
                transaction.execute(statement)
            for some in accesses:
                transaction.executemany(sql.ACCESS, [(a.id, a.count, a.last, a.confidence) for a in some])
            follower = Follower(transaction, self.half_lives, lambda _: ())
            for rows in _slices(nodes):
                follower.fill(rows)
            for rows in _slices(edges):
                follower.put_edges(rows)
            for statement in sql.INDEX:
                transaction.execute(statement)
            follower.filled()
            transaction.execute(sql.HALVE, (_text(self.half_lives),))
            transaction.execute(sql.MOVE, (sequence,))

    def halve(self, half_lives: HalfLives) -> None:
        """Have memories fade like that from now on: all keys are made anew if anything differs."""
        self.half_lives = half_lives
        wanted = _text(half_lives)
        [known] = self._run(sql.HALF_LIVES).fetchone()
        if wanted != known:
            with self._connection as transaction:
                Follower(transaction, half_lives, lambda _: ()).rekey()
                transaction.execute(sql.HALVE, (wanted,))

    # Single ones

    def live(self, ids: Iterable[str]) -> dict[str, LiveMemory]:
        """What the memories among some nodes are worth."""
        return {row[0]: LiveMemory(*row) for row in of_some(self._run, sql.LIVE_OF, [*ids])}

    def versions(self, memory_id: str, limit: int) -> list[LiveMemory]:
        """Former versions of a memory, and those that it absorbed, by when they were true."""
        return [LiveMemory(*row) for row in self._run(sql.VERSIONS, (memory_id, limit))]

    # Names and what memories are about

    def names_like(self, name: str) -> list[str]:
        """Up to three names of entities that may be meant by one that there is not, the nearest first."""
        return naming.like(self._connection, name)

    def entities_of(self, memory_id: str, now: int, limit: int) -> list[tuple[str, float]]:
        """The nodes that a memory is about, and how much: the most first."""
        return self._run(sql.ENTITIES_OF, {"id": memory_id, "now": now, "limit": limit}).fetchall()

    def entities(self, types: Sequence[str], start: str, after: EntityPlace, limit: int) -> EntityPage:
        """A page of the entities of some types, or of all, whose names start so in any case, by name."""
        return naming.entities(self._connection, types, folded(start), after, limit)

    def relations(self, wanted: RelationFilter, after: EdgeKey | None, limit: int) -> RelationPage:
        """A page of the relations between entities that are wanted. It looks at 20,000 at most."""
        return naming.relations(self._connection, wanted, after, limit)

    # What stands below what

    def beneath(
        self, memory_id: str, now: int, layer: int | None, after: str, limit: int, *, near: bool
    ) -> closure.BelowPage:
        """The next memories below one that are true now, in the order of ids; ``near``: directly below it."""
        return closure.below(self._connection, memory_id, now, layer, after, limit, near=near)

    def above(self, memory_id: str, now: int, layer: int | None = None) -> list[closure.Placed]:
        """The memories above one that are true now, the nearest first."""
        return closure.above(self._connection, memory_id, now, layer)

    def children(self, memory_id: str, now: int) -> int:
        """How many memories stand directly below one and are true now."""
        return closure.children(self._connection, memory_id, now)

    def size_below(self, memory_id: str, most: int) -> int:
        """How many memories stand below one, ``most`` or more not told apart."""
        return closure.size(self._connection, memory_id, most)

    def among_below(self, memory_id: str, ids: Iterable[str]) -> set[str]:
        """Those of some memories that stand below one, or are versions of such."""
        return closure.among(self._connection, memory_id, ids)

    def some_below(self, memory_id: str, limit: int) -> list[str]:
        """At most so many of the memories below one, and their versions."""
        return closure.some(self._connection, memory_id, limit)

    def more_general(self, memory_id: str, layer: int, limit: int) -> list[str]:
        """At most so many memories directly below one whose layer is more general than one."""
        return closure.more_general(self._connection, memory_id, layer, limit)

    # Sets

    def ids(self, wanted: MemoryFilter, limit: int) -> list[str]:
        """At most so many of the memories that are wanted, in no order."""
        return selecting.ids(self._connection, self._whole(wanted), self._halves(), limit)

    def pinned(self, now: int, limit: int) -> list[str]:
        """The newest memories in force of importance 1."""
        return [memory_id for (memory_id,) in self._run(sql.PINNED, {"now": now, "limit": limit})]

    def listed(
        self,
        wanted: MemoryFilter,
        sort: Sort,
        place: MemoryPlace,
        limit: int,
        also: Callable[[str], bool] | None = None,
    ) -> MemoryPage:
        """A page of the ids of the memories that are wanted, the greatest value first. It looks at 20,000 at most."""
        order = Order(wanted.now, sort, place)
        return selecting.page(self._connection, self._whole(wanted), self._halves(), order, limit, also)

    def count(self, wanted: MemoryFilter, most: int) -> Counted:
        """How many memories are wanted, ``most`` or more not told apart."""
        found = selecting.how_many(self._connection, self._whole(wanted), self._halves(), most)
        return Counted(found, exact=found < most)

    def _whole(self, wanted: MemoryFilter) -> MemoryFilter:
        """The same with the former versions that are true yet, if there are any: what supersedes them comes later."""
        if (
            wanted.ended
            or wanted.valid_at is not msgspec.UNSET
            or not self._run(sql.ANY_AHEAD, (wanted.now,)).fetchone()
        ):
            return wanted
        return msgspec.structs.replace(wanted, valid_at=wanted.now)

    def faded(self, below: float, now: int, after: Fading, limit: int) -> list[LiveMemory]:
        """Memories whose confidence at a moment has faded below a value: by half-life, the most faded first.

        What was set later than that moment has not, unless to 0.
        """
        found: list[LiveMemory] = []
        for half in self._halves():
            if half >= after.half and len(found) < limit:
                place = after if half == after.half else Fading(half)
                bound = least_key(below, now, half or None)
                values = {"half": half, "bound": bound, "key": place.key, "id": place.id, "limit": limit - len(found)}
                found += [LiveMemory(*row) for row in self._run(sql.FADED_BELOW, values)]
        return found

    # Counts

    def total(self) -> int:
        """Memories that have not ended."""
        return self._count_of(TOTAL, "")

    def tallies(self, kind: str, limit: int) -> list[tuple[str, int]]:
        """Counts of one kind, the most frequent first."""
        return self._run(sql.TALLIES, (kind, limit)).fetchall()

    def sum_of(self, kind: str) -> int:
        """All counts of a kind together."""
        return self._run(sql.SUM_OF, (kind,)).fetchone()[0]

    def irregular(self) -> tuple[int, int]:
        """Relations to parents that do not count: those beside a newer one of the child, those that close a circle."""
        return self._count_of(closure.SECOND_PARENTS, ""), self._count_of(closure.CYCLES, "")

    def by_name(self, kind: str) -> list[tuple[str, int]]:
        """Counts of one kind, by name."""
        return self._run(sql.BY_NAME, (kind,)).fetchall()

    def created_between(self) -> tuple[int, int] | None:
        """When the first and the last memory were created; None when there is none."""
        first = self._run(sql.FIRST_CREATED).fetchone()
        last = self._run(sql.LAST_CREATED).fetchone()
        return (first[0], last[0]) if first and last else None

    def worth(self, now: int) -> float:
        """The confidences of all memories at a moment, added up."""
        found = sum(self._worth_of(half, now) for half in self._halves())
        for half, key, confidence in self._future(now):
            epoch, term = epoch_and_term(half, key, confidence)
            found += confidence - (worth_at(epoch, term, half, now) if epoch <= _epoch(half, now) else 0.0)
        return max(found, 0.0)

    def histogram(self, now: int, buckets: int) -> list[int]:
        """How many memories have a confidence within each of so many equal parts of 0 to 1; 1 is in the last."""
        bounds = [number / buckets for number in range(1, buckets)]
        below = [0, *(self.below(bound, now) for bound in bounds), self.total()]
        return [after - before for before, after in pairwise(below)]

    def below(self, minimum: float, now: int) -> int:
        """How many memories have a confidence below a value at a moment."""
        bounds = {half: least_key(minimum, now, half or None) for half in self._halves()}
        found = sum(self._below(half, bound) for half, bound in bounds.items())
        # What was set later than now has not faded yet, though its key is that of a greater confidence.
        return found + sum(key >= bounds[half] and confidence < minimum for half, key, confidence in self._future(now))

    def _below(self, half: int, bound: int) -> int:
        """How many keys of a half-life are below one: whole epochs are counted already."""
        epoch, rest = divmod(bound, length_of_epoch(half))
        [found] = self._run(sql.EPOCHS_BELOW, (half, epoch)).fetchone()
        return found + self._run(sql.BELOW, (half, bound - rest, bound)).fetchone()[0]

    def _worth_of(self, half: int, now: int) -> float:
        last = _epoch(half, now)
        # What was last set a hundred half-lives ago comes to nothing, however much of it there is.
        parts = self._run(sql.SUMS, (half, last - 100 if half else 0, last))
        return sum(worth_at(epoch, part, half, now) for epoch, part in parts)

    def _future(self, now: int) -> Iterator[tuple[int, int, float]]:
        """Half-life, key and confidence of what was set later than now, and has not faded yet."""
        return self._run(sql.FUTURE, (now,))

    def _halves(self) -> list[int]:
        return self.half_lives.all

    def _count_of(self, kind: str, name: str) -> int:
        found = self._run(sql.COUNT, (kind, name)).fetchone()
        return found[0] if found else 0


def _epoch(half: int, now: int) -> int:
    return now // half if half else _ALL


def _text(half_lives: HalfLives) -> str:
    return msgspec.json.encode([half_lives.days, dict(sorted(half_lives.by_type.items()))]).decode()


def _slices(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    source = iter(rows)
    while some := list(islice(source, _ROWS_AT_ONCE)):
        yield some
