"""Conflict detection by the footprint of a statement: a conflicting write must never be missed."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.cypher.write_analysis import ReadFootprint, can_statement_match_changes
from kgserve.storage.model.node_edge_rows import EdgeKey, NodeRow
from tests.graph.bare_engine import ReferenceEngine, Rows

IDS = "abcd"
TYPES = "tu"
WORDS = ("x", "it", "ü")


def node(node_id: str, kind: str, content: str) -> NodeRow:
    return NodeRow(node_id, kind, content, "{}", 1, 1, 0, 0)


class Graph:
    """Small graph modified by concurrent writers; records the changes as reported to a statement."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self.nodes = {node_id: self._node(node_id) for node_id in source.sample(IDS, 3)}
        self.edges = dict[EdgeKey, float]()
        self.new: list[NodeRow] = []
        self.changed: list[NodeRow | str] = []
        self.touched: list[EdgeKey] = []
        for _ in range(4):
            self._tie()
        self.touched.clear()

    def disturb(self) -> None:
        """Apply one or two random concurrent changes."""
        for _ in range(self._random.choice((1, 1, 2))):
            self._random.choice((self._put, self._put, self._drop, self._tie, self._cut))()

    def rows(self) -> tuple[Rows, Rows]:
        """Return the rows in the form with which the bare engine is filled."""
        nodes = [[row.id, row.type, row.content, {}] for _, row in sorted(self.nodes.items())]
        return nodes, [[*key, weight, {}] for key, weight in sorted(self.edges.items())]

    def _node(self, node_id: str) -> NodeRow:
        return node(node_id, self._random.choice(TYPES), self._random.choice(WORDS))

    def _put(self) -> None:
        row = self._node(self._random.choice(IDS))
        (self.changed if row.id in self.nodes else self.new).append(row)
        self.nodes[row.id] = row

    def _drop(self) -> None:
        gone = self._random.choice([*self.nodes, "none"])
        if self.nodes.pop(gone, None):
            self.changed.append(gone)
            for key in [key for key in self.edges if gone in key[:2]]:
                self.touched.append(key)
                del self.edges[key]

    def _tie(self) -> None:
        if self.nodes:
            ends = list(self.nodes)
            key = (self._random.choice(ends), self._random.choice(ends), self._random.choice("RS"))
            self.edges[key] = self._random.choice((0.5, 1.0, 2.0))
            self.touched.append(key)

    def _cut(self) -> None:
        if self.edges:
            key = self._random.choice(list(self.edges))
            del self.edges[key]
            self.touched.append(key)


class Questions:
    """Generator of read statements about such a graph, with parameters."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def next(self) -> str:
        """Return a random statement."""
        pick = self._random.choice
        if pick((True, True, False)):
            middle, names = self._match("ab"), "ab"
        else:
            middle = f"{self._match('ab')} {self._passed()} {self._match(pick(('ac', 'bc', 'cd')))}"
            names = "a"
        found = ", ".join(f"{name}.id, {name}.content" for name in names if f"({name}" in middle) or "1"
        return f"{middle} RETURN {pick(('', 'DISTINCT '))}{found}, count(*)"

    def _passed(self) -> str:
        pick = self._random.choice
        return pick((
            "WITH a",
            "WITH a ORDER BY a.id LIMIT 1",
            "WITH count(a) AS counted, min(a.id) AS least MATCH (a {id: least})",
            "WITH a, a.id AS own",
            "",
        ))  # fmt: skip

    def _match(self, names: str) -> str:
        pick = self._random.choice
        one, other = (self._node(name) for name in names)
        lone, arrow = self._node(names[0]), pick(("-[]->", "<-[]-", "-[]-", "-[{relation_type: 'R'}]->"))
        pattern = pick((lone, lone, f"{one}{arrow}{other}", f"{one}, {other}", f"{lone}, ({names[0]}){arrow}{other}"))
        return f"{pick(('MATCH',) * 9 + ('OPTIONAL MATCH',))} {pattern}{self._where(names[0])}"

    def _node(self, name: str) -> str:
        pick = self._random.choice
        id_, own = pick(IDS), pick(TYPES)
        return pick((
            f"({name})", f"({name} {{id: '{id_}'}})", f"({name}:Entity {{type: '{own}'}})", f"({name} {{id: $id}})",
            f"({name} {{id: {{type: 'none', id: '{id_}'}}.id}})",
        ))  # fmt: skip

    def _where(self, name: str) -> str:
        pick = self._random.choice
        if pick((True, False, False)):
            return ""
        terms = [self._term(name) for _ in range(pick((1, 2)))]
        return f" WHERE {pick((' AND ', ' AND ', ' OR ')).join(terms)}"

    def _term(self, name: str) -> str:
        pick = self._random.choice
        id_, own, word = pick(IDS), pick(TYPES), pick(WORDS)
        return pick((
            f"{name}.id = '{id_}'", f"{name}.type = $type", f"{name}.id {pick(('<', '>=', '<>'))} '{id_}'",
            f"NOT {name}.type = '{own}'",
            f"{name}.content {pick(('STARTS WITH', 'CONTAINS', 'ENDS WITH'))} '{word[0]}'",
            f"{name}.type = '{own}' AND {name}.content = '{word}'",
            f"CASE WHEN {name}.id = '{id_}' AND {name}.type = '{own}' AND true THEN false ELSE true END",
            pick((
                f"({name})-[]->(:Entity {{id: '{id_}'}})", f"NOT ({name})<-[]-()",
                f"EXISTS {{ MATCH ({name})-[]->(:Entity {{type: '{own}'}}) }}", f"COUNT {{ MATCH ({name})-[]-() }} > 1",
            )),
        ))  # fmt: skip


def answered(bare: ReferenceEngine, text: str, parameters: dict[str, Any]) -> Rows:
    return sorted(bare.run(text, parameters), key=repr)


@pytest.mark.parametrize("seed", range(8))
def test_changes_outside_the_footprint_do_not_affect_the_answer(seed: int) -> None:
    source = random.Random(seed)
    questions, unmet = Questions(source), 0
    before = Graph(source)
    was, now = ReferenceEngine(), ReferenceEngine()
    was.fill(before.rows())
    after = copy.deepcopy(before)
    after.disturb()
    now.fill(after.rows())
    for _ in range(60):
        given = {"id": source.choice(IDS), "type": source.choice(TYPES)}
        statement = validate_cypher_statement_for_engine(questions.next(), given, writable=False)
        answer = answered(was, statement.text, statement.parameters)
        footprint = ReadFootprint(statement)
        if not can_statement_match_changes(footprint, before.nodes.get, after.new, after.changed, after.touched):
            unmet += 1
            assert answered(now, statement.text, statement.parameters) == answer, statement.text
    assert unmet > 3


ROWS = {row.id: row for row in (node("a", "t", "x"), node("b", "u", "y"))}


@pytest.mark.parametrize(
    ("query", "new", "changed", "edges"),
    [
        ("MATCH (n {id: 'q'}) SET n.content = 'x'", [node("c", "t", "")], ["b"], [("a", "b", "R")]),
        ("MATCH (n) WHERE n.type = 'q' AND n.content <> '' DETACH DELETE n", [node("c", "t", "")], ["a"], []),
        ("MATCH (n) WHERE n.id STARTS WITH $id WITH n LIMIT 9 DELETE n", [node("c", "t", "")], ["a", "b"], []),
        ("MATCH (n {type: 't'})-[r]->(m) DELETE r", [node("c", "t", "")], [], []),
        ("MATCH (n {type: 't'})-[r]->(m {id: 'a'}) DELETE r", [], [], [("a", "b", "R"), ("b", "b", "R")]),
        ("MATCH (n {id: 'q'}) SET n.content = 'x'", [], [], [("a", "b", "R")]),
        ("MERGE (n:Entity {id: 'q'}) SET n.type = 'x'", [node("c", "t", "")], [node("a", "z", "")], []),
        ("CREATE (n:Entity {id: 'q', type: 't'})", [node("c", "t", "")], ["a"], [("a", "b", "R")]),
        ("MATCH (n {id: 'q'}), (m {id: 'r'}) MERGE (n)-[:RELATES_TO {relation_type: 'R'}]->(m)", [], ["a", "b"], []),
    ],
)  # fmt: skip
def test_unrelated_changes_are_not_in_the_footprint(
    query: str, new: list[NodeRow], changed: list[NodeRow | str], edges: list[EdgeKey]
) -> None:
    footprint = ReadFootprint(validate_cypher_statement_for_engine(query, {"id": "q"}, writable=True))
    assert not can_statement_match_changes(footprint, ROWS.get, new, changed, edges)


@pytest.mark.parametrize(
    "query",
    [
        # A MERGE also creates edges for nodes that have none.
        "MATCH (n {type: 't'}) MERGE (n)-[:RELATES_TO {relation_type: 'R'}]->(m:Entity {id: 'q', type: 't'})",
        "MATCH (n) WITH n LIMIT 1 MATCH (m {id: 'a'}) WHERE n.type = 'q' SET m.content = 'x'",
        "MATCH (n) SET n.content = 'x' WITH n MATCH (m {id: 'q'}) WHERE n.type = 'q' SET m.content = 'x'",
        "MATCH (n {type: 'q'}) SET n.content = 'x' WITH 1 AS one MATCH (n) SET n.content = 'x'",
    ],
)
def test_new_nodes_in_the_footprint(query: str) -> None:
    footprint = ReadFootprint(validate_cypher_statement_for_engine(query, {}, writable=True))
    assert can_statement_match_changes(footprint, ROWS.get, [node("c", "t", "")], [], [])
