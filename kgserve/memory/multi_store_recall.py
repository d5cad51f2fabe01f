"""Recall from one store or several: by keywords, vectors, both, or along entities.

Several stores are queried one after another, because each may have to be opened. Uses are recorded only after the hits
of the answer are known.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from kgserve.errors import InvalidInput, NoStore, NotFound
from kgserve.graph.search.node_search import (
    compute_elapsed_ms,
    drop_request_minimum_sequence,
    open_search_snapshot_when_indexed,
    stores_to_search,
)
from kgserve.graph.search.search_notices import SearchNotices
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.memory_models import RecallAnswer, RecalledMemory, RecallRequest, StillReferencedDeletedEntity
from kgserve.memory.recall import (
    MemoryRecall,
    RecallPage,
    ScoresById,
    count_contents_in_token_budget,
    parse_creation_time_range,
    update_memory_use_fields,
)
from kgserve.memory.recall_scoring import count_withheld_memories
from kgserve.memory.serialization import record_memory_uses

RECALL_INDEX_TIMEOUT_SECONDS = 0.25
"""Total time that recall waits for the indexes to reach the latest commit."""
MAX_MULTI_STORE_OFFSET = 1_000
"""Largest offset if several stores are queried."""


def recall_best_memories(graph: StoreHandle, request: RecallRequest) -> RecallAnswer:
    """Return the best memories that pass all filters, best first; they count as used.

    They do not count with `touch` false, a read-only key, or `as_of`. With `as_of`, confidence is computed for that
    moment, and at most 3,200 hits are examined. `hybrid`, the default, adds keyword and vector scores and multiplies by
    the effective confidence. `graph` starts at `entity`, at the entities that the query names, or at those of the five
    best hits, and follows relations. `withheld` counts the best matches whose confidence is too low or that are not
    valid.

    In hybrid mode, a turn of a conversation (`next` relations) gains from better turns one or two steps away. With
    `expand`, the words of those turns count too, and neighbours of the ten best hits receive part of their scores.
    Neighbours must pass the filters and never rank above the hit. Equal statements are shown once, with the number
    `said`. With `also`, the memories of several stores are ranked together, each with its `store`, and count as used
    there.

    Memories about a deleted `entity` are found by its id or name while the store's history contains it;
    `deleted_entity` then reports when it was deleted.

    Raises the same errors as a search, NotFound for an `entity` that never existed, and Conflict for an ambiguous name.
    """
    started = time.perf_counter()
    attributes = {"kgserve.store": graph.name, "kgserve.search.mode": request.mode}
    touch = request.touch and request.as_of is None and graph.graphs.caller.has_role("write")
    with graph.pool.observation.span("recall", attributes):
        recall_from = _recall_several if request.also else _recall_one
        answer = recall_from(graph, request, time.monotonic() + RECALL_INDEX_TIMEOUT_SECONDS, touch=touch)
    answer.took_ms = compute_elapsed_ms(started)
    return answer


def _recall_one(graph: StoreHandle, request: RecallRequest, until: float, *, touch: bool) -> RecallAnswer:
    with _open_recall(graph, request, until) as recaller:
        hits = recaller.hits(touch=touch)
        return RecallAnswer(
            hits=hits,
            withheld=recaller.withheld,
            degraded=recaller.searched.degraded,
            index_sequence=recaller.searched.sequence,
            took_ms=0.0,
            notice=recaller.notices.text(has_hits=bool(hits), degraded=recaller.searched.degraded),
            deleted_entity=recaller.deleted_entity,
        )


@contextmanager
def _open_recall(
    graph: StoreHandle,
    request: RecallRequest,
    until: float,
    top: float = 0.0,
    notices: SearchNotices | None = None,
) -> Generator[MemoryRecall]:
    dates, patience = parse_creation_time_range(request), until - time.monotonic()
    with open_search_snapshot_when_indexed(
        graph, request, words_alone=request.mode == "keyword", patience=patience
    ) as searched:
        yield MemoryRecall(searched, request, dates, top, graph.graphs.historian, notices)


class _StoreRecall(NamedTuple):
    """Ranked hits of one of several stores with their rows; no use is recorded yet."""

    graph: StoreHandle
    page: RecallPage
    shown: dict[str, RecalledMemory]
    left_out: ScoresById
    why: dict[str, str]
    now: int
    degraded: bool
    sequence: int
    deleted_entity: StillReferencedDeletedEntity | msgspec.UnsetType


def _recall_several(graph: StoreHandle, request: RecallRequest, until: float, *, touch: bool) -> RecallAnswer:
    if request.offset > MAX_MULTI_STORE_OFFSET:
        raise InvalidInput.at("offset", f"must be at most {MAX_MULTI_STORE_OFFSET:,} with `also`")
    graphs = stores_to_search(graph, request.also or (), request.as_of)
    asked = [(each, request if each is graph else drop_request_minimum_sequence(request)) for each in graphs]
    limit, top = _limit_and_top_score(asked, until)
    notices = SearchNotices()
    parts = _recall_each(asked, request.offset + limit, until, top, notices)
    ranked = sorted(((hit, part) for part in parts for hit in part.page.hits), key=lambda found: -found[0].score)
    page = ranked[request.offset : request.offset + limit]
    left = Counter[str]()
    for part in parts:
        left.update(count_withheld_memories([hit for hit, _ in page], limit, part.left_out, part.why))
    if request.budget is not None:
        count = count_contents_in_token_budget((part.page.rows[hit.id].content for hit, part in page), request.budget)
        left.update({"over_budget": len(page) - count} if count < len(page) else {})
        page = page[:count]
    for part in parts if touch else ():
        _record_uses(part, [hit.id for hit, its in page if its is part])
    degraded = any(part.degraded for part in parts)
    return RecallAnswer(
        hits=[part.shown[hit.id] for hit, part in page],
        withheld=dict(sorted(left.items())),
        degraded=degraded,
        index_sequence=next((part.sequence for part in parts if part.graph is graph), 0),
        took_ms=0.0,
        notice=notices.text(has_hits=bool(page), degraded=degraded),
        deleted_entity=_deleted_in_all(parts),
    )


def _limit_and_top_score(asked: Sequence[tuple[StoreHandle, RecallRequest]], until: float) -> tuple[int, float]:
    """Return the limit of the first store, and the best keyword score of any store."""
    limit, top = 0, 0.0
    for graph, request in asked:
        with _open_recall(graph, _without_anchors(request), until) as recaller:
            limit = limit or recaller.limit
            if request.mode != "hybrid":
                break
            top = max(top, recaller.top)
    return limit, top


def _without_anchors(request: RecallRequest) -> RecallRequest:
    """Return the request without filters that need not exist in a store, to read its keyword scores."""
    return msgspec.structs.replace(request, entity=None, under=None)


def _recall_each(
    asked: Iterable[tuple[StoreHandle, RecallRequest]], wanted: int, until: float, top: float, notices: SearchNotices
) -> list[_StoreRecall]:
    """Return the hits of each store; a named entity or memory may exist in some only. Raises NotFound."""
    parts: list[_StoreRecall] = []
    missing: NotFound | None = None
    for graph, request in asked:
        try:
            parts.append(_recall_part(graph, request, wanted, until, top, notices))
        except NoStore:
            raise
        except NotFound as error:
            missing = missing or error
    if missing is not None and not parts:
        raise missing
    return parts


def _recall_part(
    graph: StoreHandle, request: RecallRequest, wanted: int, until: float, top: float, notices: SearchNotices
) -> _StoreRecall:
    with _open_recall(graph, request, until, top, notices) as recaller:
        page = recaller.page(0, wanted)
        shown = {each.id: each for each in recaller.shown(page.hits, page)}
        for each in shown.values():
            each.store = graph.name
        searched, deleted = recaller.searched, recaller.deleted_entity
        return _StoreRecall(
            graph, page, shown, *recaller.left_out, recaller.now, searched.degraded, searched.sequence, deleted
        )


def _deleted_in_all(parts: Sequence[_StoreRecall]) -> StillReferencedDeletedEntity | msgspec.UnsetType:
    """Return the requested entity if every store that knows it has deleted it."""
    deleted = [part.deleted_entity for part in parts]
    return msgspec.UNSET if msgspec.UNSET in deleted or not deleted else deleted[0]


def _record_uses(part: _StoreRecall, ids: Sequence[str]) -> None:
    """Record uses of some hits of a store; of none if the store was dropped meanwhile."""
    if ids:
        with suppress(NoStore), part.graph.lease() as store:
            used = record_memory_uses(store, [part.page.rows[each] for each in ids], part.now)
            for each in ids:
                update_memory_use_fields(part.shown[each], used.get(each))
