"""Store of the product with a small graph, and conversion of its answers to values of the reference interpreter."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta
from pathlib import Path as Folder
from typing import Any

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.errors import Internal, KgserveError, Unavailable
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import StatementCancellation, collect_cypher_rows_up_to_size_limit
from kgserve.graph.cypher.interpreted_statements import (
    InterpretedWrite,
    open_interpreted_result,
    parse_and_check_interpreted_statement,
)
from kgserve.graph.cypher.statement_execution import StatementRouter, run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.settings import EngineName, Settings
from kgserve.storage.model.node_edge_fields import EDGE, NODE, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.values import EPOCH, Node, Path, Relationship, Timestamp

STORE = "differential"
MAX_ROWS = 10_000
SECONDS = 60.0
NODE_COLUMNS = tuple(field.name for field in NODE.whole)
EDGE_COLUMNS = tuple(field.name for field in EDGE.whole[2:])
_DAY = 86_400_000_000
_TEXTS = (
    "", "a", "Ab", "1", "1.0", "true", "null", "node 1", "É ü ß", "日本", "x😀y", "it's", 'say "hi"', "a\\b",
    "two\nlines", " padded ", "tab\there", "%_", "a.c", "é",
)  # fmt: skip


class Outcome(msgspec.Struct):
    """Rows, or an error; `is_lost` if the engine failed instead of rejecting the statement.

    `is_static` is true of an error found before the statement runs.
    """

    rows: list[list[Any]] = []
    error: str = ""
    is_lost: bool = False
    is_static: bool = False


class StatementStore:
    """Store whose Cypher statements run on one engine, or in the interpreter."""

    def __init__(self, folder: Folder, engine: EngineName, content: WriteBatch) -> None:
        """Create the store with nodes and edges."""
        self._pool = StorePool(
            Settings(data_dir=folder, engine=engine, buffer_pool_mb=64, check_interval=0, indexes="none")
        )
        self._graphs = CallerStoreHandles(self._pool)
        self.fill(content)

    def fill(self, content: WriteBatch) -> None:
        """Write nodes and edges."""
        with self._pool.lease(STORE, create=True) as store:
            store.submit(content).result(30)

    def ask(self, text: str, parameters: dict[str, Any], *, writes: bool = False) -> Outcome:
        """Return the product's answer."""
        sent = {name: str(value) if isinstance(value, Timestamp) else value for name, value in parameters.items()}
        request = CypherRequest(query=text, params=sent, mode="write" if writes else "read", max_rows=MAX_ROWS)
        try:
            answer = run_cypher_request(self._graphs.graph(STORE), request)
        except (Internal, Unavailable) as error:
            return Outcome(error=f"{type(error).__name__}: {error}", is_lost=True)
        except KgserveError as error:
            return Outcome(error=f"{type(error).__name__}: {error}")
        return _read_answer(answer)

    def is_for_engine(self, text: str, parameters: dict[str, Any]) -> bool:
        """Return whether the engine runs a reading statement."""
        try:
            return isinstance(
                StatementRouter(CypherRequest(query=text, params=parameters)).statement, GuardedCypherStatement
            )
        except KgserveError:
            return False

    def interpret(self, text: str, parameters: dict[str, Any], *, writes: bool = False) -> Outcome:
        """Return the interpreter's answer."""
        graph = self._graphs.graph(STORE)
        try:
            statement = parse_and_check_interpreted_statement(text, parameters)
        except KgserveError as error:
            return Outcome(error=f"{type(error).__name__}: {error}", is_static=True)
        try:
            if writes:
                with graph.lease() as store:
                    return _read_answer(
                        InterpretedWrite(store, statement, MAX_ROWS, SECONDS, StatementCancellation()).run()
                    )
            with open_interpreted_result(graph, statement, SECONDS, MAX_ROWS, StatementCancellation()) as cursor:
                answer = collect_cypher_rows_up_to_size_limit(cursor)
        except KgserveError as error:
            return Outcome(error=f"{type(error).__name__}: {error}")
        return _read_answer(answer)

    def close(self) -> None:
        """Close the store."""
        self._pool.close()


class ProductStore(StatementStore):
    """Store of a graph with all columns."""

    def __init__(self, folder: Folder, engine: EngineName, *, has_loops: bool) -> None:
        """Create the store; `has_loops` adds relationships from a node to itself."""
        edges = [edge for edge in _edges() if has_loops or edge.key[0] != edge.key[1]]
        super().__init__(folder, engine, WriteBatch(nodes=_nodes(), edges=edges))

    def graph(self) -> Graph:
        """Return the stored graph."""
        shown = ", ".join(f"n.{name} AS {name}" for name in NODE_COLUMNS)
        nodes = self._read(f"MATCH (n:Entity) RETURN {shown}")
        shown = ", ".join(("a.id AS source", "b.id AS target", *(f"r.{name} AS {name}" for name in EDGE_COLUMNS)))
        edges = self._read(f"MATCH (a:Entity)-[r:RELATES_TO]->(b:Entity) RETURN {shown}")
        return Graph(
            [Node(row[0], dict(zip(NODE_COLUMNS, row, strict=True))) for row in nodes],
            [Relationship(row[0], row[1], dict(zip(EDGE_COLUMNS, row[2:], strict=True))) for row in edges],
        )

    def stored(self, node: str, name: str) -> Any:
        """Return a stored property of a node, read from the rows of the store."""
        with self._pool.lease(STORE) as store, store.rows.reading() as rows:
            [row] = [row for row in rows.all_nodes() if row.id == node]
        return getattr(row, name) if hasattr(row, name) else getattr(row.extras, name, None)

    def _read(self, text: str) -> list[list[Any]]:
        outcome = self.ask(text, {})
        if outcome.error:
            raise RuntimeError(outcome.error)
        return outcome.rows


def _read_answer(answer: CypherAnswer) -> Outcome:
    return Outcome([
        [read_value(value, kind) for value, kind in zip(row, answer.types, strict=True)] for row in answer.rows
    ])  # fmt: skip


def read_value(value: Any, kind: str = "") -> Any:  # noqa: PLR0911 - one line for each form
    """Convert an answer's value to the reference interpreter's, by the engine's type name."""
    if isinstance(value, str):
        return _scalar(value, kind)
    if isinstance(value, list):
        return [read_value(each, kind.removesuffix("[]")) for each in value]
    if not isinstance(value, dict):
        return value
    if "_from" in value:
        return Relationship(value["_from"], value["_to"], value)
    if "_label" in value:
        return Node(value["id"], value)
    if value.keys() == {"nodes", "relations"}:
        return Path(*(tuple(map(read_value, value[part])) for part in ("nodes", "relations")))
    fields = _fields(kind)
    return {name: read_value(each, fields.get(name, "")) for name, each in value.items()}


def _scalar(value: str, kind: str) -> Any:
    if kind in {"DOUBLE", "FLOAT"}:
        return float(value)
    if kind.startswith(("TIMESTAMP", "ZONED_DATETIME")) and value.endswith("Z"):
        return Timestamp((datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1))
    return value


def _fields(kind: str) -> dict[str, str]:
    """Return the fields of a STRUCT type, by name."""
    match = re.fullmatch(r"STRUCT\((.*)\)", kind)
    if match is None:
        return {}
    found, depth, start = dict[str, str](), 0, 0
    text = f"{match[1]},"
    for at, each in enumerate(text):
        depth += (each == "(") - (each == ")")
        if each == "," and not depth:
            name, _, type_ = text[start:at].strip().partition(" ")
            found[name.strip("`")] = type_
            start = at + 1
    return found


def _nodes() -> list[NodeUpsert]:
    choice = random.Random(0)
    plain = [
        NodeUpsert(n, f"n{n}", choice.choice(("Task", "Test", "note")), text, "{}") for n, text in enumerate(_TEXTS)
    ]
    return [msgspec.structs.replace(each, extras=_extras(choice) if each.index % 3 else None) for each in plain]


def _extras(choice: random.Random) -> NodeExtrasUpsert:
    def maybe(value: Any) -> Any:
        return value if choice.random() < 0.6 else None

    return NodeExtrasUpsert(
        summary=choice.choice(_TEXTS),
        tags=tuple(choice.choice(_TEXTS) for _ in range(choice.randrange(3))),
        freshness_at=maybe(choice.randrange(2_000) * 10 * _DAY),
        created_by=choice.choice(("ann", "bob")),
        valid_from=maybe(choice.randrange(20_000) * _DAY + choice.randrange(_DAY)),
        valid_to=maybe(20_000 * _DAY),
        name=choice.choice(_TEXTS),
        confidence=maybe(choice.choice((0.0, 0.25, 0.5, 1.0))),
        importance=maybe(choice.choice((0.0, 0.1, 1.0))),
        source=choice.choice(_TEXTS),
        context=choice.choice(_TEXTS),
        layer=maybe(choice.randrange(4)),
    )


def _edges() -> list[EdgeUpsert]:
    choice = random.Random(1)
    keys = {
        (f"n{choice.randrange(12)}", f"n{choice.randrange(12)}", choice.choice(("KNOWS", "uses"))) for _ in range(16)
    }
    keys |= {("n1", "n2", "KNOWS"), ("n1", "n2", "uses"), ("n2", "n1", "KNOWS"), ("n3", "n3", "uses")}
    weights = (0.0, 0.5, 1.0, 2.5, None)
    return [
        EdgeUpsert(
            n,
            key,
            choice.choice(weights),
            extras=EdgeExtrasUpsert(
                ordinal=choice.choice((None, 0, 1, 7)),
                valid_from=choice.choice((None, 10_000 * _DAY)),
                confidence=choice.choice((None, 0.5, 1.0)),
                context=choice.choice(_TEXTS),
            )
            if n % 2
            else None,
        )
        for n, key in enumerate(sorted(keys))
    ]
