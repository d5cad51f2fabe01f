"""Memory hierarchy: the parent of each memory, and its transitive closure up to 100 levels.

Only memories in force count. The newest of several parent relations of a child counts; in a cycle, the newest relation
is ignored. So the result depends on the rows only, not on their order of arrival.
"""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kgserve.platform.sqlite_files import select_rows_by_in_list
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION, MAX_HIERARCHY_DEPTH, is_effective_memory_parent_edge
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, edge_created_at

TALLY_SECOND_PARENT, TALLY_CYCLE = "second_parent", "cycle"
_MIN_MOVED_FOR_REBUILD = 1_000
"""Minimum number of memories moved at once for a rebuild, if they are also more than a fifth of all."""
_MAX_MOVED_PAIRS = 100_000
"""Maximum number of closure pairs that a move changes; beyond it, a rebuild is cheaper if few other pairs exist."""

# "upward" has every candidate relation, also those of memories not in force. "parent" has the relation of each child
# that counts, with the number of others and whether it closes a cycle. "closure" is keyed by descendant id, the order
# in which pages list descendants.
CLOSURE_SCHEMA = """
CREATE TABLE IF NOT EXISTS upward (
    child INTEGER, parent INTEGER, created INTEGER NOT NULL, PRIMARY KEY (child, parent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parent (
    child INTEGER PRIMARY KEY, id TEXT NOT NULL, parent INTEGER NOT NULL, created INTEGER NOT NULL,
    others INTEGER NOT NULL, closing INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS closure (
    ancestor INTEGER, id TEXT, descendant INTEGER NOT NULL, depth INTEGER NOT NULL, PRIMARY KEY (ancestor, id)
) WITHOUT ROWID;
"""
CLOSURE_INDEXES = {"upward_parent": "upward (parent, child)", "parent_children": "parent (parent, id, closing)"}
CLOSURE_TABLES = ("upward", "parent", "closure")

_SELECT_MEMORY_NUMBER = "(SELECT number FROM memory WHERE id = ?)"
_UPSERT_UPWARD = """
INSERT INTO upward SELECT c.number, p.number, ? FROM memory AS c, memory AS p WHERE c.id = ? AND p.id = ?
ON CONFLICT (child, parent) DO UPDATE SET created = excluded.created
"""
_DELETE_UPWARD = f"DELETE FROM upward WHERE child = {_SELECT_MEMORY_NUMBER} AND parent = {_SELECT_MEMORY_NUMBER}"
_SELECT_UPWARD_CHILDREN = "SELECT child FROM upward WHERE parent = ?"
_DELETE_UPWARD_OF_MEMORY = "DELETE FROM upward WHERE child = :number OR parent = :number"
_SELECT_MEMORY_NUMBERS = "SELECT number FROM memory WHERE id IN"
_COUNT_PARENTS = "SELECT count(*) FROM (SELECT 1 FROM parent LIMIT ?)"
_SELECT_LIVE_PARENTS = """
SELECT c.id, p.number, e.created FROM upward AS e CROSS JOIN memory AS p ON p.number = e.parent
CROSS JOIN memory AS c ON c.number = e.child
WHERE e.child = ? AND p.active AND c.active ORDER BY e.created DESC, p.id DESC
"""
_SELECT_ALL_LIVE_PARENTS = """
SELECT e.child, c.id, e.parent, e.created FROM upward AS e CROSS JOIN memory AS p ON p.number = e.parent
CROSS JOIN memory AS c ON c.number = e.child
WHERE p.active AND c.active ORDER BY e.child, e.created DESC, p.id DESC
"""
_SELECT_PARENT = "SELECT id, parent, created, others, closing FROM parent WHERE child = ?"
_UPSERT_PARENT = "INSERT OR REPLACE INTO parent VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_PARENT = "DELETE FROM parent WHERE child = ?"
_SELECT_ANCESTORS = """
WITH RECURSIVE above (number, depth) AS (
    SELECT :number, 0 UNION ALL
    SELECT parent.parent, above.depth + 1 FROM above JOIN parent ON parent.child = above.number
    WHERE NOT parent.closing AND above.depth < :most
)
SELECT number FROM above
"""
_COUNT_DESCENDANTS = "SELECT count(*) FROM (SELECT 1 FROM closure WHERE ancestor = ? LIMIT ?)"
_INSERT_CLOSURE_PAIR = "INSERT INTO closure VALUES (?, ?, ?, ?)"
_INSERT_CLOSURE_PAIRS = """
INSERT INTO closure SELECT :ancestor, id, descendant, depth + :depth FROM closure
WHERE ancestor = :child AND depth + :depth <= :most
"""
_DELETE_CLOSURE_PAIR = "DELETE FROM closure WHERE ancestor = ? AND id = ?"
_DELETE_CLOSURE_PAIRS = (
    "DELETE FROM closure WHERE ancestor = :ancestor AND id IN (SELECT id FROM closure WHERE ancestor = :child)"
)
_UPSERT_HIERARCHY_TALLY = (
    "INSERT INTO tally VALUES (?, '', ?) ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count"
)
_DELETE_EMPTY_HIERARCHY_TALLY = "DELETE FROM tally WHERE kind = ? AND name = '' AND count <= 0"
_NO_DEPTH_LIMIT = 1 << 60


class _ParentEdge(NamedTuple):
    """Edge from a memory to its parent: own id, parent, time of the relation, number of other parents."""

    id: str
    parent: int
    created: int
    others: int
    closing: bool = False


class MemoryHierarchyWriter:
    """Writer of the hierarchy within one transaction; `apply_pending_moves` applies the collected changes."""

    def __init__(self, transaction: sqlite3.Connection) -> None:
        self._run = transaction.execute
        self._run_many = transaction.executemany
        self._children: set[str] = set()
        self._changed: set[str] = set()
        self._moved: set[int] = set()
        self._needs_rebuild = False
        self._counts: Counter[str] = Counter()

    def put(self, edges: Iterable[EdgeRow]) -> None:
        """Add or change relations; those that are not to a parent are ignored."""
        for edge in edges:
            if is_effective_memory_parent_edge(edge):
                self._run(_UPSERT_UPWARD, (edge_created_at(edge), edge.source, edge.target))
                self._children.add(edge.source)
            elif edge.relation_type == CHILD_OF_RELATION:
                self._drop(edge.key)

    def drop(self, keys: Iterable[EdgeKey]) -> None:
        """Remove relations."""
        for key in keys:
            if key[2] == CHILD_OF_RELATION:
                self._drop(key)

    def record_activation_change(self, node_id: str) -> None:
        """Record that a memory has become active or inactive."""
        self._changed.add(node_id)

    def forget(self, number: int) -> None:
        """Remove a memory; must be called before its row is deleted."""
        children = [child for (child,) in self._run(_SELECT_UPWARD_CHILDREN, (number,))]
        self._run(_DELETE_UPWARD_OF_MEMORY, {"number": number})
        self._needs_rebuild |= self._is_rebuild_cheaper(len(children))
        if self._needs_rebuild:
            return
        for child in (*children, number):
            if (step := self._step(child)) is not None and number in (child, step.parent):
                self._move(child, None)
        self._moved.update(children)
        self._moved.discard(number)

    def apply_pending_moves(self) -> None:
        """Update parents and closure pairs."""
        moved = self._moved | self._numbers(self._children)
        for number in self._numbers(self._changed):
            moved |= {number, *(child for (child,) in self._run(_SELECT_UPWARD_CHILDREN, (number,)))}
        self._children, self._changed, self._moved = set(), set(), set()
        if self._needs_rebuild or self._is_rebuild_cheaper(len(moved)):
            self.rebuild()
        elif moved:
            self._apply_moves(moved)
        self._write_tallies()

    def rebuild(self) -> None:
        """Rebuild parents and closure pairs from the relations."""
        self._needs_rebuild = False
        self._run("DELETE FROM parent")
        self._run("DELETE FROM closure")
        self._run("DELETE FROM tally WHERE kind IN (?, ?)", (TALLY_SECOND_PARENT, TALLY_CYCLE))
        self._counts.clear()
        steps = _mark_cycles(self._choose_all_parents())
        self._run_many(_UPSERT_PARENT, ((child, *step) for child, step in steps.items()))
        self._run_many(_INSERT_CLOSURE_PAIR, _pairs(steps))
        for step in steps.values():
            self._count(step, 1)
        self._write_tallies()

    def _drop(self, key: EdgeKey) -> None:
        source, target, _ = key
        if self._run(_DELETE_UPWARD, (source, target)).rowcount > 0:
            self._children.add(source)

    def _numbers(self, ids: set[str]) -> set[int]:
        return {number for (number,) in select_rows_by_in_list(self._run, _SELECT_MEMORY_NUMBERS, [*ids])}

    def _is_rebuild_cheaper(self, moved: int) -> bool:
        """Return whether so large a share of all memories is moved that a rebuild is cheaper."""
        if moved < _MIN_MOVED_FOR_REBUILD:
            return False
        most = 5 * moved
        return self._run(_COUNT_PARENTS, (most,)).fetchone()[0] < most

    def _apply_moves(self, moved: set[int]) -> None:
        wanted = {child: self._choose_parent(child) for child in moved}
        places = {child: (self._step(child), step) for child, step in wanted.items()}
        # Detach all before attaching any, so that memories that swap places form no temporary cycle.
        changed = {child: new for child, (old, new) in places.items() if _position(old) != _position(new)}
        if self._exceeds_pair_limit(changed):
            self.rebuild()
            return
        for child in changed:
            self._move(child, None)
        for child, (old, new) in places.items():
            if child in changed:
                if new is not None:
                    self._move(child, new)
            elif old is not None and new is not None and old.others != new.others:
                self._put(child, old, new._replace(closing=old.closing))

    def _exceeds_pair_limit(self, changed: Iterable[int]) -> bool:
        """Return whether more pairs would change than a rebuild would write."""
        pairs = 0
        for child in changed:
            levels = len(self._above(child)) + 1
            pairs += levels * (1 + self._run(_COUNT_DESCENDANTS, (child, _MAX_MOVED_PAIRS)).fetchone()[0])
            if pairs > _MAX_MOVED_PAIRS:
                [all_] = self._run("SELECT count(*) FROM (SELECT 1 FROM closure LIMIT ?)", (2 * pairs,)).fetchone()
                return all_ < 2 * pairs
        return False

    def _choose_parent(self, child: int) -> _ParentEdge | None:
        found = self._run(_SELECT_LIVE_PARENTS, (child,)).fetchall()
        return _ParentEdge(*found[0], others=len(found) - 1) if found else None

    def _choose_all_parents(self) -> dict[int, _ParentEdge]:
        steps: dict[int, _ParentEdge] = {}
        for child, *rest in self._run(_SELECT_ALL_LIVE_PARENTS):
            known = steps.get(child)
            steps[child] = _ParentEdge(*rest, others=0) if known is None else known._replace(others=known.others + 1)
        return steps

    def _move(self, child: int, new: _ParentEdge | None) -> None:
        """Move a memory below another parent, or to the top."""
        old = self._step(child)
        top = None if old is None or old.closing else self._above(child, _NO_DEPTH_LIMIT)[-1]
        self._put(child, old, None)
        if old is not None and not old.closing:
            self._unlink(child, old)
        if new is not None:
            self._attach(child, new)
        elif top is not None and (closing_step := self._step(top)) is not None and closing_step.closing:
            # The cycle is broken elsewhere, so the relation that closed it may count.
            self._put(top, closing_step, None)
            self._attach(top, closing_step._replace(closing=False))

    def _attach(self, child: int, step: _ParentEdge) -> None:
        """Let a relation count, unless it is the newest of a cycle; otherwise disable the newest one."""
        above = self._above(step.parent, _NO_DEPTH_LIMIT)
        if child not in above:
            self._link(child, step, above)
            return
        circle = above[: above.index(child)]
        last = max(circle, key=self._rank, default=child)
        if last == child or (step.created, step.id) > self._rank(last):
            self._put(child, None, step._replace(closing=True))
            return
        closing = self._require_step(last)
        self._unlink(last, closing)
        self._put(last, closing, closing._replace(closing=True))
        self._link(child, step, self._above(step.parent))

    def _link(self, child: int, step: _ParentEdge, above: Sequence[int]) -> None:
        self._put(child, None, step)
        for depth, ancestor in enumerate(above[:MAX_HIERARCHY_DEPTH], 1):
            self._run(_INSERT_CLOSURE_PAIR, (ancestor, step.id, child, depth))
            self._run(
                _INSERT_CLOSURE_PAIRS,
                {"ancestor": ancestor, "child": child, "depth": depth, "most": MAX_HIERARCHY_DEPTH},
            )

    def _unlink(self, child: int, step: _ParentEdge) -> None:
        for ancestor in self._above(step.parent):
            self._run(_DELETE_CLOSURE_PAIRS, {"ancestor": ancestor, "child": child})
            self._run(_DELETE_CLOSURE_PAIR, (ancestor, step.id))

    def _put(self, child: int, old: _ParentEdge | None, new: _ParentEdge | None) -> None:
        """Store a memory's parent relation, and update the tallies."""
        if new is None:
            self._run(_DELETE_PARENT, (child,))
        else:
            self._run(_UPSERT_PARENT, (child, *new))
            self._count(new, 1)
        if old is not None:
            self._count(old, -1)

    def _count(self, step: _ParentEdge, by: int) -> None:
        self._counts[TALLY_SECOND_PARENT] += by * step.others
        self._counts[TALLY_CYCLE] += by * step.closing

    def _write_tallies(self) -> None:
        counts = [(kind, count) for kind, count in self._counts.items() if count]
        self._counts.clear()
        self._run_many(_UPSERT_HIERARCHY_TALLY, counts)
        self._run_many(_DELETE_EMPTY_HIERARCHY_TALLY, [(kind,) for kind, count in counts if count < 0])

    def _above(self, number: int, levels: int = MAX_HIERARCHY_DEPTH - 1) -> list[int]:
        """Return a memory and its ancestors, nearest first."""
        return [each for (each,) in self._run(_SELECT_ANCESTORS, {"number": number, "most": levels})]

    def _rank(self, child: int) -> tuple[int, str]:
        step = self._require_step(child)
        return step.created, step.id

    def _require_step(self, child: int) -> _ParentEdge:
        step = self._step(child)
        if step is None:
            raise sqlite3.DatabaseError(f"memory {child} is on a path to the root but has no parent entry")
        return step

    def _step(self, child: int) -> _ParentEdge | None:
        found = self._run(_SELECT_PARENT, (child,)).fetchone()
        return found and _ParentEdge(*found[:4], closing=bool(found[4]))


def _position(step: _ParentEdge | None) -> tuple[int, int] | None:
    return step and (step.parent, step.created)


def _mark_cycles(steps: dict[int, _ParentEdge]) -> dict[int, _ParentEdge]:
    """Mark the newest relation of each cycle as closing it. Return the changed mapping."""
    seen: dict[int, int] = {}
    for start in steps:
        at = start
        while at in steps and at not in seen:
            seen[at] = start
            at = steps[at].parent
        if at in steps and seen[at] == start:
            circle = [at]
            while (up := steps[circle[-1]].parent) != at:
                circle.append(up)
            last = max(circle, key=lambda number: (steps[number].created, steps[number].id))
            steps[last] = steps[last]._replace(closing=True)
    return steps


def _pairs(steps: dict[int, _ParentEdge]) -> Iterator[tuple[int, str, int, int]]:
    for child, step in steps.items():
        at: _ParentEdge | None = step
        depth = 0
        while at is not None and not at.closing and depth < MAX_HIERARCHY_DEPTH:
            depth += 1
            yield at.parent, step.id, child, depth
            at = steps.get(at.parent)


# Queries


class MemoryAtDepth(NamedTuple):
    """Memory, and its distance in levels."""

    id: str
    depth: int


class DescendantPage(NamedTuple):
    """Page of descendants, and the id after which the next page begins; None on the last page."""

    found: list[MemoryAtDepth]
    next: str | None


MAX_SCANNED_DESCENDANTS = 20_000
"""Maximum number of descendants that a page examines before it ends."""
IS_IN_FORCE_NOW = "(m.start IS NULL OR m.start <= :now) AND (m.stop IS NULL OR m.stop > :now)"
_IS_IN_FORCE_IN_LAYER = f"{IS_IN_FORCE_NOW} AND (:layer IS NULL OR m.layer = :layer)"
_MEMORY_NUMBER_OF_ID = "(SELECT number FROM memory WHERE id = :id)"
_MEMORY_NUMBER_UNDER = "(SELECT number FROM memory WHERE id = :under)"
_SELECT_DESCENDANTS = f"""
SELECT c.id, c.depth, {_IS_IN_FORCE_IN_LAYER} FROM closure AS c CROSS JOIN memory AS m ON m.number = c.descendant
WHERE c.ancestor = {_MEMORY_NUMBER_OF_ID} AND c.id > :after ORDER BY c.id LIMIT :most
"""
_SELECT_CHILDREN = f"""
SELECT p.id, 1, {_IS_IN_FORCE_IN_LAYER} FROM parent AS p CROSS JOIN memory AS m ON m.number = p.child
WHERE p.parent = {_MEMORY_NUMBER_OF_ID} AND NOT p.closing AND p.id > :after ORDER BY p.id LIMIT :most
"""
_SELECT_PATH_UP = f"""
WITH RECURSIVE above (number, depth) AS (
    SELECT number, 0 FROM memory WHERE id = :id UNION ALL
    SELECT parent.parent, above.depth + 1 FROM above JOIN parent ON parent.child = above.number
    WHERE NOT parent.closing AND above.depth < :most
)
SELECT m.id, above.depth, {_IS_IN_FORCE_IN_LAYER} FROM above JOIN memory AS m USING (number)
WHERE above.depth > 0 ORDER BY above.depth
"""
_COUNT_DESCENDANTS_UP_TO = (
    f"SELECT count(*) FROM (SELECT 1 FROM closure WHERE ancestor = {_MEMORY_NUMBER_OF_ID} LIMIT :most)"
)
_COUNT_CHILDREN_UP_TO = f"""
SELECT count(*) FROM parent AS p CROSS JOIN memory AS m ON m.number = p.child
WHERE p.parent = {_MEMORY_NUMBER_OF_ID} AND NOT p.closing AND {IS_IN_FORCE_NOW}
"""
_SELECT_CHILDREN_BELOW_LAYER = f"""
SELECT p.id FROM parent AS p CROSS JOIN memory AS m ON m.number = p.child
WHERE p.parent = {_MEMORY_NUMBER_OF_ID} AND NOT p.closing AND m.layer < :layer LIMIT :most
"""
IS_DESCENDANT = f"EXISTS (SELECT 1 FROM closure WHERE ancestor = {_MEMORY_NUMBER_UNDER} AND id IN (m.id, m.belongs_to))"
"""Condition that a memory ``m``, or the memory of which it is a version, is below that with the id ``:under``."""
_SELECT_BELOW_AMONG = f"SELECT m.id FROM memory AS m WHERE {IS_DESCENDANT.replace(':under', '?')} AND m.id IN"
IS_ORPHAN = """(m.layer IS NULL OR m.layer > 1)
AND NOT EXISTS (SELECT 1 FROM parent WHERE child = m.number AND NOT closing)"""
"""Condition that a memory ``m`` is neither domain nor concept and has no parent."""
_FROM_DESCENDANTS = f"""
FROM closure AS u CROSS JOIN memory AS m ON m.number = u.descendant WHERE u.ancestor = {_MEMORY_NUMBER_UNDER} AND"""
_FROM_DESCENDANTS_WITH_VERSIONS = f"""FROM (
    SELECT descendant AS number FROM closure WHERE ancestor = {_MEMORY_NUMBER_UNDER} UNION ALL
    SELECT v.number FROM closure AS c CROSS JOIN memory AS v ON v.belongs_to = c.id AND v.belongs_to != ''
    WHERE c.ancestor = {_MEMORY_NUMBER_UNDER}
) AS u CROSS JOIN memory AS m ON m.number = u.number WHERE"""
_SELECT_HAS_VERSIONS = "SELECT EXISTS (SELECT 1 FROM memory WHERE belongs_to != '')"


def build_descendants_from_clause(reader: sqlite3.Connection) -> str:
    """Return the FROM clause of a query over the memories ``m`` for which `IS_DESCENDANT` holds."""
    return _FROM_DESCENDANTS_WITH_VERSIONS if reader.execute(_SELECT_HAS_VERSIONS).fetchone()[0] else _FROM_DESCENDANTS


def count_memory_descendants(reader: sqlite3.Connection, memory_id: str, most: int) -> int:
    """Return the number of descendants of a memory, at most ``most``."""
    return reader.execute(_COUNT_DESCENDANTS_UP_TO, {"id": memory_id, "most": most}).fetchone()[0]


class MemoryHierarchyQueries:
    """Queries on the memory hierarchy through a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._run = connection.execute

    def descendants(
        self, memory_id: str, now: int, layer: int | None, after: str, limit: int, *, near: bool
    ) -> DescendantPage:
        """Return the next descendants valid at a moment, in the order of ids; ``near`` restricts them to children."""
        values = {"id": memory_id, "now": now, "layer": layer, "after": after, "most": MAX_SCANNED_DESCENDANTS + 1}
        found: list[MemoryAtDepth] = []
        last = after
        for number, (node_id, depth, fits) in enumerate(
            self._run(_SELECT_CHILDREN if near else _SELECT_DESCENDANTS, values), 1
        ):
            if number > MAX_SCANNED_DESCENDANTS or (fits and len(found) == limit):
                return DescendantPage(found, last)
            if fits:
                found.append(MemoryAtDepth(node_id, depth))
            last = node_id
        return DescendantPage(found, None)

    def ancestors_of(self, memory_id: str, now: int, layer: int | None = None) -> list[MemoryAtDepth]:
        """Return the ancestors valid at a moment, nearest first."""
        values = {"id": memory_id, "now": now, "layer": layer, "most": MAX_HIERARCHY_DEPTH}
        return [MemoryAtDepth(node_id, depth) for node_id, depth, fits in self._run(_SELECT_PATH_UP, values) if fits]

    def count_children(self, memory_id: str, now: int) -> int:
        """Return the number of children of a memory that are valid at a moment."""
        return self._run(_COUNT_CHILDREN_UP_TO, {"id": memory_id, "now": now}).fetchone()[0]

    def count_descendants(self, memory_id: str, most: int) -> int:
        """Return the number of descendants of a memory, at most ``most``."""
        return count_memory_descendants(self._connection, memory_id, most)

    def filter_descendants(self, memory_id: str, ids: Iterable[str]) -> set[str]:
        """Return those of some memories that are descendants of a memory, or versions of descendants."""
        found = select_rows_by_in_list(self._run, _SELECT_BELOW_AMONG, [*ids], before=(memory_id,))
        return {node_id for (node_id,) in found}

    def sample_descendants(self, memory_id: str, limit: int) -> list[str]:
        """Return up to ``limit`` descendants of a memory, and their versions."""
        query = f"SELECT m.id {build_descendants_from_clause(self._connection)} 1 LIMIT :limit"
        return [node_id for (node_id,) in self._run(query, {"under": memory_id, "limit": limit})]

    def more_general_children(self, memory_id: str, layer: int, limit: int) -> list[str]:
        """Return up to ``limit`` children of a memory whose layer is more general than ``layer``."""
        values = {"id": memory_id, "layer": layer, "most": limit}
        return [node_id for (node_id,) in self._run(_SELECT_CHILDREN_BELOW_LAYER, values)]
