"""The rows of a store, as the journal and the engine hold them."""

from __future__ import annotations

import msgspec

from kgserve.model.fields import EdgeExtras, NodeExtras

EMPTY_OBJECT = "{}"

EdgeKey = tuple[str, str, str]
"""Source id, target id, relation type: at most one edge has it."""


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of an entity. ``attributes`` is compact JSON with sorted keys; times are microseconds since 1970.

    ``extras`` is None until a state has any; from then on it stays, if need be with nothing in it.
    """

    id: str
    type: str
    content: str
    attributes: str
    version: int
    sequence: int
    created_at: int
    updated_at: int
    extras: NodeExtras | None = None

    def holds_at(self, moment: int) -> bool:
        """Whether it was true at a moment of the world, in microseconds."""
        return holds(self.extras, moment)


class EdgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of a relation. ``attributes`` starts with created_at and updated_at, as `edge_attributes` writes it.

    ``extras`` is None where there is nothing to say in it.
    """

    source: str
    target: str
    relation_type: str
    weight: float
    attributes: str
    version: int
    sequence: int
    extras: EdgeExtras | None = None

    def holds_at(self, moment: int) -> bool:
        """Whether it was true at a moment of the world, in microseconds."""
        return holds(self.extras, moment)

    @property
    def key(self) -> EdgeKey:
        """What identifies the relation."""
        return (self.source, self.target, self.relation_type)


def holds(extras: NodeExtras | EdgeExtras | None, moment: int) -> bool:
    """Whether what has these extras was true at a moment of the world, in microseconds."""
    if extras is None:
        return True
    begun = extras.valid_from is None or extras.valid_from <= moment
    return begun and (extras.valid_to is None or moment < extras.valid_to)


class Stamps(msgspec.Struct, frozen=True, gc=False):
    """The parts of an edge's attributes: two times as text, and the caller's own attributes as compact JSON."""

    created_at: str
    updated_at: str
    own: str


_CREATED = '{"created_at":"'
_UPDATED = '","updated_at":"'


def edge_attributes(created_at: str, updated_at: str, own: str) -> str:
    """The stored text: both times first, then the caller's attributes. Times must be RFC 3339 (no quotes inside)."""
    rest = "}" if own == EMPTY_OBJECT else "," + own[1:]
    return f'{_CREATED}{created_at}{_UPDATED}{updated_at}"{rest}'


def edge_created(attributes: str) -> str:
    """The ``created_at`` of `edge_stamps`, alone."""
    return attributes[len(_CREATED) : attributes.index('"', len(_CREATED))]


def edge_stamps(attributes: str) -> Stamps:
    """The inverse of `edge_attributes`."""
    created_end = attributes.index('"', len(_CREATED))
    updated_start = created_end + len(_UPDATED)
    updated_end = attributes.index('"', updated_start)
    tail = attributes[updated_end + 1 :]
    own = EMPTY_OBJECT if tail == "}" else "{" + tail[1:]
    return Stamps(attributes[len(_CREATED) : created_end], attributes[updated_start:updated_end], own)
