"""Filters by attribute, counts, reads of many nodes, and deletion by filter, against a model."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from kgserve.graph.request_bodies import MAX_DELETED_NODES
from tests.server.http.serving import accepted, refusal
from tests.server.http.test_listing import listed

Json = dict[str, Any]

VALUES: list[Any] = ["open", "done", "1", 1, 1.0, 1.5, True, False, None]
TIMES = ["2025-01-01T00:00:00Z", "2025-06-01T00:00:00Z"]
MODES: list[Json] = [
    {"mode": "keyword"},
    {"mode": "semantic"},
    {"mode": "hybrid"},
    {"mode": "graph", "depth": 10},
    {"mode": "graph", "start_id": "first", "depth": 10},
]


def same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def fits(node: Json, wanted: Json) -> bool:
    own, at = node["attributes"], wanted.get("valid_at", "any")
    return (
        node["type"] in (wanted.get("types") or [node["type"]])
        and set(wanted.get("tags") or ()) <= set(node["tags"])
        and all(key in own and same(own[key], value) for key, value in (wanted.get("attributes") or {}).items())
        and (at == "any" or not node["valid_to"] or at < node["valid_to"])
    )


def some_node(chance: random.Random, node_id: str) -> Json:
    keys = chance.sample(["status", "rank", "ü"], chance.randint(0, 3))
    return {
        "id": node_id,
        "type": chance.choice(["t", "u"]),
        "content": f"fox {chance.choice(['hen', 'owl'])}",
        "tags": chance.sample(["red", "blue"], chance.randint(0, 2)),
        "attributes": {key: chance.choice([*VALUES, [1], {"status": "open"}]) for key in keys},
        "valid_to": chance.choice(["", "", TIMES[1]]),
    }


def some_filter(chance: random.Random) -> Json:
    keys = chance.sample(["status", "rank", "ü"], chance.choice([0, 1, 1, 2]))
    return {
        "types": chance.choice([None, ["t"], ["t", "u", "none"]]),
        "tags": chance.choice([None, None, ["red"], ["red", "blue"]]),
        "attributes": {key: chance.choice(VALUES) for key in keys},
        "valid_at": chance.choice(["any", *TIMES]),
    }


def in_query(wanted: Json) -> Json:
    """Return a filter as query parameters of a list."""
    told = {"type": wanted["types"] or [], "tag": wanted["tags"] or [], "valid_at": wanted["valid_at"]}
    return {**told, "attributes": json.dumps(wanted["attributes"])}


def test_filters_match_the_model_on_every_interface(http: httpx.Client, api: str) -> None:
    chance = random.Random(11)
    present: dict[str, Json] = {}
    states: list[tuple[int, dict[str, Json]]] = []
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "first", "type": "hub"}]}))
    for _ in range(6):
        nodes = [some_node(chance, f"n{number}") for number in chance.sample(range(14), 8)]
        edges = [{"from": node["id"], "to": "first", "relation_type": "r"} for node in nodes]
        sequence = accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))["sequence"]
        present = {**present, **{str(node["id"]): node for node in nodes}}
        states.append((sequence, present))
        for _ in range(5):
            wanted = some_filter(chance)
            left = sorted(node_id for node_id, node in present.items() if fits(node, wanted))
            told = {**wanted, "types": wanted["types"] or ["t", "u"]}
            assert listed(http, api, **in_query(told), limit=3) == left
            counted = accepted(http.post(f"{api}/count", json=told))
            assert counted == {"count": len(left), "exact": True, "sequence": sequence}
    for sequence, then in states:
        for mode in MODES:
            wanted = some_filter(chance)
            told = {**wanted, "types": wanted["types"] or ["t", "u"]}
            left = sorted(node_id for node_id, node in then.items() if fits(node, wanted))
            assert listed(http, api, **in_query(told), as_of=sequence) == left
            request = {**told, **mode, "query": "fox", "limit": 100, "as_of": sequence}
            hits = accepted(http.post(f"{api}/search", json=request))["hits"]
            assert sorted(hit["node"]["id"] for hit in hits) == left, request


def test_batches_and_contexts_accept_attribute_filters(http: httpx.Client, api: str) -> None:
    nodes = [{"id": f"n{n}", "type": "t", "content": "fox", "attributes": {"n": n % 3}} for n in range(9)]
    at_least = accepted(http.post(f"{api}/inject", json={"nodes": nodes}))["sequence"]
    queries = [{"query": "fox", "attributes": {"n": 1}}, {"query": "fox", "mode": "keyword", "attributes": {"n": 2.0}}]
    found = accepted(http.post(f"{api}/search/batch", json={"queries": queries, "at_least": at_least}))
    assert {hit["node"]["id"] for hit in found["hits"]} == {"n1", "n4", "n7", "n2", "n5", "n8"}
    context = accepted(http.post(f"{api}/context", json={"query": "fox", "attributes": {"n": 0}}))
    assert set(context["ids"]) == {"n0", "n3", "n6"}


@pytest.mark.parametrize("value", [[1], {"a": 1}, 1 << 63])
def test_invalid_filter_values_are_refused(http: httpx.Client, api: str, value: Any) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    wanted = {"attributes": {"k": value}}
    for reply in (
        http.post(f"{api}/search", json={"query": "x", **wanted}),
        http.post(f"{api}/count", json=wanted),
        http.post(f"{api}/delete", json=wanted),
        http.get(f"{api}/nodes", params={"attributes": json.dumps(wanted["attributes"])}),
    ):
        assert "attributes" in refusal(reply, 400)["detail"]


@pytest.mark.parametrize("text", ["", "open", "[1]", '{"a":1', '{"a":NaN}', "[" * 9_000])
def test_attributes_parameter_error_explains_its_form(http: httpx.Client, api: str, text: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    fault = refusal(http.get(f"{api}/nodes", params={"attributes": text}), 400)["errors"][0]
    assert fault["path"] == "attributes"
    assert '{"status": "open"}' in fault["message"]


def test_nodes_by_ids_keep_the_requested_order(http: httpx.Client, api: str) -> None:
    nodes = [{"id": each, "type": "t", "valid_to": TIMES[1] if each == "c" else ""} for each in "abc"]
    first = accepted(http.post(f"{api}/inject", json={"nodes": nodes}))["sequence"]
    accepted(http.delete(f"{api}/nodes/a"))

    def got(**more: Any) -> tuple[list[str], list[str]]:
        found = accepted(http.post(f"{api}/get", json={"ids": ["c", "x", "a", "c", "b"], **more}))
        return [node["id"] for node in found["nodes"]], found["missing"]

    assert got() == (["c", "b"], ["x", "a"])
    assert got(as_of=first) == (["c", "a", "b"], ["x"])
    assert got(valid_at="now", as_of=first) == (["a", "b"], ["c", "x"])
    assert got(valid_at=TIMES[0]) == (["c", "b"], ["x", "a"])
    for ids in ([], [""], ["x" * 513], ["a"] * 1_001):
        refusal(http.post(f"{api}/get", json={"ids": ids}), 400)
    refusal(http.post("/api/memory/nobody/get", json={"ids": ["a"]}), 404)


def test_delete_dry_run_matches_the_deletion(http: httpx.Client, api: str) -> None:
    chance = random.Random(3)
    present = {f"n{number}": some_node(chance, f"n{number}") for number in range(60)}
    edges = [{"from": f"n{n}", "to": f"n{n * 7 % 60}", "relation_type": "r"} for n in range(60)]
    accepted(http.post(f"{api}/inject", json={"nodes": [*present.values()], "edges": edges}))
    for limit in (3, 10, MAX_DELETED_NODES):
        chosen = chance.sample(sorted(present), 5)
        for wanted in (
            {"attributes": {"status": chance.choice(VALUES)}, "valid_at": "any"},
            {"types": ["t"], "tags": ["red"], "valid_at": TIMES[1]},
            {"ids": [*chosen, "nobody"], "types": ["u"], "valid_at": "any"},
        ):
            kept = chosen if "ids" in wanted else sorted(present)
            left = [node_id for node_id in kept if node_id in present and fits(present[node_id], wanted)]
            before = accepted(http.get(f"{api}/stats"))
            dry = accepted(http.post(f"{api}/delete", json={**wanted, "limit": limit, "dry_run": True}))
            assert accepted(http.get(f"{api}/stats"))["sequence"] == before["sequence"] == dry["sequence"]
            done = accepted(http.post(f"{api}/delete", json={**wanted, "limit": limit}))
            assert done == {**dry, "dry_run": False, "sequence": before["sequence"] + bool(left)}
            assert done["ids"] == left[:limit]
            assert (done["count"], done["more"]) == (len(done["ids"]), len(left) > limit)
            assert done["missing"] == [each for each in (*chosen, "nobody") if each not in left] * ("ids" in wanted)
            after = accepted(http.get(f"{api}/stats"))
            assert before["nodes"] - after["nodes"] == done["count"]
            assert before["edges"] - after["edges"] == done["edges_deleted"]
            present = {node_id: node for node_id, node in present.items() if node_id not in done["ids"]}
    assert listed(http, api, valid_at="any") == sorted(present)


@pytest.mark.parametrize(
    "body", [{}, {"types": []}, {"tags": [], "attributes": {}, "types": None}, {"valid_at": "any"}, {"dry_run": True}]
)
def test_delete_requires_a_filter(http: httpx.Client, api: str, body: Json) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    assert "a filter is required" in refusal(http.post(f"{api}/delete", json=body), 400)["detail"]
    for wrong in ({"ids": []}, {"types": [""]}, {"type": ["t"]}, {"types": ["t"], "limit": 0}):
        refusal(http.post(f"{api}/delete", json=wrong), 400)
    assert listed(http, api) == ["a"]


def test_delete_limit_per_request(http: httpx.Client, api: str) -> None:
    ends = [{"id": f"end{n}", "type": "end"} for n in range(MAX_DELETED_NODES + 5)]
    accepted(http.post(f"{api}/inject", json={"nodes": ends}))
    first = accepted(http.post(f"{api}/delete", json={"types": ["end"]}))
    assert (first["count"], first["more"]) == (MAX_DELETED_NODES, True)
    last = accepted(http.post(f"{api}/delete", json={"types": ["end"]}))
    assert (last["count"], last["more"], last["sequence"]) == (5, False, first["sequence"] + 1)
    assert accepted(http.post(f"{api}/delete", json={"types": ["end"]}))["sequence"] == last["sequence"]
