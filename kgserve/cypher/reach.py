"""What a statement can change at most, by its words alone: so little has to be looked at after it has run."""

from __future__ import annotations

import msgspec

from kgserve.cypher.guard import Statement
from kgserve.cypher.lexer import tokens


class Reach(msgspec.Struct, frozen=True):
    """What a statement may do: make rows, take rows away, and set the ``assigned`` of the ``names`` in it; None is any.

    Without ``relations`` it meets none, and changes none.
    """

    creates: bool = True
    deletes: bool = True
    sets: bool = True
    relations: bool = True
    names: frozenset[str] | None = None
    assigned: frozenset[str] | None = None

    def may_name(self, name: str) -> bool:
        """Whether a property is named."""
        return self.names is None or name in self.names

    def may_set(self, name: str) -> bool:
        """Whether rows that stay may have another value of a property."""
        return self.sets and self.may_name(name) and (self.assigned is None or name in self.assigned)


def reach(statement: Statement) -> Reach:
    """What a statement may do. The engine sets a property only by its name, and makes rows without a version."""
    found = tokens(statement.text)
    words = {token.text.upper() for token in found if token.kind in {"word", "symbol"}}
    # As SET has it, and comparisons, too.
    dotted = zip(found, found[1:], found[2:], strict=False)
    assigned = frozenset(
        name.text.strip("`").lower() for dot, name, sign in dotted if dot.text == "." and sign.text == "="
    )
    return Reach(
        creates=not words.isdisjoint({"CREATE", "MERGE"}),
        deletes="DELETE" in words,
        sets="SET" in words,
        relations=not words.isdisjoint({"-", "DETACH"}),
        names=statement.words,
        assigned=assigned,
    )
