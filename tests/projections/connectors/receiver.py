"""Webhook receiver that checks signatures, stores content, and fails as a test requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from tests.servers import served

SECRET = "whsec-a-secret-that-must-not-show"

Json = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Webhook receiver that stores ``contents`` by store and node.

    Each entry of ``script`` handles one post; all later posts are accepted.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, dict[str, Json]] = {}
        self.batches: list[Json] = []
        self.script: deque[Behaviour] = deque()
        self.released = threading.Event()
        self.faults: list[str] = []

    @override
    def shutdown(self) -> None:
        self.released.set()
        super().shutdown()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?token=t"

    @property
    def options(self) -> Json:
        """Settings of a server that posts to this receiver."""
        return {"webhook_url": self.url, "webhook_secret": SECRET}

    @property
    def variables(self) -> dict[str, str]:
        return {f"KGSERVE_{name.upper()}": value for name, value in self.options.items()}

    def texts(self, store: str) -> dict[str, str]:
        return {key: each["content"] for key, each in self.contents.get(store, {}).items()}

    def take(self, batch: Json) -> None:
        """Apply a batch as the documentation requires."""
        self.batches.append(batch)
        if batch["anew"] and batch["part"] == 0:
            self.contents[batch["store"]] = {}
        held = self.contents.setdefault(batch["store"], {})
        for change in batch["changes"]:
            if change.get("content") is None:
                held.pop(change["id"], None)
            else:
                held[change["id"]] = change

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.faults += faults(self.path, dict(self.headers.items()), body)
        batch = json.loads(body)
        behave = self.server.script.popleft() if self.server.script else takes
        behave(self, batch)

    def send(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


def faults(path: str, headers: dict[str, str], body: bytes) -> list[str]:
    """Return what a receiver written from the documentation would reject."""
    timestamp = headers["Kgserve-Timestamp"]
    signed = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    wrong = {
        "path": path != "/hook?token=t",
        "type": headers["Content-Type"] != "application/json",
        "signature": not hmac.compare_digest(headers["Kgserve-Signature"], f"v1={signed}"),
        "time": abs(time.time() - int(timestamp)) > 60,
        "secret": SECRET in str(headers) or SECRET.encode() in body,
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


Behaviour = Callable[[Handler, Json], None]


def takes(handler: Handler, batch: Json) -> None:
    assert isinstance(handler.server, Receiver)
    handler.server.take(batch)
    handler.send(204)


def refuses(code: int) -> Behaviour:
    """Return a behaviour that responds with an error and echoes the batch."""
    return lambda handler, batch: handler.send(code, json.dumps(batch).encode())


def takes_and_leaves(handler: Handler, batch: Json) -> None:
    """Accept the batch, and close the connection without a response."""
    assert isinstance(handler.server, Receiver)
    handler.server.take(batch)
    handler.close_connection = True


def takes_and_pours(handler: Handler, batch: Json) -> None:
    """Accept the batch, and send an oversized response."""
    assert isinstance(handler.server, Receiver)
    handler.server.take(batch)
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    with suppress(OSError):
        for _ in range(1 << 10):
            handler.wfile.write(b" " * (1 << 16))
    handler.close_connection = True


def hangs(handler: Handler, _: Json) -> None:
    """Send no response until the test is over."""
    assert isinstance(handler.server, Receiver)
    handler.server.released.wait()


def drips(handler: Handler, _: Json) -> None:
    """Send a response whose header never ends."""
    assert isinstance(handler.server, Receiver)
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        while not handler.server.released.wait(0.05):
            handler.wfile.write(b"x")


@contextmanager
def receiving() -> Generator[Receiver]:
    with served(Receiver()) as receiver:
        yield receiver
        assert receiver.faults == []
