"""The operations, one row each: from here come routes, roles, the API description, and the faces of the clients.

What streams, or answers in several forms, has handlers of its own: Cypher, imports and exports, events, metrics, the
history of an entity. They describe themselves beside those.
"""

from __future__ import annotations

from kgserve.admin import backup, stores
from kgserve.api import examples
from kgserve.api.memory_table import MEMORY_CASES
from kgserve.api.operation import COMMON_ERRORS, READ_ERRORS, STORE_PATH, UPDATE_ERRORS, WRITE_ERRORS, UseCase
from kgserve.graph import cross_store_links, history, merge, mutations, reading, versions, visualization
from kgserve.graph.answers import ListedPage
from kgserve.graph.cypher import read
from kgserve.graph.search import search
from kgserve.graph.transfer import transfer

_NODE_PATH = f"{STORE_PATH}/nodes/{{id}}"
_SEARCH_ERRORS = (*READ_ERRORS, "too_large", "unsupported", "conflict")


def _one(_request: object) -> int:
    return 1


# fmt: off
# One row, one paragraph.
USE_CASES = (
    UseCase(
        *("health", "GET", "/health", stores.health),
        id="health", tag="service", role="read", summary="The process answers",
        example=examples.HEALTH_EXAMPLE, errors=COMMON_ERRORS, short=0,
    ),
    UseCase(
        *("ready", "GET", "/ready", stores.ready),
        id="ready", tag="service", role="read", summary="Stores can be opened and written",
        example=examples.READY_EXAMPLE, errors=(*COMMON_ERRORS, "storage_full"),
    ),
    UseCase(
        *("whoami", "GET", "/api/whoami", stores.whoami),
        id="whoami", tag="service", role="read", summary="Who asks, and what the key may do",
        example=examples.WHOAMI_EXAMPLE, errors=COMMON_ERRORS, short=0,
    ),
    UseCase(
        *("audit", "GET", "/api/audit", stores.audit),
        id="audit", tag="service", role="admin", summary="What was refused, and what was administered",
        example=examples.AUDIT_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found", "conflict"),
    ),
    UseCase(
        *("cluster", "GET", "/api/cluster", stores.cluster),
        id="cluster", tag="service", role="admin", summary="The nodes of the cluster that this server is of",
        example=examples.CLUSTER_STATUS_EXAMPLE, errors=(*COMMON_ERRORS, "conflict"),
    ),
    UseCase(
        *("drain", "POST", "/api/cluster/drain", stores.drain),
        id="drainNode", tag="service", role="admin", summary="Have other nodes serve the stores of this one",
        sent=examples.DRAIN_REQUEST_EXAMPLE, optional=True, example=examples.DRAIN_ANSWER_EXAMPLE,
        errors=(*COMMON_ERRORS, "conflict"), threads="writes",
        long=True,
    ),
    UseCase(
        *("finish_upgrade", "POST", "/api/cluster/finish-upgrade", stores.finish_upgrade),
        id="finishUpgrade", tag="service", role="admin", summary="Have all nodes write in the newest format",
        example=examples.UPGRADE_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "conflict"), threads="writes",
    ),
    UseCase(
        *("cypher_words", "GET", "/api/cypher/words", read.cypher_words),
        id="cypherWords", tag="cypher", role="read", summary="The words that a statement may be made of",
        example=examples.CYPHER_WORDS_EXAMPLE, errors=COMMON_ERRORS,
    ),
    UseCase(
        *("inject", "POST", f"{STORE_PATH}/inject", mutations.inject),
        id="inject", tag="graph", role="write", summary="Upsert nodes and edges in one atomic batch",
        sent=examples.INJECT_REQUEST_EXAMPLE, example=examples.INJECT_ANSWER_EXAMPLE, errors=WRITE_ERRORS,
        threads="writes", short=mutations.count_rows,
        positional=("nodes", "edges"),
    ),
    UseCase(
        *("delete_node", "DELETE", _NODE_PATH, mutations.delete_node),
        id="deleteNode", tag="graph", role="write", summary="Delete one node and its edges",
        example=examples.DELETE_NODE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", short=_one,
    ),
    UseCase(
        *("delete_edge", "DELETE", f"{STORE_PATH}/edges", mutations.delete_edge),
        id="deleteEdge", tag="graph", role="write", summary="Delete one edge",
        sent=examples.EDGE_KEY_EXAMPLE, example=examples.DELETE_EDGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", short=_one,
    ),
    UseCase(
        *("traverse", "POST", f"{STORE_PATH}/traverse", reading.traverse),
        id="traverse", tag="graph", role="read", summary="Walk edges from one node, breadth first",
        sent=examples.TRAVERSE_REQUEST_EXAMPLE, example=examples.TRAVERSE_ANSWER_EXAMPLE, short=0,
        errors=(*READ_ERRORS, "conflict", "gone", "too_large", "unsupported"),
    ),
    UseCase(
        *("graph", "POST", f"{STORE_PATH}/graph", visualization.draw),
        id="graph", tag="graph", role="read", summary="A part of a graph in columns, to be drawn",
        sent=examples.DRAW_REQUEST_EXAMPLE, example=examples.DRAW_ANSWER_EXAMPLE,
        errors=(*READ_ERRORS, "conflict", "gone", "too_large", "unsupported"),
    ),
    UseCase(
        *("timeline", "GET", f"{STORE_PATH}/timeline", visualization.timeline),
        id="timeline", tag="history", role="read", summary="Commits over time",
        example=examples.TIMELINE_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    UseCase(
        *("stores", "GET", "/api/memory", stores.list_stores),
        id="listStores", tag="stores", role="read", summary="All stores, with counts and sizes",
        example=examples.STORE_LIST_EXAMPLE, errors=COMMON_ERRORS,
    ),
    UseCase(
        *("create", "PUT", STORE_PATH, stores.create_store),
        id="createStore", tag="stores", role="write", summary="Create a store",
        sent=examples.SETTINGS_REQUEST_EXAMPLE, optional=True, example=examples.CREATE_STORE_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS,
        statuses=(200, 201), status=lambda made: 201 if made.created else 200,
    ),
    UseCase(
        *("settings", "GET", STORE_PATH, stores.store_settings),
        id="storeSettings", tag="stores", role="read", summary="The settings of a store",
        example=examples.SETTINGS_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found"),
    ),
    UseCase(
        *("update_settings", "PATCH", STORE_PATH, stores.update_store),
        id="updateStore", tag="stores", role="admin", summary="Change the settings of a store",
        sent=examples.SETTINGS_REQUEST_EXAMPLE, example=examples.SETTINGS_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
    ),
    UseCase(
        *("drop", "DELETE", STORE_PATH, stores.drop_store),
        id="dropStore", tag="stores", role="admin", summary="Delete a store and everything in it",
        example=examples.DROP_ANSWER_EXAMPLE, errors=(*COMMON_ERRORS, "not_found", "conflict"), repeatable=False,
    ),
    UseCase(
        *("move", "POST", f"{STORE_PATH}/move", stores.move),
        id="moveStore", tag="stores", role="admin", summary="Have another node of the cluster serve a store",
        sent=examples.MOVE_REQUEST_EXAMPLE, example=examples.MOVE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", positional=("to",),
    ),
    UseCase(
        *("repair", "POST", f"{STORE_PATH}/repair", stores.repair),
        id="repairStore", tag="stores", role="admin", summary="Make a store's log anew from the files of this node",
        example=examples.REPAIR_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", long=True, repeatable=False,
    ),
    UseCase(
        *("stats", "GET", f"{STORE_PATH}/stats", stores.stats),
        id="storeStats", tag="stores", role="read", summary="What one store holds and how it is doing",
        example=examples.STORE_STATS_EXAMPLE,
    ),
    UseCase(
        *("links", "GET", f"{STORE_PATH}/links", cross_store_links.store_links),
        id="storeLinks", tag="stores", role="read", summary="The stores that edges of one lead into, and come from",
        example=examples.LINK_MANIFEST_EXAMPLE,
    ),
    UseCase(
        *("nodes", "GET", f"{STORE_PATH}/nodes", reading.list_nodes),
        id="listNodes", tag="nodes", role="read", summary="List nodes, page by page",
        example=examples.NODE_PAGE_EXAMPLE, answer=ListedPage, errors=(*READ_ERRORS, "conflict", "gone"),
    ),
    UseCase(
        *("node", "GET", _NODE_PATH, reading.get_node),
        id="getNode", tag="nodes", role="read", summary="One node with its edges",
        example=examples.NODE_ANSWER_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"), short=0,
    ),
    UseCase(
        *("get_nodes", "POST", f"{STORE_PATH}/get", reading.get_nodes),
        id="getNodes", tag="nodes", role="read", summary="Many nodes by their ids",
        sent=examples.GET_NODES_REQUEST_EXAMPLE, example=examples.GET_NODES_ANSWER_EXAMPLE,
        errors=(*_SEARCH_ERRORS, "gone"),
    ),
    UseCase(
        *("count", "POST", f"{STORE_PATH}/count", reading.count),
        id="countNodes", tag="nodes", role="read", summary="How many nodes fit a filter",
        sent=examples.COUNT_REQUEST_EXAMPLE, optional=True, example=examples.COUNT_ANSWER_EXAMPLE,
        errors=_SEARCH_ERRORS,
    ),
    UseCase(
        *("delete_nodes", "POST", f"{STORE_PATH}/delete", reading.delete_nodes),
        id="deleteNodes", tag="nodes", role="write", summary="Delete the nodes that fit a filter",
        sent=examples.DELETE_NODES_REQUEST_EXAMPLE, example=examples.DELETE_NODES_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", repeatable=False,
    ),
    UseCase(
        *("describe_schema", "GET", f"{STORE_PATH}/schema", reading.describe_schema),
        id="describeSchema", tag="nodes", role="read", summary="The types and tags that a store uses",
        example=examples.SCHEMA_EXAMPLE,
    ),
    UseCase(
        *("list_tags", "GET", f"{STORE_PATH}/tags", reading.list_tags),
        id="listTags", tag="nodes", role="read", summary="The most frequent tags",
        example=examples.TAG_LIST_EXAMPLE, positional=("prefix",),
    ),
    UseCase(
        *("outgoing", "GET", f"{_NODE_PATH}/outgoing", reading.outgoing),
        id="outgoing", tag="nodes", role="read", summary="The edges that start at a node, in order",
        example=examples.EDGE_LIST_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"),
    ),
    UseCase(
        *("incoming", "GET", f"{_NODE_PATH}/incoming", reading.incoming),
        id="incoming", tag="nodes", role="read", summary="The edges that end at a node, in order",
        example=examples.EDGE_LIST_EXAMPLE, errors=(*READ_ERRORS, "conflict", "gone"),
    ),
    UseCase(
        *("put_node", "POST", f"{STORE_PATH}/nodes", versions.put_node),
        id="putNode", tag="versions", role="write",
        summary="Write a version of a node, based on the one that was seen",
        sent=examples.PUT_NODE_REQUEST_EXAMPLE, example=examples.PUT_NODE_ANSWER_EXAMPLE,
        errors=(*WRITE_ERRORS, "conflict_manual"),
        threads="writes", short=_one, repeatable=False,
    ),
    UseCase(
        *("put_subgraph", "POST", f"{STORE_PATH}/subgraph", versions.put_subgraph),
        id="putSubgraph", tag="versions", role="write", summary="Write nodes and edges, each by itself",
        sent=examples.PUT_SUBGRAPH_REQUEST_EXAMPLE, example=examples.PUT_SUBGRAPH_ANSWER_EXAMPLE, errors=WRITE_ERRORS,
        threads="writes", repeatable=False,
        positional=("nodes", "edges"),
    ),
    UseCase(
        *("retire", "POST", f"{_NODE_PATH}/retire", mutations.retire_node),
        id="retireNode", tag="versions", role="write", summary="Say until when a node was true",
        sent=examples.RETIRE_REQUEST_EXAMPLE, optional=True, example=examples.RETIRE_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
    ),
    UseCase(
        *("retire_edge", "POST", f"{STORE_PATH}/edges/retire", mutations.retire_edge),
        id="retireEdge", tag="versions", role="write", summary="Say until when an edge was true",
        sent=examples.RETIRE_EDGE_REQUEST_EXAMPLE, example=examples.RETIRE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    UseCase(
        *("merge", "POST", f"{_NODE_PATH}/merge", merge.merge),
        id="mergeNode", tag="versions", role="write", summary="Merge a node into another one that is the same",
        sent=examples.MERGE_REQUEST_EXAMPLE, example=examples.MERGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    UseCase(
        *("unmerge", "POST", f"{_NODE_PATH}/unmerge", merge.unmerge),
        id="unmergeNode", tag="versions", role="write", summary="Take the merge of a node back",
        sent=examples.UNMERGE_REQUEST_EXAMPLE, optional=True, example=examples.UNMERGE_ANSWER_EXAMPLE,
        errors=(*UPDATE_ERRORS, "gone"), threads="writes",
    ),
    UseCase(
        *("edge", "GET", f"{STORE_PATH}/edges/{{id}}", reading.get_edge),
        id="getEdge", tag="graph", role="read", summary="One edge by its id", example=examples.EDGE_ANSWER_EXAMPLE,
    ),
    UseCase(
        *("delete_edge_by_id", "DELETE", f"{STORE_PATH}/edges/{{id}}", mutations.delete_edge_by_id),
        id="deleteEdgeById", tag="graph", role="write", summary="Delete one edge by its id",
        example=examples.DELETE_EDGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes", short=_one,
    ),
    UseCase(
        *("history", "GET", f"{_NODE_PATH}/history", history.node_history),
        id="nodeHistory", tag="history", role="read", summary="The states that a node has had",
        example=examples.NODE_HISTORY_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    UseCase(
        *("revert", "POST", f"{_NODE_PATH}/revert", history.revert),
        id="revertNode", tag="history", role="write", summary="Write a node as it was in an earlier version",
        sent=examples.REVERT_REQUEST_EXAMPLE, example=examples.INJECT_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes",
    ),
    UseCase(
        *("changes", "GET", f"{STORE_PATH}/changes", history.changes),
        id="changes", tag="history", role="read", summary="The writes after a sequence",
        example=examples.CHANGES_PAGE_EXAMPLE, errors=(*READ_ERRORS, "gone"),
    ),
    UseCase(
        *("restore", "POST", f"{STORE_PATH}/restore", transfer.restore),
        id="restoreStore", tag="history", role="admin", summary="Make a new store of what a store was",
        sent=examples.RESTORE_REQUEST_EXAMPLE, example=examples.RESTORE_ANSWER_EXAMPLE,
        errors=(*UPDATE_ERRORS, "gone"), threads="transfers",
        repeatable=False, long=True,
    ),
    UseCase(
        *("prune_history", "POST", f"{STORE_PATH}/history/prune", history.prune_history),
        id="pruneHistory", tag="history", role="admin", summary="Forget former states for good",
        sent=examples.PRUNE_HISTORY_REQUEST_EXAMPLE, optional=True, example=examples.PRUNE_HISTORY_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers", long=True,
        positional=("before",),
    ),
    UseCase(
        *("backup", "POST", f"{STORE_PATH}/backup", backup.backup_store),
        id="backupStore", tag="backup", role="admin", summary="Back one store up",
        sent=examples.BACKUP_REQUEST_EXAMPLE, optional=True, example=examples.STORE_BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        long=True, positional=("to",),
    ),
    UseCase(
        *("backup_stores", "POST", "/api/backup", backup.backup_stores),
        id="backup", tag="backup", role="admin", summary="Back stores up",
        sent=examples.BACKUP_STORES_REQUEST_EXAMPLE, optional=True, example=examples.BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        long=True, positional=("to",),
    ),
    UseCase(
        *("restore_backup", "POST", "/api/restore", backup.restore_backup),
        id="restoreBackup", tag="backup", role="admin", summary="Make stores out of a backup",
        sent=examples.RESTORE_BACKUP_REQUEST_EXAMPLE, example=examples.RESTORE_BACKUP_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        repeatable=False, long=True, positional=("source",),
    ),
    UseCase(
        *("reindex", "POST", f"{STORE_PATH}/reindex", stores.reindex),
        id="reindex", tag="search", role="admin", summary="Make the indexes of a store anew",
        example=examples.REINDEX_ANSWER_EXAMPLE, statuses=(202,), status=lambda _: 202,
    ),
    UseCase(
        *("search", "POST", f"{STORE_PATH}/search", search.search),
        id="search", tag="search", role="read",
        summary="Find nodes by words, by meaning, and by what they are related to",
        sent=examples.SEARCH_REQUEST_EXAMPLE, example=examples.SEARCH_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    UseCase(
        *("search_batch", "POST", f"{STORE_PATH}/search/batch", search.search_batch),
        id="searchBatch", tag="search", role="read", summary="Ask the same in several ways and join the answers",
        sent=examples.BATCH_SEARCH_REQUEST_EXAMPLE, example=examples.BATCH_SEARCH_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    UseCase(
        *("context", "POST", f"{STORE_PATH}/context", search.context),
        id="context", tag="search", role="read", summary="Get text about a question that fits a budget of tokens",
        sent=examples.CONTEXT_REQUEST_EXAMPLE, example=examples.CONTEXT_ANSWER_EXAMPLE, errors=_SEARCH_ERRORS,
    ),
    *MEMORY_CASES,
)
