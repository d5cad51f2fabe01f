"""Values of statements as PackStream structures, and back."""

from __future__ import annotations

from typing import Any

from kgserve.errors import InvalidInput
from kgserve.server.bolt.graph_structures import (
    NODE,
    PATH,
    RELATIONSHIP,
    UNBOUND_RELATIONSHIP,
    BoltGraphStructures,
)
from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.packstream import PackStreamEncoder, ProtocolViolation
from kgserve.server.bolt.temporal_structures import BoltTemporalCodec

_POINT_2D, _POINT_3D, _VECTOR = b"XYV"
_REFUSED = {
    NODE: "a node cannot be a parameter; pass its elementId or its properties",
    RELATIONSHIP: "a relationship cannot be a parameter; pass its properties",
    UNBOUND_RELATIONSHIP: "a relationship cannot be a parameter; pass its properties",
    PATH: "a path cannot be a parameter; pass ids of its nodes",
    _POINT_2D: "points are not supported; pass a map or a list of coordinates",
    _POINT_3D: "points are not supported; pass a map or a list of coordinates",
    _VECTOR: "vectors are not supported; pass a list of numbers",
}
UTC_SINCE: ProtocolVersion = (5, 0)


class BoltValueCodec:
    """Conversion between run-time values and structures, for a version of Bolt.

    ``is_utc`` selects the structures of times with zones that versions before 5.0 must ask for.
    """

    def __init__(self, version: ProtocolVersion, *, is_utc: bool = False) -> None:
        self._temporal = BoltTemporalCodec(is_utc=is_utc or version >= UTC_SINCE)
        self.encoder = PackStreamEncoder({**BoltGraphStructures(version).writers(), **self._temporal.writers()})

    def build_structure(self, tag: int, fields: list[Any]) -> Any:
        """Return the value of a structure in parameters. Raises InvalidInput or ProtocolViolation."""
        if self._temporal.has_reader(tag):
            return self._temporal.read(tag, fields)
        if tag in _REFUSED:
            raise InvalidInput(_REFUSED[tag])
        raise ProtocolViolation(f"there is no structure with tag {tag:#04x} and {len(fields)} fields")
