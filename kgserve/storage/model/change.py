"""The effective rows of writes: what the journal holds, and what several writes come to together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Literal, TypeVar

import msgspec

from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow, width_of

_Key = TypeVar("_Key", str, EdgeKey, LinkKey)
_Row = TypeVar("_Row", NodeRow, EdgeRow, LinkRow)


class StoreState(msgspec.Struct, frozen=True):
    """Where a store stands: last commit, its time in microseconds, digest and row counts."""

    sequence: int = 0
    time: int = 0
    digest: int = 0
    nodes: int = 0
    edges: int = 0


class LinksState(msgspec.Struct, frozen=True):
    """What the links of a store come to: how many there are, and their digest, which is none of the rows'."""

    count: int = 0
    digest: bytes = bytes(16)


class Access(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What reading a memory has made of it: how often it was read, when it was last, and its confidence from then on.

    Final values, which belong to the node and go with it; no part of its row. ``last`` is in microseconds.
    """

    id: str
    count: int
    last: int
    confidence: float


Kind = Literal["", "entity", "memory", "run"]
"""What a node is to who knows memories, named entities and runs of consolidation alone."""


class BeforeImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node was before it was written or taken away, and which of its fields have changed, for who is told."""

    id: str
    kind: Kind
    changed: tuple[str, ...] = ()


class CoAuthor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """That somebody else has put what a version of a node says already; no part of its row."""

    id: str
    version: int
    created_by: str


class ChangeSet(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The effective rows of one write with their final values, and the state they lead to.

    ``edges_touched`` differ from what was there in updated_at alone: no new version, no event. So do ``links_touched``;
    ``links`` is there where any link differs. ``accessed`` holds after everything else, and is in no digest. ``former``
    is there for listeners alone. ``last_versions`` are those of ``nodes_deleted``: numbering goes on from there, but
    from 0, which stands for none. ``said`` is for the history alone.
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
    links_created: list[LinkRow] = []
    links_updated: list[LinkRow] = []
    links_touched: list[LinkRow] = []
    links_deleted: list[LinkKey] = []
    accessed: list[Access] = []
    former: list[BeforeImage] = []
    said: list[CoAuthor] = []
    digest: bytes
    nodes: int
    edges: int
    links: LinksState | None = None

    @property
    def state(self) -> StoreState:
        """The store's state once this is applied."""
        return StoreState(self.sequence, self.time, int.from_bytes(self.digest), self.nodes, self.edges)

    @property
    def size(self) -> int:
        """Rows that it names."""
        nodes = len(self.nodes_created) + len(self.nodes_updated) + len(self.nodes_deleted)
        edges = sum(map(len, (self.edges_created, self.edges_updated, self.edges_touched, self.edges_deleted)))
        links = 0 if self.links is None else len([*self.links_put()]) + len(self.links_deleted)
        return nodes + edges + links

    def links_put(self) -> Iterator[LinkRow]:
        """The links that it writes."""
        yield from self.links_created
        yield from self.links_updated
        yield from self.links_touched

    def node_ids(self) -> Iterator[str]:
        """The nodes that it writes or takes away."""
        yield from (row.id for row in (*self.nodes_created, *self.nodes_updated))
        yield from self.nodes_deleted

    def edge_keys(self) -> Iterator[EdgeKey]:
        """The edges that it writes or takes away."""
        yield from (row.key for row in (*self.edges_created, *self.edges_updated, *self.edges_touched))
        yield from self.edges_deleted

    def meets(self, nodes: AbstractSet[str], edges: AbstractSet[EdgeKey], gone: AbstractSet[str]) -> bool:
        """Whether it writes any of some nodes or edges, or an edge of a node that is to be ``gone``."""
        if not nodes.isdisjoint(self.node_ids()):
            return True
        return any(key in edges or key[0] in gone or key[1] in gone for key in self.edge_keys())


class NetChange:
    """What several change sets, taken in order, come to: each key at most once, creations and updates told apart.

    ``remade`` are nodes that were deleted and made again: updates that keep nothing. ``accessed`` are the accesses that
    came, but for those of nodes that went afterwards; those from before, of nodes in ``unaccessed``, are over.
    ``linked``: some may have changed links, which are in no count of rows.
    """

    def __init__(self, changes: Iterable[ChangeSet] = ()) -> None:
        self.nodes_created: dict[str, NodeRow] = {}
        self.nodes_updated: dict[str, NodeRow] = {}
        self.nodes_deleted: set[str] = set()
        self.remade: set[str] = set()
        self.edges_created: dict[EdgeKey, EdgeRow] = {}
        self.edges_updated: dict[EdgeKey, EdgeRow] = {}
        self.edges_deleted: set[EdgeKey] = set()
        self.links_created: dict[LinkKey, LinkRow] = {}
        self.links_updated: dict[LinkKey, LinkRow] = {}
        self.links_deleted: set[LinkKey] = set()
        self.accessed: dict[str, Access] = {}
        self.linked = False
        self.state: StoreState | None = None
        for change in changes:
            self.add(change)

    def __len__(self) -> int:
        nodes = len(self.nodes_created) + len(self.nodes_updated) + len(self.nodes_deleted)
        return nodes + len(self.edges_created) + len(self.edges_updated) + len(self.edges_deleted)

    @property
    def unaccessed(self) -> set[str]:
        """Nodes that were deleted, be they there again: what was known of reading them is gone."""
        return self.nodes_deleted | self.remade

    @property
    def width(self) -> ColumnSet:
        """That of the widest row."""
        nodes = (*self.nodes_created.values(), *self.nodes_updated.values())
        edges = (*self.edges_created.values(), *self.edges_updated.values())
        return max((width_of(row.extras) for row in (*nodes, *edges)), default=ColumnSet.PLAIN)

    def _start(self, change: ChangeSet) -> None:
        """Take in the first: as `add` would, but at the speed that an import's large change sets want."""
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
        """Take in the next change set."""
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
        # Deleted and made again within one transaction is an update: the engine never sees the key twice.
        deleted.remove(key)
        updated[key] = row
    else:
        created[key] = row


def _update(key: _Key, row: _Row, created: dict[_Key, _Row], updated: dict[_Key, _Row]) -> None:
    (created if key in created else updated)[key] = row
