"""What of a row a query returns: its fields, and its extras where the file has columns for them.

Columns that nobody uses are not free: seven and four more, all null, cost reads a fifth, the engine's log a third and
the building of a file two thirds of what they take without. So a file has them only once a row of its store has extras.
"""

from __future__ import annotations

from typing import LiteralString

import msgspec

from kgserve.worker.session import Session

NODE_FIELDS = "e.id, e.type, e.content, e.attributes, e.version, e.sequence, e.created_at, e.updated_at"
NODE_EXTRAS = "e.summary, e.tags, e.freshness_at, e.created_by, e.valid_from, e.valid_to, e.conflicts"
EDGE_FIELDS = "k.relation_type, k.weight, k.attributes, k.version, k.sequence"
EDGE_EXTRAS = "k.ordinal, k.created_by, k.valid_from, k.valid_to"
WHOLE_NODE: LiteralString = f"{NODE_FIELDS}, {NODE_EXTRAS}"
WHOLE_EDGE: LiteralString = f"{EDGE_FIELDS}, {EDGE_EXTRAS}"


class Query(msgspec.Struct, frozen=True):
    """A text that returns the fields, and one that returns the extras after them."""

    fields: LiteralString
    whole: LiteralString

    def text(self, session: Session) -> LiteralString:
        """The one that suits a session's file."""
        return self.whole if session.whole else self.fields


def nodes(before: LiteralString, after: LiteralString = "") -> Query:
    """A query that returns ``e``; ``before`` ends in RETURN and what comes first, ``after`` follows the row."""
    return Query(f"{before} {NODE_FIELDS}{after}", f"{before} {WHOLE_NODE}{after}")


def edges(before: LiteralString, after: LiteralString = "") -> Query:
    """A query that returns ``k``; ``before`` ends in RETURN and its two ends, ``after`` follows the row."""
    return Query(f"{before} {EDGE_FIELDS}{after}", f"{before} {WHOLE_EDGE}{after}")
