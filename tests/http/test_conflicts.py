"""Heads beside each other: what settles them and what does not."""

from __future__ import annotations

import httpx
import pytest

from tests.http.asking import ask
from tests.http.serving import accepted
from tests.http.versions import Json, node, put, subgraph, tear

EDGE: Json = {"from_lineage": "a", "kind": "r"}


@pytest.fixture
def torn(http: httpx.Client, api: str) -> str:
    tear(http, api)
    return api


@pytest.mark.parametrize("way", ["inject", "import", "retire", "revert", "cypher"])
def test_who_has_not_looked_at_the_heads_settles_nothing(http: httpx.Client, torn: str, way: str) -> None:
    match way:
        case "inject":
            accepted(http.post(f"{torn}/inject", json={"nodes": [{"id": "a", "content": "four"}]}))
        case "import":
            line = '{"kind":"node","id":"a","type":"note","content":"four"}'
            accepted(http.post(f"{torn}/import", content=line, headers={"content-type": "application/x-ndjson"}))
        case "retire":
            accepted(http.post(f"{torn}/nodes/a/retire"))
        case "revert":
            accepted(http.post(f"{torn}/nodes/a/revert", json={"version": 1}))
        case _:
            ask(http, torn, "MATCH (n {id: 'a'}) SET n.content = 'four'", mode="write")
    found = node(http, torn)
    assert (found["version"], found["conflicts"]) == (4, [2])
    assert found["content"] == {"retire": "three", "revert": "one"}.get(way, "four")
    assert "superseded_by" not in node(http, torn, version=2)
    assert node(http, torn, version=3)["superseded_by"] == 4
    assert "conflicts" not in put(http, torn, id="a", content="both", based_on_version=2)["node"]
    assert [node(http, torn, version=version)["superseded_by"] for version in (2, 4)] == [5, 5]


def test_a_subgraph_settles_as_a_put_does(http: httpx.Client, torn: str) -> None:
    row = {"lineage_id": "a", "kind": "note", "content": "both"}
    [late] = subgraph(http, torn, nodes=[row | {"based_on_version": 1}])["nodes"]
    assert (late["version"], late["error"].partition(":")[0]) == (4, "conflict_manual")
    assert node(http, torn)["conflicts"] == [3, 2]
    assert subgraph(http, torn, nodes=[row | {"based_on_version": 2}])["nodes"] == [
        {"lineage_id": "a", "version": 5, "created": False}
    ]
    assert "conflicts" not in node(http, torn)


def test_what_changes_nothing_leaves_the_heads_alone(http: httpx.Client, torn: str) -> None:
    before = node(http, torn)
    accepted(http.post(f"{torn}/inject", json={"nodes": [{"id": "a", "type": "note", "content": "three"}]}))
    ask(http, torn, "MATCH (n {id: 'a'}) SET n.content = 'three'", mode="write")
    assert node(http, torn) == before


def test_a_node_made_again_has_no_heads(http: httpx.Client, torn: str) -> None:
    assert http.delete(f"{torn}/nodes/a").status_code == 200
    assert "conflicts" not in put(http, torn, id="a", content="new", based_on_version=1)["node"]


@pytest.mark.parametrize("ends", [{"to_lineage": "nobody"}, {"from_lineage": "nobody", "to_lineage": "a"}])
def test_an_edge_sent_four_times_to_a_missing_end(http: httpx.Client, api: str, ends: Json) -> None:
    put(http, api, id="a")
    good = EDGE | {"to_lineage": "a"}
    answer = subgraph(http, api, edges=[*[EDGE | ends] * 4, good])
    error = 'not_found: no such node: "nobody"'
    assert answer["edges"] == [*[{"error": error}] * 4, {"edge_id": "a~r~a"}]
    assert accepted(http.get(f"{api}/stats"))["edges"] == 1


def test_an_edge_sent_several_times_is_one(http: httpx.Client, api: str) -> None:
    put(http, api, id="a")
    rows = [EDGE | {"to_lineage": "a", "ordinal": number} for number in (7, 8)]
    answer = subgraph(http, api, edges=[*rows, EDGE | {"to_lineage": "a", "metadata": {"m": 1}}])
    assert answer["edges"] == [{"edge_id": "a~r~a"}] * 3
    edge = accepted(http.get(f"{api}/edges/a~r~a"))["edge"]
    assert (edge["ordinal"], edge["attributes"]["m"], edge["version"]) == (8, 1, 1)
