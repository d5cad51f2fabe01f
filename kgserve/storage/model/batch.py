"""A write as the writer takes it: checked, in canonical form, independent of who sent it.

Then what it does to the extras of a row, and what the present state and a store's settings do not allow of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import msgspec
from msgspec import UNSET

from kgserve.errors import Conflict
from kgserve.storage.model.change import Access
from kgserve.storage.model.fields import (
    AUTHOR_FIELD,
    NO_EDGE_EXTRAS,
    NO_EXTRAS,
    EdgeExtras,
    EdgeExtrasPut,
    NodeExtras,
    NodeExtrasPut,
)
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow, edge_stamps


class NodePut(msgspec.Struct, frozen=True, gc=False):
    """A node to create or update; ``None`` keeps what is stored. ``index`` is its place in the request.

    ``based_on`` is the version that its writer had seen. ``resolves``: it is to supersede every head, even if nothing
    else about the node changes. ``heads`` are the versions that it stood beside where it comes from; it ``is_head`` if
    a later one stood beside it.
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
    heads: tuple[int, ...] = ()
    is_head: bool = False

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
            self.heads or earlier.heads,
            self.is_head and earlier.is_head,
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


class LinkPut(msgspec.Struct, frozen=True, gc=False):
    """A link to create or update: an edge whose target is in another ``store``, be it there or not."""

    store: str
    edge: EdgePut

    @property
    def index(self) -> int:
        """Its place in the request."""
        return self.edge.index

    @property
    def key(self) -> LinkKey:
        """What identifies the link."""
        return LinkKey(self.store, self.edge.key)

    def over(self, earlier: LinkPut) -> LinkPut:
        """Both as one: what this one leaves out comes from the earlier."""
        return LinkPut(self.store, self.edge.over(earlier.edge))


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write. Deletions go first, then nodes, edges, links, accesses: of what is not there they drop.

    ``touch`` moves updated_at of every edge sent; ``partial`` leaves wrong rows out instead of refusing the batch;
    ``told`` has the report hold the rows as they are afterwards; ``forgets``: the versions of what it deletes need not
    be known any more; ``cost`` is about the bytes that it takes in memory.
    """

    nodes: list[NodePut] = []
    edges: list[EdgePut] = []
    links: list[LinkPut] = []
    delete_nodes: list[str] = []
    delete_edges: list[EdgeKey] = []
    delete_links: list[LinkKey] = []
    accesses: list[Access] = []
    touch: bool = True
    partial: bool = False
    told: bool = False
    forgets: bool = False
    cost: int = 0

    @property
    def size(self) -> int:
        """Rows that it names."""
        puts = len(self.nodes) + len(self.edges) + len(self.links)
        return puts + len(self.delete_nodes) + len(self.delete_edges) + len(self.delete_links)


def node_extras(put: NodeExtrasPut | None, old: NodeExtras | None) -> NodeExtras | None:
    """The extras of the next state, which stands alone. Once a node has any, it keeps some, be they empty."""
    extras = (put or _NO_NODE_EXTRAS_PUT).onto(old or NO_EXTRAS) if put or old else NO_EXTRAS
    return None if old is None and extras == NO_EXTRAS else extras


def edge_again(row: EdgeRow, key: EdgeKey) -> EdgePut:
    """A put that makes an edge of a key say what a state of it, or of another one, says, times and author included."""
    stamps = edge_stamps(row.attributes)
    extras = None if row.extras is None else EdgeExtrasPut(*msgspec.structs.astuple(row.extras))
    return EdgePut(0, key, row.weight, stamps.own, stamps.created_at, stamps.updated_at, row.version, extras)


def link_again(row: LinkRow, key: LinkKey) -> LinkPut:
    """As `edge_again`, of a link."""
    return LinkPut(key.store, edge_again(row.edge, key.edge))


def put_again(row: NodeRow) -> NodePut:
    """A put that makes a node what it was in a state, by whoever writes it now."""
    values = [*_said(row.extras or NO_EXTRAS)]
    values[_AUTHOR_AT] = ""
    extras = NodeExtrasPut(*values)
    return NodePut(0, row.id, row.type, row.content, row.attributes, extras=extras)


_said = attrgetter(*NodeExtrasPut.__struct_fields__)
_AUTHOR_AT = NodeExtrasPut.__struct_fields__.index(AUTHOR_FIELD)


def edge_extras(put: EdgeExtrasPut | None, old: EdgeExtras | None) -> EdgeExtras | None:
    """The extras of the next state; None when there is nothing in them."""
    extras = (put or _NO_EDGE_EXTRAS_PUT).onto(old or NO_EDGE_EXTRAS) if put or old else NO_EDGE_EXTRAS
    return None if extras == NO_EDGE_EXTRAS else extras


def with_heads(extras: NodeExtras | None, heads: tuple[int, ...]) -> NodeExtras:
    """The extras of a state that is beside other heads."""
    return msgspec.structs.replace(extras or NO_EXTRAS, conflicts=heads)


def conflicts(row: NodeRow) -> tuple[int, ...]:
    """The versions of a node's other heads."""
    return row.extras.conflicts if row.extras is not None else ()


def same_extras(one: NodeExtras | None, other: NodeExtras | None) -> bool:
    """Whether nothing is new; that somebody else says it, or that there are other heads, is not."""
    return one is other or _bare(one) == _bare(other)


def same_edge_extras(one: EdgeExtras | None, other: EdgeExtras | None) -> bool:
    """As `same_extras`."""
    return one is other or _bare_edge(one) == _bare_edge(other)


def _bare(extras: NodeExtras | None) -> NodeExtras:
    return NO_EXTRAS if extras is None else msgspec.structs.replace(extras, created_by="", conflicts=())


def _bare_edge(extras: EdgeExtras | None) -> EdgeExtras:
    return NO_EDGE_EXTRAS if extras is None else msgspec.structs.replace(extras, created_by="")


_NO_NODE_EXTRAS_PUT = NodeExtrasPut()
_NO_EDGE_EXTRAS_PUT = EdgeExtrasPut()


MAX_TYPES_IN_MESSAGE = 10
MAX_HEADS = 100

Fault = tuple[str, str]
"""A field, and what is wrong with it."""


KIND_CONSOLIDATION = "consolidation"
"""The type of the node that says what a run of consolidation has done."""
KIND_REFLECTION = "reflection"
"""The same of a run of reflecting."""
OWN_KINDS = frozenset({KIND_CONSOLIDATION, KIND_REFLECTION})
"""Types of the nodes that a store writes itself; none keeps them out."""


class Rules(msgspec.Struct, frozen=True):
    """What a store's settings say about writes. ``kinds``: only these types; empty: any.

    ``keeps_both``: what is based on a version that is no longer a head is kept beside the heads, as a conflict.
    ``keeps_history``: somebody keeps who has said what.
    """

    kinds: frozenset[str] = frozenset()
    keeps_both: bool = False
    keeps_history: bool = False

    def allows(self, node_type: str | None) -> bool:
        """Whether a node may be given a type."""
        return node_type is None or not self.kinds or node_type in self.kinds or node_type in OWN_KINDS


NO_RULES = Rules()


def node_fault(put: NodePut, old: NodeRow | None, rules: Rules) -> Fault | None:
    """What is wrong with a node, if anything is."""
    if put.type is None and old is None:
        return "type", "is required for a node that does not exist yet"
    if not rules.allows(put.type):
        return "type", f"{put.type!r} is not one of the kinds that this store takes: {_some(rules.kinds)}"
    return _ENDS_BEFORE_START if _is_backwards(put.extras, old and old.extras) else None


def edge_fault(put: EdgePut, old: EdgeRow | None) -> Fault | None:
    """What is wrong with an edge, if anything is."""
    return _ENDS_BEFORE_START if _is_backwards(put.extras, old and old.extras) else None


_ENDS_BEFORE_START = ("valid_to", "is before valid_from")


def says_nothing_new(put: NodePut, old: NodeRow, rules: Rules) -> bool:
    """Whether a node that exists needs no new state."""
    if put.is_head and not _goes_on(put, old):
        return True
    if _stood_beside(put, old):
        return False
    sent = ((put.type, old.type), (put.content, old.content), (put.attributes, old.attributes))
    if any(new is not None and new != was for new, was in sent):
        return False
    resolved = put.resolves and conflicts(old) != () and not goes_beside(put, old, rules)
    return not resolved and same_extras(node_extras(put.extras, old.extras), old.extras)


def goes_beside(put: NodePut, old: NodeRow, rules: Rules) -> bool:
    """Whether a state is to be kept beside the heads, for it is based on none of them, or was where it comes from."""
    if _stood_beside(put, old):
        return True
    stale = put.based_on is not None and put.based_on != old.version and put.based_on not in conflicts(old)
    return stale and rules.keeps_both


def _stood_beside(put: NodePut, old: NodeRow) -> bool:
    """Whether the present version is one that a put from elsewhere had beside it there."""
    return old.version in put.heads and (put.version or 0) > old.version


def _goes_on(put: NodePut, old: NodeRow) -> bool:
    """Whether a head from elsewhere comes upon nothing but the heads before it."""
    heads = (old.version, *conflicts(old))
    return put.version not in heads and set(heads) <= {*put.heads}


def check_heads(puts: Iterable[NodePut], nodes: Mapping[str, NodeRow], rules: Rules) -> None:
    """Raise Conflict when a node would have more than 100 heads: somebody writes without looking."""
    for put in puts:
        old = nodes.get(put.id)
        if old is not None and len(conflicts(old)) + 1 >= MAX_HEADS and goes_beside(put, old, rules):
            raise Conflict(
                f"node {put.id!r} has {MAX_HEADS} heads in conflict; put a version that is based on one of them first"
            )


def _is_backwards(put: NodeExtrasPut | EdgeExtrasPut | None, old: NodeExtras | EdgeExtras | None) -> bool:
    if put is None:
        return False
    start, end = put.valid_from, put.valid_to
    start = (old and old.valid_from) if start is UNSET else start
    end = (old and old.valid_to) if end is UNSET else end
    return start is not None and end is not None and end < start


def _some(kinds: frozenset[str]) -> str:
    names = sorted(kinds)
    more = f" and {len(names) - MAX_TYPES_IN_MESSAGE} more" if len(names) > MAX_TYPES_IN_MESSAGE else ""
    return ", ".join(names[:MAX_TYPES_IN_MESSAGE]) + more
