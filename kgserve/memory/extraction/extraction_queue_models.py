"""Request and answer of the queue of memories to extract facts from."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.memory.memory_models import MAX_BATCH_ITEMS, NodeIdText


class EnqueueExtractionRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Memories to queue for extraction, again or for the first time."""

    ids: (
        Annotated[
            list[NodeIdText],
            Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000; default: the failed ones"),
        ]
        | None
    ) = None


class ExtractionQueueAnswer(msgspec.Struct, kw_only=True):
    """State of the extraction queue."""

    queued: Annotated[int, Meta(description="Memories queued by this request")]
    missing: Annotated[list[str], Meta(description="Requested ids that are not memories with a text")]
    waiting: Annotated[int, Meta(description="All queued memories")]
    sequence: int
