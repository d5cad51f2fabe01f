"""What writing does to the extras of a row."""

from __future__ import annotations

import msgspec

from kgserve.model.batch import NodePut
from kgserve.model.fields import NO_EDGE_EXTRAS, NO_EXTRAS, EdgeExtras, EdgeExtrasPut, NodeExtras, NodeExtrasPut
from kgserve.model.rows import NodeRow


def node_extras(put: NodeExtrasPut | None, old: NodeExtras | None) -> NodeExtras | None:
    """The extras of the next state, which stands alone. Once a node has any, it keeps some, be they empty."""
    extras = (put or _KEPT).onto(old or NO_EXTRAS) if put or old else NO_EXTRAS
    return None if old is None and extras == NO_EXTRAS else extras


def put_again(row: NodeRow) -> NodePut:
    """A put that makes a node what it was in a state, by whoever writes it now."""
    values = msgspec.structs.astuple(row.extras or NO_EXTRAS)[: len(NodeExtrasPut.__struct_fields__)]
    extras = msgspec.structs.replace(NodeExtrasPut(*values), created_by="")
    return NodePut(0, row.id, row.type, row.content, row.attributes, extras=extras)


def edge_extras(put: EdgeExtrasPut | None, old: EdgeExtras | None) -> EdgeExtras | None:
    """The extras of the next state; None when there is nothing in them."""
    extras = (put or _KEPT_OF_EDGE).onto(old or NO_EDGE_EXTRAS) if put or old else NO_EDGE_EXTRAS
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


_KEPT = NodeExtrasPut()
_KEPT_OF_EDGE = EdgeExtrasPut()
