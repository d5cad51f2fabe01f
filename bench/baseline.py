"""Baseline: the bare engine with the same rows, without server and journal, and the duration of one synced write."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from bench.graphs import Record, Rows
from bench.measure import clock, times
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database, QueryResult

SCHEMA = Path(__file__).parent.parent / "schema"
# The edges of WordNet in one statement overflow a pool of 256 MiB.
POOL_BYTES = 1 << 30
RECORD_BYTES = 2_048
"""Approximate size of a journal record of 5 nodes and 5 edges."""
LOAD_NODES = (
    "LOAD FROM $rows CREATE (n:Entity {id: i, type: t, content: c, attributes: a,"
    " version: 1, sequence: 1, created_at: m, updated_at: m})"
)
LOAD_EDGES = (
    "LOAD FROM $rows MATCH (x:Entity {id: f}) WITH x, o, r MATCH (y:Entity {id: o})"
    " CREATE (x)-[:RELATES_TO {relation_type: r, weight: 1.0, attributes: '{}', version: 1, sequence: 1}]->(y)"
)


class BareEngine:
    """A bare database with the server's options: no automatic checkpoints, bounded address space."""

    def __init__(self, path: Path) -> None:
        assert importlib.util  # the engine's Arrow scan fails where it is not imported
        self._database = Database(str(path), buffer_pool_size=POOL_BYTES, max_db_size=1 << 36, max_num_threads=2)
        self._connection = Connection(self._database)
        self.run("CALL auto_checkpoint=false")
        self.run("CALL force_checkpoint_on_close=false")

    def load(self, rows: Rows) -> float:
        """Create the schema and insert all rows in one transaction with Arrow scans; return the seconds of the rows."""
        for path in sorted(SCHEMA.glob("*.cypher")):
            text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("//"))
            for statement in filter(str.strip, text.split(";")):
                self.run(statement)
        nodes, edges = _node_table(rows.nodes), _edge_table(rows.edges)
        start = time.perf_counter()
        self.run("BEGIN TRANSACTION")
        self.run(LOAD_NODES, {"rows": nodes})
        self.run(LOAD_EDGES, {"rows": edges})
        self.run("COMMIT")
        return time.perf_counter() - start

    def run(self, query: str, values: dict[str, Any] | None = None) -> list[Any]:
        """Parse, plan and execute; return all rows."""
        result = self._connection.execute(query, values or {})
        assert isinstance(result, QueryResult)
        rows = result.get_all()
        result.close()
        return rows

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._database.close()


def measure_fdatasync(folder: Path, repetitions: int = 100) -> float:
    """Return the milliseconds of one record appended and synced in `folder`, p50."""
    path, record = folder / "synced", os.urandom(RECORD_BYTES)
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(record)
            os.fdatasync(file.fileno())

        took = times([clock(write) for _ in range(repetitions)]).p50
    path.unlink()
    return took


def _node_table(nodes: Sequence[Record]) -> Any:
    columns = {short: [node[name] for node in nodes] for short, name in (("i", "id"), ("t", "type"), ("c", "content"))}
    attributes = [msgspec.json.encode(node["attributes"]).decode() for node in nodes]
    return pa.table({**columns, "a": attributes, "m": pa.array([0] * len(nodes), pa.timestamp("us"))})


def _edge_table(edges: Sequence[Record]) -> Any:
    return pa.table(
        {short: [edge[name] for edge in edges] for short, name in (("f", "from"), ("o", "to"), ("r", "relation_type"))}
    )
