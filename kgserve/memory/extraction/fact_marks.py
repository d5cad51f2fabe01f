"""Marks of facts that a language model extracted from memories, so that each is extracted once."""

from __future__ import annotations

import msgspec

from kgserve.memory.memory_models import CONCEPT_LAYER
from kgserve.platform.codecs import decode_json
from kgserve.platform.text.text_equality import hash_normalized_text
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    EdgeRow,
    NodeRow,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory

EXTRACT_KEY = "extract"
"""Metadata key of a memory that requests or forbids extraction, overriding the store's settings."""
EXTRACTION_AUTHOR = "extract"
"""Value of `created_by` for extracted facts."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class ExtractedFactMark(msgspec.Struct, frozen=True):
    """Mark on the edge from an extracted fact to its source: version of the text, hashes of text and fact."""

    version: int
    text: str
    fact: str

    @classmethod
    def of(cls, source: NodeRow, fact: str) -> ExtractedFactMark:
        """Return the mark of a fact extracted from a memory's text."""
        return cls(source.version, hash_normalized_text(source.content).hex(), hash_normalized_text(fact).hex())

    @property
    def attributes(self) -> str:
        """The mark as the attributes of an edge."""
        return _encode(self).decode()


def read_extracted_fact_mark(edge: EdgeRow) -> ExtractedFactMark | None:
    """Return the mark of a relation, or None if another caller wrote it."""
    own = split_edge_times_from_attributes(edge.attributes).own
    try:
        return None if own == EMPTY_ATTRIBUTES_JSON else decode_json(own, ExtractedFactMark)
    except msgspec.MsgspecError:
        return None


def can_extract_facts_from_node(row: NodeRow) -> bool:
    """Return whether facts can be extracted from a node: an active fact or episode with text."""
    layer = (row.extras or NO_EXTRAS).layer
    return is_current_unwithdrawn_memory(row) and bool(row.content.strip()) and (layer is None or layer > CONCEPT_LAYER)
