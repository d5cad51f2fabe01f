"""Fake HTTP server with OpenAI's chat format, and with the faults that tests need."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from tests.servers import served

KEY = "sk-a-secret-that-must-not-show"
MODEL = "some-model"

Json = dict[str, Any]


class Service(ThreadingHTTPServer):
    """Requests are recorded in `asked`; each handler of `script` answers one request, then `usually` does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Json] = []
        self.script: deque[Behaviour] = deque()
        self.usually: Behaviour = says()
        self.released = threading.Event()

    @override
    def shutdown(self) -> None:
        self.released.set()
        super().shutdown()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def options(self) -> Json:
        """Server settings that use this service."""
        return {"llm_url": self.url, "llm_model": MODEL, "llm_key": KEY}

    @property
    def materials(self) -> list[Json]:
        """Materials of the questions, in order."""
        return [json.loads(each["messages"][1]["content"]) for each in self.asked]

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.materials if "text" in each]

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Service)
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(question)
        if self.path != "/v1/chat/completions":
            status(404, "no such path")(self, question)
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            status(401, "incorrect API key")(self, question)
        else:
            behave = self.server.script.popleft() if self.server.script else self.server.usually
            behave(self, question)

    def send(self, code: int, body: bytes, **headers: str) -> None:
        """Send a complete response."""
        self.send_response(code)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **named}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


Behaviour = Callable[[Handler, Json], None]


def completion(text: str, tokens: Any = 100) -> bytes:
    """Return a completion in OpenAI's format."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": tokens}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def says(tokens: Any = 100, **lists: Any) -> Behaviour:
    """Answer with these lists as JSON."""
    return raw(completion(json.dumps({"facts": [], "entities": [], "relations": [], **lists}), tokens))


def words(text: str) -> Behaviour:
    """Answer with a text in OpenAI's format."""
    return raw(completion(text))


def raw(body: bytes) -> Behaviour:
    """Answer with raw bytes."""
    return lambda handler, _: handler.send(200, body)


def status(code: int, message: str = "not now", **headers: str) -> Behaviour:
    """Answer with an error status."""
    return lambda handler, _: handler.send(code, json.dumps({"error": {"message": message}}).encode(), **headers)


def echoes(code: int) -> Behaviour:
    """Answer with an error that repeats the request, including the key."""
    return lambda handler, question: status(code, f"{handler.headers['Authorization']} {question}")(handler, question)


def hangs(handler: Handler, _: Json) -> None:
    """Send nothing until the test ends."""
    assert isinstance(handler.server, Service)
    handler.server.released.wait()


def drips(handler: Handler, _: Json) -> None:
    """Send single spaces without end."""
    assert isinstance(handler.server, Service)
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with suppress(OSError):
        while not handler.server.released.wait(0.02):
            handler.wfile.write(b"1\r\n \r\n")


def leaves(handler: Handler, _: Json) -> None:
    """Close the connection without a response."""
    handler.close_connection = True


def breaks_off(handler: Handler, _: Json) -> None:
    """Close the connection within the response."""
    whole = completion('{"facts": []}')
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])
    handler.close_connection = True


def pours(handler: Handler, _question: Json) -> None:
    """Send data without limit."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    with suppress(OSError):
        for _ in range(1 << 14):
            handler.wfile.write(b" " * (1 << 16))
    handler.close_connection = True


def refuses(*names: str) -> Behaviour:
    """Reject requests with any of these parameters, and answer others."""

    def behave(handler: Handler, question: Json) -> None:
        found = next((name for name in names if name in question), None)
        kind = question.get("response_format", {}).get("type")
        if found is not None or kind in names:
            status(400, f"unsupported parameter: {found or kind}")(handler, question)
        else:
            words('Here you are:\n```json\n{"facts": [{"content": "Rain is wet."}]}\n```')(handler, question)

    return behave


def running() -> AbstractContextManager[Service]:
    return served(Service())
