from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.errors import InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher import point_lookup
from kgserve.graph.cypher.engine_read_statements import (
    StatementCancellation,
    collect_cypher_rows_up_to_size_limit,
    open_engine_read_statement_result,
)
from kgserve.graph.cypher.iso_temporal_answers import wrap_cursor_with_temporal_texts
from kgserve.graph.cypher.point_lookup import find_point_lookup, has_string_lookup_id
from kgserve.graph.cypher.result_streams import stream_statement_result, try_answer_known_point_lookup
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import fill, write
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

NODES: list[dict[str, Any]] = [
    {"id": "a", "type": "t", "content": "text", "attributes": {"k": [1, None]}, "summary": "s", "tags": ["x", "y"]},
    {"id": "b", "type": "t"},
    {"id": "5", "type": "t", "content": "fünf \u2028"},
    {"id": "dated", "type": "t", "attributes": {"at": {"$date": "2026-01-02"}}},
    {"id": "bounded", "type": "t", "valid_from": "2024-01-01T00:00:00Z"},
]
LOOKUPS = (
    "MATCH (n {id: $id}) RETURN n.content",
    "MATCH (n:Entity {id: $id}) RETURN n.id, n.content AS c, n.attributes, n.version",
    "MATCH (n:Entity) WHERE n.id = $id RETURN n.summary AS s, n.tags AS t, n.sequence, n.created_by",
    "MATCH (n:Entity {id: $id}) RETURN n.type, n.created_at, n.updated_at AS u",
    "MATCH (n {id: $id}) RETURN n",
    "MATCH (n:Entity) WHERE n.id = $id RETURN n.id, n AS node, n.attributes",
)
COUNTS = (
    "MATCH (a {id: $id})-->() RETURN count(*)",
    "MATCH (a:Entity {id: $id})<-[r:RELATES_TO]-(b:Entity) RETURN count(*) AS c",
    "MATCH (a {id: $id})-->()-->(c) RETURN count(*)",
    "MATCH (a {id: $id})-->(b)<--(c) RETURN count(*)",
    "MATCH (a {id: $id})<-[r]-(b)-[s]->() RETURN count(*)",
    "MATCH (a)<--()<--() WHERE a.id = $id RETURN count(*)",
)
OTHERS = (
    "MATCH (n {id: $id}) RETURN n.valid_from",
    "MATCH (n {id: $id}) RETURN m",
    "MATCH (n {id: $id}) RETURN n.name",
    "MATCH p = (n {id: $id}) RETURN n",
    "MATCH (n {id: $id})--() RETURN count(*)",
    "MATCH (n {id: $id})-->(n) RETURN count(*)",
    "MATCH (n {id: $id})-[r]->()-[r]->() RETURN count(*)",
    "MATCH (n {id: $id})-[:R]->() RETURN count(*)",
    "MATCH (n {id: $id})-->({id: 'b'}) RETURN count(*)",
    "MATCH (n {id: $id})-[*1..2]->() RETURN count(*)",
    "MATCH (n {id: $id})-[{weight: 1.0}]->() RETURN count(*)",
    "MATCH (n {id: $id})-->(m) RETURN count(m)",
    "MATCH (n {id: $id})-->() RETURN count(*), n.id",
    "MATCH (n {id: $id})-->()-->()-->() RETURN count(*)",
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
        guarded = validate_cypher_statement_for_engine(text, parameters, writable=False)
        with open_engine_read_statement_result(
            graph_of(pool, NAME), guarded, 10.0, None, StatementCancellation()
        ) as cursor:
            return collect_cypher_rows_up_to_size_limit(wrap_cursor_with_temporal_texts(cursor))
    except InvalidInput as error:
        return error.message


@pytest.mark.parametrize("node_id", ["a", "b", "5", "dated", "bounded", "missing", 5, None, True], ids=repr)
@pytest.mark.parametrize("text", LOOKUPS)
def test_point_lookups_answer_as_the_engine_does(pool: StorePool, text: str, node_id: Any) -> None:
    expected = ask_engine(pool, text, {"id": node_id})
    found = run_cypher_request(graph_of(pool, NAME), CypherRequest(query=text, params={"id": node_id}))
    if isinstance(expected, str):  # the engine refuses values of other types; they equal no id
        assert not isinstance(node_id, str)
        assert found.rows == []
    else:
        assert (found.rows, found.types) == (expected.rows, expected.types)


@pytest.mark.parametrize("text", LOOKUPS + COUNTS)
def test_point_lookups_are_recognized(text: str) -> None:
    lookup = find_point_lookup(parse_cypher_query(text))
    assert lookup is not None
    assert [has_string_lookup_id(lookup, {"id": value}) for value in ("a", 5, None)] == [True, False, False]


@pytest.mark.parametrize("text", OTHERS)
def test_other_statements_are_no_point_lookups(text: str) -> None:
    assert find_point_lookup(parse_cypher_query(text)) is None


@pytest.mark.parametrize("query", COUNTS)
def test_paths_are_counted_as_the_engine_does(tangled: StorePool, query: str) -> None:
    for node_id in (*TANGLED, "missing"):
        expected = ask_engine(tangled, query, {"id": node_id})
        found = run_cypher_request(graph_of(tangled, NAME), CypherRequest(query=query, params={"id": node_id}))
        assert isinstance(expected, CypherAnswer)
        assert (node_id, found.rows, found.types) == (node_id, expected.rows, expected.types)


TANGLED = "abcdefgh"


@pytest.fixture(scope="module")
def tangled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    """Yield a store of random edges, loops and parallel ones among them; some have changed since the base."""
    choice = random.Random(3)
    nodes = [{"id": name, "type": "t"} for name in TANGLED]
    keys = sorted({(choice.choice(TANGLED), choice.choice(TANGLED), choice.choice("RS")) for _ in range(40)})
    edges = [{"from": source, "to": target, "relation_type": type_} for source, target, type_ in keys]
    with StorePool(settings(tmp_path_factory.mktemp("tangled") / "data")) as pool:
        fill(pool, nodes, edges[:30])
        with pool.lease(NAME) as store:
            store.rows.fold()
        fill(pool, [], edges[30:])
        write(pool, "MATCH (a {id: 'c'})-[r]->() DELETE r")
        write(pool, "MATCH (a {id: 'h'}) DETACH DELETE a")
        yield pool


def test_known_lookups_answer_without_blocking_as_in_a_thread(pool: StorePool) -> None:
    for text in (*LOOKUPS, *COUNTS):
        for node_id in ("a", "missing"):
            request = CypherRequest(query=f"/* known */ {text}", params={"id": node_id}, max_rows=len(node_id) - 1)
            with closing(stream_statement_result(graph_of(pool, NAME), request, "json")) as rows:
                expected = b"".join(rows)
            found = try_answer_known_point_lookup(graph_of(pool, NAME), request)
            assert found is not None
            assert untimed(found) == untimed(expected)


def untimed(answer: bytes) -> bytes:
    return re.sub(rb'"took_ms":[0-9.]+', b"", answer)


def test_what_may_block_is_no_known_lookup(tangled: StorePool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, query = graph_of(tangled, NAME), "/* 2 */ MATCH (a {id: $id})-->()-->() RETURN count(*)"
    request = CypherRequest(query=query, params={"id": "a"})
    assert try_answer_known_point_lookup(graph, request) is None  # not seen yet
    expected = run_cypher_request(graph, request).rows
    assert try_answer_known_point_lookup(graph, request) is not None
    assert try_answer_known_point_lookup(graph_of(tangled, "closed"), request) is None
    for params in ({"id": "a" * 10_000}, {"id": 5, "more": [1]}, dict.fromkeys("abcdefghij", "a")):
        assert try_answer_known_point_lookup(graph, CypherRequest(query=query, params=params)) is None
    monkeypatch.setattr(point_lookup, "MAX_COUNTED_EDGES", 1)
    assert try_answer_known_point_lookup(graph, request) is None
    assert run_cypher_request(graph, request).rows == expected  # counted by the engine
