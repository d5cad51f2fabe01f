"""What is around a use case: short requests over one raw connection, one after another, with access lines.

`python -m bench.http_floor`. In turns, so that whatever else the machine does falls on all alike; the baseline is the
same client with a protocol that parses and answers always the same. The shortest of each is what a quiet machine
would show.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httptools
import msgspec
import uvloop

from bench.measure import Report, clock, times
from bench.server import Server

ROUNDS = 10
REQUESTS = 300
BODY = msgspec.json.encode({"start_id": "a", "relation_types": [str(number) * 100 for number in range(10)]})
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
ASKED = {
    "GET /health": b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "traverse of one node, 1 kB sent": (
        b"POST /api/memory/floor/traverse HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    ),
    "one node": b"GET /api/memory/floor/nodes/a HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


class _Fixed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(ANSWER)


@contextmanager
def _fixed() -> Generator[int]:
    """The port of the baseline, which shares this process's interpreter."""
    loop = uvloop.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    loop.run_until_complete(loop.create_server(_Fixed, sock=listener))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _asker(port: int, request: bytes) -> Callable[[], None]:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask() -> None:
        connection.sendall(request)
        received = connection.recv(65_536)
        assert received.startswith(b"HTTP/1.1 200"), received
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += connection.recv(65_536)

    return ask


def run() -> Report:
    """Measure."""
    report = Report("The floor under every request, ms")
    settings = {"embedding_provider": "hashing", "keep_alive": 600}
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server:
        with server.client() as client:
            client.call("POST", "/api/memory/floor/inject", {"nodes": [{"id": "a", "type": "x"}]})
        with _fixed() as port:
            askers = {"nothing": _asker(port, ASKED["GET /health"])}
            askers |= {name: _asker(server.port, request) for name, request in ASKED.items()}
            taken: dict[str, list[float]] = {name: [] for name in askers}
            for _ in range(ROUNDS):
                for name, ask in askers.items():
                    taken[name] += [clock(ask) for _ in range(REQUESTS)]
    baseline = times(taken.pop("nothing"))
    for name, each in taken.items():
        found = times(each)
        shown = f"p50 {found.p50:.3f}, p95 {found.p95:.3f}, shortest {min(each):.3f}"
        report.compare(name, shown, f"p50 {baseline.p50:.3f}", found.p50 / baseline.p50)
    return report


if __name__ == "__main__":
    run().show()
    sys.exit(0)
