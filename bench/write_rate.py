"""Batches per second of many writing clients, next to PostgreSQL with the same batches in the same run.

`python -m bench.write_rate [--quick]`. PostgreSQL takes part if `BENCH_POSTGRES` is the URL of a database, such as
`postgresql://bench@127.0.0.1:5432/bench`, whose server trusts the connection. One thread sends the prepared bytes of
all clients, so that the load costs little of the processors.
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from bench.measure import BenchmarkReport, parser, run_parts
from bench.server import HASHING, ServerFailed, serving
from bench.wire import BLOCK, request

STORE = "writers"
CLIENTS = (1, 8, 32)
POSTGRES = "BENCH_POSTGRES"
_NAME = "@" * 16
_KEPT = "=" * 16
_CREATE = """
DROP TABLE IF EXISTS edge, node;
CREATE TABLE node (id text PRIMARY KEY, type text NOT NULL, content text NOT NULL, attributes jsonb NOT NULL,
  version int NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE edge (source text REFERENCES node, relation_type text, target text REFERENCES node, weight float8 NOT NULL,
  attributes jsonb NOT NULL, version int NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (source, relation_type, target));
CREATE INDEX edge_by_target ON edge (target);
"""
_WRITE = """
WITH n AS (
  INSERT INTO node (id, type, content, attributes, version)
  SELECT id, type, content, '{}', 1 FROM jsonb_to_recordset($1::jsonb -> 'nodes') AS n(id text, type text, content text)
  ON CONFLICT (id) DO UPDATE SET type = excluded.type, content = excluded.content, version = node.version + 1,
    updated_at = now() RETURNING 1
), e AS (
  INSERT INTO edge (source, relation_type, target, weight, attributes, version)
  SELECT e."from", relation_type, e."to", weight, '{}', 1 FROM jsonb_to_recordset($1::jsonb -> 'edges')
    AS e("from" text, relation_type text, "to" text, weight float8)
  ON CONFLICT (source, relation_type, target) DO UPDATE SET weight = excluded.weight, version = edge.version + 1,
    updated_at = now() RETURNING 1
) SELECT (SELECT count(*) FROM n), (SELECT count(*) FROM e)
"""


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
        self._read += _receive(self.connection)
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


def _exchange(connection: socket.socket, message: bytes, protocol: WriteProtocol) -> None:
    connection.sendall(message)
    read = bytearray()
    while not protocol.is_whole(read):
        read += _receive(connection)


def _receive(connection: socket.socket) -> bytes:
    block = connection.recv(BLOCK)
    if not block:
        raise ServerFailed("the server closed the connection within an answer")
    return block


def _connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection((host, port), 600)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def http_protocol(port: int) -> WriteProtocol:
    """Return the protocol of a kgserve server."""
    path = f"/api/memory/{STORE}/inject"

    def wrap(body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        return head.encode() + b"%d\r\n\r\n" % len(body) + body

    return WriteProtocol(lambda: _connect(port), wrap, _is_http_answer)


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
    at = urlsplit(url)

    def start() -> socket.socket:
        made = _connect(at.port or 5432, at.hostname or "127.0.0.1")
        names = f"user\0{at.username}\0database\0{at.path[1:]}\0\0".encode()
        _exchange(made, struct.pack("!II", 8 + len(names), 196_608) + names, protocol)
        return made

    def connect() -> socket.socket:
        made = start()
        _exchange(made, _message(b"P", b"w\0" + _WRITE.encode() + b"\0\0\0") + _message(b"S", b""), protocol)
        return made

    def wrap(body: bytes) -> bytes:
        bound = _message(b"B", b"\0w\0" + struct.pack("!HHI", 0, 1, len(body)) + body + b"\0\0")
        return bound + _message(b"E", b"\0" + bytes(4)) + _message(b"S", b"")

    protocol = WriteProtocol(connect, wrap, _is_postgres_answer)
    with start() as made:
        _exchange(made, _message(b"Q", _CREATE.encode() + b"\0"), protocol)
    return protocol


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(body)) + body


def _is_postgres_answer(read: bytes | bytearray) -> bool:
    if read[:1] == b"E" or read[-1:] == b"E":
        raise ServerFailed(f"PostgreSQL: {bytes(read[:300])!r}")
    return read[-6:-1] == b"Z\0\0\0\5"


def rates(*, quick: bool) -> BenchmarkReport:
    """Compare the batches per second of 1, 8 and 32 clients."""
    report = BenchmarkReport("writers: batches of 5 nodes and 5 edges, one at a time for each client")
    seconds, rounds = (0.5, 1) if quick else (1.0, 5)
    url = os.environ.get(POSTGRES)
    peer = postgres_protocol(url) if url else None
    if peer is None:
        report.notes.append(f"PostgreSQL is not measured: {POSTGRES} is not set")
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
