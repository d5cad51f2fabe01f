"""Merging of duplicate entities over HTTP: moved edges, events, redirects and undo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from kgserve.graph import node_merge as merging
from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]


def edge(source: str, target: str, kind: str = "KNOWS", **fields: Any) -> Json:
    return {"from": source, "to": target, "relation_type": kind, **fields}


NODES: list[Json] = [
    {"id": "bob", "type": "person", "content": "Bob", "attributes": {"phone": 1, "age": 40}, "tags": ["a"]},
    {"id": "robert", "type": "person", "content": "Robert Miller", "attributes": {"phone": 2, "mail": "r@x"}},
    {"id": "ann", "type": "person", "content": "Ann"},
    {"id": "acme", "type": "firm", "content": "Acme"},
]
EDGES: list[Json] = [
    edge("bob", "ann", weight=0.5, attributes={"since": 2001}, ordinal=3, created_by="ada"),
    edge("acme", "bob", "EMPLOYS", valid_from="2020-01-01T00:00:00Z"),
    edge("bob", "acme", weight=2.0),
    edge("robert", "acme", weight=3.0),
    edge("bob", "robert", "SAME_AS"),
    edge("robert", "bob", "SAME_AS"),
    edge("bob", "bob", "LIKES"),
]


@pytest.fixture
def people(http: httpx.Client, api: str) -> str:
    nodes = [NODES[0], {**NODES[1], "tags": ["b", "a"], "summary": "R"}, *NODES[2:]]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": EDGES}))
    return api


def merge(http: httpx.Client, api: str, node_id: str, into: str, **fields: Any) -> Json:
    return accepted(http.post(f"{api}/nodes/{node_id}/merge", json={"into": into, **fields}))


def unmerge(http: httpx.Client, api: str, node_id: str, **fields: Any) -> Json:
    return accepted(http.post(f"{api}/nodes/{node_id}/unmerge", json=fields))


def node(http: httpx.Client, api: str, node_id: str, **query: Any) -> Json:
    return accepted(http.get(f"{api}/nodes/{node_id}", params=query))


def refused(http: httpx.Client, api: str, node_id: str, into: str, status: int, **fields: Any) -> str:
    answer = http.post(f"{api}/nodes/{node_id}/merge", json={"into": into, **fields})
    return refusal(answer, status)["detail"]


def keys(view: Json) -> set[tuple[str, str, str]]:
    return {(e["from"], e["to"], e["relation_type"]) for e in (*view["outgoing"], *view["incoming"])}


def bare(view: Json) -> Json:
    """Return a node with its edges, without fields that every commit changes."""
    own = {name: value for name, value in view["node"].items() if name not in {"version", "sequence", "updated_at"}}
    edges = sorted((*view["outgoing"], *view["incoming"]), key=lambda e: e["id"])
    return {"node": own, "edges": [{name: value for name, value in e.items() if name != "sequence"} for e in edges]}


def test_merge_moves_edges_and_reports_changes(http: httpx.Client, people: str) -> None:
    before = node(http, people, "robert")["node"]
    told = merge(http, people, "bob", "robert", created_by="eve")
    assert (told["changed"], told["into"], told["edges_moved"]) == (True, "robert", 3)
    assert (told["edges_dropped"], told["loops_dropped"]) == (1, 2)
    assert told["taken_over"] == ["attributes.age"]
    assert told["not_taken"] == ["attributes.phone", "content"]
    assert told["sequence"] == before["sequence"] + 1
    found = node(http, people, "robert")
    assert found["node"] == told["node"]
    assert found["node"]["attributes"] == {"phone": 2, "mail": "r@x", "age": 40}
    assert (found["node"]["content"], found["node"]["tags"]) == ("Robert Miller", ["b", "a"])
    assert keys(found) == {
        ("robert", "ann", "KNOWS"),
        ("acme", "robert", "EMPLOYS"),
        ("robert", "acme", "KNOWS"),
        ("robert", "robert", "LIKES"),
        ("bob", "robert", "MERGED_INTO"),
    }
    moved = next(e for e in found["outgoing"] if e["to"] == "ann")
    assert (moved["weight"], moved["attributes"]["since"], moved["ordinal"], moved["created_by"]) == (
        0.5,
        2001,
        3,
        "ada",
    )
    assert next(e for e in found["outgoing"] if e["to"] == "acme")["weight"] == 3.0


def test_repeated_merge_changes_nothing(http: httpx.Client, people: str) -> None:
    told = merge(http, people, "bob", "robert", based_on_version=1, into_version=1)
    again = merge(http, people, "bob", "robert", based_on_version=1, into_version=1)
    assert not again["changed"]
    assert again["sequence"] == told["sequence"]
    assert again["node"] == told["node"]
    assert (again["edges_moved"], again["taken_over"]) == (0, [])


def test_merged_id_redirects_to_the_survivor(http: httpx.Client, people: str) -> None:
    then = merge(http, people, "bob", "robert")["sequence"]
    found = node(http, people, "bob")
    assert found.pop("redirected_from") == "bob"
    assert found == node(http, people, "robert")
    assert node(http, people, "bob", as_of=then)["redirected_from"] == "bob"
    assert node(http, people, "bob", valid_at="2021-01-01T00:00:00Z")["node"]["id"] == "robert"
    before = node(http, people, "bob", as_of=then - 1)
    assert before["node"]["content"] == "Bob"
    assert "redirected_from" not in before
    for more in ({}, {"as_of": then}):
        walk = accepted(http.post(f"{people}/traverse", json={"start_id": "bob", **more}))
        assert {row["id"] for row in walk["nodes"]} == {"robert", "ann", "acme"}
        assert walk["redirected_from"] == "bob"
        page = accepted(http.get(f"{people}/nodes/bob/outgoing", params={"kind": "KNOWS", **more}))
        assert {row["to"] for row in page["edges"]} == {"ann", "acme"}
        assert page["redirected_from"] == "bob"
        some = accepted(http.post(f"{people}/get", json={"ids": ["nobody", "bob", "robert", "ann"], **more}))
        assert ([row["id"] for row in some["nodes"]], some["missing"]) == (["robert", "ann"], ["nobody"])
        assert some["redirected"] == {"bob": "robert"}
    some = accepted(http.post(f"{people}/get", json={"ids": ["bob"], "valid_at": "any"}))
    assert (some["nodes"][0]["content"], some["missing"], "redirected" in some) == ("Bob", [], False)


def test_merged_node_is_visible_in_full_reads(http: httpx.Client, people: str) -> None:
    then = merge(http, people, "bob", "robert")["sequence"]
    for more in ({}, {"as_of": then}):
        own = node(http, people, "bob", valid_at="any", **more)
        assert own["node"]["content"] == "Bob"
        assert own["node"]["valid_from"] == own["node"]["valid_to"]
        assert keys(own) == {("bob", "robert", "MERGED_INTO")}
    walk = accepted(http.post(f"{people}/traverse", json={"start_id": "bob", "valid_at": "any"}))
    assert {row["id"] for row in walk["nodes"]} == {"bob", "robert"}
    for start in ("bob", "robert"):
        asked: Json = {"query": "Acme", "mode": "graph", "start_id": start, "at_least": then}
        assert "ann" in {hit["node"]["id"] for hit in accepted(http.post(f"{people}/search", json=asked))["hits"]}
    listed = accepted(http.get(f"{people}/nodes", params={"type": "person"}))["nodes"]
    assert [row["id"] for row in listed] == ["ann", "robert"]
    for valid_at, found in ((None, set[str]()), ("any", {"bob"})):
        asked = {"query": "Bob", "mode": "keyword", "valid_at": valid_at, "at_least": then}
        assert {hit["node"]["id"] for hit in accepted(http.post(f"{people}/search", json=asked))["hits"]} == found


def test_unmerge_restores_the_previous_state(http: httpx.Client, people: str) -> None:
    before = {each: bare(node(http, people, each)) for each in ("bob", "robert", "ann", "acme")}
    merge(http, people, "bob", "robert")
    told = unmerge(http, people, "bob")
    assert (told["out_of"], told["changed"], told["edges_restored"], told["edges_removed"]) == ("robert", True, 6, 3)
    assert (told["edges_kept"], told["not_restored"], told["given_back"]) == (1, [], ["attributes.age"])
    assert {each: bare(node(http, people, each)) for each in before} == before
    again = unmerge(http, people, "bob")
    assert (again["changed"], again["out_of"], again["sequence"]) == (False, None, told["sequence"])


def test_unmerge_keeps_later_writes(http: httpx.Client, people: str) -> None:
    merge(http, people, "bob", "robert", content="append")
    since: Json = {"nodes": [{"id": "robert", "attributes": {"age": 41, "new": 1}}], "edges": [edge("robert", "ann")]}
    since["edges"][0]["weight"] = 9.0
    accepted(http.post(f"{people}/inject", json=since))
    accepted(http.delete(f"{people}/nodes/acme"))
    told = unmerge(http, people, "bob")
    assert told["given_back"] == ["content"]
    assert told["kept"] == ["attributes.age"]
    assert told["edges_kept"] == 1
    assert told["not_restored_count"] == len(told["not_restored"]) == 2
    assert "acme" in told["not_restored"][0]["reason"]
    robert = node(http, people, "robert")
    assert robert["node"]["attributes"] == {"age": 41, "new": 1}
    assert robert["node"]["content"] == "Robert Miller"
    assert {e["weight"] for e in robert["outgoing"] if e["to"] == "ann"} == {9.0}
    assert {e["weight"] for e in node(http, people, "bob")["outgoing"] if e["to"] == "ann"} == {0.5}


@pytest.mark.parametrize(
    ("content", "attributes", "text", "phone", "age"),
    [
        ("fill", "fill", "Robert Miller", 2, 40),
        ("overwrite", "overwrite", "Bob", 1, 40),
        ("append", "keep", "Robert Miller\n\nBob", 2, None),
        ("keep", "keep", "Robert Miller", 2, None),
    ],
)
def test_merge_field_selection(
    http: httpx.Client, people: str, content: str, attributes: str, text: str, phone: int, age: int | None
) -> None:
    found = merge(http, people, "bob", "robert", content=content, attributes=attributes)["node"]
    assert found["content"] == text
    assert (found["attributes"]["phone"], found["attributes"].get("age")) == (phone, age)
    assert found["tags"] == ["b", "a"]


def test_writes_keep_a_merge(http: httpx.Client, people: str) -> None:
    merge(http, people, "bob", "robert")
    told = accepted(
        http.post(f"{people}/inject", json={"edges": [edge("bob", "ann", "TRUSTS"), edge("robert", "bob")]})
    )
    assert told["redirected"] == {"bob": "robert"}
    assert (told["edges_created"], told["edges_skipped_count"]) == (1, 1)
    assert "merged" in told["edges_skipped"][0]["reason"]
    assert ("robert", "ann", "TRUSTS") in keys(node(http, people, "robert"))
    graph = {
        "nodes": [{"lineage_id": "bob", "kind": "person"}],
        "edges": [{"from_lineage": "bob", "to_lineage": "ann"}],
    }
    graph["edges"][0]["kind"] = "LOVES"
    told = accepted(http.post(f"{people}/subgraph", json=graph))
    assert "'robert'" in told["nodes"][0]["error"]
    assert told["edges"] == [{"edge_id": "robert~LOVES~ann"}]
    for path, body in (
        ("inject", {"nodes": [{"id": "bob", "content": "Bobby"}]}),
        ("nodes", {"id": "bob", "type": "person", "content": "Bobby"}),
        ("nodes/bob/retire", {"valid_to": "2030-01-01T00:00:00Z"}),
        ("nodes/bob/revert", {"version": 1}),
        ("cypher", {"query": "MATCH (e:Entity {id: 'bob'}) SET e.content = 'x'", "mode": "write"}),
    ):
        document = refusal(http.post(f"{people}/{path}", json=body), 409)
        assert "was merged into 'robert'" in document["detail"], path
    same = accepted(http.post(f"{people}/inject", json={"nodes": [{"id": "bob", "content": "Bob"}]}))
    assert same["nodes_unchanged"] == 1
    assert not accepted(http.post(f"{people}/nodes/bob/retire", json={}))["changed"]


def test_edge_to_the_survivor_among_many_becomes_a_loop(http: httpx.Client, people: str) -> None:
    leaves = [f"leaf-{number:04}" for number in range(1_100)]
    accepted(http.post(f"{people}/inject", json={"nodes": [{"id": each, "type": "leaf"} for each in leaves]}))
    edges = [edge("robert", each, weight=1.0) for each in leaves]
    accepted(http.post(f"{people}/inject", json={"edges": edges}))
    merge(http, people, "bob", "robert")
    edges[700] = edge("bob", leaves[700], weight=5.0)
    told = accepted(http.post(f"{people}/inject", json={"edges": edges, "touch": False}))
    assert (told["edges_created"], told["edges_updated"], told["edges_unchanged"]) == (0, 1, 1_099)
    page = accepted(http.get(f"{people}/nodes/{leaves[700]}/incoming"))["edges"]
    assert [(row["from"], row["weight"]) for row in page] == [("robert", 5.0)]


def test_concurrent_merges_apply_once(http: httpx.Client, people: str) -> None:
    def tried(into: str) -> int:
        return http.post(f"{people}/nodes/bob/merge", json={"into": into}).status_code

    with ThreadPoolExecutor(4) as threads:
        found = dict(zip("abcd", threads.map(tried, ("robert", "ann", "robert", "ann")), strict=True))
    survivor = node(http, people, "bob")["node"]["id"]
    won = {"robert": "ac", "ann": "bd"}[survivor]
    assert found == {each: 200 if each in won else 409 for each in "abcd"}
    merge(http, people, "ann", "acme")
    with ThreadPoolExecutor(4) as threads:
        undone = list(threads.map(lambda _: http.post(f"{people}/nodes/ann/unmerge"), range(4)))
    assert {answer.status_code for answer in undone} <= {200, 503}
    assert [answer.json()["changed"] for answer in undone if answer.status_code == 200].count(True) == 1


def test_merge_events_include_the_rows(http: httpx.Client, people: str) -> None:
    told = merge(http, people, "bob", "robert")
    entry = accepted(http.get(f"{people}/changes", params={"since": told["sequence"] - 1}))["changes"][0]
    assert len(entry["edges_deleted"]) == 6
    assert {row["id"] for row in entry["nodes_updated"]} == {"bob", "robert"}
    assert {row["relation_type"] for row in entry["edges_created"]} == {"KNOWS", "EMPLOYS", "LIKES", "MERGED_INTO"}


def test_redirect_chains_are_followed(http: httpx.Client, people: str) -> None:
    merge(http, people, "bob", "robert")
    merge(http, people, "robert", "ann")
    assert node(http, people, "bob")["node"]["id"] == "ann"
    told = merge(http, people, "acme", "bob")
    assert told["into"] == "ann"
    assert not merge(http, people, "bob", "ann")["changed"]
    refusal_of_bob = refusal(http.post(f"{people}/nodes/bob/unmerge"), 409)["detail"]
    assert "unmerge 'robert' first" in refusal_of_bob
    for each in ("acme", "robert", "bob"):
        assert unmerge(http, people, each)["changed"]
    assert keys(node(http, people, "bob")) == {(e["from"], e["to"], e["relation_type"]) for e in EDGES} - {
        ("robert", "acme", "KNOWS")
    }


def test_invalid_merges_are_refused(http: httpx.Client, people: str) -> None:
    assert "another" in refused(http, people, "bob", "bob", 400)
    assert "'nobody'" in refused(http, people, "bob", "nobody", 404)
    assert "'nobody'" in refused(http, people, "nobody", "bob", 404)
    assert "at version 1, not 2" in refused(http, people, "bob", "ann", 409, based_on_version=2)
    assert "at version 1, not 3" in refused(http, people, "bob", "ann", 409, into_version=3)
    refusal(http.post(f"{people}/nodes/nobody/unmerge"), 404)
    merge(http, people, "bob", "robert")
    assert "already" in refused(http, people, "bob", "ann", 409)
    assert "unmerge 'bob' first" in refused(http, people, "robert", "bob", 409)


def test_merge_over_the_edge_limit_is_refused(http: httpx.Client, api: str) -> None:
    text = "x" * (1 << 19) + "x"
    nodes = [{"id": name, "type": "t", "content": text + name} for name in "ab"]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes}))
    assert "without `append`" in refused(http, api, "a", "b", 413, content="append")
    assert node(http, api, "a")["node"]["version"] == 1


def test_merge_of_a_node_with_too_many_edges_is_refused(
    http: httpx.Client, people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MAX_MOVED_EDGES", 6)
    assert "7 edges; at most 6" in refused(http, people, "bob", "robert", 413)
    assert ("bob", "ann", "KNOWS") in keys(node(http, people, "bob"))


def test_delete_survivor_or_merged_node(http: httpx.Client, people: str) -> None:
    merge(http, people, "bob", "robert")
    accepted(http.delete(f"{people}/nodes/bob"))
    refusal(http.get(f"{people}/nodes/bob"), 404)
    assert ("robert", "ann", "KNOWS") in keys(node(http, people, "robert"))
    merge(http, people, "acme", "ann")
    accepted(http.delete(f"{people}/nodes/ann"))
    left = node(http, people, "acme")
    assert left["node"]["id"] == "acme"
    assert "redirected_from" not in left
    assert not unmerge(http, people, "acme")["changed"]


def test_unmerge_of_one_keeps_other_merges(http: httpx.Client, api: str) -> None:
    nodes = [{"id": name, "type": "t", "tags": ["x"] if name in "ab" else []} for name in "abct"]
    edges = [edge("a", "t", weight=1.0), edge("b", "t", weight=2.0)]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    merge(http, api, "a", "c")
    assert merge(http, api, "b", "c")["edges_dropped"] == 1
    told = unmerge(http, api, "a")
    assert (told["edges_removed"], told["kept"]) == (0, ["tags.x"])
    assert {e["weight"] for e in node(http, api, "c")["outgoing"]} == {2.0}
    assert unmerge(http, api, "b")["edges_removed"] == 1
    assert node(http, api, "c")["outgoing"] == []
    assert {e["weight"] for e in node(http, api, "a")["outgoing"]} == {1.0}


def test_without_a_history_undo_is_refused_with_the_reason(http: httpx.Client, people: str) -> None:
    accepted(http.patch(people, json={"history": "none"}))
    merge(http, people, "bob", "robert")
    detail = refusal(http.post(f"{people}/nodes/bob/unmerge"), 409)["detail"]
    assert "cannot be reverted" in detail
    assert "history" in detail


def test_an_export_carries_merges_and_an_import_takes_them(http: httpx.Client, people: str) -> None:
    merge(http, people, "bob", "robert")
    lines = http.get(f"{people}/export").content
    told = accepted(http.post(f"{people}/import", content=lines, headers={"content-type": "application/x-ndjson"}))
    assert told["nodes_unchanged"] == told["nodes_sent"]
    assert told["edges_unchanged"] == told["edges_sent"]
    copy = f"{people}-copy"
    accepted(http.post(f"{copy}/import", content=lines, headers={"content-type": "application/x-ndjson"}))
    assert node(http, copy, "bob")["redirected_from"] == "bob"
    assert keys(node(http, copy, "bob")) == keys(node(http, people, "robert"))
    assert "wrote it as merged" in refusal(http.post(f"{copy}/nodes/bob/unmerge"), 409)["detail"]
