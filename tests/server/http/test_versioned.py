"""The contract of a versioned store over HTTP: optimistic concurrency of puts, and subgraphs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal
from tests.server.http.versions import Json, beside, node, put, subgraph, tear


@pytest.fixture
def manual(http: httpx.Client, api: str) -> str:
    tear(http, api)
    return api


def test_put_without_id_creates_a_node(http: httpx.Client, api: str) -> None:
    first, second = put(http, api, based_on_version=7), put(http, api, lineage_id="")
    assert first["created"]
    assert first["node"]["version"] == 1
    assert first["node"]["id"] != second["node"]["id"]
    assert put(http, api, lineage_id="chosen")["created"]


def test_put_replaces_the_whole_version(http: httpx.Client, api: str) -> None:
    whole: Json = {
        "content": "c",
        "summary": "s",
        "tags": ["b", "a", "b"],
        "metadata": {"n": 1},
        "freshness_at": "2020-01-01T00:00:00Z",
        "created_by": "ada",
        "valid_from": "2019-01-01T00:00:00+01:00",
        "valid_to": "2030-01-01T00:00:00Z",
    }
    found = put(http, api, id="a", **whole)["node"]
    assert found["tags"] == ["b", "a"]
    assert found["attributes"] == {"n": 1}
    assert found["stale"]
    assert found["valid_from"] == "2018-12-31T23:00:00.000000Z"
    then = put(http, api, id="a")["node"]
    assert then["version"] == 2
    assert then["content"] == ""
    assert then["attributes"] == {}
    assert then.keys().isdisjoint({"summary", "tags", "freshness_at", "stale", "created_by", "valid_from", "valid_to"})
    assert node(http, api, "a", version=1) == found | {"superseded_by": 2, "is_current": False}


def test_field_aliases_are_accepted(http: httpx.Client, api: str) -> None:
    ours = {"id": "a", "type": "note", "attributes": {"x": 1}}
    theirs = {"lineage_id": "a", "kind": "note", "metadata": {"x": 1}}
    assert accepted(http.post(f"{api}/nodes", json=ours))["created"]
    assert accepted(http.post(f"{api}/nodes", json=ours | theirs))["node"]["version"] == 1
    for name, value in (("lineage_id", "b"), ("kind", "other"), ("metadata", {})):
        document = refusal(http.post(f"{api}/nodes", json=ours | {name: value}), 400)
        assert document["errors"][0]["path"] == name
        assert "differ" in document["detail"]
    for given, name in (({"id": "b"}, "type"), ({"lineage_id": "b"}, "kind"), ({"content": "b"}, "kind")):
        assert refusal(http.post(f"{api}/nodes", json=given), 400)["errors"][0]["path"] == name


@pytest.mark.parametrize("based_on", [None, 2, 1, 0, 99])
def test_last_writer_wins_by_default(http: httpx.Client, api: str, based_on: int | None) -> None:
    put(http, api, id="a", content="one")
    put(http, api, id="a", content="two")
    found = put(http, api, id="a", content="three", based_on_version=based_on)
    assert found["node"]["version"] == 3
    assert not found["created"]
    assert "conflicts" not in found["node"]


@pytest.mark.parametrize("based_on", [1, 0, 99])
def test_manual_policy_keeps_both_versions(http: httpx.Client, manual: str, based_on: int) -> None:
    found = beside(http, manual, id="a", content="four", based_on_version=based_on)
    assert (found["version"], found["content"], found["conflicts"]) == (4, "four", [3, 2])
    assert node(http, manual, "a") == found
    assert node(http, manual, "a", version=2)["content"] == "two"
    assert "superseded_by" not in node(http, manual, "a", version=2)
    assert node(http, manual, "a", version=1)["superseded_by"] == 2


@pytest.mark.parametrize("based_on", [None, 2, 3])
def test_put_based_on_a_head_resolves_the_conflict(http: httpx.Client, manual: str, based_on: int | None) -> None:
    # Also with the same content as one of the heads: it decides which one is right.
    found = put(http, manual, id="a", content="three", based_on_version=based_on)["node"]
    assert found["version"] == 4
    assert "conflicts" not in found
    assert [node(http, manual, "a", version=v)["superseded_by"] for v in (1, 2, 3)] == [2, 4, 4]
    states = accepted(http.get(f"{manual}/nodes/a/history"))["states"]
    assert [state["node"].get("conflicts") for state in states] == [None, [2], None, None]


def test_unchanged_put_creates_no_version(http: httpx.Client, manual: str) -> None:
    put(http, manual, id="b", content="x")
    assert put(http, manual, id="b", content="x", based_on_version=99, created_by="me")["node"]["version"] == 1
    assert put(http, manual, id="a", content="three", based_on_version=1)["node"]["conflicts"] == [2]


def test_conflicting_head_limit(http: httpx.Client, manual: str) -> None:
    rows: list[Json] = [
        {"lineage_id": "a", "kind": "note", "content": str(n), "based_on_version": 0} for n in range(99)
    ]
    done = subgraph(http, manual, nodes=rows[:49])["nodes"] + subgraph(http, manual, nodes=rows[49:])["nodes"]
    assert {each["error"].partition(":")[0] for each in done[:98]} == {"conflict_manual"}
    assert done[98]["error"].startswith("conflict: ")
    assert "version" not in done[98]
    assert len(node(http, manual, "a")["conflicts"]) == 99
    assert "conflicts" not in put(http, manual, id="a", based_on_version=50)["node"]


def test_kind_whitelist_applies_to_every_write(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"kind_whitelist": ["note"]}), 201)
    ndjson = {"content-type": "application/x-ndjson"}
    create = {"query": "CREATE (:Entity {id: 'a', type: 'x'})", "mode": "write"}
    for refused in (
        http.post(f"{api}/nodes", json={"kind": "x"}),
        http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "x"}]}),
        http.post(f"{api}/cypher", json=create),
    ):
        assert refusal(refused, 400)["type"] == "urn:kgserve:error:kind_not_allowed"
    imported = accepted(http.post(f"{api}/import", content='{"kind":"node","id":"a","type":"x"}', headers=ndjson))
    assert (imported["nodes_created"], imported["error_count"]) == (0, 1)
    assert subgraph(http, api, nodes=[{"kind": "x"}])["nodes"][0]["error"].startswith("kind_not_allowed: ")
    assert accepted(http.get(f"{api}/stats"))["nodes"] == 0


def test_a_subgraph_answers_item_by_item(http: httpx.Client, api: str) -> None:
    put(http, api, id="old")
    rows: list[Json] = [{"ref": "a", "kind": "note"}, {"ref": "bad"}, {"ref": "b", "lineage_id": "new", "kind": "n"}]
    edges: list[Json] = [
        {"from_ref": "a", "to_lineage": "old", "kind": "r", "ordinal": 3, "metadata": {"m": 1}, "created_by": "ada"},
        {"from_ref": "bad", "to_ref": "b", "kind": "r"},
        {"from_ref": "a", "from_lineage": "old", "to_ref": "b", "kind": "r"},
        {"from_ref": "a", "kind": "r"},
        {"from_ref": "a", "to_lineage": "nobody", "kind": "r"},
        {"from_ref": "a", "to_ref": "b"},
        {"from_ref": "a", "to_ref": "b", "kind": "r", "to_graph": "elsewhere"},
        {"from_ref": "b", "to_ref": "b", "kind": "r"},
    ]
    answer = subgraph(http, api, nodes=rows, edges=edges)
    made, bad, new = answer["nodes"]
    assert made == {"ref": "a", "created": True, "lineage_id": made["lineage_id"], "version": 1}
    assert bad == {"ref": "bad", "created": False, "error": "invalid_input: kind: is required"}
    assert new == {"ref": "b", "created": True, "lineage_id": "new", "version": 1}
    assert [each.get("error") for each in answer["edges"]] == [
        None,
        "not_found: ref not found: bad",
        "invalid_input: only one of from_ref/from_lineage allowed",
        "invalid_input: one of to_ref/to_lineage required",
        'not_found: no such node: "nobody"',
        "invalid_input: kind: is required",
        None,
        None,
    ]
    edge = accepted(http.get(f"{api}/edges/{answer['edges'][0]['edge_id']}"))["edge"]
    assert (edge["from"], edge["to"], edge["ordinal"], edge["created_by"]) == (made["lineage_id"], "old", 3, "ada")
    assert edge["attributes"]["m"] == 1
    assert answer["sequence"] == accepted(http.get(api))["sequence"] == edge["sequence"]


def test_subgraph_items_are_applied_in_order(http: httpx.Client, manual: str) -> None:
    rows: list[Json] = [
        {"ref": "x", "lineage_id": "n", "kind": "note", "content": str(number), "based_on_version": based_on}
        for number, based_on in enumerate([None, 1, 1])
    ]
    rows[2]["ref"] = "y"
    edges = [{"from_ref": "x", "to_ref": "x", "kind": "r"}, {"from_ref": "y", "to_ref": "x", "kind": "r"}]
    answer = subgraph(http, manual, nodes=rows, edges=edges)
    assert [(each["created"], each["version"]) for each in answer["nodes"]] == [(True, 1), (False, 2), (False, 3)]
    words = "conflict_manual: concurrent write under manual conflict policy; conflict recorded"
    assert answer["nodes"][2]["error"] == words
    assert answer["edges"] == [{"edge_id": "n~r~n"}, {"error": "not_found: ref not found: y"}]


def test_replaced_edge_reports_old_values(http: httpx.Client, api: str) -> None:
    ends = {"from_ref": "a", "to_ref": "b", "kind": "r"}
    first = ends | {"metadata": {"n": 1}, "ordinal": 1, "weight": 0.5}
    nodes = [{"ref": "a", "kind": "k"}, {"ref": "b", "kind": "k"}]
    edges = [first, ends | {"kind": "other"}, ends | {"metadata": {"n": True}}, first]
    answer = accepted(http.post(f"{api}/subgraph", json={"nodes": nodes, "edges": edges}))
    one, other, two, three = answer["edges"]
    assert one["edge_id"] == two["edge_id"] == three["edge_id"] != other["edge_id"]
    assert not {"created", "replaced"} & (one.keys() | other.keys())
    assert two == {
        "edge_id": one["edge_id"],
        "created": False,
        "replaced_version": 1,
        "replaced": {"metadata": {"n": 1}},
    }
    assert (three["replaced_version"], three["replaced"]) == (2, {"metadata": {"n": True}})
    again = accepted(http.post(f"{api}/subgraph", json={"edges": [_by_lineage(one["edge_id"], first)]}))
    assert again["edges"] == [{"edge_id": one["edge_id"], "created": False}]


def _by_lineage(edge_id: str, edge: dict[str, Any]) -> dict[str, Any]:
    source, _, target = edge_id.split("~")
    rest = {name: value for name, value in edge.items() if not name.endswith("_ref")}
    return rest | {"from_lineage": source, "to_lineage": target}


def test_inject_reports_duplicate_items(http: httpx.Client, api: str) -> None:
    edge = {"from": "a", "to": "b", "relation_type": "R"}
    nodes = [{"id": "a", "type": "t"}, {"id": "b", "type": "t"}, {"id": "a", "type": "t", "content": "x"}]
    answer = accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": [edge, edge, edge | {"weight": 2}]}))
    assert answer["merged_count"] == 3
    assert answer["merged"] == [
        {"path": "nodes[2]", "earlier_path": "nodes[0]"},
        {"path": "edges[1]", "earlier_path": "edges[0]"},
        {"path": "edges[2]", "earlier_path": "edges[0]"},
    ]
    once = accepted(http.post(f"{api}/inject", json={"nodes": nodes[:2], "edges": [edge]}))
    assert "merged" not in once
