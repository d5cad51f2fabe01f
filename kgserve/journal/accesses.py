"""What the journal says of accesses, of which a snapshot has a file of its own, read without the rows around them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kgserve.decoding import msgpack_decoder
from kgserve.journal.frame import Frame
from kgserve.model.change import Access

Changed = dict[str, Access | None]
"""Final values by id; None for accesses that went with their node."""

_NAMES = (b"accessed", b"nodes_deleted")


class _Part(msgspec.Struct, frozen=True):
    """What is decoded of a change set."""

    sequence: int
    nodes_deleted: list[str] = []
    accessed: list[Access] = []


_decode = msgpack_decoder(list[_Part]).decode


def changed_accesses(frames: Iterable[Frame], after: int, last: int) -> Changed:
    """What the commits after one, up to the ``last``, come to."""
    changed: Changed = {}
    for frame in frames:
        if frame.first > last:
            break
        # Most frames have neither, and none is decoded in vain.
        if any(name in frame.payload for name in _NAMES):
            for part in _decode(frame.payload):
                if after < part.sequence <= last:
                    changed.update(dict.fromkeys(part.nodes_deleted))
                    changed.update((access.id, access) for access in part.accessed)
    return changed
