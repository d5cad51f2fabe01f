from __future__ import annotations

from typing import Any

import httpx
import msgspec

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, refusal, talk, text_of

OTHERS = ["created_by", "valid_from"]


def manual(bare: httpx.Client, store: str) -> None:
    """Store that keeps conflicting heads."""
    assert bare.put(f"/api/memory/{store}").is_success
    assert bare.patch(f"/api/memory/{store}", json={"conflict_policy": "manual"}).is_success


def test_put_node_replaces_the_whole_version(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    first = call(
        server.url,
        mode,
        "put_node",
        index=store,
        lineage_id="a",
        kind="note",
        content="one",
        summary="in short",
        tags=["red"],
        metadata={"n": 1},
        created_by="ann",
        freshness_at="2020-01-01T00:00:00Z",
        valid_from="2020-01-01T00:00:00Z",
    )
    node = first.structured_content["node"]
    assert (node["version"], node["tags"], node["attributes"], node["stale"]) == (1, ["red"], {"n": 1}, True)
    assert (first.structured_content["ok"], first.structured_content["created"]) == (True, True)
    assert text_of(first) == (
        'Created "a" (note) at version 1 summary="in short" tags="red" {"n":1} valid_from=2020-01-01T00:00:00Z stale. '
        "Sequence 1."
    )
    second = call(
        server.url, mode, "put_node", index=store, lineage_id="a", kind="note", content="two", based_on_version=1
    )
    node = second.structured_content["node"]
    assert (node["version"], node["content"]) == (2, "two")
    assert not {"tags", "attributes"} & set(node)
    assert second.structured_content["cleared"] == ["attributes", "summary", "tags", "freshness_at", *OTHERS]
    assert text_of(second).startswith('"a" (note) is now at version 2. Sequence 2.\nHint: now empty, because ')
    late = call(server.url, mode, "put_node", index=store, id="a", type="note", content="late", based_on_version=1)
    assert late.structured_content["replaced_version"] == 2
    assert "this replaced version 2, which is not its based_on_version" in late.structured_content["hint"]
    assert "this replaced version 2" in text_of(late)
    made = call(server.url, mode, "put_node", index=store, kind="note").structured_content
    assert made["created"] is True
    assert made["node"]["id"] not in {"", "a"}


def test_node_fields_are_shown(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    fields = {"summary": "in short", "tags": ["red", "b c"], "valid_to": "2021-01-01T00:00:00.5Z", "created_by": "ann"}
    edge = {"from": "a", "to": "b", "relation_type": "R", "ordinal": 2, "valid_from": "2020-01-01T00:00:00Z"}
    nodes = [{"id": "a", "type": "t", "content": "x", **fields}, {"id": "b", "type": "t"}]
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes, edges=[edge])
    walked = text_of(call(server.url, mode, "traverse_knowledge_graph", index=store, start_id="a", valid_at="any"))
    end = "valid_to=2021-01-01T00:00:00.500000Z"
    facts = f'summary="in short" tags="red", "b c" {end}'
    assert f'  [*] id="a" type="t" content="x" {end}\n' in walked
    assert walked.endswith('  "a" -[R]-> "b" (weight=1.00) ordinal=2 valid_from=2020-01-01T00:00:00Z')
    read = text_of(call(server.url, mode, "get_entity", index=store, id="a"))
    assert f"\n{facts}\n" in read
    assert read.splitlines()[0].endswith('by "ann"')
    assert read.endswith('  "a" -[R]-> "b" ordinal=2 valid_from=2020-01-01T00:00:00Z')


def test_conflict_error_explains_resolution(
    server: ServerProcessHandle, bare: httpx.Client, mode: Mode, store: str
) -> None:
    manual(bare, store)
    put = {"index": store, "lineage_id": "a", "kind": "note"}
    call(server.url, mode, "put_node", **put, content="one")
    call(server.url, mode, "put_node", **put, content="two", based_on_version=1)
    mine = put | {"content": "mine", "based_on_version": 1}
    result = talk(server.url, mode, lambda client: client.call_tool("put_node", mine))
    assert result.is_error
    for word in ("conflict_manual", "version 3", "version 2", "based_on_version=3", "get_entity"):
        assert word in text_of(result)
    kept = result.structured_content
    assert kept is not None
    assert (kept["ok"], kept["node"]["version"], kept["node"]["conflicts"]) == (False, 3, [2])
    assert "conflicts_with_versions=2" in text_of(call(server.url, mode, "get_entity", index=store, id="a"))
    other = call(server.url, mode, "get_entity", index=store, id="a", version=2)
    assert other.structured_content["node"]["content"] == "two"
    settled = call(server.url, mode, "put_node", **put, content="both", based_on_version=3)
    assert "conflicts" not in settled.structured_content["node"]


def test_large_conflict_stays_within_the_size_limit(
    server: ServerProcessHandle, bare: httpx.Client, mode: Mode, store: str
) -> None:
    manual(bare, store)
    put = {"index": store, "lineage_id": "a", "kind": "note", "based_on_version": 1}
    call(server.url, mode, "put_node", index=store, lineage_id="a", kind="note")
    call(server.url, mode, "put_node", **put, content="two")

    async def put_and_check(client: Any) -> Any:
        return await client.call_tool("put_node", put | {"content": "x" * 60_000})

    result = talk(server.url, mode, put_and_check)
    assert result.is_error
    assert len(msgspec.json.encode(result.structured_content)) < 5_000
    assert "get_entity" in result.structured_content["hint"]


def test_put_subgraph_reports_each_item(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [
        {"ref": "one", "kind": "note", "content": "1"},
        {"ref": "two", "content": "no kind"},
        {"lineage_id": "three", "kind": "note"},
    ]
    edges = [
        {"from_ref": "one", "to_lineage": "three", "kind": "R"},
        {"from_ref": "two", "to_lineage": "three", "kind": "R"},
        {"from_lineage": "three", "to_lineage": "nobody", "kind": "R"},
    ]
    done = call(server.url, mode, "put_subgraph", index=store, nodes=nodes, edges=edges)
    results = done.structured_content
    assert [node["created"] for node in results["nodes"]] == [True, False, True]
    assert "kind" in results["nodes"][1]["error"]
    assert [sorted(edge) for edge in results["edges"]] == [["edge_id"], ["error"], ["error"]]
    text = text_of(done)
    assert text.startswith(f'Stored in "{store}": 2 nodes (2 new) and 1 edge. Sequence ')
    assert "\n  edges[1]: not_found: ref not found: two\n" in text
    assert f'\n  nodes[0]: "{results["nodes"][0]["lineage_id"][:8]}", version 1\n' in text
    assert "at most 50" in refusal(server.url, mode, "put_subgraph", index=store, nodes=[{"kind": "n"}] * 51)


def test_put_subgraph_accepts_field_aliases(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"ref": "one", "type": "note", "content": "1", "attributes": {"n": 1}}, {"id": "three", "type": "note"}]
    edges = [{"from": "one", "to": "three", "relation_type": "R", "attributes": {"m": 2}}]
    done = call(server.url, mode, "put_subgraph", index=store, nodes=nodes, edges=edges).structured_content
    one, three = (node["lineage_id"] for node in done["nodes"])
    assert three == "three"
    read = call(server.url, mode, "get_entity", index=store, id=one).structured_content
    assert read["node"]["attributes"] == {"n": 1}
    assert read["outgoing"] == [{"from": one, "to": "three", "relation_type": "R", "attributes": {"m": 2}}]
    again = [{"id": "three", "type": "note", "content": "x", "based_on_version": 1}]
    call(server.url, mode, "put_subgraph", index=store, nodes=again)
    late = call(server.url, mode, "put_subgraph", index=store, nodes=[again[0] | {"content": ""}]).structured_content
    assert late["nodes"][0]["replaced_version"] == 2
    assert late["nodes"][0]["cleared"] == ["content"]


def test_large_subgraph_stays_within_the_size_limit(server: ServerProcessHandle, store: str) -> None:
    nodes = [{"lineage_id": f"{n:03}" + "i" * 500, "kind": "note", "ref": f"{n}" + "r" * 400} for n in range(50)]
    edges = [
        {"from_lineage": nodes[n % 50]["lineage_id"], "to_lineage": nodes[0]["lineage_id"], "kind": f"{n}" + "k" * 400}
        for n in range(100)
    ]
    done = call(server.url, "auto", "put_subgraph", index=store, nodes=nodes, edges=edges)
    assert len(text_of(done)) <= 25_000
    # The ids alone are that long, and each must be listed.
    assert len(msgspec.json.encode(done.structured_content)) <= 28_500
    assert [node["lineage_id"] for node in done.structured_content["nodes"]] == [node["lineage_id"] for node in nodes]
    assert len(done.structured_content["edges"]) == 100
    assert "omitted" in done.structured_content["more"]


def test_retiring(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"id": "a", "type": "t"}, {"id": "b", "type": "t"}]
    relation = {"from": "a", "to": "b", "relation_type": "R"}
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes, edges=[relation])
    end = "2020-01-01T00:00:00Z"
    ended = call(server.url, mode, "retire_relation", index=store, **relation, valid_to=end, created_by="ann")
    assert ended.structured_content["changed"] is True
    assert text_of(ended) == f'"a" -[R]-> "b" is true until {end}. Version 2, sequence 2.'
    at = {"index": store, "start_id": "a", "valid_at": end}
    assert call(server.url, mode, "traverse_knowledge_graph", **at).structured_content["count"] == 1
    call(server.url, mode, "retire_entity", index=store, id="b")
    again = call(server.url, mode, "retire_entity", index=store, id="b")
    assert again.structured_content["changed"] is False
    assert "already" in text_of(again)
    assert "had ended" in text_of(call(server.url, mode, "retire", index=store, id="b"))
    one = call(server.url, mode, "retire", index=store, **relation, valid_to="2019-01-01T00:00:00Z")
    assert one.structured_content["valid_to"] == "2019-01-01T00:00:00Z"
    assert "either" in refusal(server.url, mode, "retire", index=store, **relation | {"id": "b"})
    now = {"index": store, "valid_at": "2999-01-01T00:00:00Z"}
    assert [node["id"] for node in call(server.url, mode, "list_entities", **now).structured_content["nodes"]] == ["a"]
    assert "nobody" in refusal(server.url, mode, "retire_entity", index=store, id="nobody")


def test_search_excludes_stale_entities(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"id": "old", "type": "t", "content": "tea", "freshness_at": "2020-01-01T00:00:00Z"}]
    nodes += [{"id": "new", "type": "t", "content": "tea"}]
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes)
    for asked in ({"query": "tea"}, {"queries": ["tea", "tea?"]}):
        for fresh, ids in ((False, {"old", "new"}), (True, {"new"})):
            given = {"index": store, **asked, "mode": "keyword", "fresh_only": fresh, "at_least": 1}
            found = call(server.url, mode, "search_knowledge", **given).structured_content["hits"]
            assert {hit["node"]["id"] for hit in found} == ids


def test_refusals(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    assert "kind" in refusal(server.url, mode, "put_node", index=store, content="x")
    assert "valid_from" in refusal(server.url, mode, "put_node", index=store, kind="t", valid_from="soon")
    assert "list_stores" in refusal(server.url, mode, "put_node", kind="t")
    assert "index" in refusal(server.url, mode, "put_subgraph", nodes=[{"kind": "t"}])
