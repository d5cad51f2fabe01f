"""A small HTTP server that speaks OpenAI's chat format, well or badly, as each test wants it."""

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
    """What was asked is in ``asked``; each of ``script`` answers one question first, then ``usually`` does."""

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
        """Settings of a server that asks this one."""
        return {"llm_url": self.url, "llm_model": MODEL, "llm_key": KEY}

    @property
    def materials(self) -> list[Json]:
        """What the model was shown, question by question."""
        return [json.loads(each["messages"][1]["content"]) for each in self.asked]

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.materials if "text" in each]

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has left."""


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
        """A whole answer."""
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
    """An answer in OpenAI's format."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": tokens}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def says(tokens: Any = 100, **lists: Any) -> Behaviour:
    """Answers with these lists, as it is asked to."""
    return raw(completion(json.dumps({"facts": [], "entities": [], "relations": [], **lists}), tokens))


def words(text: str) -> Behaviour:
    """Answers with any text in OpenAI's format."""
    return raw(completion(text))


def raw(body: bytes) -> Behaviour:
    """Answers with any bytes."""
    return lambda handler, _: handler.send(200, body)


def status(code: int, message: str = "not now", **headers: str) -> Behaviour:
    """Answers with an error."""
    return lambda handler, _: handler.send(code, json.dumps({"error": {"message": message}}).encode(), **headers)


def echoes(code: int) -> Behaviour:
    """Answers with an error that says again what it was sent, the key among it."""
    return lambda handler, question: status(code, f"{handler.headers['Authorization']} {question}")(handler, question)


def hangs(handler: Handler, _: Json) -> None:
    """Says nothing until the test is over."""
    assert isinstance(handler.server, Service)
    handler.server.released.wait()


def drips(handler: Handler, _: Json) -> None:
    """Sends a blank now and then, and never ends."""
    assert isinstance(handler.server, Service)
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with suppress(OSError):
        while not handler.server.released.wait(0.02):
            handler.wfile.write(b"1\r\n \r\n")


def leaves(handler: Handler, _: Json) -> None:
    """Closes the connection without a word."""
    handler.close_connection = True


def breaks_off(handler: Handler, _: Json) -> None:
    """Closes it in the middle of its answer."""
    whole = completion('{"facts": []}')
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])
    handler.close_connection = True


def pours(handler: Handler, _question: Json) -> None:
    """Sends as much as it can get rid of."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    with suppress(OSError):
        for _ in range(1 << 14):
            handler.wfile.write(b" " * (1 << 16))
    handler.close_connection = True


def refuses(*names: str) -> Behaviour:
    """Refuses questions that have any of these parameters, and answers others."""

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
