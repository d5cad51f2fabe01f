"""What the journal says of links, of which a snapshot has a file of its own, read without the rows around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kgserve.decoding import msgpack_decoder
from kgserve.journal.frame import Frame
from kgserve.model.change import LinksState
from kgserve.model.rows import LinkKey, LinkRow

_NAME = b"links_"


class LinkChange(msgspec.Struct, frozen=True):
    """What a commit says of links: what is decoded of its change set."""

    sequence: int
    links_created: list[LinkRow] = []
    links_updated: list[LinkRow] = []
    links_touched: list[LinkRow] = []
    links_deleted: list[LinkKey] = []
    links: LinksState | None = None

    @property
    def put(self) -> list[LinkRow]:
        """The links that it writes."""
        return [*self.links_created, *self.links_updated, *self.links_touched]


_decode = msgpack_decoder(list[LinkChange]).decode


def link_changes(frames: Iterable[Frame], after: int, last: int) -> Iterator[LinkChange]:
    """The commits after one, up to the ``last``, that change links."""
    for frame in frames:
        if frame.first > last:
            break
        # Most frames have no link, and none is decoded in vain.
        if _NAME in frame.payload:
            yield from (part for part in _decode(frame.payload) if after < part.sequence <= last and part.links)
