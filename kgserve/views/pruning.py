"""Memories that have faded: withdrawn, or deleted, as the store's settings want it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from kgserve.model.batch import WriteBatch
from kgserve.model.change import Access
from kgserve.model.consolidation import CHILD_OF, is_pinned
from kgserve.model.decay import DAY
from kgserve.model.fields import NO_EXTRAS
from kgserve.model.rows import NodeRow
from kgserve.model.withdrawing import PRUNED, is_active, withdrawn
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store
from kgserve.views.consolidating import WAIT_SECONDS, Pause, worths

Mode = Literal["archive", "delete", "off"]
_AT_ONCE = 500
_GENERAL = 1
"""Layers up to this one, domains and concepts, are what others stand below."""


class Pruned(NamedTuple):
    """What was done: the memories, and the last commit that it took."""

    ids: list[str]
    sequence: int


def faded(store: Store, now: int, pause: Pause) -> list[str]:
    """The memories worth less than the store's threshold at a moment, in microseconds, that nothing protects. Blocks.

    Protected are those that are pinned, domains and concepts, those that have children, and those that were written or
    accessed within a day.
    """
    found: list[str] = []
    with store.reading() as rows:
        for some in _slices(rows.all_nodes()):
            started = time.perf_counter()
            found += _faded_among(store, rows, some, now)
            pause(time.perf_counter() - started)
    return sorted(found)


def prune(store: Store, ids: Sequence[str], mode: Mode, now: int, author: str, pause: Pause) -> Pruned:
    """Withdraw or delete memories, as far as they are still faded when their turn comes. Blocks."""
    done, sequence = list[str](), store.state.sequence
    for first in range(0, len(ids), _AT_ONCE):
        started, some = time.perf_counter(), ids[first : first + _AT_ONCE]
        gone: list[str] = []

        def batch(some: Sequence[str] = some, gone: list[str] = gone) -> WriteBatch:
            with store.reading() as rows:
                found = rows.nodes(some)
                gone += _faded_among(store, rows, list(found.values()), now)
            if mode == "delete":
                return WriteBatch(delete_nodes=gone)
            return WriteBatch(nodes=[withdrawn(found[each], PRUNED, author=author) for each in gone])

        sequence = store.submit_prepared(batch, WAIT_SECONDS).result().sequence
        done += gone
        pause(time.perf_counter() - started)
    return Pruned(done, sequence)


def _faded_among(store: Store, rows: Rows, some: Sequence[NodeRow], now: int) -> list[str]:
    threshold = store.description.memory.prune_threshold
    candidates = [row for row in some if is_active(row, now) and not _is_protected(row)]
    members, accesses = worths(store, candidates, now), store.accesses.of([row.id for row in candidates])
    return [
        node_id
        for node_id, member in members.items()
        if member.effective < threshold
        and not _is_recent(member.row, accesses.get(node_id), now)
        and not _has_children(rows, node_id)
    ]


def _is_protected(row: NodeRow) -> bool:
    layer = (row.extras or NO_EXTRAS).layer
    return is_pinned(row) or (layer is not None and layer <= _GENERAL)


def _is_recent(row: NodeRow, access: Access | None, now: int) -> bool:
    """Whether it was written or accessed within a day; what was never changed was written when it says."""
    written = row.created_at if row.version == 1 else row.updated_at
    return max(written, access.last if access else written) > now - DAY


def _has_children(rows: Rows, node_id: str) -> bool:
    return any(edge.relation_type == CHILD_OF for edge in rows.incoming(node_id))


def _slices(rows: Iterator[NodeRow]) -> Iterator[list[NodeRow]]:
    while some := list(islice(rows, _AT_ONCE)):
        yield some
