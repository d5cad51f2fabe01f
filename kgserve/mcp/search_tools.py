"""The tools that find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Reply, Work
from kgserve.model.answers import BatchHit, ContextAnswer, SearchHit
from kgserve.model.requests import BatchSearchRequest, ContextRequest, SearchRequest
from kgserve.ops import search

_EXCERPT = 300

Hit = TypeVar("Hit", SearchHit, BatchHit)


def _search(work: Work, default: str | None, given: arguments.Search) -> Reply:
    wanted = SearchRequest(
        query=given.query,
        mode=given.mode,
        limit=given.limit,
        offset=given.offset,
        types=given.types or None,
        id_prefix=given.id_prefix,
        start_id=given.start_id or None,
        depth=given.depth,
        tags=given.tags or None,
        at_least=given.at_least or None,
        as_of=given.as_of or None,
        valid_at=given.valid_at or None,
    )
    found = search.search(work.graphs.graph(store_of(given.index, default)), wanted)
    hits, more = _fitted(found.hits, given.offset)
    if not more and len(hits) == given.limit:
        more = f"the next hits: offset={given.offset + len(hits)}"
    answer = answers.Found(
        hits=hits,
        degraded=found.degraded,
        index_sequence=found.index_sequence,
        took_ms=found.took_ms,
        more=more or msgspec.UNSET,
    )
    return Reply(_listing(hits, given.query, given.offset, more), answer)


def _search_batch(work: Work, default: str | None, given: arguments.SearchBatch) -> Reply:
    wanted = BatchSearchRequest(
        queries=given.queries,
        limit=given.limit,
        at_least=given.at_least or None,
        as_of=given.as_of or None,
        valid_at=given.valid_at or None,
    )
    store = store_of(given.index, default)
    found = search.search_batch(work.graphs.graph(store), wanted)
    hits, more = _fitted(found.hits, None)
    if not more and found.unique_hits > len(hits):
        more = f"{found.unique_hits - len(hits):,} hits more: a higher limit, or narrower queries"
    answer = answers.BatchFound(
        hits=hits,
        query_count=found.query_count,
        unique_hits=found.unique_hits,
        per_query_hits=found.per_query_hits,
        degraded=found.degraded,
        index_sequence=found.index_sequence,
        took_ms=found.took_ms,
        more=more or msgspec.UNSET,
    )
    return Reply(_listing(hits, " / ".join(variant.query for variant in given.queries), 0, more), answer)


def _context(work: Work, default: str | None, given: arguments.Context) -> Reply:
    wanted = ContextRequest(
        query=given.query,
        budget=given.budget,
        types=given.types or None,
        at_least=given.at_least or None,
        as_of=given.as_of or None,
        valid_at=given.valid_at or None,
    )
    found = search.context(work.graphs.graph(store_of(given.index, default)), wanted)
    if not found.ids:
        return Reply(f"Nothing was found for {quoted(budget.shortened(given.query, _EXCERPT))}.", found)
    tail = "\n\nThere is more than the budget allowed: raise budget, or ask more narrowly." if found.truncated else ""
    return Reply(found.text + tail, found)


def _fitted(hits: list[Hit], offset: int | None) -> tuple[list[Hit], str]:
    """Hits that fit, and how to get the others."""
    if budget.fits(hits):
        return hits, ""
    short = [msgspec.structs.replace(hit, node=budget.brief(hit.node)) for hit in hits]
    kept = budget.first_fitting(short, budget.STRUCTURED)
    if len(kept) == len(hits):
        return kept, "long contents are shortened; get_entity gives one whole"
    onwards = "a lower limit" if offset is None else f"offset={offset + len(kept)}"
    return kept, f"{len(hits) - len(kept):,} hits more: {onwards}; get_entity gives one whole"


def _listing(hits: Sequence[SearchHit | BatchHit], query: str, offset: int, more: str) -> str:
    head = f"{counted(len(hits), 'hit')} for {quoted(budget.shortened(query, _EXCERPT))}"
    lines = [_line(number, hit) for number, hit in enumerate(hits, offset + 1)]
    kept = budget.lines_within(lines, budget.TEXT - 1_000)
    if len(kept) < len(lines):
        more = f"{len(lines) - len(kept):,} hits are not shown here: offset={offset + len(kept)} or a lower limit"
    return "\n".join([head, "", *kept, *([f"\nMore: {more}."] if more else [])]) if hits else f"{head}."


def _line(number: int, hit: SearchHit | BatchHit) -> str:
    node = hit.node
    content = f"\n   {budget.shortened(node.content, _EXCERPT)}" if node.content else ""
    return f"{number}. {quoted(node.id)} ({node.type}), score {hit.score:.3f}{content}"


TOOLS = (
    Tool(
        "search_knowledge",
        "Search",
        "Find entities by words, by meaning, and by what they are related to. Best first, with scores.",
        arguments.Search,
        answers.Found,
        "reads",
        "searching",
        _search,
    ),
    Tool(
        "search_batch",
        "Search in several ways at once",
        "Ask the same in up to eight ways; the answers are joined into one ranking. Better than one search when it is "
        "not known how things were worded.",
        arguments.SearchBatch,
        answers.BatchFound,
        "reads",
        "searching",
        _search_batch,
    ),
    Tool(
        "get_context",
        "Get text about a question",
        "The entities that fit a question best and the relations between them, as text of at most `budget` tokens, "
        "with ids to cite. What to call first when something may be known already.",
        arguments.Context,
        ContextAnswer,
        "reads",
        "gathering context",
        _context,
    ),
)
