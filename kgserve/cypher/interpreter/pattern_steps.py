"""Steps of pattern matching: generators that bind slots of a partial match and yield once per match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

from kgserve.cypher.interpreter.graph_view_interface import (
    MATCH_COUNT,
    ExecutionLimits,
    NodeReference,
    RelationshipKey,
    RelationshipReference,
    StatementGraphView,
)
from kgserve.cypher.interpreter.pattern_model import (
    PartialPatternMatch,
    PatternNodeSlot,
    PatternRelationshipSlot,
    StateTest,
    raise_variable_type_error,
)

MatchStep: TypeAlias = Callable[[PartialPatternMatch], Iterator[None]]
NodeSource: TypeAlias = Callable[[PartialPatternMatch], Iterable[str]]
Expander: TypeAlias = Callable[[str], Iterator[tuple[RelationshipKey, str]]]


class RelationshipTraversal:
    """Traversal of a relationship slot from one of its ends to the other."""

    def __init__(
        self,
        graph: StatementGraphView,
        limits: ExecutionLimits,
        slot: PatternRelationshipSlot,
        target: PatternNodeSlot,
        *,
        is_reverse: bool,
    ) -> None:
        """Begin at the right end if ``is_reverse``."""
        self.graph = graph
        self.limits = limits
        self.slot = slot
        self.source = slot.right if is_reverse else slot.left
        self.target = target
        self.is_reverse = is_reverse
        self.is_target_bound = False
        self.is_relationship_bound = False
        self.tests = tuple(slot.tests)
        self.accept: StateTest | None = None
        direction = slot.element.direction
        if direction == "":
            self.directions: tuple[bool, ...] = (True, False)
        else:
            self.directions = ((direction == ">") is not is_reverse,)

    def expand(self, node_id: str) -> Iterator[tuple[RelationshipKey, str]]:
        """Yield the relationships at a node, with their other nodes; a loop is yielded once."""
        relationships, types, step = self.graph.relationships, self.slot.types, self.limits.step
        if self.directions[0]:
            for key in relationships(node_id, is_outgoing=True, types=types):
                step()
                yield key, key[1]
        if not self.directions[-1]:
            is_both = len(self.directions) > 1
            for key in relationships(node_id, is_outgoing=False, types=types):
                step()
                if not is_both or key[0] != key[1]:
                    yield key, key[0]

    def follow(self, key: RelationshipKey, node_id: str) -> str | None:
        """Return the other node of a relationship that may be traversed from a node; None if it may not."""
        if self.slot.types and key[2] not in self.slot.types:
            return None
        if True in self.directions and key[0] == node_id:
            return key[1]
        return key[0] if False in self.directions and key[1] == node_id else None

    def passes(self, state: PartialPatternMatch, key: RelationshipKey) -> bool:
        """Return whether a relationship has the properties that its slot demands."""
        return all(test(state, key) for test in self.tests)

    def build_target_test(self) -> Callable[[PartialPatternMatch, str], bool] | None:
        """Return whether a node may be the other end, as a function; None if any may."""
        index, labels, node_label = self.target.index, self.target.labels, self.graph.node_label
        if self.is_target_bound:
            return lambda state, node_id: state.nodes[index] == node_id
        return None if labels is None else lambda _, node_id: node_label(node_id) in labels

    def bind_target(self, state: PartialPatternMatch, node_id: str) -> bool:
        """Bind the other end; return whether it may be this node."""
        target = self.target
        if self.is_target_bound:
            return state.nodes[target.index] == node_id
        if target.labels is not None and self.graph.node_label(node_id) not in target.labels:
            return False
        state.nodes[target.index] = node_id
        if target.is_named:
            state.row[target.name] = NodeReference(self.graph, node_id)
        return True

    def bind_trail(self, state: PartialPatternMatch, trail: Iterable[RelationshipKey]) -> None:
        """Bind a relationship of variable length to keys in the order of traversal."""
        keys = tuple(trail)
        if self.is_reverse:
            keys = keys[::-1]
        state.links[self.slot.index] = keys
        if self.slot.is_named and not self.is_relationship_bound:
            state.row[self.slot.name] = [RelationshipReference(self.graph, key) for key in keys]


def build_bound_node_step(graph: StatementGraphView, slot: PatternNodeSlot, accept: StateTest | None) -> MatchStep:
    """Build the match step for a node that the row has already; null and deleted nodes match nothing."""
    name, index, labels = slot.name, slot.index, slot.labels

    def step(state: PartialPatternMatch) -> Iterator[None]:
        value = state.row[name]
        if type(value) is not NodeReference:
            if value is None:
                return
            raise_variable_type_error(name, "a node", value)
        node_id = value.id
        if not graph.has_node(node_id) or (labels is not None and graph.node_label(node_id) not in labels):
            return
        state.nodes[index] = node_id
        if accept is None or accept(state):
            yield

    return step


def build_node_scan_step(
    graph: StatementGraphView,
    limits: ExecutionLimits,
    slot: PatternNodeSlot,
    find: NodeSource,
    accept: StateTest | None,
) -> MatchStep:
    """Build the match step that tries each of the nodes that a function finds."""
    name, index, labels, is_named = slot.name, slot.index, slot.labels, slot.is_named

    def step(state: PartialPatternMatch) -> Iterator[None]:
        for node_id in find(state):
            limits.step()
            if labels is not None and graph.node_label(node_id) not in labels:
                continue
            state.nodes[index] = node_id
            if is_named:
                state.row[name] = NodeReference(graph, node_id)
            if accept is None or accept(state):
                yield

    return step


def build_bound_relationship_ends_step(
    graph: StatementGraphView,
    limits: ExecutionLimits,
    slot: PatternNodeSlot,
    relationship: PatternRelationshipSlot,
    accept: StateTest | None,
) -> MatchStep:
    """Build the match step that binds a node to the ends of a relationship that the row has already."""
    is_left = relationship.left == slot.index
    direction = relationship.element.direction

    def find(state: PartialPatternMatch) -> Iterable[str]:
        value = state.row[relationship.name]
        if value is None:
            return ()
        if type(value) is not RelationshipReference:
            raise_variable_type_error(relationship.name, "a relationship", value)
        source, target, _ = value.key
        if not graph.has_relationship(value.key):
            return ()
        if direction == "":
            return (source,) if source == target else (source, target)
        return (source,) if is_left is (direction == ">") else (target,)

    return build_node_scan_step(graph, limits, slot, find, accept)


def build_relationship_expand_step(traversal: RelationshipTraversal) -> MatchStep:
    """Build the match step that expands a single relationship, and binds its other end."""
    if traversal.is_relationship_bound:
        return _build_generic_expansion(traversal, _build_bound_source(traversal))
    if traversal.is_target_bound and traversal.slot.types:
        return _build_generic_expansion(traversal, _build_probe(traversal))
    return _build_fast_expansion(traversal)


def _build_fast_expansion(traversal: RelationshipTraversal) -> MatchStep:
    """Match a relationship by the adjacency of its first end."""
    graph, slot, target, source = traversal.graph, traversal.slot, traversal.target, traversal.source
    index, target_index, tests, accept = slot.index, target.index, traversal.tests, traversal.accept
    name = slot.name if slot.is_named else None
    target_name = target.name if target.is_named and not traversal.is_target_bound else None
    is_allowed = traversal.build_target_test()

    expand = traversal.expand if len(traversal.directions) > 1 else _build_directed(traversal)

    def step(state: PartialPatternMatch) -> Iterator[None]:
        nodes, row, used = state.nodes, state.row, state.used
        for key, other in expand(nodes[source]):
            if (
                key in used
                or (is_allowed is not None and not is_allowed(state, other))
                or (tests and not traversal.passes(state, key))
            ):
                continue
            nodes[target_index] = other
            state.links[index] = key
            if target_name is not None:
                row[target_name] = NodeReference(graph, other)
            if name is not None:
                row[name] = RelationshipReference(graph, key)
            if accept is None or accept(state):
                used.add(key)
                yield
                used.discard(key)

    return step


def needs_only_expansion_match_count(traversal: RelationshipTraversal, needed: frozenset[str]) -> bool:
    """Return whether the last expansion needs only the number of its matches, not their values."""
    slot, target = traversal.slot, traversal.target
    is_plain = not (slot.is_variable or slot.shortest or traversal.tests or traversal.is_relationship_bound)
    if traversal.is_target_bound and slot.types:
        return False  # each relationship is looked up
    names = {slot.name} if traversal.is_target_bound else {slot.name, target.name}
    return is_plain and traversal.accept is None and needed.isdisjoint(names)


def build_expansion_count_step(traversal: RelationshipTraversal) -> MatchStep:
    """Build the match step that counts the matches of an expansion; the row gets their number unless it is 0."""
    graph, types, source, directions = traversal.graph, traversal.slot.types, traversal.source, traversal.directions
    is_allowed = traversal.build_target_test()
    limits, is_outgoing, is_both = traversal.limits, directions[0], len(directions) > 1

    def count(state: PartialPatternMatch, node_id: str) -> int:
        used = state.used
        if is_allowed is not None or is_both:
            found = traversal.expand(node_id)
            return sum(
                1 for key, other in found if key not in used and (is_allowed is None or is_allowed(state, other))
            )
        number = graph.count_relationships(node_id, is_outgoing=is_outgoing, types=types)
        limits.step(number)
        end = 0 if is_outgoing else 1
        return number - sum(1 for key in used if key[end] == node_id and (not types or key[2] in types))

    def step(state: PartialPatternMatch) -> Iterator[None]:
        number = count(state, state.nodes[source])
        if number:
            state.row[MATCH_COUNT] = number
            yield

    return step


def _build_directed(traversal: RelationshipTraversal) -> Callable[[str], Iterable[tuple[RelationshipKey, str]]]:
    """Return the expansion of a node in the one direction of a traversal, as lists."""
    relationships, types, step = traversal.graph.relationships, traversal.slot.types, traversal.limits.step
    is_outgoing = traversal.directions[0]
    other = 1 if is_outgoing else 0

    def expand(node_id: str) -> Iterable[tuple[RelationshipKey, str]]:
        found = [(key, key[other]) for key in relationships(node_id, is_outgoing=is_outgoing, types=types)]
        step(len(found))
        return found

    return expand


StateExpander: TypeAlias = Callable[[PartialPatternMatch, str], Iterator[tuple[RelationshipKey, str]]]


def _build_bound_source(traversal: RelationshipTraversal) -> StateExpander:
    name, graph = traversal.slot.name, traversal.graph

    def find(state: PartialPatternMatch, node_id: str) -> Iterator[tuple[RelationshipKey, str]]:
        value = state.row[name]
        if value is None:
            return
        if type(value) is not RelationshipReference:
            raise_variable_type_error(name, "a relationship", value)
        other = traversal.follow(value.key, node_id)
        if other is not None and graph.has_relationship(value.key):
            yield value.key, other

    return find


def _build_probe(traversal: RelationshipTraversal) -> StateExpander:
    """Look up the relationships between two nodes that are bound."""
    graph, types, target = traversal.graph, traversal.slot.types, traversal.target.index
    directions = traversal.directions

    def find(state: PartialPatternMatch, node_id: str) -> Iterator[tuple[RelationshipKey, str]]:
        other = state.nodes[target]
        for is_outgoing in directions if other != node_id else directions[:1]:
            for type_ in types:
                key = (node_id, other, type_) if is_outgoing else (other, node_id, type_)
                if graph.has_relationship(key):
                    yield key, other

    return find


def _build_generic_expansion(traversal: RelationshipTraversal, find: StateExpander) -> MatchStep:
    slot, source, accept = traversal.slot, traversal.source, traversal.accept
    is_bound = traversal.is_relationship_bound

    def step(state: PartialPatternMatch) -> Iterator[None]:
        for key, other in find(state, state.nodes[source]):
            traversal.limits.step()
            if key in state.used or not traversal.bind_target(state, other) or not traversal.passes(state, key):
                continue
            state.links[slot.index] = key
            if slot.is_named and not is_bound:
                state.row[slot.name] = RelationshipReference(traversal.graph, key)
            if accept is None or accept(state):
                state.used.add(key)
                yield
                state.used.discard(key)

    return step


def build_variable_length_expand_step(traversal: RelationshipTraversal) -> MatchStep:
    """Build the match step for a variable-length relationship: all trails within its bounds."""
    if traversal.is_relationship_bound:
        return _build_bound_sequence(traversal)
    source, accept = traversal.source, traversal.accept

    def step(state: PartialPatternMatch) -> Iterator[None]:
        for trail, node_id in _iterate_trails(traversal, state, state.nodes[source]):
            if traversal.bind_target(state, node_id):
                traversal.bind_trail(state, trail)
                if accept is None or accept(state):
                    yield

    return step


def _iterate_trails(
    traversal: RelationshipTraversal, state: PartialPatternMatch, source: str
) -> Iterator[tuple[list[RelationshipKey], str]]:
    """Yield sequences of relationships and their last nodes; they are used until the next one is asked for."""
    least, most = traversal.slot.bounds
    used, has_tests = state.used, bool(traversal.tests)
    trail: list[RelationshipKey] = []
    if least == 0:
        yield trail, source
    if most is not None and most < max(least, 1):
        return
    stack = [traversal.expand(source)]
    while stack:
        for key, other in stack[-1]:
            if key in used or (has_tests and not traversal.passes(state, key)):
                continue
            used.add(key)
            trail.append(key)
            if len(trail) >= least:
                yield trail, other
            if most is None or len(trail) < most:
                stack.append(traversal.expand(other))
                break
            used.discard(trail.pop())
        else:
            stack.pop()
            if trail:
                used.discard(trail.pop())


def _build_bound_sequence(traversal: RelationshipTraversal) -> MatchStep:
    """Match a relationship of variable length whose list of relationships the row has already."""
    name, source, accept = traversal.slot.name, traversal.source, traversal.accept
    least, most = traversal.slot.bounds

    def walk(state: PartialPatternMatch, keys: list[RelationshipKey]) -> str | None:
        current: str | None = state.nodes[source]
        for key in keys:
            is_allowed = (
                traversal.graph.has_relationship(key) and key not in state.used and traversal.passes(state, key)
            )
            current = traversal.follow(key, current) if is_allowed else None
            if current is None:
                return None
        return current

    def step(state: PartialPatternMatch) -> Iterator[None]:
        keys = _read_keys(name, state.row[name])
        if keys is None or len(keys) < least or (most is not None and len(keys) > most) or len(set(keys)) < len(keys):
            return
        if traversal.is_reverse:
            keys.reverse()
        end = walk(state, keys)
        if end is None or not traversal.bind_target(state, end):
            return
        traversal.bind_trail(state, keys)
        if accept is None or accept(state):
            state.used.update(keys)
            yield
            state.used.difference_update(keys)

    return step


def _read_keys(name: str, value: Any) -> list[RelationshipKey] | None:
    """Return the keys of a list of relationships; None if it is null or has nulls. Raises InvalidInput."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise_variable_type_error(name, "a list of relationships", value)
    keys: list[RelationshipKey] = []
    for each in cast("list[Any]", value):
        if each is None:
            return None
        if type(each) is not RelationshipReference:
            raise_variable_type_error(name, "a list of relationships", each)
        keys.append(each.key)
    return keys
