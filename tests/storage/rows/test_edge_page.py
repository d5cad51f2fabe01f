"""Pagination of a node's edges, compared with sorting all of them, in the base and the delta."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.node_edge_fields import EdgeExtras
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.edge_pages import (
    encode_page_of_edges,
    filter_edges_by_type,
    filter_valid_edges,
    partially_sort_rank_range,
)
from kgserve.storage.rows.row_json_encoder import decode_edge_row_from_json

LEAVES = [f"n{number:02}" for number in range(10)]
BEFORE = [f"a{number:03}" for number in range(300)]
"""Ids that sort before the others, so that row numbers exceed CPython's cached small integers."""
LAST = 1 << 62


def made(choice: random.Random, source: str, target: str) -> EdgeRow:
    extras = EdgeExtras(choice.choice((None, None, 1, -2)), "", None, choice.choice((None, 5, 50)))
    stamp = format_rfc3339_timestamp(choice.choice((0, 1_000_000)))
    kind = choice.choice("rstu")
    return EdgeRow(
        source, target, kind, 1.0, encode_edge_attributes(stamp, stamp, "{}"), 1, 1, choice.choice((None, extras))
    )


def changed(state: StoreState, gone: list[EdgeKey], news: list[EdgeRow]) -> ChangeSet:
    return ChangeSet(
        sequence=state.sequence,
        time=state.time,
        nodes_created=[],
        nodes_updated=[],
        nodes_deleted=[],
        edges_created=news,
        edges_updated=[],
        edges_touched=[],
        edges_deleted=gone,
        digest=bytes(16),
        nodes=state.nodes,
        edges=state.edges,
    )


def ends(choice: random.Random) -> tuple[str, str]:
    return ("hub", choice.choice(LEAVES)) if choice.random() < 0.5 else (choice.choice(LEAVES), "hub")


def expected_place(row: EdgeRow) -> tuple[object, ...]:
    ordinal = row.extras.ordinal if row.extras and row.extras.ordinal is not None else LAST
    return ordinal, row.attributes[: len('{"created_at":"') + 27], row.key


def held(row: EdgeRow) -> bool:
    return row.extras is None or row.extras.valid_to is None or row.extras.valid_to > 10


@pytest.mark.parametrize("seed", range(4))
def test_pagination_of_edges_matches_full_sort(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    nodes = [NodeRow(each, "t", "", "{}", 1, 1, 0, 0) for each in (*BEFORE, "hub", *LEAVES)]
    edges = {row.key: row for row in (made(choice, *ends(choice)) for _ in range(60))}
    view = CurrentRowsProjection(tmp_path)
    before = StoreState(1, 0, 0, len(nodes), len(edges))
    view.renew(nodes, [edges[key] for key in sorted(edges)], before, lambda _: ())
    if seed:
        gone = choice.sample(sorted(edges), 5)
        news = {row.key: row for row in (made(choice, *ends(choice)) for _ in range(20))}
        edges = {key: row for key, row in edges.items() if key not in gone} | news
        after = StoreState(2, 1, 0, len(nodes), len(edges))
        view.apply([changed(after, gone, [*news.values()])])
    for outgoing, kinds, moment in product((True, False), ((), ("r",), ("r", "x")), (None, 10)):
        own = [row for row in edges.values() if (row.source if outgoing else row.target) == "hub"]
        own = [row for row in own if (not kinds or row.relation_type in kinds) and (moment is None or held(row))]
        own.sort(key=expected_place)
        with view.reading() as rows:
            found = filter_edges_by_type(
                rows, rows.edges_around(np.array([rows.number("hub")]), outgoing=outgoing), kinds
            )
            found = found if moment is None else filter_valid_edges(rows, found, moment, outgoing=outgoing)
            for start, limit in product((0, 1, 7, len(own) - 1, len(own), 99), (1, 5, 99)):
                page, more = encode_page_of_edges(rows, found, max(start, 0), limit)
                there = own[max(start, 0) :][:limit]
                assert [decode_edge_row_from_json(text, 0).key for text in page] == [row.key for row in there]
                assert more == (max(start, 0) + limit < len(own))


def test_ranked_sorts_only_the_requested_range() -> None:
    choice = np.random.default_rng(1)
    one, other = choice.integers(0, 3, 500), choice.integers(0, 50, 500)
    order = np.lexsort((np.arange(500), other, one))
    for start, end in ((0, 10), (150, 170), (480, 500), (0, 500), (499, 600), (500, 510), (20, 20)):
        found = partially_sort_rank_range((one.__getitem__, other.__getitem__), np.arange(500), start, end)
        assert found.tolist() == order[start:end].tolist()
