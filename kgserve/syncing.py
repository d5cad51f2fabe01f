"""Interfaces of connectors to external indexes, which receive the contents of stores after each commit.

A syncer is called after each commit, by a thread of its own that reads the journal. Writes never wait for it or fail
because of it. Calls come in the order of commits, one at a time. If a call raises any exception, it is repeated after a
second, and later after up to a minute. After a crash, accepted changes may be sent again, so applying them twice must
have the same effect as once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec
from typing_extensions import override


@runtime_checkable
class VectorSyncer(Protocol):
    """Connector to an external index: it takes the content of one node at a time, after each commit."""

    def add_content(self, store: str, node_id: str, content: str, attributes: Mapping[str, Any]) -> None:
        """Set the content of a node, replacing any earlier one. ``attributes`` are the node's own."""
        ...

    def delete_content(self, store: str, node_id: str) -> None:
        """Remove the content of a node, which may never have been added."""
        ...


@runtime_checkable
class ClearableVectorSyncer(VectorSyncer, Protocol):
    """`VectorSyncer` that can clear a store.

    A syncer without this method keeps contents that were deleted while it was not connected.
    """

    def forget_store(self, store: str) -> None:
        """Remove all contents of a store; all current ones are sent next."""
        ...


class ContentChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Current content of a node; None if the node was deleted or withdrawn, or has no content."""

    id: str
    content: str | None = None
    type: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    sequence: int = 0


class SyncBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Net changes of one store for an external index: commits after ``after`` up to ``sequence``, or a part.

    Parts count from 0; ``more`` is true if another part follows. If ``anew`` is true, part 0 requires clearing the
    store first, and the changes are its complete contents at ``sequence``. All parts together have at most one change
    per node.
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
    """Connector to an external index that accepts the changes of a store in batches."""

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """Apply a whole batch. May raise any exception, and should do so soon after ``unwanted()`` returns True."""
        ...


class VectorSyncerAsBatchSyncer(BatchSyncer):
    """Adapter that lets a `VectorSyncer` be used as a `BatchSyncer`."""

    def __init__(self, syncer: VectorSyncer) -> None:
        self._syncer = syncer

    @override
    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        if batch.anew and batch.part == 0 and isinstance(self._syncer, ClearableVectorSyncer):
            self._syncer.forget_store(batch.store)
        for change in batch.changes:
            if unwanted():
                raise InterruptedError
            if change.content is None:
                self._syncer.delete_content(batch.store, change.id)
            else:
                self._syncer.add_content(batch.store, change.id, change.content, change.attributes)
