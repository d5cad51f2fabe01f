"""A small HTTP server that behaves like the model hub."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import onnx
from typing_extensions import override

from tests.servers import served

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Server of one repository with the files of a folder."""

    daemon_threads = True

    def __init__(self, repository: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "model.onnx_data"}
        # The weights of the hub's models are in the graph.
        self.files["model.onnx"] = onnx.load(folder / "model.onnx").SerializeToString()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def running(repository: str, folder: Path) -> AbstractContextManager[Hub]:
    return served(Hub(repository, folder))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        api = f"/api/models/{self._hub.repository}"
        if path in {api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"}:
            self._send_json({"id": self._hub.repository, "sha": COMMIT, "siblings": self._siblings()})
        elif path == f"{api}/tree/{COMMIT}":
            self._send_json(self._tree())
        elif path.startswith(f"/{self._hub.repository}/resolve/"):
            self._send_file(path.rsplit("/", 1)[1])
        else:
            self._send(404, b"")

    do_HEAD = do_GET  # noqa: N815 - as above

    @property
    def _hub(self) -> Hub:
        assert isinstance(self.server, Hub)
        return self.server

    def _siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": name} for name in self._hub.files]

    def _tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _identity(data)}
            for name, data in self._hub.files.items()
        ]

    def _send_file(self, name: str) -> None:
        data = self._hub.files.get(name)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(200, data, {"ETag": f'"{_identity(data)}"', "X-Repo-Commit": COMMIT})

    def _send_json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


def _identity(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
