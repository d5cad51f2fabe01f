"""What of a row a query returns: its fields, and its extras where the file has columns for them.

Columns that nobody uses are not free: seven and four more, all null, cost reads a fifth, the engine's log a third and
the building of a file two thirds of what they take without. So a file has them only once a row of its store has extras.
"""

from __future__ import annotations

from typing import LiteralString

import msgspec

from kgserve.model.fields import EDGE, ENDS, NODE, names
from kgserve.worker.session import Session

NODE_FIELDS: LiteralString = ", ".join(f"e.{name}" for name in names(NODE.plain))
EDGE_FIELDS: LiteralString = ", ".join(f"k.{name}" for name in names(EDGE.plain[ENDS:]))
WHOLE_NODE: LiteralString = ", ".join(f"e.{name}" for name in names(NODE.whole))
WHOLE_EDGE: LiteralString = ", ".join(f"k.{name}" for name in names(EDGE.whole[ENDS:]))


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
