"""A small HTTP server with scripted answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from typing_extensions import override

from tests.servers import served

HEALTHY = b'{"status":"ok","version":"0"}'


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. ``promised``: the announced length of a truncated answer. ``cut``: close without an answer."""

    status: int = 200
    body: bytes = HEALTHY
    headers: Mapping[str, str] = {}
    promised: int | None = None
    cut: bool = False


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedServer(ThreadingHTTPServer):
    """Server that answers from ``script``, and as healthy when it is used up. ``asked`` collects the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: deque[ScriptedAnswer] = deque()
        self.asked: list[ReceivedRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def problem(status: int, code: str, detail: str = "not now", **more: Any) -> bytes:
    """Return a problem document in kgserve's format."""
    return json.dumps(
        {
            "type": f"urn:kgserve:error:{code}",
            "title": code,
            "status": status,
            "detail": detail,
            "instance": "urn:kgserve:request:r1",
            **more,
        }
    ).encode()


def answering() -> AbstractContextManager[ScriptedServer]:
    return served(ScriptedServer())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, ScriptedServer)
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.asked.append(ReceivedRequest(method=self.command, path=self.path, headers=headers, body=body))
        say = server.script.popleft() if server.script else ScriptedAnswer()
        self.close_connection = say.cut or say.promised is not None
        if say.cut:
            return
        self.send_response(say.status)
        size = len(say.body) if say.promised is None else say.promised
        for name, value in {"Content-Length": str(size), **say.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(say.body)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass
