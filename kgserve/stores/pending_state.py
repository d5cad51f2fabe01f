"""State of a store including the uncommitted writes of the current commit group.

Writes that depend on existing rows can therefore share a group, and one sync to disk, with the writes they depend on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.projections.memory_index.projection import MemoryIndexProjection, get_text_hash_and_name_keys
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, normalize_entity_name
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION, is_effective_memory_parent_edge
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, follow_merge_redirect_chain, is_node_never_valid
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import PREDECESSOR_RELATIONS, is_memory_active_at
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_memory_parent_edges, find_merge_redirect_chains
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_PENDING_CHILDREN = 100
"""Maximum number of conflicting children that a change examines."""


class PendingCommitGroupState:
    """Rows of the last commit, overlaid with the writes decided so far in the group. For the writer thread only.

    Index lookups return candidates; callers check the rows. ``now`` is in microseconds. ``sequence`` is the number of
    the commit that the next decision becomes.
    """

    def __init__(self, rows: RowsSnapshot, memories: MemoryIndexProjection, now: int) -> None:
        self.rows = rows
        self.now = now
        self.sequence = 0
        self._memories = memories
        self._nodes: dict[str, NodeRow | None] = {}
        self._edges: dict[EdgeKey, EdgeRow | None] = {}
        self._edges_at: dict[str, dict[EdgeKey, None]] = {}
        self._by_key: dict[bytes | str, list[str]] = {}
        self._merged: dict[str, str] = {}
        self._upward: dict[str, dict[str, EdgeRow | None]] = {}
        self._alike: dict[tuple[bytes, bytes], list[str]] = {}

    def node(self, node_id: str) -> NodeRow | None:
        """Return a node as of the pending state, or None."""
        return self._nodes[node_id] if node_id in self._nodes else self.rows.node(node_id)

    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the given nodes that exist in the pending state."""
        found = self.rows.nodes([node_id for node_id in ids if node_id not in self._nodes])
        return found | {node_id: row for node_id in ids if (row := self._nodes.get(node_id)) is not None}

    def edges(self, keys: Collection[EdgeKey]) -> dict[EdgeKey, EdgeRow]:
        """Return the given edges that exist in the pending state."""
        found = self.rows.edges([key for key in keys if key not in self._edges])
        return found | {key: row for key in keys if (row := self._edges.get(key)) is not None}

    def about(self, memory: str) -> dict[str, float]:
        """Return the entities that a memory is about, with their weights."""
        return {edge.target: edge.weight for edge in self.edges_from(memory) if edge.relation_type == IS_ABOUT_RELATION}

    def edges_from(self, node_id: str) -> list[EdgeRow]:
        """Return the outgoing edges of a node."""
        return self._overlay_pending(self.rows.outgoing(node_id), node_id, 0)

    def edges_to(self, node_id: str, kind: str = "") -> list[EdgeRow]:
        """Return the incoming edges of a node, optionally of one relation type."""
        committed = self.rows.incoming(node_id) if not kind else incoming_edges_of_type(self.rows, node_id, kind)
        return [edge for edge in self._overlay_pending(committed, node_id, 1) if not kind or edge.relation_type == kind]

    def _overlay_pending(self, committed: Iterable[EdgeRow], node_id: str, end: int) -> list[EdgeRow]:
        """Overlay pending edge changes on committed edges."""
        pending = {key: self._edges[key] for key in self._edges_at.get(node_id, ()) if key[end] == node_id}
        kept = [edge for edge in committed if edge.key not in pending]
        return kept + [row for row in pending.values() if row is not None]

    def parent_edges(self, memory: str) -> dict[str, EdgeRow]:
        """Return the relations that may place a memory below a parent, by parent id."""
        committed = {edge.target: edge for edge in find_memory_parent_edges(self.rows, (memory,)).get(memory, ())}
        return {parent: edge for parent, edge in (committed | self._upward.get(memory, {})).items() if edge is not None}

    def more_general_children(self, memory: str, layer: int) -> list[str]:
        """Return memories directly below ``memory`` whose layer may be more general than ``layer``, up to a limit."""
        limit = MAX_PENDING_CHILDREN + len(self._nodes) + len(self._upward)
        known = self._memories.ask(lambda memories, _: memories.more_general_children(memory, layer, limit))
        return [*known, *(child for child, parents in self._upward.items() if memory in parents)]

    def predecessor_edges(self, ids: Collection[str]) -> list[EdgeRow]:
        """Return the incoming edges of nodes from former versions and merged nodes."""
        return [edge for each in ids for kind in sorted(PREDECESSOR_RELATIONS) for edge in self.edges_to(each, kind)]

    def redirects(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the merge redirects from nodes, with all further steps of each chain."""
        return find_merge_redirect_chains(self.rows, ids) | self._merged

    def resolve_redirect(self, node_id: str) -> str:
        """Return the node's id after following merge redirects."""
        return follow_merge_redirect_chain(self.redirects((node_id,)), node_id)

    def prefetch_texts(self, texts: Iterable[str]) -> None:
        """Prefetch in one lookup the candidates that `ids_with_equal_text` will need for these texts."""
        self._alike |= self._memories.candidates_with_equal_texts(
            {(hash_normalized_text(text), fingerprint_wording(text)) for text in texts}, self.now
        )

    def ids_with_equal_text(self, text: str, *, in_other_words: bool) -> list[NodeRow]:
        """Return active memories with the same text.

        With ``in_other_words``, memories with the same normalized wording are included.
        """
        digest, wording = hash_normalized_text(text), fingerprint_wording(text)
        digests = {digest, wording} if in_other_words else {digest}
        known = self._alike.get((digest, wording))
        if known is None:
            known = self._memories.memories_with_equal_text(digest, wording, self.now)
        found = self._found(known, digests)
        return [
            row for row in found if is_memory_active_at(row, self.now) and not (row.extras and row.extras.belongs_to)
        ]

    def nodes_named(self, name: str) -> list[NodeRow]:
        """Return the nodes with this name or alias, ignoring case and whitespace."""
        return self._found(self._memories.candidates_named(name), (normalize_entity_name(name),))

    def similar_names(self, name: str) -> list[str]:
        """Return similar entity names as of the last commit, as suggestions for an unknown name."""
        return self._memories.ask(lambda memories, _: memories.similar_names(name))

    def apply_change_set(self, change: ChangeSet) -> None:
        """Apply the change set of a write in the group."""
        for key in change.edges_deleted:
            self._put(key, None)
            if key[2] == CHILD_OF_RELATION:
                self._upward.setdefault(key[0], {})[key[1]] = None
        self._nodes.update(dict.fromkeys(change.nodes_deleted))
        for node in (*change.nodes_created, *change.nodes_updated):
            self._nodes[node.id] = node
            for key in get_text_hash_and_name_keys(node):
                self._by_key.setdefault(key, []).append(node.id)
        for edge in (*change.edges_created, *change.edges_updated, *change.edges_touched):
            self._put(edge.key, edge)
            if edge.relation_type == CHILD_OF_RELATION:
                self._upward.setdefault(edge.source, {})[edge.target] = (
                    edge if is_effective_memory_parent_edge(edge) else None
                )
            elif edge.relation_type == MERGED_INTO_RELATION and self._is_withdrawn(edge.source):
                self._merged[edge.source] = edge.target

    def _put(self, key: EdgeKey, row: EdgeRow | None) -> None:
        self._edges[key] = row
        for end in key[:2]:
            self._edges_at.setdefault(end, {})[key] = None

    def _is_withdrawn(self, node_id: str) -> bool:
        row = self._nodes.get(node_id)
        return row is not None and is_node_never_valid(row.extras)

    def _found(self, known: Iterable[str], keys: Iterable[bytes | str]) -> list[NodeRow]:
        ids = dict.fromkeys(known) | dict.fromkeys(node_id for key in keys for node_id in self._by_key.get(key, ()))
        return [*self.nodes(ids).values()]
