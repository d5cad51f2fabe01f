"""Merging two nodes that describe the same entity in one commit, and reverting a merge.

A merge is planned from the current rows while holding the write lock, so no other write intervenes. Reverting a merge
restores the node's edges from the history and keeps what was written since. The history is read before the write lock
is taken, because that may block; past states do not change. Under the lock they are compared with the current rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from kgserve.errors import Conflict, Gone, NotFound, TooLarge, Unavailable
from kgserve.graph import row_to_api_conversion
from kgserve.graph.as_of_resolution import (
    NO_EDGE_LIMIT,
    find_merge_redirect_at_commit,
    get_caught_up_history,
    list_nodes_as_of_commit,
)
from kgserve.graph.merge_policy import (
    MergeSurvivorReversalWrite,
    MergeSurvivorWrite,
    build_merge_survivor_reversal_write,
    build_merge_survivor_write,
)
from kgserve.graph.mutations import estimate_batch_bytes
from kgserve.graph.node_merge_models import (
    MAX_MOVED_EDGES,
    MAX_REPORTED_FIELDS,
    MergeNodeIntoAnotherRequest,
    NodeMergeAnswer,
    UnmergeAnswer,
    UnmergeNodeRequest,
    UnrestoredEdge,
)
from kgserve.graph.request_validation import ValidationErrorCollector, check_author, validate_identifier_length
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.versioned_writes import get_written_node_row
from kgserve.platform.codecs import decode_json
from kgserve.projections.cross_store_links.cross_store_link_index import CrossStoreLinkReader
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.model.merge_redirects import (
    MAX_REDIRECTS,
    MERGED_INTO_RELATION,
    follow_merge_redirect_chain,
    move_edge_key_to_survivor,
    move_link_key_to_survivor,
)
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.soft_delete import REASON_MERGED
from kgserve.storage.model.write_batch import (
    CrossStoreLinkUpsert,
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    copy_cross_store_link_row_as_upsert,
    copy_edge_row_as_upsert,
)
from kgserve.storage.rows.memory_hierarchy_and_redirects import (
    find_merge_redirect_chains,
    find_nodes_merged_directly_into,
    resolve_merge_redirect,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore


def merge_nodes(graph: StoreHandle, request: MergeNodeIntoAnotherRequest) -> Future[NodeMergeAnswer]:
    """Merge the node into another one, which takes over its edges and tags, and fields that it lacks.

    The merged node is kept with an empty validity and one edge of type `MERGED_INTO` to the survivor. Reads of its id
    return the survivor. Repeating the request changes nothing; `unmerge` reverts it. A merge is one commit.

    Raises NotFound, Conflict for nodes merged elsewhere or not at the given versions, and TooLarge.
    """
    _check(request)
    found: list[_MergePlan] = []

    def batch(leased: OpenStore) -> WriteBatch:
        with leased.reading_links() as (rows, links):
            found.append(_plan_merge(rows, links, request, graph.name))
        return found[0].batch

    def answer(report: WriteReport) -> NodeMergeAnswer:
        return _merge_answer(request.node_id, found[0], report)

    return graph.write(lambda store: store.submit_prepared(lambda: batch(store)), answer)


def _check(request: MergeNodeIntoAnotherRequest) -> None:
    faults = ValidationErrorCollector()
    validate_identifier_length(request.node_id, "id", faults)
    validate_identifier_length(request.into, "into", faults)
    check_author(request.created_by, faults)
    if request.node_id == request.into:
        faults("into", "is the node itself; choose another node")
    faults.raise_any()


class _MergePlan(msgspec.Struct, frozen=True):
    """The batch that a merge writes, and the counts for its answer."""

    batch: WriteBatch
    into: str
    taken: MergeSurvivorWrite
    moved: int
    dropped: int
    loops: int


def _merge_answer(node_id: str, merge_: _MergePlan, report: WriteReport) -> NodeMergeAnswer:
    return NodeMergeAnswer(
        id=node_id,
        into=merge_.into,
        changed=report.nodes_updated + report.edges_created + report.edges_deleted > 0,
        node=row_to_api_conversion.build_api_node_from_row(get_written_node_row(report)),
        edges_moved=merge_.moved,
        edges_dropped=merge_.dropped,
        loops_dropped=merge_.loops,
        taken_over=merge_.taken.taken[:MAX_REPORTED_FIELDS],
        not_taken=merge_.taken.left[:MAX_REPORTED_FIELDS],
        sequence=report.sequence,
    )


def _plan_merge(
    rows: RowsSnapshot, links: CrossStoreLinkReader | None, wanted: MergeNodeIntoAnotherRequest, store: str
) -> _MergePlan:
    absorbed, into, again = _require_nodes(rows, wanted, store)
    author = wanted.created_by or ""
    taken = (
        MergeSurvivorWrite(NodeUpsert(0, into.id), [], [])
        if again
        else build_merge_survivor_write(into, absorbed, wanted)
    )
    edges = list(_edges(rows, absorbed.id))
    moving = [row for row in edges if {row.source, row.target} != {absorbed.id, into.id}]
    keys = [move_edge_key_to_survivor(row.key, absorbed.id, into.id) for row in moving]
    present = rows.edges(keys)
    puts = [copy_edge_row_as_upsert(row, key) for row, key in zip(moving, keys, strict=True) if key not in present]
    elsewhere, link_puts = _plan_moved_links(links, absorbed.id, into.id)
    mark = (
        []
        if again
        else [EdgeUpsert(0, (absorbed.id, into.id, MERGED_INTO_RELATION), extras=EdgeExtrasUpsert(created_by=author))]
    )
    batch = WriteBatch(
        nodes=[taken.put] if again else [taken.put, _withdrawing_put(absorbed.id, author)],
        edges=[*puts, *mark],
        links=link_puts,
        delete_edges=[row.key for row in edges],
        delete_links=[row.key for row in elsewhere],
        touch=False,
        return_rows=True,
        cost=estimate_batch_bytes([taken.put], [*puts, *(put.edge for put in link_puts)])
        + sum(sum(map(len, row.key)) for row in edges),
    )
    moved, dropped = len(puts) + len(link_puts), len(present) + len(elsewhere) - len(link_puts)
    return _MergePlan(batch, into.id, taken, moved, dropped, len(edges) - len(moving))


def _plan_moved_links(
    links: CrossStoreLinkReader | None, node_id: str, into: str
) -> tuple[list[CrossStoreLinkRow], list[CrossStoreLinkUpsert]]:
    """Return the links of a node, and those that another node takes over. Raises TooLarge above the limit."""
    found = [] if links is None else links.outgoing(node_id, MAX_MOVED_EDGES + 1)
    if len(found) > MAX_MOVED_EDGES:
        raise TooLarge(f"node {node_id!r} has more than {MAX_MOVED_EDGES} links, the limit of one merge")
    keys = [move_link_key_to_survivor(row.key, node_id, into) for row in found]
    present = set() if links is None else {row.key for row in links.of(keys)}
    return found, [
        copy_cross_store_link_row_as_upsert(row, key)
        for row, key in zip(found, keys, strict=True)
        if key not in present
    ]


def _require_nodes(
    rows: RowsSnapshot, wanted: MergeNodeIntoAnotherRequest, store: str
) -> tuple[NodeRow, NodeRow, bool]:
    """Return the node to merge, its survivor, and whether they were already merged. Raises NotFound and Conflict."""
    absorbed = _require(rows.node(wanted.node_id), wanted.node_id, store)
    into = _require(rows.node(resolve_merge_redirect(rows, wanted.into)), wanted.into, store)
    now = resolve_merge_redirect(rows, absorbed.id)
    if now == into.id != absorbed.id:
        return absorbed, into, True
    if now != absorbed.id:
        raise Conflict(f"node {absorbed.id!r} was merged into {now!r} already; merge {now!r}, or unmerge it first")
    if into.id == absorbed.id:
        raise Conflict(f"node {wanted.into!r} was itself merged into {absorbed.id!r}; unmerge {wanted.into!r} first")
    _check_version("based_on_version", wanted.based_on_version, absorbed)
    _check_version("into_version", wanted.into_version, into)
    _check_chain(rows, absorbed.id)
    return absorbed, into, False


def _require(row: NodeRow | None, node_id: str, store: str) -> NodeRow:
    if row is None:
        raise NotFound(f"there is no node {node_id!r} in store {store!r}")
    return row


def _check_version(name: str, seen: int | None, row: NodeRow) -> None:
    if seen is not None and seen != row.version:
        raise Conflict(f"{name}: node {row.id!r} is at version {row.version}, not {seen}; read it again, then merge")


def _check_chain(rows: RowsSnapshot, node_id: str) -> None:
    """Raise Conflict if the chain of merges that leads to a node has the maximum length."""
    level = [node_id]
    for _ in range(MAX_REDIRECTS - 1):
        level = [each for one in level for each in find_nodes_merged_directly_into(rows, one)]
        if not level:
            return
    raise Conflict(
        f"node {node_id!r} is the end of a chain of {MAX_REDIRECTS} merges, the limit; merge the other one into it"
    )


def _edges(rows: RowsSnapshot, node_id: str) -> Iterator[EdgeRow]:
    """Return the edges of a node, each once, without those of merges. Raises TooLarge above the limit."""
    numbers = np.array([rows.number(node_id)])
    out, into = (rows.edges_around(numbers, outgoing=outgoing) for outgoing in (True, False))
    if len(out) + len(into) > MAX_MOVED_EDGES:
        raise TooLarge(
            f"node {node_id!r} has {len(out) + len(into)} edges; at most {MAX_MOVED_EDGES} are moved by one merge"
        )
    incoming = (row for row in rows.rows_of(into) if row.source != node_id)
    return (row for row in chain(rows.rows_of(out), incoming) if row.relation_type != MERGED_INTO_RELATION)


def _withdrawing_put(node_id: str, author: str) -> NodeUpsert:
    now = time.time_ns() // 1000
    return NodeUpsert(0, node_id, extras=NodeExtrasUpsert(created_by=author, valid_from=now, valid_to=now))


def unmerge_node(graph: StoreHandle, request: UnmergeNodeRequest) -> Future[UnmergeAnswer]:
    """Revert the merge of a node: it is restored as it was before, with the edges that it had.

    The survivor loses what it gained by the merge, except what was written since: `edges_kept` and `kept` list that.
    Merge conflicts between fields written on both are left to you. The previous state is read from the history; if that
    does not reach back to the merge, the request is refused. A node that is not merged does not change. It is one
    commit.

    Raises NotFound, Conflict if no history is kept, if the node was imported as merged, if the survivor was itself
    merged, or for a memory that was merged by a consolidation or when it was stored, and Gone for a merge that the
    history no longer holds.
    """
    faults = ValidationErrorCollector()
    validate_identifier_length(request.node_id, "id", faults)
    author = check_author(request.created_by, faults)
    faults.raise_any()
    found: list[_UnmergePlan] = []

    def begin(store: OpenStore) -> Future[WriteReport]:
        with store.reading() as rows:
            seen = _current_merge(rows, request.node_id, graph.name)
        past = None if seen is None else _merge_history(graph, store, seen)

        def batch() -> WriteBatch:
            with store.reading_links() as (rows, links):
                found.append(_plan_unmerge(rows, links, request.node_id, seen, past, author, graph.name))
            return found[0].batch

        return store.submit_prepared(batch)

    return graph.write(begin, lambda report: _unmerge_answer(request.node_id, found[0], report))


class _MergeState(msgspec.Struct, frozen=True):
    """A merge in the current rows: the node, its survivor, and other nodes merged into that, in order of merging."""

    row: NodeRow
    into: str
    others: tuple[NodeRow, ...]


class _MergeHistory(msgspec.Struct, frozen=True):
    """The changes made by a merge. ``before`` and ``after`` are states of the survivor, if it was changed.

    ``edges`` are those of the node. ``heirs`` are edges of other merged nodes, by the key that an edge of the node was
    moved to. ``links`` and ``link_heirs`` are the same for links.
    """

    row: NodeRow
    edges: list[EdgeRow]
    before: NodeRow | None
    after: NodeRow | None
    heirs: dict[EdgeKey, EdgeRow]
    links: list[CrossStoreLinkRow]
    link_heirs: dict[CrossStoreLinkKey, CrossStoreLinkRow]


class _UnmergePlan(msgspec.Struct, frozen=True):
    """The batch that reverts a merge, and the counts for its answer."""

    batch: WriteBatch
    out_of: str | None = None
    back: MergeSurvivorReversalWrite | None = None
    restored: int = 0
    removed: int = 0
    kept: int = 0


def _unmerge_answer(node_id: str, unmerge_: _UnmergePlan, report: WriteReport) -> UnmergeAnswer:
    lost = [
        UnrestoredEdge(source=each.key[0], target=each.key[1], relation_type=each.key[2], reason=each.reason)
        for each in report.skipped[:MAX_REPORTED_FIELDS]
        if each.key is not None
    ]
    back = unmerge_.back
    return UnmergeAnswer(
        id=node_id,
        out_of=unmerge_.out_of,
        changed=unmerge_.out_of is not None,
        node=row_to_api_conversion.build_api_node_from_row(get_written_node_row(report)),
        edges_restored=unmerge_.restored - report.skipped_count,
        edges_removed=unmerge_.removed,
        edges_kept=unmerge_.kept,
        not_restored=lost,
        not_restored_count=report.skipped_count,
        given_back=[] if back is None else back.gone[:MAX_REPORTED_FIELDS],
        kept=[] if back is None else back.kept[:MAX_REPORTED_FIELDS],
        sequence=report.sequence,
    )


def _current_merge(rows: RowsSnapshot, node_id: str, store: str) -> _MergeState | None:
    """Return the merge of a node, or None. Raises NotFound, and Conflict if another merge has to be reverted first."""
    row = rows.node(node_id)
    if row is None:
        raise NotFound(f"there is no node {node_id!r} in store {store!r}")
    steps = find_merge_redirect_chains(rows, (node_id,))
    into = steps.get(node_id)
    if into is None:
        return None
    if (row.extras or NO_EXTRAS).ended == REASON_MERGED:
        raise Conflict(_format_memory_merge_error(rows, node_id, into))
    if into in steps:
        raise Conflict(
            f"node {into!r}, which {node_id!r} was merged into, was merged into {steps[into]!r} since; "
            f"unmerge {into!r} first"
        )
    others = rows.nodes([each for each in find_nodes_merged_directly_into(rows, into) if each != node_id]).values()
    return _MergeState(row, into, tuple(sorted(others, key=lambda other: other.sequence)))


def _format_memory_merge_error(rows: RowsSnapshot, node_id: str, into: str) -> str:
    """Return how to undo the merge of a memory, which only its consolidation run can restore with all relations."""
    edge = rows.edge((node_id, into, MERGED_INTO_RELATION))
    own = EMPTY_ATTRIBUTES_JSON if edge is None else split_edge_times_from_attributes(edge.attributes).own
    run = decode_json(own, dict[str, Any]).get("run")
    if run is None:
        return f"memory {node_id!r} was merged into {into!r} when it was stored; store its text again with dedup=off"
    return (
        f"memory {node_id!r} was merged into {into!r} by the consolidation {run!r}; undo that run: "
        f"POST /api/memories/consolidations/{run}/undo"
    )


def _merge_history(graph: StoreHandle, store: OpenStore, seen: _MergeState) -> _MergeHistory:
    """Return what the history holds about a merge. Raises Conflict, Gone and Unavailable."""
    node_id, at = seen.row.id, seen.row.sequence
    try:
        follower = get_caught_up_history(graph.graphs.historian, store)
        past = follower.look(lambda history: _read_merge_history(history, seen, at))
    except (Conflict, Gone) as error:
        error.reword(f"the merge of {node_id!r}, at sequence {at}, cannot be reverted: {error}")
        raise
    if past is None:
        raise Conflict(
            f"the merge of {node_id!r} cannot be reverted: an import or a restore wrote it as merged, at sequence "
            f"{at}; delete {node_id!r} before you write it again"
        )
    return past


def _read_merge_history(history: HistoryFile, seen: _MergeState, at: int) -> _MergeHistory | None:
    row = next(list_nodes_as_of_commit(history, (seen.row.id,), at - 1), None)
    if row is None or find_merge_redirect_at_commit(history, row.id, at - 1) is not None:
        return None
    edges = list(_edges_at(history, row.id, at - 1))
    before, after = (next(list_nodes_as_of_commit(history, (seen.into,), moment), None) for moment in (at - 1, at))
    moved = {move_edge_key_to_survivor(edge.key, row.id, seen.into) for edge in edges}
    links = _links_at(history, row.id, at - 1)
    link_heirs = _find_link_heirs(
        history, seen, {move_link_key_to_survivor(each.key, row.id, seen.into) for each in links}
    )
    return _MergeHistory(row, edges, before, after, _find_edge_heirs(history, seen, moved), links, link_heirs)


def _edges_at(history: HistoryFile, node_id: str, at: int) -> Iterator[EdgeRow]:
    """Return the edges of a node as of a commit, each once, without those of merges."""
    out = (state.row for state in history.outgoing(node_id, at, NO_EDGE_LIMIT))
    into = (state.row for state in history.incoming(node_id, at, NO_EDGE_LIMIT))
    edges = chain(out, (row for row in into if row.source != node_id))
    return (row for row in edges if row.relation_type != MERGED_INTO_RELATION)


def _find_edge_heirs(history: HistoryFile, seen: _MergeState, moved: set[EdgeKey]) -> dict[EdgeKey, EdgeRow]:
    """Return edges of other merged nodes that a moved edge also represents; the first merged node wins."""
    heirs: dict[EdgeKey, EdgeRow] = {}
    for other in seen.others:
        # Edges that the history no longer holds cannot be inherited.
        with suppress(Gone):
            for edge in _edges_at(history, other.id, other.sequence - 1):
                key = move_edge_key_to_survivor(edge.key, other.id, seen.into)
                if key in moved:
                    heirs.setdefault(key, edge)
    return heirs


def _links_at(history: HistoryFile, node_id: str, at: int) -> list[CrossStoreLinkRow]:
    return [state.row for state in history.links_from(node_id, at, NO_EDGE_LIMIT)]


def _find_link_heirs(
    history: HistoryFile, seen: _MergeState, moved: set[CrossStoreLinkKey]
) -> dict[CrossStoreLinkKey, CrossStoreLinkRow]:
    """Return the same as `_find_edge_heirs` for links."""
    heirs: dict[CrossStoreLinkKey, CrossStoreLinkRow] = {}
    for other in seen.others if moved else ():
        with suppress(Gone):
            for link in _links_at(history, other.id, other.sequence - 1):
                key = move_link_key_to_survivor(link.key, other.id, seen.into)
                if key in moved:
                    heirs.setdefault(key, link)
    return heirs


class _LinkPlan(msgspec.Struct, frozen=True):
    """Links to restore, keys of those to delete, and the number of links kept and inherited."""

    puts: list[CrossStoreLinkUpsert] = []
    going: list[CrossStoreLinkKey] = []
    kept: int = 0
    inherited: int = 0


def _plan_links(links: CrossStoreLinkReader | None, past: _MergeHistory, seen: _MergeState) -> _LinkPlan:
    if links is None or not past.links:
        return _LinkPlan([copy_cross_store_link_row_as_upsert(row, row.key) for row in past.links])
    moved = {move_link_key_to_survivor(row.key, seen.row.id, seen.into): row for row in past.links}
    there = {row.key: row for row in links.of(moved)}
    at = seen.row.sequence
    going = [key for key, row in there.items() if row.edge.sequence >= at and _is_same_edge(row.edge, moved[key].edge)]
    heirs = [
        copy_cross_store_link_row_as_upsert(heir, key)
        for key in going
        if (heir := past.link_heirs.get(key)) is not None
    ]
    puts = [*(copy_cross_store_link_row_as_upsert(row, row.key) for row in past.links), *heirs]
    return _LinkPlan(puts, going, len(there) - len(going), len(heirs))


def _plan_unmerge(
    rows: RowsSnapshot,
    links: CrossStoreLinkReader | None,
    node_id: str,
    seen: _MergeState | None,
    past: _MergeHistory | None,
    author: str,
    store: str,
) -> _UnmergePlan:
    if _current_merge(rows, node_id, store) != seen:
        raise Unavailable(f"the merge of {node_id!r} was changed by another request; try again")
    if seen is None or past is None:
        return _UnmergePlan(WriteBatch(nodes=[NodeUpsert(0, node_id)], return_rows=True))
    moved = _moved_edges(rows, past.edges, node_id, seen.into)
    there = rows.edges([*moved])
    going = [key for key, row in there.items() if row.sequence >= seen.row.sequence and _is_same_edge(row, moved[key])]
    heirs = _inherited_edges(going, moved, past, seen)
    puts = [*(copy_edge_row_as_upsert(edge, edge.key) for edge in past.edges), *heirs]
    elsewhere = _plan_links(links, past, seen)
    back = _reverted_fields(rows, seen, past, author)
    nodes = [_restoring_put(past.row, author), *([] if back is None else [back.put])]
    batch = WriteBatch(
        nodes=nodes,
        edges=puts,
        links=elsewhere.puts,
        delete_edges=[(node_id, seen.into, MERGED_INTO_RELATION), *going],
        delete_links=elsewhere.going,
        touch=False,
        return_rows=True,
        cost=estimate_batch_bytes(nodes, [*puts, *(put.edge for put in elsewhere.puts)])
        + sum(sum(map(len, key)) for key in going),
    )
    restored = len(past.edges) + len(past.links)
    removed = len(going) - len(heirs) + len(elsewhere.going) - elsewhere.inherited
    return _UnmergePlan(batch, seen.into, back, restored, removed, len(there) - len(going) + elsewhere.kept)


def _moved_edges(rows: RowsSnapshot, edges: list[EdgeRow], node_id: str, into: str) -> dict[EdgeKey, EdgeRow]:
    """Return the edges by the keys they were moved to, without those between the two nodes."""
    moving = [row for row in edges if {row.source, row.target} != {node_id, into}]
    steps = find_merge_redirect_chains(rows, {end for row in moving for end in (row.source, row.target)} - {node_id})
    keys = (move_edge_key_to_survivor(row.key, node_id, into) for row in moving)
    ends = (
        (follow_merge_redirect_chain(steps, source), follow_merge_redirect_chain(steps, target), kind)
        for source, target, kind in keys
    )
    return dict(zip(ends, moving, strict=True))


def _is_same_edge(row: EdgeRow, edge: EdgeRow) -> bool:
    """Return whether two edges have the same values and validity."""
    return (row.weight, row.attributes, row.extras) == (edge.weight, edge.attributes, edge.extras)


def _inherited_edges(
    going: list[EdgeKey], moved: dict[EdgeKey, EdgeRow], past: _MergeHistory, seen: _MergeState
) -> list[EdgeUpsert]:
    """Return edges of other merged nodes that replace edges to be deleted."""
    places = ((key, move_edge_key_to_survivor(moved[key].key, seen.row.id, seen.into)) for key in going)
    return [copy_edge_row_as_upsert(heir, key) for key, place in places if (heir := past.heirs.get(place)) is not None]


def _reverted_fields(
    rows: RowsSnapshot, seen: _MergeState, past: _MergeHistory, author: str
) -> MergeSurvivorReversalWrite | None:
    """Return what the survivor gives back; None if it took nothing over."""
    row = rows.node(seen.into)
    if row is None or past.before is None or past.after is None or past.after.sequence != seen.row.sequence:
        return None
    return build_merge_survivor_reversal_write(past.before, past.after, row, seen.others, author)


def _restoring_put(row: NodeRow, author: str) -> NodeUpsert:
    """Return a put that restores the validity of a merged node; a merge changes no other field of it."""
    extras = row.extras or NO_EXTRAS
    return NodeUpsert(
        0,
        row.id,
        extras=NodeExtrasUpsert(
            created_by=author or extras.created_by, valid_from=extras.valid_from, valid_to=extras.valid_to
        ),
    )
