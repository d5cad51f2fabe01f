"""Links in Cypher: queried as `(:Entity)-[:LINKS_TO]->(:Elsewhere)`, written over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.asking import ask, post
from tests.server.http.serving import accepted, refusal
from tests.server.http.test_links import fill, link

OUT = (
    "MATCH (a)-[k:LINKS_TO]->(e:Elsewhere)"
    " RETURN a.id, k.relation_type, e.store, e.id, k.weight ORDER BY e.store, e.id, a.id"
)
OWN = {"from": "a", "to": "b", "relation_type": "cites"}


def rows(http: httpx.Client, api: str, query: str, **params: Any) -> list[list[Any]]:
    return ask(http, api, query, **params)["rows"]


def test_cypher_links_follow_changes(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN, link("x", weight=0.5), {**link("x"), "from": "b"})
    assert rows(http, api, "MATCH (n) RETURN count(n)") == [[2]]
    assert rows(http, api, OUT) == [["a", "cites", "elsewhere", "x", 0.5], ["b", "cites", "elsewhere", "x", 1.0]]
    accepted(http.delete(f"{api}/edges/b~cites~x~elsewhere"))
    fill(http, api, link("x", weight=0.25), link("y", to_graph="third"))
    assert rows(http, api, OUT) == [["a", "cites", "elsewhere", "x", 0.25], ["a", "cites", "third", "y", 1.0]]
    accepted(http.delete(f"{api}/nodes/a"))
    assert rows(http, api, OUT) == []
    assert rows(http, api, "MATCH (e:Elsewhere) RETURN e") == []


def test_cypher_link_values(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN, link("x", created_by="ann"))
    [[found, e, path]] = rows(http, api, "MATCH p = (a)-[k:LINKS_TO]->(e:Elsewhere) RETURN k, e, p")
    assert e == {"_label": "Elsewhere", "store": "elsewhere", "id": "x"}
    assert (found["_label"], found["_from"], found["_to"], found["_to_graph"]) == ("LINKS_TO", "a", "x", "elsewhere")
    assert (found["relation_type"], found["version"], found["created_by"]) == ("cites", 1, "ann")
    assert [each["id"] for each in path["nodes"]] == ["a", "x"]


def test_statements_without_links_see_none(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN, link("x"), {**link("x"), "from": "b"}, link("z"))
    asked = {
        "MATCH (n) RETURN n.id ORDER BY n.id": [["a"], ["b"]],
        "MATCH (a)-[r]-(b) RETURN a.id, b.id, label(r) ORDER BY a.id": [
            ["a", "b", "RELATES_TO"],
            ["b", "a", "RELATES_TO"],
        ],
        "MATCH (a)-[*1..2]-(b) RETURN a.id, b.id ORDER BY a.id, b.id": [["a", "b"], ["b", "a"]],
        "MATCH (a) WHERE (a)-[]->() RETURN a.id": [["a"]],
        "MATCH (a) WHERE (a)-->() RETURN a.id": [["a"]],
        "MATCH (a) RETURN a.id, COUNT { MATCH (a)--() } ORDER BY a.id": [["a", 1], ["b", 1]],
    }
    before = {query: rows(http, api, query) for query in asked}
    assert before == asked
    assert rows(http, api, "MATCH (a)-[:LINKS_TO]->(e:Elsewhere) RETURN count(*)") == [[3]]
    assert {query: rows(http, api, query) for query in asked} == before


def test_cypher_names_of_link_targets(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN, link("x"), {**link("x"), "from": "b"})
    for query in (
        "MATCH (e:Elsewhere {store: 'elsewhere'}) MATCH (a)-[:LINKS_TO]->(e) RETURN a.id ORDER BY a.id",
        "MATCH (a)-[:LINKS_TO]->(e:Elsewhere)<-[:LINKS_TO]-(b) WHERE b.id <> '' RETURN a.id",
        "MATCH (a) WHERE EXISTS { MATCH (a)-[:LINKS_TO]->(:Elsewhere {id: 'x'}) } RETURN a.id ORDER BY a.id",
        "MATCH (e:`Elsewhere`)<-[:LINKS_TO]-(a) RETURN a.id ORDER BY a.id",
        "MATCH (a)-[:RELATES_TO|LINKS_TO]->(e:Elsewhere) RETURN a.id ORDER BY a.id",
    ):
        assert sorted({row[0] for row in rows(http, api, query)}) == ["a", "b"], query
    assert rows(http, api, "MATCH (a)-[:RELATES_TO|LINKS_TO*2..2]->(e:Elsewhere) RETURN a.id, e.id") == [["a", "x"]]
    # A name or text with this word queries no link.
    assert rows(http, api, "MATCH (elsewhere {type: 'elsewhere'}) RETURN elsewhere.id") == []
    assert rows(http, api, "MATCH (e:elsewhere)<-[:links_to]-(a) RETURN a.id") == []


def test_a_store_without_links_answers(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN)
    assert rows(http, api, OUT) == []
    fill(http, api, link("x"))
    assert len(rows(http, api, OUT)) == 1


@pytest.mark.parametrize(
    "query",
    [
        "MATCH (a {id: 'a'}) CREATE (a)-[:LINKS_TO {relation_type: 'x'}]->(:Elsewhere {store: 's', id: 'x'})",
        "MATCH (a)-[l:LINKS_TO]->(e:Elsewhere) DELETE l",
        "MATCH (e:Entity:`Elsewhere`) SET e.content = 'x'",
        "MERGE (:Elsewhere {store: 's', id: 'x'})",
        "MATCH (a)-[:RELATES_TO|LINKS_TO]->(b) SET a.content = 'x'",
    ],
)
def test_links_are_not_written_in_cypher(http: httpx.Client, api: str, query: str) -> None:
    fill(http, api, OWN, link("x"))
    told = refusal(post(http, api, query, mode="write"), 403)
    assert "written as edges with to_graph" in told["detail"]
    # A name with this word is still writable.
    ask(http, api, "MATCH (elsewhere {id: 'a'}) SET elsewhere.content = 'elsewhere'", mode="write")


def test_a_link_without_its_end_is_refused(http: httpx.Client, api: str) -> None:
    fill(http, api, link("x"))
    told = refusal(post(http, api, "MATCH (a)-[:LINKS_TO]->(b) RETURN b.id"), 400)
    assert "(:Elsewhere)" in told["detail"]


def test_deletions_in_cypher_take_links_along(http: httpx.Client, api: str) -> None:
    fill(http, api, OWN, link("x"), {**link("x"), "from": "b"})
    for query, left in (
        ("MATCH (n {id: 'a'}) DETACH DELETE n", ["b"]),
        ("MATCH (n {id: 'b'}) DETACH DELETE n RETURN count(*)", []),
    ):
        ask(http, api, query, mode="write")
        assert [row[0] for row in rows(http, api, OUT)] == left
        assert accepted(http.get(f"{api}/links"))["outbound"] == (
            [{"graph_id": "elsewhere", "edge_count": len(left)}] if left else []
        )
