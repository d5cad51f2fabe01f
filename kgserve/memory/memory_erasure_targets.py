"""Rows and former states to erase with memories: what the rows, the history or the journal know of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kgserve.errors import Conflict, Unavailable
from kgserve.graph.store_handle import StoreHandle
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile
from kgserve.projections.history_follower import HistoryProjection
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.journal.snapshot import list_journal_snapshots, parse_snapshot_sequence
from kgserve.storage.model.entity_names import list_entity_names_and_aliases
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.memory_predecessors import CommittedMemoryPredecessorSource, find_memory_predecessors
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.purge_record import PurgedCommitRange, PurgeTargets

FORGET_HISTORY_TIMEOUT_SECONDS = 10.0
_MAX_EXAMINED_STATES = 100_000


class MemoryErasureTargets:
    """Nodes to erase for the ids of some memories."""

    def __init__(self, graph: StoreHandle, store: OpenStore, ids: Sequence[str]) -> None:
        self._graph = graph
        self._store = store
        self._requested = ids
        self._journaled_ids: set[str] | None = None
        self.ids: list[str] = []
        self.relations = 0

    def preview(self) -> PurgedCommitRange:
        """Return the result that an erasure would have."""
        with self._store.reading() as rows:
            targets = self.find(rows)
            return PurgedCommitRange(targets.first, rows.at)

    def find(self, rows: RowsSnapshot) -> PurgeTargets:
        """Return the nodes to erase, in the rows and in history or journal only. Raises Conflict."""
        named = dict.fromkeys(resolve_merge_redirect(rows, each) for each in self._requested)
        present = _require_memories(rows, named)
        present |= find_memory_predecessors(CommittedMemoryPredecessorSource(rows), present)
        history = get_followed_history(self._graph, self._store)
        ids = [*dict.fromkeys((*named, *present))]
        known = {} if history is None else history.look(lambda file: find_memory_remnants(file, ids))
        present |= find_detached_predecessors(self._store, rows, {*ids, *known})
        journaled = [each for each in named if not (each in known or each in present) and each in self._in_journal]
        former = [*(each for each in known if not rows.has(each)), *journaled]
        self.ids = [*present, *former]
        self.relations = len(
            {edge.key for node_id in present for edge in (*rows.outgoing(node_id), *rows.incoming(node_id))}
        )
        created = (row.sequence if row.version == 1 else 0 for each, row in present.items() if each not in known)
        first = 0 if journaled else min((*known.values(), *created), default=0)
        return PurgeTargets([*present.values()], former, first)

    @property
    def _in_journal(self) -> set[str]:
        """Requested ids found in journal or snapshots, which are searched only if nothing else knows an id."""
        if self._journaled_ids is None:
            self._journaled_ids = _find_in_journal(self._store, {*self._requested})
        return self._journaled_ids


def get_followed_history(graph: StoreHandle, store: OpenStore) -> HistoryProjection | None:
    """Return the history once it has applied all commits; None if the store keeps none. Raises Unavailable.

    After a memory is deleted, only the history knows its versions.
    """
    historian = graph.graphs.historian
    follower = None if historian is None else historian.state_of_store(store)
    if follower is None or follower.is_disabled:
        return None
    if not follower.wait(store.state.sequence, FORGET_HISTORY_TIMEOUT_SECONDS) and not follower.is_disabled:
        raise Unavailable("the history has not applied all commits yet; try again in a moment", retry_after=2)
    return None if follower.is_disabled else follower


def _require_memories(rows: RowsSnapshot, ids: Iterable[str]) -> dict[str, NodeRow]:
    found = {node_id: row for node_id in ids if (row := rows.node(node_id)) is not None}
    for row in found.values():
        if not row.is_memory:
            raise Conflict(f"node {row.id!r} is not a memory; delete it as a node, then use prune-history for its past")
    return found


def find_memory_remnants(history: HistoryFile, ids: Iterable[str]) -> dict[str, int]:
    """Return the nodes that ever held texts of memories, with their first commit: themselves and their predecessors.

    Merges that were undone do not count.
    """
    found: dict[str, int] = {}
    versions: dict[str, set[str]] = {}
    waiting = [*ids]
    while waiting:
        node_id = waiting.pop()
        states = [] if node_id in found else history.node_states_through(node_id, NO_SEQUENCE_LIMIT)
        if any(state.row.is_memory for state in states):
            found[node_id] = min(state.first for state in states)
            merged = history.sources_of(node_id, MERGED_INTO_RELATION)
            waiting += [each for each in merged if _is_merge_in_force(history, each, node_id)]
            versions |= {
                each: _owners(history, each)
                for each in history.sources_of(node_id, VERSION_OF_RELATION)
                if each not in versions
            }
        if not waiting:
            # A merge moves the relations of versions, so their memory may be found after them.
            waiting = [each for each, owners in versions.items() if each not in found and owners & found.keys()]
    return found


def _owners(history: HistoryFile, node_id: str) -> set[str]:
    states = history.node_states_through(node_id, NO_SEQUENCE_LIMIT)
    return {(state.row.extras or NO_EXTRAS).belongs_to for state in states if state.row.is_memory}


def _is_merge_in_force(history: HistoryFile, source: str, target: str) -> bool:
    """Return whether a merge was never undone: its relation is current, or ended when one of its nodes was deleted."""
    numbers = [number for number, end in history.edge_state_numbers(source, _MAX_EXAMINED_STATES) if end == target]
    states = [
        (first, last)
        for _, (_, _, kind), first, last in history.edge_lifetimes(numbers)
        if kind == MERGED_INTO_RELATION
    ]
    last = max(states)[1] if states else None
    return last is None or any(is_node_deleted_at_commit(history, each, last) for each in (source, target))


def is_node_deleted_at_commit(history: HistoryFile, node_id: str, sequence: int) -> bool:
    """Return whether a commit deleted a node, in contrast to an update."""
    states = history.node_lifetimes(node_id, _MAX_EXAMINED_STATES)
    return any(last == sequence for _, last in states) and all(first != sequence for first, _ in states)


def find_entities_merged_in_history(history: HistoryFile, node_id: str) -> dict[str, NodeRow]:
    """Return a node and those that it was merged with, in either direction, in the last state that had a name.

    Merges that were undone do not count.
    """
    found: dict[str, NodeRow] = {}
    waiting = [node_id]
    while waiting:
        at = waiting.pop()
        rows = [] if at in found else [state.row for state in history.node_states(at, NO_SEQUENCE_LIMIT, 3)]
        if not rows or rows[0].is_memory:
            continue
        found[at] = next((row for row in rows if list_entity_names_and_aliases(row)), rows[0])
        waiting += [
            each for each in history.sources_of(at, MERGED_INTO_RELATION) if _is_merge_in_force(history, each, at)
        ]
        numbers = [number for number, _ in history.edge_state_numbers(at, _MAX_EXAMINED_STATES)]
        into = {key[1] for _, key, _, _ in history.edge_lifetimes(numbers) if key[2] == MERGED_INTO_RELATION}
        waiting += [each for each in into if _is_merge_in_force(history, at, each)]
    return found


def find_detached_predecessors(store: OpenStore, rows: RowsSnapshot, ids: Collection[str]) -> dict[str, NodeRow]:
    """Return the present nodes that hold former texts of memories, also after these were deleted without them.

    ids: the memories, and the nodes that the history knows as their predecessors.
    """
    indexed = store.memories.ask(
        lambda memories, _: [each.id for node_id in ids for each in memories.versions(node_id, _MAX_EXAMINED_STATES)]
    )
    found = {row.id: row for row in rows.nodes({*ids, *indexed}).values() if _is_detached(rows, row, ids)}
    return found | find_memory_predecessors(CommittedMemoryPredecessorSource(rows), found)


def _is_detached(rows: RowsSnapshot, row: NodeRow, ids: Collection[str]) -> bool:
    if not row.is_memory:
        return False
    is_hidden = is_node_never_valid(row.extras) and resolve_merge_redirect(rows, row.id) in {row.id, *ids}
    return is_hidden or (row.extras or NO_EXTRAS).belongs_to in ids


def _find_in_journal(store: OpenStore, ids: set[str]) -> set[str]:
    """Return the ids whose rows are in the journal, or in a snapshot older than their deletion."""
    found, others = set[str](), set[str]()
    oldest = min(map(parse_snapshot_sequence, list_journal_snapshots(store.layout.journal)), default=NO_SEQUENCE_LIMIT)
    for change in JournalReader(store.layout.journal).read(store.journal.oldest, store.journal.last):
        rows = [row for row in (*change.nodes_created, *change.nodes_updated) if row.id in ids]
        others.update(row.id for row in rows if not row.is_memory)
        found.update(row.id for row in rows)
        if oldest < change.sequence:
            found |= ids.intersection(change.nodes_deleted)
    return found - others
