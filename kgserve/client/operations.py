"""Each use case, once: a function makes its request and knows what it is answered with.

Written by `make docs` from `kgserve.operations.table`: a change here is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from kgserve.client.answers import Hits, Traversal
from kgserve.client.wire import Call, Route
from kgserve.model.answers import (
    ChangesPage,
    ContextAnswer,
    CountAnswer,
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
)
from kgserve.model.merging import MergeAnswer, MergeNode, UnmergeAnswer, UnmergeNode
from kgserve.model.queries import (
    ChangesQuery,
    DropQuery,
    EdgeId,
    EdgesRequest,
    HistoryRequest,
    NodeId,
    NodeRequest,
    RetireNode,
    RevertNode,
    TagsQuery,
)
from kgserve.model.requests import (
    ContextRequest,
    CountRequest,
    DeleteNodesRequest,
    Direction,
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
from kgserve.model.stores import (
    BackupAnswer,
    BackupRequest,
    DropAnswer,
    PruneAnswer,
    PruneRequest,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    StoreBackupAnswer,
    StoreBackupRequest,
    StoreList,
    StoreSettingsAnswer,
    StoreStats,
)
from kgserve.model.versioned import (
    EdgeAnswer,
    EdgeList,
    EdgeSpec,
    NodeSpec,
    PutSubgraphAnswer,
    RetireAnswer,
    RetireEdgeRequest,
)

HEALTH = Route("health", "GET", "/health", Health)
READY = Route("ready", "GET", "/ready", Ready)
INJECT = Route("inject", "POST", "/api/memory/{store}/inject", InjectAnswer, in_body=True)
DELETE_NODE = Route("delete_node", "DELETE", "/api/memory/{store}/nodes/{id}", DeleteNodeAnswer)
DELETE_EDGE = Route("delete_edge", "DELETE", "/api/memory/{store}/edges", DeleteEdgeAnswer, in_body=True)
TRAVERSE = Route("traverse", "POST", "/api/memory/{store}/traverse", Traversal, in_body=True)
STORES = Route("stores", "GET", "/api/memory", StoreList)
SETTINGS = Route("settings", "GET", "/api/memory/{store}", StoreSettingsAnswer)
DROP = Route("drop", "DELETE", "/api/memory/{store}", DropAnswer)
STATS = Route("stats", "GET", "/api/memory/{store}/stats", StoreStats)
NODE = Route("node", "GET", "/api/memory/{store}/nodes/{id}", NodeAnswer)
GET_NODES = Route("get_nodes", "POST", "/api/memory/{store}/get", NodesAnswer, in_body=True)
COUNT = Route("count", "POST", "/api/memory/{store}/count", CountAnswer, in_body=True)
DELETE_NODES = Route("delete_nodes", "POST", "/api/memory/{store}/delete", DeleteNodesAnswer, in_body=True)
DESCRIBE_SCHEMA = Route("describe_schema", "GET", "/api/memory/{store}/schema", SchemaDescription)
LIST_TAGS = Route("list_tags", "GET", "/api/memory/{store}/tags", TagList)
OUTGOING = Route("outgoing", "GET", "/api/memory/{store}/nodes/{id}/outgoing", EdgeList)
INCOMING = Route("incoming", "GET", "/api/memory/{store}/nodes/{id}/incoming", EdgeList)
PUT_SUBGRAPH = Route("put_subgraph", "POST", "/api/memory/{store}/subgraph", PutSubgraphAnswer, in_body=True)
RETIRE = Route("retire", "POST", "/api/memory/{store}/nodes/{id}/retire", RetireAnswer, in_body=True)
RETIRE_EDGE = Route("retire_edge", "POST", "/api/memory/{store}/edges/retire", RetireAnswer, in_body=True)
MERGE = Route("merge", "POST", "/api/memory/{store}/nodes/{id}/merge", MergeAnswer, in_body=True)
UNMERGE = Route("unmerge", "POST", "/api/memory/{store}/nodes/{id}/unmerge", UnmergeAnswer, in_body=True)
EDGE = Route("edge", "GET", "/api/memory/{store}/edges/{id}", EdgeAnswer)
DELETE_EDGE_BY_ID = Route("delete_edge_by_id", "DELETE", "/api/memory/{store}/edges/{id}", DeleteEdgeAnswer)
HISTORY = Route("history", "GET", "/api/memory/{store}/nodes/{id}/history", NodeHistory)
REVERT = Route("revert", "POST", "/api/memory/{store}/nodes/{id}/revert", InjectAnswer, in_body=True)
CHANGES = Route("changes", "GET", "/api/memory/{store}/changes", ChangesPage)
RESTORE = Route("restore", "POST", "/api/memory/{store}/restore", RestoreAnswer, in_body=True)
PRUNE_HISTORY = Route("prune_history", "POST", "/api/memory/{store}/history/prune", PruneAnswer, in_body=True)
BACKUP = Route("backup", "POST", "/api/memory/{store}/backup", StoreBackupAnswer, in_body=True)
BACKUP_STORES = Route("backup_stores", "POST", "/api/backup", BackupAnswer, in_body=True)
RESTORE_BACKUP = Route("restore_backup", "POST", "/api/restore", RestoreBackupAnswer, in_body=True)
REINDEX = Route("reindex", "POST", "/api/memory/{store}/reindex", ReindexAnswer)
SEARCH = Route("search", "POST", "/api/memory/{store}/search", Hits, in_body=True)
CONTEXT = Route("context", "POST", "/api/memory/{store}/context", ContextAnswer, in_body=True)


def health() -> Call[Health]:
    """The process answers.

    Touches neither disk nor stores: it says that the process is alive, and which version it is.
    """
    return HEALTH.ask(None)


def ready() -> Call[Ready]:
    """Stores can be opened and written.

    Answers 503 or 507 with the reason when a write would not be taken now.

    Raises Unavailable or StorageFull.
    """
    return READY.ask(None)


def inject(
    store: str,
    nodes: Iterable[Mapping[str, Any] | NodeInput] = (),
    edges: Iterable[Mapping[str, Any] | EdgeInput] = (),
    *,
    touch: bool = True,
) -> Call[InjectAnswer]:
    """Upsert nodes and edges in one atomic batch.

    Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    one clears it. An edge with a missing endpoint is skipped and listed. Once answered, the whole batch is on disk. Of
    a key that a JSON object holds twice, and of a node or edge that a batch holds twice, the last one counts.

    Raises InvalidInput, whose `errors` name every place, TooLarge, Unavailable and StorageFull; then nothing
    is written.
    """
    return INJECT.ask(store, {"nodes": list(nodes), "edges": list(edges), "touch": touch})


def delete_node(store: str, node_id: str) -> Call[DeleteNodeAnswer]:
    """Delete one node and its edges.

    Deletes the node and every edge that touches it. Deleting a node that does not exist is not an error.
    """
    return DELETE_NODE.ask(store, NodeId(node_id=node_id))


def delete_edge(store: str, source: str, target: str, relation_type: str) -> Call[DeleteEdgeAnswer]:
    """Delete one edge.

    Deletes the edge of this source, target and relation type; other edges between the two nodes stay.

    Deleting an edge that does not exist is not an error.
    """
    return DELETE_EDGE.ask(store, EdgeKeyRequest(source=source, target=target, relation_type=relation_type))


def traverse(  # noqa: PLR0913 - the fields of the request
    store: str,
    start_id: str,
    *,
    depth: int = 1,
    direction: Direction = "outgoing",
    relation_types: Iterable[str] | None = None,
    min_weight: float | None = None,
    max_nodes: int = 10000,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[Traversal]:
    """Walk edges from one node, breadth first.

    Answers with each node in reach once, at its shortest distance, nearest first.

    With them come all edges between the nodes returned. A start that does not exist gives empty arrays. `as_of` is a
    sequence or an RFC 3339 time: the walk is then what it would have been. `valid_at` is an RFC 3339 time: only what
    was true in the world then.

    Raises NotFound for the store, and Gone for a moment that is no longer known.
    """
    return TRAVERSE.ask(
        store,
        TraverseRequest(
            start_id=start_id,
            depth=depth,
            direction=direction,
            relation_types=_listed(relation_types),
            min_weight=min_weight,
            max_nodes=max_nodes,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def stores() -> Call[StoreList]:
    """All stores, with counts and sizes.

    Stores are listed by name. Listing opens none of them.
    """
    return STORES.ask(None)


def settings(store: str) -> Call[StoreSettingsAnswer]:
    """The settings of a store.

    What was chosen for the store, when it was created, and its last sequence. `stats` says what it holds.
    """
    return SETTINGS.ask(store)


def drop(name: str, *, confirm: str) -> Call[DropAnswer]:
    """Delete a store and everything in it.

    Removes the store's graph, journal and files for good.

    The name has to be given twice: in the path and as `confirm`. Raises NotFound.
    """
    return DROP.ask(name, DropQuery(confirm=confirm), idempotent=False)


def stats(store: str) -> Call[StoreStats]:
    """What one store holds and how it is doing.

    Counts by type, sizes on disk, and the state of the store's journal, engine and indexes. Raises NotFound.
    """
    return STATS.ask(store)


def node(
    store: str, node_id: str, *, as_of: int | str | None = None, valid_at: str | None = None, version: int | None = None
) -> Call[NodeAnswer]:
    """One node with its edges.

    The node, and at most 1,000 of its edges in each direction: now, or as it was; a version comes without edges.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return NODE.ask(store, NodeRequest(node_id=node_id, as_of=_text(as_of), valid_at=valid_at, version=version))


def get_nodes(
    store: str, ids: Iterable[str], *, as_of: int | str | None = None, valid_at: str | None = None
) -> Call[NodesAnswer]:
    """Many nodes by their ids.

    The nodes of up to 1,000 ids, without edges: now, or as they were. `missing` names those that are not there.

    Raises Gone for a moment that is no longer known.
    """
    return GET_NODES.ask(store, NodesRequest(ids=list(ids), as_of=as_of, valid_at=valid_at))


def count(
    store: str,
    *,
    types: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    valid_at: str | None = None,
) -> Call[CountAnswer]:
    """How many nodes fit a filter.

    Counts the nodes of any of `types`, with all of `tags` and `attributes`; without any of them all nodes.

    `valid_at` left out counts what is true now, as lists do. Where more than 500,000 nodes would have to be looked at,
    `exact` is false, and at least so many fit.
    """
    return COUNT.ask(
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
) -> Call[DeleteNodesAnswer]:
    """Delete the nodes that fit a filter.

    Deletes the nodes that all filters let pass, with their edges: the first of them by id, at most `limit`.

    One of `ids`, `types`, `tags` and `attributes` must be there and not empty. What goes in one request goes in one
    commit, with 100,000 edges at most unless a single node has more; `more` tells whether any are left. With `dry_run`
    nothing is deleted, and the answer is what it would be. `valid_at` left out deletes what is true now.

    Raises InvalidInput without a filter, NotFound for the store.
    """
    return DELETE_NODES.ask(
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


def describe_schema(store: str) -> Call[SchemaDescription]:
    """The types and tags that a store uses.

    Types with examples, prefixes of tags with values, and tags: 100 of each, the most frequent first.

    All counts are kept with every write, so that this takes the same however large the store is.
    """
    return DESCRIBE_SCHEMA.ask(store)


def list_tags(store: str, prefix: str = "", *, limit: int = 100) -> Call[TagList]:
    """The most frequent tags.

    Tags that start with `prefix`, with the number of nodes that have each: the most frequent first, then by name.
    """
    return LIST_TAGS.ask(store, TagsQuery(prefix=prefix, limit=limit))


def outgoing(
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[EdgeList]:
    """The edges that start at a node, in order.

    By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return OUTGOING.ask(
        store,
        EdgesRequest(
            node_id=node_id, kinds=list(kinds), limit=limit, offset=offset, as_of=_text(as_of), valid_at=valid_at
        ),
    )


def incoming(
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[EdgeList]:
    """The edges that end at a node, in order.

    By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return INCOMING.ask(
        store,
        EdgesRequest(
            node_id=node_id, kinds=list(kinds), limit=limit, offset=offset, as_of=_text(as_of), valid_at=valid_at
        ),
    )


def put_subgraph(
    store: str, nodes: Iterable[Mapping[str, Any] | NodeSpec] = (), edges: Iterable[Mapping[str, Any] | EdgeSpec] = ()
) -> Call[PutSubgraphAnswer]:
    """Write nodes and edges, each by itself.

    Nodes in order, then edges, whose ends are a `ref` of this call or an id: one result for each, in order.

    What is wrong with one keeps only that one out, and the edges that name it. At most 50 nodes and 100 edges.

    Raises InvalidInput, before anything is written, for too many items or none at all. It is never repeated.
    """
    return PUT_SUBGRAPH.ask(store, {"nodes": list(nodes), "edges": list(edges)}, idempotent=False)


def retire(
    store: str, node_id: str, *, valid_to: str | None = None, created_by: str | None = None
) -> Call[RetireAnswer]:
    """Say until when a node was true.

    Sets `valid_to`, now if no time is sent; nothing is deleted, and reads with `valid_at` go by it.

    One that has ended already keeps its end, unless another is sent. Its edges are not there where it is not.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    return RETIRE.ask(store, RetireNode(node_id=node_id, valid_to=valid_to, created_by=created_by))


def retire_edge(
    store: str,
    source: str,
    target: str,
    relation_type: str,
    *,
    valid_to: str | None = None,
    created_by: str | None = None,
) -> Call[RetireAnswer]:
    """Say until when an edge was true.

    Sets `valid_to`, now if no time is sent. One that has ended already keeps its end, unless another is sent.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    return RETIRE_EDGE.ask(
        store,
        RetireEdgeRequest(
            source=source, target=target, relation_type=relation_type, valid_to=valid_to, created_by=created_by
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
) -> Call[MergeAnswer]:
    """Merge a node into another one that is the same.

    Merges the node into another one, which takes over its edges, its tags, and what else it lacks.

    The node stays as one that is true at no moment, with one edge of the type `MERGED_INTO` to the other. Who asks for
    it is answered with the other. The same again changes nothing; `unmerge` takes it back. All of it is one commit.

    Raises NotFound, Conflict for nodes that were merged elsewhere or are not at the versions named, and TooLarge.
    """
    return MERGE.ask(
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


def unmerge(store: str, node_id: str, *, created_by: str | None = None) -> Call[UnmergeAnswer]:
    """Take the merge of a node back.

    Takes the merge of a node back: it is what it was before, with the edges that it had.

    The other one loses what it had by the merge, but for what was written since, which stays with it: `edges_kept` and
    `kept` say what. What both had been given is for a person to sort out. It is read from the history, so where that
    does not reach back to the merge, it is refused. A node that is not merged stays as it is. All of it is one commit.

    Raises NotFound, Conflict where no history is kept, where the node came merged, by an import, or where the other one
    was merged in its turn, and Gone for a merge that the history no longer knows.
    """
    return UNMERGE.ask(store, UnmergeNode(node_id=node_id, created_by=created_by))


def edge(store: str, edge_id: str) -> Call[EdgeAnswer]:
    """One edge by its id.

    The id is `source~relation_type~target`, each percent-encoded, and the whole once more for the path.

    Raises InvalidInput for what is no id, and NotFound.
    """
    return EDGE.ask(store, EdgeId(edge_id=edge_id))


def delete_edge_by_id(store: str, edge_id: str) -> Call[DeleteEdgeAnswer]:
    """Delete one edge by its id.

    Deletes one edge by its id. Deleting an edge that does not exist is not an error.
    """
    return DELETE_EDGE_BY_ID.ask(store, EdgeId(edge_id=edge_id))


def history(store: str, node_id: str, *, limit: int = 50, before: int | None = None) -> Call[NodeHistory]:
    """The states that a node has had.

    Newest first, each with the commits and times between which it held, and with what it changed.

    A node that was deleted has a history, too. Raises NotFound for one that never was.
    """
    return HISTORY.ask(store, HistoryRequest(node_id=node_id, limit=limit, before=before))


def revert(store: str, node_id: str, version: int) -> Call[InjectAnswer]:
    """Write a node as it was in an earlier version.

    Writes the type, content and attributes of that version as a new state; a node that was deleted comes back.

    Its edges stay as they are. Raises NotFound.
    """
    return REVERT.ask(store, RevertNode(node_id=node_id, version=version))


def changes(store: str, *, since: int = 0, limit: int = 50) -> Call[ChangesPage]:
    """The writes after a sequence.

    Oldest first, with the rows as each write left them; of one that changed over 1,000 rows only their number.

    Raises Gone when the journal no longer has them.
    """
    return CHANGES.ask(store, ChangesQuery(since=since, limit=limit))


def restore(store: str, as_of: int | str, into: str) -> Call[RestoreAnswer]:
    """Make a new store of what a store was.

    Makes a store that must not be there yet, with versions and times kept. The store itself stays as it is.

    Raises Conflict when it exists, Gone when that is no longer known.
    """
    return RESTORE.ask(store, RestoreRequest(as_of=as_of, into=into), idempotent=False, wait=None)


def prune_history(store: str, before: int | str | None = None) -> Call[PruneAnswer]:
    """Forget former states for good.

    Forgets the states that had ended by `before`; without it, those that the store's settings let go of.

    What holds at present always stays, and so does what held at `before`: earlier moments are 410 from then on. The
    journal is not concerned: `changes` reach as far back as it does.

    Raises Conflict when no history is kept.
    """
    return PRUNE_HISTORY.ask(store, PruneRequest(before=_text(before)), wait=None)


def backup(store: str, to: str = "", *, full: bool = False, keep: int | None = None) -> Call[StoreBackupAnswer]:
    """Back one store up.

    Copies into a folder below the server's `backup_dir` what has come since the last backup there, or everything.

    Writes go on meanwhile. Every commit from `first` to `sequence`, and every moment from `since` to `taken_at`, can be
    restored. A backup that is interrupted leaves the former one as it was. In a library it is any folder.

    Raises NotFound, Forbidden for a folder that lies elsewhere, Conflict while another backup is made there.
    """
    return BACKUP.ask(store, StoreBackupRequest(to=to, full=full, keep=keep), wait=None)


def backup_stores(
    to: str = "", *, stores: Iterable[str] | None = None, full: bool = False, keep: int | None = None
) -> Call[BackupAnswer]:
    """Back stores up.

    As the backup of one store, for several, or for all that the caller sees, one after the other.

    What could not be backed up is listed as `failed` with the reason; its former backup is as it was.
    """
    return BACKUP_STORES.ask(None, BackupRequest(to=to, stores=_listed(stores), full=full, keep=keep), wait=None)


def restore_backup(
    source: str = "", *, store: str | None = None, into: str | None = None, until: int | str | None = None
) -> Call[RestoreBackupAnswer]:
    """Make stores out of a backup.

    Makes stores that must not be there yet out of a backup below the server's `backup_dir`; in a library, anywhere.

    Rows, versions, times, sequence, settings and history are as they were at `until`. Listeners of all stores get
    `store_created`. Nothing is left of a store whose restore fails; those made before it stay.

    Raises NotFound, and Conflict for a store that exists, and for a backup that is damaged.
    """
    return RESTORE_BACKUP.ask(
        None,
        RestoreBackupRequest(source=source, store=store, into=into, until=_text(until)),
        idempotent=False,
        wait=None,
    )


def reindex(store: str) -> Call[ReindexAnswer]:
    """Make the indexes of a store anew.

    Makes both indexes anew, vectors with the present model. Searches go on, with what is there so far.

    `stats` shows how far it is. Raises Unavailable where indexes are turned off.
    """
    return REINDEX.ask(store)


def search(  # noqa: PLR0913 - the fields of the request
    store: str,
    query: str,
    *,
    mode: SearchMode = "hybrid",
    limit: int = 20,
    offset: int = 0,
    types: Iterable[str] | None = None,
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
) -> Call[Hits]:
    """Find nodes by words, by meaning, and by what they are related to.

    Answers with the best nodes, best first. `hybrid` (the default) joins words, meaning and relations.

    `at_least` makes sure that the indexes have seen a write: give the `sequence` that it answered with. With `as_of`
    hits, rows and relations are those of then; only how rare each word is, is counted over past and present texts.

    Raises Unavailable while an index is being opened or does not come to `at_least` in time, and Conflict when the
    store's vectors are of another model.
    """
    return SEARCH.ask(
        store,
        SearchRequest(
            query=query,
            mode=mode,
            limit=limit,
            offset=offset,
            types=_listed(types),
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
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[ContextAnswer]:
    """Get text about a question that fits a budget of tokens.

    Answers with the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text is never over the budget. Raises what a search raises.
    """
    return CONTEXT.ask(
        store,
        ContextRequest(
            query=query,
            budget=budget,
            format=format,
            limit=limit,
            types=_listed(types),
            attributes=_mapped(attributes),
            at_least=at_least,
            as_of=as_of,
            valid_at=valid_at,
        ),
    )


def _listed(given: Iterable[Any] | None) -> list[Any] | None:
    return None if given is None else list(given)


def _mapped(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if given is None else dict(given)


def _text(moment: object) -> str | None:
    return None if moment is None else str(moment)
