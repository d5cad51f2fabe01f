"""Which tools may be called again by somebody who does not say that it is the same call. Standard library only.

The tools' annotations say it to clients. The bridge gives every call an id of its own, and may repeat each with that.
"""

from __future__ import annotations

IDEMPOTENT = frozenset(
    {
        "inject_knowledge_graph",
        "delete_graph_entity",
        "delete_graph_relation",
        "traverse_knowledge_graph",
        "get_entity",
        "list_entities",
        "list_relations",
        "entity_history",
        "revert_entity",
        "retire",
        "merge_entities",
        "retire_entity",
        "retire_relation",
        "search_knowledge",
        "search_batch",
        "get_context",
        "describe_schema",
        "list_tags",
        "list_stores",
        "describe_store",
        "configure_store",
        "query_cypher",
        "create_entities",
        "create_relations",
        "add_observations",
        "delete_entities",
        "delete_observations",
        "delete_relations",
        "read_graph",
        "search_nodes",
        "open_nodes",
        "recall_memories",
        "delete_memories",
        "get_entity_graph",
        "consolidate_memories",
        "get_memory_stats",
        "recall",
        "forget",
        "get_memory",
    }
)
"""A second call leaves what the first one made."""

WHERE_TO_LOOK = {
    "put_node": "get_entity, or search_knowledge with words of what was written, shows whether it is there",
    "put_subgraph": "get_entity, or search_knowledge with words of what was written, shows what of it is there",
    "store_memory": "recall_memories with its words shows whether it is there; stored again, it is met",
    "retain": "recall with its words shows whether it is there; retained again, it is met",
    "reflect": "dry_run=true shows what is left to do",
    "drop_store": "list_stores shows whether the store is still there",
}
"""The other tools: another call makes another node or version, or drops what somebody has made since."""
