"""Each use case, once: a function makes its request and knows what it is answered with.

Written by `make docs` from `kgserve.api.table`: a change here is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from kgserve.admin.api import (
    DropAnswer,
    LinkManifest,
    PruneAnswer,
    PruneRequest,
    StoreList,
    StoreSettingsAnswer,
    StoreStats,
)
from kgserve.client.answers import Hits, Traversal
from kgserve.client.wire import ClientRequest, Route
from kgserve.graph.answers import (
    ChangesPage,
    ContextAnswer,
    CountAnswer,
    CypherWords,
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    DeleteNodesAnswer,
    Health,
    InjectAnswer,
    NodeAnswer,
    NodeHistory,
    NodesAnswer,
    Ready,
    ReindexAnswer,
    RestoreAnswer,
    SchemaDescription,
    TagList,
    Whoami,
)
from kgserve.graph.compat.versioned_api import (
    EdgeAnswer,
    EdgeList,
    EdgeSpec,
    NodeSpec,
    PutSubgraphAnswer,
    RetireAnswer,
    RetireEdgeRequest,
)
from kgserve.graph.merge_api import MergeAnswer, MergeNode, UnmergeAnswer, UnmergeNode
from kgserve.graph.queries import (
    ChangesQuery,
    DropQuery,
    EdgeId,
    EdgesRequest,
    HistoryRequest,
    IncomingRequest,
    NodeId,
    NodeRequest,
    RetireNode,
    RevertNode,
    TagsQuery,
)
from kgserve.graph.requests import (
    ContextRequest,
    CountRequest,
    DeleteNodesRequest,
    EdgeInput,
    EdgeKeyRequest,
    Fusion,
    NodeInput,
    NodesRequest,
    RestoreRequest,
    SearchMode,
    SearchRequest,
    TraverseRequest,
)
from kgserve.graph.visualization_api import Drawing, DrawRequest, Timeline, TimelineQuery
from kgserve.memory.api import (
    ApplyPlan,
    AssociatedEntity,
    ConsolidateRequest,
    ConsolidationReport,
    ConsolidationRuns,
    ConsolidationsQuery,
    ConsolidationUndone,
    DeleteMemoriesRequest,
    MemoriesDeleted,
    MemoriesQuery,
    Memory,
    MemoryDeleted,
    MemoryId,
    MemoryPage,
    MemoryRequest,
    PruneMemoriesRequest,
    PruneReport,
    RecallAnswer,
    RecallRequest,
    StoredMemories,
    StoredMemory,
    StoreMemoryRequest,
    UndoConsolidationRequest,
    UpdatedMemory,
    UpdateMemoryRequest,
)
from kgserve.memory.entities_api import (
    ConfidenceHistogram,
    ConfidenceQuery,
    CountsQuery,
    CreatedEntity,
    CreatedRelation,
    DeleteEntitiesRequest,
    DeleteEntityRequest,
    EntitiesCreated,
    EntitiesDeleted,
    EntitiesQuery,
    EntityAnswer,
    EntityGraph,
    EntityGraphRequest,
    EntityId,
    EntityInput,
    EntityMemoriesRequest,
    EntityPage,
    Growth,
    GrowthQuery,
    MemoryStats,
    MemoryTags,
    MemoryTypes,
    RelationId,
    RelationInput,
    RelationKey,
    RelationPage,
    RelationsCreated,
    RelationsDeleted,
    RelationsQuery,
    UpdatedEntity,
    UpdateEntityRequest,
)
from kgserve.memory.extraction.marks import ExtractAnswer, ExtractRequest
from kgserve.memory.hierarchy_api import WholeMemoryRequest
from kgserve.memory.reflect_api import Reflection, ReflectRequest
from kgserve.memory.relationships import WholeMemory
from kgserve.memory.retain_api import ForgetAnswer, ForgetRequest, Message, RetainAnswer, RetainedBatch, RetainRequest
from kgserve.platform.access.audit_api import AuditAnswer, AuditQuery
from kgserve.storage.model.walk import Direction
from kgserve.stores.backup.api import (
    BackupAnswer,
    BackupRequest,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    StoreBackupAnswer,
    StoreBackupRequest,
)
from kgserve.stores.cluster_api import (
    ClusterStatus,
    DrainAnswer,
    DrainRequest,
    MoveAnswer,
    MoveRequest,
    RepairAnswer,
    UpgradeAnswer,
)

HEALTH_ROUTE = Route("health", "GET", "/health", Health)
READY_ROUTE = Route("ready", "GET", "/ready", Ready)
WHOAMI_ROUTE = Route("whoami", "GET", "/api/whoami", Whoami)
AUDIT_ROUTE = Route("audit", "GET", "/api/audit", AuditAnswer)
CLUSTER_ROUTE = Route("cluster", "GET", "/api/cluster", ClusterStatus)
DRAIN_ROUTE = Route("drain", "POST", "/api/cluster/drain", DrainAnswer, in_body=True)
FINISH_UPGRADE_ROUTE = Route("finish_upgrade", "POST", "/api/cluster/finish-upgrade", UpgradeAnswer)
CYPHER_WORDS_ROUTE = Route("cypher_words", "GET", "/api/cypher/words", CypherWords)
INJECT_ROUTE = Route("inject", "POST", "/api/memory/{store}/inject", InjectAnswer, in_body=True)
DELETE_NODE_ROUTE = Route("delete_node", "DELETE", "/api/memory/{store}/nodes/{id}", DeleteNodeAnswer)
DELETE_EDGE_ROUTE = Route("delete_edge", "DELETE", "/api/memory/{store}/edges", DeleteEdgeAnswer, in_body=True)
TRAVERSE_ROUTE = Route("traverse", "POST", "/api/memory/{store}/traverse", Traversal, in_body=True, reads=True)
GRAPH_ROUTE = Route("graph", "POST", "/api/memory/{store}/graph", Drawing, in_body=True, reads=True)
TIMELINE_ROUTE = Route("timeline", "GET", "/api/memory/{store}/timeline", Timeline, reads=True)
STORES_ROUTE = Route("stores", "GET", "/api/memory", StoreList)
SETTINGS_ROUTE = Route("settings", "GET", "/api/memory/{store}", StoreSettingsAnswer, reads=True)
DROP_ROUTE = Route("drop", "DELETE", "/api/memory/{store}", DropAnswer)
MOVE_ROUTE = Route("move", "POST", "/api/memory/{store}/move", MoveAnswer, in_body=True)
REPAIR_ROUTE = Route("repair", "POST", "/api/memory/{store}/repair", RepairAnswer)
STATS_ROUTE = Route("stats", "GET", "/api/memory/{store}/stats", StoreStats, reads=True)
LINKS_ROUTE = Route("links", "GET", "/api/memory/{store}/links", LinkManifest, reads=True)
NODE_ROUTE = Route("node", "GET", "/api/memory/{store}/nodes/{id}", NodeAnswer, reads=True)
GET_NODES_ROUTE = Route("get_nodes", "POST", "/api/memory/{store}/get", NodesAnswer, in_body=True, reads=True)
COUNT_ROUTE = Route("count", "POST", "/api/memory/{store}/count", CountAnswer, in_body=True, reads=True)
DELETE_NODES_ROUTE = Route("delete_nodes", "POST", "/api/memory/{store}/delete", DeleteNodesAnswer, in_body=True)
DESCRIBE_SCHEMA_ROUTE = Route("describe_schema", "GET", "/api/memory/{store}/schema", SchemaDescription, reads=True)
LIST_TAGS_ROUTE = Route("list_tags", "GET", "/api/memory/{store}/tags", TagList, reads=True)
OUTGOING_ROUTE = Route("outgoing", "GET", "/api/memory/{store}/nodes/{id}/outgoing", EdgeList, reads=True)
INCOMING_ROUTE = Route("incoming", "GET", "/api/memory/{store}/nodes/{id}/incoming", EdgeList, reads=True)
PUT_SUBGRAPH_ROUTE = Route("put_subgraph", "POST", "/api/memory/{store}/subgraph", PutSubgraphAnswer, in_body=True)
RETIRE_ROUTE = Route("retire", "POST", "/api/memory/{store}/nodes/{id}/retire", RetireAnswer, in_body=True)
RETIRE_EDGE_ROUTE = Route("retire_edge", "POST", "/api/memory/{store}/edges/retire", RetireAnswer, in_body=True)
MERGE_ROUTE = Route("merge", "POST", "/api/memory/{store}/nodes/{id}/merge", MergeAnswer, in_body=True)
UNMERGE_ROUTE = Route("unmerge", "POST", "/api/memory/{store}/nodes/{id}/unmerge", UnmergeAnswer, in_body=True)
EDGE_ROUTE = Route("edge", "GET", "/api/memory/{store}/edges/{id}", EdgeAnswer, reads=True)
DELETE_EDGE_BY_ID_ROUTE = Route("delete_edge_by_id", "DELETE", "/api/memory/{store}/edges/{id}", DeleteEdgeAnswer)
HISTORY_ROUTE = Route("history", "GET", "/api/memory/{store}/nodes/{id}/history", NodeHistory, reads=True)
REVERT_ROUTE = Route("revert", "POST", "/api/memory/{store}/nodes/{id}/revert", InjectAnswer, in_body=True)
CHANGES_ROUTE = Route("changes", "GET", "/api/memory/{store}/changes", ChangesPage, reads=True)
RESTORE_ROUTE = Route("restore", "POST", "/api/memory/{store}/restore", RestoreAnswer, in_body=True)
PRUNE_HISTORY_ROUTE = Route("prune_history", "POST", "/api/memory/{store}/history/prune", PruneAnswer, in_body=True)
BACKUP_ROUTE = Route("backup", "POST", "/api/memory/{store}/backup", StoreBackupAnswer, in_body=True)
BACKUP_STORES_ROUTE = Route("backup_stores", "POST", "/api/backup", BackupAnswer, in_body=True)
RESTORE_BACKUP_ROUTE = Route("restore_backup", "POST", "/api/restore", RestoreBackupAnswer, in_body=True)
REINDEX_ROUTE = Route("reindex", "POST", "/api/memory/{store}/reindex", ReindexAnswer)
SEARCH_ROUTE = Route("search", "POST", "/api/memory/{store}/search", Hits, in_body=True, reads=True)
CONTEXT_ROUTE = Route("context", "POST", "/api/memory/{store}/context", ContextAnswer, in_body=True, reads=True)
STORE_MEMORY_ROUTE = Route("store_memory", "POST", "/api/memories", StoredMemory, in_body=True)
STORE_MEMORIES_ROUTE = Route("store_memories", "POST", "/api/memories/batch", StoredMemories, in_body=True)
MEMORIES_ROUTE = Route("memories", "GET", "/api/memories", MemoryPage, reads=True)
MEMORY_ROUTE = Route("memory", "GET", "/api/memories/{id}", Memory, reads=True)
WHOLE_MEMORY_ROUTE = Route("whole_memory", "GET", "/api/v1/memories/{id}", WholeMemory, reads=True)
UPDATE_MEMORY_ROUTE = Route("update_memory", "PUT", "/api/memories/{id}", UpdatedMemory, in_body=True)
DELETE_MEMORY_ROUTE = Route("delete_memory", "DELETE", "/api/memories/{id}", MemoryDeleted)
DELETE_MEMORIES_ROUTE = Route("delete_memories", "POST", "/api/memories/delete", MemoriesDeleted, in_body=True)
RECALL_ROUTE = Route("recall", "POST", "/api/memories/search", RecallAnswer, in_body=True, reads=True)
RETAIN_ROUTE = Route("retain", "POST", "/api/v1/retain", RetainAnswer, in_body=True)
RETAIN_BATCH_ROUTE = Route("retain_batch", "POST", "/api/v1/retain/batch", RetainedBatch, in_body=True)
FORGET_ROUTE = Route("forget", "POST", "/api/v1/forget", ForgetAnswer, in_body=True)
CONSOLIDATE_ROUTE = Route("consolidate", "POST", "/api/memories/consolidate", ConsolidationReport, in_body=True)
CONSOLIDATIONS_ROUTE = Route("consolidations", "GET", "/api/memories/consolidations", ConsolidationRuns, reads=True)
UNDO_CONSOLIDATION_ROUTE = Route(
    "undo_consolidation", "POST", "/api/memories/consolidations/{id}/undo", ConsolidationUndone, in_body=True
)
PRUNE_MEMORIES_ROUTE = Route("prune_memories", "POST", "/api/memories/prune", PruneReport, in_body=True)
REFLECT_ROUTE = Route("reflect", "POST", "/api/v1/reflect", Reflection, in_body=True)
EXTRACT_MEMORIES_ROUTE = Route("extract_memories", "POST", "/api/v1/extract", ExtractAnswer, in_body=True)
CREATE_ENTITY_ROUTE = Route("create_entity", "POST", "/api/entities", CreatedEntity, in_body=True)
CREATE_ENTITIES_ROUTE = Route("create_entities", "POST", "/api/entities/batch", EntitiesCreated, in_body=True)
ENTITIES_ROUTE = Route("entities", "GET", "/api/entities", EntityPage, reads=True)
ENTITY_ROUTE = Route("entity", "GET", "/api/entities/{id}", EntityAnswer, reads=True)
UPDATE_ENTITY_ROUTE = Route("update_entity", "PUT", "/api/entities/{id}", UpdatedEntity, in_body=True)
DELETE_ENTITY_ROUTE = Route("delete_entity", "DELETE", "/api/entities/{id}", EntitiesDeleted)
DELETE_ENTITIES_ROUTE = Route("delete_entities", "POST", "/api/entities/delete", EntitiesDeleted, in_body=True)
ENTITY_GRAPH_ROUTE = Route("entity_graph", "GET", "/api/entities/{id}/graph", EntityGraph, reads=True)
MERGE_ENTITIES_ROUTE = Route("merge_entities", "POST", "/api/entities/{id}/merge", MergeAnswer, in_body=True)
ENTITY_MEMORIES_ROUTE = Route("entity_memories", "GET", "/api/entities/{id}/memories", MemoryPage, reads=True)
RELATIONS_ROUTE = Route("relations", "GET", "/api/relations", RelationPage, reads=True)
RELATE_ROUTE = Route("relate", "POST", "/api/relations", CreatedRelation, in_body=True)
CREATE_RELATIONS_ROUTE = Route("create_relations", "POST", "/api/relations/batch", RelationsCreated, in_body=True)
DELETE_RELATION_ROUTE = Route("delete_relation", "DELETE", "/api/relations/{id}", RelationsDeleted)
DELETE_RELATIONS_ROUTE = Route("delete_relations", "POST", "/api/relations/delete", RelationsDeleted, in_body=True)
MEMORY_STATS_ROUTE = Route("memory_stats", "GET", "/api/analytics/overview", MemoryStats, reads=True)
MEMORY_GROWTH_ROUTE = Route("memory_growth", "GET", "/api/analytics/growth", Growth, reads=True)
MEMORY_TYPES_ROUTE = Route("memory_types", "GET", "/api/analytics/types", MemoryTypes, reads=True)
MEMORY_TAGS_ROUTE = Route("memory_tags", "GET", "/api/analytics/tags", MemoryTags, reads=True)
MEMORY_CONFIDENCE_ROUTE = Route(
    "memory_confidence", "GET", "/api/analytics/confidence", ConfidenceHistogram, reads=True
)


def health() -> ClientRequest[Health]:
    """Report that the process is alive.

    Touches neither disk nor stores: it says that the process is alive, and which version it is.
    """
    return HEALTH_ROUTE.ask(None)


def ready() -> ClientRequest[Ready]:
    """Report whether stores can be opened and written.

    Answers 503 or 507 with the reason when a write would not be taken now.

    Raises Unavailable or StorageFull.
    """
    return READY_ROUTE.ask(None)


def whoami() -> ClientRequest[Whoami]:
    """Show the identity and permissions of the API key.

    The name, role, stores and end of the key that was sent; where none is asked for, `open` is true.
    """
    return WHOAMI_ROUTE.ask(None)


def audit(*, node: str | None = None, limit: int = 100) -> ClientRequest[AuditAnswer]:
    """List refused requests and administrative actions.

    What was refused and administered, the newest of it, oldest first; in a cluster, at all nodes or one.

    Raises NotFound for a node that there never was, and Conflict for one where there is no cluster.
    """
    return AUDIT_ROUTE.ask(None, AuditQuery(node=node, limit=limit))


def cluster() -> ClientRequest[ClusterStatus]:
    """List the nodes of the cluster.

    The nodes, whether they are alive, and how many stores each claims. Raises Conflict where there is no cluster.
    """
    return CLUSTER_ROUTE.ask(None)


def drain(*, undo: bool = False) -> ClientRequest[DrainAnswer]:
    """Move the stores of this node to other nodes.

    Has other nodes serve the stores of the node that is asked, which takes none over until `undo` or its next start.

    Stores go one after the other; what is asked meanwhile waits, and goes there. One that cannot be handed over stays,
    and is listed under `failed`; those that their new nodes have not opened within half a minute, all stores together,
    are listed under `unopened`. Raises Conflict where there is no cluster.
    """
    return DRAIN_ROUTE.ask(None, DrainRequest(undo=undo), wait=None)


def finish_upgrade() -> ClientRequest[UpgradeAnswer]:
    """Have all nodes write the newest format.

    Has all nodes write in the newest format that all of them know; older versions cannot join from then on.

    Raises Conflict while a node that is alive knows none as new as the one that is asked, and where there is no
    cluster.
    """
    return FINISH_UPGRADE_ROUTE.ask(None)


def cypher_words() -> ClientRequest[CypherWords]:
    """List the words that a Cypher statement may use.

    Keywords, functions, procedures, and labels with their properties: what the shell completes, for other editors.

    They are the same for every store; its types and relation types are in its `stats`.
    """
    return CYPHER_WORDS_ROUTE.ask(None)


def inject(
    store: str,
    nodes: Iterable[Mapping[str, Any] | NodeInput] = (),
    edges: Iterable[Mapping[str, Any] | EdgeInput] = (),
    *,
    touch: bool = True,
) -> ClientRequest[InjectAnswer]:
    """Create or update nodes and edges in one atomic batch.

    Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    one clears it. An edge with a missing endpoint is skipped and listed; where an edge with `to_graph` leads to, in
    another store, need not be there. Once answered, the whole batch is on disk. Of
    a key that a JSON object holds twice, and of a node or edge that a batch holds twice, the last one counts.

    Raises InvalidInput, whose `errors` name every place, TooLarge, Unavailable and StorageFull; then nothing
    is written.
    """
    return INJECT_ROUTE.ask(store, {"nodes": list(nodes), "edges": list(edges), "touch": touch})


def delete_node(store: str, node_id: str) -> ClientRequest[DeleteNodeAnswer]:
    """Delete one node and its edges.

    Deletes the node and every edge that touches it. Deleting a node that does not exist is not an error.

    With a memory go its former versions. The memories that are about the node stay, and the answer names them.
    """
    return DELETE_NODE_ROUTE.ask(store, NodeId(node_id=node_id))


def delete_edge(
    store: str, source: str, target: str, relation_type: str, *, to_graph: str | None = None
) -> ClientRequest[DeleteEdgeAnswer]:
    """Delete one edge.

    Deletes the edge of this source, target and relation type; other edges between the two nodes stay.

    Deleting an edge that does not exist is not an error.
    """
    return DELETE_EDGE_ROUTE.ask(
        store, EdgeKeyRequest(source=source, target=target, relation_type=relation_type, to_graph=to_graph)
    )


def traverse(  # noqa: PLR0913 - the fields of the request
    store: str,
    start_id: str,
    *,
    depth: int = 1,
    max_depth: int | None = None,
    direction: Direction | Literal[""] = "outgoing",
    relation_types: Iterable[str] | None = None,
    edge_kinds: Iterable[str] | None = None,
    min_weight: float | None = None,
    max_nodes: int = 10000,
    follow_symlinks: bool = False,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[Traversal]:
    """Walk edges from one node, breadth first.

    Answers with each node in reach once, at its shortest distance, nearest first.

    With them come all edges between the nodes returned. A start that does not exist gives empty arrays. `as_of` is a
    sequence or an RFC 3339 time: the walk is then what it would have been. `valid_at` is an RFC 3339 time: only what
    was true in the world then.

    Raises NotFound for the store, and Gone for a moment that is no longer known.
    """
    return TRAVERSE_ROUTE.ask(
        store,
        TraverseRequest(
            start_id=start_id,
            depth=depth,
            max_depth=max_depth,
            direction=direction,
            relation_types=_listed(relation_types),
            edge_kinds=_listed(edge_kinds),
            min_weight=min_weight,
            max_nodes=max_nodes,
            follow_symlinks=follow_symlinks,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def graph(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    ids: Iterable[str] | None = None,
    around: Iterable[str] | None = None,
    overview: int | None = None,
    depth: int = 1,
    direction: Direction = "both",
    per_node: int = 50,
    max_nodes: int = 300,
    types: Iterable[str] | None = None,
    relation_types: Iterable[str] | None = None,
    fields: Iterable[Literal["label", "degree", "valid", "version", "tags", "layer", "confidence", "parent"]]
    | None = None,
    lives: bool = False,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[Drawing]:
    """Get a part of a graph in columns, for drawing.

    Nodes by `ids`, or those `around` some, or an `overview`, with all edges among them, in columns.

    Around a node come its neighbours, level by level: of each node those with the strongest edges, then by id, at most
    `per_node`. An overview begins with the nodes that have most edges; a store of at most `max_nodes` is drawn whole.
    As of a moment it begins with those that have most edges now.

    `lives` tell of each node and edge from which commit until which its states held, and bring what is gone: of `ids`
    the nodes that once were there, and the edges that there once were between the nodes.

    Raises NotFound for the store, Gone for a moment that is no longer known, Conflict without a history.
    """
    return GRAPH_ROUTE.ask(
        store,
        DrawRequest(
            ids=_listed(ids),
            around=_listed(around),
            overview=overview,
            depth=depth,
            direction=direction,
            per_node=per_node,
            max_nodes=max_nodes,
            types=_listed(types),
            relation_types=_listed(relation_types),
            fields=_listed(fields),
            lives=lives,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def timeline(store: str, *, buckets: int = 120) -> ClientRequest[Timeline]:
    """Count commits over time.

    When the store was written to: commits in spans of the same length, from the first that is known to the last.

    A span without commits is left out. It takes the same however many commits there are.

    Raises NotFound for the store, Conflict without a history.
    """
    return TIMELINE_ROUTE.ask(store, TimelineQuery(buckets=buckets))


def stores() -> ClientRequest[StoreList]:
    """List all stores with counts and sizes.

    Stores are listed by name. Listing opens none of them.
    """
    return STORES_ROUTE.ask(None)


def settings(store: str) -> ClientRequest[StoreSettingsAnswer]:
    """Show the settings of a store.

    What was chosen for the store, when it was created, and its last sequence. `stats` says what it holds.
    """
    return SETTINGS_ROUTE.ask(store)


def drop(name: str, *, confirm: str) -> ClientRequest[DropAnswer]:
    """Delete a store and everything in it.

    Removes the store's graph, journal and files for good.

    The name has to be given twice: in the path and as `confirm`. Edges of other stores that lead there stay; the answer
    says how many. Raises NotFound.
    """
    return DROP_ROUTE.ask(name, DropQuery(confirm=confirm), idempotent=False)


def move(store: str, to: str) -> ClientRequest[MoveAnswer]:
    """Move a store to another node of the cluster.

    Has another node serve a store, and waits until it has opened it. What is asked meanwhile waits, and goes there.

    After half a minute the answer is `opened: false` with the `reason`; the store belongs to the other node then, too.
    Any node may be asked. Raises Conflict for a node that is not alive, and where there is no cluster.
    """
    return MOVE_ROUTE.ask(store, MoveRequest(to=to))


def repair(store: str) -> ClientRequest[RepairAnswer]:
    """Rebuild a store's log from the files of this node.

    Makes a store's log anew from the files of the node that is asked, when the log has lost something.

    What is left of the log must be in those files, too, as it is there, and nothing beyond them. Raises Conflict when
    it is not, or nothing is wrong with the log, or there is no cluster.
    """
    return REPAIR_ROUTE.ask(store, idempotent=False, wait=None)


def stats(store: str) -> ClientRequest[StoreStats]:
    """Show counts, sizes and condition of a store.

    Counts by type, sizes on disk, and the state of the store's journal, engine and indexes. Raises NotFound.
    """
    return STATS_ROUTE.ask(store)


def links(store: str) -> ClientRequest[LinkManifest]:
    """List the stores that edges of a store lead into or come from.

    Where edges of the store lead, and whose edges lead into it, with how many; stores need not be there to be named.

    Only stores that the caller sees are told of whose edges lead into it.
    """
    return LINKS_ROUTE.ask(store)


def node(
    store: str,
    node_id: str,
    *,
    as_of: int | str | None = None,
    valid_at: str | None = None,
    version: int | None = None,
    follow_symlinks: bool = False,
) -> ClientRequest[NodeAnswer]:
    """Get one node with its edges.

    The node, and at most 1,000 of its edges in each direction: now, or as it was; a version comes without edges.

    With `follow_symlinks` those that end here are of all stores that the caller sees. Raises NotFound, and Gone for a
    moment that is no longer known, and InvalidInput for one together with `follow_symlinks`.
    """
    return NODE_ROUTE.ask(
        store,
        NodeRequest(
            node_id=node_id, as_of=_text(as_of), valid_at=valid_at, version=version, follow_symlinks=follow_symlinks
        ),
    )


def get_nodes(
    store: str, ids: Iterable[str], *, as_of: int | str | None = None, valid_at: str | None = None
) -> ClientRequest[NodesAnswer]:
    """Get many nodes by id.

    The nodes of up to 1,000 ids, without edges: now, or as they were. `missing` names those that are not there.

    Raises Gone for a moment that is no longer known.
    """
    return GET_NODES_ROUTE.ask(store, NodesRequest(ids=list(ids), as_of=as_of, valid_at=valid_at))


def count(
    store: str,
    *,
    types: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    valid_at: str | None = None,
) -> ClientRequest[CountAnswer]:
    """Count the nodes that match a filter.

    Counts the nodes of any of `types`, with all of `tags` and `attributes`; without any of them all nodes.

    `valid_at` left out counts what is true now, as lists do. Where more than 500,000 nodes would have to be looked at,
    `exact` is false, and at least so many fit.
    """
    return COUNT_ROUTE.ask(
        store, CountRequest(types=_listed(types), tags=_listed(tags), attributes=_mapped(attributes), valid_at=valid_at)
    )


def delete_nodes(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    ids: Iterable[str] | None = None,
    types: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    valid_at: str | None = None,
    dry_run: bool = False,
    limit: int = 1000,
) -> ClientRequest[DeleteNodesAnswer]:
    """Delete the nodes that match a filter.

    Deletes the nodes that all filters let pass, with their edges: the first of them by id, at most `limit`.

    One of `ids`, `types`, `tags` and `attributes` must be there and not empty. What goes in one request goes in one
    commit, with 100,000 edges at most unless a single node has more; `more` tells whether any are left. With a memory
    go its former versions, which are not counted. With `dry_run` nothing is deleted, and the answer is what it would
    be. `valid_at` left out deletes what is true now.

    Raises InvalidInput without a filter, NotFound for the store.
    """
    return DELETE_NODES_ROUTE.ask(
        store,
        DeleteNodesRequest(
            ids=_listed(ids),
            types=_listed(types),
            tags=_listed(tags),
            attributes=_mapped(attributes),
            valid_at=valid_at,
            dry_run=dry_run,
            limit=limit,
        ),
        idempotent=False,
    )


def describe_schema(store: str) -> ClientRequest[SchemaDescription]:
    """Describe the types and tags of a store.

    Types with examples, prefixes of tags with values, and tags: 100 of each, the most frequent first.

    All counts are kept with every write, so that this takes the same however large the store is.
    """
    return DESCRIBE_SCHEMA_ROUTE.ask(store)


def list_tags(store: str, prefix: str = "", *, limit: int = 100) -> ClientRequest[TagList]:
    """List the most frequent tags.

    Tags that start with `prefix`, with the number of nodes that have each: the most frequent first, then by name.
    """
    return LIST_TAGS_ROUTE.ask(store, TagsQuery(prefix=prefix, limit=limit))


def outgoing(
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[EdgeList]:
    """List the edges that start at a node, in order.

    By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return OUTGOING_ROUTE.ask(
        store,
        EdgesRequest(
            node_id=node_id, kinds=list(kinds), limit=limit, offset=offset, as_of=_text(as_of), valid_at=valid_at
        ),
    )


def incoming(  # noqa: PLR0913 - the fields of the request
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
    follow_symlinks: bool = False,
) -> ClientRequest[EdgeList]:
    """List the edges that end at a node, in order.

    By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    With `follow_symlinks` those of all stores that the caller sees. Raises NotFound, and Gone for a moment that is no
    longer known, and InvalidInput for one together with `follow_symlinks`.
    """
    return INCOMING_ROUTE.ask(
        store,
        IncomingRequest(
            node_id=node_id,
            kinds=list(kinds),
            limit=limit,
            offset=offset,
            as_of=_text(as_of),
            valid_at=valid_at,
            follow_symlinks=follow_symlinks,
        ),
    )


def put_subgraph(
    store: str,
    nodes: Iterable[Mapping[str, Any] | NodeSpec] = (),
    edges: Iterable[Mapping[str, Any] | EdgeSpec] = (),
    *,
    graph_id: str | None = None,
) -> ClientRequest[PutSubgraphAnswer]:
    """Write nodes and edges, each independently.

    Nodes in order, then edges, whose ends are a `ref` of this call or an id: one result for each, in order.

    What is wrong with one keeps only that one out, and the edges that name it. At most 50 nodes and 100 edges.

    Raises InvalidInput, before anything is written, for too many items or none at all. It is never repeated.
    """
    return PUT_SUBGRAPH_ROUTE.ask(
        store, {"nodes": list(nodes), "edges": list(edges), "graph_id": graph_id}, idempotent=False
    )


def retire(
    store: str, node_id: str, *, valid_to: str | None = None, created_by: str | None = None
) -> ClientRequest[RetireAnswer]:
    """Set the time until which a node was true.

    Sets `valid_to`, now if no time is sent; nothing is deleted, and reads with `valid_at` go by it.

    One that has ended already keeps its end, unless another is sent. Its edges are not there where it is not.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    return RETIRE_ROUTE.ask(store, RetireNode(node_id=node_id, valid_to=valid_to, created_by=created_by))


def retire_edge(
    store: str,
    source: str,
    target: str,
    relation_type: str,
    *,
    to_graph: str | None = None,
    valid_to: str | None = None,
    created_by: str | None = None,
) -> ClientRequest[RetireAnswer]:
    """Set the time until which an edge was true.

    Sets `valid_to`, now if no time is sent. One that has ended already keeps its end, unless another is sent.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    return RETIRE_EDGE_ROUTE.ask(
        store,
        RetireEdgeRequest(
            source=source,
            target=target,
            relation_type=relation_type,
            to_graph=to_graph,
            valid_to=valid_to,
            created_by=created_by,
        ),
    )


def merge(  # noqa: PLR0913 - the fields of the request
    store: str,
    node_id: str,
    into: str,
    *,
    attributes: Literal["fill", "overwrite", "keep"] = "fill",
    content: Literal["fill", "overwrite", "append", "keep"] = "fill",
    based_on_version: int | None = None,
    into_version: int | None = None,
    created_by: str | None = None,
) -> ClientRequest[MergeAnswer]:
    """Merge a node into another one that means the same.

    Merges the node into another one, which takes over its edges, its tags, and what else it lacks.

    The node stays as one that is true at no moment, with one edge of the type `MERGED_INTO` to the other. Who asks for
    it is answered with the other. The same again changes nothing; `unmerge` takes it back. All of it is one commit.

    Raises NotFound, Conflict for nodes that were merged elsewhere or are not at the versions named, and TooLarge.
    """
    return MERGE_ROUTE.ask(
        store,
        MergeNode(
            node_id=node_id,
            into=into,
            attributes=attributes,
            content=content,
            based_on_version=based_on_version,
            into_version=into_version,
            created_by=created_by,
        ),
    )


def unmerge(store: str, node_id: str, *, created_by: str | None = None) -> ClientRequest[UnmergeAnswer]:
    """Undo the merge of a node.

    Takes the merge of a node back: it is what it was before, with the edges that it had.

    The other one loses what it had by the merge, but for what was written since, which stays with it: `edges_kept` and
    `kept` say what. What both had been given is for a person to sort out. It is read from the history, so where that
    does not reach back to the merge, it is refused. A node that is not merged stays as it is. All of it is one commit.

    Raises NotFound, Conflict where no history is kept, where the node came merged, by an import, or where the other one
    was merged in its turn, and Gone for a merge that the history no longer knows.
    """
    return UNMERGE_ROUTE.ask(store, UnmergeNode(node_id=node_id, created_by=created_by))


def edge(store: str, edge_id: str) -> ClientRequest[EdgeAnswer]:
    """Get one edge by id.

    The id is `source~relation_type~target`, each percent-encoded, and the whole once more for the path.

    That of an edge into another store has `~store` behind it.

    Raises InvalidInput for what is no id, and NotFound.
    """
    return EDGE_ROUTE.ask(store, EdgeId(edge_id=edge_id))


def delete_edge_by_id(store: str, edge_id: str) -> ClientRequest[DeleteEdgeAnswer]:
    """Delete one edge by id.

    Deletes one edge by its id. Deleting an edge that does not exist is not an error.
    """
    return DELETE_EDGE_BY_ID_ROUTE.ask(store, EdgeId(edge_id=edge_id))


def history(store: str, node_id: str, *, limit: int = 50, before: int | None = None) -> ClientRequest[NodeHistory]:
    """List the past and present states of a node.

    Newest first, each with the commits and times between which it held, and with what it changed.

    `also_by` are others who have put what a version says already.

    A node that was deleted has a history, too. Raises NotFound for one that never was.
    """
    return HISTORY_ROUTE.ask(store, HistoryRequest(node_id=node_id, limit=limit, before=before))


def revert(store: str, node_id: str, version: int) -> ClientRequest[InjectAnswer]:
    """Restore a node to an earlier version.

    Writes the type, content and attributes of that version as a new state; a node that was deleted comes back.

    Its edges stay as they are. Raises NotFound.
    """
    return REVERT_ROUTE.ask(store, RevertNode(node_id=node_id, version=version))


def changes(store: str, *, since: int = 0, limit: int = 50) -> ClientRequest[ChangesPage]:
    """List the writes after a sequence.

    Oldest first, with the rows as each write left them; of one that changed over 1,000 rows only their number.

    Raises Gone when the journal no longer has them.
    """
    return CHANGES_ROUTE.ask(store, ChangesQuery(since=since, limit=limit))


def restore(store: str, as_of: int | str, into: str) -> ClientRequest[RestoreAnswer]:
    """Create a store from an earlier state of another store.

    Makes a store that must not be there yet, with versions, times, open conflicts and the settings of now.

    The store itself stays as it is.

    Raises Conflict when it exists, Gone when that is no longer known.
    """
    return RESTORE_ROUTE.ask(store, RestoreRequest(as_of=as_of, into=into), idempotent=False, wait=None)


def prune_history(store: str, before: int | str | None = None) -> ClientRequest[PruneAnswer]:
    """Delete former states permanently.

    Forgets the states that had ended by `before`; without it, those that the store's settings let go of.

    What holds at present always stays, and so do what held at `before`, and versions that a node names in its
    `conflicts`: earlier moments are 410 from then on. The journal is not concerned: `changes` reach as far back as it
    does.

    Raises Conflict when no history is kept, and for an age once the clock was set forward since the server started.
    """
    return PRUNE_HISTORY_ROUTE.ask(store, PruneRequest(before=_text(before)), wait=None)


def backup(
    store: str, to: str = "", *, full: bool = False, keep: int | None = None
) -> ClientRequest[StoreBackupAnswer]:
    """Back up one store.

    Copies into a folder below the server's `backup_dir` what has come since the last backup there, or everything.

    Writes go on meanwhile. Every commit from `first` to `sequence`, and every moment from `since` to `taken_at`, can be
    restored. A backup that is interrupted leaves the former one as it was. In a library it is any folder.

    Raises NotFound, Forbidden for a folder that lies elsewhere, Conflict while another backup is made there.
    """
    return BACKUP_ROUTE.ask(store, StoreBackupRequest(to=to, full=full, keep=keep), wait=None)


def backup_stores(
    to: str = "", *, stores: Iterable[str] | None = None, full: bool = False, keep: int | None = None
) -> ClientRequest[BackupAnswer]:
    """Back up several stores, or all.

    As the backup of one store, for several, or for all that the caller sees, one after the other.

    What could not be backed up is listed as `failed` with the reason; its former backup is as it was.
    """
    return BACKUP_STORES_ROUTE.ask(None, BackupRequest(to=to, stores=_listed(stores), full=full, keep=keep), wait=None)


def restore_backup(
    source: str = "", *, store: str | None = None, into: str | None = None, until: int | str | None = None
) -> ClientRequest[RestoreBackupAnswer]:
    """Create stores from a backup.

    Makes stores that must not be there yet out of a backup below the server's `backup_dir`; in a library, anywhere.

    Rows, versions, times, sequence, settings and history are as they were at `until`. Listeners of all stores get
    `store_created`. Nothing is left of a store whose restore fails; those made before it stay.

    Raises NotFound, and Conflict for a store that exists, and for a backup that is damaged.
    """
    return RESTORE_BACKUP_ROUTE.ask(
        None,
        RestoreBackupRequest(source=source, store=store, into=into, until=_text(until)),
        idempotent=False,
        wait=None,
    )


def reindex(store: str) -> ClientRequest[ReindexAnswer]:
    """Rebuild the indexes of a store.

    Makes both indexes anew, vectors with the present model. Searches go on, with what is there so far.

    `stats` shows how far it is. Raises Unavailable where indexes are turned off.
    """
    return REINDEX_ROUTE.ask(store)


def search(  # noqa: PLR0913 - the fields of the request
    store: str,
    query: str,
    *,
    mode: SearchMode = "hybrid",
    limit: int = 20,
    offset: int = 0,
    types: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    id_prefix: str = "",
    min_similarity: float | None = None,
    alpha: float = 0.4,
    fusion: Fusion = "weighted",
    start_id: str | None = None,
    depth: int = 2,
    at_least: int | None = None,
    explain: bool = False,
    neighbours: bool = True,
    syntax: bool = False,
    tags: Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    fresh_only: bool = False,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[Hits]:
    """Find nodes by words, meaning and relations.

    Answers with the best nodes, best first. `hybrid` (the default) joins words, meaning and relations.

    `at_least` makes sure that the indexes have seen a write: give the `sequence` that it answered with. With `as_of`
    hits, rows and relations are those of then; only how rare each word is, is counted over past and present texts.

    Raises Unavailable while an index is being opened, does not come to `at_least` in time or is begun anew meanwhile,
    and Conflict when the store's vectors are of another model.
    """
    return SEARCH_ROUTE.ask(
        store,
        SearchRequest(
            query=query,
            mode=mode,
            limit=limit,
            offset=offset,
            types=_listed(types),
            kinds=_listed(kinds),
            id_prefix=id_prefix,
            min_similarity=min_similarity,
            alpha=alpha,
            fusion=fusion,
            start_id=start_id,
            depth=depth,
            at_least=at_least,
            explain=explain,
            neighbours=neighbours,
            syntax=syntax,
            tags=_listed(tags),
            attributes=_mapped(attributes),
            fresh_only=fresh_only,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def context(  # noqa: PLR0913 - the fields of the request
    store: str,
    query: str,
    *,
    budget: int = 2000,
    format: Literal["markdown", "json"] = "markdown",
    limit: int = 50,
    types: Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    also: Iterable[str] | None = None,
    follow_symlinks: bool = False,
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[ContextAnswer]:
    """Get text about a question within a token budget.

    Answers with the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text is never over the budget. With `also` the nodes of several stores come best first, each with its store.
    With `follow_symlinks` come those that edges into and out of other stores relate them to.

    Raises what a search raises.
    """
    return CONTEXT_ROUTE.ask(
        store,
        ContextRequest(
            query=query,
            budget=budget,
            format=format,
            limit=limit,
            types=_listed(types),
            attributes=_mapped(attributes),
            also=_listed(also),
            follow_symlinks=follow_symlinks,
            at_least=at_least,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def store_memory(  # noqa: PLR0913 - the fields of the request
    store: str,
    content: str,
    *,
    memory_type: str | None = None,
    tags: Iterable[str] = (),
    confidence: float = 1.0,
    source: str | None = None,
    context: str | None = None,
    metadata: Mapping[str, Any] = {},
    entity_names: Iterable[str] = (),
    entities: Iterable[Mapping[str, Any] | AssociatedEntity] = (),
    memory_id: str | None = None,
    importance: float = 0.5,
    layer: int | None = None,
    parent_id: str | None = None,
    valid_from: str | None = None,
    valid_to: str | None = None,
    expires_in: str | None = None,
    created_at: str | None = None,
    dedup: Literal["off", "exact", "guarded", "similarity"] | None = None,
    dedup_threshold: float | None = None,
) -> ClientRequest[StoredMemory]:
    """Store a memory.

    Stores a memory, or meets one that says the same; makes the store if it does not exist.

    What is merged is a matter of `dedup`: `exact` the same text but for case and blanks; `guarded`, as is usual, also
    the same words in another form; `similarity` whatever is nearer than `dedup_threshold`; `off` nothing. A memory that
    is met counts as used. What is near and was not merged is told, with what it differs in.

    Raises InvalidInput, TooLarge, StorageFull and Unavailable, NotFound for a `parent_id` that is not there, and
    Conflict for a name that several entities have, and for a place in the hierarchy that cannot be.
    """
    return STORE_MEMORY_ROUTE.ask(
        store,
        {
            "content": content,
            "memory_type": memory_type,
            "tags": list(tags),
            "confidence": confidence,
            "source": source,
            "context": context,
            "metadata": _mapped(metadata),
            "entity_names": list(entity_names),
            "entities": list(entities),
            "id": memory_id,
            "importance": importance,
            "layer": layer,
            "parent_id": parent_id,
            "valid_from": valid_from,
            "valid_to": valid_to,
            "expires_in": expires_in,
            "created_at": created_at,
            "dedup": dedup,
            "dedup_threshold": dedup_threshold,
        },
        idempotent=False,
    )


def store_memories(
    store: str, memories: Iterable[Mapping[str, Any] | StoreMemoryRequest] = ()
) -> ClientRequest[StoredMemories]:
    """Store memories in one commit.

    Stores up to 1,000 memories in one commit, each as if it came after those before it.

    Raises what storing one does; `errors` name the place of each fault, and nothing is stored then.
    """
    return STORE_MEMORIES_ROUTE.ask(store, {"memories": list(memories)}, idempotent=False)


def memories(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    types: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    min_confidence: float | None = None,
    after_date: str | None = None,
    before_date: str | None = None,
    entity: str | None = None,
    source: str | None = None,
    layer: int | None = None,
    under: str | None = None,
    metadata: str | None = None,
    orphans: bool = False,
    ended: Literal["superseded", "merged", "forgotten", "pruned", "any"] | None = None,
    sort: Literal["created", "updated", "confidence", "accessed"] = "created",
    limit: int = 20,
    offset: int = 0,
    cursor: str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[MemoryPage]:
    """List memories page by page.

    Lists the memories that all filters let pass, newest or most first; those that were withdrawn only by `ended`.

    A page that has looked at 20,000 memories ends there: it may be short, or empty, with a `next_cursor`. Raises
    InvalidInput, NotFound for an entity, or a memory `under`, that there is not, and Conflict for a name that several
    entities have.
    """
    return MEMORIES_ROUTE.ask(
        store,
        MemoriesQuery(
            types=_listed(types),
            tags=_listed(tags),
            min_confidence=min_confidence,
            after_date=after_date,
            before_date=before_date,
            entity=entity,
            source=source,
            layer=layer,
            under=under,
            metadata=metadata,
            orphans=orphans,
            ended=ended,
            sort=sort,
            limit=limit,
            offset=offset,
            cursor=cursor,
            valid_at=valid_at,
        ),
    )


def memory(store: str, memory_id: str, *, touch: bool = True) -> ClientRequest[Memory]:
    """Get one memory.

    Answers with a memory as it was found; then it counts as used, unless `touch` is false or the key only reads.

    One that was absorbed is answered with the one that has taken it in. A former version can be read, and
    does not count as used. Raises NotFound, also for one that was withdrawn: a list with `ended` shows those.
    """
    return MEMORY_ROUTE.ask(store, MemoryRequest(memory_id=memory_id, touch=touch))


def whole_memory(store: str, memory_id: str, *, touch: bool = True) -> ClientRequest[WholeMemory]:
    """Get a memory or version with everything that belongs to it.

    Answers with a memory as `memory` does, with its parent, number of children, relationships, and what it was.

    The id of a version, as a history lists it, is answered with that version, which `belongs_to` the memory. A memory
    counts as used, a version does not, unless `touch` is false or the key only reads. Raises NotFound.
    """
    return WHOLE_MEMORY_ROUTE.ask(store, WholeMemoryRequest(memory_id=memory_id, touch=touch))


def update_memory(  # noqa: PLR0913 - the fields of the request
    store: str,
    memory_id: str,
    *,
    content: str | None = None,
    memory_type: str | None = None,
    tags: Iterable[str] | None = None,
    confidence: float | None = None,
    source: str | None = None,
    context: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    entity_names: Iterable[str] | None = None,
    importance: float | None = None,
    layer: int | None = None,
    parent_id: str | None = None,
    valid_from: str | None = None,
    valid_to: str | None = None,
    based_on_version: int | None = None,
) -> ClientRequest[UpdatedMemory]:
    """Change a memory.

    Changes what is given of a memory and keeps the rest, as its next version; it does not count as used.

    Another `parent_id` takes the place of the one before. Raises InvalidInput, NotFound, and Conflict when it was
    changed since `based_on_version`, or where it would stand below itself, or not in the order of layers.
    """
    return UPDATE_MEMORY_ROUTE.ask(
        store,
        UpdateMemoryRequest(
            memory_id=memory_id,
            content=content,
            memory_type=memory_type,
            tags=_listed(tags),
            confidence=confidence,
            source=source,
            context=context,
            metadata=_mapped(metadata),
            entity_names=_listed(entity_names),
            importance=importance,
            layer=layer,
            parent_id=parent_id,
            valid_from=valid_from,
            valid_to=valid_to,
            based_on_version=based_on_version,
        ),
        idempotent=False,
    )


def delete_memory(store: str, memory_id: str) -> ClientRequest[MemoryDeleted]:
    """Delete one memory.

    Deletes a memory with its former versions; whom and what it was about stays.

    Deleting one that does not exist is not an error.

    Raises Conflict for a node that is no memory.
    """
    return DELETE_MEMORY_ROUTE.ask(store, MemoryId(memory_id=memory_id))


def delete_memories(
    store: str,
    *,
    memory_ids: Iterable[str] | None = None,
    before_date: str | None = None,
    min_confidence_below: float | None = None,
    memory_types: Iterable[str] | None = None,
    dry_run: bool = False,
) -> ClientRequest[MemoriesDeleted]:
    """Delete the memories that match a filter.

    Deletes the memories that all filters let pass, at most 10,000 in one commit; at least one filter is needed.

    Their former versions go with them; whom and what they were about stays. With `dry_run` nothing is deleted.

    Raises InvalidInput.
    """
    return DELETE_MEMORIES_ROUTE.ask(
        store,
        DeleteMemoriesRequest(
            memory_ids=_listed(memory_ids),
            before_date=before_date,
            min_confidence_below=min_confidence_below,
            memory_types=_listed(memory_types),
            dry_run=dry_run,
        ),
        idempotent=False,
    )


def recall(  # noqa: PLR0913 - the fields of the request
    store: str,
    query: str,
    *,
    types: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    min_confidence: float | None = None,
    after_date: str | None = None,
    before_date: str | None = None,
    entity: str | None = None,
    source: str | None = None,
    layer: int | None = None,
    under: str | None = None,
    mode: SearchMode = "hybrid",
    limit: int | None = None,
    offset: int = 0,
    min_similarity: float | None = None,
    alpha: float | None = None,
    depth: int = 2,
    touch: bool = True,
    at_least: int | None = None,
    explain: bool = False,
    valid_at: str | None = None,
    expand: bool = False,
    past: Literal["hide", "show"] = "hide",
    budget: int | None = None,
    also: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    as_of: int | str | None = None,
) -> ClientRequest[RecallAnswer]:
    """Find memories by words, meaning and entities.

    Answers with the best memories, best first, that pass all filters; then they count as used.

    They do not with `touch` false, a key that only reads, or `as_of`: then each is worth what its row says, faded until
    that moment, and 3,200 hits are looked through at most for those that had not faded. `hybrid`, the default, adds up
    words and meaning and multiplies with what is left of the confidence; `graph` goes from `entity`, or from whom and
    what the query names, or from what the five best hits are about, to what is related. `withheld` counts those of the
    best matches that have faded or are not true.

    A turn of a conversation (`next` relations) gains from better ones one or two turns away, in hybrid mode. With
    `expand` it also has a part of their words, and what stands beside the ten best takes a part of their scores, never
    above them, if it passes the filters as well; and of those that say the same the best is shown, with the number
    `said`. With `also` the memories of several stores come best first, each with its `store`, and count as used there.

    The memories about an `entity` that was deleted are found by its id or name as long as the store's history knows it;
    `deleted_entity` then says when it was deleted.

    Raises what a search raises, NotFound for an `entity` that never was there, and Conflict for a name that several
    have.
    """
    return RECALL_ROUTE.ask(
        store,
        RecallRequest(
            query=query,
            types=_listed(types),
            tags=_listed(tags),
            min_confidence=min_confidence,
            after_date=after_date,
            before_date=before_date,
            entity=entity,
            source=source,
            layer=layer,
            under=under,
            mode=mode,
            limit=limit,
            offset=offset,
            min_similarity=min_similarity,
            alpha=alpha,
            depth=depth,
            touch=touch,
            at_least=at_least,
            explain=explain,
            valid_at=valid_at,
            expand=expand,
            past=past,
            budget=budget,
            also=_listed(also),
            metadata=_mapped(metadata),
            as_of=as_of,
        ),
    )


def retain(  # noqa: PLR0913 - the fields of the request
    store: str,
    content: str | Iterable[Mapping[str, Any] | Message],
    *,
    entity_id: str | None = None,
    supersedes: str | None = None,
    update: Literal["auto", "correct", "never"] = "auto",
    memory_type: str | None = None,
    layer: int | None = None,
    parent: str | None = None,
    tags: Iterable[str] | None = None,
    entities: Iterable[Mapping[str, Any] | AssociatedEntity] = (),
    relations: Iterable[Mapping[str, Any] | RelationInput] = (),
    confidence: float | None = None,
    importance: float | None = None,
    source: str | None = None,
    first: int = 0,
    context: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    valid_from: str | None = None,
    valid_to: str | None = None,
    expires_in: str | None = None,
    created_at: str | None = None,
    dedup: Literal["off", "exact", "guarded", "similarity"] | None = None,
    extract: bool | None = None,
) -> ClientRequest[RetainAnswer]:
    """Remember a text, or the turns of a conversation.

    Remembers a text, or the turns of a conversation; makes the store if it does not exist.

    A text that is known is not kept twice. With `entity_id` or `supersedes` it is the present state of that memory:
    what the memory said before is kept as a former version, true until then, which reads of then find (`valid_at`). A
    fact of an earlier time becomes a former version itself, and what is true now stays. `update`: `correct` overwrites
    what was wrong and keeps no version. It is linked to the entities that it names.

    Of messages each is an episode, joined to the next; sent again with the same `source`, only new ones are added.

    Raises InvalidInput, TooLarge, NotFound for what is to be superseded, Conflict, StorageFull and Unavailable.
    """
    return RETAIN_ROUTE.ask(
        store,
        {
            "content": content if isinstance(content, str) else list(content),
            "entity_id": entity_id,
            "supersedes": supersedes,
            "update": update,
            "memory_type": memory_type,
            "layer": layer,
            "parent": parent,
            "tags": _listed(tags),
            "entities": list(entities),
            "relations": list(relations),
            "confidence": confidence,
            "importance": importance,
            "source": source,
            "first": first,
            "context": context,
            "metadata": _mapped(metadata),
            "valid_from": valid_from,
            "valid_to": valid_to,
            "expires_in": expires_in,
            "created_at": created_at,
            "dedup": dedup,
            "extract": extract,
        },
        idempotent=False,
    )


def retain_batch(store: str, items: Iterable[Mapping[str, Any] | RetainRequest] = ()) -> ClientRequest[RetainedBatch]:
    """Remember texts and conversations in one commit.

    Remembers up to 1,000 texts or conversations in one commit, each as if it came after those before it.

    Several may be about one memory (`entity_id`), in any order of time: each takes its place among its versions. What
    names no memory is compared by meaning where there are at most 100.

    Raises what retaining one does; `errors` or the message name the place of each fault, and nothing is kept then.
    """
    return RETAIN_BATCH_ROUTE.ask(store, {"items": list(items)}, idempotent=False)


def forget(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    entity_id: str | None = None,
    ids: Iterable[str] | None = None,
    query: str | None = None,
    reason: str = "",
    hard: bool = False,
    erase: bool = False,
    undo: bool = False,
    dry_run: bool = False,
) -> ClientRequest[ForgetAnswer]:
    """Withdraw memories, or bring them back.

    Withdraws memories with their former versions and relations: no read of any time of the world finds them.

    `undo` brings them back as they were; `hard` deletes them instead. What is not there, or was forgotten before, is
    not an error: then nothing is removed. For an `entity_id` that nothing has, `matches` are the memories that were
    about an entity of that id or name until it was deleted, and those that name it. A `query` never forgets anything:
    it lists `matches`, whose ids say what is meant. What was known before stays in past states of the store (`as_of`),
    if a history is kept.

    `erase` leaves nothing of them in any file of the store: with their former versions and what they have absorbed they
    are gone from the past as well. It is for the role admin, goes on after a crash, and is answered when it is done,
    with what `remains` elsewhere.

    Raises InvalidInput, Forbidden, and Conflict for a node that is no memory.
    """
    return FORGET_ROUTE.ask(
        store,
        ForgetRequest(
            entity_id=entity_id,
            ids=_listed(ids),
            query=query,
            reason=reason,
            hard=hard,
            erase=erase,
            undo=undo,
            dry_run=dry_run,
        ),
        idempotent=False,
        wait=None,
    )


def consolidate(
    store: str,
    *,
    similarity_threshold: float | None = None,
    dry_run: bool = False,
    guard: bool | None = None,
    types: Iterable[str] | None = None,
    apply: int | None = None,
) -> ClientRequest[ConsolidationReport]:
    """Merge memories that say the same.

    Makes one of memories that say the same, where each two of them are more similar than the threshold.

    Only memories of the same type and layer, and never episodes. The one of the highest effective confidence stays, and
    takes over what the others say, their tags, metadata and relations; the others are withdrawn. `guard` keeps apart
    what differs in numbers, negation, names or opposites, and tells it as `kept_apart`. `dry_run` tells what would
    be done, `apply` does exactly that, or is refused if one of the memories has changed since. An undo takes it back.

    Raises Conflict for a plan that is outdated or unknown, and Unavailable while vectors of
    memories are yet to be made: nothing is merged then. Where no embedding model answers only the wording counts, and
    `near_checked` is false.
    """
    return CONSOLIDATE_ROUTE.ask(
        store,
        ConsolidateRequest(
            similarity_threshold=similarity_threshold,
            dry_run=dry_run,
            guard=guard,
            types=_listed(types),
            apply=None if apply is None else ApplyPlan(plan=apply),
        ),
        wait=None,
    )


def consolidations(store: str, *, limit: int = 20) -> ClientRequest[ConsolidationRuns]:
    """List the runs of consolidation.

    The runs of consolidation, the newest first: those that somebody asked for, and those of the store itself.
    """
    return CONSOLIDATIONS_ROUTE.ask(store, ConsolidationsQuery(limit=limit))


def undo_consolidation(store: str, run_id: str, *, force: bool = False) -> ClientRequest[ConsolidationUndone]:
    """Undo a run of consolidation.

    Takes a run back: what it absorbed is there again, with its relations, and those that stayed are what they were.

    No history is needed. A run that was broken off can be taken back as well, and so can the rest of one that was
    partly taken back. What somebody has written since is refused, or with `force` stays.

    Raises NotFound, and Conflict, which names the memories that were changed since.
    """
    return UNDO_CONSOLIDATION_ROUTE.ask(store, UndoConsolidationRequest(run_id=run_id, force=force), wait=None)


def prune_memories(store: str, *, dry_run: bool = False) -> ClientRequest[PruneReport]:
    """Withdraw the memories that have faded.

    Withdraws the memories that have faded below the store's threshold, or deletes them, as its settings say.

    Never those that are pinned (importance 1), domains and concepts, those that have children, and those written or
    accessed within a day. The store does it by itself now and then, too, unless that is off. Raises Conflict once the
    clock was set forward since the server started.
    """
    return PRUNE_MEMORIES_ROUTE.ask(store, PruneMemoriesRequest(dry_run=dry_run), wait=None)


def reflect(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    query: str | None = None,
    under: str | None = None,
    limit: int = 1000,
    threshold: float = 0.6,
    cluster_threshold: float = 0.7,
    dry_run: bool = False,
    run: str | None = None,
    accept: Iterable[int] = (),
    refuse: Iterable[int] = (),
    names: Mapping[str, Any] | None = None,
    undo: bool = False,
    answer: bool = False,
) -> ClientRequest[Reflection]:
    """Put memories below the concepts they belong to, or propose it.

    Puts memories that stand below nothing below the concepts that they belong to, and proposes what is uncertain.

    Memories that say the same are made one first. What stands below a concept already, and which entities it is about,
    counts beside the concept's own text. What is left and near each other is proposed as a new concept; what is near
    and says something else as a contradiction; what has faded is listed. `accept` carries proposals out, `refuse` has
    them not be made again, `undo` takes a run back with all that was accepted of it. `dry_run` writes nothing.

    With `answer` the `query` is a question, which a language model, where one is set, answers from memories.

    Raises InvalidInput for a number that there is not, NotFound for a run or a memory `under` that there is not, and
    Conflict for a proposal that was decided already or that no longer holds.
    """
    return REFLECT_ROUTE.ask(
        store,
        ReflectRequest(
            query=query,
            under=under,
            limit=limit,
            threshold=threshold,
            cluster_threshold=cluster_threshold,
            dry_run=dry_run,
            run=run,
            accept=list(accept),
            refuse=list(refuse),
            names=_mapped(names),
            undo=undo,
            answer=answer,
        ),
        wait=None,
    )


def extract_memories(store: str, *, ids: Iterable[str] | None = None) -> ClientRequest[ExtractAnswer]:
    """Extract facts from memories with a language model.

    Has memories wait for the language model: those that were set aside, or with `ids` these.

    The model is asked afterwards, one text after the other; `stats` shows how far it is. A text that was taken apart
    already is not taken apart again. Raises InvalidInput where no language model is set, NotFound and Unavailable.
    """
    return EXTRACT_MEMORIES_ROUTE.ask(store, ExtractRequest(ids=_listed(ids)))


def create_entity(
    store: str,
    name: str,
    entity_type: str,
    description: str | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    aliases: Iterable[str] | None = None,
) -> ClientRequest[CreatedEntity]:
    """Create an entity, or return the existing one.

    Makes an entity, or meets the one of that name and type; makes the store if it does not exist.

    Names are the same whatever their case, blanks and forms of letters. One whose type nobody had said gets the type.
    Raises InvalidInput, TooLarge, StorageFull and Unavailable.
    """
    return CREATE_ENTITY_ROUTE.ask(
        store,
        EntityInput(
            name=name,
            entity_type=entity_type,
            description=description,
            metadata=_mapped(metadata),
            aliases=_listed(aliases),
        ),
    )


def create_entities(
    store: str, entities: Iterable[Mapping[str, Any] | EntityInput] = ()
) -> ClientRequest[EntitiesCreated]:
    """Create entities in one commit.

    Creates entities in one commit; those of a name and type that are there are met, in any spelling.

    An entity of the name whose type nobody knows yet is given the type. Description, metadata and aliases that are
    sent replace those that are there. Makes the store if it does not exist. Raises InvalidInput and TooLarge.
    """
    return CREATE_ENTITIES_ROUTE.ask(store, {"entities": list(entities)})


def entities(
    store: str, *, type: Iterable[str] = (), name: str = "", limit: int = 100, cursor: str | None = None
) -> ClientRequest[EntityPage]:
    """List entities by name, page by page.

    Lists the entities that have a name, by name in any case and then by id. Raises InvalidInput for a cursor.
    """
    return ENTITIES_ROUTE.ask(store, EntitiesQuery(type=list(type), name=name, limit=limit, cursor=cursor))


def entity(store: str, entity_id: str) -> ClientRequest[EntityAnswer]:
    """Get one entity with its relations.

    Answers with an entity, by its id or its name, with its relations and how many memories are about it.

    Raises NotFound, and Conflict for a name that several entities have.
    """
    return ENTITY_ROUTE.ask(store, EntityId(entity_id=entity_id))


def update_entity(
    store: str,
    entity_id: str,
    *,
    name: str | None = None,
    entity_type: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    aliases: Iterable[str] | None = None,
) -> ClientRequest[UpdatedEntity]:
    """Change an entity.

    Changes what is given of an entity, and keeps the rest; its id stays when it is renamed.

    Raises InvalidInput, NotFound, and Conflict where another entity has the name and the type.
    """
    return UPDATE_ENTITY_ROUTE.ask(
        store,
        UpdateEntityRequest(
            entity_id=entity_id,
            name=name,
            entity_type=entity_type,
            description=description,
            metadata=_mapped(metadata),
            aliases=_listed(aliases),
        ),
    )


def delete_entity(
    store: str, entity_id: str, *, cascade_memories: bool = False, dry_run: bool = False
) -> ClientRequest[EntitiesDeleted]:
    """Delete one entity with its relations.

    Deletes one entity, by its id or its name, and its relations; see `delete_entities`.
    """
    return DELETE_ENTITY_ROUTE.ask(
        store, DeleteEntityRequest(entity_id=entity_id, cascade_memories=cascade_memories, dry_run=dry_run)
    )


def delete_entities(
    store: str, entity_names: Iterable[str], *, cascade_memories: bool = False, dry_run: bool = False
) -> ClientRequest[EntitiesDeleted]:
    """Delete entities by name.

    Deletes entities and their relations in one commit. Memories about them stay, unless `cascade_memories` is set.

    A name that nothing has is not an error. With `dry_run` nothing is deleted. Raises Conflict for a name that several
    entities have.
    """
    return DELETE_ENTITIES_ROUTE.ask(
        store,
        DeleteEntitiesRequest(entity_names=list(entity_names), cascade_memories=cascade_memories, dry_run=dry_run),
    )


def entity_graph(  # noqa: PLR0913 - the fields of the request
    store: str,
    entity_id: str,
    *,
    depth: int = 1,
    min_strength: float = 0.0,
    include_memories: bool = True,
    max_nodes: int = 100,
    max_memories: int = 10,
    touch: bool = True,
) -> ClientRequest[EntityGraph]:
    """List what an entity is related to, with memories.

    Walks from one entity over relations, in both directions, to those that it reaches.

    Answers with them, with the relations between them, and with the surest memories about each; these count as used,
    unless `touch` is false or the key only reads. Raises NotFound, and Conflict for a name that several entities have.
    """
    return ENTITY_GRAPH_ROUTE.ask(
        store,
        EntityGraphRequest(
            entity_id=entity_id,
            depth=depth,
            min_strength=min_strength,
            include_memories=include_memories,
            max_nodes=max_nodes,
            max_memories=max_memories,
            touch=touch,
        ),
    )


def merge_entities(  # noqa: PLR0913 - the fields of the request
    store: str,
    node_id: str,
    into: str,
    *,
    attributes: Literal["fill", "overwrite", "keep"] = "fill",
    content: Literal["fill", "overwrite", "append", "keep"] = "fill",
    based_on_version: int | None = None,
    into_version: int | None = None,
    created_by: str | None = None,
) -> ClientRequest[MergeAnswer]:
    """Merge an entity into another one that means the same.

    Merges an entity into another one that is the same, each by its id or its name: what is about either is about it.

    Both names mean the one that stays. Undone as the merge of any two nodes. Raises what a merge does, and Conflict for
    a name that several entities have.
    """
    return MERGE_ENTITIES_ROUTE.ask(
        store,
        MergeNode(
            node_id=node_id,
            into=into,
            attributes=attributes,
            content=content,
            based_on_version=based_on_version,
            into_version=into_version,
            created_by=created_by,
        ),
    )


def entity_memories(
    store: str, entity_id: str, *, limit: int = 20, offset: int = 0, cursor: str | None = None
) -> ClientRequest[MemoryPage]:
    """List the memories about an entity, page by page.

    Lists the memories about an entity, by its id or its name, newest first. Raises what `list_memories` does.
    """
    return ENTITY_MEMORIES_ROUTE.ask(
        store, EntityMemoriesRequest(entity_id=entity_id, limit=limit, offset=offset, cursor=cursor)
    )


def relations(
    store: str,
    *,
    source: str | None = None,
    target: str | None = None,
    type: Iterable[str] = (),
    min_strength: float = 0.0,
    limit: int = 100,
    cursor: str | None = None,
) -> ClientRequest[RelationPage]:
    """List relations between entities, page by page.

    Lists the relations between named entities and memories that are true now, by their ends and their types.

    A page that has looked at 20,000 relations ends there: it may be short, or empty, with a `next_cursor`. Raises
    InvalidInput for a cursor, NotFound for an entity that there is not, and Conflict for a name that several have.
    """
    return RELATIONS_ROUTE.ask(
        store,
        RelationsQuery(
            source=source, target=target, type=list(type), min_strength=min_strength, limit=limit, cursor=cursor
        ),
    )


def relate(  # noqa: PLR0913 - the fields of the request
    store: str,
    source: str,
    target: str,
    relation_type: str,
    *,
    strength: float | None = None,
    confidence: float | None = None,
    context: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ClientRequest[CreatedRelation]:
    """Relate two entities by name.

    Relates two entities by name, or memories by id; entities that are not there are made, as `unknown`.

    Stating a relation again updates it. Raises InvalidInput, Conflict for a name that several entities have, TooLarge,
    StorageFull and Unavailable.
    """
    return RELATE_ROUTE.ask(
        store,
        RelationInput(
            source=source,
            target=target,
            relation_type=relation_type,
            strength=strength,
            confidence=confidence,
            context=context,
            metadata=_mapped(metadata),
        ),
    )


def create_relations(
    store: str, relations: Iterable[Mapping[str, Any] | RelationInput] = ()
) -> ClientRequest[RelationsCreated]:
    """Relate entities by name in one commit.

    Creates relations between entities by name, in one commit; an end that is not there is made, of type `unknown`.

    A name that no entity has and that is the id of a memory means that memory.
    Stating a relation again sets what is sent of strength, confidence and context, and makes its confidence fresh.
    Makes the store if it does not exist. Raises InvalidInput, and Conflict for a name that several entities have.
    """
    return CREATE_RELATIONS_ROUTE.ask(store, {"relations": list(relations)})


def delete_relation(store: str, relation_id: str) -> ClientRequest[RelationsDeleted]:
    """Delete one relation by id.

    Deletes one relation by its id. Deleting one that is not there is not an error.
    """
    return DELETE_RELATION_ROUTE.ask(store, RelationId(relation_id=relation_id))


def delete_relations(
    store: str, relations: Iterable[Mapping[str, Any] | RelationKey] = ()
) -> ClientRequest[RelationsDeleted]:
    """Delete relations by the names of their ends.

    Deletes relations by the names of their ends, in one commit. One that is not there is not an error.
    """
    return DELETE_RELATIONS_ROUTE.ask(store, {"relations": list(relations)})


def memory_stats(store: str) -> ClientRequest[MemoryStats]:
    """Summarize the memories of a store.

    Counts memories, entities and relations, and says what the memories are worth now, on average.

    Counted are memories that were not withdrawn, whenever they are true. Raises NotFound.
    """
    return MEMORY_STATS_ROUTE.ask(store)


def memory_growth(
    store: str, *, by: Literal["day", "week", "month"] = "day", limit: int = 100
) -> ClientRequest[Growth]:
    """Count new memories by day, week or month.

    Counts memories by the day, week or month in which they were created, the latest periods. Raises NotFound.
    """
    return MEMORY_GROWTH_ROUTE.ask(store, GrowthQuery(by=by, limit=limit))


def memory_types(store: str, *, limit: int = 100) -> ClientRequest[MemoryTypes]:
    """Count memories by type.

    Counts memories by type, the most frequent first. Raises NotFound.
    """
    return MEMORY_TYPES_ROUTE.ask(store, CountsQuery(limit=limit))


def memory_tags(store: str, *, limit: int = 100) -> ClientRequest[MemoryTags]:
    """Count memories by tag.

    Counts memories by tag, the most frequent first. Raises NotFound.
    """
    return MEMORY_TAGS_ROUTE.ask(store, CountsQuery(limit=limit))


def memory_confidence(store: str, *, buckets: int = 10) -> ClientRequest[ConfidenceHistogram]:
    """Count memories by remaining confidence.

    Counts memories by what is left of their confidence, in equal parts of 0 to 1. Raises NotFound.
    """
    return MEMORY_CONFIDENCE_ROUTE.ask(store, ConfidenceQuery(buckets=buckets))


def _listed(given: Iterable[Any] | None) -> list[Any] | None:
    return None if given is None else list(given)


def _mapped(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if given is None else dict(given)


def _text(moment: object) -> str | None:
    return None if moment is None else str(moment)
