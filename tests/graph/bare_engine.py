"""References for kgserve's Cypher writes: the bare engine, and random statements for both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database, QueryResult  # noqa: TID251 - the reference

SCHEMA = Path(__file__).parents[2] / "schema"
NODE = "MATCH (e:Entity) RETURN e.id, e.type, e.content, e.attributes ORDER BY e.id"
EDGE = """
MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id, k.relation_type, k.weight, k.attributes
ORDER BY x.id, y.id, k.relation_type
"""
Rows = list[list[Any]]


def plain(found: Rows) -> Rows:
    decoded = [(row, msgspec.json.decode(row[-1] or "{}", type=dict[str, Any])) for row in found]
    return [[*row[:-1], {k: v for k, v in own.items() if not k.endswith("ed_at")}] for row, own in decoded]


class ReferenceEngine:
    """A database of the bare engine with the project's schema, without kgserve."""

    def __init__(self) -> None:
        self._database = Database(":memory:", buffer_pool_size=64 << 20, max_db_size=1 << 30)
        self._connection = Connection(self._database)
        for path in sorted(SCHEMA.glob("*.cypher")):
            for statement in filter(str.strip, path.read_text().split(";")):
                self.run(statement)

    def run(self, query: str, parameters: dict[str, Any] | None = None) -> Rows:
        for pattern in ("(n)", "(n {", "(a)", "(b)", "(a {", "(b {"):
            query = query.replace(f"MATCH {pattern}", f"MATCH {pattern[:2]}:Entity{pattern[2:]}")
            query = query.replace(f", {pattern}", f", {pattern[:2]}:Entity{pattern[2:]}")
        result = self._connection.execute(query, parameters or {})
        assert isinstance(result, QueryResult)
        with result:
            return [list(row) for row in result.get_all()]

    def fill(self, found: tuple[Rows, Rows]) -> None:
        for node_id, node_type, content, own in found[0]:
            values = {"i": node_id, "t": node_type, "c": content, "a": text(own)}
            self.run("CREATE (:Entity {id: $i, type: $t, content: $c, attributes: $a})", values)
        for source, target, relation_type, weight, own in found[1]:
            values = {"f": source, "o": target, "r": relation_type, "w": weight, "a": text(own)}
            pattern = "CREATE (x)-[:RELATES_TO {relation_type: $r, weight: $w, attributes: $a}]->(y)"
            self.run(f"MATCH (x:Entity {{id: $f}}), (y:Entity {{id: $o}}) {pattern}", values)

    def rows(self) -> tuple[Rows, Rows]:
        """Return all nodes and edges, with the defaults that kgserve stores instead of null."""
        nodes = [[i, t, c or "", a] for i, t, c, a in self.run(NODE)]
        return plain(nodes), plain([[*key, 1.0 if w is None else w, a] for *key, w, a in self.run(EDGE)])


def text(own: dict[str, Any]) -> str:
    return msgspec.json.encode(own).decode()


class RandomStatements:
    """Random statements of a small grammar that the engine supports."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self) -> str:
        r = self._random
        node, other = (f"n{r.randrange(6)}" for _ in range(2))
        kind, relation, word = r.choice("tuv"), r.choice("RS"), r.choice(["x", "it''s", "ü", ""])
        word = word.replace("''", "\\'")
        where = r.choice([f"{{id: '{node}'}}", f"{{type: '{kind}'}}", ""])
        ends = f"MATCH (a:Entity {{id: '{node}'}}), (b:Entity {{id: '{other}'}})"
        edge = f"(a)-[r:RELATES_TO {{relation_type: '{relation}'}}]->(b)"
        return r.choice([
            f"MERGE (n:Entity {{id: '{node}'}}) ON CREATE SET n.type = '{kind}' ON MATCH SET n.content = '{word}'",
            f"MERGE (n:Entity {{id: '{node}'}}) SET n.type = '{kind}', n.attributes = '{{\"q\":1}}'",
            f"UNWIND range(0, 5) AS i MERGE (n:Entity {{id: 'n' + cast(i AS STRING)}}) SET n.type = '{kind}'",
            f"MATCH (n:Entity {where}) SET n.content = n.content + '{word}', n.attributes = NULL",
            f"MATCH (n:Entity {where}) WHERE n.content = '{word}' SET n.type = '{kind}', n.content = NULL RETURN n",
            f"{ends} MERGE {edge} ON CREATE SET r.weight = 0.25 ON MATCH SET r.weight = coalesce(r.weight, 1.0) + 1",
            f"{ends} MERGE {edge} SET r.attributes = '{{\"w\":\"{relation}\"}}' RETURN r, a",
            f"MATCH (a:Entity {where})-[r:RELATES_TO]->(b:Entity) SET r.weight = NULL",
            f"MATCH (a:Entity {where})-[r:RELATES_TO]->(b:Entity) WHERE a.id <> b.id SET b.content = a.id",
            f"MATCH (a:Entity {where})-[r:RELATES_TO {{relation_type: '{relation}'}}]->(b:Entity) DELETE r",
            f"MATCH (n:Entity {{id: '{node}'}}) DETACH DELETE n",
        ])  # fmt: skip
