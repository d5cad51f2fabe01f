from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgserve.cypher.guard import guard_statement
from kgserve.cypher.interpreter.parser import parse_query
from kgserve.errors import InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.point_lookup import find_point_lookup
from kgserve.graph.cypher.read_statements import StatementCancellation, collect_answer, open_result
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import fill
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

NODES: list[dict[str, Any]] = [
    {"id": "a", "type": "t", "content": "text", "attributes": {"k": [1, None]}, "summary": "s", "tags": ["x", "y"]},
    {"id": "b", "type": "t"},
    {"id": "5", "type": "t", "content": "five"},
]
LOOKUPS = (
    "MATCH (n {id: $id}) RETURN n.content",
    "MATCH (n:Entity {id: $id}) RETURN n.id, n.content AS c, n.attributes, n.version",
    "MATCH (n:Entity) WHERE n.id = $id RETURN n.summary AS s, n.tags AS t, n.sequence, n.created_by",
)
OTHERS = (
    "MATCH (n {id: $id}) RETURN n.created_at",
    "MATCH (n {id: $id}) RETURN n.type",
    "MATCH (n {id: $id}) RETURN n",
    "MATCH (n {id: $id}) RETURN n.name",
    "MATCH (n {id: $id}) RETURN n.id LIMIT 1",
    "MATCH (n {id: $id}) RETURN DISTINCT n.id",
    "MATCH (n {id: $id})-->() RETURN n.id",
    "MATCH (n {id: $id, content: 'text'}) RETURN n.id",
    "MATCH (n {id: $id}) WHERE n.version = 1 RETURN n.id",
    "MATCH (n) WHERE n.id <> $id RETURN n.id",
    "OPTIONAL MATCH (n {id: $id}) RETURN n.id",
    "MATCH (n {id: $id + ''}) RETURN n.id",
    "MATCH (n:t {id: $id}) RETURN n.id",
    "MATCH (n {id: $id}) RETURN n.id UNION MATCH (n {id: $id}) RETURN n.id",
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    folder: Path = tmp_path_factory.mktemp("lookups")
    with StorePool(settings(folder / "data")) as pool:
        fill(pool, NODES, [])
        yield pool


def ask_engine(pool: StorePool, text: str, parameters: dict[str, Any]) -> CypherAnswer | str:
    try:
        guarded = guard_statement(text, parameters, writable=False)
        with open_result(graph_of(pool, NAME), guarded, 10.0, None, StatementCancellation()) as cursor:
            return collect_answer(cursor)
    except InvalidInput as error:
        return error.message


@pytest.mark.parametrize("node_id", ["a", "b", "5", "missing", 5, None, True], ids=repr)
@pytest.mark.parametrize("text", LOOKUPS)
def test_point_lookups_answer_as_the_engine_does(pool: StorePool, text: str, node_id: Any) -> None:
    expected = ask_engine(pool, text, {"id": node_id})
    found = run_cypher_request(graph_of(pool, NAME), CypherRequest(query=text, params={"id": node_id}))
    if isinstance(expected, str):  # the engine refuses values of other types; they equal no id
        assert not isinstance(node_id, str)
        assert found.rows == []
    else:
        assert (found.rows, found.types) == (expected.rows, expected.types)


@pytest.mark.parametrize("text", LOOKUPS)
def test_point_lookups_are_recognized(text: str) -> None:
    lookup = find_point_lookup(parse_query(text))
    assert lookup is not None
    assert [lookup.accepts({"id": value}) for value in ("a", 5, None)] == [True, False, False]


@pytest.mark.parametrize("text", OTHERS)
def test_other_statements_are_no_point_lookups(text: str) -> None:
    assert find_point_lookup(parse_query(text)) is None
