"""An editor as a bench has it: a process that it has started, and MCP's messages over standard input and output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
_PREFIX = "io.modelcontextprotocol"
_CLIENT = {"name": "bench", "version": "1"}
_META = {
    f"{_PREFIX}/protocolVersion": STATELESS,
    f"{_PREFIX}/clientCapabilities": {},
    f"{_PREFIX}/clientInfo": _CLIENT,
}


class Left(Exception):
    """The process has ended."""


class Editor:
    """One at a time: each request waits for its answer."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        version: str = HANDSHAKE,
        log: Path | None = None,
    ) -> None:
        self._version = version
        self._stateless = version >= STATELESS
        self._number = 0
        self._log = log.open("ab") if log is not None else None
        self.process = subprocess.Popen(
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.DEVNULL,
            env=None if environment is None else {**environment},
        )

    @property
    def beginning(self) -> str:
        """The method of the first request."""
        return "server/discover" if self._stateless else "initialize"

    def open(self) -> dict[str, Any]:
        """Begin as editors do; what the server says of itself. Raises Left."""
        about = {"protocolVersion": self._version, "capabilities": {}, "clientInfo": _CLIENT}
        answer = self.ask(self.beginning, None if self._stateless else about)
        if not self._stateless:
            self._write({"method": "notifications/initialized"})
        return answer["result"]

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a call of a tool. Raises Left."""
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request: with ``result`` or ``error``. Raises Left."""
        self._number += 1
        meta = {"_meta": _META} if self._stateless else {}
        self._write({"id": self._number, "method": method, "params": {**(params or {}), **meta}})
        while True:
            answer = self._read()
            if answer.get("id") == self._number and "method" not in answer:
                return answer

    def mebibytes(self) -> float:
        """What the process has in memory, in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def close(self) -> None:
        """End it, and whatever it reads from."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.kill()
        self.process.wait()
        if self._log is not None:
            self._log.close()

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
            raise Left
        return msgspec.json.decode(line, type=dict[str, Any])


def bridge(data: Path, *options: str) -> list[str]:
    """The command of a bridge to the server of a data folder."""
    return [sys.executable, "-m", "kgserve", "mcp", "--data", str(data), *options]
