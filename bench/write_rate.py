"""Batches per second of many writing clients, next to PostgreSQL with the same batches in the same run.

`python -m bench.write_rate [--quick]`. PostgreSQL takes part if `BENCH_POSTGRES` is the URL of a database, such as
`postgresql://bench@127.0.0.1:5432/bench`, whose server trusts the connection. One thread sends the prepared bytes of
all clients, so that the load costs little of the processors.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, cast

from bench.measure import BenchmarkReport, parser, run_parts
from bench.postgres import (
    CREATE_GRAPH,
    POSTGRES_URL_VARIABLE,
    PUT_BATCH,
    PostgresConnection,
    connect_without_delay,
    encode_execute,
    encode_prepare,
    exchange_with_postgres,
    get_postgres_url,
    is_whole_postgres_answer,
    open_postgres_socket,
    receive,
)
from bench.server import HASHING, ServerFailed, serving
from bench.wire import request

STORE = "writers"
CLIENTS = (1, 8, 32)
_NAME = "@" * 16
_KEPT = "=" * 16


class WriteProtocol(NamedTuple):
    """Protocol of a server: connects, wraps a batch in a message, and tells whether bytes are a whole answer."""

    connect: Callable[[], socket.socket]
    wrap: Callable[[bytes], bytes]
    is_whole: Callable[[bytes | bytearray], bool]


class WritingClient:
    """Client with one batch in flight at a time. The batches are made from a message with places for their names."""

    def __init__(self, protocol: WriteProtocol, message: bytes, number: int, names: Iterator[int]) -> None:
        self.connection = protocol.connect()
        self._is_whole = protocol.is_whole
        self._message, self._names = message.replace(_KEPT.encode(), b"%016d" % number), names
        self._read = bytearray()

    def send(self) -> None:
        """Send the next batch."""
        self.connection.sendall(self._message.replace(_NAME.encode(), b"%016x" % next(self._names)))

    def receive(self) -> bool:
        """Receive what has arrived. Return whether the answer is complete."""
        self._read += receive(self.connection)
        if not self._is_whole(self._read):
            return False
        self._read.clear()
        return True


def batch_body(kind: str) -> bytes:
    """Return a batch of five nodes and five edges as JSON, with places for the name and the content."""
    name = _NAME if kind == "new" else _KEPT
    ids = [f"{name}-{number}" for number in range(5)]
    nodes = [{"id": id_, "type": "note", "content": f"A note with some words, {_NAME}."} for id_ in ids]
    ends = zip(ids, ids[1:] + ids[:1], strict=True)
    edges = [{"from": a, "to": b, "relation_type": "mentions", "weight": 0.5} for a, b in ends]
    value: dict[str, object] = {"nodes": nodes, "edges": edges}
    if kind == "unchanged":
        for node in nodes:
            node["content"] = "A note with some words."
        value["touch"] = False
    return request("POST", f"/api/memory/{STORE}/inject", value).partition(b"\r\n\r\n")[2]


def count_batches(protocol: WriteProtocol, kind: str, clients: int, seconds: float) -> float:
    """Return the acknowledged batches per second of several clients."""
    message, names, done = protocol.wrap(batch_body(kind)), count(time.time_ns()), 0
    with selectors.DefaultSelector() as selector:
        writing = [WritingClient(protocol, message, number, names) for number in range(clients)]
        for client in writing:
            # The first batch may create the store or the client's rows, so it is not counted.
            client.send()
            while not client.receive():
                pass
            selector.register(client.connection, selectors.EVENT_READ, client)
        for client in writing:
            client.send()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in selector.select(1):
                client = cast("WritingClient", key.data)
                if client.receive():
                    done += 1
                    client.send()
    for client in writing:
        client.connection.close()
    return done / seconds


def http_protocol(port: int) -> WriteProtocol:
    """Return the protocol of a kgserve server."""
    path = f"/api/memory/{STORE}/inject"

    def wrap(body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        return head.encode() + b"%d\r\n\r\n" % len(body) + body

    return WriteProtocol(lambda: connect_without_delay(port), wrap, _is_http_answer)


def _is_http_answer(read: bytes | bytearray) -> bool:
    head, end, body = read.partition(b"\r\n\r\n")
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise ServerFailed(f"{head[:80]!r}: {body[:300]!r}")
    at = head.lower().index(b"content-length:") + len(b"content-length:")
    return len(body) >= int(head[at:].partition(b"\r\n")[0])


def postgres_protocol(url: str) -> WriteProtocol:
    """Return PostgreSQL's protocol with one prepared statement for each batch. Creates the tables."""
    with PostgresConnection(url) as made:
        made.run(CREATE_GRAPH)

    def connect() -> socket.socket:
        made = open_postgres_socket(url)
        exchange_with_postgres(made, encode_prepare("put", PUT_BATCH))
        return made

    return WriteProtocol(connect, lambda body: encode_execute("put", body), is_whole_postgres_answer)


def rates(*, quick: bool) -> BenchmarkReport:
    """Compare the batches per second of 1, 8 and 32 clients."""
    report = BenchmarkReport("writers: batches of 5 nodes and 5 edges, one at a time for each client")
    seconds, rounds = (0.5, 1) if quick else (1.0, 5)
    url = get_postgres_url()
    peer = postgres_protocol(url) if url else None
    if peer is None:
        report.notes.append(f"PostgreSQL is not measured: {POSTGRES_URL_VARIABLE} is not set")
    with serving(HASHING) as (server, _):
        own = http_protocol(server.port)
        for kind in ("new", "updated", "unchanged"):
            for clients in CLIENTS:
                found, other, used = list[float](), list[float](), list[float]()
                for _ in range(rounds):
                    before = server.processor_seconds()
                    found.append(count_batches(own, kind, clients, seconds))
                    used.append((server.processor_seconds() - before) / (found[-1] * seconds) * 1e6)
                    other += [count_batches(peer, kind, clients, seconds)] if peer else []
                _add(report, f"{kind}, {clients} clients", found, other, min(used))
    return report


def _add(report: BenchmarkReport, what: str, found: Sequence[float], other: Sequence[float], used: float) -> None:
    figure = f"{statistics.median(found):,.0f}/s, {used:,.0f} µs CPU"
    if not other:
        report.fact(what, figure)
        return
    peer = statistics.median(other)
    report.compare(what, figure, f"PostgreSQL {peer:,.0f}/s", statistics.median(found) / peer, ("≥", 1.0))


PARTS = {"rates": rates}


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    return run_parts(PARTS, parser("write_rate", (__doc__ or "").split("\n", 1)[0], PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
