"""Giving memories to a language model by hand: those that were set aside, or any.

Apart from what is done with its answer, of which nothing is loaded where no model is set.
"""

from __future__ import annotations

from kgserve.errors import InvalidInput
from kgserve.model.extraction import ExtractAnswer, ExtractRequest, is_text
from kgserve.model.memories import MAX_TOLD
from kgserve.ops.graph import Graph

NO_MODEL = "this server has no language model: set KGSERVE_LLM_URL and KGSERVE_LLM_MODEL, and restart it"


def extract_memories(graph: Graph, request: ExtractRequest) -> ExtractAnswer:
    """Has memories wait for the language model: those that were set aside, or with `ids` these.

    The model is asked afterwards, one text after the other; `stats` shows how far it is. A text that was taken apart
    already is not taken apart again. Raises InvalidInput where no language model is set, NotFound and Unavailable.
    """
    extractor = graph.graphs.extractor
    if extractor is None:
        raise InvalidInput(NO_MODEL)
    with graph.lease() as store:
        extraction, missing, ids = extractor.of(store), list[str](), None
        if request.ids is not None:
            with store.reading() as rows:
                found = rows.nodes(request.ids)
            ids = [each for each in dict.fromkeys(request.ids) if each in found and is_text(found[each])]
            missing = [each for each in dict.fromkeys(request.ids) if each not in ids]
        queued = extraction.again(ids)
        return ExtractAnswer(
            queued=queued,
            missing=missing[:MAX_TOLD],
            waiting=extraction.waiting[0],
            sequence=store.state.sequence,
        )
