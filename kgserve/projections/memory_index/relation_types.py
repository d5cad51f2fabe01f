"""Types of the relations that kgserve itself writes between memories."""

from __future__ import annotations

from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.redirects import MERGED_INTO
from kgserve.storage.model.soft_delete import VERSION_OF

RELATION_CONSOLIDATED = "consolidated"
"""The relation from a run to the primary of each of its clusters. It stays where it is when the primary is merged."""


RELATION_EXTRACTED_FROM = "extracted_from"
"""The relation from a memory to the one whose text says it. Written by the store itself."""


RELATION_NEXT = "next"
"""The relation from a message to the one after it."""


RELATION_REFLECTED = "reflected"
"""The relation from a run to what it has placed, made or set against something."""


STRUCTURAL_RELATIONS = frozenset(
    {
        CHILD_OF,
        RELATION_CONSOLIDATED,
        RELATION_EXTRACTED_FROM,
        IS_ABOUT,
        MERGED_INTO,
        RELATION_NEXT,
        RELATION_REFLECTED,
        VERSION_OF,
    }
)
"""Types of the relations that the store itself writes at memories; these are no relationships."""
