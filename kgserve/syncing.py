"""What others are told of the contents of stores, so that an index of theirs can follow, and what they must be.

An index of others is something that contents can be added to and deleted from. It is called after the commit, by a
thread of its own that reads the journal, so no write ever waits for it or fails for it. Calls come in the order of
commits, one at a time. What was refused, by any exception, comes again after a second, later after up to a minute. What
was taken may come again after a crash: taking it twice must come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec


@runtime_checkable
class VectorSyncer(Protocol):
    """An index that takes one content at a time."""

    def add_content(self, store: str, node_id: str, content: str, attributes: Mapping[str, Any]) -> None:
        """A node has this content now, whatever it had before. Attributes are the node's own."""
        ...

    def delete_content(self, store: str, node_id: str) -> None:
        """A node is gone, or has no content any more; it may never have had any."""
        ...


@runtime_checkable
class ForgetfulSyncer(VectorSyncer, Protocol):
    """The same, which can be told to begin anew; one that cannot keeps what was deleted while it was not told."""

    def forget_store(self, store: str) -> None:
        """Forget all of a store: every content that it has comes now."""
        ...


class ContentChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the content of a node is now; None when the node is gone, withdrawn, or has no content any more."""

    id: str
    content: str | None = None
    type: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    sequence: int = 0


class SyncBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one store that come to what its commits from behind ``after`` up to ``sequence`` did, or to a part.

    Parts count from 0, and there are ``more`` or not. With ``anew`` part 0 says to forget all of the store first: what
    follows is all that it has at ``sequence``. Of a node there is one change at most, in all parts together.
    """

    store: str
    after: int
    sequence: int
    part: int = 0
    more: bool = False
    anew: bool = False
    changes: tuple[ContentChange, ...] = ()


@runtime_checkable
class BatchSyncer(Protocol):
    """An index that takes changes as they come, many at a time."""

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """Take a batch as a whole. May raise anything, and should soon, once nobody wants it any more."""
        ...


class OneByOne:
    """A `VectorSyncer` as one that takes batches."""

    def __init__(self, syncer: VectorSyncer) -> None:
        self._syncer = syncer

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """See `BatchSyncer`."""
        if batch.anew and batch.part == 0 and isinstance(self._syncer, ForgetfulSyncer):
            self._syncer.forget_store(batch.store)
        for change in batch.changes:
            if unwanted():
                raise InterruptedError
            if change.content is None:
                self._syncer.delete_content(batch.store, change.id)
            else:
                self._syncer.add_content(batch.store, change.id, change.content, change.attributes)
