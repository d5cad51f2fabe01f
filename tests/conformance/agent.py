"""An MCP client of one store that calls tools by name."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.mcp.talking import Stateless


class Agent:
    """Calls tools over the stateless protocol revision."""

    def __init__(self, http: httpx.Client, store: str) -> None:
        self._requests = Stateless(http)
        self._store = store

    def __call__(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the structured content of a call that must succeed."""
        result = self.result(tool, arguments)
        assert not result["isError"], result
        return result["structuredContent"]

    def text(self, tool: str, /, **arguments: Any) -> str:
        """Return the text of a call that must succeed."""
        result = self.result(tool, arguments)
        assert not result["isError"], result
        return result["content"][0]["text"]

    def refusal(self, tool: str, /, **arguments: Any) -> str:
        """Return the text of a call that must fail."""
        result = self.result(tool, arguments)
        assert result["isError"], result
        return result["content"][0]["text"]

    def result(self, tool: str, arguments: dict[str, Any], tools: str = "all") -> dict[str, Any]:
        """Return the result of a call, listed in the given tool set."""
        return self._requests.call(tool, arguments, kgserve_tools=tools, kgserve_store=self._store)

    def tools(self, tools: str) -> dict[str, dict[str, Any]]:
        """Return the tools of a set by name."""
        answer = self._requests.post("tools/list", {}, kgserve_tools=tools)
        return {tool["name"]: tool for tool in answer.json()["result"]["tools"]}
