"""The operations, one row each: from here come routes, roles, the API description, and the faces of the clients.

What streams, or answers in several forms, has handlers of its own: Cypher, imports and exports, events, metrics, the
history of an entity. They describe themselves beside those.
"""

from __future__ import annotations

from kgserve.admin import backup, stores
from kgserve.api import examples
from kgserve.api.memory_table import MEMORY_CASES
from kgserve.api.operation import ALWAYS, READ, STORE, WRITE, UseCase
from kgserve.graph import cross_store_links, history, merge, mutations, reading, versions, visualization
from kgserve.graph.answers import ListedPage
from kgserve.graph.cypher import read
from kgserve.graph.search import search
from kgserve.graph.transfer import transfer

_NODE = f"{STORE}/nodes/{{id}}"
_KNOWN = (*WRITE, "not_found")
_SEARCH = (*READ, "too_large", "unsupported", "conflict")


def _one(_request: object) -> int:
    return 1


# fmt: off
# One row, one paragraph.
USE_CASES = (
    UseCase(
        *("health", "GET", "/health", stores.health),
        id="health", tag="service", role="read", summary="The process answers",
        example=examples.HEALTHY, errors=ALWAYS, short=0,
    ),
    UseCase(
        *("ready", "GET", "/ready", stores.ready),
        id="ready", tag="service", role="read", summary="Stores can be opened and written",
        example=examples.READY, errors=(*ALWAYS, "storage_full"),
    ),
    UseCase(
        *("whoami", "GET", "/api/whoami", stores.whoami),
        id="whoami", tag="service", role="read", summary="Who asks, and what the key may do",
        example=examples.WHOAMI, errors=ALWAYS, short=0,
    ),
    UseCase(
        *("audit", "GET", "/api/audit", stores.audit),
        id="audit", tag="service", role="admin", summary="What was refused, and what was administered",
        example=examples.RECORDED, errors=(*ALWAYS, "not_found", "conflict"),
    ),
    UseCase(
        *("cluster", "GET", "/api/cluster", stores.cluster),
        id="cluster", tag="service", role="admin", summary="The nodes of the cluster that this server is of",
        example=examples.CLUSTER, errors=(*ALWAYS, "conflict"),
    ),
    UseCase(
        *("drain", "POST", "/api/cluster/drain", stores.drain),
        id="drainNode", tag="service", role="admin", summary="Have other nodes serve the stores of this one",
        sent=examples.DRAIN, optional=True, example=examples.DRAINED, errors=(*ALWAYS, "conflict"), threads="writes",
        long=True,
    ),
    UseCase(
        *("finish_upgrade", "POST", "/api/cluster/finish-upgrade", stores.finish_upgrade),
        id="finishUpgrade", tag="service", role="admin", summary="Have all nodes write in the newest format",
        example=examples.UPGRADED, errors=(*ALWAYS, "conflict"), threads="writes",
    ),
    UseCase(
        *("cypher_words", "GET", "/api/cypher/words", read.cypher_words),
        id="cypherWords", tag="cypher", role="read", summary="The words that a statement may be made of",
        example=examples.CYPHER_WORDS, errors=ALWAYS,
    ),
    UseCase(
        *("inject", "POST", f"{STORE}/inject", mutations.inject),
        id="inject", tag="graph", role="write", summary="Upsert nodes and edges in one atomic batch",
        sent=examples.INJECT, example=examples.INJECTED, errors=WRITE, threads="writes", short=mutations.count_rows,
        positional=("nodes", "edges"),
    ),
    UseCase(
        *("delete_node", "DELETE", _NODE, mutations.delete_node),
        id="deleteNode", tag="graph", role="write", summary="Delete one node and its edges",
        example=examples.NODE_DELETED, errors=_KNOWN, threads="writes", short=_one,
    ),
    UseCase(
        *("delete_edge", "DELETE", f"{STORE}/edges", mutations.delete_edge),
        id="deleteEdge", tag="graph", role="write", summary="Delete one edge",
        sent=examples.EDGE_KEY, example=examples.EDGE_DELETED, errors=_KNOWN, threads="writes", short=_one,
    ),
    UseCase(
        *("traverse", "POST", f"{STORE}/traverse", reading.traverse),
        id="traverse", tag="graph", role="read", summary="Walk edges from one node, breadth first",
        sent=examples.TRAVERSE, example=examples.TRAVERSED, short=0,
        errors=(*READ, "conflict", "gone", "too_large", "unsupported"),
    ),
    UseCase(
        *("graph", "POST", f"{STORE}/graph", visualization.draw),
        id="graph", tag="graph", role="read", summary="A part of a graph in columns, to be drawn",
        sent=examples.DRAW, example=examples.DRAWN, errors=(*READ, "conflict", "gone", "too_large", "unsupported"),
    ),
    UseCase(
        *("timeline", "GET", f"{STORE}/timeline", visualization.timeline),
        id="timeline", tag="history", role="read", summary="Commits over time",
        example=examples.TIMELINE, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("stores", "GET", "/api/memory", stores.list_stores),
        id="listStores", tag="stores", role="read", summary="All stores, with counts and sizes",
        example=examples.STORES, errors=ALWAYS,
    ),
    UseCase(
        *("create", "PUT", STORE, stores.create_store),
        id="createStore", tag="stores", role="write", summary="Create a store",
        sent=examples.SETTINGS, optional=True, example=examples.STORE, errors=WRITE,
        statuses=(200, 201), status=lambda made: 201 if made.created else 200,
    ),
    UseCase(
        *("settings", "GET", STORE, stores.store_settings),
        id="storeSettings", tag="stores", role="read", summary="The settings of a store",
        example=examples.SETTINGS_SET, errors=(*ALWAYS, "not_found"),
    ),
    UseCase(
        *("update_settings", "PATCH", STORE, stores.update_store),
        id="updateStore", tag="stores", role="admin", summary="Change the settings of a store",
        sent=examples.SETTINGS, example=examples.SETTINGS_SET, errors=_KNOWN,
    ),
    UseCase(
        *("drop", "DELETE", STORE, stores.drop_store),
        id="dropStore", tag="stores", role="admin", summary="Delete a store and everything in it",
        example=examples.DROPPED, errors=(*ALWAYS, "not_found", "conflict"), repeatable=False,
    ),
    UseCase(
        *("move", "POST", f"{STORE}/move", stores.move),
        id="moveStore", tag="stores", role="admin", summary="Have another node of the cluster serve a store",
        sent=examples.MOVE, example=examples.MOVED, errors=_KNOWN, threads="writes", positional=("to",),
    ),
    UseCase(
        *("repair", "POST", f"{STORE}/repair", stores.repair),
        id="repairStore", tag="stores", role="admin", summary="Make a store's log anew from the files of this node",
        example=examples.REPAIRED, errors=_KNOWN, threads="writes", long=True, repeatable=False,
    ),
    UseCase(
        *("stats", "GET", f"{STORE}/stats", stores.stats),
        id="storeStats", tag="stores", role="read", summary="What one store holds and how it is doing",
        example=examples.STATS,
    ),
    UseCase(
        *("links", "GET", f"{STORE}/links", cross_store_links.store_links),
        id="storeLinks", tag="stores", role="read", summary="The stores that edges of one lead into, and come from",
        example=examples.LINKS,
    ),
    UseCase(
        *("nodes", "GET", f"{STORE}/nodes", reading.list_nodes),
        id="listNodes", tag="nodes", role="read", summary="List nodes, page by page",
        example=examples.PAGE, answer=ListedPage, errors=(*READ, "conflict", "gone"),
    ),
    UseCase(
        *("node", "GET", _NODE, reading.get_node),
        id="getNode", tag="nodes", role="read", summary="One node with its edges",
        example=examples.NODE, errors=(*READ, "conflict", "gone"), short=0,
    ),
    UseCase(
        *("get_nodes", "POST", f"{STORE}/get", reading.get_nodes),
        id="getNodes", tag="nodes", role="read", summary="Many nodes by their ids",
        sent=examples.GET_NODES, example=examples.NODES_GOT, errors=(*_SEARCH, "gone"),
    ),
    UseCase(
        *("count", "POST", f"{STORE}/count", reading.count),
        id="countNodes", tag="nodes", role="read", summary="How many nodes fit a filter",
        sent=examples.COUNT, optional=True, example=examples.COUNTED, errors=_SEARCH,
    ),
    UseCase(
        *("delete_nodes", "POST", f"{STORE}/delete", reading.delete_nodes),
        id="deleteNodes", tag="nodes", role="write", summary="Delete the nodes that fit a filter",
        sent=examples.DELETE_NODES, example=examples.NODES_DELETED, errors=_KNOWN, threads="writes", repeatable=False,
    ),
    UseCase(
        *("describe_schema", "GET", f"{STORE}/schema", reading.describe_schema),
        id="describeSchema", tag="nodes", role="read", summary="The types and tags that a store uses",
        example=examples.SCHEMA,
    ),
    UseCase(
        *("list_tags", "GET", f"{STORE}/tags", reading.list_tags),
        id="listTags", tag="nodes", role="read", summary="The most frequent tags",
        example=examples.TAGS, positional=("prefix",),
    ),
    UseCase(
        *("outgoing", "GET", f"{_NODE}/outgoing", reading.outgoing),
        id="outgoing", tag="nodes", role="read", summary="The edges that start at a node, in order",
        example=examples.EDGES, errors=(*READ, "conflict", "gone"),
    ),
    UseCase(
        *("incoming", "GET", f"{_NODE}/incoming", reading.incoming),
        id="incoming", tag="nodes", role="read", summary="The edges that end at a node, in order",
        example=examples.EDGES, errors=(*READ, "conflict", "gone"),
    ),
    UseCase(
        *("put_node", "POST", f"{STORE}/nodes", versions.put_node),
        id="putNode", tag="versions", role="write",
        summary="Write a version of a node, based on the one that was seen",
        sent=examples.PUT_NODE, example=examples.NODE_PUT, errors=(*WRITE, "conflict_manual"),
        threads="writes", short=_one, repeatable=False,
    ),
    UseCase(
        *("put_subgraph", "POST", f"{STORE}/subgraph", versions.put_subgraph),
        id="putSubgraph", tag="versions", role="write", summary="Write nodes and edges, each by itself",
        sent=examples.PUT_SUBGRAPH, example=examples.SUBGRAPH_PUT, errors=WRITE, threads="writes", repeatable=False,
        positional=("nodes", "edges"),
    ),
    UseCase(
        *("retire", "POST", f"{_NODE}/retire", mutations.retire_node),
        id="retireNode", tag="versions", role="write", summary="Say until when a node was true",
        sent=examples.RETIRE, optional=True, example=examples.RETIRED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("retire_edge", "POST", f"{STORE}/edges/retire", mutations.retire_edge),
        id="retireEdge", tag="versions", role="write", summary="Say until when an edge was true",
        sent=examples.RETIRE_EDGE, example=examples.RETIRED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("merge", "POST", f"{_NODE}/merge", merge.merge),
        id="mergeNode", tag="versions", role="write", summary="Merge a node into another one that is the same",
        sent=examples.MERGE, example=examples.MERGED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("unmerge", "POST", f"{_NODE}/unmerge", merge.unmerge),
        id="unmergeNode", tag="versions", role="write", summary="Take the merge of a node back",
        sent=examples.UNMERGE, optional=True, example=examples.UNMERGED, errors=(*_KNOWN, "gone"), threads="writes",
    ),
    UseCase(
        *("edge", "GET", f"{STORE}/edges/{{id}}", reading.get_edge),
        id="getEdge", tag="graph", role="read", summary="One edge by its id", example=examples.ONE_EDGE,
    ),
    UseCase(
        *("delete_edge_by_id", "DELETE", f"{STORE}/edges/{{id}}", mutations.delete_edge_by_id),
        id="deleteEdgeById", tag="graph", role="write", summary="Delete one edge by its id",
        example=examples.EDGE_DELETED, errors=_KNOWN, threads="writes", short=_one,
    ),
    UseCase(
        *("history", "GET", f"{_NODE}/history", history.node_history),
        id="nodeHistory", tag="history", role="read", summary="The states that a node has had",
        example=examples.HISTORY, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("revert", "POST", f"{_NODE}/revert", history.revert),
        id="revertNode", tag="history", role="write", summary="Write a node as it was in an earlier version",
        sent=examples.REVERT, example=examples.INJECTED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("changes", "GET", f"{STORE}/changes", history.changes),
        id="changes", tag="history", role="read", summary="The writes after a sequence",
        example=examples.CHANGES, errors=(*READ, "gone"),
    ),
    UseCase(
        *("restore", "POST", f"{STORE}/restore", transfer.restore),
        id="restoreStore", tag="history", role="admin", summary="Make a new store of what a store was",
        sent=examples.RESTORE, example=examples.RESTORED, errors=(*_KNOWN, "gone"), threads="transfers",
        repeatable=False, long=True,
    ),
    UseCase(
        *("prune_history", "POST", f"{STORE}/history/prune", history.prune_history),
        id="pruneHistory", tag="history", role="admin", summary="Forget former states for good",
        sent=examples.PRUNE, optional=True, example=examples.PRUNED, errors=_KNOWN, threads="transfers", long=True,
        positional=("before",),
    ),
    UseCase(
        *("backup", "POST", f"{STORE}/backup", backup.backup_store),
        id="backupStore", tag="backup", role="admin", summary="Back one store up",
        sent=examples.BACKUP, optional=True, example=examples.STORE_BACKED_UP, errors=_KNOWN, threads="transfers",
        long=True, positional=("to",),
    ),
    UseCase(
        *("backup_stores", "POST", "/api/backup", backup.backup_stores),
        id="backup", tag="backup", role="admin", summary="Back stores up",
        sent=examples.BACKUP_SOME, optional=True, example=examples.BACKED_UP, errors=_KNOWN, threads="transfers",
        long=True, positional=("to",),
    ),
    UseCase(
        *("restore_backup", "POST", "/api/restore", backup.restore_backup),
        id="restoreBackup", tag="backup", role="admin", summary="Make stores out of a backup",
        sent=examples.RESTORE_BACKUP, example=examples.BACKUP_RESTORED, errors=_KNOWN, threads="transfers",
        repeatable=False, long=True, positional=("source",),
    ),
    UseCase(
        *("reindex", "POST", f"{STORE}/reindex", stores.reindex),
        id="reindex", tag="search", role="admin", summary="Make the indexes of a store anew",
        example=examples.REINDEXING, statuses=(202,), status=lambda _: 202,
    ),
    UseCase(
        *("search", "POST", f"{STORE}/search", search.search),
        id="search", tag="search", role="read",
        summary="Find nodes by words, by meaning, and by what they are related to",
        sent=examples.SEARCH, example=examples.FOUND, errors=_SEARCH,
    ),
    UseCase(
        *("search_batch", "POST", f"{STORE}/search/batch", search.search_batch),
        id="searchBatch", tag="search", role="read", summary="Ask the same in several ways and join the answers",
        sent=examples.BATCH_SEARCH, example=examples.BATCH_FOUND, errors=_SEARCH,
    ),
    UseCase(
        *("context", "POST", f"{STORE}/context", search.context),
        id="context", tag="search", role="read", summary="Get text about a question that fits a budget of tokens",
        sent=examples.CONTEXT, example=examples.CONTEXT_FOUND, errors=_SEARCH,
    ),
    *MEMORY_CASES,
)
