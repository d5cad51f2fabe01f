"""Traversals that follow edges into other stores, and link manifests."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import httpx
import pytest

from tests.platform.access.keys import bearer, client, given
from tests.server.http.serving import RunningServer, accepted, refusal

Json = dict[str, Any]
Place = tuple[str, str]


def put(http: httpx.Client, store: str, *ids: str, edges: list[Json] | None = None) -> int:
    nodes = [{"id": each, "type": "t"} for each in ids]
    return accepted(http.post(f"/api/memory/{store}/inject", json={"nodes": nodes, "edges": edges or []}))["sequence"]


def edge(source: str, target: str, to_graph: str | None = None, kind: str = "R", **more: Any) -> Json:
    link = {} if to_graph is None else {"to_graph": to_graph}
    return {"from": source, "to": target, "relation_type": kind, **link, **more}


def walk(http: httpx.Client, store: str, start: str, depth: int = 10, **more: Any) -> Json:
    body = {"start_id": start, "depth": depth, "follow_symlinks": True, **more}
    return accepted(http.post(f"/api/memory/{store}/traverse", json=body))


def depths(found: Json) -> dict[Place, int]:
    return {(each["store"], each["id"]): each["depth"] for each in found["nodes"]}


def manifest(http: httpx.Client, store: str) -> tuple[dict[str, int], dict[str, int]]:
    found = accepted(http.get(f"/api/memory/{store}/links"))
    out, into = ({each["graph_id"]: each["edge_count"] for each in found[side]} for side in ("outbound", "inbound"))
    return out, into


@pytest.fixture
def names(store: str) -> list[str]:
    return [f"{store}-{letter}" for letter in "abcde"]


def test_links_to_merged_nodes_lead_to_the_survivor(http: httpx.Client, names: list[str]) -> None:
    a, b, *_ = names
    put(http, b, "x", "y", "z")
    put(http, a, "s", "t", edges=[edge("s", "x", b), edge("t", "y", b)])
    for one, other in (("x", "y"), ("y", "z")):
        accepted(http.post(f"/api/memory/{b}/nodes/{one}/merge", json={"into": other}))
    assert depths(walk(http, b, "z", direction="incoming")) == {(b, "z"): 0, (a, "s"): 1, (a, "t"): 1}
    assert len(walk(http, b, "x", direction="both")["edges"]) == 2
    asked = {"follow_symlinks": True, "kind": "R"}
    listed = accepted(http.get(f"/api/memory/{b}/nodes/z/incoming", params=asked))["edges"]
    assert [(each["store"], each["from"], each["to"]) for each in listed] == [(a, "s", "x"), (a, "t", "y")]
    put(http, a, "u", edges=[edge("s", "t"), edge("s", "z", b), edge("s", "u")])
    found = walk(http, a, "s")
    assert depths(found) == {(a, "s"): 0, (a, "t"): 1, (a, "u"): 1, (b, "z"): 1}
    links = [(each["from"], each["to"], each.get("redirected_from")) for each in found["edges"] if "to_graph" in each]
    assert sorted(links, key=str) == [("s", "z", "x"), ("s", "z", None), ("t", "z", "y")]


def test_a_link_to_an_invalid_node_is_left_out(http: httpx.Client, names: list[str]) -> None:
    a, b, *_ = names
    put(http, b, "old", "gone", "valid")
    links = [edge("s", each, b) for each in ("old", "gone", "valid")]
    put(http, a, "s", edges=links)
    ended = {"valid_to": "2020-01-01T00:00:00Z"}
    accepted(http.post(f"/api/memory/{b}/nodes/old/retire", json=ended))
    accepted(http.delete(f"/api/memory/{b}/nodes/gone"))
    found = walk(http, a, "s")
    assert [(each["id"], "missing" in each) for each in found["nodes"][1:]] == [("gone", True), ("valid", False)]
    assert [each["to"] for each in found["edges"]] == ["gone", "valid"]
    whole = walk(http, a, "s", valid_at="any")
    assert [each["id"] for each in whole["nodes"][1:] if "missing" not in each] == ["old", "valid"]


def test_traversal_continues_in_other_stores(http: httpx.Client, names: list[str]) -> None:
    a, b, c, *_ = names
    put(http, c, "z")
    put(http, b, "x", "y", edges=[edge("x", "y"), edge("y", "z", c), edge("y", "nobody", c), edge("y", "n", "nowhere")])
    put(http, a, "s", edges=[edge("s", "x", b, weight=0.5, attributes={"why": "it is cited"})])
    found = walk(http, a, "s")
    assert depths(found) == {
        (a, "s"): 0,
        (b, "x"): 1,
        (b, "y"): 2,
        (c, "nobody"): 3,
        (c, "z"): 3,
        ("nowhere", "n"): 3,
    }
    missing = [each for each in found["nodes"] if each.get("missing")]
    assert missing == [
        {"store": "nowhere", "id": "n", "missing": True, "depth": 3},
        {"store": c, "id": "nobody", "missing": True, "depth": 3},
    ]
    ends = {(each["store"], each["from"], each.get("to_graph"), each["to"]) for each in found["edges"]}
    assert ends == {
        (a, "s", b, "x"),
        (b, "x", None, "y"),
        (b, "y", c, "z"),
        (b, "y", c, "nobody"),
        (b, "y", "nowhere", "n"),
    }
    [first, *_] = found["edges"]
    assert (first["weight"], first["attributes"]["why"]) == (0.5, "it is cited")
    assert depths(walk(http, a, "s", depth=1)) == {(a, "s"): 0, (b, "x"): 1}
    assert depths(walk(http, a, "s", relation_types=["other"])) == {(a, "s"): 0}
    assert depths(walk(http, a, "s", min_weight=0.6)) == {(a, "s"): 0}
    cut = walk(http, a, "s", max_nodes=3)
    assert (len(cut["nodes"]), cut["truncated"]) == (3, True)
    assert walk(http, a, "nobody")["nodes"] == []
    assert refusal(http.post("/api/memory/nowhere/traverse", json={"start_id": "x", "follow_symlinks": True}), 404)


def test_traversal_follows_incoming_edges_of_other_stores(http: httpx.Client, names: list[str]) -> None:
    a, b, c, *_ = names
    put(http, a, "s", edges=[edge("s", "x", b)])
    put(http, c, "t", "u", edges=[edge("u", "t"), edge("t", "x", b)])
    put(http, b, "x", "y", edges=[edge("x", "y")])
    assert depths(walk(http, b, "x", direction="incoming")) == {(b, "x"): 0, (a, "s"): 1, (c, "t"): 1, (c, "u"): 2}
    assert depths(walk(http, a, "s", direction="both")) == {
        (a, "s"): 0,
        (b, "x"): 1,
        (b, "y"): 2,
        (c, "t"): 2,
        (c, "u"): 3,
    }
    accepted(http.delete(f"/api/memory/{c}", params={"confirm": c}))
    assert depths(walk(http, b, "x", direction="incoming")) == {(b, "x"): 0, (a, "s"): 1}


def test_cross_store_traversal_as_of_and_valid_at(http: httpx.Client, names: list[str]) -> None:
    a, b, *_ = names
    put(http, b, "x", "y", edges=[edge("x", "y")])
    put(http, a, "s", edges=[edge("s", "x", b, valid_to="2020-01-01T00:00:00Z"), edge("s", "y", b)])
    updated = accepted(http.get(f"/api/memory/{a}/nodes/s"))["outgoing"][-1]["attributes"]["updated_at"]
    accepted(http.delete(f"/api/memory/{b}/nodes/y"))
    before = {(a, "s"): 0, (b, "x"): 1, (b, "y"): 1}
    assert depths(walk(http, a, "s", as_of=updated, valid_at="2019-01-01T00:00:00Z")) == before
    moments: list[Json] = [{"as_of": updated, "valid_at": "now"}, {"valid_at": "now"}, {}]
    for asked in moments:
        assert depths(walk(http, a, "s", **asked)) == {(a, "s"): 0, (b, "y"): 1}
    assert depths(walk(http, b, "x", direction="incoming")) == {(b, "x"): 0}
    assert depths(walk(http, b, "x", direction="incoming", valid_at="any")) == {(b, "x"): 0, (a, "s"): 1}
    now = walk(http, a, "s")
    assert [each for each in now["nodes"] if each.get("missing")] == [
        {"store": b, "id": "y", "missing": True, "depth": 1}
    ]
    for wrong in ({"as_of": 1}, {"as_of": "1"}, {"as_of": updated, "direction": "both"}):
        body = {"start_id": "s", "follow_symlinks": True, **wrong}
        refusal(http.post(f"/api/memory/{a}/traverse", json=body), 400)


def test_traversal_store_limit(http: httpx.Client, store: str) -> None:
    ring = [f"{store}-{number:02d}" for number in range(18)]
    for name, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        put(http, name, "n", edges=[edge("n", "n", following)])
    found = walk(http, ring[0], "n")
    assert (len(found["nodes"]), found["truncated"]) == (11, False)
    put(http, ring[0], edges=[edge("n", "n", name) for name in ring[2:]])
    wide = walk(http, ring[0], "n", depth=1)
    assert (len(wide["nodes"]), wide["truncated"]) == (16, True)


def test_manifests_say_where_links_lead_and_come_from(http: httpx.Client, names: list[str]) -> None:
    a, b, c, *_ = names
    put(http, a, "s", "t", edges=[edge("s", "x", b), edge("t", "x", b), edge("t", "y", "nowhere")])
    put(http, c, "u", edges=[edge("u", "s", a)])
    assert manifest(http, a) == ({b: 2, "nowhere": 1}, {c: 1})
    put(http, b, "x")
    assert manifest(http, b) == ({}, {a: 2})
    accepted(http.delete(f"/api/memory/{a}/nodes/t"))
    assert manifest(http, b) == ({}, {a: 1})
    listed = {each["name"]: each.get("links") for each in accepted(http.get("/api/memory"))["stores"]}
    assert (listed[a], listed[b]) == ({"outbound": 1, "inbound": 1}, {"outbound": 0, "inbound": 1})
    accepted(http.delete(f"/api/memory/{b}", params={"confirm": b}))
    put(http, b, "other")
    assert manifest(http, b) == ({}, {a: 1})
    assert refusal(http.get("/api/memory/nowhere/links"), 404)


class _LinkedStoresModel:
    """Model of nodes and edges of several stores, and the same over HTTP."""

    def __init__(self, http: httpx.Client, names: list[str], seed: int) -> None:
        self.http = http
        self.names = names
        self.choose = random.Random(seed)
        self.nodes: dict[str, set[str]] = {}
        self.edges: dict[str, set[tuple[str, str, str]]] = defaultdict(set)

    def step(self) -> None:
        name, node = self.choose.choice(self.names), self.choose.choice("pqr")
        match self.choose.randrange(8):
            case 0 if name in self.nodes:
                accepted(self.http.delete(f"/api/memory/{name}/nodes/{node}"))
                self.nodes[name].discard(node)
                self.edges[name] = {
                    each for each in self.edges[name] if each[0] != node and (each[1], each[2]) != (name, node)
                }
            case 1 if name in self.nodes and self.choose.random() < 0.3:
                accepted(self.http.delete(f"/api/memory/{name}", params={"confirm": name}))
                del self.nodes[name], self.edges[name]
            case _:
                into, target = self.choose.choice([*self.names, "nowhere"]), self.choose.choice("pqr")
                put(self.http, name, node, edges=[edge(node, target, None if into == name else into)])
                self.nodes.setdefault(name, set()).add(node)
                if into != name or target in self.nodes[name]:
                    self.edges[name].add((node, into, target))

    def reached(self, start: Place, direction: str) -> dict[Place, int]:
        found, frontier = {start: 0}, [start]
        for depth in range(1, 11):
            beyond = {end for place in frontier for end in self.around(place, direction)} - found.keys()
            found |= dict.fromkeys(beyond, depth)
            frontier = [place for place in beyond if self.is_there(place)]
        return found

    def around(self, place: Place, direction: str) -> set[Place]:
        name, node = place
        out = {(into, target) for source, into, target in self.edges[name] if source == node}
        into = {(each, source) for each in self.nodes for source, *end in self.edges[each] if tuple(end) == place}
        return (out if direction != "incoming" else set()) | (into if direction != "outgoing" else set())

    def is_there(self, place: Place) -> bool:
        return place[1] in self.nodes.get(place[0], ())

    def links(self, name: str) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for _, into, _ in self.edges[name]:
            found[into] += into != name
        return {into: count for into, count in found.items() if count}


@pytest.mark.parametrize("seed", range(2))
def test_traversals_and_manifests_match_the_model(http: httpx.Client, names: list[str], seed: int) -> None:
    model = _LinkedStoresModel(http, names, seed)
    for round_ in range(60):
        model.step()
        if round_ % 6:
            continue
        for name in model.nodes:
            inbound = {each: model.links(each)[name] for each in model.nodes if name in model.links(each)}
            assert manifest(http, name) == (model.links(name), inbound)
        starts = [(name, node) for name, nodes in model.nodes.items() for node in nodes]
        for start in model.choose.sample(sorted(starts), min(2, len(starts))):
            for direction in ("outgoing", "incoming", "both"):
                assert depths(walk(http, *start, direction=direction)) == model.reached(start, direction)


def test_traversal_hides_inaccessible_stores(keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "admin")) as http:
        put(http, "secret", "x", "y", edges=[edge("x", "y"), edge("x", "mine", "own")])
        put(http, "own", "mine", edges=[edge("mine", "x", "secret"), edge("mine", "x", "absent")])
    with client(keyed.url) as http:
        http.headers.update(bearer(given(keyed.data, "read", stores=["own"])))
        for direction in ("outgoing", "both"):
            found = walk(http, "own", "mine", direction=direction)
            assert found["nodes"][1:] == [
                {"store": name, "id": "x", "missing": True, "depth": 1} for name in ("absent", "secret")
            ]
        assert depths(walk(http, "own", "mine", direction="incoming")) == {("own", "mine"): 0}
        into = accepted(http.get("/api/memory/own/nodes/mine/incoming", params={"follow_symlinks": True}))
        assert into == {"edges": [], "next_offset": None}
        asked = {"query": "mine", "follow_symlinks": True}
        assert accepted(http.post("/api/memory/own/context", json=asked))["stores"] in ([], ["own"])
        told = accepted(http.get("/api/memory/own/links"))
        assert (told["outbound"], told["inbound"], told["inbound_seen"]) == (
            [{"graph_id": "absent", "edge_count": 1}, {"graph_id": "secret", "edge_count": 1}],
            [],
            {},
        )
        [listed] = accepted(http.get("/api/memory"))["stores"]
        assert listed["links"] == {"outbound": 2, "inbound": 0}


def test_edge_list_includes_other_stores_in_order(http: httpx.Client, names: list[str]) -> None:
    a, b, c, *_ = names
    put(http, a, "s", "x", edges=[edge("s", "x", b, ordinal=3), edge("s", "x", b, "other", ordinal=1)])
    put(http, c, "s", edges=[edge("s", "x", b, ordinal=3, valid_to="2020-01-01T00:00:00Z"), edge("s", "x", a)])
    put(http, b, "x", "y", edges=[edge("y", "x", ordinal=2), edge("x", "y")])
    path = f"/api/memory/{b}/nodes/x/incoming"

    def shown(**query: Any) -> list[tuple[str | None, str | None, int]]:
        edges = accepted(http.get(path, params={"follow_symlinks": True, **query}))["edges"]
        return [(each.get("store"), each.get("to_graph"), each["ordinal"]) for each in edges]

    assert [each["from"] for each in accepted(http.get(path))["edges"]] == ["y"]
    whole = [(a, b, 1), (None, None, 2), (a, b, 3), (c, b, 3)]
    assert shown(valid_at="any") == whole
    assert [each for offset in range(4) for each in shown(valid_at="any", limit=1, offset=offset)] == whole
    assert shown(valid_at="now") == whole[:3]
    assert shown(kind="other") == whole[:1]
    last = accepted(http.get(path, params={"follow_symlinks": True, "limit": 4, "valid_at": "any"}))
    assert last["next_offset"] is None
    refusal(http.get(path, params={"follow_symlinks": True, "as_of": "1"}), 400)


def test_context_includes_linked_nodes(http: httpx.Client, names: list[str]) -> None:
    law, shop, other, *_ = names
    nodes = [{"id": "rfc", "type": "standard", "content": "Requests and their answers"}, {"id": "uri", "type": "note"}]
    accepted(http.post(f"/api/memory/{law}/inject", json={"nodes": nodes}))
    put(http, other, "far", edges=[edge("far", "api", shop, "USES")])
    links = [edge("api", to, law, "FOLLOWS") for to in ("rfc", "uri", "nobody")]
    api = {"id": "api", "type": "standard", "content": "The interface of the shop"}
    wrote = accepted(http.post(f"/api/memory/{shop}/inject", json={"nodes": [api], "edges": links}))

    def context(**more: Any) -> Json:
        body = {"query": "interface shop", "at_least": wrote["sequence"], **more}
        return accepted(http.post(f"/api/memory/{shop}/context", json=body))

    assert context()["ids"] == ["api"]
    found = context(follow_symlinks=True)
    assert found["ids"][0] == "api"
    assert {*zip(found["stores"], found["ids"], strict=True)} == {
        (shop, "api"),
        (law, "rfc"),
        (law, "uri"),
        (other, "far"),
    }
    assert f"- [rfc] (standard, in {law}) Requests and their answers" in found["text"]
    assert f"  - [api] in {shop} FOLLOWS [rfc] in {law}" in found["text"]
    assert f"  - [far] in {other} USES [api] in {shop}" in found["text"]
    assert context(follow_symlinks=True, types=["standard"])["ids"] == ["api", "rfc"]
    assert context(follow_symlinks=True, limit=1)["ids"] == ["api"]
    told = json.loads(context(follow_symlinks=True, format="json", types=["standard"])["text"])
    assert told["edges"] == [{"from": "api", "to": "rfc", "relation_type": "FOLLOWS", "to_graph": law, "store": shop}]
    refusal(
        http.post(f"/api/memory/{shop}/context", json={"query": "shop", "follow_symlinks": True, "as_of": "1"}), 400
    )
