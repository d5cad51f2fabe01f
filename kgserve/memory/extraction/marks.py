"""What was taken out of memories by a language model: how it is marked in the rows, so that it is taken out once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.memory.api import CONCEPT_LAYER, MAX_BATCH_ITEMS, Id
from kgserve.platform.codecs import decode_json
from kgserve.platform.text.similarity import text_hash
from kgserve.storage.model.fields import NO_EXTRAS
from kgserve.storage.model.rows import NO_ATTRIBUTES, EdgeRow, NodeRow, edge_stamps
from kgserve.storage.model.soft_delete import is_live

EXTRACT_KEY = "extract"
"""Of a memory's metadata: whether a language model is to be given it, whatever the store's settings say."""
EXTRACTION_AUTHOR = "extract"
"""Who has written what was extracted."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class ExtractionMark(msgspec.Struct, frozen=True):
    """What is noted at an `RELATION_EXTRACTED_FROM` relation: the version of the text, and hashes of text and fact."""

    version: int
    text: str
    fact: str

    @classmethod
    def of(cls, source: NodeRow, fact: str) -> ExtractionMark:
        """The mark of a fact that a memory's text says."""
        return cls(source.version, text_hash(source.content).hex(), text_hash(fact).hex())

    @property
    def attributes(self) -> str:
        """As the attributes of an edge."""
        return _encode(self).decode()


def mark_of(edge: EdgeRow) -> ExtractionMark | None:
    """The mark of a relation; None of one that somebody else has written."""
    own = edge_stamps(edge.attributes).own
    try:
        return None if own == NO_ATTRIBUTES else decode_json(own, ExtractionMark)
    except msgspec.MsgspecError:
        return None


def is_text(row: NodeRow) -> bool:
    """Whether a node is a memory of which something can be taken out: a fact or an episode in force."""
    layer = (row.extras or NO_EXTRAS).layer
    return is_live(row) and bool(row.content.strip()) and (layer is None or layer > CONCEPT_LAYER)


class ExtractRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which memories a language model is to be given, once more or for the first time."""

    ids: (
        Annotated[
            list[Id],
            Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000; left out: what was set aside"),
        ]
        | None
    ) = None


class ExtractAnswer(msgspec.Struct, kw_only=True):
    """What waits for the language model now."""

    queued: Annotated[int, Meta(description="Memories that this call has made wait")]
    missing: Annotated[list[str], Meta(description="Ids of the call that are no memories with a text")]
    waiting: Annotated[int, Meta(description="All memories that wait")]
    sequence: int
