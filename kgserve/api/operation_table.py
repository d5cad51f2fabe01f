"""Table of operations, one row each: the source of routes, roles, the API description and the clients.

Operations that stream, or answer in several forms, have handlers of their own next to their code: Cypher, imports and
exports, events, metrics, and the history of an entity.
"""

from __future__ import annotations

from kgserve.admin import backup, stores
from kgserve.api import examples
from kgserve.api.memory_operation_table import MEMORY_CASES
from kgserve.api.operation import COMMON_ERRORS, READ_ERRORS, STORE_PATH, UPDATE_ERRORS, WRITE_ERRORS, ApiUseCase
from kgserve.graph import (
    cross_store_links,
    history_queries,
    mutations,
    node_merge,
    node_reads,
    versioned_writes,
    visualization,
)
from kgserve.graph.answers import ListedNodePage
from kgserve.graph.cypher import engine_read_statements, vocabulary
from kgserve.graph.search import node_search
from kgserve.graph.transfer import import_export

_NODE_PATH = f"{STORE_PATH}/nodes/{{id}}"
_SEARCH_ERRORS = (*READ_ERRORS, "too_large", "unsupported", "conflict")


def _one(_request: object) -> int:
    return 1


# fmt: off
# Each row is one paragraph.
USE_CASES = (
    ApiUseCase(
        *("health", "GET", "/health", stores.get_server_health),
        id="health", tag="service", role="read", summary="Report that the process is alive",
        example=examples.HEALTH_EXAMPLE, errors=COMMON_ERRORS, short=0,
    ),
    ApiUseCase(
        *("ready", "GET", "/ready", stores.check_readiness),
        id="ready", tag="service", role="read", summary="Report whether stores can be opened and written",
        note="503 or 507 if they cannot, and on a node of a cluster that is [cut off](cluster-requests.md#readiness).",
        example=examples.READY_EXAMPLE, errors=(*COMMON_ERRORS, "storage_full"),
    ),
    ApiUseCase(
        *("whoami", "GET", "/api/whoami", stores.whoami),
        id="whoami", tag="service", role="read", summary="Show the identity and permissions of the API key",
        note="`open`: the server requires no key. `backups`: the key may start [backups](backup.md).",
        example=examples.WHOAMI_EXAMPLE, errors=COMMON_ERRORS, short=0,
    ),
    ApiUseCase(
        *("audit", "GET", "/api/audit", stores.read_audit_log),
        id="audit", tag="service", role="admin", summary="List refused requests and administrative actions",
        note="The newest `limit`, oldest first, of all nodes of a [cluster](cluster-requests.md), or of `node`.",
        example=examples.AUDIT_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found", "conflict"),
    ),
    ApiUseCase(
        *("cluster", "GET", "/api/cluster", stores.get_cluster_status),
        id="cluster", tag="service", role="admin", summary="List the nodes of the cluster",
        note="With the number of stores that each serves.",
        example=examples.CLUSTER_STATUS_EXAMPLE, errors=(*COMMON_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("drain", "POST", "/api/cluster/drain", stores.drain_cluster_node),
        id="drainNode", tag="service", role="admin", summary="Move the stores of this node to other nodes",
        note="The node accepts no store until `undo` or its next start.",
        sent=examples.DRAIN_REQUEST_EXAMPLE, optional=True, example=examples.DRAIN_ANSWER_EXAMPLE,
        errors=(*COMMON_ERRORS, "conflict"), threads="writes",
        long=True,
    ),
    ApiUseCase(
        *("finish_upgrade", "POST", "/api/cluster/finish-upgrade", stores.finalize_cluster_upgrade),
        id="finishUpgrade", tag="service", role="admin", summary="Have all nodes write the newest format",
        example=examples.UPGRADE_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "conflict"), threads="writes",
    ),
    ApiUseCase(
        *("cypher_words", "GET", "/api/cypher/words", engine_read_statements.list_cypher_vocabulary),
        id="cypherWords", tag="cypher", role="read", summary="List the words that a Cypher statement may use",
        note="For editors that complete statements.",
        example=examples.CYPHER_WORDS_EXAMPLE, errors=COMMON_ERRORS,
    ),
    ApiUseCase(
        *("cypher_vocabulary", "GET", f"{STORE_PATH}/cypher/words", vocabulary.list_cypher_completion_words),
        id="cypherVocabulary", tag="cypher", role="read", summary="List the words for Cypher statements of a store",
        note="Also labels, relationship types and attributes that the store uses, from a sample.",
        example=examples.STORE_WORDS_EXAMPLE,
    ),
    ApiUseCase(
        *("inject", "POST", f"{STORE_PATH}/inject", mutations.upsert_nodes_and_edges),
        id="inject", tag="graph", role="write", summary="Create or update nodes and edges in one atomic batch",
        sent=examples.INJECT_REQUEST_EXAMPLE, example=examples.INJECT_ANSWER_EXAMPLE, errors=WRITE_ERRORS,
        threads="writes", short=mutations.count_requested_writes,
        positional=("nodes", "edges"),
    ),
    ApiUseCase(
        *("traverse", "POST", f"{STORE_PATH}/traverse", node_reads.traverse_graph),
        id="traverse", tag="graph", role="read", summary="Walk edges from one node, breadth first",
        note="`depth` is the number of hops.",
        sent=examples.TRAVERSE_REQUEST_EXAMPLE, example=examples.TRAVERSE_ANSWER_EXAMPLE,
        short=node_reads.estimate_traversal_request_cost,
        errors=(*READ_ERRORS, "conflict", "gone", "too_large", "unsupported"),
    ),
    ApiUseCase(
        *("delete_node", "DELETE", _NODE_PATH, mutations.delete_node),
        id="deleteNode", tag="graph", role="write", summary="Delete one node and its edges",
        example=examples.DELETE_NODE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", short=_one,
    ),
    ApiUseCase(
        *("delete_edge", "DELETE", f"{STORE_PATH}/edges", mutations.delete_edge),
        id="deleteEdge", tag="graph", role="write", summary="Delete one edge",
        sent=examples.EDGE_KEY_EXAMPLE, example=examples.DELETE_EDGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", short=_one,
    ),
    ApiUseCase(
        *("graph", "POST", f"{STORE_PATH}/graph", visualization.get_nodes_and_edges_to_draw),
        id="graph", tag="graph", role="read", summary="Get a part of a graph in columns, for visualization",
        note="See [Graph data for visualization](drawing.md).",
        sent=examples.DRAW_REQUEST_EXAMPLE, example=examples.DRAW_ANSWER_EXAMPLE,
        errors=(*READ_ERRORS, "conflict", "gone", "too_large", "unsupported"),
    ),
    ApiUseCase(
        *("timeline", "GET", f"{STORE_PATH}/timeline", visualization.count_commits_over_time),
        id="timeline", tag="history", role="read", summary="Count commits over time",
        note="In `buckets` spans of equal length.",
        example=examples.TIMELINE_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("stores", "GET", "/api/memory", stores.list_stores),
        id="listStores", tag="stores", role="read", summary="List stores with counts and sizes",
        note="At most 1,000 per page. Opens no store.",
        example=examples.STORE_LIST_EXAMPLE, errors=COMMON_ERRORS,
    ),
    ApiUseCase(
        *("create", "PUT", STORE_PATH, stores.create_store),
        id="createStore", tag="stores", role="write", summary="Create a store",
        note="With [settings](store-settings.md), if given. An existing store is unchanged.",
        sent=examples.SETTINGS_REQUEST_EXAMPLE, optional=True, example=examples.CREATE_STORE_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS,
        statuses=(200, 201), status=lambda made: 201 if made.created else 200,
    ),
    ApiUseCase(
        *("settings", "GET", STORE_PATH, stores.get_store_settings),
        id="storeSettings", tag="stores", role="read", summary="Show the settings of a store",
        note="Also its creation time and last sequence.",
        example=examples.SETTINGS_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found"),
    ),
    ApiUseCase(
        *("update_settings", "PATCH", STORE_PATH, stores.update_store_settings),
        id="updateStore", tag="stores", role="admin", summary="Change the settings of a store",
        sent=examples.SETTINGS_REQUEST_EXAMPLE, example=examples.SETTINGS_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
    ),
    ApiUseCase(
        *("drop", "DELETE", STORE_PATH, stores.drop_store),
        id="dropStore", tag="stores", role="admin", summary="Delete a store and everything in it",
        note="Requires `?confirm={store}`.",
        example=examples.DROP_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found", "conflict"), repeatable=False,
    ),
    ApiUseCase(
        *("move", "POST", f"{STORE_PATH}/move", stores.move_store_to_node),
        id="moveStore", tag="stores", role="admin", summary="Move a store to another node of the cluster",
        note="See [Cluster](cluster-operations.md).",
        sent=examples.MOVE_REQUEST_EXAMPLE, example=examples.MOVE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", positional=("to",),
    ),
    ApiUseCase(
        *("repair", "POST", f"{STORE_PATH}/repair", stores.rebuild_replicated_log),
        id="repairStore", tag="stores", role="admin", summary="Rebuild a store's log from the files of this node",
        note="For a [damaged log of the cluster](cluster-operations.md#a-damaged-log).",
        example=examples.REPAIR_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", long=True, repeatable=False,
    ),
    ApiUseCase(
        *("stats", "GET", f"{STORE_PATH}/stats", stores.get_store_stats),
        id="storeStats", tag="stores", role="read", summary="Show counts, sizes and condition of a store",
        example=examples.STORE_STATS_EXAMPLE,
    ),
    ApiUseCase(
        *("links", "GET", f"{STORE_PATH}/links", cross_store_links.get_cross_store_link_counts),
        id="storeLinks", tag="stores", role="read",
        summary="List the stores linked by edges with a store",
        note="See [Links](links.md).",
        example=examples.LINK_MANIFEST_EXAMPLE,
    ),
    ApiUseCase(
        *("nodes", "GET", f"{STORE_PATH}/nodes", node_reads.list_nodes),
        id="listNodes", tag="nodes", role="read", summary="List nodes page by page",
        note=(
            "In the order of ids. `type` (any) and `tag` (all) are [lists](rest.md#lists-in-a-query). A page examines "
            "at most 20,000 nodes: continue while there is a `next_cursor`."
        ),
        example=examples.NODE_PAGE_EXAMPLE, answer=ListedNodePage, errors=(*READ_ERRORS, "conflict", "gone"),
        short=node_reads.estimate_node_list_request_cost,
    ),
    ApiUseCase(
        *("node", "GET", _NODE_PATH, node_reads.get_node),
        id="getNode", tag="nodes", role="read", summary="Get one node with its edges",
        note="`as_of`: the state at that moment. `valid_at`: facts valid then. `version`: one state.",
        example=examples.NODE_ANSWER_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"), short=0,
    ),
    ApiUseCase(
        *("get_nodes", "POST", f"{STORE_PATH}/get", node_reads.get_nodes),
        id="getNodes", tag="nodes", role="read", summary="Get many nodes by id",
        note="In the order of `ids`, without edges. `missing` lists the ids that do not exist.",
        sent=examples.GET_NODES_REQUEST_EXAMPLE, example=examples.GET_NODES_ANSWER_EXAMPLE,
        errors=(*_SEARCH_ERRORS, "gone"), short=node_reads.count_requested_ids,
    ),
    ApiUseCase(
        *("count", "POST", f"{STORE_PATH}/count", node_reads.count_matching_nodes),
        id="countNodes", tag="nodes", role="read", summary="Count the nodes that match a filter",
        sent=examples.COUNT_REQUEST_EXAMPLE, optional=True, example=examples.COUNT_ANSWER_EXAMPLE,
        errors=_SEARCH_ERRORS, short=node_reads.estimate_node_count_request_cost,
    ),
    ApiUseCase(
        *("delete_nodes", "POST", f"{STORE_PATH}/delete", node_reads.delete_matching_nodes),
        id="deleteNodes", tag="nodes", role="write", summary="Delete the nodes that match a filter",
        note="See [Nodes by their attributes](rest.md#nodes-by-their-attributes).",
        sent=examples.DELETE_NODES_REQUEST_EXAMPLE, example=examples.DELETE_NODES_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", repeatable=False,
    ),
    ApiUseCase(
        *("describe_schema", "GET", f"{STORE_PATH}/schema", node_reads.describe_types_and_tags),
        id="describeSchema", tag="nodes", role="read", summary="Describe the types and tags of a store",
        note="Types with counts and examples, tags and their prefixes: the 100 most frequent of each.",
        example=examples.SCHEMA_EXAMPLE,
    ),
    ApiUseCase(
        *("list_tags", "GET", f"{STORE_PATH}/tags", node_reads.list_tags),
        id="listTags", tag="nodes", role="read", summary="List the most frequent tags",
        example=examples.TAG_LIST_EXAMPLE, positional=("prefix",), short=node_reads.estimate_tag_listing_request_cost,
    ),
    ApiUseCase(
        *("outgoing", "GET", f"{_NODE_PATH}/outgoing", node_reads.list_outgoing_edges),
        id="outgoing", tag="nodes", role="read", summary="List the edges that start at a node, in order",
        example=examples.EDGE_LIST_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"),
        short=node_reads.estimate_edge_page_request_cost,
    ),
    ApiUseCase(
        *("incoming", "GET", f"{_NODE_PATH}/incoming", node_reads.list_incoming_edges),
        id="incoming", tag="nodes", role="read", summary="List the edges that end at a node, in order",
        note="`follow_symlinks` adds the edges of [other stores](links.md).",
        example=examples.EDGE_LIST_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"),
        short=node_reads.estimate_edge_page_request_cost,
    ),
    ApiUseCase(
        *("put_node", "POST", f"{STORE_PATH}/nodes", versioned_writes.put_whole_node_version),
        id="putNode", tag="versions", role="write",
        summary="Write a version of a node, based on the version that was read",
        note="See [Versions](versions.md#versions-and-conflicts).",
        sent=examples.PUT_NODE_REQUEST_EXAMPLE, example=examples.PUT_NODE_ANSWER_EXAMPLE,
        errors=(*WRITE_ERRORS, "conflict_manual"),
        threads="writes", short=_one, repeatable=False,
    ),
    ApiUseCase(
        *("put_subgraph", "POST", f"{STORE_PATH}/subgraph", versioned_writes.put_subgraph),
        id="putSubgraph", tag="versions", role="write", summary="Write nodes and edges, each independently",
        note="Up to 50 nodes and 100 edges, with a result for each.",
        sent=examples.PUT_SUBGRAPH_REQUEST_EXAMPLE, example=examples.PUT_SUBGRAPH_ANSWER_EXAMPLE, errors=WRITE_ERRORS,
        threads="writes", repeatable=False,
        positional=("nodes", "edges"),
    ),
    ApiUseCase(
        *("retire", "POST", f"{_NODE_PATH}/retire", mutations.end_node_valid_time),
        id="retireNode", tag="versions", role="write", summary="Set the end of a node's valid time",
        note="See [Valid time](time.md#valid-time).",
        sent=examples.RETIRE_REQUEST_EXAMPLE, optional=True, example=examples.RETIRE_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("retire_edge", "POST", f"{STORE_PATH}/edges/retire", mutations.end_edge_valid_time),
        id="retireEdge", tag="versions", role="write", summary="Set the end of an edge's valid time",
        sent=examples.RETIRE_EDGE_REQUEST_EXAMPLE, example=examples.RETIRE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    ApiUseCase(
        *("merge", "POST", f"{_NODE_PATH}/merge", node_merge.merge_nodes),
        id="mergeNode", tag="versions", role="write", summary="Merge a duplicate node into another node",
        note="See [Merging](merging.md).",
        sent=examples.MERGE_REQUEST_EXAMPLE, example=examples.MERGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    ApiUseCase(
        *("unmerge", "POST", f"{_NODE_PATH}/unmerge", node_merge.unmerge_node),
        id="unmergeNode", tag="versions", role="write", summary="Undo the merge of a node",
        sent=examples.UNMERGE_REQUEST_EXAMPLE, optional=True, example=examples.UNMERGE_ANSWER_EXAMPLE,
        errors=(*UPDATE_ERRORS, "gone"), threads="writes",
    ),
    ApiUseCase(
        *("edge", "GET", f"{STORE_PATH}/edges/{{id}}", node_reads.get_edge),
        id="getEdge", tag="graph", role="read", summary="Get one edge by id", example=examples.EDGE_ANSWER_EXAMPLE,
        short=0,
    ),
    ApiUseCase(
        *("delete_edge_by_id", "DELETE", f"{STORE_PATH}/edges/{{id}}", mutations.delete_edge_by_id),
        id="deleteEdgeById", tag="graph", role="write", summary="Delete one edge by id",
        example=examples.DELETE_EDGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", short=_one,
    ),
    ApiUseCase(
        *("history", "GET", f"{_NODE_PATH}/history", history_queries.get_node_history),
        id="nodeHistory", tag="history", role="read", summary="List the previous and current states of a node",
        note="Newest first. See [History](time.md#history).",
        example=examples.NODE_HISTORY_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("revert", "POST", f"{_NODE_PATH}/revert", history_queries.revert_node),
        id="revertNode", tag="history", role="write", summary="Restore a node to an earlier version",
        sent=examples.REVERT_REQUEST_EXAMPLE, example=examples.INJECT_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    ApiUseCase(
        *("changes", "GET", f"{STORE_PATH}/changes", history_queries.list_changes),
        id="changes", tag="history", role="read", summary="List the writes after a sequence",
        example=examples.CHANGES_PAGE_EXAMPLE, errors=(*READ_ERRORS, "gone"),
    ),
    ApiUseCase(
        *("restore", "POST", f"{STORE_PATH}/restore", import_export.restore_past_state_to_new_store),
        id="restoreStore", tag="history", role="admin", summary="Create a store from an earlier state of another store",
        note="`into` names the new store, `as_of` the moment.",
        sent=examples.RESTORE_REQUEST_EXAMPLE, example=examples.RESTORE_ANSWER_EXAMPLE,
        errors=(*UPDATE_ERRORS, "gone"), threads="transfers",
        repeatable=False, long=True,
    ),
    ApiUseCase(
        *("prune_history", "POST", f"{STORE_PATH}/history/prune", history_queries.prune_history),
        id="pruneHistory", tag="history", role="admin", summary="Delete previous states permanently",
        note="Deletes the states that ended before `before`, or by the store's settings.",
        sent=examples.PRUNE_HISTORY_REQUEST_EXAMPLE, optional=True, example=examples.PRUNE_HISTORY_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers", long=True,
        positional=("before",),
    ),
    ApiUseCase(
        *("backup", "POST", f"{STORE_PATH}/backup", backup.backup_store),
        id="backupStore", tag="backup", role="admin", summary="Back up one store",
        note="Below the server's `--backup-dir`. See [Backup](backup.md#through-a-server).",
        sent=examples.BACKUP_REQUEST_EXAMPLE, optional=True, example=examples.STORE_BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        long=True, positional=("to",),
    ),
    ApiUseCase(
        *("backup_stores", "POST", "/api/backup", backup.backup_stores),
        id="backup", tag="backup", role="admin", summary="Back up several stores, or all",
        sent=examples.BACKUP_STORES_REQUEST_EXAMPLE, optional=True, example=examples.BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        long=True, positional=("to",),
    ),
    ApiUseCase(
        *("restore_backup", "POST", "/api/restore", backup.restore_backup),
        id="restoreBackup", tag="backup", role="admin", summary="Create stores from a backup",
        note="As of its end, or of the moment `until`.",
        sent=examples.RESTORE_BACKUP_REQUEST_EXAMPLE, example=examples.RESTORE_BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        repeatable=False, long=True, positional=("source",),
    ),
    ApiUseCase(
        *("search", "POST", f"{STORE_PATH}/search", node_search.search_store_nodes),
        id="search", tag="search", role="read",
        summary="Find nodes by words, meaning and relations",
        note="See [Search](search.md).",
        sent=examples.SEARCH_REQUEST_EXAMPLE, example=examples.SEARCH_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    ApiUseCase(
        *("search_batch", "POST", f"{STORE_PATH}/search/batch", node_search.search_query_variants),
        id="searchBatch", tag="search", role="read", summary="Run several searches and merge the results",
        note="1 to 8 variants of a question.",
        sent=examples.BATCH_SEARCH_REQUEST_EXAMPLE, example=examples.BATCH_SEARCH_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    ApiUseCase(
        *("context", "POST", f"{STORE_PATH}/context", node_search.build_llm_context),
        id="context", tag="search", role="read", summary="Get text about a question within a token budget",
        note="The text has ids to cite.",
        sent=examples.CONTEXT_REQUEST_EXAMPLE, example=examples.CONTEXT_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    ApiUseCase(
        *("reindex", "POST", f"{STORE_PATH}/reindex", stores.rebuild_search_indexes),
        id="reindex", tag="search", role="admin", summary="Rebuild the indexes of a store",
        note="Answers 202 at once; `stats` shows the progress.",
        example=examples.REINDEX_ANSWER_EXAMPLE, statuses=(202,), status=lambda _: 202,
    ),
    *MEMORY_CASES,
)
