"""Types of the relations that kgserve itself writes between memories."""

from __future__ import annotations

from kgserve.storage.model.conversation_turns import NEXT_TURN_RELATION
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION

RELATION_CONSOLIDATED = "consolidated"
"""Relation from a consolidation run to the primary memory of each of its clusters.

It is left unchanged when the primary is merged.
"""


RELATION_EXTRACTED_FROM = "extracted_from"
"""Relation from an extracted memory to the one whose text contains it, written by the store."""


RELATION_NEXT = NEXT_TURN_RELATION
"""Relation from a message to the next one."""


RELATION_REFLECTED = "reflected"
"""Relation from a reflection run to the nodes that it has placed, created or contrasted."""


STRUCTURAL_RELATIONS = frozenset(
    {
        CHILD_OF_RELATION,
        RELATION_CONSOLIDATED,
        RELATION_EXTRACTED_FROM,
        IS_ABOUT_RELATION,
        MERGED_INTO_RELATION,
        RELATION_NEXT,
        RELATION_REFLECTED,
        VERSION_OF_RELATION,
    }
)
"""Types of relations that the store writes at memories; they are not relationships between entities."""
