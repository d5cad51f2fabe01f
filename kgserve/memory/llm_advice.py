"""Advice of a configured language model on existing memories: names, reasons, and answers to questions.

It writes nothing: names and reasons are added to proposals that are made without a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kgserve.errors import InvalidInput, Unavailable
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.extraction.background_llm_extractor import StoreExtractionWorker
from kgserve.memory.extraction.llm.chat_completions_client import NoUsableLlmAnswer
from kgserve.memory.extraction.llm.prompts import (
    MAX_ADVICE_MEMBERS,
    MAX_ADVICE_MEMORY_CHARS,
    MAX_ADVICE_PROPOSALS,
    LlmProposalAdvice,
    build_proposal_advice_question,
    build_question_over_memories,
    parse_llm_answer_with_citations,
    parse_llm_proposal_advice,
)
from kgserve.memory.memory_models import RecallRequest
from kgserve.memory.multi_store_recall import recall_best_memories
from kgserve.memory.reflect_models import OrganizeMemoriesAnswer, OrganizeMemoriesRequest, ReflectionProposal
from kgserve.stores.open_store import OpenStore

MAX_ANSWER_MEMORIES = 20
MAX_ANSWER_CONTEXT_TOKENS = 4_000
"""Maximum number of memories, and of tokens of their texts, from which a question is answered."""


def answer_question_from_memories(
    graph: StoreHandle,
    extraction: StoreExtractionWorker,
    request: OrganizeMemoriesRequest,
    found: OrganizeMemoriesAnswer,
) -> OrganizeMemoriesAnswer:
    """Answer a question from memories, into `found`. Raises InvalidInput and Unavailable."""
    if request.query is None:
        raise InvalidInput("`query` is required when `answer` is true")
    wanted = RecallRequest(
        query=request.query,
        under=request.under,
        limit=MAX_ANSWER_MEMORIES,
        budget=MAX_ANSWER_CONTEXT_TOKENS,
        expand=True,
    )
    hits = recall_best_memories(graph, wanted).hits
    found.answer, found.used = "", []
    if not hits:
        return found
    by_label = {f"m{at}": hit for at, hit in enumerate(hits, 1)}
    shown = {label: {"text": hit.content, "written_at": hit.created_at} for label, hit in by_label.items()}
    reply = extraction.ask_now(build_question_over_memories(request.query, shown))
    try:
        reply_answer = parse_llm_answer_with_citations(reply.text)
    except NoUsableLlmAnswer as trouble:
        raise Unavailable(f"the language model returned no usable answer: {trouble.message}", retry_after=5) from None
    found.answer = reply_answer.answer
    found.used = [by_label[label].id for label in dict.fromkeys(reply_answer.used) if label in by_label]
    return found


def add_llm_advice_to_proposals(
    extraction: StoreExtractionWorker, store: OpenStore, proposals: Sequence[ReflectionProposal]
) -> list[ReflectionProposal]:
    """Return the proposals, with names or reasons of the model where it gave any."""
    asked = [each for each in proposals if each.kind in {"concept", "contradiction"}][:MAX_ADVICE_PROPOSALS]
    if not asked:
        return [*proposals]
    with store.reading() as rows:
        found = rows.nodes({each for proposal in asked for each in proposal.ids[:MAX_ADVICE_MEMBERS]})
    texts = {
        proposal.number: [
            found[each].content[:MAX_ADVICE_MEMORY_CHARS] for each in proposal.ids[:MAX_ADVICE_MEMBERS] if each in found
        ]
        for proposal in asked
    }
    concepts, contradictions = (
        {str(each.number): texts[each.number] for each in asked if each.kind == kind}
        for kind in ("concept", "contradiction")
    )
    try:
        advice = parse_llm_proposal_advice(
            extraction.ask_now(build_proposal_advice_question(concepts, contradictions)).text
        )
    except (NoUsableLlmAnswer, Unavailable):
        return [*proposals]
    by_number = {each.number: each for each in advice}
    numbers = {each.number for each in asked} & by_number.keys()
    return [_with(each, by_number[each.number]) if each.number in numbers else each for each in proposals]


def _with(proposal: ReflectionProposal, advice: LlmProposalAdvice) -> ReflectionProposal:
    if proposal.kind == "concept":
        name = (advice.name or "").strip()
        return msgspec.structs.replace(proposal, name=name) if name else proposal
    reason = ": ".join(each.strip() for each in (advice.verdict, advice.reason) if each and each.strip())
    return msgspec.structs.replace(proposal, reason=reason) if reason else proposal
