"""What the journal says of what is no row, and a snapshot has in files of its own; read without the rows around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import msgspec

from kgserve.decoding import msgpack_decoder
from kgserve.journal.journal import Frame
from kgserve.model.change import Access, LinksState
from kgserve.model.rows import LinkKey, LinkRow

Changed = dict[str, Access | None]
"""Final values of accesses by id; None for those that went with their node."""


class _Part(Protocol):
    """What is decoded of a change set."""

    @property
    def sequence(self) -> int: ...


Part = TypeVar("Part", bound=_Part)


class _Accesses(msgspec.Struct, frozen=True):
    sequence: int
    nodes_deleted: list[str] = []
    accessed: list[Access] = []


class _Ended(msgspec.Struct, frozen=True):
    sequence: int
    nodes_deleted: list[str] = []
    last_versions: list[int] = []


class LinkChange(msgspec.Struct, frozen=True):
    """What a commit says of links."""

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


_accesses = msgpack_decoder(list[_Accesses]).decode
_ended = msgpack_decoder(list[_Ended]).decode
_links = msgpack_decoder(list[LinkChange]).decode


def changed_accesses(frames: Iterable[Frame], after: int, last: int) -> Changed:
    """What the commits after one, up to the ``last``, come to."""
    changed: Changed = {}
    for part in _parts(frames, after, last, _accesses, b"accessed", b"nodes_deleted"):
        changed.update(dict.fromkeys(part.nodes_deleted))
        changed.update((access.id, access) for access in part.accessed)
    return changed


def last_versions(frames: Iterable[Frame], after: int, last: int) -> dict[str, int]:
    """The nodes that the commits after one, up to the ``last``, delete, with their versions; 0: need not be known.

    Commits of before there were such numbers say none.
    """
    found: dict[str, int] = {}
    for part in _parts(frames, after, last, _ended, b"last_versions"):
        found.update(zip(part.nodes_deleted, part.last_versions, strict=False))
    return found


def link_changes(frames: Iterable[Frame], after: int, last: int) -> Iterator[LinkChange]:
    """The commits after one, up to the ``last``, that change links."""
    return (part for part in _parts(frames, after, last, _links, b"links_") if part.links)


def _parts(
    frames: Iterable[Frame], after: int, last: int, decode: Callable[[bytes], list[Part]], *names: bytes
) -> Iterator[Part]:
    """What the change sets after one, up to the ``last``, say in any of some fields."""
    for frame in frames:
        if frame.first > last:
            break
        # Most frames have none of them, and none is decoded in vain.
        if any(name in frame.payload for name in names):
            yield from (part for part in decode(frame.payload) if after < part.sequence <= last)
