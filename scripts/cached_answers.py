"""Write the bridge's cached answers to editors, and its hints on slow and non-idempotent tools."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.server import ServerProcess
from kgserve.cli.mcp_stdio import tool_hints
from kgserve.cli.mcp_stdio.forwarder import (
    CACHED_ANSWER_METHODS,
    CACHED_ANSWERS_FILE,
    CACHED_TOOLSETS,
    TOOLS_LIST_METHOD,
    build_mcp_answer_cache_key,
)
from kgserve.server.mcp import toolsets

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"
_CLIENT = {"name": "editor", "version": "1"}
_META = {
    f"{_PREFIX}/protocolVersion": STATELESS,
    f"{_PREFIX}/clientCapabilities": {},
    f"{_PREFIX}/clientInfo": _CLIENT,
}

VERSIONS = ("2025-03-26", "2025-06-18", HANDSHAKE, STATELESS)
"""Protocol versions of editors. For other versions, the bridge waits for the server."""


class ProcessEnded(Exception):
    """The process has ended."""


class StdioMcpClient:
    """Synchronous MCP client: each request waits for its answer."""

    def __init__(self, command: Sequence[str], version: str) -> None:
        self._version = version
        self._stateless = version >= STATELESS
        self._number = 0
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)  # noqa: S603

    @property
    def beginning(self) -> str:
        """Method of the first request."""
        return "server/discover" if self._stateless else "initialize"

    def open(self) -> dict[str, Any]:
        """Start a session as editors do, and return the server's information. Raises ProcessEnded."""
        about = {"protocolVersion": self._version, "capabilities": {}, "clientInfo": _CLIENT}
        answer = self.ask(self.beginning, None if self._stateless else about)
        if not self._stateless:
            self._write({"method": "notifications/initialized"})
        return answer["result"]

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its answer, with ``result`` or ``error``. Raises ProcessEnded."""
        self._number += 1
        meta = {"_meta": _META} if self._stateless else {}
        self._write({"id": self._number, "method": method, "params": {**(params or {}), **meta}})
        while True:
            answer = self._read()
            if answer.get("id") == self._number and "method" not in answer:
                return answer

    def close(self) -> None:
        """End the process and close its pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ProcessEnded
        return msgspec.json.decode(line, type=dict[str, Any])


def bridge_command(data: Path, *options: str) -> list[str]:
    """Return the command of a bridge to the server of a data folder."""
    return [sys.executable, "-m", "kgserve", "mcp", "--data", str(data), *options]


def build_cached_answers(data: Path) -> str:
    """Return the contents of the cache file, from the answers of a running server; each result occurs once."""
    results: list[Any] = []
    answers: dict[str, dict[str, int]] = {}
    for version in VERSIONS:
        answers[version] = {}
        for tools in CACHED_TOOLSETS:
            # With an option of its own, the bridge bypasses the cache and asks the server.
            wishes = ("--answers", "both", *(("--tools", tools) if tools else ()))
            with StdioMcpClient(bridge_command(data, *wishes), version) as editor:
                opened = editor.open()
                for method in (TOOLS_LIST_METHOD,) if tools else CACHED_ANSWER_METHODS:
                    if (result := opened if method == editor.beginning else _request_result(editor, method)) is None:
                        continue
                    if result not in results:
                        results.append(result)
                    answers[version][build_mcp_answer_cache_key(method, tools)] = results.index(result)
    encode = msgspec.json.Encoder(order="sorted").encode
    return "".join(encode(line).decode() + "\n" for line in (answers, *results))


def _request_result(editor: StdioMcpClient, method: str) -> Any:
    return None if method in {"initialize", "server/discover"} else editor.ask(method).get("result")


def build_tool_hints() -> str:
    """Return the contents of the file with the bridge's tool hints."""
    tools = sorted(toolsets.TOOLS.items())
    known_of_tools = {
        "long": [name for name, tool in tools if tool.is_long],
        "retry": {name: tool.retry_hint for name, tool in tools if tool.retry_hint},
    }
    return msgspec.json.format(msgspec.json.encode(known_of_tools)).decode() + "\n"


def main() -> None:
    """Write both files."""
    tool_hints.TOOL_HINTS_FILE.write_text(build_tool_hints(), encoding="utf-8")
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder, "data"), {"embedding_provider": "hashing"}),
    ):
        CACHED_ANSWERS_FILE.write_text(build_cached_answers(Path(folder, "data")), encoding="utf-8")


if __name__ == "__main__":
    main()
