"""What the journal says of nodes that were deleted, of which a snapshot has a file of its own: their last versions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kgserve.decoding import msgpack_decoder
from kgserve.journal.frame import Frame

_NAME = b"last_versions"


class _Part(msgspec.Struct, frozen=True):
    """What is decoded of a change set."""

    sequence: int
    nodes_deleted: list[str] = []
    last_versions: list[int] = []


_decode = msgpack_decoder(list[_Part]).decode


def last_versions(frames: Iterable[Frame], after: int, last: int) -> dict[str, int]:
    """The nodes that the commits after one, up to the ``last``, delete, with their versions; 0: need not be known.

    Commits of before there were such numbers say none.
    """
    found: dict[str, int] = {}
    for frame in frames:
        if frame.first > last:
            break
        # Most frames delete nothing, and none is decoded in vain.
        if _NAME in frame.payload:
            for part in _decode(frame.payload):
                if after < part.sequence <= last:
                    found.update(zip(part.nodes_deleted, part.last_versions, strict=False))
    return found
