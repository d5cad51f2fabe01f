"""What the present state and a store's settings do not allow of a write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kgserve.errors import Conflict
from kgserve.model.batch import EdgePut, NodePut
from kgserve.model.extras import conflicts, edge_extras, node_extras
from kgserve.model.fields import EdgeExtras, NodeExtras
from kgserve.model.rows import EdgeRow, NodeRow

MAX_NAMED = 10
MAX_HEADS = 100

Fault = tuple[str, str]
"""A field, and what is wrong with it."""


class Rules(msgspec.Struct, frozen=True):
    """What a store's settings say about writes. ``kinds``: only these types; empty: any.

    ``keeps_both``: what is based on a version that is no longer a head is kept beside the heads, as a conflict.
    """

    kinds: frozenset[str] = frozenset()
    keeps_both: bool = False

    def allows(self, node_type: str | None) -> bool:
        """Whether a node may be given a type."""
        return node_type is None or not self.kinds or node_type in self.kinds


ANY = Rules()


def node_fault(put: NodePut, old: NodeRow | None, rules: Rules) -> Fault | None:
    """What is wrong with a node, if anything is."""
    if put.type is None and old is None:
        return "type", "is required for a node that does not exist yet"
    if not rules.allows(put.type):
        return "type", f"{put.type!r} is not one of the kinds that this store takes: {_some(rules.kinds)}"
    if put.extras is not None and _is_backwards(node_extras(put.extras, old and old.extras)):
        return _BACKWARDS
    return None


def edge_fault(put: EdgePut, old: EdgeRow | None) -> Fault | None:
    """What is wrong with an edge, if anything is."""
    backwards = put.extras is not None and _is_backwards(edge_extras(put.extras, old and old.extras))
    return _BACKWARDS if backwards else None


_BACKWARDS = ("valid_to", "is before valid_from")


def goes_beside(put: NodePut, old: NodeRow, rules: Rules) -> bool:
    """Whether a state is to be kept beside the heads, for it is based on none of them."""
    stale = put.based_on is not None and put.based_on != old.version and put.based_on not in conflicts(old)
    return stale and rules.keeps_both


def check_heads(puts: Iterable[NodePut], nodes: Mapping[str, NodeRow], rules: Rules) -> None:
    """Raise Conflict when a node would have more than 100 heads: somebody writes without looking."""
    for put in puts:
        old = nodes.get(put.id)
        if old is not None and len(conflicts(old)) + 1 >= MAX_HEADS and goes_beside(put, old, rules):
            raise Conflict(
                f"node {put.id!r} has {MAX_HEADS} heads in conflict; put a version that is based on one of them first"
            )


def _is_backwards(extras: NodeExtras | EdgeExtras | None) -> bool:
    if extras is None or extras.valid_from is None or extras.valid_to is None:
        return False
    return extras.valid_to < extras.valid_from


def _some(kinds: frozenset[str]) -> str:
    names = sorted(kinds)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
