"""The memory engine's specification: nodes, edges, four REST endpoints, three MCP tools.

Answers may carry more fields than the specification shows.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.conformance.agent import Agent
from tests.conformance.requirement import requirement
from tests.server.http.serving import RunningServer, accepted, refusal

Json = dict[str, Any]

PAYLOAD: Json = {
    "nodes": [
        {
            "id": "req-001",
            "type": "requirement",
            "content": "User must log in with email and password",
            "attributes": {"priority": "high", "sprint": 3},
        }
    ],
    "edges": [{"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1.0}],
}
TRACEABILITY = """{
  "nodes": [
    {"id": "req-login",  "type": "requirement", "content": "User login with OAuth"},
    {"id": "req-signup", "type": "requirement", "content": "User registration"},
    {"id": "sym-oauth",  "type": "code", "content": "OAuthHandler in auth/handler.go"},
    {"id": "sym-user",   "type": "code", "content": "UserRepo in db/user.go"}
  ],
  "edges": [
    {"from": "req-login",  "to": "sym-oauth", "relation_type": "IMPLEMENTED_BY"},
    {"from": "req-login",  "to": "sym-user",  "relation_type": "IMPLEMENTED_BY"},
    {"from": "req-signup", "to": "sym-user",  "relation_type": "IMPLEMENTED_BY"}
  ]
}"""


def has(answer: Json, expected: Json) -> bool:
    return {name: answer.get(name) for name in expected} == expected


@requirement("ME-4.3", "inject answers with ok, nodes_sent and edges_sent")
@requirement(
    "ME-4.4",
    "An edge whose endpoint does not exist is silently skipped",
    "The edge is skipped; the answer counts and names it.",
)
def test_inject_counts_sent_rows_and_names_skipped_edges(http: httpx.Client, api: str) -> None:
    answer = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    assert has(answer, {"ok": True, "nodes_sent": 1, "edges_sent": 1})
    assert answer["nodes_created"] == 1
    assert answer["edges_skipped_count"] == 1  # feat-jwt does not exist yet
    assert [one["to"] for one in answer["edges_skipped"]] == ["feat-jwt"]


@requirement("ME-4.2", "Submitting the same payload again is safe")
def test_inject_is_idempotent(http: httpx.Client, api: str) -> None:
    first = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    second = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    assert second["nodes_unchanged"] == 1
    assert second["nodes_created"] == second["nodes_updated"] == 0
    assert second["sequence"] == first["sequence"]


@requirement("ME-5.2", "Deleting a node that does not exist answers 200")
@requirement("ME-5.3", "Deleting a node answers with ok and deleted_id")
def test_delete_node_is_idempotent(http: httpx.Client, api: str) -> None:
    http.post(f"{api}/inject", json=PAYLOAD)
    assert has(accepted(http.delete(f"{api}/nodes/req-001")), {"ok": True, "deleted_id": "req-001"})
    assert has(accepted(http.delete(f"{api}/nodes/req-001")), {"ok": True, "deleted_id": "req-001"})


@requirement("ME-6.1", "Deleting an edge leaves edges of other types between the same nodes")
def test_delete_edge_leaves_other_types(http: httpx.Client, api: str) -> None:
    pair = {"from": "a", "to": "b"}
    batch = {
        "nodes": [{"id": "a", "type": "t"}, {"id": "b", "type": "t"}],
        "edges": [pair | {"relation_type": "IMPLEMENTED_BY"}, pair | {"relation_type": "DEPENDS_ON"}],
    }
    accepted(http.post(f"{api}/inject", json=batch))
    key = pair | {"relation_type": "IMPLEMENTED_BY"}
    assert accepted(http.request("DELETE", f"{api}/edges", json=key))["ok"] is True
    left = accepted(http.post(f"{api}/traverse", json={"start_id": "a"}))["edges"]
    assert [edge["relation_type"] for edge in left] == ["DEPENDS_ON"]


@requirement("ME-7.3", "traverse answers with nodes, edges and count")
def test_traverse_answers_nodes_edges_and_count(http: httpx.Client, api: str) -> None:
    batch = PAYLOAD | {"nodes": [*PAYLOAD["nodes"], {"id": "feat-jwt", "type": "code_symbol"}]}
    accepted(http.post(f"{api}/inject", json=batch))
    answer = accepted(http.post(f"{api}/traverse", json={"start_id": "req-001", "depth": 2}))
    assert answer["count"] == 2
    content = PAYLOAD["nodes"][0]["content"]
    assert has(answer["nodes"][0], {"id": "req-001", "type": "requirement", "content": content})
    assert has(answer["nodes"][1], {"id": "feat-jwt", "type": "code_symbol"})
    edge = {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1}
    assert has(answer["edges"][0], edge)


@requirement("ME-12.1", "The traceability example works with curl as printed, without a Content-Type")
def test_requirement_traceability_with_curl(served: RunningServer, store: str) -> None:
    def curl(action: str, body: str) -> str:
        url = f"localhost:{served.port}/api/memory/{store}/{action}"
        done = subprocess.run(["curl", "-s", "-X", "POST", url, "-d", body], capture_output=True, text=True, check=True)
        return done.stdout

    assert '"ok":true' in curl("inject", TRACEABILITY)
    walked = curl("traverse", '{"start_id": "req-login", "depth": 1}')
    assert '"id":"sym-oauth"' in walked
    assert '"id":"sym-user"' in walked
    assert walked.count('"relation_type":"IMPLEMENTED_BY"') == 2


def inject(http: httpx.Client, api: str, **rows: list[Json]) -> Json:
    return accepted(http.post(f"{api}/inject", json=rows))


def node(name: str, **fields: Any) -> Json:
    return {"id": name, "type": "thing", **fields}


def edge(source: str, target: str, relation_type: str = "LINKS", **fields: Any) -> Json:
    return {"from": source, "to": target, "relation_type": relation_type, **fields}


def chain(http: httpx.Client, api: str, length: int) -> None:
    names = [f"n{number}" for number in range(length)]
    edges = [edge(first, second) for first, second in pairwise(names)]
    inject(http, api, nodes=[node(name) for name in names], edges=edges)


def walk(http: httpx.Client, api: str, start: str, **options: Any) -> Json:
    return accepted(http.post(f"{api}/traverse", json={"start_id": start, **options}))


@requirement("ME-1.1", "A node has a required, globally unique, stable id")
@requirement("ME-1.2", "A node has a required type")
@requirement("ME-1.5", "An edge has required from, to and relation_type")
@pytest.mark.parametrize(
    ("rows", "path"),
    [
        ({"nodes": [{"type": "thing"}]}, "nodes[0].id"),
        ({"nodes": [{"id": "a"}]}, "nodes[0].type"),
        ({"nodes": [node("")]}, "nodes[0].id"),
        ({"nodes": [{"id": "a", "type": ""}]}, "nodes[0].type"),
        ({"edges": [{"to": "b", "relation_type": "LINKS"}]}, "edges[0].from"),
        ({"edges": [{"from": "a", "relation_type": "LINKS"}]}, "edges[0].to"),
        ({"edges": [{"from": "a", "to": "b"}]}, "edges[0].relation_type"),
    ],
)
def test_missing_required_fields_are_rejected(http: httpx.Client, api: str, rows: Json, path: str) -> None:
    document = refusal(http.post(f"{api}/inject", json=rows), 400)
    assert document["errors"][0]["path"] == path


@requirement("ME-1.3", "Content is optional")
@requirement("ME-1.4", "attributes is an optional object of arbitrary JSON")
@requirement("ME-1.6", "The weight of an edge is optional and defaults to 1.0")
@requirement("ME-1.7", "An edge has optional attributes of arbitrary JSON")
def test_optional_fields_keep_their_values_and_defaults(http: httpx.Client, api: str) -> None:
    attributes = {"text": "a", "number": 1.5, "flag": True, "nothing": None, "list": [1, {"deep": []}]}
    edges = [edge("a", "b", attributes=attributes), edge("b", "a", weight=0.25)]
    inject(http, api, nodes=[node("a"), node("b", content="text", attributes=attributes)], edges=edges)
    plain, full = walk(http, api, "a")["nodes"]
    assert plain.get("content", "") == ""
    assert plain.get("attributes", {}) == {}
    assert (full["content"], full["attributes"]) == ("text", attributes)
    stored = {each["from"]: each for each in walk(http, api, "a")["edges"]}
    assert (stored["a"]["weight"], stored["b"]["weight"]) == (1.0, 0.25)
    assert stored["a"]["attributes"].items() >= attributes.items()


@requirement("ME-1.8", "created_at is set once, on the first insert of an edge")
@requirement("ME-1.9", "updated_at is refreshed on every upsert of an edge")
@requirement("ME-1.10", "Both times are RFC 3339 in UTC")
@requirement("ME-1.11", "Additional attributes of an edge are merged with the times")
def test_edges_carry_temporal_attributes(http: httpx.Client, api: str) -> None:
    def stored(**fields: Any) -> Json:
        inject(http, api, nodes=[node("a"), node("b")], edges=[edge("a", "b", **fields)])
        return walk(http, api, "a")["edges"][0]["attributes"]

    first, second = stored(attributes={"by": "ada"}), stored(attributes={"note": "again"})
    third = stored(attributes={"note": "again"})
    assert second["created_at"] == first["created_at"]
    assert first["updated_at"] < second["updated_at"] < third["updated_at"]
    assert first.keys() == {"by", "created_at", "updated_at"}
    assert second.keys() == {"note", "created_at", "updated_at"}
    for time in (first["created_at"], third["updated_at"]):
        assert time.endswith("Z")
        assert abs((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()) < 600


@requirement("ME-2.1", "Each store is independent and isolated from the others")
@requirement(
    "ME-2.2",
    "A store is a KuzuDB database at <index-dir>/<store-name>_memory/",
    "The folder has this name; it holds the journal, from which the Kùzu file is built when Cypher needs it.",
)
def test_stores_are_isolated(served: RunningServer, http: httpx.Client, store: str) -> None:
    for name in ("one", "two"):
        inject(http, f"/api/memory/{store}-{name}", nodes=[node(f"only-{name}")])
        other = "two" if name == "one" else "one"
        refusal(http.get(f"/api/memory/{store}-{name}/nodes/only-{other}"), 404)
    assert (served.data / f"{store}-one_memory" / "journal").is_dir()


@requirement("ME-3.1", "The table Entity has id, type, content and attributes")
@requirement("ME-3.2", "The table RELATES_TO has relation_type, weight and attributes")
@requirement("ME-3.3", "The schema is created on first access and may be created again")
def test_cypher_has_the_schema_from_the_first_statement(http: httpx.Client, api: str) -> None:
    def rows(query: str) -> list[list[Any]]:
        return accepted(http.post(f"{api}/cypher", json={"query": query}))["rows"]

    accepted(http.put(api), 201)
    query = "MATCH (a:Entity)-[r:RELATES_TO]->(b:Entity) RETURN a.id, a.type, a.content, a.attributes, "
    query += "r.relation_type, r.weight, r.attributes, b.id"
    assert rows(query) == []
    assert accepted(http.put(api))["created"] is False
    inject(http, api, nodes=[node("a", content="x", attributes={"p": 1}), node("b")], edges=[edge("a", "b")])
    [row] = rows(query)
    assert row[:3] == ["a", "thing", "x"]
    assert row[4:6] == ["LINKS", 1.0]
    assert row[7] == "b"


@requirement("ME-4.1", "inject creates and updates a batch of nodes and edges")
def test_inject_updates_existing_rows(http: httpx.Client, api: str) -> None:
    inject(http, api, nodes=[node("a", content="old"), node("b")], edges=[edge("a", "b", weight=0.5)])
    inject(http, api, nodes=[node("a", content="new")], edges=[edge("a", "b", weight=0.75)])
    answer = walk(http, api, "a")
    assert answer["nodes"][0]["content"] == "new"
    assert [each["weight"] for each in answer["edges"]] == [0.75]
    assert answer["count"] == 2


@requirement("ME-5.1", "Deleting a node removes all its incident edges")
def test_delete_node_removes_incident_edges(http: httpx.Client, api: str) -> None:
    edges = [edge("a", "b"), edge("b", "c"), edge("a", "c")]
    inject(http, api, nodes=[node("a"), node("b"), node("c")], edges=edges)
    accepted(http.delete(f"{api}/nodes/b"))
    answer = walk(http, api, "a", depth=3)
    assert [each["id"] for each in answer["nodes"]] == ["a", "c"]
    assert [(each["from"], each["to"]) for each in answer["edges"]] == [("a", "c")]


@requirement("ME-7.1", "traverse walks one hop unless depth says more")
@requirement("ME-7.2", "depth is at most 10")
def test_traverse_depth(http: httpx.Client, api: str) -> None:
    chain(http, api, 13)
    assert walk(http, api, "n0")["count"] == 2
    assert walk(http, api, "n0", depth=10)["count"] == 11
    assert walk(http, api, "n0", depth=11)["count"] == 11


@requirement("ME-7.4", "traverse answers with the edges between all nodes it reached")
def test_traverse_includes_edges_within_the_subgraph(http: httpx.Client, api: str) -> None:
    edges = [edge("a", "b"), edge("a", "c"), edge("b", "c"), edge("c", "d")]
    inject(http, api, nodes=[node(name) for name in "abcd"], edges=edges)
    answer = walk(http, api, "a")
    assert {(each["from"], each["to"]) for each in answer["edges"]} == {("a", "b"), ("a", "c"), ("b", "c")}


@requirement("ME-8.1", "MCP offers inject_knowledge_graph, delete_graph_entity and traverse_knowledge_graph")
def test_mcp_lists_the_three_tools(agent: Agent) -> None:
    names = {"inject_knowledge_graph", "delete_graph_entity", "traverse_knowledge_graph"}
    tools = agent.tools("default")
    assert names <= tools.keys()
    assert {"nodes", "edges"} <= tools["inject_knowledge_graph"]["inputSchema"]["properties"].keys()
    assert "id" in tools["delete_graph_entity"]["inputSchema"]["properties"]
    assert {"start_id", "depth"} <= tools["traverse_knowledge_graph"]["inputSchema"]["properties"].keys()


@requirement("ME-8.2", "inject_knowledge_graph takes index, nodes and edges, and is idempotent")
@requirement("ME-8.3", "delete_graph_entity removes an entity and all its incident edges")
@requirement(
    "ME-8.4", "traverse_knowledge_graph answers with a header, nodes and edges in the text of the specification"
)
@requirement("ME-8.5", "traverse_knowledge_graph walks one hop unless depth says more")
def test_mcp_tools_write_traverse_and_delete(agent: Agent, store: str) -> None:
    nodes = [
        {"id": "req-001", "type": "requirement", "content": "Login via email"},
        {"id": "feat-jwt", "type": "code", "content": "JWT handler"},
        {"id": "impl-db", "type": "code", "content": "DB session store"},
    ]
    edges = [edge("req-001", target, "IMPLEMENTED_BY") for target in ("feat-jwt", "impl-db")]
    graph: Json = {"index": store, "nodes": nodes, "edges": [*edges, edge("impl-db", "feat-jwt", "USES", weight=0.5)]}
    agent("inject_knowledge_graph", **graph)
    again = agent("inject_knowledge_graph", **graph)
    assert again.keys().isdisjoint({"nodes_created", "edges_created"})
    text = agent.text("traverse_knowledge_graph", index=store, start_id="req-001", depth=3)
    for line in (
        'Traversal from "req-001" (depth 3) — 3 nodes, 3 edges',
        "=== Nodes ===",
        '  [*] id="req-001" type="requirement" content="Login via email"',
        '  [ ] id="feat-jwt" type="code" content="JWT handler"',
        "=== Edges ===",
        '  "req-001" -[IMPLEMENTED_BY]-> "feat-jwt" (weight=1.00)',
        '  "impl-db" -[USES]-> "feat-jwt" (weight=0.50)',
    ):
        assert line in text.splitlines()
    assert "(depth 1)" in agent.text("traverse_knowledge_graph", index=store, start_id="req-001")
    agent("delete_graph_entity", index=store, id="feat-jwt")
    left = agent("traverse_knowledge_graph", index=store, start_id="req-001", depth=3)
    assert {each["id"] for each in left["nodes"]} == {"req-001", "impl-db"}


def search(http: httpx.Client, api: str, query: str, sequence: int, **options: Any) -> list[str]:
    asked = {"query": query, "at_least": sequence, **options}
    return [hit["node"]["id"] for hit in accepted(http.post(f"{api}/search", json=asked))["hits"]]


@requirement("ME-9.1", "A node with content is found by its meaning after the commit")
@requirement("ME-9.2", "A deleted node is no longer found")
@requirement("ME-9.3", "A node without content gets no vector")
def test_vectors_follow_commits(http: httpx.Client, api: str) -> None:
    nodes = [node("dog", content="how to train a puppy"), node("tax", content="income tax return"), node("empty")]
    sequence = inject(http, api, nodes=nodes)["sequence"]
    assert search(http, api, "canine behavior", sequence, mode="semantic", limit=1) == ["dog"]
    indexes = {each["name"]: each for each in accepted(http.get(f"{api}/stats"))["indexes"]}
    assert indexes["vector"]["entities"] == 2
    sequence = accepted(http.delete(f"{api}/nodes/dog"))["sequence"]
    assert "dog" not in search(http, api, "canine behavior", sequence, mode="semantic", min_similarity=0)


@requirement("ME-10.1", "A batch is one transaction: nothing of a failed batch is written")
def test_a_failed_batch_writes_nothing(http: httpx.Client, api: str) -> None:
    accepted(http.put(api), 201)
    refusal(http.post(f"{api}/inject", json={"nodes": [node("a"), node("b", attributes={"n": 2**70})]}), 400)
    assert accepted(http.get(f"{api}/nodes"))["nodes"] == []


@requirement("ME-11.1", "Writes are serialized")
@requirement(
    "ME-11.2", "Reads run concurrently with each other but wait for a write in progress", "Reads never wait for writes."
)
def test_concurrent_writers_lose_nothing(http: httpx.Client, api: str) -> None:
    accepted(http.put(api), 201)

    def write(number: int) -> int:
        return inject(http, api, nodes=[node(f"n{number}")])["sequence"]

    with ThreadPoolExecutor(4) as pool:
        sequences = list(pool.map(write, range(20)))
    assert sorted(sequences) == list(range(1, 21))
    assert accepted(http.post(f"{api}/count", json={}))["count"] == 20


@requirement("ME-13.1", "OpenAPI describes the four endpoints")
def test_openapi_describes_the_endpoints(http: httpx.Client) -> None:
    paths = accepted(http.get("/openapi.json"))["paths"]
    for method, path in (("post", "inject"), ("delete", "nodes/{id}"), ("delete", "edges"), ("post", "traverse")):
        assert method in paths[f"/api/memory/{{store}}/{path}"]
