"""Search for shortest paths between two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from kgserve.cypher.interpreter.graph_view_interface import RelationshipKey
from kgserve.cypher.interpreter.pattern_model import PartialPatternMatch, StateTest, build_graph_path
from kgserve.cypher.interpreter.pattern_steps import RelationshipTraversal

Trail: TypeAlias = tuple[RelationshipKey, ...]
ParentLinks: TypeAlias = dict[str, list[tuple[RelationshipKey, str]]]


class ShortestPathMatchStep:
    """Match step that binds the shortest path between two bound nodes, or all shortest paths."""

    def __init__(
        self,
        forward: RelationshipTraversal,
        backward: RelationshipTraversal,
        condition: StateTest | None,
        accept: StateTest | None,
    ) -> None:
        """Search from both ends.

        ``condition`` is on the path itself: the shortest path that satisfies it is found. ``accept`` filters later.
        """
        self.forward = forward
        self.backward = backward
        self.condition = condition
        self.accept = accept
        self.slot = forward.slot

    def __call__(self, state: PartialPatternMatch) -> Iterator[None]:
        """Yield once per path that is bound."""
        for trail in self._find_trails(state):
            self._bind(state, trail)
            if self.accept is None or self.accept(state):
                yield
            if self.slot.shortest != "allshortestpaths":
                return

    def _bind(self, state: PartialPatternMatch, trail: Trail) -> None:
        slot, graph = self.slot, self.forward.graph
        self.forward.bind_trail(state, trail)
        if not slot.is_variable:
            state.links[slot.index] = trail[0]
            if slot.is_named:
                state.row[slot.name] = state.row[slot.name][0]
        if slot.path_name:
            links = trail[::-1] if self.forward.is_reverse else trail
            state.row[slot.path_name] = build_graph_path(graph, state.nodes[slot.left], links)

    def _find_trails(self, state: PartialPatternMatch) -> Iterator[Trail]:
        """Yield the shortest sequences of relationships between the ends."""
        source, target = state.nodes[self.forward.source], state.nodes[self.backward.source]
        least, most = self.slot.bounds
        if self.condition is None and least == 0 and source == target:
            yield ()
        elif self.condition is not None or least > 1 or source == target:
            yield from self._enumerate_trails(state, source, target)
        else:
            yield from self._search_from_both_ends(state, source, target, most)

    def _enumerate_trails(self, state: PartialPatternMatch, source: str, target: str) -> Iterator[Trail]:
        """Try all sequences of different relationships by length; yield those of the first length that has any."""
        least, most = self.slot.bounds
        level: list[tuple[Trail, str]] = [((), source)]
        length = 0
        while level and (most is None or length <= most):
            if length >= least:
                found = [trail for trail, end in level if end == target and self._is_satisfied(state, trail)]
                if found:
                    yield from found
                    return
            longer: list[tuple[Trail, str]] = []
            for trail, end in level:
                for key, other in self.forward.expand(end):
                    if key not in trail and self.forward.passes(state, key):
                        longer.append(((*trail, key), other))
            self.forward.limits.hold(len(longer) - len(level))
            level = longer
            length += 1

    def _is_satisfied(self, state: PartialPatternMatch, trail: Trail) -> bool:
        if self.condition is None:
            return True
        self._bind(state, trail)
        return self.condition(state)

    def _search_from_both_ends(
        self, state: PartialPatternMatch, source: str, target: str, most: int | None
    ) -> Iterator[Trail]:
        """Search breadth-first, level by level from the end with fewer open nodes, until the levels meet."""
        behind: ParentLinks = {source: []}
        ahead: ParentLinks = {target: []}
        ends = [behind, ahead]
        levels = [[source], [target]]
        length = 0
        while levels[0] and levels[1] and (most is None or length < most):
            side = 0 if len(levels[0]) <= len(levels[1]) else 1
            levels[side] = self._expand_level(state, side, levels[side], ends[side])
            length += 1
            opposite = set(levels[1 - side])
            meeting = [node_id for node_id in levels[side] if node_id in opposite]
            for node_id in meeting:
                for first in _walk_back(behind, node_id, source):
                    for second in _walk_back(ahead, node_id, target):
                        yield (*first, *second[::-1])
            if meeting:
                return

    def _expand_level(self, state: PartialPatternMatch, side: int, level: list[str], parents: ParentLinks) -> list[str]:
        """Return the nodes one step further, and add their links to ``parents``."""
        traversal = self.backward if side else self.forward
        found: ParentLinks = {}
        for node_id in level:
            for key, other in traversal.expand(node_id):
                if other not in parents and traversal.passes(state, key):
                    found.setdefault(other, []).append((key, node_id))
        traversal.limits.hold(len(found))
        parents.update(found)
        return list(found)


def _walk_back(parents: ParentLinks, node_id: str, start: str) -> Iterator[Trail]:
    """Yield all shortest ways from the start of a breadth-first search to a node."""
    stack: list[tuple[str, Trail]] = [(node_id, ())]
    while stack:
        current, trail = stack.pop()
        if current == start:
            yield trail
            continue
        stack.extend((previous, (key, *trail)) for key, previous in reversed(parents[current]))
