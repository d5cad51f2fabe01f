"""Edges into other stores over HTTP: written, read, retired and deleted like edges, with the other store."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx

from tests.platform.access.keys import bearer, client, given
from tests.server.http.serving import RunningServer, accepted, refusal

Json = dict[str, Any]
NDJSON = {"content-type": "application/x-ndjson"}


def link(target: str = "x", to_graph: str = "elsewhere", **more: Any) -> Json:
    return {"from": "a", "to": target, "relation_type": "cites", "to_graph": to_graph, **more}


def fill(http: httpx.Client, api: str, *edges: Json) -> Json:
    nodes = [{"id": each, "type": "t"} for each in "ab"]
    return accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": [*edges]}))


def shown(http: httpx.Client, api: str, of: str = "a", **query: Any) -> list[tuple[str, str | None]]:
    found = accepted(http.get(f"{api}/nodes/{of}/outgoing", params=query))["edges"]
    return [(each["to"], each.get("to_graph")) for each in found]


def test_link_is_written_and_read_like_an_edge(http: httpx.Client, api: str) -> None:
    own = {"from": "a", "to": "b", "relation_type": "cites", "ordinal": 2}
    told = fill(http, api, own, link(ordinal=1, weight=0.5, attributes={"page": 3}), link("b", ordinal=3))
    assert (told["edges_created"], told["edges_skipped_count"]) == (3, 0)
    assert shown(http, api) == [("x", "elsewhere"), ("b", None), ("b", "elsewhere")]
    assert shown(http, api, limit=1, offset=1) == [("b", None)]
    assert shown(http, api, kind="other") == []
    [first, *_] = accepted(http.get(f"{api}/nodes/a/outgoing"))["edges"]
    assert (first["weight"], first["attributes"]["page"], first["version"]) == (0.5, 3, 1)
    assert first["id"] == "a~cites~x~elsewhere"
    assert accepted(http.get(f"{api}/edges/{first['id']}"))["edge"] == first
    node = accepted(http.get(f"{api}/nodes/a"))
    assert [(each["to"], each.get("to_graph")) for each in node["outgoing"]] == shown(http, api)
    # Repeating it changes nothing, and the store's own name counts as no other store.
    name = api.rsplit("/", 1)[1]
    again = fill(http, api, {**own, "to_graph": name}, link(ordinal=1, weight=0.5, attributes={"page": 3}))
    assert (again["edges_unchanged"], again["edges_created"]) == (2, 0)


def test_traversal_stays_in_its_store_by_default(http: httpx.Client, api: str) -> None:
    fill(http, api, link("b"), link("x"))
    found = accepted(http.post(f"{api}/traverse", json={"start_id": "a", "depth": 3}))
    assert ([each["id"] for each in found["nodes"]], found["edges"]) == (["a"], [])


def test_links_are_deleted_by_key_and_by_id_and_with_their_source(http: httpx.Client, api: str) -> None:
    fill(http, api, link("x"), link("y"), link("z"))
    body = {"from": "a", "to": "x", "relation_type": "cites"}
    assert not accepted(http.request("DELETE", f"{api}/edges", json=body))["existed"]
    assert accepted(http.request("DELETE", f"{api}/edges", json={**body, "to_graph": "elsewhere"}))["existed"]
    id_ = quote("a~cites~y~elsewhere", safe="")
    assert accepted(http.delete(f"{api}/edges/{id_}"))["existed"]
    assert refusal(http.get(f"{api}/edges/{id_}"), 404)["detail"].startswith("there is no edge a~cites~y~elsewhere")
    assert accepted(http.delete(f"{api}/nodes/a"))["edges_deleted"] == 1


def test_a_link_has_validity_and_a_past(http: httpx.Client, api: str) -> None:
    first = fill(http, api, link("x", valid_from="2020-01-01T00:00:00Z"), link("y"))["sequence"]
    end = {
        "from": "a",
        "to": "x",
        "relation_type": "cites",
        "to_graph": "elsewhere",
        "valid_to": "2021-01-01T00:00:00Z",
    }
    ended = accepted(http.post(f"{api}/edges/retire", json=end))
    assert (ended["changed"], ended["version"]) == (True, 2)
    assert shown(http, api, valid_at="now") == [("y", "elsewhere")]
    assert shown(http, api, valid_at="2020-06-01T00:00:00Z") == [("x", "elsewhere"), ("y", "elsewhere")]
    accepted(http.delete(f"{api}/nodes/a"))
    assert shown(http, api, as_of=first) == [("x", "elsewhere"), ("y", "elsewhere")]
    past = accepted(http.get(f"{api}/nodes/a", params={"as_of": first, "valid_at": "2022-01-01T00:00:00Z"}))
    assert len(past["outgoing"]) == 2
    missing = {**end, "to_graph": "third"}
    said = "there is no edge of type 'cites' from 'a' to 'x' of store 'third'"
    assert said in refusal(http.post(f"{api}/edges/retire", json=missing), 404)["detail"]


def test_links_go_through_export_import_and_restore(http: httpx.Client, api: str) -> None:
    there = api.rsplit("/", 1)[1] + "-copy"
    sequence = fill(http, api, link("x", weight=0.5, ordinal=7), link("y", to_graph=there))["sequence"]
    exported = http.get(f"{api}/export").text
    lines = [json.loads(line) for line in exported.splitlines()]
    assert [(each["to"], each["to_graph"]) for each in lines if each["kind"] == "edge"] == [
        ("x", "elsewhere"),
        ("y", there),
    ]
    copy = f"/api/memory/{there}"
    taken = accepted(http.post(f"{copy}/import", content=exported, headers=NDJSON))
    assert (taken["edges_sent"], taken["edges_created"], taken["error_count"]) == (2, 2, 0)
    # Links into a store of this name still lead there.
    assert shown(http, copy) == [("x", "elsewhere"), ("y", there)]
    assert http.get(f"{copy}/export").text == exported
    accepted(http.delete(f"{api}/nodes/a"))
    accepted(http.post(f"{api}/restore", json={"as_of": sequence, "into": f"{there}2"}))
    assert http.get(f"/api/memory/{there}2/export").text == exported
    assert http.get(f"{api}/export", params={"as_of": sequence}).text == exported


def test_link_changes_are_events(http: httpx.Client, api: str) -> None:
    fill(http, api, link("x"))
    fill(http, api, link("x", weight=0.5))
    accepted(http.delete(f"{api}/nodes/a"))
    told: list[tuple[str, Json]] = []
    with http.stream("GET", f"{api}/events", params={"since": "0"}, timeout=30) as stream:
        kind = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            kind = value if name == "event" else kind
            if name == "data":
                told.append((kind, json.loads(value)))
            if kind == "node_deleted" and name == "data":
                break
    links = [(kind, data["to_graph"], data.get("weight"), data["id"]) for kind, data in told if "link" in kind]
    assert links == [
        ("link_created", "elsewhere", 1.0, "a~cites~x~elsewhere"),
        ("link_updated", "elsewhere", 0.5, "a~cites~x~elsewhere"),
        ("link_deleted", "elsewhere", None, "a~cites~x~elsewhere"),
    ]


def test_link_to_an_inaccessible_store_is_refused(keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "admin")) as http:
        accepted(http.post("/api/memory/hidden/inject", json={"nodes": [{"id": "x", "type": "t"}]}))
    with client(keyed.url) as http:
        http.headers.update(bearer(given(keyed.data, "write", stores=["mine*"])))
        api = "/api/memory/mine"
        fill(http, api, link(to_graph="mine-too"))
        for name in ("hidden", "nowhere"):
            body = {"nodes": [], "edges": [link(to_graph=name)]}
            said = refusal(http.post(f"{api}/inject", json=body), 404)["detail"]
            assert said.replace(name, "NAME") == "there is no store 'NAME'"
            edges = [{"from_lineage": "a", "to_lineage": "x", "kind": "k", "to_graph": name}]
            [told] = accepted(http.post(f"{api}/subgraph", json={"edges": edges}))["edges"]
            assert told["error"].replace(name, "NAME") == "not_found: there is no store 'NAME'"
        assert shown(http, api) == [("x", "mine-too")]


def test_links_move_with_merge_and_undo(http: httpx.Client, api: str) -> None:
    nodes = [{"id": each, "type": "t"} for each in "abc"]
    edges = [link("x", weight=0.5, created_by="ann"), link("y"), {**link("y"), "from": "b", "weight": 2.0}]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    before = accepted(http.get(f"{api}/nodes/a"))["outgoing"]
    told = accepted(http.post(f"{api}/nodes/a/merge", json={"into": "b"}))
    assert (told["edges_moved"], told["edges_dropped"]) == (1, 1)
    moved = {each["to"]: each for each in accepted(http.get(f"{api}/nodes/b"))["outgoing"]}
    assert {to: each["weight"] for to, each in moved.items()} == {"x": 0.5, "y": 2.0}
    assert (moved["x"]["id"], moved["x"]["created_by"]) == ("b~cites~x~elsewhere", "ann")
    assert accepted(http.get(f"{api}/links"))["outbound"] == [{"graph_id": "elsewhere", "edge_count": 2}]
    # A write to the merged node changes the survivor.
    fill_link = {**link("z"), "from": "a"}
    accepted(http.post(f"{api}/inject", json={"edges": [fill_link]}))
    back = accepted(http.post(f"{api}/nodes/a/unmerge", json={}))
    assert (back["edges_restored"], back["edges_removed"], back["edges_kept"]) == (2, 1, 1)
    after = accepted(http.get(f"{api}/nodes/a"))["outgoing"]
    said = ("id", "weight", "attributes", "created_by")
    assert [[each.get(name) for name in said] for each in after] == [
        [each.get(name) for name in said] for each in before
    ]
    assert sorted(shown(http, api, of="b")) == [("y", "elsewhere"), ("z", "elsewhere")]
