"""The versioned graph store's specification: lineages, versions, conflicts, edges, subgraphs, batch search.

The specification is a Go interface; each of its methods is checked through the REST operation that offers it, with
`field_names=versioned` where answers have fields of nodes and edges.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bench.listener import EventListener
from tests.conformance.agent import Agent
from tests.conformance.requirement import requirement
from tests.server.http.serving import RunningServer, accepted, refusal

Json = dict[str, Any]
VERSIONED = {"field_names": "versioned"}


def versioned(http: httpx.Client, method: str, path: str, query: Json | None = None, body: Json | None = None) -> Json:
    """Return the answer, in the specification's names, to a request that must succeed."""
    response = http.request(method, path, params={**VERSIONED, **(query or {})}, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.kgserve.versioned+json"
    return response.json()


def put(http: httpx.Client, api: str, **fields: Any) -> Json:
    return versioned(http, "POST", f"{api}/nodes", body={"kind": "note", **fields})["node"]


def read(http: httpx.Client, api: str, lineage: str, **query: Any) -> Json:
    return versioned(http, "GET", f"{api}/nodes/{lineage}", query)["node"]


def listed(http: httpx.Client, api: str, **query: Any) -> list[Json]:
    return versioned(http, "GET", f"{api}/nodes", query)["nodes"]


def subgraph(http: httpx.Client, api: str, **rows: list[Json]) -> Json:
    return accepted(http.post(f"{api}/subgraph", json=rows))


def edges(http: httpx.Client, api: str, lineage: str, direction: str, **query: Any) -> list[Json]:
    return versioned(http, "GET", f"{api}/nodes/{lineage}/{direction}", query)["edges"]


def connected(http: httpx.Client, api: str, *pairs: str, kind: str = "LINKS") -> None:
    nodes: list[Json] = [{"lineage_id": name, "kind": "note", "content": name} for name in sorted({*"".join(pairs)})]
    rows: list[Json] = [{"from_lineage": a, "to_lineage": b, "kind": kind} for a, b in pairs]
    done = subgraph(http, api, nodes=nodes, edges=rows)
    assert not [each for each in (*done["nodes"], *done["edges"]) if each.get("error")]


# Constants


@requirement("VG-1.1", "PutSubgraph takes at most 50 nodes and 100 edges")
@pytest.mark.parametrize(("nodes", "rows"), [(50, 100), (51, 1), (1, 101), (0, 0)])
def test_subgraph_limits(http: httpx.Client, api: str, nodes: int, rows: int) -> None:
    put(http, api, lineage_id="a")
    specs = [{"kind": "note", "content": str(number)} for number in range(nodes)]
    links = [{"from_lineage": "a", "to_lineage": "a", "kind": f"K{number}"} for number in range(rows)]
    answer = http.post(f"{api}/subgraph", json={"nodes": specs, "edges": links})
    if (nodes, rows) == (50, 100):
        done = accepted(answer)
        assert all(each["created"] for each in done["nodes"])
        assert all(each["edge_id"] for each in done["edges"])
    else:
        refusal(answer, 400)
        assert len(listed(http, api)) == 1


@requirement("VG-1.2", "A batch search takes 1 to 8 queries")
@requirement("VG-1.3", "Each query's limit defaults to 20 and is at most 50")
@requirement("VG-1.4", "The total limit defaults to 20 and is at most 100")
@requirement("VG-1.5", "Results are fused with reciprocal ranks, k = 60")
def test_batch_search(http: httpx.Client, api: str) -> None:
    nodes = [{"id": f"n{number:03}", "type": "note", "content": f"boat number {number}"} for number in range(60)]
    nodes += [{"id": f"t{number:03}", "type": "note", "content": f"train number {number}"} for number in range(60)]
    sequence = accepted(http.post(f"{api}/inject", json={"nodes": nodes}))["sequence"]

    def search(*queries: Json, **options: int) -> Json:
        asked = {"queries": list(queries), "at_least": sequence, **options}
        return accepted(http.post(f"{api}/search/batch", json=asked))

    boat: Json = {"query": "boat", "mode": "keyword"}
    default = search(boat)
    assert (default["per_query_hits"], len(default["hits"])) == ([20], 20)
    assert default["hits"][0]["score"] == pytest.approx(1 / 61)
    train: Json = {"query": "train", "mode": "keyword", "limit": 500}
    wide = search(boat | {"limit": 500}, train, boat, limit=500)
    assert wide["per_query_hits"] == [50, 50, 20]
    assert (wide["query_count"], wide["unique_hits"], len(wide["hits"])) == (3, 100, 100)
    first = wide["hits"][0]
    assert (first["score"], first["queries_matched"]) == (pytest.approx(2 / 61), [0, 2])
    refusal(http.post(f"{api}/search/batch", json={"queries": []}), 400)
    refusal(http.post(f"{api}/search/batch", json={"queries": [boat] * 9}), 400)


# Errors


@requirement("VG-2.1", "ErrNotFound: no such lineage, version, edge or graph")
def test_not_found(http: httpx.Client, api: str) -> None:
    put(http, api, lineage_id="a")
    for path in ("nodes/none", "nodes/none/outgoing", "nodes/none/history", "edges/a~LINKS~b", "nodes/a?version=9"):
        assert refusal(http.get(f"{api}/{path}"), 404)["type"] == "urn:kgserve:error:not_found", path
    refusal(http.get("/api/memory/no-such-store"), 404)


@requirement("VG-2.2", "ErrKindNotAllowed: a kind outside the graph's whitelist")
@requirement("VG-2.3", "ErrInvalidInput: input that cannot be accepted")
def test_kinds_and_invalid_input(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"kind_whitelist": ["note"]}), 201)
    refused = refusal(http.post(f"{api}/nodes", json={"kind": "task"}), 400)
    assert refused["type"] == "urn:kgserve:error:kind_not_allowed"
    assert refusal(http.post(f"{api}/nodes", json={"kind": 5}), 400)["type"] == "urn:kgserve:error:invalid"


@requirement("VG-2.4", "ErrConflictManual: the node is written as a sibling head and returned with the error")
@requirement("VG-3.2", "Under the policy manual a concurrent write becomes a sibling head")
@requirement("VG-9.2", "conflicts lists the sibling heads; the head with the highest version is returned")
@requirement("VG-2.5", "A put that supersedes both siblings resolves the conflict")
def test_manual_conflicts(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"conflict_policy": "manual"}), 201)
    put(http, api, lineage_id="a", content="one")
    put(http, api, lineage_id="a", content="two", based_on_version=1)
    body = {"lineage_id": "a", "kind": "note", "content": "three", "based_on_version": 1}
    document = refusal(http.post(f"{api}/nodes", json=body, params=VERSIONED), 409)
    assert document["type"] == "urn:kgserve:error:conflict_manual"
    assert (document["node"]["version"], document["node"]["conflicts"]) == (3, [2])
    assert read(http, api, "a")["version"] == 3
    settled = put(http, api, lineage_id="a", content="both", based_on_version=3)
    assert "conflicts" not in settled
    assert [read(http, api, "a", version=each)["superseded_by"] for each in (1, 2, 3)] == [2, 4, 4]


@requirement("VG-3.1", "The default policy lww lets the last writer win")
def test_last_writer_wins(http: httpx.Client, api: str) -> None:
    for content, based_on in (("one", None), ("two", 1), ("three", 1)):
        put(http, api, lineage_id="a", content=content, based_on_version=based_on)
    node = read(http, api, "a")
    assert (node["content"], node["version"]) == ("three", 3)
    assert "conflicts" not in node
    assert accepted(http.get(api))["conflict_policy"] == "lww"


# Edges


@requirement("VG-4.1", "An edge has an id, both lineages, kind, metadata, ordinal, created_at and created_by")
@requirement("VG-4.2", "GetEdge, DeleteEdge by id")
def test_edge_fields(http: httpx.Client, api: str) -> None:
    connected(http, api, "ab")
    spec = {
        "from_lineage": "a",
        "to_lineage": "b",
        "kind": "NEXT",
        "metadata": {"x": 1},
        "ordinal": 2,
        "created_by": "me",
    }
    [done] = subgraph(http, api, edges=[spec])["edges"]
    edge = versioned(http, "GET", f"{api}/edges/{done['edge_id']}")["edge"]
    assert {name: edge[name] for name in ("from_lineage", "to_lineage", "kind", "ordinal", "created_by")} == {
        name: spec[name] for name in ("from_lineage", "to_lineage", "kind", "ordinal", "created_by")
    }
    assert edge["metadata"].items() >= {"x": 1}.items()
    assert edge["metadata"]["created_at"]
    accepted(http.delete(f"{api}/edges/{done['edge_id']}"))
    refusal(http.get(f"{api}/edges/{done['edge_id']}"), 404)
    assert [each["kind"] for each in edges(http, api, "a", "outgoing")] == ["LINKS"]


@requirement(
    "VG-4.3",
    "Every PutEdge makes an edge with an id of its own",
    "Between two lineages there is one edge of each kind; the result says `created: false` and what it replaced.",
)
def test_one_edge_of_each_kind(http: httpx.Client, api: str) -> None:
    connected(http, api, "ab")
    specs: list[Json] = [
        {"from_lineage": "a", "to_lineage": "b", "kind": "USES", "metadata": {"n": number}} for number in (1, 2)
    ]
    first, second = subgraph(http, api, edges=specs)["edges"]
    assert first["edge_id"] == second["edge_id"]
    assert "created" not in first
    assert second["created"] is False
    assert second["replaced"]["metadata"]["n"] == 1


@requirement("VG-4.4", "An edge whose to_graph is another graph is a symlink; to_graph defaults to the own graph")
@requirement("VG-15.9", "SymlinkManifest summarizes a graph's cross-graph references")
@requirement("VG-15.8", "Traversal stops at graph boundaries unless follow_symlinks is set")
def test_symlinks(http: httpx.Client, api: str, store: str) -> None:
    other = f"{store}-other"
    put(http, f"/api/memory/{other}", lineage_id="far", content="far")
    connected(http, api, "ab")
    link = {"from_lineage": "b", "to_lineage": "far", "to_graph": other, "kind": "SEE"}
    [done] = subgraph(http, api, edges=[link])["edges"]
    assert "error" not in done
    [edge] = edges(http, api, "b", "outgoing")
    assert (edge["to_graph"], edge["to_lineage"]) == (other, "far")
    manifest = accepted(http.get(f"{api}/links"))
    assert [each["graph_id"] for each in manifest["outbound"]] == [other]
    walk = {"start_id": "a", "depth": 3}
    assert accepted(http.post(f"{api}/traverse", json=walk))["count"] == 2
    followed = accepted(http.post(f"{api}/traverse", json=walk | {"follow_symlinks": True}))
    assert {each["id"] for each in followed["nodes"]} == {"a", "b", "far"}


# Graphs


@requirement("VG-7.1", "A graph has a name, a conflict policy, a kind whitelist, metadata and created_at")
@requirement("VG-7.2", "UpdateGraphConfig leaves absent fields unchanged; an empty list or map clears")
@requirement("VG-7.3", "GetGraph and ListGraphs")
@requirement(
    "VG-7.4", "A graph has an id of the server's choosing", "The caller chooses the store's id, its name in paths."
)
def test_graph_configuration(http: httpx.Client, api: str, store: str) -> None:
    given: Json = {"name": "Plans", "conflict_policy": "manual", "kind_whitelist": ["note"], "metadata": {"by": "ada"}}
    accepted(http.put(api, json=given), 201)
    graph = accepted(http.get(api))
    assert {name: graph[name] for name in given} == given
    assert graph["created_at"]
    renamed = accepted(http.patch(api, json={"name": "Ideas"}))
    assert {name: renamed[name] for name in given} == given | {"name": "Ideas"}
    cleared = accepted(http.patch(api, json={"kind_whitelist": [], "metadata": {}}))
    assert (cleared["kind_whitelist"], cleared["metadata"]) == ([], {})
    put(http, api, kind="anything")
    assert store in {each["name"] for each in accepted(http.get("/api/memory"))["stores"]}


# Nodes


@requirement("VG-9.1", "A node has all fields of the Node type")
@requirement("VG-9.3", "A former version says superseded_by; the present version is_current")
@requirement("VG-15.1", "GetNodeByLineage returns the current version, or a given one, or as of a moment")
@requirement("VG-15.2", "GetNodeByID returns one version exactly as written")
@requirement(
    "VG-9.4", "Each version has a NodeID of its own", "A version is named by its lineage and number: `?version=2`."
)
def test_versions_are_read_as_written(http: httpx.Client, api: str) -> None:
    given: Json = {
        "kind": "decision",
        "content": "We ship in May.",
        "summary": "May",
        "tags": ["status:open", "plan"],
        "metadata": {"by": "ada"},
        "freshness_at": "2020-01-01T00:00:00Z",
        "created_by": "ada",
    }
    first = put(http, api, lineage_id="plan", **given)
    expected = given | {"freshness_at": "2020-01-01T00:00:00.000000Z", "lineage_id": "plan", "version": 1}
    assert {name: first[name] for name in expected} == expected
    assert first["is_stale"] is True
    put(http, api, lineage_id="plan", content="We ship in June.")
    former = read(http, api, "plan", version=1)
    assert {name: former[name] for name in expected} == expected
    assert (former["superseded_by"], former["is_current"]) == (2, False)
    current = read(http, api, "plan")
    assert (current["version"], current["is_current"]) == (2, True)
    assert current.get("summary", "") == ""
    assert read(http, api, "plan", as_of=first["sequence"])["content"] == "We ship in May."


@requirement("VG-11.1", "PutNode without a lineage starts one at version 1; with one it appends a version")
def test_put_node(http: httpx.Client, api: str) -> None:
    first, second = put(http, api, content="a"), put(http, api, content="b")
    assert first["lineage_id"] != second["lineage_id"]
    assert first["version"] == second["version"] == 1
    assert put(http, api, lineage_id=first["lineage_id"], content="c")["version"] == 2


@requirement("VG-15.3", "History returns all versions, newest first")
def test_history(http: httpx.Client, api: str) -> None:
    for content in ("one", "two", "three"):
        put(http, api, lineage_id="a", content=content)
    states = versioned(http, "GET", f"{api}/nodes/a/history")["states"]
    assert [each["node"]["content"] for each in states] == ["three", "two", "one"]


@requirement("VG-10.1", "ListNodes filters by kinds and tags and pages by limit and offset")
@requirement("VG-10.2", "compact leaves out content, metadata, freshness, created_by, superseded_by and conflicts")
def test_list_nodes(http: httpx.Client, api: str) -> None:
    for number in range(4):
        kind = "task" if number % 2 else "note"
        put(
            http,
            api,
            lineage_id=f"n{number}",
            kind=kind,
            content="text",
            tags=["a", f"t{number}"],
            metadata={"n": 1},
            created_by="me",
        )
    assert [each["lineage_id"] for each in listed(http, api)] == ["n0", "n1", "n2", "n3"]
    assert [each["lineage_id"] for each in listed(http, api, type="task")] == ["n1", "n3"]
    assert [each["lineage_id"] for each in listed(http, api, tag=["a", "t2"])] == ["n2"]
    assert [each["lineage_id"] for each in listed(http, api, limit=2, offset=1)] == ["n1", "n2"]
    for node in listed(http, api, compact="true"):
        assert {"lineage_id", "kind", "version", "tags", "created_at"} <= node.keys()
        heavy = {"content", "metadata", "freshness_at", "created_by", "superseded_by", "conflicts"}
        assert node.keys().isdisjoint(heavy)


# PutSubgraph


@requirement("VG-12.1", "PutSubgraph is best effort: one result for each node and edge, in order")
@requirement("VG-12.2", "Edges name nodes of the same call by from_ref and to_ref")
@requirement("VG-12.3", "created distinguishes a new lineage from a new version")
@requirement("VG-12.4", "A failed node fails the edges that refer to it")
@requirement("VG-6.1", "An edge with both a ref and a lineage on one side, or neither, fails")
def test_put_subgraph(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"kind_whitelist": ["note"]}), 201)
    put(http, api, lineage_id="old", content="before")
    nodes: list[Json] = [
        {"ref": "new", "kind": "note", "content": "a"},
        {"ref": "bad", "kind": "other", "content": "b"},
        {"ref": "old", "lineage_id": "old", "kind": "note", "content": "after"},
    ]
    specs: list[Json] = [
        {"from_ref": "new", "to_ref": "old", "kind": "K"},
        {"from_ref": "new", "to_lineage": "old", "kind": "L"},
        {"from_ref": "bad", "to_ref": "old", "kind": "K"},
        {"from_ref": "new", "from_lineage": "old", "to_ref": "old", "kind": "K"},
        {"to_ref": "old", "kind": "K"},
    ]
    done = subgraph(http, api, nodes=nodes, edges=specs)
    new, bad, old = done["nodes"]
    assert (new["ref"], new["created"], new["version"]) == ("new", True, 1)
    assert (bad["ref"], bad["created"]) == ("bad", False)
    assert bad["error"].startswith("kind_not_allowed")
    assert (old["lineage_id"], old["created"], old["version"]) == ("old", False, 2)
    assert ["error" in each for each in done["edges"]] == [False, False, True, True, True]
    assert [each["kind"] for each in edges(http, api, "old", "incoming")] == ["K", "L"]


# Vocabulary


@requirement("VG-13.1", "DescribeSchema counts kinds with up to three examples")
@requirement("VG-13.2", "DescribeSchema groups tags by prefix with up to ten values")
@requirement("VG-13.3", "ListTags filters by prefix, most frequent first, at most 100")
def test_vocabulary(http: httpx.Client, api: str, store: str) -> None:
    for number in range(12):
        tags = [f"protein:p{number}", "common"] + ["rare"] * (number == 0)
        put(http, api, lineage_id=f"n{number}", summary=f"summary {number}", tags=tags)
    schema = versioned(http, "GET", f"{api}/schema")
    assert (schema["graph_id"], schema["node_count"]) == (store, 12)
    [kind] = schema["kinds"]
    assert (kind["kind"], kind["count"], len(kind["examples"])) == ("note", 12, 3)
    [prefix] = schema["tag_prefixes"]
    assert (prefix["prefix"], prefix["count"], len(prefix["values"])) == ("protein", 12, 10)
    tags = accepted(http.get(f"{api}/tags"))["tags"]
    assert tags[0] == {"tag": "common", "count": 12}
    assert len(accepted(http.get(f"{api}/tags", params={"prefix": "protein:", "limit": 5}))["tags"]) == 5
    nodes = [{"kind": "note", "tags": [f"many:{part}:{n}" for n in range(60)]} for part in range(2)]
    subgraph(http, api, nodes=nodes)
    assert len(accepted(http.get(f"{api}/tags", params={"prefix": "many:", "limit": 500}))["tags"]) == 100


# Traversal


@requirement("VG-15.4", "Outgoing and Incoming list the edges of a lineage, in order of their ordinals")
@requirement("VG-15.5", "Traverse follows outgoing edges unless direction says incoming or both")
@requirement("VG-15.6", "Traverse takes max_depth, edge_kinds and max_nodes")
def test_traversal(http: httpx.Client, api: str) -> None:
    connected(http, api, "ab", "bc", "cd", "xb")
    connected(http, api, "ay", kind="OTHER")
    for direction, found in (("outgoing", "bc"), ("incoming", "bax"), ("both", "bacx")):
        walk: Json = {"start_id": "b", "max_depth": 1, "direction": direction}
        answer = versioned(http, "POST", f"{api}/traverse", body=walk)
        assert {each["lineage_id"] for each in answer["nodes"]} == {*found}
    whole: Json = {"start_id": "a", "max_depth": 5}
    assert accepted(http.post(f"{api}/traverse", json=whole))["count"] == 5
    assert accepted(http.post(f"{api}/traverse", json=whole | {"edge_kinds": ["OTHER"]}))["count"] == 2
    assert accepted(http.post(f"{api}/traverse", json=whole | {"max_nodes": 2}))["count"] == 2
    ordered: list[Json] = [
        {"from_lineage": "d", "to_lineage": name, "kind": "PART", "ordinal": place}
        for name, place in (("a", 3), ("b", 1), ("c", 2))
    ]
    subgraph(http, api, edges=ordered)
    assert [each["to_lineage"] for each in edges(http, api, "d", "outgoing")] == ["b", "c", "a"]
    assert {each["from_lineage"] for each in edges(http, api, "b", "incoming")} == {"a", "x", "d"}


@requirement("VG-15.7", "Search is scoped to a graph and ranks hits")
def test_search(http: httpx.Client, api: str) -> None:
    put(http, api, lineage_id="a", content="the harbour at night")
    sequence = put(http, api, lineage_id="b", content="bread and butter")["sequence"]
    asked: Json = {"query": "harbour", "at_least": sequence}
    hits = versioned(http, "POST", f"{api}/search", body=asked)["hits"]
    assert hits[0]["node"]["lineage_id"] == "a"
    assert [each["score"] for each in hits] == sorted((each["score"] for each in hits), reverse=True)


@requirement("VG-15.10", "Subscribe notifies of nodes, edges and graphs after their commit")
def test_events_follow_commits(served: RunningServer, http: httpx.Client, api: str, store: str) -> None:
    accepted(http.put(api), 201)
    with EventListener(served.port, f"{api}/events").greet() as listener:
        connected(http, api, "ab")
        accepted(http.patch(api, json={"name": "Renamed"}))
        kinds: list[str] = []
        for event in listener.events():
            kinds.append(event.kind)
            if event.kind == "store_changed":
                break
    assert kinds == ["node_created", "node_created", "edge_created", "store_changed"]


@requirement("VG-16.1", "MCP exposes the store: versions and subgraphs are written and read by tools")
def test_mcp_writes_versions(agent: Agent) -> None:
    made = agent("put_node", kind="note", content="one", field_names="versioned")["node"]
    again = agent("put_node", lineage_id=made["lineage_id"], kind="note", content="two", based_on_version=1)
    assert again["node"]["version"] == 2
    nodes = [{"ref": "r", "kind": "note", "content": "three"}]
    links = [{"from_ref": "r", "to_lineage": made["lineage_id"], "kind": "ABOUT"}]
    done = agent("put_subgraph", nodes=nodes, edges=links)
    assert done["nodes"][0]["version"] == 1
    assert len(agent("entity_history", id=made["lineage_id"])["states"]) == 2
