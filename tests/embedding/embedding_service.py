"""Small HTTP server for OpenAI's embeddings API, as strict as the real services."""

from __future__ import annotations

import json
from collections import deque
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import xxhash
from typing_extensions import override

from tests.servers import served

KEY = "sk-a-secret-that-must-not-show"
MODEL = "some-model"
LONGEST_TEXT = 10_000
DIMENSIONS = 32


def vector_of(text: str) -> list[float]:
    """Return the service's vector for a text; not normalized."""
    chance = np.random.default_rng(xxhash.xxh3_64_intdigest(text.encode()))
    return (3 * chance.standard_normal(DIMENSIONS)).tolist()


class Service(ThreadingHTTPServer):
    """Embedding service; ``batches`` records requests, each of ``failures`` (status, headers) fails one request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = 0
        self.batches: list[list[str]] = []
        self.failures: deque[tuple[int, dict[str, str]]] = deque()
        self.answer: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


def running() -> AbstractContextManager[Service]:
    return served(Service())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._service.requests += 1
        if self._service.failures:
            status, headers = self._service.failures.popleft()
            self._send(status, {"error": {"message": "not now"}}, headers)
        elif self.path != "/v1/embeddings":
            self._send(404, {"error": {"message": f"no such path {self.path}"}})
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            self._send(401, {"error": {"message": "incorrect API key provided"}})
        elif request["model"] != MODEL:
            self._send(404, {"error": {"message": "the model does not exist"}})
        elif any(not text or len(text) > LONGEST_TEXT for text in request["input"]):
            self._send(400, {"error": {"message": "an input is empty or too long"}})
        else:
            self._service.batches.append(request["input"])
            self._send(200, self._service.answer or self._rows(request["input"]))

    @property
    def _service(self) -> Service:
        assert isinstance(self.server, Service)
        return self.server

    def _rows(self, texts: list[str]) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text)} for index, text in enumerate(texts)
        ]
        return {"object": "list", "model": MODEL, "data": data[::-1], "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass
