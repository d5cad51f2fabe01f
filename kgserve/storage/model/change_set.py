"""Change sets, the content of the journal, and the net change of several of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Literal, TypeVar

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    get_column_set_for_extras,
)

_Key = TypeVar("_Key", str, EdgeKey, CrossStoreLinkKey)
_Row = TypeVar("_Row", NodeRow, EdgeRow, CrossStoreLinkRow)


class StoreState(msgspec.Struct, frozen=True):
    """State of a store: last commit, its time in microseconds, digest and row counts."""

    sequence: int = 0
    time: int = 0
    digest: int = 0
    nodes: int = 0
    edges: int = 0


class CrossStoreLinksCountAndDigest(msgspec.Struct, frozen=True):
    """Number of a store's cross-store links, and their digest, which is separate from the rows' digest."""

    count: int = 0
    digest: bytes = bytes(16)


class MemoryAccessRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Access record of a memory: read count, time of the last read in microseconds, and resulting confidence.

    Values are final. They belong to the node and are deleted with it, but are no part of its row.
    """

    id: str
    count: int
    last: int
    confidence: float


MemoryCategory = Literal["", "entity", "memory", "run"]
"""Category of a node in memory events; "" for other nodes."""


class NodeBeforeImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Before-image of a node for memory events: its category then, and the names of the fields that changed."""

    id: str
    kind: MemoryCategory
    changed: tuple[str, ...] = ()


class VersionCoAuthorRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Record that another author wrote the content that a version already has. No part of the row."""

    id: str
    version: int
    created_by: str


class ChangeSet(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Effective rows of one write with their final values, and the resulting state.

    - ``edges_touched`` and ``links_touched`` changed only in updated_at: no new version, no event.
    - ``last_versions`` belong to ``nodes_deleted``: a recreated node continues from there; 0 means none.
    - ``accessed`` applies after everything else and is in no digest.
    - ``former`` is for listeners only, ``said`` for the history only.
    - ``links`` is None unless a link changed.
    """

    sequence: int
    time: int
    nodes_created: list[NodeRow] = []
    nodes_updated: list[NodeRow] = []
    nodes_deleted: list[str] = []
    last_versions: list[int] = []
    edges_created: list[EdgeRow] = []
    edges_updated: list[EdgeRow] = []
    edges_touched: list[EdgeRow] = []
    edges_deleted: list[EdgeKey] = []
    links_created: list[CrossStoreLinkRow] = []
    links_updated: list[CrossStoreLinkRow] = []
    links_touched: list[CrossStoreLinkRow] = []
    links_deleted: list[CrossStoreLinkKey] = []
    accessed: list[MemoryAccessRecord] = []
    former: list[NodeBeforeImage] = []
    said: list[VersionCoAuthorRecord] = []
    digest: bytes
    nodes: int
    edges: int
    links: CrossStoreLinksCountAndDigest | None = None

    @property
    def state(self) -> StoreState:
        """State of the store after this change set."""
        return StoreState(self.sequence, self.time, int.from_bytes(self.digest), self.nodes, self.edges)

    @property
    def size(self) -> int:
        """Number of rows that the change set names."""
        nodes = len(self.nodes_created) + len(self.nodes_updated) + len(self.nodes_deleted)
        edges = len(self.edges_created) + len(self.edges_updated) + len(self.edges_touched) + len(self.edges_deleted)
        links = 0 if self.links is None else len([*self.links_put()]) + len(self.links_deleted)
        return nodes + edges + links

    @property
    def frees_space(self) -> bool:
        """True if it deletes at least as many rows as it puts."""
        put = (self.nodes_created, self.nodes_updated, self.edges_created, self.edges_updated, self.edges_touched)
        deleted = (self.nodes_deleted, self.edges_deleted, self.links_deleted)
        return 0 < sum(map(len, deleted)) >= sum(map(len, put))

    def links_put(self) -> Iterator[CrossStoreLinkRow]:
        """Yield the links that the change set writes."""
        yield from self.links_created
        yield from self.links_updated
        yield from self.links_touched

    def node_ids(self) -> Iterator[str]:
        """Yield the ids of the nodes that the change set writes or deletes."""
        yield from (row.id for row in (*self.nodes_created, *self.nodes_updated))
        yield from self.nodes_deleted

    def edge_keys(self) -> Iterator[EdgeKey]:
        """Yield the keys of the edges that the change set writes or deletes."""
        yield from (row.key for row in (*self.edges_created, *self.edges_updated, *self.edges_touched))
        yield from self.edges_deleted

    def touches(self, nodes: AbstractSet[str], edges: AbstractSet[EdgeKey], gone: AbstractSet[str]) -> bool:
        """Return True if the change set touches any of ``nodes`` or ``edges``, or an edge of a node in ``gone``."""
        if not nodes.isdisjoint(self.node_ids()):
            return True
        return any(key in edges or key[0] in gone or key[1] in gone for key in self.edge_keys())


class PackedChangeSet(ChangeSet, frozen=True, omit_defaults=True, kw_only=True):
    """Change set for the journal whose rows are MessagePack, not Structs; `unpack_change_set_rows` decodes them."""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgpack_decoder(ChangeSet).decode


def unpack_change_set_rows(change: ChangeSet) -> ChangeSet:
    """Return a change set with its MessagePack rows decoded; unchanged if it has none."""
    return _unpack(_pack(change)) if isinstance(change, PackedChangeSet) else change


class NetChange:
    """Net change of consecutive change sets: each key at most once, as created, updated or deleted.

    - ``remade``: nodes that were deleted and created again, counted as updates that keep nothing.
    - ``accessed``: new accesses, except those of nodes deleted afterwards.
    - ``linked``: True if links may have changed; links are in no count of rows.
    """

    def __init__(self, changes: Iterable[ChangeSet] = ()) -> None:
        self.nodes_created: dict[str, NodeRow] = {}
        self.nodes_updated: dict[str, NodeRow] = {}
        self.nodes_deleted: set[str] = set()
        self.remade: set[str] = set()
        self.edges_created: dict[EdgeKey, EdgeRow] = {}
        self.edges_updated: dict[EdgeKey, EdgeRow] = {}
        self.edges_deleted: set[EdgeKey] = set()
        self.links_created: dict[CrossStoreLinkKey, CrossStoreLinkRow] = {}
        self.links_updated: dict[CrossStoreLinkKey, CrossStoreLinkRow] = {}
        self.links_deleted: set[CrossStoreLinkKey] = set()
        self.accessed: dict[str, MemoryAccessRecord] = {}
        self.linked = False
        self.state: StoreState | None = None
        for change in changes:
            self.add(change)

    def __len__(self) -> int:
        nodes = len(self.nodes_created) + len(self.nodes_updated) + len(self.nodes_deleted)
        return nodes + len(self.edges_created) + len(self.edges_updated) + len(self.edges_deleted)

    @property
    def reset_accesses(self) -> set[str]:
        """Nodes that were deleted, even if created again: their earlier accesses no longer hold."""
        return self.nodes_deleted | self.remade

    @property
    def width(self) -> NodeEdgeColumnSet:
        """Column set of the widest row."""
        nodes = (*self.nodes_created.values(), *self.nodes_updated.values())
        edges = (*self.edges_created.values(), *self.edges_updated.values())
        return max((get_column_set_for_extras(row.extras) for row in (*nodes, *edges)), default=NodeEdgeColumnSet.PLAIN)

    def _start(self, change: ChangeSet) -> None:
        """Apply the first change set, faster than `add` does for the large change sets of imports."""
        self.nodes_created = {row.id: row for row in change.nodes_created}
        self.nodes_updated = {row.id: row for row in change.nodes_updated}
        self.nodes_deleted = set(change.nodes_deleted)
        self.edges_created = {row.key: row for row in change.edges_created}
        self.edges_updated = {row.key: row for row in (*change.edges_updated, *change.edges_touched)}
        self.edges_deleted = set(change.edges_deleted)
        for node_id in self.nodes_deleted & self.nodes_created.keys():
            self.nodes_deleted.remove(node_id)
            self.nodes_updated[node_id] = self.nodes_created.pop(node_id)
            self.remade.add(node_id)
        for key in self.edges_deleted & self.edges_created.keys():
            self.edges_deleted.remove(key)
            self.edges_updated[key] = self.edges_created.pop(key)
        self.accessed = {access.id: access for access in change.accessed}
        self.state = change.state

    def add(self, change: ChangeSet) -> None:
        """Apply the next change set."""
        self._add_links(change)
        if self.state is None:
            self._start(change)
            return
        for key in change.edges_deleted:
            _delete(key, self.edges_created, self.edges_updated, self.edges_deleted)
        for node_id in change.nodes_deleted:
            _delete(node_id, self.nodes_created, self.nodes_updated, self.nodes_deleted)
            self.accessed.pop(node_id, None)
        for node in change.nodes_created:
            if node.id in self.nodes_deleted:
                self.remade.add(node.id)
            _create(node.id, node, self.nodes_created, self.nodes_updated, self.nodes_deleted)
        for node in change.nodes_updated:
            _update(node.id, node, self.nodes_created, self.nodes_updated)
        for edge in change.edges_created:
            _create(edge.key, edge, self.edges_created, self.edges_updated, self.edges_deleted)
        for edge in (*change.edges_updated, *change.edges_touched):
            _update(edge.key, edge, self.edges_created, self.edges_updated)
        for access in change.accessed:
            self.accessed[access.id] = access
        self.state = change.state

    def _add_links(self, change: ChangeSet) -> None:
        if change.links is None:
            return
        self.linked = True
        for key in change.links_deleted:
            _delete(key, self.links_created, self.links_updated, self.links_deleted)
        for link in change.links_created:
            _create(link.key, link, self.links_created, self.links_updated, self.links_deleted)
        for link in (*change.links_updated, *change.links_touched):
            _update(link.key, link, self.links_created, self.links_updated)


def _delete(key: _Key, created: dict[_Key, _Row], updated: dict[_Key, _Row], deleted: set[_Key]) -> None:
    if created.pop(key, None) is None:
        updated.pop(key, None)
        deleted.add(key)


def _create(key: _Key, row: _Row, created: dict[_Key, _Row], updated: dict[_Key, _Row], deleted: set[_Key]) -> None:
    if key in deleted:
        # A deletion followed by a creation becomes an update, so that the engine never sees the key twice.
        deleted.remove(key)
        updated[key] = row
    else:
        created[key] = row


def _update(key: _Key, row: _Row, created: dict[_Key, _Row], updated: dict[_Key, _Row]) -> None:
    (created if key in created else updated)[key] = row
