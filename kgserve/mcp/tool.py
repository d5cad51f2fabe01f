"""What a tool is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from kgserve.access.caller import Role
from kgserve.errors import FieldError, InvalidInput
from kgserve.idempotent import IDEMPOTENT
from kgserve.mcp.work import Pending, Reply, Work

Effect = Literal["reads", "writes", "deletes"]


class Tool(NamedTuple):
    """A tool; ``run`` gets its checked arguments and the default store, and may block.

    ``doing`` is what progress reports say while it runs.
    ``administers``: it needs the role of an administrator, whatever its effect. ``states``: it runs a statement of the
    caller's, which may take long.
    """

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    effect: Effect
    doing: str
    run: Callable[[Work, str | None, Any], Reply | Pending[Any]]
    administers: bool = False
    states: bool = False

    @property
    def idempotent(self) -> bool:
        """Whether a second call leaves what the first one made."""
        return self.name in IDEMPOTENT

    @property
    def role(self) -> Role:
        """What a key needs for it."""
        if self.administers:
            return "admin"
        return "read" if self.effect == "reads" else "write"


def store_of(index: str | msgspec.UnsetType, default: str | None) -> str:
    """The store that a call means. Raises InvalidInput when it says none and there is no default."""
    store = index or default
    if not store:
        message = "say which store is meant: there is no default store on this connection; list_stores names them"
        raise InvalidInput(f"index: {message}", (FieldError("index", message),))
    return store


def quoted(text: str) -> str:
    """Text in double quotes on one line, as JSON writes it."""
    return msgspec.json.encode(text).decode()


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
