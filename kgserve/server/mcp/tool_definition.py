"""Definition of an MCP tool: name, description, arguments and implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.access.authentication import Role

G = TypeVar("G", bound=msgspec.Struct)


class McpTool(NamedTuple, Generic[G]):
    """MCP tool.

    doing: text of progress reports while the tool runs.
    run: implementation; gets the store and the validated arguments, and may block.
    effect: "writes" changes the fields that are sent; "overwrites" also clears fields that are not sent.
    administers: requires the role admin, unless the argument ``makes_with`` is true.
    administers_with: argument that makes the tool require the role admin.
    runs_statement: runs a statement of the caller, which may take long.
    writes_with: argument that makes a reading tool write.
    without_store: the tool also works without a store.
    nothing: result for a default store that does not exist yet; None: that is an error.
    maker: tool that creates the store.
    retry_hint: for a tool that is not idempotent, how to find out whether a call with a lost answer was carried out.
    is_long: may run for long if there is much to do.
    """

    name: str
    title: str
    description: str
    arguments: type[G]
    doing: str
    run: Callable[[StoreHandle, G], msgspec.Struct | Future[Any]]
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
        """Return the role that a call with these arguments requires."""
        given = arguments or {}
        administers = self.administers and given.get(self.makes_with) is not True
        if administers or (self.administers_with and given.get(self.administers_with)):
            return "admin"
        return "read" if self.effect == "reads" and not self.writes(arguments) else "write"

    def writes(self, arguments: Mapping[str, Any] | None) -> bool:
        """Return whether a call with these arguments may change the store."""
        return self.effect != "reads" or bool(self.writes_with and (arguments or {}).get(self.writes_with))
