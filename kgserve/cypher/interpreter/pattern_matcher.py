"""Matching of patterns: plans the order of steps by cost, and runs them with backtracking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    CompiledExpression,
    Row,
    StatementGraphView,
    WritableGraphView,
)
from kgserve.cypher.interpreter.opencypher_syntax_tree import PathPatternElement, QueryExpression
from kgserve.cypher.interpreter.pattern_model import (
    GraphPatternModel,
    NodePropertyEquality,
    PartialPatternMatch,
    PartialPatternMatchCondition,
    PatternNodeSlot,
    PatternPathSlot,
    PatternRelationshipSlot,
    StateTest,
    build_graph_path,
)
from kgserve.cypher.interpreter.pattern_step_descriptions import describe_pattern_start, describe_relationship_expansion
from kgserve.cypher.interpreter.pattern_steps import (
    MatchStep,
    NodeSource,
    RelationshipTraversal,
    build_bound_node_step,
    build_bound_relationship_ends_step,
    build_expansion_count_step,
    build_node_scan_step,
    build_relationship_expand_step,
    build_variable_length_expand_step,
    needs_only_expansion_match_count,
)
from kgserve.cypher.interpreter.shortest_paths import ShortestPathMatchStep
from kgserve.cypher.interpreter.temporary_property_indexes import NodeExpressionIndex, TemporaryPropertyIndexes
from kgserve.cypher.interpreter.value_comparison import value_equivalence_key

_LOOKUP_FACTOR = 0.05
"""Cost of finding a node by a property, relative to a scan of its label."""
_LAST_RANK = 9
"""Rank of a shortest path with conditions that need other parts of the pattern."""
_INDEXED_TYPES = frozenset({str, int, float, bool})


class GraphPatternCompiler:
    """Compiles graph patterns to functions that extend a row by all of their matches."""

    def __init__(self, environment: EvaluationEnvironment, compiler: ExpressionCompiler) -> None:
        self.environment = environment
        self.compiler = compiler
        graph = environment.graph
        is_static = not isinstance(graph, WritableGraphView)
        self.indexes = TemporaryPropertyIndexes(graph, environment.limits.hold) if is_static else None

    def compile_path(self, path: PathPatternElement, where: QueryExpression | None) -> Callable[[Row], Iterator[Row]]:
        """Compile one path with a condition. Raises InvalidInput."""
        return self.compile_pattern((path,), where)

    def compile_pattern(
        self, paths: tuple[PathPatternElement, ...], where: QueryExpression | None, needed: frozenset[str] | None = None
    ) -> Callable[[Row], Iterator[Row]]:
        """Compile the paths of one clause, in which no relationship matches twice. Raises InvalidInput.

        Variables that a row has are bound; null for one of them matches nothing. If only the ``needed`` variables and
        the number of matches count, a row may stand for `MATCH_COUNT` of them, and changes when the next one is asked
        for.
        """
        model = GraphPatternModel(self.environment.graph, self.compiler, paths, where)
        names = sorted(model.names)
        plans: dict[tuple[bool, ...], Callable[[Row], Iterator[Row]]] = {}

        def match(row: Row) -> Iterator[Row]:
            signature = tuple(name in row for name in names)
            run = plans.get(signature)
            if run is None:
                bound = frozenset(name for name in names if name in row)
                run = plans[signature] = PatternMatchPlanner(self, model, bound, needed).plan()
            return run(row)

        return match

    def describe_pattern(
        self, paths: tuple[PathPatternElement, ...], where: QueryExpression | None, bound: frozenset[str]
    ) -> list[str]:
        """Return the steps that match paths if some variables are bound before. Raises InvalidInput."""
        model = GraphPatternModel(self.environment.graph, self.compiler, paths, where)
        planner = PatternMatchPlanner(self, model, bound & model.names)
        planner.plan()
        return planner.describe()


class PatternStartChoice(NamedTuple):
    """Node at which the plan of a pattern starts, and how it is found."""

    slot: PatternNodeSlot
    lookups: list[NodePropertyEquality]
    is_given: bool
    relationship: str


class PatternExpansionChoice(NamedTuple):
    """Relationship that the plan of a pattern expands next; ``is_closed`` if both of its ends are bound."""

    slot: PatternRelationshipSlot
    is_reverse: bool
    is_closed: bool


class PatternMatchPlanner:
    """Plans the steps of a pattern, of which some variables are bound already."""

    def __init__(
        self,
        matcher: GraphPatternCompiler,
        model: GraphPatternModel,
        bound: frozenset[str],
        needed: frozenset[str] | None = None,
    ) -> None:
        self.graph: StatementGraphView = matcher.environment.graph
        self.limits = matcher.environment.limits
        self.indexes = matcher.indexes
        self.model = model
        self.given = bound
        self.bound = set[str]()
        self.placed: set[int] = set()
        self.open_relationships = list(model.relationships)
        self.open_checks = list(model.checks)
        self.open_paths = list(model.paths)
        self.steps: list[MatchStep] = []
        self.needed = needed
        self.last_traversal: RelationshipTraversal | None = None
        self.choices: list[PatternStartChoice | PatternExpansionChoice] = []

    def describe(self) -> list[str]:
        """Return the steps of the plan as texts."""
        return [
            describe_pattern_start(
                self.graph, each.slot, each.lookups, is_given=each.is_given, relationship=each.relationship
            )
            if isinstance(each, PatternStartChoice)
            else describe_relationship_expansion(
                self.model, each.slot, is_reverse=each.is_reverse, is_closed=each.is_closed
            )
            for each in self.choices
        ]

    def plan(self) -> Callable[[Row], Iterator[Row]]:
        """Return the function that matches the pattern for a row."""
        first = self._take_accept()
        while len(self.placed) < len(self.model.nodes) or self.open_relationships:
            start = self._choose_start()
            expansion = self._choose_expansion()
            self.last_traversal = None
            if start is not None and (expansion is None or start[0] < 1 or expansion[0] == _LAST_RANK):
                self._add_start(start[1])
            elif expansion is not None:
                self._add_expansion(*expansion[1:])
        last = self.last_traversal
        if self.needed is not None and last is not None and needs_only_expansion_match_count(last, self.needed):
            self.steps[-1] = build_expansion_count_step(last)
        copies = self.needed is None
        return _build_run(self.steps, first, len(self.model.nodes), len(self.model.relationships), copies=copies)

    # Starts

    def _choose_start(self) -> tuple[float, PatternNodeSlot] | None:
        slots = [slot for slot in self.model.nodes if slot.index not in self.placed]
        if not slots:
            return None
        if len(self.model.nodes) == 1:
            return 0, slots[0]
        cost, _, slot = min((self._cost(slot), slot.index, slot) for slot in slots)
        return cost, slot

    def _cost(self, slot: PatternNodeSlot) -> float:
        """Estimate the number of nodes that a start finds; below 1 means at most a few."""
        if slot.name in self.given:
            return 0
        usable = self._usable_lookups(slot)
        if any(lookup.name == "id" for lookup in usable):
            return 0.5
        if self._find_bound_relationship(slot) is not None:
            return 1
        count = self._count(slot)
        return 2 + count * _LOOKUP_FACTOR if usable else 2 + count

    def _count(self, slot: PatternNodeSlot) -> int:
        if slot.labels is None:
            return self.graph.node_count() + 1
        return sum(self.graph.node_count(label) for label in slot.labels)

    def _usable_lookups(self, slot: PatternNodeSlot) -> list[NodePropertyEquality]:
        return [lookup for lookup in slot.lookups if lookup.required <= self.bound]

    def _find_bound_relationship(self, slot: PatternNodeSlot) -> PatternRelationshipSlot | None:
        for each in self.open_relationships:
            if each.name in self.given and not each.is_variable and slot.index in {each.left, each.right}:
                return each
        return None

    def _add_start(self, slot: PatternNodeSlot) -> None:
        usable = self._usable_lookups(slot)
        self.placed.add(slot.index)
        self.bound.add(slot.name)
        relationship = self._find_bound_relationship(slot)
        end_of = "" if relationship is None else relationship.name
        self.choices.append(PatternStartChoice(slot, usable, slot.name in self.given, end_of))
        accept = self._take_accept()
        if slot.name in self.given:
            self.steps.append(build_bound_node_step(self.graph, slot, accept))
        elif relationship is not None and not any(lookup.name == "id" for lookup in usable):
            self.steps.append(build_bound_relationship_ends_step(self.graph, self.limits, slot, relationship, accept))
        else:
            find = self._build_source(slot, usable)
            self.steps.append(build_node_scan_step(self.graph, self.limits, slot, find, accept))

    def _build_source(self, slot: PatternNodeSlot, lookups: list[NodePropertyEquality]) -> NodeSource:
        graph = self.graph
        labels = None if slot.labels is None else sorted(slot.labels)

        def scan(state: PartialPatternMatch) -> Iterable[str]:  # noqa: ARG001
            if labels is None:
                return graph.node_ids()
            if len(labels) == 1:
                return graph.node_ids_by_label(labels[0])
            return (node_id for label in labels for node_id in graph.node_ids_by_label(label))

        ids = [lookup for lookup in lookups if lookup.name == "id"]
        if ids:
            return _build_id_source(graph, ids[0], scan)
        by_property = [lookup for lookup in lookups if lookup.key is None]
        if by_property:
            return PropertyNodeFinder(graph, self.indexes, labels, by_property, scan)
        return self._build_expression_source(slot, lookups[0], scan) if lookups else scan

    def _build_expression_source(
        self, slot: PatternNodeSlot, lookup: NodePropertyEquality, scan: NodeSource
    ) -> NodeSource:
        empty = PartialPatternMatch({}, 0, 0)
        key = cast("CompiledExpression", lookup.key)
        index = NodeExpressionIndex(self.graph, self.limits.hold, slot.name, key, lambda: scan(empty))

        def find(state: PartialPatternMatch) -> Iterable[str]:
            found: dict[str, None] = {}
            values = _read_values(lookup, state)
            if values is None:
                return scan(state)
            for value in values:
                some = index.find(value)
                if some is None:
                    return scan(state)
                found.update(dict.fromkeys(some))
            return found

        return find

    # Expansions

    def _choose_expansion(self) -> tuple[int, PatternRelationshipSlot, bool] | None:
        """Return the cheapest relationship at a node that is bound: its rank, and whether it begins at its right."""
        best: tuple[int, int, PatternRelationshipSlot, bool] | None = None
        for slot in self.open_relationships:
            has_left, has_right = slot.left in self.placed, slot.right in self.placed
            if not (has_left or has_right) or (slot.shortest and not (has_left and has_right)):
                continue
            candidate = (self._rank(slot, is_closed=has_left and has_right), slot.index, slot, not has_left)
            if best is None or candidate[:2] < best[:2]:
                best = candidate
        return best and (best[0], best[2], best[3])

    def _rank(self, slot: PatternRelationshipSlot, *, is_closed: bool) -> int:
        if slot.shortest:
            return 0 if self._can_search(slot) else _LAST_RANK
        if slot.name in self.given:
            return 0
        rank = 4 if slot.is_variable else 2
        if is_closed:
            return rank - 1
        target = self.model.nodes[slot.right if slot.left in self.placed else slot.left]
        return rank if target.labels is not None or target.lookups else rank + 1

    def _can_search(self, slot: PatternRelationshipSlot) -> bool:
        """Return whether all conditions on a shortest path could be evaluated as soon as it is found."""
        own = {slot.name, slot.path_name}
        known = self.bound | own
        return all(check.required <= known for check in self.open_checks if not own.isdisjoint(check.required))

    def _add_expansion(self, slot: PatternRelationshipSlot, is_reverse: bool) -> None:
        target = self.model.nodes[slot.left if is_reverse else slot.right]
        traversal = RelationshipTraversal(self.graph, self.limits, slot, target, is_reverse=is_reverse)
        traversal.is_target_bound = target.index in self.placed
        self.choices.append(PatternExpansionChoice(slot, is_reverse, traversal.is_target_bound))
        traversal.is_relationship_bound = slot.name in self.given
        self.open_relationships.remove(slot)
        if not slot.required <= self.bound:
            self._defer_tests(slot, traversal)
        if slot.shortest:
            self._add_shortest(slot, traversal)
            return
        self.placed.add(target.index)
        self.bound.update((target.name, slot.name))
        traversal.accept = self._take_accept()
        self.last_traversal = traversal
        build = build_variable_length_expand_step if slot.is_variable else build_relationship_expand_step
        self.steps.append(build(traversal))

    def _defer_tests(self, slot: PatternRelationshipSlot, traversal: RelationshipTraversal) -> None:
        """Test the properties of a relationship when the variables are bound that they refer to."""
        tests, index = traversal.tests, slot.index
        traversal.tests = ()

        def test(state: PartialPatternMatch) -> bool:
            link: Any = state.links[index]
            keys = link if slot.is_variable else (link,)
            return all(each(state, key) for key in keys for each in tests)

        self.open_checks.append(PartialPatternMatchCondition(slot.required | {slot.name}, test))

    def _add_shortest(self, slot: PatternRelationshipSlot, traversal: RelationshipTraversal) -> None:
        names = {slot.name, slot.path_name} - {""}
        before = [check for check in self.open_checks if check.required <= self.bound | names]
        self.bound.update(names)
        self.open_checks = [check for check in self.open_checks if check not in before]
        condition = _combine([], before, self.model)
        source = self.model.nodes[traversal.source]
        backward = RelationshipTraversal(self.graph, self.limits, slot, source, is_reverse=not traversal.is_reverse)
        backward.tests = traversal.tests
        self.steps.append(ShortestPathMatchStep(traversal, backward, condition, self._take_accept()))

    # Checks

    def _take_accept(self) -> StateTest | None:
        """Return the binding of paths and the conditions that have become possible, in order."""
        paths = [path for path in self.open_paths if path.required <= self.bound]
        self.open_paths = [path for path in self.open_paths if path not in paths]
        self.bound.update(path.name for path in paths)
        checks = [check for check in self.open_checks if check.required <= self.bound]
        self.open_checks = [check for check in self.open_checks if not check.required <= self.bound]
        return _combine(paths, checks, self.model)


def _combine(
    paths: list[PatternPathSlot], checks: list[PartialPatternMatchCondition], model: GraphPatternModel
) -> StateTest | None:
    tests = [*(_build_path_binding(model.graph, path) for path in paths), *(check.test for check in checks)]
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]

    def accept(state: PartialPatternMatch) -> bool:
        for test in tests:  # noqa: SIM110
            if not test(state):
                return False
        return True

    return accept


def _build_path_binding(graph: StatementGraphView, path: PatternPathSlot) -> StateTest:
    def bind(state: PartialPatternMatch) -> bool:
        links = [state.links[index] for index in path.relationships]
        state.row[path.name] = build_graph_path(graph, state.nodes[path.nodes[0]], links)
        return True

    return bind


def _build_id_source(graph: StatementGraphView, lookup: NodePropertyEquality, scan: NodeSource) -> NodeSource:
    def find(state: PartialPatternMatch) -> Iterable[str]:
        ids = _read_values(lookup, state)
        if ids is None:
            return scan(state)
        return dict.fromkeys(each for each in ids if isinstance(each, str) and graph.has_node(each))

    return find


def _read_values(lookup: NodePropertyEquality, state: PartialPatternMatch) -> list[Any] | None:
    """Return the values that a property may have, without null; None if the right side of IN is no list."""
    value = lookup.value(state.row)
    if not lookup.is_list or value is None:
        return [] if value is None else [value]
    if not isinstance(value, list):
        return None
    return list({value_equivalence_key(each): each for each in cast("list[Any]", value) if each is not None}.values())


class PropertyNodeFinder:
    """Finds nodes by property values: by an index of the graph, else by a temporary index, else by a scan.

    Of several properties, the one is used that found the fewest nodes when it was used last.
    """

    def __init__(
        self,
        graph: StatementGraphView,
        indexes: TemporaryPropertyIndexes | None,
        labels: list[str] | None,
        lookups: list[NodePropertyEquality],
        scan: NodeSource,
    ) -> None:
        self.graph = graph
        self.indexes = indexes
        self.labels: Sequence[str | None] = (None,) if labels is None else labels
        self.lookups = lookups
        self.scan = scan
        self._sizes = [0] * len(lookups)

    def __call__(self, state: PartialPatternMatch) -> Iterable[str]:
        """Return nodes among which are all that can match."""
        wanted: list[tuple[int, str, list[Any]]] = []
        for place in sorted(range(len(self.lookups)), key=self._sizes.__getitem__):
            values = _read_values(self.lookups[place], state)
            if values is not None:
                wanted.append((place, self.lookups[place].name, values))
        for place, name, values in wanted:
            found = self._find_by_graph(name, values)
            if found is not None:
                return self._count(place, found)
        if wanted and self.indexes is not None:
            place, name, values = wanted[0]
            found = self._look_up(self.indexes.find, name, values)
            if found is not None:
                return self._count(place, found)
        return self.scan(state)

    def _find_by_graph(self, name: str, values: list[Any]) -> Iterable[str] | None:
        if name == "type" and NO_LABEL not in values:
            labels = [value for value in values if isinstance(value, str)]
            return (node_id for label in labels for node_id in self.graph.node_ids_by_label(label))
        if not all(type(value) in _INDEXED_TYPES for value in values):
            return None
        found = self._look_up(self.graph.node_ids_by_property, name, values)
        return None if found is None else filter(self.graph.has_node, found)

    def _count(self, place: int, found: Iterable[str]) -> Iterable[str]:
        """Return the nodes that a lookup found, and note their number, by which lookups are chosen."""
        return found if len(self.lookups) == 1 else self._iterate_counted(place, found)

    def _iterate_counted(self, place: int, found: Iterable[str]) -> Iterator[str]:
        count = 0
        for node_id in found:
            count += 1
            yield node_id
        self._sizes[place] = count

    def _look_up(
        self, find: Callable[[str | None, str, Any], Iterable[str] | None], name: str, values: list[Any]
    ) -> Iterable[str] | None:
        """Return the nodes that have one of several values; None if that cannot be looked up."""
        if len(self.labels) == len(values) == 1:
            return find(self.labels[0], name, values[0])
        found: dict[str, None] = {}
        for label in self.labels:
            for value in values:
                some = find(label, name, value)
                if some is None:
                    return None
                found.update(dict.fromkeys(some))
        return found


def _build_run(
    steps: list[MatchStep], first: StateTest | None, node_count: int, relationship_count: int, *, copies: bool
) -> Callable[[Row], Iterator[Row]]:
    """Run steps depth-first; each step is a generator that binds its slots and is resumed for the next way.

    Without ``copies``, the same row is yielded for each match.
    """
    last = len(steps) - 1

    def run(row: Row) -> Iterator[Row]:
        state = PartialPatternMatch({**row}, node_count, relationship_count)
        if first is not None and not first(state):
            return
        stack = [steps[0](state)]
        while stack:
            depth = len(stack)
            if depth > last:
                for _ in stack[-1]:
                    yield {**state.row} if copies else state.row
                stack.pop()
                continue
            for _ in stack[-1]:
                stack.append(steps[depth](state))
                break
            else:
                stack.pop()

    return run
