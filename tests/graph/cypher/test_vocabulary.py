"""Words of a store for the completion of statements, and the example statement of its description."""

from __future__ import annotations

from typing import Any

import pytest

from kgserve.graph.cypher import vocabulary
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.cypher.vocabulary import build_example_cypher_statement, list_cypher_completion_words
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import fill, write
from tests.graphs import graph_of
from tests.stores.writing import NAME


def node(id_: str, type_: str, **attributes: Any) -> dict[str, Any]:
    return {"id": id_, "type": type_, "attributes": attributes}


TASKS = [node(f"t{at}", "task", state="open", **({"due date": "May"} if at % 2 else {})) for at in range(6)]
PEOPLE = [node("p", "person of note", born=1815)]
EDGES = [
    *({"from": f"t{at}", "to": f"t{at + 1}", "relation_type": "BLOCKS", "attributes": {"why": 1}} for at in range(4)),
    {"from": "p", "to": "t0", "relation_type": "OWNS"},
]


def test_words_are_the_names_in_use(pool: StorePool) -> None:
    fill(pool, TASKS + PEOPLE, EDGES)
    write(pool, "MATCH (n:t) DETACH DELETE n")
    write(pool, "CREATE ({id: 'bare', shade: 'red'})-[:OWNS {since: 2020}]->(:task {id: 'last', owner: 'p'})")
    words = list_cypher_completion_words(graph_of(pool, NAME))
    assert [*words.labels.items()] == [("task", ["state", "due date", "owner"]), ("person of note", ["born"])]
    assert [*words.relation_types.items()] == [("BLOCKS", ["why"]), ("OWNS", ["since"])]
    assert {"id", "content", "tags"} <= set(words.node_properties)
    assert {"relation_type", "weight"} <= set(words.relation_properties)
    assert {"REMOVE", "MATCH"} <= set(words.keywords)
    assert {"toUpper", "list_concat", "duration.inDays"} <= set(words.functions)
    assert {"db.labels", "show_tables"} <= set(words.procedures)


def test_sample_is_bounded(pool: StorePool, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(pool, [node(f"t{at:03}", "task", **{f"a{at:03}": 1}) for at in range(100)], [])
    monkeypatch.setattr(vocabulary, "MAX_SAMPLED_ROWS_PER_TYPE", 10)
    assert len(list_cypher_completion_words(graph_of(pool, NAME)).labels["task"]) == 10
    monkeypatch.setattr(vocabulary, "MAX_SAMPLED_ROWS", 4)
    assert len(list_cypher_completion_words(graph_of(pool, NAME)).labels["task"]) == 2, (
        "half of four, as there are two labels"
    )


def test_example_finds_something(pool: StorePool) -> None:
    assert build_example_cypher_statement(graph_of(pool, NAME)) == "MATCH (a:t)-[:R]->(b:t) RETURN a.id, b.id LIMIT 10"
    fill(pool, TASKS + PEOPLE, EDGES)
    example = build_example_cypher_statement(graph_of(pool, NAME))
    assert example == "MATCH (a:task)-[:BLOCKS]->(b:task) RETURN a.id, a.state, b.id LIMIT 10"
    found = run_cypher_request(graph_of(pool, NAME), CypherRequest(query=example))
    assert sorted(found.rows) == [[f"t{at}", "open", f"t{at + 1}"] for at in range(4)]


def test_example_of_a_store_without_relations_or_nodes(pool: StorePool) -> None:
    write(pool, "MATCH (n) DETACH DELETE n")
    assert build_example_cypher_statement(graph_of(pool, NAME)) == ""
    fill(pool, [node("p", "person of note", **{"due date": 1})], [])
    example = build_example_cypher_statement(graph_of(pool, NAME))
    assert example == "MATCH (a:`person of note`) RETURN a.id, a.`due date` LIMIT 10"
    assert run_cypher_request(graph_of(pool, NAME), CypherRequest(query=example)).rows == [["p", 1]]
    write(pool, "MATCH (n) DETACH DELETE n")
    fill(pool, [node("x", "y" * 400)], [])
    assert build_example_cypher_statement(graph_of(pool, NAME)) == ""
