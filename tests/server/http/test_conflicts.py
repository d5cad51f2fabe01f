"""Conflicting heads, and which writes resolve them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.asking import ask
from tests.server.http.serving import accepted, refusal
from tests.server.http.versions import Json, beside, node, prune, put, subgraph, tear

NDJSON = "application/x-ndjson"
EDGE: Json = {"from_lineage": "a", "kind": "r"}


@pytest.fixture
def torn(http: httpx.Client, api: str) -> str:
    tear(http, api)
    return api


@pytest.mark.parametrize("way", ["inject", "import", "retire", "revert", "cypher"])
def test_put_without_based_on_version_resolves_no_conflict(http: httpx.Client, torn: str, way: str) -> None:
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


@pytest.mark.parametrize(("version", "content"), [(2, "two"), (3, "three")])
def test_revert_to_a_version_in_conflict_resolves_it(http: httpx.Client, torn: str, version: int, content: str) -> None:
    accepted(http.post(f"{torn}/nodes/a/revert", json={"version": version}))
    found = node(http, torn)
    assert (found["version"], found["content"], found.get("conflicts")) == (4, content, None)


def test_subgraph_resolves_conflicts_like_put(http: httpx.Client, torn: str) -> None:
    row = {"lineage_id": "a", "kind": "note", "content": "both"}
    [late] = subgraph(http, torn, nodes=[row | {"based_on_version": 1}])["nodes"]
    assert (late["version"], late["error"].partition(":")[0]) == (4, "conflict_manual")
    assert node(http, torn)["conflicts"] == [3, 2]
    assert subgraph(http, torn, nodes=[row | {"based_on_version": 2}])["nodes"] == [
        {"lineage_id": "a", "version": 5, "created": False}
    ]
    assert "conflicts" not in node(http, torn)


def test_unchanged_put_keeps_conflicting_heads(http: httpx.Client, torn: str) -> None:
    before = node(http, torn)
    accepted(http.post(f"{torn}/inject", json={"nodes": [{"id": "a", "type": "note", "content": "three"}]}))
    ask(http, torn, "MATCH (n {id: 'a'}) SET n.content = 'three'", mode="write")
    assert node(http, torn) == before


def test_pruning_keeps_conflicting_versions(http: httpx.Client, torn: str) -> None:
    put(http, torn, id="b", content="other")
    accepted(http.post(f"{torn}/inject", json={"nodes": [{"id": "a", "content": "four"}]}))
    assert prune(http, torn) == 2
    states = accepted(http.get(f"{torn}/nodes/a/history"))["states"]
    told = [(each["node"]["version"], each["node"].get("is_current"), each["deleted"]) for each in states]
    assert told == [(4, None, False), (2, True, False)]
    assert node(http, torn, version=2)["content"] == "two"
    document = refusal(http.patch(torn, json={"conflict_policy": "lww", "history": "none"}), 409)
    assert "version 2 of node 'a'" in document["detail"]
    put(http, torn, id="a", content="both", based_on_version=2)
    assert node(http, torn, version=2)["superseded_by"] == 5
    assert prune(http, torn) == 2
    refusal(http.get(f"{torn}/nodes/a", params={"version": 2}), 404)


def found(http: httpx.Client, api: str, query: str, mode: str, **more: Any) -> list[tuple[str, int, bool | None]]:
    """Return the hits for a word: id, version, and whether it is a conflicting head."""
    asked = {"query": query, "mode": mode, "at_least": accepted(http.get(f"{api}/stats"))["sequence"], **more}
    hits = accepted(http.post(f"{api}/search", json=asked))["hits"]
    score = "semantic_score" if mode == "semantic" else "keyword_score"
    least = 0.99 if mode == "semantic" else 0.0
    nodes = [hit["node"] for hit in hits if (hit.get(score) or 0.0) > least]
    return [(node["id"], node["version"], node.get("is_current")) for node in nodes]


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_every_head_is_found(http: httpx.Client, torn: str, mode: str) -> None:
    put(http, torn, id="b", content="unrelated")
    for _ in range(2):
        assert found(http, torn, "two", mode) == [("a", 2, True)]
        assert found(http, torn, "three", mode) == [("a", 3, None)]
        assert found(http, torn, "one", mode) == []
        prune(http, torn)
    assert found(http, torn, "two", mode, types=["other"]) == []
    assert found(http, torn, "two", mode, attributes={"k": 1}) == []
    batch = {"queries": [{"query": "two three", "mode": mode}], "at_least": 4}
    assert next(hit["node"]["id"] for hit in accepted(http.post(f"{torn}/search/batch", json=batch))["hits"]) == "a"
    put(http, torn, id="a", content="both", based_on_version=2)
    assert found(http, torn, "two", mode) == []


def test_heads_of_withdrawn_nodes_are_not_found(http: httpx.Client, torn: str) -> None:
    store = {"store": torn.rpartition("/")[2]}
    accepted(http.post("/api/memories", params=store, json={"id": "m", "content": "four"}), 201)
    accepted(http.patch("/api/memories/m", params=store, json={"content": "five"}))
    late = {"id": "m", "type": "observation", "content": "six", "based_on_version": 1}
    assert http.post(f"{torn}/nodes", json=late).status_code == 409
    assert found(http, torn, "five", "keyword") == [("m", 2, True)]
    accepted(http.post("/api/v1/forget", params=store, json={"ids": ["m"]}))
    assert found(http, torn, "five", "keyword") == []
    assert found(http, torn, "five", "keyword", valid_at="any") == [("m", 2, True)]
    put(http, torn, id="b", content="unrelated")
    accepted(http.post(f"{torn}/nodes/a/merge", json={"into": "b"}))
    assert found(http, torn, "two", "keyword") == []


def test_other_searches_ignore_conflicting_heads(http: httpx.Client, torn: str) -> None:
    put(http, torn, id="b", content="two of them")
    subgraph(http, torn, edges=[{"from_lineage": "a", "to_lineage": "b", "kind": "r"}])
    assert found(http, torn, "two", "hybrid", syntax=False) == [("a", 2, True), ("b", 1, None)]
    assert sorted(found(http, torn, "content:two", "keyword", syntax=True)) == [("a", 2, True), ("b", 1, None)]
    told = accepted(http.post(f"{torn}/context", json={"query": "two", "at_least": 5}))
    assert sorted(told["ids"]) == ["a", "b"]
    graph = accepted(http.post(f"{torn}/search", json={"query": "two", "mode": "graph", "at_least": 5}))
    assert {hit["node"]["id"] for hit in graph["hits"]} == {"a", "b"}
    assert http.get("/api/v1/recall", params={"q": "two", "store": torn.rpartition("/")[2]}).status_code == 200


SETTINGS: Json = {"name": "Ours", "kind_whitelist": ["note"], "metadata": {"k": [1]}, "memory": {"alpha": 0.25}}


def copied(http: httpx.Client, torn: str, way: str) -> str:
    """Return the path of a copy of a store, made by export and import or by restore."""
    copy = f"{torn}-{way.replace(' ', '-')}"
    if way == "restore":
        last = accepted(http.get(f"{torn}/stats"))["sequence"]
        accepted(http.post(f"{torn}/restore", json={"as_of": str(last), "into": copy.rpartition("/")[2]}))
        return copy
    query = {"as_of": str(accepted(http.get(f"{torn}/stats"))["sequence"])} if way == "as of" else {}
    lines = http.get(f"{torn}/export", params=query)
    first, done = (
        accepted(http.post(f"{copy}/import", content=lines.content, headers={"content-type": NDJSON})) for _ in "12"
    )
    assert first["errors"] == done["errors"] == []
    assert (done["nodes_created"], done["nodes_updated"]) == (0, 0)
    return copy


@pytest.mark.parametrize("way", ["export", "as of", "restore"])
def test_copies_keep_open_conflicts_and_settings(http: httpx.Client, torn: str, way: str) -> None:
    accepted(http.patch(torn, json=SETTINGS))
    assert beside(http, torn, id="a", content="four", based_on_version=1)["conflicts"] == [3, 2]
    prune(http, torn)
    copy = copied(http, torn, way)
    there = accepted(http.get(copy))
    assert {**there, "store": "", "sequence": 0, "created_at": ""} == {
        **accepted(http.get(torn)),
        "store": "",
        "sequence": 0,
        "created_at": "",
    }
    assert (there["conflict_policy"], there["memory"]["alpha"]) == ("manual", 0.25)
    assert (node(http, copy)["version"], sorted(node(http, copy)["conflicts"])) == (4, [2, 3])
    for version, content in ((2, "two"), (3, "three")):
        found = node(http, copy, version=version)
        assert (found["content"], found["is_current"]) == (content, True)
    assert "conflicts" not in put(http, copy, id="a", content="all", based_on_version=2)["node"]
    assert node(http, copy, version=3)["superseded_by"] == 5


def test_equal_writes_record_authors_without_a_version(http: httpx.Client, torn: str) -> None:
    for author in ("ada", "eve", "eve", "bob"):
        made = put(http, torn, id="b", content="same", created_by=author)
    assert (made["node"]["version"], made["node"]["created_by"], made["created"]) == (1, "ada", False)
    [state] = accepted(http.get(f"{torn}/nodes/b/history"))["states"]
    assert [each["created_by"] for each in state["also_by"]] == ["eve", "bob"]
    assert state["recorded_from"] < state["also_by"][0]["recorded_at"] < state["also_by"][1]["recorded_at"]
    accepted(http.post(f"{torn}/inject", json={"nodes": [{"id": "b", "content": "same", "created_by": "zoe"}]}))
    put(http, torn, id="b", content="other", created_by="eve")
    states = accepted(http.get(f"{torn}/nodes/b/history"))["states"]
    assert ["also_by" in state for state in states] == [False, True]
    prune(http, torn)
    assert ["also_by" in state for state in accepted(http.get(f"{torn}/nodes/b/history"))["states"]] == [False]


def test_settings_of_an_import_are_for_a_new_store(http: httpx.Client, torn: str) -> None:
    accepted(http.patch(torn, json=SETTINGS))
    lines = http.get(f"{torn}/export").content
    copy = f"{torn}-own"
    accepted(http.put(copy, json={"name": "Mine"}), 201)
    done = accepted(http.post(f"{copy}/import", content=lines, headers={"content-type": NDJSON}))
    assert (done["errors"], done["settings_kept"], accepted(http.get(copy))["name"]) == ([], True, "Mine")
    twin = f"{torn}-twin"
    for _ in range(2):
        done = accepted(http.post(f"{twin}/import", content=lines, headers={"content-type": NDJSON}))
        assert "settings_kept" not in done
    assert node(http, copy)["conflicts"] == [2]
    header = b'{"kind":"store","conflict_policy":"manual","history":"none"}\n'
    wrong = accepted(http.post(f"{copy}-2/import", content=header, headers={"content-type": NDJSON}))
    assert "cannot be combined with" in wrong["errors"][0]["message"]


def test_foreign_formats_export_current_versions_only(http: httpx.Client, torn: str) -> None:
    accepted(http.patch(torn, json=SETTINGS))
    archive = http.get(f"{torn}/export", params={"format": "csv"})
    copy = f"{torn}-csv"
    done = accepted(http.post(f"{copy}/import", content=archive.content, headers={"content-type": "application/zip"}))
    assert (done["nodes_created"], node(http, copy)["content"]) == (1, "three")


def test_recreated_node_has_no_conflicting_heads(http: httpx.Client, torn: str) -> None:
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
    assert [each["edge_id"] for each in answer["edges"]] == ["a~r~a"] * 3
    assert answer["edges"][1]["replaced"] == {"ordinal": 7}
    edge = accepted(http.get(f"{api}/edges/a~r~a"))["edge"]
    assert (edge["ordinal"], edge["attributes"]["m"], edge["version"]) == (8, 1, 3)
