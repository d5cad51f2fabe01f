"""The conversation of every client: all tools once, in a sensible order, with the expected content of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kgserve.server.mcp.toolsets import GRAPH_TOOLS

NODES = [
    {"id": "adr-1", "type": "decision", "content": "the harbour is dredged in spring", "attributes": {"seen": [1, 2]}},
    {"id": "crane", "type": "machine", "content": "a crane that lifts containers"},
    {"id": "quay", "type": "place", "content": "a quay made of granite — “north”"},
]
EDGES = [
    {"from": "adr-1", "to": "crane", "relation_type": "CONCERNS"},
    {"from": "crane", "to": "quay", "relation_type": "STANDS_ON", "weight": 0.5},
]
VARIANTS = [{"query": "granite", "mode": "keyword"}, {"query": "containers", "mode": "keyword", "limit": 1}]
PUT = {"lineage_id": "crane", "kind": "machine", "content": "a crane that is blue", "based_on_version": 1}
SUBGRAPH = {
    "nodes": [{"ref": "new", "lineage_id": "shed", "kind": "place", "tags": ["dry"]}],
    "edges": [{"from_ref": "new", "to_lineage": "quay", "kind": "STANDS_ON", "ordinal": 1}],
}
LINK = "shed~STANDS_ON~quay"
END = "2030-01-01T00:00:00.000000Z"
WORKS = {"source": "Ann", "target": "Acme", "relation_type": "works_at"}
BY_ID = "MATCH (e:Entity) WHERE e.id = $id RETURN e.id, e.type"


class Step(msgspec.Struct, frozen=True):
    """A call, expected values of its structured content by path (names and list positions), and words of its text."""

    tool: str
    arguments: dict[str, Any]
    holds: dict[tuple[str | int, ...], Any] = {}
    says: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """Observations of a client: negotiated version, listed tools, and one result per step in wire format."""

    version: str
    tools: list[dict[str, Any]]
    results: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        """Return the names of the listed tools."""
        return sorted(tool["name"] for tool in self.tools)


def entity_steps(store: str) -> list[Step]:
    """Return steps that call each tool of an entity memory once."""
    there: dict[str, Any] = {"index": store}
    entity = {"name": "Ann", "entity_type": "person", "description": "An engineer", "metadata": {"since": 2019}}
    memory = {"content": "Ann drinks tea", "memory_type": "preference", "tags": ["a"], "confidence": 0.9}
    memory |= {"source": "talk", "context": "at lunch", "metadata": {"n": 1}, "entity_names": ["Ann"]}
    asked = {"query": "tea", "search_mode": "keyword", "memory_types": ["preference"], "tags": ["a"], "limit": 5}
    return [
        Step("create_entities", there | {"entities": [entity]}, {("entities", 0, "outcome"): "created"}),
        Step("create_relations", there | {"relations": [WORKS]}, {("relations", 0, "strength"): 0.5}),
        Step("store_memory", there | memory, {("outcome",): "created", ("confidence",): 0.9, ("entities",): ["Ann"]}),
        Step(
            "recall_memories",
            there | asked | {"min_confidence": 0.1, "entity_name": "ann"},
            {("memories", 0, "content"): "Ann drinks tea"},
        ),
        Step(
            "get_entity_graph",
            there | {"entity_name": "Ann", "depth": 1, "min_strength": 0.5, "include_memories": True},
            {("nodes", 1, "name"): "Acme", ("nodes", 0, "memories", 0, "content"): "Ann drinks tea"},
        ),
        Step("get_memory_stats", there, {("total_memories",): 1, ("total_entities",): 2, ("total_relations",): 1}),
        Step(
            "consolidate_memories",
            there | {"similarity_threshold": 0.85, "dry_run": True},
            {("dry_run",): True, ("clusters_found",): 0},
        ),
        Step("delete_relations", there | {"relations": [WORKS]}, {("deleted",): 1}),
        Step("delete_memories", there | {"memory_types": ["preference"]}, {("deleted",): 1}),
        Step("delete_entities", there | {"entity_names": ["Ann"], "cascade_memories": False}, {("deleted",): 1}),
    ]


def verb_steps(store: str) -> list[Step]:
    """Return steps that call each tool of a memory once."""
    there: dict[str, Any] = {"index": store}
    said = "The quay is closed on Sundays."
    return [
        Step("retain", there | {"content": said, "entity_id": "closed"}, {("operations", 0, "type"): "create"}),
        Step("recall", there | {"query": "quay Sundays"}, {("memories", 0, "id"): "closed"}),
        Step("get_memory", there | {"id": "closed"}, {("content",): said}),
        Step("reflect", there | {"dry_run": True}, {("dry_run",): True}),
        Step("forget", there | {"ids": ["closed"]}, {("memories_removed",): 1}),
    ]


def steps(store: str) -> list[Step]:
    """Return steps that call all tools once: those of memories in their own store, then those of a graph."""
    remembered = f"{store}-memory"
    *graph, drop = graph_steps(store)
    planned = {step.tool for step in (*graph, drop)}
    others = [Step(tool.name, {"index": store}) for tool in GRAPH_TOOLS if tool.name not in planned]
    return [*verb_steps(remembered), *entity_steps(remembered), *graph, *others, drop]


def graph_steps(store: str) -> list[Step]:
    """Return the steps about one store, created first and dropped last; tools without arguments here have none."""
    in_store: dict[str, Any] = {"index": store}
    seen = in_store | {"at_least": 1}
    relation = {"from": "adr-1", "to": "crane", "relation_type": "CONCERNS"}
    return [
        Step("inject_knowledge_graph", in_store | {"nodes": NODES, "edges": EDGES}, {("nodes_created",): 3}),
        Step("list_stores", {"limit": 100}, says=store),
        Step("describe_store", in_store, {("nodes",): 3, ("relation_types",): {"CONCERNS": 1, "STANDS_ON": 1}}),
        Step("get_entity", in_store | {"id": "quay"}, {("node", "content"): NODES[2]["content"]}),
        Step("traverse_knowledge_graph", in_store | {"start_id": "adr-1", "depth": 2}, {("nodes", 2, "id"): "quay"}),
        Step(
            "query_cypher", in_store | {"query": BY_ID, "params": {"id": "crane"}}, {("rows",): [["crane", "machine"]]}
        ),
        Step("search_knowledge", seen | {"query": "granite", "mode": "keyword"}, {("hits", 0, "node", "id"): "quay"}),
        Step("search_batch", seen | {"queries": VARIANTS}, {("hits", 1, "node", "id"): "crane"}),
        Step("get_context", seen | {"query": "dredged", "budget": 500}, {("ids", 0): "adr-1"}),
        Step("describe_schema", in_store, {("kinds", 0, "count"): 1}),
        Step("list_tags", in_store, {("tags",): []}),
        Step("list_entities", in_store | {"types": ["place"]}, {("nodes", 0, "id"): "quay"}),
        Step("list_relations", in_store | {"id": "crane"}, {("edges", 0, "to"): "quay"}),
        Step("put_node", in_store | PUT, {("node", "version"): 2, ("created",): False}),
        Step("put_subgraph", in_store | SUBGRAPH, {("nodes", 0, "created"): True, ("edges", 0, "edge_id"): LINK}),
        Step("entity_history", in_store | {"id": "crane", "limit": 1}, {("states", 0, "diff", 0, "path"): "content"}),
        Step("revert_entity", in_store | {"id": "crane", "version": 1}, {("nodes_updated",): 1}),
        Step("merge_entities", in_store | {"id": "adr-1", "undo": True}, {("changed",): False}),
        Step("retire", in_store | {"id": "adr-1", "valid_to": END}, {("changed",): True}),
        Step("retire_relation", in_store | relation | {"valid_to": END}, {("changed",): True}),
        Step("retire_entity", in_store | {"id": "shed", "valid_to": END}, {("version",): 2}),
        Step("delete_graph_relation", in_store | relation, {("existed",): True}),
        Step("delete_graph_entity", in_store | {"id": "quay"}, {("edges_deleted",): 2}),
        Step("configure_store", in_store | {"description": "harbour"}, {("description",): "harbour"}),
        Step("drop_store", in_store | {"confirm": store}, {("dropped",): store}),
    ]


def check(outcome: Outcome, plan: Sequence[Step], version: str) -> None:
    """Check that the client saw every tool, and that every call had the expected result."""
    assert outcome.names == sorted(step.tool for step in plan)
    check_results(outcome, plan, version)


def check_results(outcome: Outcome, plan: Sequence[Step], version: str) -> None:
    """Check that every call had the expected result."""
    assert outcome.version == version
    assert len(outcome.results) == len(plan)
    for step, result in zip(plan, outcome.results, strict=True):
        check_result(step, result)


def check_result(step: Step, result: dict[str, Any]) -> None:
    """Check that a result is a success with the expected text and structured content."""
    assert not result.get("isError"), f"{step.tool}: {result}"
    assert step.says in result["content"][0]["text"]
    for place, expected in step.holds.items():
        found = at(result, *place)
        assert found == expected, f"{step.tool} answered {found!r} at {place}"


def at(result: dict[str, Any], *place: str | int) -> Any:
    """Return a value of a result's structured content."""
    found: Any = result["structuredContent"]
    for key in place:
        found = found[key]
    return found
