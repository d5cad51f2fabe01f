"""What the bare engine does with the same rows, without server and journal.

Each baseline runs in a process of its own: `python -m bench.baseline NAME` reads its arguments as JSON from standard
input and prints its figures as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast

import msgspec
import pyarrow as pa

from bench.measure import clock
from kgserve.projections.cypher_engine.driver.binding import Connection, Database, PreparedStatement, QueryResult

SCHEMA = Path(__file__).parent.parent / "schema"
MEBIBYTE = 1 << 20
# The edges of WordNet in one statement overflow a pool of 256 MiB.
POOL_MB = 1024
NOW = 1_752_580_800_000_000
STAMPS = '{"created_at":"2025-07-15T12:00:00.000000Z","updated_at":"2025-07-15T12:00:00.000000Z"}'

LOAD_NODES = (
    "LOAD FROM $rows CREATE (n:Entity {id: i, type: t, content: c, attributes: a,"
    " version: 1, sequence: 1, created_at: m, updated_at: m})"
)
LOAD_EDGES = (
    "LOAD FROM $rows MATCH (x:Entity {id: f}) WITH x, o, r, w, a MATCH (y:Entity {id: o})"
    " CREATE (x)-[:RELATES_TO {relation_type: r, weight: w, attributes: a, version: 1, sequence: 1}]->(y)"
)
# The statements of the system that the API comes from: one MERGE per row.
MERGE_NODE = "MERGE (e:Entity {id: $id}) SET e.type = $type, e.content = $content, e.attributes = $attributes"
MERGE_EDGE = (
    "MATCH (a:Entity {id: $source}), (b:Entity {id: $target})"
    " MERGE (a)-[r:RELATES_TO {relation_type: $relation_type}]->(b) SET r.weight = $weight, r.attributes = $attributes"
)
# Its traversal: every walk, gathered into a list; then the edges whose ends are both in the list. In one query, with
# `collect`, the engine takes 0.15 s at depth 1 and answers wrong source ids; with the list as a parameter it is right.
WALK_NODES = (
    "MATCH (s:Entity {id: $id})-[:RELATES_TO*0..%d]->(n:Entity) RETURN DISTINCT n.id, n.type, n.content, n.attributes"
)
WALK_EDGES = (
    "MATCH (s:Entity {id: $id})-[:RELATES_TO*0..%d]->(n:Entity) WITH collect(DISTINCT n.id) AS ids"
    " MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) WHERE a.id IN ids AND b.id IN ids"
    " RETURN a.id, b.id, e.relation_type, e.weight, e.attributes"
)
EDGES_WITHIN = (
    "MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) WHERE a.id IN $ids AND b.id IN $ids"
    " RETURN a.id, b.id, e.relation_type, e.weight, e.attributes"
)
# The fastest that we know: shortest paths, and the edges that leave what they reach.
START = "MATCH (n:Entity {id: $id}) RETURN n.id, n.type, n.content, n.attributes"
OUTGOING = (
    "MATCH (n:Entity {id: $id})-[e:RELATES_TO]->(v:Entity) RETURN n.id, v.id, e.relation_type, e.weight, e.attributes"
)
SHORTEST_NODES = (
    "MATCH (s:Entity {id: $id})-[p:RELATES_TO* SHORTEST 1..%d]->(n:Entity)"
    " RETURN n.id, n.type, n.content, n.attributes, length(p)"
)
SHORTEST_EDGES = (
    "MATCH (s:Entity {id: $id})-[p:RELATES_TO* SHORTEST 1..%d]->(u:Entity)-[e:RELATES_TO]->(v:Entity)"
    " RETURN u.id, v.id, e.relation_type, e.weight, e.attributes"
)

Row = tuple[Any, ...]
Shape = Callable[["Engine", str, int], tuple[list[Row], list[Row]]]


class Engine:
    """One bare database, opened as the server opens its own: no automatic checkpoints, bounded address space."""

    def __init__(self, path: Path, pool_mb: int = POOL_MB) -> None:
        assert importlib.util  # the engine's Arrow scan fails where nobody has imported it
        self.database = Database(path, buffer_pool_size=pool_mb * MEBIBYTE, max_db_size=1 << 36, max_num_threads=2)
        self.connection = Connection(self.database)
        self._prepared: dict[str, PreparedStatement] = {}
        self.run("CALL auto_checkpoint=false")
        self.run("CALL force_checkpoint_on_close=false")

    def create_schema(self) -> None:
        """Execute the project's numbered schema files."""
        for path in sorted(SCHEMA.glob("*.cypher")):
            text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("//"))
            for statement in filter(None, (part.strip() for part in text.split(";"))):
                self.run(statement)

    def run(self, query: str, values: dict[str, Any] | None = None) -> list[Row]:
        """Parse, plan and execute; all rows."""
        return self._rows(self.connection.execute(query, values or {}))

    def run_prepared(self, query: str, values: dict[str, Any]) -> list[Row]:
        """Execute a statement that is parsed and planned once; all rows."""
        if query not in self._prepared:
            self._prepared[query] = self.connection.prepare(query)
        return self._rows(self.connection.execute(self._prepared[query], values))

    @contextmanager
    def transaction(self) -> Generator[None]:
        """One write transaction."""
        self.run("BEGIN TRANSACTION")
        yield
        self.run("COMMIT")

    @staticmethod
    def _rows(result: QueryResult | list[QueryResult]) -> list[Row]:
        assert isinstance(result, QueryResult)
        rows = cast("list[Row]", result.get_all())
        result.close()
        return rows


class Rows(msgspec.Struct):
    """The lines of an exchange file, decoded."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


def read_rows(exchange_file: Path) -> Rows:
    """Decode an exchange file."""
    decode = msgspec.json.Decoder().decode
    with exchange_file.open("rb") as file:
        records = [decode(line) for line in file]
    return Rows([r for r in records if r["kind"] == "node"], [r for r in records if r["kind"] == "edge"])


def node_table(nodes: Sequence[dict[str, Any]]) -> Any:
    """Arrow table for LOAD_NODES."""
    return pa.table(
        {
            "i": [node["id"] for node in nodes],
            "t": [node["type"] for node in nodes],
            "c": [node["content"] for node in nodes],
            "a": [compact(node["attributes"]) for node in nodes],
            "m": pa.array([NOW] * len(nodes), pa.timestamp("us")),
        }
    )


def edge_table(edges: Sequence[dict[str, Any]]) -> Any:
    """Arrow table for LOAD_EDGES."""
    return pa.table(
        {
            "f": [edge["from"] for edge in edges],
            "o": [edge["to"] for edge in edges],
            "r": [edge["relation_type"] for edge in edges],
            "w": [1.0] * len(edges),
            "a": [STAMPS] * len(edges),
        }
    )


def compact(value: object) -> str:
    """Compact JSON text."""
    return msgspec.json.encode(value).decode()


def load(exchange_file: str, database: str) -> dict[str, float]:
    """All rows in one transaction with Arrow scans into a new database; leaves it there. Seconds, in parts."""
    rows = read_rows(Path(exchange_file))
    engine = Engine(Path(database))
    engine.create_schema()
    start = time.perf_counter()
    nodes, edges = node_table(rows.nodes), edge_table(rows.edges)
    built = time.perf_counter()
    with engine.transaction():
        engine.run(LOAD_NODES, {"rows": nodes})
        engine.run(LOAD_EDGES, {"rows": edges})
    end = time.perf_counter()
    return {"tables": built - start, "transaction": end - built, "seconds": end - start}


def merge(exchange_file: str, database: str, sample: int, prepared: bool) -> dict[str, float]:
    """The first `sample` nodes and as many edges between them, a MERGE each, in one transaction. Seconds per row."""
    rows = read_rows(Path(exchange_file))
    nodes = rows.nodes[:sample]
    known = {node["id"] for node in nodes}
    edges = [edge for edge in rows.edges if edge["from"] in known and edge["to"] in known][:sample]
    engine = Engine(Path(database))
    engine.create_schema()
    run = engine.run_prepared if prepared else engine.run
    with engine.transaction():
        node_seconds = _seconds(lambda: [run(MERGE_NODE, _node_values(node)) for node in nodes])
        edge_seconds = _seconds(lambda: [run(MERGE_EDGE, _edge_values(edge)) for edge in edges])
    return {"per_node": node_seconds / len(nodes), "per_edge": edge_seconds / len(edges), "edges": len(edges)}


def traverse(database: str, ids: list[str], depths: list[int]) -> dict[str, dict[str, list[float]]]:
    """Milliseconds per start id, by depth and query shape; the slow shapes on fewer ids."""
    engine = Engine(Path(database))
    engine.run("MATCH (n:Entity) RETURN count(*)")
    few = ids[: max(10, len(ids) // 4)]
    shapes = ((walk_collect, few), (walk_list, few), (shortest, ids), (lookups, ids))
    return {
        str(depth): {shape.__name__: _durations(engine, shape, chosen, depth) for shape, chosen in shapes}
        for depth in depths
    }


def walk_collect(engine: Engine, start: str, depth: int) -> tuple[list[Row], list[Row]]:
    """Nodes and edges around a node by the original query shape; the edges' sources are wrong."""
    values = {"id": start}
    return engine.run(WALK_NODES % depth, values), engine.run(WALK_EDGES % depth, values)


def walk_list(engine: Engine, start: str, depth: int) -> tuple[list[Row], list[Row]]:
    """The original query shape with its list handed back as a parameter."""
    nodes = engine.run(WALK_NODES % depth, {"id": start})
    return nodes, engine.run(EDGES_WITHIN, {"ids": [node[0] for node in nodes]})


def shortest(engine: Engine, start: str, depth: int) -> tuple[list[Row], list[Row]]:
    """Nodes with their distances, and the edges between them: two prepared queries and two look-ups of the start."""
    values = {"id": start}
    nodes = engine.run_prepared(START, values) + engine.run_prepared(SHORTEST_NODES % depth, values)
    edges = engine.run_prepared(OUTGOING, values) + engine.run_prepared(SHORTEST_EDGES % depth, values)
    reached = {node[0] for node in nodes}
    return nodes, [edge for edge in edges if edge[1] in reached]


def lookups(engine: Engine, start: str, depth: int) -> tuple[list[Row], list[Row]]:
    """The same, node by node: a prepared look-up of each node and of its outgoing edges, level by level."""
    nodes = engine.run_prepared(START, {"id": start})
    reached, level, edges = {start}, [start], list[Row]()
    for hop in range(depth + 1):
        found = [edge for node in level for edge in engine.run_prepared(OUTGOING, {"id": node})]
        edges += found
        if hop < depth:
            level = list(dict.fromkeys(edge[1] for edge in found if edge[1] not in reached))
            reached.update(level)
            nodes += [row for node in level for row in engine.run_prepared(START, {"id": node})]
    return nodes, [edge for edge in edges if edge[1] in reached]


def _durations(engine: Engine, shape: Shape, ids: list[str], depth: int) -> list[float]:
    return [clock(lambda start=start: shape(engine, start, depth)) for start in ids]


def _node_values(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": node["id"],
        "type": node["type"],
        "content": node["content"],
        "attributes": compact(node["attributes"]),
    }


def _edge_values(edge: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": edge["from"],
        "target": edge["to"],
        "relation_type": edge["relation_type"],
        "weight": 1.0,
        "attributes": STAMPS,
    }


def _seconds(call: Callable[[], Any]) -> float:
    return clock(call) / 1000


BASELINES: dict[str, Callable[..., dict[str, Any]]] = {"load": load, "merge": merge, "traverse": traverse}


def measure(name: LiteralString, **arguments: object) -> dict[str, Any]:
    """Run a baseline in a process of its own."""
    command = [sys.executable, "-m", "bench.baseline", name]
    done = subprocess.run(command, input=json.dumps(arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"baseline {name} failed: {done.stderr[-2000:]}"
    return json.loads(done.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Connection.prepare is marked deprecated, and is twice as fast
    print(json.dumps(BASELINES[sys.argv[1]](**json.load(sys.stdin))))
