"""What memories are worth now: their confidence, faded since it was set or used, and what a use makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kgserve.model import decay
from kgserve.model.change import Access
from kgserve.model.decay import Worth, worth_of
from kgserve.model.rows import NodeRow
from kgserve.model.stores import MemorySettings
from kgserve.store.store import Store


def now_in_microseconds() -> int:
    """The server's clock."""
    return time.time_ns() // 1000


def settings_of(store: Store) -> MemorySettings:
    """What a store's settings say of memories."""
    return store.description.memory


def use(store: Store, rows: Iterable[NodeRow], now: int, least: Mapping[str, float] | None = None) -> dict[str, Access]:
    """Count one use of each memory, which raises its confidence; ``least`` is what some are worth in any case."""
    by_id = {row.id: row for row in rows}
    settings, at_least = settings_of(store), least or {}
    half_lives = settings.half_lives

    def used(node_id: str, before: Access | None) -> Access:
        row = by_id[node_id]
        worth, fading = worth_of(row, before), half_lives.of(row.type)
        if (floor := at_least.get(node_id, 0.0)) > decay.effective(worth, now, fading):
            worth = Worth(floor, now)
        risen = decay.reinforced(worth, now, fading, settings.reinforcement)
        return Access(node_id, 1 if before is None else before.count + 1, risen.since, risen.confidence)

    return store.accesses.update(by_id, used)
