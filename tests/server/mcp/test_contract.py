"""The versioned store's contract over MCP: stores, their settings, and field names."""

from __future__ import annotations

from typing import Any

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, refusal, text_of

CHOSEN: dict[str, Any] = {
    "description": "What the harbour decided",
    "conflict_policy": "manual",
    "kind_whitelist": ["decision", "note"],
    "indexed_attributes": ["owner", "title"],
    "metadata": {"owner": "ada"},
}


LISTS = (("kind_whitelist", "only these types"), ("indexed_attributes", "indexes the attributes owner, title"))


def configured(server: ServerProcessHandle, mode: Mode, **arguments: Any) -> dict[str, Any]:
    return call(server.url, mode, "configure_store", **arguments).structured_content


def shown(server: ServerProcessHandle, store: str) -> dict[str, Any]:
    """Return the settings of a store; checks that description, list of stores and text agree."""
    names = ("conflict_policy", *CHOSEN)
    described = call(server.url, "auto", "describe_store", index=store)
    listed = call(server.url, "auto", "list_stores", limit=100, prefix=store)
    [line] = [each for each in listed.structured_content["stores"] if each["name"] == store]
    found = {name: described.structured_content[name] for name in names if name in described.structured_content}
    assert found == {name: line[name] for name in names if name in line}
    [text] = [each for each in text_of(listed).splitlines() if each.strip().startswith(f"{store}:")]
    for said in (text, text_of(described)):
        assert f"conflict policy {found['conflict_policy']}" in said
        for name, before in (*LISTS, ("metadata", "metadata {"), ("description", '"')):
            assert (before in said.removeprefix(f'Store "{store}"')) == (name in found)
    return found


def test_create_read_and_update_store_settings(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    assert "no store" in refusal(server.url, mode, "configure_store", index=store, description="not there")
    made = configured(server, mode, index=store, create=True, **CHOSEN)
    assert made == {"store": store, "name": store, "created": True, **CHOSEN}
    assert shown(server, store) == CHOSEN
    assert "people" not in refusal(server.url, mode, "put_node", index=store, type="person", id="x")
    kept = configured(server, mode, index=store, create=True, conflict_policy="lww")
    assert (kept["created"], kept["conflict_policy"]) == (False, "manual")
    assert "keeps its settings" in kept["hint"]
    changed = configured(server, mode, index=store, policy="lww", allowed_kinds=[], metadata={}, indexed_attributes=[])
    assert (changed["conflict_policy"], changed["description"]) == ("lww", CHOSEN["description"])
    assert shown(server, store) == {"conflict_policy": "lww", "description": CHOSEN["description"]}
    configured(server, mode, index=store, description="")
    assert shown(server, store) == {"conflict_policy": "lww"}


def test_invalid_settings_are_refused_by_field(server: ServerProcessHandle, store: str) -> None:
    for wrong, word in (
        ({"conflict_policy": "both"}, "lww"),
        ({"kind_whitelist": [""]}, "kind_whitelist"),
        ({"metadata": {"a": "x" * (300 << 10)}}, "metadata"),
        ({"description": "d" * 600}, "description"),
    ):
        assert word in refusal(server.url, "auto", "configure_store", index=store, create=True, **wrong)


def test_large_settings_stay_within_the_size_limit(server: ServerProcessHandle, store: str) -> None:
    large = {"metadata": {"a": "x" * 200_000}, "kind_whitelist": [f"{n:04}{'k' * 500}" for n in range(1000)]}
    made = call(server.url, "auto", "configure_store", index=store, create=True, **large)
    for found in (
        made,
        call(server.url, "auto", "describe_store", index=store),
        call(server.url, "auto", "list_stores", limit=100),
    ):
        assert len(text_of(found)) <= 25_000
        assert len(str(found.structured_content)) <= 25_000
    assert made.structured_content["metadata"] == {"…": "omitted because of its size"}


def test_field_names_of_the_contract_can_be_asked_back(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"lineage_id": name, "kind": "note", "content": "some words", "metadata": {"m": 1}} for name in "ab"]
    edges = [{"from_lineage": "a", "to_lineage": "b", "kind": "SEES", "metadata": {"why": 1}}]
    call(server.url, mode, "put_subgraph", index=store, nodes=nodes, edges=edges)

    def asked(tool: str, **arguments: Any) -> dict[str, Any]:
        return call(server.url, mode, tool, index=store, field_names="versioned", **arguments).structured_content

    words = {"query": "words", "mode": "keyword"}
    one, walked = asked("get_entity", id="a"), asked("traverse_knowledge_graph", start_id="a", detail=True)
    nodes = [
        one["node"],
        walked["nodes"][0],
        asked("traverse_knowledge_graph", start_id="a")["nodes"][0],
        asked("list_entities", compact=False)["nodes"][0],
        asked("list_entities", ids=["a"])["nodes"][0],
        asked("search_knowledge", **words, at_least=1)["hits"][0]["node"],
        asked("search_batch", queries=[words])["hits"][0]["node"],
        asked("entity_history", id="a", detail=True)["states"][0]["node"],
    ]
    assert {(each["lineage_id"], each["kind"]) for each in nodes} <= {("a", "note"), ("b", "note")}
    assert not any({"id", "type", "attributes"} & each.keys() for each in nodes)
    assert {(each["is_current"], each["is_stale"]) for each in nodes} == {(True, False)}
    assert one["node"]["metadata"] == {"m": 1}
    call(server.url, mode, "put_node", index=store, id="a", type="note", content="other words")
    former = asked("get_entity", id="a", version=1)["node"]
    assert (former["superseded_by"], former["is_current"]) == (2, False)
    states = asked("entity_history", id="a")["states"]
    assert [each["node"]["is_current"] for each in states] == [True, False]
    edges = [*one["outgoing"], *walked["edges"], *asked("list_relations", id="a")["edges"]]
    assert [(each["from_lineage"], each["to_lineage"], each["kind"]) for each in edges] == [("a", "b", "SEES")] * 3
    assert "versioned" in refusal(server.url, mode, "get_entity", index=store, id="a", field_names="other")
