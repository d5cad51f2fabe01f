from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from mcp.types import CallToolResult

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, refusal, text_of

LEAVES = [f"n{number:02}" for number in range(80)]
STATES = 15


def put(server: ServerProcessHandle, mode: Mode, store: str, node: dict[str, Any]) -> int:
    done = call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[node])
    return done.structured_content["sequence"]


def told(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    """Entity with three states, and one that it leads to."""
    nodes = [{"id": "a", "type": "t", "content": "one", "created_by": "ann"}, {"id": "b", "type": "t", "tags": ["x"]}]
    edges = [
        {"from": "a", "to": "b", "relation_type": "R", "valid_to": "2020-01-01T00:00:00Z"},
        {"from": "a", "to": "b", "relation_type": "S", "ordinal": 1},
    ]
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=nodes, edges=edges)
    put(server, mode, store, {"id": "a", "content": "two", "attributes": {"n": 1}})
    put(server, mode, store, {"id": "a", "attributes": {"n": 2}})


def test_history_lists_states_with_changes(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    found = call(server.url, mode, "entity_history", index=store, id="a")
    states = found.structured_content["states"]
    assert [state["node"]["version"] for state in states] == [3, 2, 1]
    assert states[0]["diff"] == [{"path": "attributes.n", "before": 1, "after": 2}]
    assert "recorded_to" not in states[0]
    assert "from_sequence" not in states[0]
    lines = text_of(found).splitlines()
    assert lines[0] == '3 states of "a", newest first'
    assert lines[1].startswith("version 3: ")
    assert lines[1].endswith(" to now")
    assert lines[2] == "  attributes.n: 1 -> 2"
    assert lines[4:6] == ['  content: "one" -> "two"', "  attributes.n: null -> 1"]
    assert lines[6].startswith('version 1 by "ann": ')


def test_history_pagination(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    first = call(server.url, mode, "entity_history", index=store, id="a", limit=2)
    before = first.structured_content["next_before"]
    assert f"before={before}" in text_of(first)
    rest = call(server.url, mode, "entity_history", index=store, id="a", limit=2, before=before)
    assert [state["node"]["version"] for state in rest.structured_content["states"]] == [1]
    assert rest.structured_content["next_before"] is None


def test_read_entity_as_of_a_time(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    then = call(server.url, mode, "get_entity", index=store, id="a", as_of="1")
    assert then.structured_content["node"]["content"] == "one"
    assert call(server.url, mode, "get_entity", index=store, id="a", as_of=1).structured_content["node"]["version"] == 1
    assert len(then.structured_content["outgoing"]) == 2
    assert " as of 1, version 1, changed " in text_of(then)
    version = call(server.url, mode, "get_entity", index=store, id="a", version=2).structured_content
    assert (version["node"]["attributes"], version["node"]["superseded_by"], version["outgoing"]) == ({"n": 1}, 3, [])
    true = call(server.url, mode, "get_entity", index=store, id="a", valid_at="2021-01-01T00:00:00Z")
    assert [edge["relation_type"] for edge in true.structured_content["outgoing"]] == ["S"]
    refused = refusal(server.url, mode, "get_entity", index=store, id="a", version=2, as_of="1")
    assert "version: cannot be combined with as_of, valid_at" in refused
    assert "as_of" in refusal(server.url, mode, "get_entity", index=store, id="a", as_of="yesterday")
    assert "version 9" in refusal(server.url, mode, "get_entity", index=store, id="a", version=9)


def test_traversal_as_of_a_time_and_by_type(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    call(server.url, mode, "delete_graph_entity", index=store, id="b")
    walk = {"index": store, "start_id": "a", "valid_at": "any"}
    assert call(server.url, mode, "traverse_knowledge_graph", **walk).structured_content["count"] == 1
    then = call(server.url, mode, "traverse_knowledge_graph", **walk, as_of="3")
    assert then.structured_content["count"] == 2
    assert text_of(then).startswith('Traversal from "a" (depth 1) as of 3, true or not — 2 nodes, 2 edges')
    typed = call(server.url, mode, "traverse_knowledge_graph", **walk, as_of="3", relation_types=["R"])
    assert [edge["relation_type"] for edge in typed.structured_content["edges"]] == ["R"]
    true = call(
        server.url, mode, "traverse_knowledge_graph", **{**walk, "valid_at": "2021-01-01T00:00:00Z"}, as_of="3"
    ).structured_content
    assert [edge["relation_type"] for edge in true["edges"]] == ["S"]
    back = {"index": store, "start_id": "b", "as_of": "3", "direction": "incoming", "valid_at": "any"}
    assert call(server.url, mode, "traverse_knowledge_graph", **back).structured_content["count"] == 2
    few = call(server.url, mode, "traverse_knowledge_graph", **back, max_nodes=1).structured_content
    assert (few["count"], few["truncated"]) == (1, True)


def test_list_entities_now_and_as_of_a_time(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    put(server, mode, store, {"id": "c", "type": "u", "content": "see", "tags": ["x", "y"]})
    page = call(server.url, mode, "list_entities", index=store, limit=2)
    assert [node["id"] for node in page.structured_content["nodes"]] == ["a", "b"]
    assert "content" not in page.structured_content["nodes"][0]
    cursor = page.structured_content["next_cursor"]
    assert f'cursor="{cursor}"' in text_of(page)
    rest = call(server.url, mode, "list_entities", index=store, cursor=cursor, compact=False)
    [node] = rest.structured_content["nodes"]
    assert (node["id"], node["content"], rest.structured_content["next_cursor"]) == ("c", "see", None)
    assert '  - "c" (u) tags="x", "y" "see"' in text_of(rest)
    for arguments, ids in (
        ({"types": ["u"]}, ["c"]),
        ({"tags": ["x"]}, ["b", "c"]),
        ({"tags": ["x", "y"]}, ["c"]),
        ({"offset": 1}, ["b", "c"]),
        ({"as_of": "3"}, ["a", "b"]),
    ):
        listed = call(server.url, mode, "list_entities", index=store, **arguments).structured_content
        assert [node["id"] for node in listed["nodes"]] == ids, arguments


def test_list_relations_in_order(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    page = call(server.url, mode, "list_relations", index=store, id="a", limit=1)
    assert [edge["relation_type"] for edge in page.structured_content["edges"]] == ["S"]
    assert page.structured_content["next_offset"] == 1
    assert "offset=1" in text_of(page)
    incoming = {"index": store, "id": "b", "direction": "incoming"}
    for arguments, types in (
        ({}, ["S", "R"]),
        ({"offset": 1}, ["R"]),
        ({"relation_types": ["R"]}, ["R"]),
        ({"valid_at": "2021-01-01T00:00:00Z"}, ["S"]),
    ):
        listed = call(server.url, mode, "list_relations", **incoming, **arguments).structured_content
        assert [edge["relation_type"] for edge in listed["edges"]] == types, arguments
    call(server.url, mode, "delete_graph_entity", index=store, id="a")
    assert call(server.url, mode, "list_relations", **incoming).structured_content["edges"] == []
    then = call(server.url, mode, "list_relations", **incoming, as_of="1").structured_content
    assert len(then["edges"]) == 2
    assert "nobody" in refusal(server.url, mode, "list_relations", index=store, id="nobody")


def test_revert_to_a_version(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    told(server, mode, store)
    call(server.url, mode, "delete_graph_entity", index=store, id="a")
    history = call(server.url, mode, "entity_history", index=store, id="a")
    assert history.structured_content["states"][0]["deleted"] is True
    assert "then deleted" in text_of(history)
    back = call(server.url, mode, "revert_entity", index=store, id="a", version=2)
    assert text_of(back) == '"a" was reverted to version 2, as a new version. Sequence 5.'
    node = call(server.url, mode, "get_entity", index=store, id="a").structured_content["node"]
    assert (node["content"], node["attributes"]) == ("two", {"n": 1})
    again = call(server.url, mode, "revert_entity", index=store, id="a", version=2)
    assert "nothing changed" in text_of(again)
    assert "version 99" in refusal(server.url, mode, "revert_entity", index=store, id="a", version=99)
    put(server, mode, store, {"id": "a", "content": "three"})
    other = call(server.url, mode, "entity_history", index=store, id="a", revert_to=1)
    assert other.structured_content["changed"] is True
    assert "was reverted to version 1" in text_of(other)


@pytest.fixture(scope="module")
def long(server: ServerProcessHandle) -> Iterator[str]:
    """Store with 80 entities with long contents, related to one that has a long history."""
    tags = [f"{n}{'t' * 100}" for n in range(30)]
    leaf = {"type": "leaf", "summary": "s" * 1_000, "tags": tags, "content": "wide " * 300}
    nodes: list[dict[str, Any]] = [leaf | {"id": "hub", "type": "hub"}, *(leaf | {"id": name} for name in LEAVES)]
    relation = {"to": "hub", "relation_type": f"R{'x' * 300}", "attributes": {"long": "y" * 900}}
    edges = [{"from": name, **relation} for name in LEAVES]
    call(server.url, "auto", "inject_knowledge_graph", index="long", nodes=nodes, edges=edges)
    for number in range(STATES - 1):
        attributes = {f"{number}-{key}": "z" * 300 for key in range(30)}
        node = {"id": "hub", "content": f"{number}" * 5_000, "attributes": attributes}
        call(server.url, "auto", "inject_knowledge_graph", index="long", nodes=[node])
    yield "long"
    call(server.url, "auto", "drop_store", index="long", confirm="long")


def sized(result: CallToolResult) -> dict[str, Any]:
    assert len(text_of(result)) <= 25_500
    assert len(msgspec.json.encode(result.structured_content)) <= 25_500
    return result.structured_content


@pytest.mark.parametrize("compact", [True, False])
def test_list_entities_pagination(server: ServerProcessHandle, long: str, compact: bool) -> None:
    ids: list[str] = []
    asked: dict[str, Any] = {"index": long, "limit": 1000, "compact": compact}
    while True:
        page = call(server.url, "auto", "list_entities", **asked)
        found = sized(page)
        ids += [node["id"] for node in found["nodes"]]
        if found["next_cursor"] is None:
            break
        assert "cursor=" in text_of(page)
        asked["cursor"] = found["next_cursor"]
    assert ids == ["hub", *LEAVES]


def test_list_relations_pagination(server: ServerProcessHandle, long: str) -> None:
    sources: list[str] = []
    offset: int | None = 0
    while offset is not None:
        asked = {"index": long, "id": "hub", "direction": "incoming", "limit": 1000, "offset": offset}
        found = sized(call(server.url, "auto", "list_relations", **asked))
        sources += [edge["from"] for edge in found["edges"]]
        offset = found["next_offset"]
    assert sorted(sources) == LEAVES
    entity = sized(call(server.url, "auto", "get_entity", index=long, id="hub"))
    assert f"relations_offset={len(entity['incoming'])}" in entity["more"]


def test_relations_of_hub_are_read_in_pages(server: ServerProcessHandle, store: str) -> None:
    leaves = [f"leaf-{number:04}" for number in range(1_001)]
    for some in (leaves[:500], leaves[500:]):
        nodes = [{"id": each, "type": "t"} for each in ("hub", *some)]
        edges = [{"from": each, "to": "hub", "relation_type": "R"} for each in some]
        call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes, edges=edges)
    outgoing = call(server.url, "auto", "get_entity", index=store, id="hub", direction="outgoing").structured_content
    assert (outgoing["outgoing"], outgoing["incoming"], outgoing["edges_truncated"]) == ([], [], False)
    sources: list[str] = []
    offset: str | None = "0"
    while offset is not None:
        asked: dict[str, Any] = {"index": store, "id": "hub", "relations_offset": int(offset)}
        found = sized(call(server.url, "auto", "get_entity", **asked))
        sources += [edge["from"] for edge in found["incoming"]]
        more = re.search(r"relations_offset=(\d+)", found.get("more", ""))
        offset = more and more[1]
    assert sources == leaves


def test_long_context_does_not_hide_its_row(server: ServerProcessHandle, store: str) -> None:
    nodes = [{"id": "a", "type": "t", "context": "c" * 30_000}, {"id": "b", "type": "t"}]
    edges = [{"from": "a", "to": "b", "relation_type": "R", "context": "c" * 30_000}]
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes, edges=edges)
    found = sized(call(server.url, "auto", "list_entities", index=store, compact=False))
    assert [node["id"] for node in found["nodes"]] == ["a", "b"]
    found = sized(call(server.url, "auto", "list_relations", index=store, id="a"))
    assert ([edge["to"] for edge in found["edges"]], found["next_offset"]) == (["b"], None)


def test_long_history_pagination(server: ServerProcessHandle, long: str) -> None:
    versions: list[int] = []
    pages = 0
    asked: dict[str, Any] = {"index": long, "id": "hub", "limit": 200}
    while True:
        found = sized(call(server.url, "auto", "entity_history", **asked))
        pages += 1
        versions += [state["node"]["version"] for state in found["states"]]
        if found["next_before"] is None:
            break
        asked["before"] = found["next_before"]
    assert pages > 1
    assert versions == list(range(STATES, 0, -1))
