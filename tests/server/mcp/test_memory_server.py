"""The memory server's tools on kgserve stores: behavior beyond the official server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.graph.compat.mcp_memory_server_operations import MAX_READ_GRAPH_CHARS
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import MODES, Mode, Stateless, call, refusal, text_of

ANN = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}


def test_memory_server_tools_and_graph_tools_share_data(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, mode, "create_entities", index=store, entities=[ANN])
    node = {"id": "Ann", "attributes": {"status": "here"}, "tags": ["x"]}
    prose = {"id": "note", "type": "note", "content": "First.\n\nSecond."}
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[node, prose])
    added = [{"entityName": name, "contents": ["Third.", "likes tea"]} for name in ("Ann", "note")]
    values = call(server.url, mode, "add_observations", index=store, observations=added).structured_content
    assert [each["addedObservations"] for each in values["results"]] == [["Third."], ["Third.", "likes tea"]]
    found = call(server.url, mode, "search_nodes", index=store, query="third").structured_content
    assert {each["name"]: each["observations"] for each in found["entities"]} == {
        "Ann": ["likes tea", "Third."],
        "note": ["First.", "Second.", "Third.", "likes tea"],
    }
    with httpx.Client(base_url=f"{server.url}/api/memory/{store}") as rest:
        ann, note = (rest.get(f"/nodes/{name}").json()["node"] for name in ("Ann", "note"))
    assert (ann["attributes"], ann["tags"], ann["content"]) == ({"status": "here"}, ["x"], "likes tea\nThird.")
    assert note["content"] == "First.\n\nSecond.\nThird.\nlikes tea"


def test_retired_entities_and_relations_become_current_again(server: ServerProcessHandle, store: str) -> None:
    def tool(name: str, **arguments: Any) -> dict[str, Any]:
        return call(server.url, MODES[0], name, index=store, **arguments).structured_content

    bob = {"name": "Bob", "entityType": "person", "observations": []}
    knows = {"from": "Ann", "to": "Bob", "relationType": "knows"}
    tool("create_entities", entities=[ANN, bob])
    tool("create_relations", relations=[knows])
    ended = {"valid_to": "2020-01-01T00:00:00Z"}
    with httpx.Client(base_url=f"{server.url}/api/memory/{store}") as rest:
        rest.post("/nodes/Ann/retire", json=ended).raise_for_status()
        rest.post("/edges/retire", json={"from": "Ann", "to": "Bob", "relation_type": "knows"} | ended)
        refused = refusal(
            server.url,
            MODES[0],
            "add_observations",
            index=store,
            observations=[{"entityName": "Ann", "contents": ["likes milk"]}],
        )
        assert "Ann not found; create it with create_entities" in refused
        again = ANN | {"observations": ["likes coffee"]}
        assert tool("create_entities", entities=[again])["entities"] == [again]
        assert tool("create_relations", relations=[knows])["relations"] == [knows]
        assert tool("create_relations", relations=[knows])["relations"] == []
        assert tool("open_nodes", names=["Ann"]) == {"entities": [again], "relations": [knows]}
        rest.post("/nodes/Bob/retire", json=ended).raise_for_status()
    assert tool("create_relations", relations=[knows])["relations"] == [knows]
    assert tool("open_nodes", names=["Bob"]) == {"entities": [bob], "relations": [knows]}


def test_search_nodes_completes_the_last_word(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    orrery = {"name": "device", "entityType": "thing", "observations": ["an orrery of brass"]}
    call(server.url, mode, "create_entities", index=store, entities=[ANN, orrery])
    for query in ("orre", "brass orr", "BRASS ORR"):
        found = call(server.url, mode, "search_nodes", index=store, query=query).structured_content
        assert [each["name"] for each in found["entities"]] == ["device"]
        assert "more" not in found
    found = call(server.url, mode, "search_nodes", index=store, query="茶").structured_content
    assert found["more"].startswith("no word of the query was found")


def test_concurrent_observations_are_kept(server: ServerProcessHandle, store: str) -> None:
    call(server.url, MODES[0], "create_entities", index=store, entities=[ANN])

    def add(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as bare:
            for place in range(25):
                added = [{"entityName": "Ann", "contents": [f"said by {number}: {place}"]}]
                assert not Stateless(bare).call("add_observations", {"index": store, "observations": added})["isError"]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(8)))
    [entity] = call(server.url, MODES[0], "open_nodes", index=store, names=["Ann"]).structured_content["entities"]
    assert len(entity["observations"]) == len(set(entity["observations"])) == 201


def test_read_graph_pagination(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    entities = [{"name": f"e{n:04}", "entityType": "t", "observations": [f"fact {n} " * 10]} for n in range(900)]
    relations = [{"from": "e0003", "to": each["name"], "relationType": "knows"} for each in entities]
    call(server.url, mode, "create_entities", index=store, entities=entities)
    call(server.url, mode, "create_relations", index=store, relations=relations[:300])
    found: dict[str, list[Any]] = {"entities": [], "relations": []}
    after, pages = "", 0
    while pages == 0 or after:
        result = call(server.url, mode, "read_graph", index=store, after=after)
        assert len(text_of(result)) < MAX_READ_GRAPH_CHARS + 1_000
        values = msgspec.json.decode(text_of(result))
        assert values == result.structured_content
        found["entities"] += values["entities"]
        found["relations"] += values["relations"]
        after = values["entities"][-1]["name"] if "more" in values else ""
        assert not after or f'read_graph with after "{after}"' in values["more"]
        pages += 1
    assert found["entities"] == entities
    assert sorted(each["to"] for each in found["relations"]) == sorted(each["to"] for each in relations[:300])
    many = call(server.url, mode, "open_nodes", index=store, names=[each["name"] for each in entities])
    assert "left out for their size" in many.structured_content["more"]
    hub = call(server.url, mode, "open_nodes", index=store, names=["e0003"]).structured_content
    assert len(hub["relations"]) == 300


def test_long_entity_is_truncated_and_readable_by_id(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    observations = [f"observation {number}, as long as they often are" for number in range(10_000)]
    call(server.url, mode, "create_entities", index=store, entities=[{**ANN, "observations": observations}])
    values = call(server.url, mode, "read_graph", index=store).structured_content
    [entity] = values["entities"]
    count = len(entity["observations"])
    assert 100 < count < 1_000
    assert entity["observations"] == observations[:count]
    offset = int(values["more"].partition("content_offset ")[2].split()[0])
    rest = call(server.url, mode, "get_entity", index=store, id="Ann", content_offset=offset + 1).structured_content
    assert rest["node"]["content"].startswith(observations[count])
    more = [{"entityName": "Ann", "contents": ["x" * 1_000_000]}]
    assert "exceed 1048576 bytes" in refusal(server.url, mode, "add_observations", index=store, observations=more)


def test_what_is_not_there(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    for tool, arguments in (("read_graph", {}), ("search_nodes", {"query": "tea"}), ("open_nodes", {"names": ["Ann"]})):
        assert call(server.url, mode, tool, index=store, **arguments).structured_content == {
            "entities": [],
            "relations": [],
        }
    gone = call(server.url, mode, "delete_entities", index=store, entityNames=["Ann"])
    assert text_of(gone) == "Entities deleted successfully"
    assert text_of(call(server.url, mode, "add_observations", index=store, observations=[])) == "[]"
    added = [{"entityName": "Ann", "contents": ["x"]}]
    said = refusal(server.url, mode, "add_observations", index=store, observations=added)
    assert said == "Entity with name Ann not found; create it with create_entities"
    assert store not in [each["name"] for each in httpx.get(f"{server.url}/api/memory").json()["stores"]]


def test_retired_entities_are_not_returned(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    bob = {"name": "Bob", "entityType": "person", "observations": []}
    call(server.url, mode, "create_entities", index=store, entities=[ANN, bob])
    knows = {"from": "Bob", "to": "Ann", "relationType": "knows"}
    call(server.url, mode, "create_relations", index=store, relations=[knows])
    call(server.url, mode, "retire_entity", index=store, id="Ann")
    found = call(server.url, mode, "read_graph", index=store).structured_content
    assert found == {"entities": [bob], "relations": []}


def test_merged_entities_resolve_to_the_survivor(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    other = {"name": "Anne", "entityType": "person", "observations": ["rides a bike"]}
    call(server.url, mode, "create_entities", index=store, entities=[ANN, other])
    with httpx.Client(base_url=f"{server.url}/api/memory/{store}") as rest:
        merged = rest.post("/nodes/Anne/merge", json={"into": "Ann"})
        assert merged.status_code == 200, merged.text
    before = call(server.url, mode, "open_nodes", index=store, names=["Ann"]).structured_content["entities"][0]
    added = [{"entityName": "Anne", "contents": ["plays chess"]}]
    call(server.url, mode, "add_observations", index=store, observations=added)
    found = call(server.url, mode, "open_nodes", index=store, names=["Anne", "Ann"]).structured_content["entities"]
    assert found == [{**before, "observations": [*before["observations"], "plays chess"]}]


@pytest.mark.parametrize(
    ("tool", "arguments", "place"),
    [
        ("create_entities", {"entities": [{**ANN, "name": ""}]}, "entities[0].name: is empty"),
        (
            "create_relations",
            {"relations": [{"from": "a", "to": "", "relationType": "r"}]},
            "relations[0].to: is empty",
        ),
        ("create_entities", {"entities": [{"name": "a"}]}, "entities[0]"),
    ],
)
def test_invalid_arguments_are_named(
    server: ServerProcessHandle, store: str, tool: str, arguments: dict[str, Any], place: str
) -> None:
    assert place in refusal(server.url, MODES[0], tool, index=store, **arguments)
