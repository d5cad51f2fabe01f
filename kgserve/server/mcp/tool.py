"""What a tool is: its name, what is said of it, what it takes, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from kgserve.graph.handle import Graph
from kgserve.platform.access.authentication import Role

G = TypeVar("G", bound=msgspec.Struct)


class Tool(NamedTuple, Generic[G]):
    """A tool; ``run`` gets the store and the checked arguments, and may block.

    ``doing`` is what progress reports say while it runs.
    ``effect``: "writes" changes what is sent, "overwrites" empties what is not sent, too.
    ``administers``: it needs the role of an administrator, whatever its effect, but with the argument ``makes_with``;
    ``administers_with`` is the argument with which it does. ``runs_statement``: a statement
    of the caller's, which may take long. ``writes_with``: the argument with which a tool that reads writes.
    ``without_store``: it answers without one, too. ``nothing``: its values for a default store that is not there yet;
    None: that is an error; ``maker``: the tool that makes the store. ``retry_hint``: of a tool that does more when it
    is called a second time, how to find out whether a call whose answer was lost was carried out. ``is_long``: it may
    work for long where there is much to do.
    """

    name: str
    title: str
    description: str
    arguments: type[G]
    doing: str
    run: Callable[[Graph, G], msgspec.Struct | Future[Any]]
    effect: Literal["reads", "writes", "overwrites", "deletes"] = "reads"
    administers: bool = False
    administers_with: str = ""
    makes_with: str = ""
    runs_statement: bool = False
    writes_with: str = ""
    without_store: bool = False
    nothing: Mapping[str, Any] | None = None
    maker: str = "inject_knowledge_graph"
    retry_hint: str = ""
    is_long: bool = False

    def role(self, arguments: Mapping[str, Any] | None) -> Role:
        """What a key needs for a call of it."""
        given = arguments or {}
        administers = self.administers and given.get(self.makes_with) is not True
        if administers or (self.administers_with and given.get(self.administers_with)):
            return "admin"
        return "read" if self.effect == "reads" and not self.writes(arguments) else "write"

    def writes(self, arguments: Mapping[str, Any] | None) -> bool:
        """Whether a call of it may change the store."""
        return self.effect != "reads" or bool(self.writes_with and (arguments or {}).get(self.writes_with))
