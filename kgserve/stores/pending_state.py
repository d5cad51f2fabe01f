"""What a write sees that is decided in its turn: the store as it will be once the writes of its group before it are in.

So writes that depend on what is there need not be alone: many agents that say the same at once share one sync to the
disk, and are told of one memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kgserve.platform.text.similarity import fingerprint, text_hash
from kgserve.projections.memory_index.projection import MemoryProjection, keys_of
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.names import IS_ABOUT, folded
from kgserve.storage.model.parents import CHILD_OF, is_upward
from kgserve.storage.model.redirects import MERGED_INTO, is_withdrawn, survivor_of
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import is_active
from kgserve.storage.rows.edge_page import incoming_of
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import redirects_of, upward

MAX_PENDING_CHILDREN = 100
"""So many children that are in the way of a change are looked at."""


class PendingState:
    """The rows of the last commit under those that the group has decided so far. For the writing thread.

    Indexes only name what may fit; who asks looks at the rows. ``now`` is in microseconds; ``sequence`` is that of the
    commit that what is decided will be.
    """

    def __init__(self, rows: Rows, memories: MemoryProjection, now: int) -> None:
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
        """A node as it will be."""
        return self._nodes[node_id] if node_id in self._nodes else self.rows.node(node_id)

    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Those of some nodes that will be there."""
        found = self.rows.nodes([node_id for node_id in ids if node_id not in self._nodes])
        return found | {node_id: row for node_id in ids if (row := self._nodes.get(node_id)) is not None}

    def edges(self, keys: Collection[EdgeKey]) -> dict[EdgeKey, EdgeRow]:
        """Those of some edges that will be there."""
        found = self.rows.edges([key for key in keys if key not in self._edges])
        return found | {key: row for key in keys if (row := self._edges.get(key)) is not None}

    def about(self, memory: str) -> dict[str, float]:
        """The entities that a memory will be about, with how much."""
        return {edge.target: edge.weight for edge in self.edges_from(memory) if edge.relation_type == IS_ABOUT}

    def edges_from(self, node_id: str) -> list[EdgeRow]:
        """The edges that will lead from a node."""
        return self._with_mine(self.rows.outgoing(node_id), node_id, 0)

    def edges_to(self, node_id: str, kind: str = "") -> list[EdgeRow]:
        """The edges that will lead to a node, of a kind if one is given."""
        there = self.rows.incoming(node_id) if not kind else incoming_of(self.rows, node_id, kind)
        return [edge for edge in self._with_mine(there, node_id, 1) if not kind or edge.relation_type == kind]

    def _with_mine(self, there: Iterable[EdgeRow], node_id: str, end: int) -> list[EdgeRow]:
        """Edges of the last commit as the group leaves them, and those that it adds."""
        mine = {key: self._edges[key] for key in self._edges_at.get(node_id, ()) if key[end] == node_id}
        kept = [edge for edge in there if edge.key not in mine]
        return kept + [row for row in mine.values() if row is not None]

    def upward(self, memory: str) -> dict[str, EdgeRow]:
        """The relations that may say what a memory will stand below, by the parent."""
        there = {edge.target: edge for edge in upward(self.rows, (memory,)).get(memory, ())}
        return {parent: edge for parent, edge in (there | self._upward.get(memory, {})).items() if edge is not None}

    def more_general(self, memory: str, layer: int) -> list[str]:
        """Memories that may stand directly below one though their layer is more general; of many some."""
        most = MAX_PENDING_CHILDREN + len(self._nodes) + len(self._upward)
        known = self._memories.ask(lambda memories, _: memories.more_general(memory, layer, most))
        return [*known, *(child for child, parents in self._upward.items() if memory in parents)]

    def survivor(self, node_id: str) -> str:
        """The node itself, or the one that it will have come to by merges."""
        return survivor_of(redirects_of(self.rows, (node_id,)) | self._merged, node_id)

    def expect(self, texts: Iterable[str]) -> None:
        """Look up together who says what `saying` will be asked for."""
        self._alike |= self._memories.alike_all({(text_hash(text), fingerprint(text)) for text in texts}, self.now)

    def saying(self, text: str, *, in_other_words: bool) -> list[NodeRow]:
        """The memories that may say the same; with ``in_other_words`` also those of the same wording."""
        digest, wording = text_hash(text), fingerprint(text)
        digests = {digest, wording} if in_other_words else {digest}
        known = self._alike.get((digest, wording))
        if known is None:
            known = self._memories.alike(digest, wording, self.now)
        found = self._found(known, digests)
        return [row for row in found if is_active(row, self.now) and not (row.extras and row.extras.belongs_to)]

    def named(self, name: str) -> list[NodeRow]:
        """The nodes that may be called so, by their name or another one, whatever its case and blanks."""
        return self._found(self._memories.named(name), (folded(name),))

    def names_like(self, name: str) -> list[str]:
        """Names of entities that may be meant by one that there is not, as of the last commit."""
        return self._memories.ask(lambda memories, _: memories.names_like(name))

    def took(self, change: ChangeSet) -> None:
        """See what a write of the group has come to."""
        for key in change.edges_deleted:
            self._put(key, None)
            if key[2] == CHILD_OF:
                self._upward.setdefault(key[0], {})[key[1]] = None
        self._nodes.update(dict.fromkeys(change.nodes_deleted))
        for node in (*change.nodes_created, *change.nodes_updated):
            self._nodes[node.id] = node
            for key in keys_of(node):
                self._by_key.setdefault(key, []).append(node.id)
        for edge in (*change.edges_created, *change.edges_updated, *change.edges_touched):
            self._put(edge.key, edge)
            if edge.relation_type == CHILD_OF:
                self._upward.setdefault(edge.source, {})[edge.target] = edge if is_upward(edge) else None
            elif edge.relation_type == MERGED_INTO and self._is_withdrawn(edge.source):
                self._merged[edge.source] = edge.target

    def _put(self, key: EdgeKey, row: EdgeRow | None) -> None:
        self._edges[key] = row
        for end in key[:2]:
            self._edges_at.setdefault(end, {})[key] = None

    def _is_withdrawn(self, node_id: str) -> bool:
        row = self._nodes.get(node_id)
        return row is not None and is_withdrawn(row.extras)

    def _found(self, known: Iterable[str], keys: Iterable[bytes | str]) -> list[NodeRow]:
        ids = dict.fromkeys(known) | dict.fromkeys(node_id for key in keys for node_id in self._by_key.get(key, ()))
        return [*self.nodes(ids).values()]
