"""Write batches as the writer receives them: checked and in canonical form.

The module also applies them to the extras of rows, and checks them against the current state and the store's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import msgspec
from msgspec import UNSET

from kgserve.errors import Conflict
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import (
    AUTHOR_FIELD,
    NO_EDGE_EXTRAS,
    NO_EXTRAS,
    EdgeExtras,
    EdgeExtrasUpsert,
    NodeExtras,
    NodeExtrasUpsert,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    split_edge_times_from_attributes,
)


class NodeUpsert(msgspec.Struct, frozen=True, gc=False):
    """Node to create or update; ``None`` keeps the stored value. ``index`` is its position in the request.

    ``based_on`` is the version that the caller had read. With ``resolves`` the put supersedes every head, even if
    nothing else about the node changes. For a node copied from another store, ``heads`` are the versions in conflict
    with it there; ``is_head`` is true if a later version is in conflict with it.
    """

    index: int
    id: str
    type: str | None = None
    content: str | None = None
    attributes: str | None = None
    version: int | None = None
    created_at: int | None = None
    updated_at: int | None = None
    extras: NodeExtrasUpsert | None = None
    based_on: int | None = None
    resolves: bool = False
    heads: tuple[int, ...] = ()
    is_head: bool = False

    def over(self, earlier: NodeUpsert) -> NodeUpsert:
        """Merge with an earlier put of the same node, which provides the values that this one omits."""
        return NodeUpsert(
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


class EdgeUpsert(msgspec.Struct, frozen=True, gc=False):
    """Edge to create or update; ``own`` are the caller's attributes without the two times."""

    index: int
    key: EdgeKey
    weight: float | None = None
    own: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    version: int | None = None
    extras: EdgeExtrasUpsert | None = None

    def is_noop_for(self, weight: float | None) -> bool:
        """Return True if an existing edge with this weight certainly needs no update."""
        if self.own is not None or self.created_at is not None or self.updated_at is not None:
            return False
        return self.extras is None and (self.weight is None or self.weight == weight)

    def over(self, earlier: EdgeUpsert) -> EdgeUpsert:
        """Merge with an earlier put of the same edge, which provides the values that this one omits."""
        return EdgeUpsert(
            self.index,
            self.key,
            earlier.weight if self.weight is None else self.weight,
            earlier.own if self.own is None else self.own,
            earlier.created_at if self.created_at is None else self.created_at,
            earlier.updated_at if self.updated_at is None else self.updated_at,
            earlier.version if self.version is None else self.version,
            earlier.extras if self.extras is None else self.extras.over(earlier.extras),
        )


class CrossStoreLinkUpsert(msgspec.Struct, frozen=True, gc=False):
    """Cross-store link to create or update: an edge whose target is in another ``store`` and need not exist."""

    store: str
    edge: EdgeUpsert

    @property
    def index(self) -> int:
        """Position in the request."""
        return self.edge.index

    @property
    def key(self) -> CrossStoreLinkKey:
        """Key of the link."""
        return CrossStoreLinkKey(self.store, self.edge.key)

    def over(self, earlier: CrossStoreLinkUpsert) -> CrossStoreLinkUpsert:
        """Merge with an earlier put of the same link, which provides the values that this one omits."""
        return CrossStoreLinkUpsert(self.store, self.edge.over(earlier.edge))


class WriteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write: deletions first, then nodes, edges, links and accesses.

    touch: update ``updated_at`` of every edge sent.

    partial: omit invalid rows instead of rejecting the batch.

    return_rows: include the resulting rows in the report.

    forgets: do not keep the last versions of deleted nodes.

    cost: approximate bytes of memory.

    Accesses of missing nodes are dropped.
    """

    nodes: list[NodeUpsert] = []
    edges: list[EdgeUpsert] = []
    links: list[CrossStoreLinkUpsert] = []
    delete_nodes: list[str] = []
    delete_edges: list[EdgeKey] = []
    delete_links: list[CrossStoreLinkKey] = []
    accesses: list[MemoryAccessRecord] = []
    touch: bool = True
    partial: bool = False
    return_rows: bool = False
    forgets: bool = False
    cost: int = 0

    @property
    def size(self) -> int:
        """Number of rows that the batch names."""
        puts = len(self.nodes) + len(self.edges) + len(self.links)
        return puts + len(self.delete_nodes) + len(self.delete_edges) + len(self.delete_links)


def compute_node_extras_after_upsert(put: NodeExtrasUpsert | None, old: NodeExtras | None) -> NodeExtras | None:
    """Return a node's optional fields (extras) after an upsert. A node that has extras keeps them, even if empty."""
    if put is None and old is None:
        return None
    extras = (put or _NO_NODE_EXTRAS_PUT).applied_to(old or NO_EXTRAS)
    return None if old is None and extras == NO_EXTRAS else extras


def copy_edge_row_as_upsert(row: EdgeRow, key: EdgeKey) -> EdgeUpsert:
    """Return an upsert that gives the edge ``key`` the values of ``row``, including times and author."""
    stamps = split_edge_times_from_attributes(row.attributes)
    extras = None if row.extras is None else EdgeExtrasUpsert(*msgspec.structs.astuple(row.extras))
    return EdgeUpsert(0, key, row.weight, stamps.own, stamps.created_at, stamps.updated_at, row.version, extras)


def copy_cross_store_link_row_as_upsert(row: CrossStoreLinkRow, key: CrossStoreLinkKey) -> CrossStoreLinkUpsert:
    """Return an upsert that gives the link ``key`` the values of ``row``, including times and author."""
    return CrossStoreLinkUpsert(key.store, copy_edge_row_as_upsert(row.edge, key.edge))


def build_node_restore_upsert(row: NodeRow) -> NodeUpsert:
    """Return an upsert that restores a node to an earlier state; the author is the new writer."""
    values = [*_put_values(row.extras or NO_EXTRAS)]
    values[_AUTHOR_AT] = ""
    extras = NodeExtrasUpsert(*values)
    return NodeUpsert(0, row.id, row.type, row.content, row.attributes, created_at=row.created_at, extras=extras)


_put_values = attrgetter(*NodeExtrasUpsert.__struct_fields__)
_AUTHOR_AT = NodeExtrasUpsert.__struct_fields__.index(AUTHOR_FIELD)


def compute_edge_extras_after_upsert(put: EdgeExtrasUpsert | None, old: EdgeExtras | None) -> EdgeExtras | None:
    """Return an edge's optional fields (extras) after an upsert; None if all are empty."""
    if put is None and old is None:
        return None
    extras = (put or _NO_EDGE_EXTRAS_PUT).applied_to(old or NO_EDGE_EXTRAS)
    return None if extras == NO_EDGE_EXTRAS else extras


def set_conflicting_node_head_versions(extras: NodeExtras | None, heads: tuple[int, ...]) -> NodeExtras:
    """Return a node's extras with the versions of its conflicting heads set."""
    return msgspec.structs.replace(extras or NO_EXTRAS, conflicts=heads)


def get_conflicting_node_head_versions(row: NodeRow) -> tuple[int, ...]:
    """Return the versions of a node's conflicting heads."""
    return row.extras.conflicts if row.extras is not None else ()


def has_same_optional_node_fields(one: NodeExtras | None, other: NodeExtras | None) -> bool:
    """Return True if the optional fields (extras) of two nodes are equal, except for author and conflicts."""
    return one is other or _comparable_extras(one) == _comparable_extras(other)


def has_same_optional_edge_fields(one: EdgeExtras | None, other: EdgeExtras | None) -> bool:
    """Return True if the optional fields (extras) of two edges are equal, except for the author."""
    return one is other or _comparable_edge_extras(one) == _comparable_edge_extras(other)


def _comparable_extras(extras: NodeExtras | None) -> NodeExtras:
    return NO_EXTRAS if extras is None else msgspec.structs.replace(extras, created_by="", conflicts=())


def _comparable_edge_extras(extras: EdgeExtras | None) -> EdgeExtras:
    return NO_EDGE_EXTRAS if extras is None else msgspec.structs.replace(extras, created_by="")


_NO_NODE_EXTRAS_PUT = NodeExtrasUpsert()
_NO_EDGE_EXTRAS_PUT = EdgeExtrasUpsert()


MAX_TYPES_IN_MESSAGE = 10
MAX_CONFLICTING_HEADS = 100

FieldFault = tuple[str, str]
"""Field, and what is wrong with it."""


KIND_CONSOLIDATION = "consolidation"
"""Type of the node that reports a consolidation run."""
KIND_REFLECTION = "reflection"
"""Type of the node that reports a reflection run."""
SYSTEM_NODE_TYPES = frozenset({KIND_CONSOLIDATION, KIND_REFLECTION})
"""Types of nodes that the store writes itself; a kind whitelist does not exclude them."""


class WriteRules(msgspec.Struct, frozen=True):
    """Rules for writes from a store's settings. ``kinds``: the only allowed types; empty for any.

    keeps_both: a write based on a superseded version is kept next to the heads, as a conflict.

    keeps_history: the store keeps a history, so authors are recorded.
    """

    kinds: frozenset[str] = frozenset()
    keeps_both: bool = False
    keeps_history: bool = False

    def allows(self, node_type: str | None) -> bool:
        """Return True if a node may have a type."""
        return node_type is None or not self.kinds or node_type in self.kinds or node_type in SYSTEM_NODE_TYPES


DEFAULT_WRITE_RULES = WriteRules()


def find_node_upsert_fault(put: NodeUpsert, old: NodeRow | None, rules: WriteRules) -> FieldFault | None:
    """Return why a node upsert is invalid, as field and reason, or None."""
    if put.type is None and old is None:
        return "type", "is required for a node that does not exist yet"
    if not rules.allows(put.type):
        return "type", f"{put.type!r} is not one of the kinds that this store accepts: {_list_kinds(rules.kinds)}"
    return _ENDS_BEFORE_START if _ends_before_start(put.extras, old and old.extras) else None


def find_edge_upsert_fault(put: EdgeUpsert, old: EdgeRow | None) -> FieldFault | None:
    """Return why an edge upsert is invalid, as field and reason, or None."""
    return _ENDS_BEFORE_START if _ends_before_start(put.extras, old and old.extras) else None


_ENDS_BEFORE_START = ("valid_to", "is before valid_from")


def is_noop_node_upsert(put: NodeUpsert, old: NodeRow, rules: WriteRules) -> bool:
    """Return True if an upsert would not change an existing node."""
    if put.is_head and not _extends_heads(put, old):
        return True
    if _was_in_conflict(put, old):
        return False
    if (
        (put.content is not None and put.content != old.content)
        or (put.type is not None and put.type != old.type)
        or (put.attributes is not None and put.attributes != old.attributes)
    ):
        return False
    resolved = (
        put.resolves
        and get_conflicting_node_head_versions(old) != ()
        and not is_upsert_conflicting_with_stored_node(put, old, rules)
    )
    return not resolved and has_same_optional_node_fields(
        compute_node_extras_after_upsert(put.extras, old.extras), old.extras
    )


def is_upsert_conflicting_with_stored_node(put: NodeUpsert, old: NodeRow, rules: WriteRules) -> bool:
    """Return True if a node upsert is in conflict with the current version and becomes a conflicting head.

    That is so if its base is superseded, or if it was in conflict in the store that it was copied from.
    """
    if _was_in_conflict(put, old):
        return True
    stale = (
        put.based_on is not None
        and put.based_on != old.version
        and put.based_on not in get_conflicting_node_head_versions(old)
    )
    return stale and rules.keeps_both


def _was_in_conflict(put: NodeUpsert, old: NodeRow) -> bool:
    """Return True if the current version was in conflict with a copied put in its source store."""
    return old.version in put.heads and (put.version or 0) > old.version


def _extends_heads(put: NodeUpsert, old: NodeRow) -> bool:
    """Return True if a copied head is new here, and every head here was in conflict with it in its source store."""
    heads = (old.version, *get_conflicting_node_head_versions(old))
    return put.version not in heads and set(heads) <= {*put.heads}


def check_conflicting_head_limit(puts: Iterable[NodeUpsert], nodes: Mapping[str, NodeRow], rules: WriteRules) -> None:
    """Raise Conflict if a node would exceed 100 conflicting heads."""
    for put in puts:
        old = nodes.get(put.id)
        if (
            old is not None
            and len(get_conflicting_node_head_versions(old)) + 1 >= MAX_CONFLICTING_HEADS
            and is_upsert_conflicting_with_stored_node(put, old, rules)
        ):
            raise Conflict(
                f"node {put.id!r} has {MAX_CONFLICTING_HEADS} heads in conflict; "
                "put a version that is based on one of them first"
            )


def _ends_before_start(put: NodeExtrasUpsert | EdgeExtrasUpsert | None, old: NodeExtras | EdgeExtras | None) -> bool:
    if put is None:
        return False
    start, end = put.valid_from, put.valid_to
    start = (old and old.valid_from) if start is UNSET else start
    end = (old and old.valid_to) if end is UNSET else end
    return start is not None and end is not None and end < start


def _list_kinds(kinds: frozenset[str]) -> str:
    names = sorted(kinds)
    more = f" and {len(names) - MAX_TYPES_IN_MESSAGE} more" if len(names) > MAX_TYPES_IN_MESSAGE else ""
    return ", ".join(names[:MAX_TYPES_IN_MESSAGE]) + more
