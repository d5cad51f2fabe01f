"""Recalling memories: by words, by meaning, by both, or from entity to entity; from one store or from several.

Several stores are asked one after the other, for each may have to be opened, and none is held up by another. Nothing
counts as used before it is known which hits are shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from kgserve.errors import InvalidInput, NoStore, NotFound
from kgserve.graph.handle import Graph
from kgserve.graph.search.search import alone, searching, several, since
from kgserve.memory.api import DeletedEntity, RecallAnswer, RecalledMemory, RecallRequest
from kgserve.memory.presentation import record_use
from kgserve.memory.recall import Hits, MemoryRecall, RecallPage, affordable, count_use, created
from kgserve.memory.recall_scoring import withheld

RECALL_INDEX_TIMEOUT_SECONDS = 0.25
"""So long the indexes have, in all, to see what was stored before it was asked."""
MAX_MULTI_STORE_OFFSET = 1_000
"""So many hits are passed over, at most, where several stores are asked."""


def recall(graph: Graph, request: RecallRequest) -> RecallAnswer:
    """Answers with the best memories, best first, that pass all filters; then they count as used.

    They do not with `touch` false, a key that only reads, or `as_of`: then each is worth what its row says, faded until
    that moment, and 3,200 hits are looked through at most for those that had not faded. `hybrid`, the default, adds up
    words and meaning and multiplies with what is left of the confidence; `graph` goes from `entity`, or from whom and
    what the query names, or from what the five best hits are about, to what is related. `withheld` counts those of the
    best matches that have faded or are not true.

    A turn of a conversation (`next` relations) gains from better ones one or two turns away, in hybrid mode. With
    `expand` it also has a part of their words, and what stands beside the ten best takes a part of their scores, never
    above them, if it passes the filters as well; and of those that say the same the best is shown, with the number
    `said`. With `also` the memories of several stores come best first, each with its `store`, and count as used there.

    The memories about an `entity` that was deleted are found by its id or name as long as the store's history knows it;
    `deleted_entity` then says when it was deleted.

    Raises what a search raises, NotFound for an `entity` that never was there, and Conflict for a name that several
    have.
    """
    started = time.perf_counter()
    attributes = {"kgserve.store": graph.name, "kgserve.search.mode": request.mode}
    touch = request.touch and request.as_of is None and graph.graphs.caller.may("write")
    with graph.pool.observation.span("recall", attributes):
        of = _of_several if request.also else _of_one
        answer = of(graph, request, time.monotonic() + RECALL_INDEX_TIMEOUT_SECONDS, touch=touch)
    answer.took_ms = since(started)
    return answer


def _of_one(graph: Graph, request: RecallRequest, until: float, *, touch: bool) -> RecallAnswer:
    with _recalling(graph, request, until) as recaller:
        hits = recaller.hits(touch=touch)
        return RecallAnswer(
            hits=hits,
            withheld=recaller.withheld,
            degraded=recaller.searched.degraded,
            index_sequence=recaller.searched.sequence,
            took_ms=0.0,
            deleted_entity=recaller.deleted_entity,
        )


@contextmanager
def _recalling(graph: Graph, request: RecallRequest, until: float, top: float = 0.0) -> Generator[MemoryRecall]:
    dates, patience = created(request), until - time.monotonic()
    with searching(graph, request, words_alone=request.mode == "keyword", patience=patience) as searched:
        yield MemoryRecall(searched, request, dates, top, graph.graphs.historian)


class _StoreRecall(NamedTuple):
    """What one of several stores has found, best first, with what its rows say; nothing of it counts as used yet."""

    graph: Graph
    page: RecallPage
    shown: dict[str, RecalledMemory]
    left_out: Hits
    why: dict[str, str]
    now: int
    degraded: bool
    sequence: int
    deleted_entity: DeletedEntity | msgspec.UnsetType


def _of_several(graph: Graph, request: RecallRequest, until: float, *, touch: bool) -> RecallAnswer:
    if request.offset > MAX_MULTI_STORE_OFFSET:
        raise InvalidInput.at("offset", f"is at most {MAX_MULTI_STORE_OFFSET:,} with also")
    graphs = several(graph, request.also or (), request.as_of)
    asked = [(each, request if each is graph else alone(request)) for each in graphs]
    limit, top = _measures(asked, until)
    parts = _parts(asked, request.offset + limit, until, top)
    ranked = sorted(((hit, part) for part in parts for hit in part.page.hits), key=lambda found: -found[0].score)
    page = ranked[request.offset : request.offset + limit]
    left = Counter[str]()
    for part in parts:
        left.update(withheld([hit for hit, _ in page], limit, part.left_out, part.why))
    if request.budget is not None:
        count = affordable((part.page.rows[hit.id].content for hit, part in page), request.budget)
        left.update({"over_budget": len(page) - count} if count < len(page) else {})
        page = page[:count]
    for part in parts if touch else ():
        _touch(part, [hit.id for hit, its in page if its is part])
    return RecallAnswer(
        hits=[part.shown[hit.id] for hit, part in page],
        withheld=dict(sorted(left.items())),
        degraded=any(part.degraded for part in parts),
        index_sequence=next((part.sequence for part in parts if part.graph is graph), 0),
        took_ms=0.0,
        deleted_entity=_deleted_in_all(parts),
    )


def _measures(asked: Sequence[tuple[Graph, RecallRequest]], until: float) -> tuple[int, float]:
    """How many hits are wanted, as the first store has it, and the best score that words have in any store."""
    limit, top = 0, 0.0
    for graph, request in asked:
        with _recalling(graph, _unbound(request), until) as recaller:
            limit = limit or recaller.limit
            if request.mode != "hybrid":
                break
            top = max(top, recaller.top)
    return limit, top


def _unbound(request: RecallRequest) -> RecallRequest:
    """The same without what a store need not have, for a look at its words."""
    return msgspec.structs.replace(request, entity=None, under=None)


def _parts(asked: Iterable[tuple[Graph, RecallRequest]], wanted: int, until: float, top: float) -> list[_StoreRecall]:
    """What each store has found. What an entity or a memory is named for may be in some alone. Raises NotFound."""
    parts: list[_StoreRecall] = []
    missing: NotFound | None = None
    for graph, request in asked:
        try:
            parts.append(_part(graph, request, wanted, until, top))
        except NoStore:
            raise
        except NotFound as error:
            missing = missing or error
    if missing is not None and not parts:
        raise missing
    return parts


def _part(graph: Graph, request: RecallRequest, wanted: int, until: float, top: float) -> _StoreRecall:
    with _recalling(graph, request, until, top) as recaller:
        page = recaller.page(0, wanted)
        shown = {each.id: each for each in recaller.shown(page.hits, page)}
        for each in shown.values():
            each.store = graph.name
        searched, deleted = recaller.searched, recaller.deleted_entity
        return _StoreRecall(
            graph, page, shown, *recaller.left_out, recaller.now, searched.degraded, searched.sequence, deleted
        )


def _deleted_in_all(parts: Sequence[_StoreRecall]) -> DeletedEntity | msgspec.UnsetType:
    """The entity that was asked for, if every store that knows it has deleted it."""
    deleted = [part.deleted_entity for part in parts]
    return msgspec.UNSET if msgspec.UNSET in deleted or not deleted else deleted[0]


def _touch(part: _StoreRecall, ids: Sequence[str]) -> None:
    """Count some of the hits of a store as used; of one that was dropped meanwhile none."""
    if ids:
        with suppress(NoStore), part.graph.lease() as store:
            used = record_use(store, [part.page.rows[each] for each in ids], part.now)
            for each in ids:
                count_use(part.shown[each], used.get(each))
