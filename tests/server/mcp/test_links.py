"""Edges into other stores over MCP: write, read, follow, retire and delete."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.types import CallToolResult

from kgserve.server.mcp.tool_input_schema import build_tool_input_schema
from kgserve.server.mcp.toolsets import TOOLS
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import call, refusal, text_of

Json = dict[str, Any]
LINK = {"from": "api", "to": "rfc", "relation_type": "FOLLOWS", "to_graph": "linked-law"}


@pytest.fixture(scope="module")
def linked(server: ServerProcessHandle) -> ServerProcessHandle:
    """Two stores, one with an edge into the other."""
    law = [{"id": each, "type": "standard", "content": f"About {each}"} for each in ("rfc", "uri")]
    edges = [{"from": "rfc", "to": "uri", "relation_type": "BUILDS_ON"}]
    answer(server, "inject_knowledge_graph", index="linked-law", nodes=law, edges=edges)
    gone = {**LINK, "to": "nobody"}
    made = answer(
        server,
        "inject_knowledge_graph",
        index="linked-shop",
        nodes=[{"id": "api", "type": "component", "content": "The interface"}],
        edges=[LINK, gone],
    )
    assert made.structured_content["edges_created"] == 2
    return server


def answer(server: ServerProcessHandle, tool: str, **arguments: Any) -> CallToolResult:
    return call(server.url, "auto", tool, **arguments)


@pytest.mark.parametrize("detail", [False, True])
def test_traversal_continues_in_other_stores(linked: ServerProcessHandle, *, detail: bool) -> None:
    asked = {"index": "linked-shop", "start_id": "api", "depth": 2, "detail": detail}
    assert [each["id"] for each in answer(linked, "traverse_knowledge_graph", **asked).structured_content["nodes"]] == [
        "api"
    ]
    found = answer(linked, "traverse_knowledge_graph", **asked, follow_symlinks=True)
    nodes = {(each["store"], each["id"]): each for each in found.structured_content["nodes"]}
    assert {*nodes} == {
        ("linked-shop", "api"),
        ("linked-law", "rfc"),
        ("linked-law", "nobody"),
        ("linked-law", "uri"),
    }
    assert nodes["linked-law", "nobody"] == {"store": "linked-law", "id": "nobody", "missing": True}
    edges = {
        (each["store"], each["from"], each.get("to_graph"), each["to"]) for each in found.structured_content["edges"]
    }
    assert edges == {
        ("linked-shop", "api", "linked-law", "rfc"),
        ("linked-shop", "api", "linked-law", "nobody"),
        ("linked-law", "rfc", None, "uri"),
    }
    text = text_of(found)
    assert '[ ] id="rfc" type="standard" content="About rfc" store="linked-law"' in text
    assert '[ ] id="nobody" store="linked-law" does not exist' in text
    assert '"api" of store "linked-shop" -[FOLLOWS]-> "rfc" of store "linked-law"' in text


def test_get_entity_shows_links(linked: ServerProcessHandle) -> None:
    found = answer(linked, "get_entity", index="linked-shop", id="api")
    assert [(each["to"], each["to_graph"]) for each in found.structured_content["outgoing"]] == [
        ("nobody", "linked-law"),
        ("rfc", "linked-law"),
    ]
    assert '"api" -[FOLLOWS]-> "rfc" of store "linked-law"' in text_of(found)
    listed = answer(linked, "list_relations", index="linked-shop", id="api")
    assert {each["to_graph"] for each in listed.structured_content["edges"]} == {"linked-law"}
    into = answer(linked, "list_relations", index="linked-law", id="rfc", direction="incoming", follow_symlinks=True)
    assert [(each["store"], each["from"]) for each in into.structured_content["edges"]] == [("linked-shop", "api")]
    assert '"api" of store "linked-shop" -[FOLLOWS]-> "rfc" of store "linked-law"' in text_of(into)


def test_describe_store_shows_links(linked: ServerProcessHandle) -> None:
    shop = answer(linked, "describe_store", index="linked-shop")
    assert shop.structured_content["links"] == {"outbound": {"linked-law": 2}}
    assert "Relations into other stores: linked-law (2)" in text_of(shop)
    law = answer(linked, "describe_store", index="linked-law")
    assert law.structured_content["links"] == {"inbound": {"linked-shop": 2}}
    assert "Relations out of other stores into this one: linked-shop (2)" in text_of(law)
    listed = answer(linked, "list_stores")
    links = {each["name"]: each.get("links") for each in listed.structured_content["stores"]}
    assert links["linked-shop"] == {"outbound": 2, "inbound": 0}
    assert links["linked-law"] == {"outbound": 0, "inbound": 2}
    assert "linked-shop: 1 node, 0 edges, 2 links out, 0 in" in text_of(listed)


def test_retire_and_delete_a_relation_into_another_store(server: ServerProcessHandle) -> None:
    store = "linked-once"
    made = answer(
        server,
        "put_subgraph",
        index=store,
        nodes=[{"ref": "a", "id": "api", "type": "component"}],
        edges=[{**LINK, "from": "a"}],
    ).structured_content
    assert made["edges"] == [{"edge_id": "api~FOLLOWS~rfc~linked-law"}]
    ended = answer(server, "retire", index=store, **LINK, valid_to="2024-01-01T00:00:00Z")
    assert text_of(ended).startswith(
        '"api" -[FOLLOWS]-> "rfc" of store "linked-law" is true until 2024-01-01T00:00:00Z'
    )
    within = {name: value for name, value in LINK.items() if name != "to_graph"}
    assert "there is no edge" in refusal(server.url, "auto", "retire", index=store, **within)
    assert not answer(server, "delete_graph_relation", index=store, **within).structured_content["existed"]
    gone = answer(server, "delete_graph_relation", index=store, **LINK)
    assert gone.structured_content["existed"]
    assert text_of(gone).startswith('Deleted "api" -[FOLLOWS]-> "rfc" of store "linked-law".')
    wrong = refusal(server.url, "auto", "retire", index=store, id="api", to_graph="linked-law")
    assert "send either the id of an entity" in wrong


@pytest.mark.parametrize("tool", ["inject_knowledge_graph", "put_subgraph", "delete_graph_relation", "retire"])
def test_list_relations_shows_target_stores(tool: str) -> None:
    assert "'to_graph': {" in str(build_tool_input_schema(TOOLS[tool].arguments))
