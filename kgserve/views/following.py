"""What the change sets after a cursor mean for an index: entities to put, entities to remove."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kgserve.journal.tail import Tail
from kgserve.model.change import ChangeSet
from kgserve.model.rows import NodeRow
from kgserve.views.text import Text

ROWS_AT_ONCE = 20_000


class Step(msgspec.Struct, frozen=True):
    """The net effect of change sets up to ``sequence``. Entities without any words are to be removed."""

    put: list[Text]
    removed: list[str]
    sequence: int


def next_step(tail: Tail, after: int, last: int, rows: int = ROWS_AT_ONCE) -> Step | None:
    """The change sets after a sequence up to ``last``, at least one and then as many as fit ``rows``; None if none.

    Raises Gone when the journal does not go back that far, JournalDamaged.
    """
    taken: list[ChangeSet] = []
    size = 0
    for change in tail.read(after + 1, last):
        taken.append(change)
        size += change.size
        if size >= rows:
            break
    return net_effect(taken) if taken else None


def net_effect(changes: Iterable[ChangeSet]) -> Step:
    """What consecutive change sets come to."""
    rows: dict[str, NodeRow | None] = {}
    sequence = 0
    for change in changes:
        rows.update(dict.fromkeys(change.nodes_deleted))
        rows.update((row.id, row) for row in change.nodes_created)
        rows.update((row.id, row) for row in change.nodes_updated)
        sequence = change.sequence
    put = {node_id: text for node_id, row in rows.items() if row is not None and (text := Text.of(row)).has_words}
    return Step(list(put.values()), [node_id for node_id in rows if node_id not in put], sequence)
