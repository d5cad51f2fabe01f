"""Search for shortest paths between two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from kgserve.cypher.interpreter.graph_view import RelationshipKey
from kgserve.cypher.interpreter.pattern_model import MatchState, StateTest, build_path
from kgserve.cypher.interpreter.pattern_steps import MatchStep, RelationshipTraversal

Trail: TypeAlias = tuple[RelationshipKey, ...]
Parents: TypeAlias = dict[str, list[tuple[RelationshipKey, str]]]


def build_shortest_search(
    traversal: RelationshipTraversal, condition: StateTest | None, accept: StateTest | None
) -> MatchStep:
    """Match the shortest path between two nodes that are bound, or all of them.

    ``condition`` is on the path itself: the shortest path that satisfies it is found. ``accept`` filters afterwards.
    """
    slot, graph = traversal.slot, traversal.graph
    is_all = slot.shortest == "allshortestpaths"

    def bind(state: MatchState, trail: Trail) -> None:
        traversal.bind_trail(state, trail)
        if not slot.is_variable:
            _bind_single(traversal, state, trail[0])
        if slot.path_name:
            links = trail[::-1] if traversal.is_reverse else trail
            state.row[slot.path_name] = build_path(graph, state.nodes[slot.left], links)

    def is_satisfied(state: MatchState, trail: Trail) -> bool:
        bind(state, trail)
        return condition is None or condition(state)

    def step(state: MatchState) -> Iterator[None]:
        for trail in _find_trails(traversal, state, is_satisfied if condition is not None else None):
            bind(state, trail)
            if accept is None or accept(state):
                yield
            if not is_all:
                return

    return step


def _bind_single(traversal: RelationshipTraversal, state: MatchState, key: RelationshipKey) -> None:
    state.links[traversal.slot.index] = key
    if traversal.slot.is_named:
        state.row[traversal.slot.name] = state.row[traversal.slot.name][0]


def _find_trails(traversal: RelationshipTraversal, state: MatchState, is_satisfied: object) -> Iterator[Trail]:
    """Yield the shortest sequences of relationships between the ends of a slot."""
    source, target = state.nodes[traversal.source], state.nodes[traversal.target.index]
    least, most = traversal.slot.bounds
    if is_satisfied is None and least == 0 and source == target:
        yield ()
    elif callable(is_satisfied) or least > 1 or source == target:
        yield from _enumerate_trails(traversal, state, is_satisfied)
    else:
        yield from _search_breadth_first(traversal, state, source, target, most)


def _enumerate_trails(traversal: RelationshipTraversal, state: MatchState, is_satisfied: object) -> Iterator[Trail]:
    """Try all sequences of different relationships by length; yield those of the first length that has any."""
    source, target = state.nodes[traversal.source], state.nodes[traversal.target.index]
    least, most = traversal.slot.bounds
    level: list[tuple[Trail, str]] = [((), source)]
    length = 0
    while level and (most is None or length <= most):
        if length >= least:
            found = [
                trail
                for trail, end in level
                if end == target and (not callable(is_satisfied) or is_satisfied(state, trail))
            ]
            if found:
                yield from found
                return
        longer: list[tuple[Trail, str]] = []
        for trail, end in level:
            for key, other in traversal.expand(end):
                if key not in trail and traversal.passes(state, key):
                    longer.append(((*trail, key), other))
        traversal.limits.hold(len(longer))
        level = longer
        length += 1


def _search_breadth_first(
    traversal: RelationshipTraversal, state: MatchState, source: str, target: str, most: int | None
) -> Iterator[Trail]:
    parents: Parents = {source: []}
    level = [source]
    length = 0
    while level and target not in parents and (most is None or length < most):
        found: Parents = {}
        for node_id in level:
            for key, other in traversal.expand(node_id):
                if other not in parents and traversal.passes(state, key):
                    found.setdefault(other, []).append((key, node_id))
        traversal.limits.hold(len(found))
        parents.update(found)
        level = list(found)
        length += 1
    if target in parents:
        yield from _walk_back(parents, target, source)


def _walk_back(parents: Parents, target: str, source: str) -> Iterator[Trail]:
    """Yield all ways from the source to the target of a breadth-first search."""
    stack: list[tuple[str, Trail]] = [(target, ())]
    while stack:
        node_id, trail = stack.pop()
        if node_id == source:
            yield trail
            continue
        stack.extend((previous, (key, *trail)) for key, previous in reversed(parents[node_id]))
