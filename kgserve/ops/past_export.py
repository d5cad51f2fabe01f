"""Exporting a store as it was, and making a new store of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from kgserve.errors import Conflict
from kgserve.history.history import History, State
from kgserve.model.answers import RestoreAnswer
from kgserve.model.requests import RestoreRequest
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.ops.exporting import encode_edges, encode_nodes
from kgserve.ops.importing import Importer
from kgserve.ops.moments import Past
from kgserve.ops.validity import Held, valid_moment
from kgserve.store.pool import StorePool
from kgserve.views.history import Historian, HistoryFollower

ROWS_AT_ONCE = 5_000


class PastStream:
    """All nodes, then all edges, as of one commit, as blocks of NDJSON lines; a context manager."""

    def __init__(
        self, follower: HistoryFollower, sequence: int, release: Callable[[], None], valid_at: int | None
    ) -> None:
        self._follower = follower
        self._valid_at = valid_at
        self._release = release
        self.sequence = sequence

    def __iter__(self) -> Iterator[bytes]:
        held = None if self._valid_at is None else Held(self._valid_at)
        after = ""
        while states := self._follower.look(_nodes(self.sequence, after)):
            rows = (msgspec.structs.astuple(state.row) for state in states)
            if block := encode_nodes(held.nodes(rows) if held else rows):
                yield block
            after = states[-1].row.id
        key = ("", "", "")
        while found := self._follower.look(_edges(self.sequence, key)):
            rows = (msgspec.structs.astuple(state.row) for state in found)
            if block := encode_edges(held.edges(rows) if held else rows):
                yield block
            key = found[-1].row.key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the store back."""
        release, self._release = self._release, lambda: None
        release()


def export_as_of(pool: StorePool, store: str, past: Past, valid_at: str | None = None) -> PastStream:
    """A store as it was, to stream; it is leased until it is closed. Raises NotFound, and what `Past.of` raises.

    With ``valid_at`` (RFC 3339) only what was true in the world then.
    """
    moment = valid_moment(valid_at)
    leased = pool.acquire(store)
    try:
        follower, at = past.of(leased)
    except BaseException:
        pool.release(leased)
        raise
    return PastStream(follower, at, lambda: pool.release(leased), moment)


def restore(pool: StorePool, historian: Historian | None, store: str, request: RestoreRequest) -> RestoreAnswer:
    """Make a new store of what another one was; its own history begins there. Blocks.

    Raises Conflict when the new store exists already, and what `export_as_of` and an import raise.
    """
    with export_as_of(pool, store, Past(historian, request.as_of)) as stream:
        if not pool.create(request.into):
            raise Conflict(f"store {request.into!r} exists already; restore into a new one")
        importer = Importer(pool, request.into)
        try:
            for block in stream:
                if importer.feed(block):
                    importer.flush()
            done = importer.finish()
        except BaseException:
            importer.abort()
            pool.drop(request.into)
            raise
    return RestoreAnswer(
        name=request.into,
        nodes=done.nodes_created,
        edges=done.edges_created,
        from_sequence=stream.sequence,
        sequence=done.sequence,
    )


def _nodes(at: int, after: str) -> Callable[[History], list[State[NodeRow]]]:
    return lambda history: history.nodes_at(at, None, after, ROWS_AT_ONCE)


def _edges(at: int, after: EdgeKey) -> Callable[[History], list[State[EdgeRow]]]:
    return lambda history: history.edges_at(at, after, ROWS_AT_ONCE)
