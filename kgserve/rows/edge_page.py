"""A page of the edges of one node, in the order in which they are shown, without reading those that are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import numpy as np

from kgserve.model.rows import EdgeRow
from kgserve.rows.base import Base
from kgserve.rows.delta import Gathered, edge_data
from kgserve.rows.fold import created_at
from kgserve.rows.format import LAST, Numbers
from kgserve.rows.snapshot import Rows


def page_of_edges(
    rows: Rows, found: Gathered, kinds: Collection[str], start: int, limit: int
) -> tuple[list[bytes], bool]:
    """Some edges of one node as JSON, and whether there are more; all of them are looked at, as columns.

    They come by ordinal, those without one last, then by age and key.
    """
    own = found.base
    if kinds:
        codes = [rows.base.code(kind) for kind in kinds]
        own = own[np.isin(rows.base.relation[own], codes)]
    changed = [each for each in found.changed if not kinds or cast("EdgeRow", each[1].row).relation_type in kinds]
    changed.sort(key=lambda each: cast("EdgeRow", each[1].row).key)
    changed_rows = [cast("EdgeRow", version.row) for _, version in changed]
    ordinals = np.concatenate((rows.base.ordinals(own), [_ordinal(row) for row in changed_rows]))
    created = np.concatenate((rows.base.created[own], [created_at(row) for row in changed_rows]))
    total = len(ordinals)
    places = [_place(rows.base, number, cast("EdgeRow", version.row)) for number, version in changed]
    order = np.concatenate((2 * own + 1, places))
    first = first_places((ordinals, created, order), start + limit)[start:]
    texts = [
        rows.base.edge(int(own[at])) if at < len(own) else edge_data(changed[at - len(own)][1]) for at in first.tolist()
    ]
    return texts, start + limit < total


def _place(base: Base, number: int, row: EdgeRow) -> int:
    """Where an edge stands among those of the base, whose places are odd."""
    return 2 * number + 1 if number < base.edges else 2 * base.place(row.key)


def first_places(keys: Sequence[Numbers], count: int) -> Numbers:
    """The first ``count`` places by some keys, the most important first, then by place; only those are sorted."""
    rest = np.arange(len(keys[0]))
    chosen: list[Numbers] = []
    missing = min(count, len(rest))
    for key in keys:
        if missing == 0 or missing == len(rest):
            break
        values = key[rest]
        last = np.partition(values, missing - 1)[missing - 1]
        chosen.append(rest[values < last])
        rest = rest[values == last]
        missing -= len(chosen[-1])
    found = np.sort(np.concatenate((*chosen, rest[:missing])))
    return found[np.lexsort([key[found] for key in reversed(keys)])]


def _ordinal(row: EdgeRow) -> int:
    ordinal = row.extras.ordinal if row.extras is not None else None
    return LAST if ordinal is None else ordinal
