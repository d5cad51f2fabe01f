"""Comparison of statements that write: their rows, and the graph after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import override

from kgserve.platform.settings import EngineName
from tests.cypher.differential.comparison import DIFFERENT, Result, Verdict, has_constant_fault
from tests.cypher.differential.generator import GeneratedStatement
from tests.cypher.differential.graph_generator import GraphGenerator
from tests.cypher.differential.product import Outcome
from tests.cypher.differential.property_graph import (
    LABELS,
    NODE_COUNT,
    NODE_PROPERTIES,
    RELATIONSHIP_PROPERTIES,
    TYPES,
    PropertyGraphStore,
)
from tests.cypher.reference import tree as t
from tests.cypher.reference.interpreter import Answer, Interpreter, same_rows
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.text import render
from tests.cypher.reference.values import CypherError, UnmodelledFeature

STATEMENTS_PER_STORE = 40
_READ_NODES = "MATCH (n) RETURN n.id, labels(n), properties(n)"
_READ_RELATIONSHIPS = "MATCH (a)-[r]->(b) RETURN a.id, b.id, type(r), properties(r)"
_ENGINE_REFUSAL = "this store has relationships from a node to itself"
_SETTABLE = NODE_PROPERTIES[1:-1]


class UpdateGenerator(GraphGenerator):
    """Random generator of writing statements over the property graph."""

    @override
    def _shapes(self) -> tuple[tuple[int, Callable[[], t.Statement]], ...]:
        return (
            (30, self._setting),
            (15, self._of_new_nodes),
            (12, self._connecting),
            (15, self._merging_node),
            (15, self._merging_relationship),
            (10, self._deleting),
            (8, self._unwound_writes),
        )

    def _id(self, *, is_new: bool = False) -> t.Expression:
        return t.Literal(f"m{self._random.randrange(40)}" if is_new else f"n{self._random.randrange(NODE_COUNT)}")

    def _by_id(self, name: str) -> t.PathPattern:
        return t.PathPattern((t.NodePattern(name, (), (("id", self._id()),)),))

    def _entries(self, properties: Any, count: int) -> tuple[tuple[str, t.Expression], ...]:
        chosen = self._random.sample(properties, count)
        return tuple((name, self._storable(kind)) for name, kind in chosen)

    def _storable(self, kind: str) -> t.Expression:
        if self._chance(0.1):
            return t.Literal(None)
        if kind == "o":
            kind = self._random.choice("ifsbLISm")
        value = self._literal(kind)
        return self._parameter(self._plain(kind)) if self._chance(0.2) else value

    def _change(self, name: str, properties: Any, *, is_node: bool) -> t.Change:
        column, kind = self._random.choice(properties)
        way = self._random.random()
        if way < 0.6:
            target = t.Property(t.Variable(name), column)
            own = t.Property(t.Variable(name), column)
            if kind in "if" and self._chance(0.4):
                return t.Assignment(target, t.Binary("+", own, t.Literal(1)))
            return t.Assignment(target, self._storable(kind))
        if way < 0.85 or not is_node:
            return t.MapAssignment(name, t.MapOf(self._entries(properties, 2)), self._chance(0.7))
        return t.LabelChange(name, self._random.choice(LABELS))

    def _returned_writes(self, name: str, properties: Any) -> tuple[t.Clause, ...]:
        if self._chance(0.4):
            return ()
        columns = [column for column, _kind in self._random.sample(properties, 2)]
        items = tuple(t.Item(t.Property(t.Variable(name), column), column) for column in columns)
        return (t.Projection("RETURN", items),)

    def _setting(self) -> t.Query:
        if self._chance(0.3):
            path = t.PathPattern((self._property_node("a"), self._step("n"), self._property_node("b")))
            properties: Any = RELATIONSHIP_PROPERTIES
            self._scope = [(t.Property(t.Variable("a"), column), kind) for column, kind in NODE_PROPERTIES]
        else:
            path, properties = t.PathPattern((self._property_node("n", 0.5),)), _SETTABLE
            self._bind("n")
        is_node = properties is _SETTABLE
        match = t.Match((path,), self._maybe(self._condition), self._chance(0.1))
        changes = tuple(self._change("n", properties, is_node=is_node) for _ in range(self._random.choice((1, 1, 2))))
        clause: t.Clause = t.SetProperties(changes)
        if self._chance(0.3):
            targets: list[Any] = [t.Property(t.Variable("n"), self._random.choice(properties)[0])]
            if is_node and self._chance(0.5):
                targets = [t.LabelChange("n", self._random.choice(LABELS))]
            clause = t.Remove(tuple(targets))
        return t.Query((match, clause, *self._returned_writes("n", properties)))

    def _new_node(self, name: str) -> t.NodePattern:
        label = self._random.choice((*LABELS, ""))
        entries = (("id", self._id(is_new=True)), *self._entries(_SETTABLE, self._random.randrange(3)))
        return t.NodePattern(name, (label,) if label else (), entries)

    def _new_step(self, name: str = "") -> t.RelationshipPattern:
        entries = self._entries(RELATIONSHIP_PROPERTIES, self._random.choice((0, 0, 1)))
        return t.RelationshipPattern(name, self._random.choice(("->", "<-")), (self._random.choice(TYPES),), entries)

    def _of_new_nodes(self) -> t.Query:
        elements: list[Any] = [self._new_node("n")]
        if self._chance(0.5):
            elements += [self._new_step(), self._new_node("m")]
        return t.Query((t.Create((t.PathPattern(tuple(elements)),)), *self._returned_writes("n", _SETTABLE)))

    def _connecting(self) -> t.Query:
        match = t.Match((self._by_id("a"), self._by_id("b")))
        path = t.PathPattern((t.NodePattern("a"), self._new_step("r"), t.NodePattern("b")))
        return t.Query((match, t.Create((path,)), *self._returned_writes("r", RELATIONSHIP_PROPERTIES)))

    def _merging_node(self) -> t.Query:
        label = self._random.choice(LABELS)
        entries = (
            ("id", self._id(is_new=self._chance(0.5))),
            *self._entries(_SETTABLE[1:], self._random.choice((0, 0, 1))),
        )
        node = t.NodePattern("n", (label,), entries)
        created, matched = (
            tuple(self._change("n", _SETTABLE, is_node=False) for _ in range(self._random.randrange(2)))
            for _ in range(2)
        )
        merge = t.Merge(t.PathPattern((node,)), created, matched)
        return t.Query((merge, *self._returned_writes("n", _SETTABLE)))

    def _merging_relationship(self) -> t.Query:
        match = t.Match((t.PathPattern((self._property_node("a"),)), self._by_id("b")))
        step = t.RelationshipPattern(
            "r", self._direction(), (self._random.choice(TYPES),),
            self._entries(RELATIONSHIP_PROPERTIES, self._random.choice((0, 0, 0, 1))),
        )  # fmt: skip
        path = t.PathPattern((t.NodePattern("a"), step, t.NodePattern("b")))
        created, matched = (
            tuple(self._change("r", RELATIONSHIP_PROPERTIES, is_node=False) for _ in range(self._random.randrange(2)))
            for _ in range(2)
        )
        counted = t.Projection("RETURN", (t.Item(t.CountRows(), "c"),))
        return t.Query((match, t.Merge(path, created, matched), *((counted,) if self._chance(0.5) else ())))

    def _deleting(self) -> t.Query:
        counted = (t.Projection("RETURN", (t.Item(t.CountRows(), "c"),)),) if self._chance(0.5) else ()
        if self._chance(0.4):
            path = t.PathPattern((t.NodePattern("a"), self._step("r"), self._property_node("b", 0.6)))
            return t.Query((t.Match((path,)), t.Delete(("r",)), *counted))
        return t.Query((t.Match((self._by_id("n"),)), t.Delete(("n",), self._chance(0.6)), *counted))

    def _unwound_writes(self) -> t.Query:
        texts = tuple(t.Literal(f"m{self._random.randrange(40)}") for _ in range(self._random.randrange(1, 4)))
        node = t.NodePattern("n", (self._random.choice(LABELS),), (("id", t.Variable("x")),))
        change = self._change("n", _SETTABLE, is_node=False)
        path = t.PathPattern((node,))
        clause: t.Clause = t.Merge(path, (change,)) if self._chance(0.7) else t.Create((path,))
        return t.Query((t.Unwind(t.ListOf(texts), "x"), clause, *self._returned_writes("n", _SETTABLE)))


def compare_updates(
    folder: Path, engine: EngineName, seed: int, count: int
) -> Iterator[tuple[GeneratedStatement, Result]]:
    """Yield the verdict on each statement; each begins with the graph that the previous one left."""
    generator, store, graph = UpdateGenerator(seed), None, None
    for number in range(count):
        if store is None or graph is None:
            store = PropertyGraphStore(folder / f"updates{number}", engine)
            graph = store.graph()
        generated = generator.make()
        result, graph = _compare(store, generated, graph)
        yield generated, result
        if result.verdict in DIFFERENT or number % STATEMENTS_PER_STORE == STATEMENTS_PER_STORE - 1:
            store.close()
            store = None
    if store is not None:
        store.close()


def _compare(store: PropertyGraphStore, generated: GeneratedStatement, graph: Graph) -> tuple[Result, Graph]:
    text, after = render(generated.statement), graph.copy()
    expected: Answer | str
    try:
        expected = Interpreter(after, generated.parameters).run(generated.statement)
    except CypherError as error:
        expected, after = f"an error: {error}", graph
    except UnmodelledFeature as reason:
        raise AssertionError(text) from reason
    outcome = store.ask(text, generated.parameters, writes=True)
    if outcome.error:
        verdict = _judge_error(generated, outcome, expected)
    elif isinstance(expected, str):
        verdict = "no error"
    else:
        verdict = "agreed" if same_rows(expected, outcome.rows) else "values differ"
    result = Result(verdict, text, outcome, expected)
    for query, rows in ((_READ_NODES, _list_nodes(after)), (_READ_RELATIONSHIPS, _list_relationships(after))):
        stored = store.ask(query, {})
        if verdict not in DIFFERENT and not same_rows(Answer([], rows, [0] * len(rows)), stored.rows):
            missing = [row for row in rows if row not in stored.rows]
            result = Result("values differ", text, stored, Answer([], missing, [0] * len(missing)))
            result.outcome.rows = [row for row in stored.rows if row not in rows]
            break
    return result, after


def _judge_error(generated: GeneratedStatement, outcome: Outcome, expected: Answer | str) -> Verdict:
    if outcome.is_lost:
        return "lost"
    if isinstance(expected, str) or "with the value null" in outcome.error or has_constant_fault(generated):
        return "agreed on an error"
    return "refused" if _ENGINE_REFUSAL in outcome.error else "an error alone"


def _list_nodes(graph: Graph) -> list[list[Any]]:
    labels = {"_": []}
    return [
        [each.id, labels.get(each.properties["type"], [each.properties["type"]]), each.own]
        for each in graph.nodes.values()
    ]


def _list_relationships(graph: Graph) -> list[list[Any]]:
    return [[*each.key, each.own] for each in graph.relationships]
