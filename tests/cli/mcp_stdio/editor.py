"""Simulated editor: starts a bridge and speaks MCP with it, with either protocol revision."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from kgserve.platform.server_discovery import find_data_folder_lock_holder
from tests.cli.running import COMMAND, SERVER_TIMEOUT_SECONDS, environment

Era = Literal["handshake", "stateless"]

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"

SMALL = {
    "KGSERVE_PORT": "0",
    "KGSERVE_EMBEDDING_PROVIDER": "hashing",
    "KGSERVE_CHECK_INTERVAL": "0",
    "KGSERVE_BUFFER_POOL_MB": "64",
}
"""Settings of servers that bridges start: a free port and little memory."""


class Editor:
    """The editor's end of the bridge's pipes."""

    def __init__(self, process: subprocess.Popen[bytes], era: Era) -> None:
        self.process = process
        self.era = era
        self.heard: list[dict[str, Any]] = []
        self._answers: dict[object, dict[str, Any]] = {}
        self._number = 0

    def open(self) -> dict[str, Any]:
        """Start a session as editors do. Return the server's information."""
        if self.era == "stateless":
            return self.ask("server/discover")
        client = {"name": "editor", "version": "1"}
        result = self.ask("initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client})
        self.notify("notifications/initialized")
        return result

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a request, which must succeed."""
        answer = self.answer(self.send(method, params))
        assert "result" in answer, answer
        return answer["result"]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer of a tool, which must succeed."""
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return result.get("structuredContent") or {"text": result["content"][0]["text"]}

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting. Return its id."""
        self._number += 1
        given = dict(params or {})
        if self.era == "stateless":
            prefix = "io.modelcontextprotocol"
            meta = {f"{prefix}/protocolVersion": STATELESS, f"{prefix}/clientCapabilities": {}}
            given["_meta"] = meta | {f"{prefix}/clientInfo": {"name": "editor", "version": "1"}}
        self.write(msgspec.json.encode({"jsonrpc": "2.0", "id": self._number, "method": method, "params": given}))
        return self._number

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self.write(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params or {}}))

    def write(self, line: bytes) -> None:
        """Send a line unchanged."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def answer(self, request: object) -> dict[str, Any]:
        """Return the answer to a request; messages before it are kept in ``heard``."""
        while request not in self._answers:
            message = self.read()
            if "method" in message:
                self.heard.append(message)
            else:
                self._answers[message["id"]] = message
        return self._answers.pop(request)

    def read(self) -> dict[str, Any]:
        """Return the next line, which must be a message."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the bridge has ended"
        message = msgspec.json.decode(line, type=dict[str, Any])
        assert message["jsonrpc"] == "2.0"
        return message

    def leave(self) -> int:
        """Close the bridge's standard input. Return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SERVER_TIMEOUT_SECONDS)


@contextmanager
def editing(
    *options: object, era: Era = "handshake", variables: Mapping[str, str] | None = None, log: Path | None = None
) -> Generator[Editor]:
    """Yield an editor with its bridge, which is killed at the end if it still runs."""
    errors = log.open("ab") if log is not None else subprocess.DEVNULL
    with subprocess.Popen(
        [*COMMAND, "mcp", *map(str, options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment(SMALL | dict(variables or {})),
    ) as process:
        try:
            yield Editor(process, era)
        finally:
            process.kill()
            if log is not None and not isinstance(errors, int):
                errors.close()


@contextmanager
def ending(data: Path) -> Generator[None]:
    """End the folder's server with its process group at the end of the block."""
    try:
        yield
    finally:
        end(data, signal.SIGTERM)
        deadline = time.monotonic() + SERVER_TIMEOUT_SECONDS
        while find_data_folder_lock_holder(data) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        end(data, signal.SIGKILL)


def end(data: Path, number: signal.Signals) -> None:
    """Send a signal to the server that a bridge has started, and to its children."""
    if process := find_data_folder_lock_holder(data):
        with suppress(ProcessLookupError):
            os.killpg(process, number)
