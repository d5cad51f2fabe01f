"""The versioned store's contract, with the payloads of its own documentation."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from kgserve.api.operation import ApiUseCase
from kgserve.api.operation_table import USE_CASES
from kgserve.graph.compat.versioned_nodes_field_names import VERSIONED_JSON_MEDIA_TYPE
from kgserve.platform.codecs import decode_json
from tests.server.http.serving import accepted, refusal
from tests.server.http.versions import Json, node, put, subgraph, tear

GOOD: Json = {"kind": "note"}
WRONG_NODES: list[tuple[Any, str]] = [
    ({"kind": 1}, "kind"),
    ({"kind": "note", "content": ["x"]}, "content"),
    ({"kind": "k" * 600}, "kind"),
    ({"kind": "note", "tags": ["t"] * 101}, "tags"),
    ({"kind": "note", "tags": [3]}, "tags"),
    ({"kind": "note", "knid": "x"}, "knid"),
    ({"kind": "note", "lineage_id": "n", "based_on_version": -1}, "based_on_version"),
    ({"kind": "note", "lineage_id": "n", "based_on_version": "1"}, "based_on_version"),
    ({"kind": "note", "freshness_at": "soon"}, "freshness_at"),
    ({"kind": "note", "freshness_at": 5}, "freshness_at"),
    ({"kind": "note", "metadata": []}, "metadata"),
    ({"kind": "note", "content": "x" * (1 << 21)}, "content"),
    (None, "object"),
    ("a", "object"),
]
WRONG_EDGES: list[tuple[Any, str]] = [
    ({"from_ref": "good", "to_ref": "good", "kind": "r", "ordinal": "first"}, "ordinal"),
    ({"from_ref": "good", "to_ref": "good", "kind": "r", "ordinal": 1 << 60}, "ordinal"),
    ({"from_ref": "good", "to_ref": "good", "kind": ["r"]}, "kind"),
    ({"from_ref": "good", "to_ref": "good", "kind": "r", "valid_to": "later"}, "valid_to"),
    ({"from_ref": "good", "to_ref": "good", "kind": "r", "weight": "much"}, "weight"),
    ({"from_ref": "good", "to_ref": "good", "kind": "r", "unknown": 1}, "unknown"),
    ({"from_ref": "bad", "to_ref": "good", "kind": "r"}, "ref not found: bad"),
    (7, "object"),
]


@pytest.mark.parametrize(("item", "word"), WRONG_NODES)
def test_node_errors_are_reported_per_item(http: httpx.Client, api: str, item: Any, word: str) -> None:
    answer = subgraph(http, api, nodes=[{**GOOD, "ref": "good"}, item, {**GOOD, "ref": "other"}])
    first, wrong, last = answer["nodes"]
    assert first["created"]
    assert last["created"]
    assert wrong["error"].partition(":")[0] in {"invalid_input", "too_large"}
    assert word in wrong["error"]


@pytest.mark.parametrize(("item", "word"), WRONG_EDGES)
def test_edge_errors_are_reported_per_item(http: httpx.Client, api: str, item: Any, word: str) -> None:
    nodes = [{**GOOD, "ref": "good"}, {"ref": "bad", "kind": 1}]
    good = {"from_ref": "good", "to_ref": "good", "kind": "fine"}
    answer = subgraph(http, api, nodes=nodes, edges=[good, item, {**good, "kind": "fine too"}])
    assert answer["nodes"][1] == {"ref": "bad", "created": False, "error": answer["nodes"][1]["error"]}
    first, wrong, last = answer["edges"]
    assert first["edge_id"] != last["edge_id"]
    assert word in wrong["error"]


def test_as_of_accepts_a_number_or_text(http: httpx.Client, api: str) -> None:
    put(http, api, id="a", content="one")
    put(http, api, id="a", content="two")
    assert node(http, api, as_of=1)["content"] == "one"
    for moment in (1, "1"):
        found = accepted(http.post(f"{api}/get", json={"ids": ["a"], "as_of": moment}))
        assert found["nodes"][0]["content"] == "one"


def flags(node: Json) -> tuple[bool, bool]:
    """Return `is_current` and `is_stale` of a node."""
    return node["is_current"], node["is_stale"]


def test_versioned_names_say_which_version_is_current(http: httpx.Client, api: str) -> None:
    versioned = {"field_names": "versioned"}
    put(http, api, id="a", content="one", freshness_at="2020-01-01T00:00:00Z")
    put(http, api, id="a", content="two")
    put(http, api, id="b", content="other")
    subgraph(http, api, edges=[{"from_lineage": "b", "to_lineage": "a", "kind": "r"}])

    def read(path: str, **query: Any) -> Json:
        return accepted(http.get(f"{api}/{path}", params=versioned | query), media=VERSIONED_JSON_MEDIA_TYPE)

    assert flags(read("nodes/a")["node"]) == (True, False)
    assert flags(read("nodes/a", version=2)["node"]) == (True, False)
    assert flags(read("nodes/a", version=1)["node"]) == (False, True)
    assert flags(read("nodes/a", as_of=1)["node"]) == (False, True)
    assert [flags(each["node"]) for each in read("nodes/a/history")["states"]] == [(True, False), (False, True)]
    for compact in (True, False):
        assert [flags(each) for each in read("nodes", compact=compact)["nodes"]] == [(True, False)] * 2
    for path, body in (("traverse", {"start_id": "b"}), ("get", {"ids": ["a", "b"]})):
        walked = accepted(http.post(f"{api}/{path}", params=versioned, json=body), media=VERSIONED_JSON_MEDIA_TYPE)
        assert [flags(each) for each in walked["nodes"]] == [(True, False)] * 2
    hits = accepted(
        http.post(f"{api}/search", params=versioned, json={"query": "two", "at_least": 4}),
        media=VERSIONED_JSON_MEDIA_TYPE,
    )
    assert flags(hits["hits"][0]["node"]) == (True, False)
    made = accepted(
        http.post(f"{api}/nodes", params=versioned, json={"id": "a", "kind": "note"}), media=VERSIONED_JSON_MEDIA_TYPE
    )
    assert flags(made["node"]) == (True, False)
    assert "is_current" not in accepted(http.get(f"{api}/nodes/a"))["node"]
    # Rows of a change are historical, so they do not say which version is current now.
    assert all("is_current" not in each for entry in read("changes")["changes"] for each in entry["nodes_created"])


def test_list_nodes_accepts_filter_aliases(http: httpx.Client, api: str) -> None:
    for name, kind, tags in (("a", "note", ["x", "y"]), ("b", "plan", ["x"]), ("c", "idea", ["x"])):
        put(http, api, id=name, kind=kind, tags=tags)

    def listed(**filters: Any) -> list[str]:
        return [each["id"] for each in accepted(http.get(f"{api}/nodes", params=filters))["nodes"]]

    assert listed(kinds=["note", "plan"]) == listed(types=["note", "plan"]) == ["a", "b"]
    assert listed(tags=["x", "y"]) == ["a"]


KEPT = pytest.mark.parametrize("history", ["all", "none"])


@KEPT
def test_version_numbers_continue_after_recreation(http: httpx.Client, api: str, history: str) -> None:
    accepted(http.put(api, json={"history": history}), 201)
    for content in ("one", "two", "three"):
        put(http, api, id="a", content=content)
    assert http.delete(f"{api}/nodes/a").is_success
    again = put(http, api, id="a", content="another life")
    assert (again["created"], again["node"]["version"]) == (True, 4)
    assert put(http, api, id="a", content="on", based_on_version=4)["node"]["version"] == 5
    assert put(http, api, id="b")["node"]["version"] == 1


@pytest.mark.parametrize("way", ["inject", "subgraph", "import", "cypher", "revert", "batch"])
def test_every_way_of_recreation_continues_version_numbers(http: httpx.Client, api: str, way: str) -> None:
    put(http, api, id="a", content="one")
    put(http, api, id="a", content="two")
    if way == "batch":
        query = "MATCH (n {id: 'a'}) DETACH DELETE n"
        accepted(http.post(f"{api}/cypher", json={"query": query, "mode": "write"}))
    else:
        accepted(http.post(f"{api}/delete", json={"ids": ["a"]}))
    match way:
        case "subgraph":
            subgraph(http, api, nodes=[{"lineage_id": "a", "kind": "note", "content": "new"}])
        case "import":
            line = '{"kind":"node","id":"a","type":"note","content":"new","version":1}'
            accepted(http.post(f"{api}/import", content=line, headers={"content-type": "application/x-ndjson"}))
        case "cypher":
            query = "CREATE (:Entity {id: 'a', type: 'note', content: 'new'})"
            accepted(http.post(f"{api}/cypher", json={"query": query, "mode": "write"}))
        case "revert":
            accepted(http.post(f"{api}/nodes/a/revert", json={"version": 1}))
        case _:
            accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "note", "content": "new"}]}))
    assert node(http, api)["version"] == 3
    assert node(http, api, version=2)["content"] == "two"


def test_old_versions_do_not_apply_to_a_recreated_node(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"conflict_policy": "manual"}), 201)
    put(http, api, id="a", content="one")
    put(http, api, id="a", content="two")
    assert http.delete(f"{api}/nodes/a").is_success
    put(http, api, id="a", content="another life")
    assert [node(http, api, version=version)["content"] for version in (1, 2, 3)] == ["one", "two", "another life"]
    late = refusal(http.post(f"{api}/nodes", json={"id": "a", "kind": "note", "based_on_version": 1}), 409)
    assert late["node"]["conflicts"] == [3]
    accepted(http.post(f"{api}/nodes/a/revert", json={"version": 2}))
    assert node(http, api)["content"] == "two"
    versions = [state["node"]["version"] for state in accepted(http.get(f"{api}/nodes/a/history"))["states"]]
    assert versions == [5, 4, 3, 2, 1]


def test_version_numbers_continue_after_bulk_deletion(http: httpx.Client, unindexed: str) -> None:
    rows = [{"id": f"n{number}", "type": "note"} for number in range(6_000)]
    for content in ("one", "two"):
        accepted(http.post(f"{unindexed}/inject", json={"nodes": [{**row, "content": content} for row in rows]}))
    query = "MATCH (n) DETACH DELETE n"
    accepted(http.post(f"{unindexed}/cypher", json={"query": query, "mode": "write"}))
    assert accepted(http.get(f"{unindexed}/stats"))["nodes"] == 0
    accepted(http.post(f"{unindexed}/inject", json={"nodes": [*rows, {"id": "new", "type": "note"}]}))
    assert [node(http, unindexed, name)["version"] for name in ("n0", "n5999", "new")] == [3, 3, 1]


@pytest.fixture
def torn(http: httpx.Client, api: str) -> str:
    tear(http, api)
    return api


@pytest.mark.parametrize("history", ["none"])
def test_manual_conflict_policy_requires_history(http: httpx.Client, api: str, history: str) -> None:
    both = {"conflict_policy": "manual", "history": history}
    refused = [http.put(api, json=both)]
    accepted(http.put(api, json={"conflict_policy": "manual"}), 201)
    refused += [http.patch(api, json={"history": history})]
    accepted(http.patch(api, json={"conflict_policy": "lww", "history": history}))
    refused += [http.patch(api, json={"conflict_policy": "manual"}), http.patch(api, json=both)]
    for each in refused:
        document = refusal(each, 400)
        assert document["errors"][0]["path"] in {"conflict_policy", "history"}
        assert "keeps conflicting versions in the history" in document["detail"]
    accepted(http.patch(api, json={"conflict_policy": "manual", "history": 30}))


def test_old_versions_name_their_successor(http: httpx.Client, torn: str) -> None:
    def stands(found: Json) -> tuple[int, Any, Any]:
        return found["version"], found.get("superseded_by"), found.get("is_current")

    def history() -> list[tuple[int, Any, Any]]:
        return [stands(state["node"]) for state in accepted(http.get(f"{torn}/nodes/a/history"))["states"]]

    assert history() == [(3, None, None), (2, None, True), (1, 2, False)]
    page = accepted(http.get(f"{torn}/nodes/a/history", params={"limit": 1, "before": 3}))["states"]
    assert [stands(state["node"]) for state in page] == [(2, None, True)]
    assert "conflicts" not in put(http, torn, id="a", content="both", based_on_version=2)["node"]
    assert history() == [(4, None, None), (3, 4, False), (2, 4, False), (1, 2, False)]
    assert stands(node(http, torn, version=3)) == (3, 4, False)
    for sequence, expected in ((1, (1, 2, False)), (2, (2, 4, False)), (3, (3, 4, False)), (4, (4, None, None))):
        assert stands(node(http, torn, as_of=sequence)) == expected
        got = accepted(http.post(f"{torn}/get", json={"ids": ["a"], "as_of": sequence}))["nodes"]
        listed = accepted(http.get(f"{torn}/nodes", params={"as_of": sequence}))["nodes"]
        walked = accepted(http.post(f"{torn}/traverse", json={"start_id": "a", "as_of": sequence}))["nodes"]
        assert [stands(each) for each in (*got, *listed, *walked)] == [expected] * 3
        query = {"query": "one two three both", "mode": "keyword"}
        hits = accepted(http.post(f"{torn}/search", json={**query, "as_of": sequence}))["hits"]
        hits += accepted(http.post(f"{torn}/search/batch", json={"queries": [query], "as_of": sequence}))["hits"]
        assert [stands(hit["node"]) for hit in hits] == [expected] * 2
        asked = {"query": query["query"], "as_of": sequence}
        text = accepted(http.post(f"{torn}/context", json=asked))["text"]
        assert (f"superseded by version {expected[1]}" in text) == (expected[1] is not None)
        [told] = decode_json(accepted(http.post(f"{torn}/context", json={**asked, "format": "json"}))["text"])["nodes"]
        assert (told.get("superseded_by"), told.get("is_current")) == expected[1:]
    assert http.delete(f"{torn}/nodes/a").is_success
    assert stands(node(http, torn, version=4)) == (4, None, False)
    put(http, torn, id="a", content="another life")
    assert history()[:2] == [(5, None, None), (4, None, False)]


def test_conflicts_field_is_omitted_after_resolution(http: httpx.Client, torn: str) -> None:
    assert node(http, torn)["conflicts"] == [2]
    put(http, torn, id="a", content="both", based_on_version=3)
    assert "conflicts" not in node(http, torn)


READS = [case for case in USE_CASES if case.takes_names]


@pytest.mark.parametrize("case", READS, ids=lambda case: case.name)
def test_versioned_schemas_match_the_answers(case: ApiUseCase) -> None:
    """Examples contain nodes and edges in every place, and both ways of renaming know the same places."""
    [other] = case.operation.others
    assert other.struct is not None
    read = decode_json(msgspec.json.encode(other.example), other.struct)
    assert msgspec.to_builtins(read).keys() == other.example.keys()
    text = msgspec.json.encode(other.example)
    assert not any(f'"{ours}":' in text.decode() for ours in ("type", "attributes", "relation_type", "from", "to"))


def named(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/vnd.kgserve.versioned+json"
    return decode_json(answer.content)


def test_field_names_of_the_contract_can_be_asked_back(http: httpx.Client, api: str) -> None:
    first = put(http, api, lineage_id="a", kind="note", content="some words", metadata={"type": {"id": 1}})
    put(http, api, lineage_id="b", kind="note", freshness_at="2020-01-01T00:00:00Z")
    subgraph(http, api, edges=[{"from_lineage": "a", "to_lineage": "b", "kind": "SEES", "metadata": {"from": 1}}])
    put(http, api, lineage_id="a", kind="task", content="other words", metadata={"type": 2})
    sequence = accepted(http.get(api))["sequence"]
    asked = {"field_names": "versioned"}
    names = {"lineage_id", "kind", "metadata"}

    def got(path: str, **query: Any) -> Json:
        return named(http.get(f"{api}{path}", params=query | asked))

    def sent(path: str, body: Json) -> Json:
        return named(http.post(f"{api}{path}", params=asked, json=body))

    words = {"query": "words", "mode": "keyword", "at_least": sequence}
    whole = got("/nodes/a")
    nodes = [
        whole["node"],
        got("/nodes/a", version=1)["node"],
        got("/nodes/a", as_of=first["sequence"])["node"],
        got("/nodes")["nodes"][0],
        got("/nodes", as_of=sequence)["nodes"][0],
        sent("/get", {"ids": ["a"]})["nodes"][0],
        sent("/traverse", {"start_id": "a"})["nodes"][0],
        sent("/search", words)["hits"][0]["node"],
        sent("/search/batch", {"queries": [{"query": "words", "mode": "keyword"}]})["hits"][0]["node"],
        got("/nodes/a/history")["states"][0]["node"],
        got("/changes")["changes"][0]["nodes_created"][0],
    ]
    assert all(names <= each.keys() and not {"id", "type", "attributes"} & each.keys() for each in nodes)
    assert {each["lineage_id"] for each in nodes} == {"a"}
    assert nodes[1]["metadata"] == {"type": {"id": 1}}
    assert got("/nodes/b")["node"]["is_stale"]
    diff = got("/nodes/a/history")["states"][0]["diff"]
    assert {each["path"] for each in diff} == {"kind", "content", "metadata.type"}
    edges = [
        *whole["outgoing"],
        *got("/nodes/b")["incoming"],
        *got("/nodes/a/outgoing")["edges"],
        *got("/nodes/b/incoming")["edges"],
        *sent("/traverse", {"start_id": "a"})["edges"],
        got("/edges/a~SEES~b")["edge"],
    ]
    assert len(edges) == 6
    for edge in edges:
        assert (edge["from_lineage"], edge["to_lineage"], edge["kind"]) == ("a", "b", "SEES")
        assert edge["metadata"]["from"] == 1
        assert not {"from", "to", "relation_type", "attributes"} & edge.keys()
    assert got("/nodes", compact=True)["nodes"][0].keys() >= {"lineage_id", "kind"}
    for wrong in ("field_names=other", "field_names=", "field_names=versioned&field_names=versioned"):
        document = refusal(http.get(f"{api}/nodes/a?{wrong}"), 400)
        assert document["errors"][0]["path"] == "field_names"
    assert "field_names" in refusal(http.get(f"{api}/tags?field_names=versioned"), 400)["detail"]


def test_query_parameters_are_applied_or_refused(http: httpx.Client, api: str) -> None:
    node = {"kind": "note", "attributes": {"m": 1}, "lineage_id": "a"}
    asked = {"field_names": "versioned"}
    assert named(http.post(f"{api}/nodes", params=asked, json=node))["node"]["metadata"] == {"m": 1}
    cleared = named(http.post(f"{api}/nodes", params=asked, json={"kind": "note", "lineage_id": "a"}))
    assert cleared["cleared"] == ["metadata"]
    put(http, api, id="b")
    merged = named(http.post(f"{api}/nodes/b/merge", params=asked, json={"into": "a"}))
    assert merged["node"]["lineage_id"] == "a"
    for method, path, body in (
        ("POST", f"{api}/subgraph", {"nodes": [node]}),
        ("POST", f"{api}/inject", {}),
        ("DELETE", f"{api}/nodes/a", None),
        ("GET", f"{api}/links", None),
        ("PUT", api, {}),
    ):
        for name in ("field_names", "unknown"):
            told = refusal(http.request(method, path, params={name: "versioned"}, json=body), 400)
            assert told["errors"][0]["path"] == name
    refusal(http.post(f"{api}/nodes", params={**asked, "unknown": 1}, json=node), 400)
    assert http.get("/health", params={"unknown": 1}).is_success
