"""A write as the writer takes it: checked, in canonical form, independent of who sent it."""

from __future__ import annotations

import msgspec

from kgserve.model.fields import EdgeExtrasPut, NodeExtrasPut
from kgserve.model.rows import EdgeKey


class NodePut(msgspec.Struct, frozen=True, gc=False):
    """A node to create or update; ``None`` keeps what is stored. ``index`` is its place in the request.

    ``based_on`` is the version that its writer had seen. ``resolves``: it is to supersede every head, even if nothing
    else about the node changes.
    """

    index: int
    id: str
    type: str | None = None
    content: str | None = None
    attributes: str | None = None
    version: int | None = None
    created_at: int | None = None
    updated_at: int | None = None
    extras: NodeExtrasPut | None = None
    based_on: int | None = None
    resolves: bool = False

    def over(self, earlier: NodePut) -> NodePut:
        """Both as one: what this one leaves out comes from the earlier."""
        return NodePut(
            self.index,
            self.id,
            earlier.type if self.type is None else self.type,
            earlier.content if self.content is None else self.content,
            earlier.attributes if self.attributes is None else self.attributes,
            earlier.version if self.version is None else self.version,
            earlier.created_at if self.created_at is None else self.created_at,
            earlier.updated_at if self.updated_at is None else self.updated_at,
            earlier.extras if self.extras is None else self.extras.over(earlier.extras),
            earlier.based_on if self.based_on is None else self.based_on,
            self.resolves or earlier.resolves,
        )


class EdgePut(msgspec.Struct, frozen=True, gc=False):
    """An edge to create or update; ``own`` are the caller's attributes without the two times."""

    index: int
    key: EdgeKey
    weight: float | None = None
    own: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    version: int | None = None
    extras: EdgeExtrasPut | None = None

    def says_nothing_new(self, weight: float | None) -> bool:
        """Whether an edge that exists with this weight needs no closer look."""
        if self.own is not None or self.created_at is not None or self.updated_at is not None:
            return False
        return self.extras is None and (self.weight is None or self.weight == weight)

    def over(self, earlier: EdgePut) -> EdgePut:
        """Both as one: what this one leaves out comes from the earlier."""
        return EdgePut(
            self.index,
            self.key,
            earlier.weight if self.weight is None else self.weight,
            earlier.own if self.own is None else self.own,
            earlier.created_at if self.created_at is None else self.created_at,
            earlier.updated_at if self.updated_at is None else self.updated_at,
            earlier.version if self.version is None else self.version,
            earlier.extras if self.extras is None else self.extras.over(earlier.extras),
        )


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write. Deletions go first, then nodes, then edges.

    ``touch`` moves updated_at of every edge sent; ``partial`` leaves wrong rows out instead of refusing the batch;
    ``told`` has the report hold the rows as they are afterwards; ``cost`` is about the bytes that it takes in memory.
    """

    nodes: list[NodePut] = []
    edges: list[EdgePut] = []
    delete_nodes: list[str] = []
    delete_edges: list[EdgeKey] = []
    touch: bool = True
    partial: bool = False
    told: bool = False
    cost: int = 0

    @property
    def has_extras(self) -> bool:
        """Whether a row may come to have extras by it: its own, or heads beside it."""
        nodes = any(put.extras is not None and (put.based_on is not None or put.extras.says_any) for put in self.nodes)
        return nodes or any(put.extras is not None for put in self.edges)

    @property
    def size(self) -> int:
        """Rows that it names."""
        return len(self.nodes) + len(self.edges) + len(self.delete_nodes) + len(self.delete_edges)
