"""Patterns: a random comparison with a search by brute force, and cases that it does not reach."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from typing_extensions import override

from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay
from kgserve.cypher.interpreter.graph_view_interface import (
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
)
from kgserve.errors import InvalidInput
from tests.cypher.interpreter.memory_graph import MemoryGraph
from tests.cypher.interpreter.statements import evaluate_on, run_statement

Bindings = dict[str, Any]


class PatternNode(NamedTuple):
    name: str
    labels: tuple[str, ...]
    property: tuple[str, Any] | None

    @override
    def __str__(self) -> str:
        properties = "" if self.property is None else f" {{{self.property[0]}: {literal(self.property[1])}}}"
        return f"({self.name}{':' * bool(self.labels)}{'|'.join(self.labels)}{properties})"


class PatternRelationship(NamedTuple):
    name: str
    types: tuple[str, ...]
    direction: str
    lengths: tuple[int | None, int | None] | None
    weight: int | None

    @override
    def __str__(self) -> str:
        text = self.name + ":" * bool(self.types) + "|".join(self.types)
        if self.lengths is not None:
            text += "*" + "..".join("" if each is None else str(each) for each in self.lengths)
        if self.weight is not None:
            text += f" {{w: {self.weight}}}"
        return f"{'<' * (self.direction == '<')}-[{text}]-{'>' * (self.direction == '>')}"


class PatternPath(NamedTuple):
    name: str
    nodes: list[PatternNode]
    relationships: list[PatternRelationship]

    @override
    def __str__(self) -> str:
        text = f"{self.name} = " if self.name else ""
        parts = [str(self.nodes[0])]
        for edge, node in zip(self.relationships, self.nodes[1:], strict=True):
            parts += [str(edge), str(node)]
        return text + "".join(parts)


def literal(value: Any) -> str:
    return "null" if value is None else repr(value)


def random_graph(rng: random.Random) -> MemoryGraph:
    graph = MemoryGraph(rng.choice([(), ("x",), ("x", "y")]))
    ids = [f"n{number}" for number in range(rng.randint(1, 5))]
    for node_id in ids:
        x, y = rng.choice([None, 1, 2, 1.0, "a", True]), rng.choice([None, 1, 2])
        graph.add_node(node_id, rng.choice(["A", "B", "_"]), x=x, y=y)
    for _ in range(rng.randint(0, 8)):
        graph.add_relationship(rng.choice(ids), rng.choice("RS"), rng.choice(ids), w=rng.choice([None, 1, 2]))
    return graph


def random_pattern(rng: random.Random) -> list[PatternPath]:
    lengths: list[tuple[int | None, int | None] | None] = [None] * 5
    lengths += [(0, 2), (1, 2), (2, 2), (0, None), (None, 2), (2, 1), (0, 0)]
    paths: list[PatternPath] = []
    count = 0
    for index in range(rng.choice([1, 1, 2, 2, 3])):
        size = rng.choice([0, 1, 1, 2, 3]) if index == 0 else rng.choice([0, 1, 1])
        if count + size > 4:
            size = 0
        nodes = [
            PatternNode(
                rng.choice(["a", "b", "c", "d", ""]),
                rng.choice([()] * 8 + [("A",), ("B",), ("A", "B")]),
                rng.choice([None] * 20 + [("x", 1), ("y", 2), ("x", "a"), ("x", None)]),
            )
            for _ in range(size + 1)
        ]
        edges = [
            PatternRelationship(
                rng.choice(["", f"r{count + number}"]),
                rng.choice([(), (), ("R",), ("R", "S"), ("S",)]),
                rng.choice(["", "<", ">"]),
                rng.choice(lengths),
                rng.choice([None] * 8 + [1]),
            )
            for number in range(size)
        ]
        count += size
        paths.append(PatternPath(rng.choice(["", "", f"p{index}"]), nodes, edges))
    return paths


def is_equal(a: Any, b: Any) -> bool:
    """Return whether openCypher calls two scalars equal."""
    is_number = [type(each) in (int, float) for each in (a, b)]
    return a is not None and b is not None and (all(is_number) or type(a) is type(b)) and a == b


class BruteForceSearch:
    """All matches of a pattern, found by trying every node and relationship for every place from left to right."""

    def __init__(self, graph: MemoryGraph, paths: list[PatternPath]) -> None:
        self.graph = graph
        self.paths = paths

    def find(self) -> Iterator[Bindings]:
        yield from self._match_path(0, {}, frozenset())

    def _match_path(self, index: int, bound: Bindings, used: frozenset[RelationshipKey]) -> Iterator[Bindings]:
        if index == len(self.paths):
            yield bound
            return
        for node_id in self.graph.nodes:
            start = self._bind_node(self.paths[index].nodes[0], node_id, bound)
            if start is not None:
                yield from self._match_step(index, 0, node_id, start, used, (node_id,))

    def _match_step(
        self, index: int, step: int, at: str, bound: Bindings, used: frozenset[RelationshipKey], trail: tuple[Any, ...]
    ) -> Iterator[Bindings]:
        path = self.paths[index]
        if step == len(path.relationships):
            yield from self._match_path(index + 1, {**bound, path.name: trail} if path.name else bound, used)
            return
        edge = path.relationships[step]
        for keys, end in self._walk(edge, at, (), used):
            after = self._bind_node(path.nodes[step + 1], end, bound)
            if after is not None:
                if edge.name:
                    after = {**after, edge.name: keys if edge.lengths is not None else keys[0]}
                yield from self._match_step(index, step + 1, end, after, used.union(keys), trail + keys)

    def _walk(
        self, edge: PatternRelationship, at: str, keys: tuple[RelationshipKey, ...], used: frozenset[RelationshipKey]
    ) -> Iterator[tuple[tuple[RelationshipKey, ...], str]]:
        least, most = (1, 1) if edge.lengths is None else edge.lengths
        if (1 if least is None else least) <= len(keys) and (most is None or len(keys) <= most):
            yield keys, at
        if most is None or len(keys) < most:
            for key in self.graph.edges:
                for other in self._ends(edge, key, at):
                    if key not in used:
                        yield from self._walk(edge, other, (*keys, key), used | {key})

    def _ends(self, edge: PatternRelationship, key: RelationshipKey, at: str) -> set[str]:
        if edge.types and key[2] not in edge.types:
            return set()
        if edge.weight is not None and not is_equal(self.graph.edges[key].get("w"), edge.weight):
            return set()
        forward = {key[1]} if edge.direction != "<" and key[0] == at else set[str]()
        return forward | ({key[0]} if edge.direction != ">" and key[1] == at else set[str]())

    def _bind_node(self, node: PatternNode, node_id: str, bound: Bindings) -> Bindings | None:
        label, properties = self.graph.nodes[node_id]
        if node.labels and label not in node.labels:
            return None
        if node.property is not None and not is_equal(properties.get(node.property[0]), node.property[1]):
            return None
        if not node.name:
            return bound
        return {**bound, node.name: node_id} if bound.get(node.name, node_id) == node_id else None


def names_of(paths: list[PatternPath]) -> list[str]:
    parts = [part for path in paths for part in (path, *path.nodes, *path.relationships)]
    return list(dict.fromkeys(part.name for part in parts if part.name))


def rebuild_as_edits(graph: MemoryGraph, rng: random.Random) -> GraphChangeOverlay:
    """Return the graph as changes of another one."""
    base = MemoryGraph(graph.indexed).add_node("gone", "A", x=1)
    for node_id in graph.nodes:
        if rng.random() < 0.5:
            base.add_node(node_id, rng.choice("AB"), x=3, z=1)
    ids = list(base.nodes)
    for _ in range(6):
        base.add_relationship(rng.choice(ids), rng.choice("RS"), rng.choice(ids), w=1)
    edits = GraphChangeOverlay(base)
    for _ in range(2):
        edits.node_ids_by_property(None, "x", 1)
    change_nodes(edits, graph)
    change_relationships(edits, graph, {key for key in base.edges if key not in graph.edges or rng.random() < 0.3})
    edits.detach_node("gone")
    edits.delete_node("gone")
    edits.check_deletions()
    return edits


def change_nodes(edits: GraphChangeOverlay, graph: MemoryGraph) -> None:
    for node_id, (label, properties) in graph.nodes.items():
        if not edits.has_node(node_id):
            edits.create_node(label, {"id": node_id, **properties})
            continue
        for name in ("x", "y", "z"):
            edits.set_node_property(node_id, name, properties.get(name))
        edits.set_node_label(node_id, label)


def change_relationships(edits: GraphChangeOverlay, graph: MemoryGraph, deleted: set[RelationshipKey]) -> None:
    for key in deleted:
        edits.delete_relationship(key)
    for key, properties in graph.edges.items():
        if edits.has_relationship(key):
            edits.set_relationship_property(key, "w", properties.get("w"))
        else:
            edits.create_relationship(*key, properties)


class PatternCondition(NamedTuple):
    text: str
    is_true: Callable[[dict[str, Any], dict[str, Any]], bool]
    """Condition on the properties of the first and the last variable, with their ids."""


CONDITIONS = [
    PatternCondition("", lambda _a, _b: True),
    PatternCondition(" WHERE {a}.x = {b}.y", lambda a, b: is_equal(a.get("x"), b.get("y"))),
    PatternCondition(" WHERE {b}:A OR {b}:B", lambda _, b: b["type"] is not None),
    PatternCondition(
        " WHERE coalesce({a}.x, 3) = coalesce({b}.y, 3)", lambda a, b: is_equal(a.get("x", 3), b.get("y", 3))
    ),
    PatternCondition(
        " WHERE {b}.id IN ['n1', 'n0', 'n1', 3] AND {a}.y IN [1, 2.0]",
        lambda a, b: b["id"] in {"n0", "n1"} and a.get("y") in {1, 2},
    ),
]


def choose_condition(rng: random.Random, paths: list[PatternPath]) -> tuple[str, str, PatternCondition]:
    """Return the first and last variable of a pattern, and a condition on them."""
    variables = list(dict.fromkeys(node.name for path in paths for node in path.nodes if node.name))
    if not variables:
        return "", "", CONDITIONS[0]
    return variables[0], variables[-1], rng.choice(CONDITIONS)


def to_plain(value: Any) -> Any:
    """Return ids and keys for nodes, relationships and paths, as the search by brute force has them."""
    match value:
        case NodeReference():
            return value.id
        case RelationshipReference():
            return value.key
        case PathValue():
            return (value.nodes[0].id, *(each.key for each in value.relationships))
        case list():
            return tuple(map(to_plain, value))
        case _:
            return value


def _read_node(graph: MemoryGraph, node_id: str) -> dict[str, Any]:
    return {**graph.node_properties(node_id), "type": graph.node_property(node_id, "type")}


@pytest.mark.parametrize("part", range(4))
def test_random_patterns_match_as_brute_force_says(part: int) -> None:
    total = 0
    for seed in range(part * 100, part * 100 + 100):
        rng = random.Random(seed)
        graph, paths = random_graph(rng), random_pattern(rng)
        names, (first, last, condition) = names_of(paths), choose_condition(rng, paths)
        where = condition.text.format(a=first, b=last)
        bound = rng.choice(["", *(f"MATCH ({name}) " for name in names if name in "abcd")])
        text = f"{bound}MATCH {', '.join(map(str, paths))}{where} RETURN {', '.join(names) or '1 AS one'}"
        found = [
            each
            for each in BruteForceSearch(graph, paths).find()
            if not first or condition.is_true(*(_read_node(graph, each[name]) for name in (first, last)))
        ]
        expected = Counter(tuple(each[name] for name in names) if names else (1,) for each in found)
        total += len(found)
        for view in (graph, rebuild_as_edits(graph, rng)):
            rows = evaluate_on(view, text)
            assert Counter(tuple(map(to_plain, row)) for row in rows) == expected, (seed, text)
    assert total > 50


def test_random_shortest_paths_are_the_shortest_of_all() -> None:
    total = 0
    for seed in range(80):
        rng = random.Random(seed)
        graph = MemoryGraph()
        ids = [f"n{number}" for number in range(rng.randint(2, 7))]
        for node_id in ids:
            graph.add_node(node_id)
        for _ in range(rng.randint(1, 12)):
            graph.add_relationship(rng.choice(ids), rng.choice("RS"), rng.choice(ids))
        arrow = rng.choice(["-[{}]->", "<-[{}]-", "-[{}]-"]).format(
            rng.choice(["*", "r:R*", "*..3", "*0..", ":R|S*1..2"])
        )
        start = f"MATCH (a {{id: '{rng.choice(ids)}'}}), (b {{id: '{rng.choice(ids)}'}}) MATCH p = "
        paths = [to_plain(row[0]) for row in evaluate_on(graph, f"{start}(a){arrow}(b) RETURN p")]
        length = min(map(len, paths), default=0)
        shortest = Counter(path for path in paths if len(path) == length)
        total += len(shortest)
        found = [to_plain(row[0]) for row in evaluate_on(graph, f"{start}allShortestPaths((a){arrow}(b)) RETURN p")]
        assert Counter(found) == shortest, seed
        one = [to_plain(row[0]) for row in evaluate_on(graph, f"{start}shortestPath((a){arrow}(b)) RETURN p")]
        assert len(one) == bool(shortest), seed
        assert set(one) <= set(shortest), seed
    assert total > 40


ROAD = (
    MemoryGraph()
    .add_node("a", "Town", size=1)
    .add_node("b", "Town", size=2)
    .add_node("c", "Town", size=3)
    .add_node("d", "City", size=4)
    .add_relationship("a", "ROAD", "b", km=1)
    .add_relationship("b", "ROAD", "c", km=1)
    .add_relationship("c", "ROAD", "d", km=1)
    .add_relationship("a", "RAIL", "c", km=9)
    .add_relationship("d", "ROAD", "d", km=0)
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # Shortest paths
        ("p = shortestPath((a {id: 'a'})-[*]->(d:City)) RETURN length(p)", [[2]]),
        ("p = shortestPath((a {id: 'a'})-[:ROAD*]->(d:City)) RETURN length(p)", [[3]]),
        ("p = shortestPath((a {id: 'a'})-[* {km: 1}]->(d:City)) RETURN length(p)", [[3]]),
        ("p = shortestPath(({id: 'a'})-[*]->(:City)) WHERE none(r IN relationships(p) WHERE r.km > 5) RETURN 3", [[3]]),
        ("p = shortestPath(({id: 'a'})-[r*]->(:City)) WHERE none(x IN r WHERE x.km > 5) RETURN length(p)", [[3]]),
        ("p = shortestPath(({id: 'a'})-[*]->(:City)), (b {id: 'b'}) WHERE length(p) > b.size RETURN length(p)", [[3]]),
        ("p = shortestPath((a {id: 'd'})-[*]->(d {id: 'a'})) RETURN p", []),
        ("p = shortestPath((a {id: 'd'})-[*]-(d {id: 'a'})) RETURN length(p)", [[2]]),
        ("p = shortestPath((a {id: 'a'})-[*..1]->(d:City)) RETURN p", []),
        ("p = shortestPath((a {id: 'a'})-[*0..]->(b {id: 'a'})) RETURN length(p)", [[0]]),
        ("p = shortestPath((a {id: 'd'})-[*]->(b {id: 'd'})) RETURN length(p)", [[1]]),
        ("p = shortestPath((a {id: 'a'})-[r]->(b {id: 'b'})) RETURN type(r)", [["ROAD"]]),
        ("p = allShortestPaths((a {id: 'a'})-[rs*]->(c {id: 'c'})) RETURN [r IN rs | type(r)]", [[["RAIL"]]]),
        # Relationships that are bound already
        ("(a)-[r:RAIL]->(c) MATCH (x)-[r]-(y) RETURN x.id, y.id", [["a", "c"], ["c", "a"]]),
        ("(a)-[r:RAIL]->(c) MATCH (x)<-[r]-(y) RETURN x.id, y.id", [["c", "a"]]),
        ("(a)-[r:RAIL]->(c) MATCH (x)-[r:ROAD]->(y) RETURN x.id", []),
        ("(d:City)-[r]->(d) MATCH (x)-[r]-(y) RETURN x.id, y.id", [["d", "d"]]),
        ("(a)-[r:RAIL]->(c) MATCH (x)-[r]->(y), (y)-[s]-(z) RETURN z.id ORDER BY z.id", [["b"], ["d"]]),
        ("(a {id: 'a'})-[q:ROAD]->()-[r]->() WITH [q, r] AS rs MATCH (x)-[rs*]->(y) RETURN x.id, y.id", [["a", "c"]]),
        ("(a {id: 'a'})-[q:ROAD]->()-[r]->() WITH [r, q] AS rs MATCH (x)-[rs*]->(y) RETURN x.id, y.id", []),
        ("(a {id: 'a'})-[q:ROAD]->()-[r]->() WITH [r, q] AS rs MATCH (x)<-[rs*]-(y) RETURN x.id, y.id", [["c", "a"]]),
        ("(a {id: 'a'})-[q:ROAD]->() WITH [q, null] AS rs MATCH (x)-[rs*]->(y) RETURN x.id", []),
        # Conditions inside the pattern
        ("(a)-[r WHERE r.km > 5]->(b WHERE b.size > 2) RETURN a.id, b.id", [["a", "c"]]),
        ("(a:Town|City {size: 4}) RETURN a.id", [["d"]]),
        ("(a:Town:City) RETURN a", []),
        ("(a)-[:RAIL {km: b.size + 8}]->(c)<-[:ROAD]-(b) RETURN a.id", []),
        ("(a)-[:RAIL {km: b.size + 7}]->(c)<-[:ROAD]-(b) RETURN a.id", [["a"]]),
        ("(a {id: 'a'})-[* {km: b.size - 2}]->(b) RETURN b.id", [["c"]]),
        ("(a) WHERE a.type = 'City' RETURN a.size", [[4]]),
        ("(a:Town) WHERE a.type IN ['City', 'Town', null, 1] RETURN count(*)", [[3]]),
        ("(a:Town) WHERE elementId(a) = 'b' RETURN a.size", [[2]]),
        # Null matches nothing
        ("(a:Town {size: null}) RETURN a", []),
        ("(a:City) OPTIONAL MATCH (a)-->(b:Town) WITH b MATCH (b) RETURN b", []),
        ("(a:City) OPTIONAL MATCH (a)-->(b:Town) WITH a, b OPTIONAL MATCH (a)-->(b) RETURN a.id, b", [["d", None]]),
    ],
)
def test_patterns(pattern: str, expected: list[list[Any]]) -> None:
    assert run_statement(ROAD, f"MATCH {pattern}") == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "WITH {k: 1} AS m UNWIND [m.k] AS a MATCH (a)-->(b) RETURN b",
            "a in a pattern must be a node, not an integer",
        ),
        (
            "WITH {k: [1]} AS m UNWIND [m.k] AS rs MATCH (a)-[rs*]->(b) RETURN b",
            "rs in a pattern must be a list of relationships",
        ),
        ("MATCH (a) WHERE a.size RETURN a", "a condition must be a boolean, not an integer"),
    ],
)
def test_values_that_no_pattern_accepts_are_refused(statement: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_statement(ROAD, statement)


@pytest.mark.parametrize(
    ("statement", "lookups"),
    [
        ("MATCH (n:P {key: 5}) RETURN n", [("P", "key", 5)]),
        ("MATCH (n) WHERE 'x' = n.key RETURN n", [(None, "key", "x")]),
        ("MATCH (n:P) WHERE n.key IN [1, 1.0, null, 2] RETURN n", [("P", "key", 1.0), ("P", "key", 2)]),
        ("UNWIND [1, 2] AS k MATCH (n {key: k}) RETURN n", [(None, "key", 1), (None, "key", 2)]),
        ("MATCH (n:P) WHERE n.key = 1 OR n.key = 2 RETURN n", []),
        ("MATCH (n:P) WHERE n.key = n.other RETURN n", []),
        ("MATCH (n:P) WHERE n.key = null RETURN n", []),
        ("MATCH (n {id: 'n1', key: 1}) RETURN n", []),
    ],
)
def test_indexes_are_used(statement: str, lookups: list[Any]) -> None:
    graph = MemoryGraph(indexed=["key"])
    for number in range(9):
        graph.add_node(f"n{number}", "P", key=number)
    run_statement(graph, statement)
    assert graph.lookups == lookups


def test_reads_stop_at_limit() -> None:
    graph = CountingGraph()
    for number in range(1000):
        graph.add_node(f"n{number}", "P")
    assert run_statement(graph, "MATCH (n) WITH n LIMIT 3 MATCH (m) RETURN n.id, m.id LIMIT 2") == [
        ["n0", "n0"],
        ["n0", "n1"],
    ]
    assert graph.read < 10


class CountingGraph(MemoryGraph):
    """Counts the nodes that scans yield."""

    read = 0

    @override
    def node_ids(self) -> Iterator[str]:
        for node_id in super().node_ids():
            self.read += 1
            yield node_id


COUNTED = [
    "(a)-[:KNOWS]->(b)",
    "(a)-[r]-(b)",
    "(a)-[:KNOWS|LIKES]->()-[:KNOWS]->(b)",
    "(a)-[x]->()<-[r]-(b)",
    "(a)-[x]-()-[r]-(b)",
    "(a:A)-[r:KNOWS]->(b:B)",
    "(a)-[:KNOWS]->(b)-[:LIKES]->(a)",
    "(a)-[r:KNOWS {w: 1}]->(b)",
    "(a)-[:KNOWS*1..2]->(b)",
    "(a)-[:KNOWS]->(b), (b)-[:LIKES]->(c)",
    "p = (a)-[:KNOWS]->(b)",
    "(a)-[:KNOWS]->(b) WHERE a.v < 3",
    "(a)-[:KNOWS]->(b) WHERE a.v < b.v",
    "(a)-[:NONE]->(b)",
]


def typed_graph(seed: int) -> MemoryGraph:
    chance = random.Random(seed)
    graph = MemoryGraph()
    for number in range(6):
        graph.add_node(str(number), chance.choice("AB"), v=number)
    for _ in range(14):
        graph.add_relationship(
            chance.choice("012345"), chance.choice(["KNOWS", "LIKES"]), chance.choice("012345"), w=chance.choice([1, 2])
        )
    return graph


@pytest.mark.parametrize("pattern", COUNTED)
@pytest.mark.parametrize("seed", range(4))
def test_counted_matches_are_as_many_as_listed_ones(pattern: str, seed: int) -> None:
    graph = typed_graph(seed)
    for key in ("0", "a.id", "a:A", "coalesce(b.v, 0)"):
        listed = run_statement(graph, f"MATCH {pattern} WITH *, 1 AS one RETURN {key} AS k, sum(one) AS n ORDER BY k")
        for counted in ("count(*)", "count(b)", "count(a)"):
            found = run_statement(graph, f"MATCH {pattern} RETURN {key} AS k, {counted} AS n ORDER BY k")
            assert found == listed, (key, counted)
            found = run_statement(
                graph, f"MATCH {pattern} WITH {key} AS k, {counted} + 0 AS n WHERE n > 0 RETURN k, n ORDER BY k"
            )
            assert found == listed, (key, counted)
        [[most, least]] = run_statement(graph, f"MATCH {pattern} WITH a, count(*) AS n RETURN max(n), min(n)")
        listed = run_statement(graph, f"MATCH {pattern} WITH *, 1 AS one WITH a, sum(one) AS n RETURN max(n), min(n)")
        assert [[most, least]] == listed


def test_rows_that_are_kept_are_copies() -> None:
    graph = typed_graph(1)
    rows = run_statement(graph, "MATCH (a)-[r:KNOWS]->(b) RETURN collect(a.id + b.id) AS c, count(*) AS n")
    assert len(set(rows[0][0])) == rows[0][1]
    counted = run_statement(
        graph, "MATCH (a)-[:KNOWS]->(b) CALL (a) { MATCH (a)-->(c) RETURN count(c) AS n } RETURN sum(n)"
    )
    listed = run_statement(graph, "MATCH (a)-[:KNOWS]->(b) MATCH (a)-->(c) WITH *, 1 AS one RETURN sum(one)")
    assert counted == listed
    assert run_statement(graph, "MATCH (a) OPTIONAL MATCH (a)-[:NONE]->(b) RETURN count(b), count(*)") == [[0, 6]]
