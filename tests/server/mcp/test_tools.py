from __future__ import annotations

from typing import Any

import httpx
import pytest
from mcp import Client

from kgserve.server.mcp.entity_memory_tools import ENTITY_MEMORY_TOOLS
from kgserve.server.mcp.memory_tools import MEMORY_TOOLS
from kgserve.server.mcp.official_memory_server_tools import MEMORY_SERVER_TOOLS
from kgserve.server.mcp.toolsets import GRAPH_TOOLS
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import BOTH, Mode, Session, Stateless, call, refusal, talk, text_of

NODES = [
    {"id": "req-001", "type": "requirement", "content": "Login via email"},
    {"id": "feat-jwt", "type": "code", "content": "JWT handler"},
    {"id": "impl-db", "type": "code", "content": "DB session store"},
]
EDGES = [
    {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY"},
    {"from": "req-001", "to": "impl-db", "relation_type": "IMPLEMENTED_BY", "weight": 0.5},
]
READS = (True, None)
WRITES = (False, False)
DESTROYS = (False, True)
HINTS = {"reads": READS, "writes": WRITES, "overwrites": DESTROYS, "deletes": DESTROYS}
WRITING = {
    "inject_knowledge_graph": WRITES,
    "delete_graph_entity": DESTROYS,
    "put_node": DESTROYS,
    "merge_entities": WRITES,
    "entity_history": WRITES,
    "configure_store": WRITES,
    "drop_store": DESTROYS,
}
"""Read-only and destructive hints of tools whose effect must not change accidentally."""
EXPECTED = {
    tool.name: WRITING.get(tool.name, WRITES if tool.effect == "reads" and tool.writes_with else HINTS[tool.effect])
    for tool in GRAPH_TOOLS
}


NOT_IDEMPOTENT = {"put_node", "put_subgraph", "drop_store"}
GRAPH = {
    *("get_context", "search_knowledge", "get_entity", "traverse_knowledge_graph", "inject_knowledge_graph"),
    *("list_entities", "describe_store", "query_cypher", "delete_graph_entity", "delete_graph_relation"),
    "list_stores",
}


DEFAULT = {
    *("retain", "recall", "forget", "search_knowledge", "get_entity", "traverse_knowledge_graph"),
    *("inject_knowledge_graph", "query_cypher", "delete_graph_entity", "describe_store"),
}


def filled(server: ServerProcessHandle, mode: Mode, store: str) -> dict[str, Any]:
    return call(server.url, mode, "inject_knowledge_graph", index=store, nodes=NODES, edges=EDGES).structured_content


async def listed(client: Client) -> Any:
    return {tool.name: tool for tool in (await client.list_tools()).tools}


def test_every_tool_is_listed_with_schemas_and_hints(server: ServerProcessHandle, mode: Mode) -> None:
    everything = talk(server.url, mode, listed, tools="all")
    others = {tool.name for tool in MEMORY_SERVER_TOOLS}
    remembering = {tool.name for tool in (*ENTITY_MEMORY_TOOLS, *MEMORY_TOOLS)}
    assert set(everything) == set(EXPECTED) | remembering
    tools = {name: tool for name, tool in everything.items() if name in EXPECTED}
    assert set(talk(server.url, mode, listed, tools="memory-server")) == others
    for name, tool in tools.items():
        hints = tool.annotations
        assert (hints.read_only_hint, hints.destructive_hint) == EXPECTED[name], name
        assert hints.idempotent_hint == (None if hints.read_only_hint else name not in NOT_IDEMPOTENT), name
        assert hints.open_world_hint is False
        assert tool.title
        assert tool.description
        assert tool.output_schema is None
        assert tool.input_schema["type"] == "object", name
    walk = tools["traverse_knowledge_graph"].input_schema
    assert set(walk["properties"]) == {"index", "start_id", "depth", "relation_types", "direction", "valid_at"}
    assert walk["required"] == ["start_id"]
    assert walk["properties"]["depth"]["default"] == 1
    assert "created_by" not in str(tools["inject_knowledge_graph"].input_schema)
    assert not {"at_least", "id_prefix"} & set(tools["search_knowledge"].input_schema["properties"])
    assert set(tools["inject_knowledge_graph"].input_schema["properties"]) == {"index", "nodes", "edges"}
    assert {"index", "id", "dry_run"} <= set(tools["delete_graph_entity"].input_schema["properties"])


def test_connection_selects_listed_tools(server: ServerProcessHandle, bare: httpx.Client, mode: Mode) -> None:
    assert set(talk(server.url, mode, listed)) == GRAPH
    both = talk(server.url, mode, listed, tools="")
    assert set(both) == DEFAULT
    assert both == talk(server.url, mode, listed, tools="default")
    assert len(both) == 10
    assert sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in both.values()) <= 8_500
    assert set(talk(server.url, mode, listed, tools="memory-engine")) == {
        *("inject_knowledge_graph", "delete_graph_entity", "traverse_knowledge_graph")
    }
    assert all((tool.description or "").startswith(("When ", "Before ")) for tool in both.values())
    assert set(talk(server.url, mode, listed, tools="time,list_stores")) == {
        *("put_node", "put_subgraph", "merge_entities", "retire", "entity_history", "list_stores")
    }
    by_header = Stateless(bare).post("tools/list", {}, kgserve_tools="list_tags").json()
    assert [tool["name"] for tool in by_header["result"]["tools"]] == ["list_tags"]
    # Unlisted tools can be called.
    assert call(server.url, mode, "list_stores").structured_content["stores"] is not None


def test_unknown_toolset_is_refused_at_connection(bare: httpx.Client) -> None:
    refused = bare.post("/mcp?tools=graph,tools", json={}, headers={"accept": BOTH})
    assert refused.status_code == 400
    assert "'tools' is neither a toolset nor a tool; toolsets: memory, graph, time, " in refused.json()["detail"]
    assert bare.post("/mcp?answers=short", json={}, headers={"accept": BOTH}).status_code == 400


def test_text_only_answers(bare: httpx.Client, store: str) -> None:
    given = {"index": store, "nodes": NODES}
    for asked, is_structured in (("text", False), ("", False), ("both", True)):
        result = Stateless(bare).call("inject_knowledge_graph", given, kgserve_answers=asked)
        assert result["content"][0]["text"].startswith("Stored in")
        assert ("structuredContent" in result) is is_structured
    # The interfaces of other projects define structured content; a call that asks for all fields gets it, too.
    assert "structuredContent" in Stateless(bare).call("read_graph", {"index": store}, kgserve_answers="")
    walk = {"index": store, "start_id": NODES[0]["id"], "detail": True}
    assert "structuredContent" in Stateless(bare).call("traverse_knowledge_graph", walk, kgserve_answers="")


def test_missing_default_store_gives_empty_answers(bare: httpx.Client, store: str) -> None:
    one = Stateless(bare)
    empty = {
        "search_knowledge": ({"query": "x"}, "hits"),
        "get_context": ({"query": "x"}, "ids"),
        "list_entities": ({}, "nodes"),
        "traverse_knowledge_graph": ({"start_id": "a"}, "nodes"),
        "query_cypher": ({"query": "MATCH (e) RETURN e.id"}, "rows"),
        "describe_store": ({}, "types"),
    }
    for name, (given, field) in empty.items():
        result = one.call(name, given, kgserve_store=store)
        assert not result["isError"], name
        values = result["structuredContent"]
        assert (values[field], values["store"]) == ([], store), name
        assert "inject_knowledge_graph creates the store" in values["hint"]
        assert values["hint"] in result["content"][0]["text"]
    assert one.call("get_entity", {"id": "a"}, kgserve_store=store)["structuredContent"]["node"] is None
    # A call that names a store means that store.
    assert one.call("list_entities", {"index": store}, kgserve_store=store)["isError"]
    assert bare.get(f"/api/memory/{store}").status_code == 404


def test_describe_store_without_store_lists_stores(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    filled(server, mode, store)
    found = call(server.url, mode, "describe_store").structured_content
    assert {"name": store, "nodes": 3, "edges": 2, "conflict_policy": "lww"} in found["stores"]


def test_injected_graph_is_traversable(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    answer = filled(server, mode, store)
    assert (answer["nodes_created"], answer["edges_created"], answer["sequence"]) == (3, 2, 1)
    walked = call(server.url, mode, "traverse_knowledge_graph", index=store, start_id="req-001", depth=3)
    assert text_of(walked) == (
        'Traversal from "req-001" (depth 3) — 3 nodes, 2 edges\n'
        "\n"
        "=== Nodes ===\n"
        '  [*] id="req-001" type="requirement" content="Login via email"\n'
        '  [ ] id="feat-jwt" type="code" content="JWT handler"\n'
        '  [ ] id="impl-db" type="code" content="DB session store"\n'
        "\n"
        "=== Edges ===\n"
        '  "req-001" -[IMPLEMENTED_BY]-> "feat-jwt" (weight=1.00)\n'
        '  "req-001" -[IMPLEMENTED_BY]-> "impl-db" (weight=0.50)'
    )
    first, *_ = walked.structured_content["nodes"]
    assert first == {"id": "req-001", "type": "requirement", "content": "Login via email"}
    assert walked.structured_content["edges"] == EDGES
    assert (walked.structured_content["count"], walked.structured_content["store"]) == (3, store)


def test_traversal_shows_weights_and_defaults_to_one_hop(server: ServerProcessHandle, store: str) -> None:
    nodes = [{"id": each, "type": "t"} for each in ("a", "b", "c")]
    edges = [
        {"from": "a", "to": "b", "relation_type": "R", "weight": 0.004, "valid_to": "2030-01-01T00:00:00Z"},
        {"from": "b", "to": "c", "relation_type": "R", "weight": -12.5},
    ]
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes, edges=edges)
    near = call(server.url, "auto", "traverse_knowledge_graph", index=store, start_id="a")
    assert near.structured_content["count"] == 2
    assert '"a" -[R]-> "b" (weight=0.004) valid_to=2030-01-01T00:00:00Z' in text_of(near)
    far = call(server.url, "auto", "traverse_knowledge_graph", index=store, start_id="a", depth=2)
    assert '"b" -[R]-> "c" (weight=-12.50)' in text_of(far)


def test_detail_includes_all_fields(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    sequence = filled(server, mode, store)["sequence"]
    asked = {"index": store, "start_id": "req-001", "detail": True}
    walked = call(server.url, mode, "traverse_knowledge_graph", **asked).structured_content
    assert {"version", "sequence", "created_at", "updated_at", "depth"} <= set(walked["nodes"][0])
    assert {"id", "weight", "attributes", "version"} <= set(walked["edges"][0])
    found = call(server.url, mode, "search_knowledge", index=store, query="email", at_least=sequence, detail=True)
    assert "keyword_score" in found.structured_content["hits"][0]
    one = call(server.url, mode, "get_entity", index=store, id="req-001", detail=True).structured_content
    assert {"sequence", "created_at"} <= set(one["node"])


def test_traversal_from_an_unknown_node(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    filled(server, mode, store)
    walked = call(server.url, mode, "traverse_knowledge_graph", index=store, start_id="nowhere")
    assert text_of(walked).startswith('Traversal from "nowhere" (depth 1) — 0 nodes, 0 edges\n\n=== Nodes ===')
    assert "no node" in text_of(walked)
    assert "no node" in walked.structured_content["hint"]


def test_long_content_is_shortened_in_the_text(server: ServerProcessHandle, store: str) -> None:
    content = "line one\n" + "x" * 200
    call(
        server.url, "auto", "inject_knowledge_graph", index=store, nodes=[{"id": "a", "type": "t", "content": content}]
    )
    walked = call(server.url, "auto", "traverse_knowledge_graph", index=store, start_id="a")
    [line] = [line for line in text_of(walked).splitlines() if line.startswith("  [*]")]
    assert line.endswith('xxx..."')
    assert len(line) < 130
    assert walked.structured_content["nodes"][0]["content"] == f"{content[:59]}…"
    whole = call(server.url, "auto", "get_entity", index=store, id="a")
    assert whole.structured_content["node"]["content"] == content


def test_deleting(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    filled(server, mode, store)
    relation = {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY"}
    first = call(server.url, mode, "delete_graph_relation", index=store, **relation)
    again = call(server.url, mode, "delete_graph_relation", index=store, **relation)
    assert [answer.structured_content["existed"] for answer in (first, again)] == [True, False]
    entity = call(server.url, mode, "delete_graph_entity", index=store, id="req-001")
    assert (entity.structured_content["existed"], entity.structured_content["edges_deleted"]) == (True, 1)
    assert "no entity" in text_of(call(server.url, mode, "delete_graph_entity", index=store, id="req-001"))


def test_skipped_edges_are_listed(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    edges = [{"from": "req-001", "to": "nobody", "relation_type": "X"}]
    answer = call(server.url, mode, "inject_knowledge_graph", index=store, nodes=NODES, edges=edges)
    assert answer.structured_content["edges_skipped_count"] == 1
    assert '"req-001" -[X]-> "nobody"' in text_of(answer)
    assert "send the skipped edges again" in answer.structured_content["hint"]


def test_search_finds_written_entities(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    sequence = filled(server, mode, store)["sequence"]
    found = call(server.url, mode, "search_knowledge", index=store, query="email login", at_least=sequence, limit=2)
    assert found.structured_content["hits"][0]["node"]["id"] == "req-001"
    assert '1. "req-001" (requirement)' in text_of(found)
    queries = [{"query": "email"}, {"query": "session store"}]
    joined = call(server.url, mode, "search_batch", index=store, queries=queries, at_least=sequence)
    assert {hit["node"]["id"] for hit in joined.structured_content["hits"]} >= {"req-001", "impl-db"}
    context = call(server.url, mode, "get_context", index=store, query="email login", at_least=sequence, budget=200)
    assert "req-001" in context.structured_content["ids"]
    assert context.structured_content["tokens"] <= 200
    assert text_of(context).startswith(context.structured_content["text"])
    wordings = call(server.url, mode, "search_knowledge", index=store, queries=["email", "session store"])
    assert {hit["node"]["id"] for hit in wordings.structured_content["hits"]} >= {"req-001", "impl-db"}
    assert "queries" in refusal(server.url, mode, "search_knowledge", index=store)


def test_search_reads_own_writes(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    for number in range(10):
        word = f"word{number}"
        call(
            server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": word, "type": "t", "content": word}]
        )
        asked = {"index": store, "query": word}
        found = call(server.url, mode, "search_knowledge", **asked, mode="keyword").structured_content
        assert [hit["node"]["id"] for hit in found["hits"]] == [word] or "lag" in found["hint"]
        context = call(server.url, mode, "get_context", **asked).structured_content
        assert word in context["ids"] or "lag" in context["hint"]


def test_read_describe_and_list(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    filled(server, mode, store)
    entity = call(server.url, mode, "get_entity", index=store, id="req-001")
    assert entity.structured_content["node"]["content"] == "Login via email"
    assert len(entity.structured_content["outgoing"]) == 2
    inwards = call(server.url, mode, "get_entity", index=store, id="req-001", direction="incoming")
    assert (inwards.structured_content["outgoing"], inwards.structured_content["incoming"]) == ([], [])
    later = call(server.url, mode, "get_entity", index=store, id="req-001", relations_offset=1).structured_content
    assert [edge["to"] for edge in later["outgoing"]] == ["impl-db"]
    assert "Login via email" in text_of(entity)
    described = call(server.url, mode, "describe_store", index=store)
    types = {each["type"]: each for each in described.structured_content["types"]}
    assert (types["code"]["count"], types["requirement"]["count"]) == (2, 1)
    assert [example["id"] for example in types["code"]["examples"]] == ["feat-jwt", "impl-db"]
    assert described.structured_content["relation_types"] == {"IMPLEMENTED_BY": 2}
    example = described.structured_content["cypher"]
    assert "MATCH (a:requirement)-[:IMPLEMENTED_BY]->(b:code) RETURN a.id" in example
    assert example in text_of(described)
    found = call(server.url, mode, "query_cypher", index=store, query=example).structured_content["rows"]
    assert {(row[0], row[-1]) for row in found} == {("req-001", "feat-jwt"), ("req-001", "impl-db")}
    listed = call(server.url, mode, "list_stores", limit=100)
    assert store in {each["name"] for each in listed.structured_content["stores"]}


def test_querying(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    filled(server, mode, store)
    query = "MATCH (e:Entity) WHERE e.type = $type RETURN e.id ORDER BY e.id"
    found = call(server.url, mode, "query_cypher", index=store, query=query, params={"type": "code"})
    assert found.structured_content["rows"] == [["feat-jwt"], ["impl-db"]]
    assert '["feat-jwt"]' in text_of(found)
    written = refusal(server.url, mode, "query_cypher", index=store, query="CREATE (e:Entity {id: 'x'})")
    assert written
    assert call(server.url, mode, "describe_store", index=store).structured_content["nodes"] == 3


def test_default_store_from_header_or_url(bare: httpx.Client, store: str) -> None:
    one, node = Stateless(bare), [{"id": "a", "type": "t"}]
    assert not one.call("inject_knowledge_graph", {"nodes": node}, kgserve_store=store)["isError"]
    session = Session(bare)
    session.begin()
    assert session.call("get_entity", {"id": "a"}, kgserve_store=store)["structuredContent"]["node"]["id"] == "a"
    session.end()
    with httpx.Client(base_url=bare.base_url, params={"store": store}) as named:
        assert not Stateless(named).call("get_entity", {"id": "a"})["isError"]


def test_index_overrides_the_default_store(bare: httpx.Client, store: str) -> None:
    result = Stateless(bare).call("get_entity", {"index": "not-there", "id": "a"}, kgserve_store=store)
    assert result["isError"]
    assert "not-there" in result["content"][0]["text"]


def test_null_arguments_count_as_omitted(server: ServerProcessHandle, store: str) -> None:
    given = {"index": store, "nodes": [{"id": "a", "type": "t", "content": None}], "edges": None}
    assert call(server.url, "auto", "inject_knowledge_graph", **given).structured_content["nodes_created"] == 1


def test_missing_store_argument_error_lists_stores(server: ServerProcessHandle, mode: Mode) -> None:
    assert "list_stores" in refusal(server.url, mode, "traverse_knowledge_graph", start_id="a")
    assert "list_stores" in refusal(server.url, mode, "inject_knowledge_graph", nodes=NODES)


@pytest.mark.parametrize("index", ["../x", "a b", "demo\n", "x" * 65, "con"])
def test_invalid_names_are_refused(server: ServerProcessHandle, index: str) -> None:
    assert refusal(server.url, "auto", "inject_knowledge_graph", index=index, nodes=NODES)
    names = call(server.url, "auto", "list_stores", limit=100).structured_content["stores"]
    assert index not in {each["name"] for each in names}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"[NaN]", "nodes[0].attributes.x[0]: is not a finite number"),
        (b"1e400", "nodes[0].attributes.x: is not a finite number"),
        (b"-Infinity", "nodes[0].attributes.x: is not a finite number"),
        (rb'"\ud800"', "the arguments contain a lone surrogate"),
        (b"[" * 70 + b"]" * 70, "64 levels deep"),
    ],
)
def test_invalid_values_are_refused(bare: httpx.Client, store: str, written: bytes, said: str) -> None:
    marked = {"index": store, "nodes": [{"id": "a", "type": "t", "attributes": {"x": "MARK"}}]}
    stateless = Stateless(bare)
    sent = stateless.post("tools/call", {"name": "inject_knowledge_graph", "arguments": marked}).request
    del sent.headers["content-length"]
    answer = bare.post("/mcp", content=sent.content.replace(b'"MARK"', written), headers=sent.headers)
    result = answer.json()["result"]
    assert result["isError"]
    assert said in result["content"][0]["text"]
    stored = stateless.call("get_entity", {"index": store, "id": "a"})["structuredContent"]["node"]
    assert stored["attributes"] == {"x": "MARK"}


def test_progress_is_reported_on_request(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    heard: list[tuple[float, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    async def inject(client: Client) -> Any:
        nodes = [{"id": f"n{number}", "type": "t"} for number in range(500)]
        return await client.call_tool(
            "inject_knowledge_graph", {"index": store, "nodes": nodes}, progress_callback=listen
        )

    assert talk(server.url, mode, inject).structured_content["nodes_created"] == 500
    assert heard[0] == (0.0, "writing the batch")
    assert sorted(heard) == heard


def test_entities_by_attributes_and_ids(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [
        {"id": f"task-{n}", "type": "task", "content": f"task {n}", "attributes": {"status": status}}
        for n, status in enumerate(("open", "done", "open"))
    ]
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes)
    opened = {"index": store, "attributes": {"status": "open"}}
    listed = call(server.url, mode, "list_entities", **opened).structured_content
    assert [node["id"] for node in listed["nodes"]] == ["task-0", "task-2"]
    assert call(server.url, mode, "list_entities", **opened, count=True).structured_content["count"] == 2
    found = call(server.url, mode, "search_knowledge", **opened, query="task", mode="keyword").structured_content
    assert {hit["node"]["id"] for hit in found["hits"]} <= {"task-0", "task-2"}
    some = call(server.url, mode, "list_entities", index=store, ids=["task-2", "nobody", "task-0"])
    assert [node["id"] for node in some.structured_content["nodes"]] == ["task-2", "task-0"]
    assert some.structured_content["missing"] == ["nobody"]
    assert 'there is no "nobody"' in text_of(some)
    would = call(server.url, mode, "delete_graph_entity", **opened, dry_run=True)
    assert (would.structured_content["ids"], would.structured_content["dry_run"]) == (["task-0", "task-2"], True)
    assert text_of(would).startswith('Would delete 2 entities with 0 edges: "task-0", "task-2".')
    done = call(server.url, mode, "delete_graph_entity", **opened).structured_content
    assert (done["count"], done["dry_run"]) == (2, False)
    left = call(server.url, mode, "list_entities", index=store).structured_content
    assert [node["id"] for node in left["nodes"]] == ["task-1"]
    assert refusal(server.url, mode, "delete_graph_entity", index=store)


def test_merge_and_unmerge(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"id": "bob", "type": "person", "attributes": {"desk": 4}}, {"id": "robert", "type": "person"}]
    nodes += [{"id": "acme", "type": "company"}]
    edges = [{"from": "bob", "to": "acme", "relation_type": "WORKS_AT"}]
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes, edges=edges)
    merged = call(server.url, mode, "merge_entities", index=store, id="bob", into="robert")
    assert merged.structured_content["edges_moved"] == 1
    assert merged.structured_content["taken_over"] == ["attributes.desk"]
    assert text_of(merged).startswith('Merged "bob" into "robert": 1 edge moved, copied: attributes.desk.')
    read = call(server.url, mode, "get_entity", index=store, id="bob")
    assert (read.structured_content["node"]["id"], read.structured_content["redirected_from"]) == ("robert", "bob")
    assert '"bob" was merged into this entity' in text_of(read)
    again = call(server.url, mode, "merge_entities", index=store, id="bob", into="robert")
    assert again.structured_content["changed"] is False
    more = [{"from": "bob", "to": "acme", "relation_type": "OWNS"}]
    followed = call(server.url, mode, "inject_knowledge_graph", index=store, edges=more).structured_content
    assert '"bob" is "robert"' in followed["hint"]
    back = call(server.url, mode, "merge_entities", index=store, id="bob", undo=True)
    assert back.structured_content["out_of"] == "robert"
    bob = call(server.url, mode, "get_entity", index=store, id="bob").structured_content
    assert {"from": "bob", "to": "acme", "relation_type": "WORKS_AT"} in bob["outgoing"]
    assert "into" in refusal(server.url, mode, "merge_entities", index=store, id="bob")
