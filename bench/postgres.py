"""PostgreSQL over its own protocol, without a driver: prepared statements whose answers are JSON that it made."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from bench.server import ServerFailed
from bench.wire import BLOCK

POSTGRES_URL_VARIABLE = "BENCH_POSTGRES"
_PROTOCOL_VERSION = 196_608
_IDLE = b"Z\0\0\0\5"
_ROW = ord("D")

CREATE_GRAPH = """
DROP TABLE IF EXISTS edge, node;
CREATE TABLE node (id text PRIMARY KEY, type text NOT NULL, content text NOT NULL, attributes jsonb NOT NULL,
  version int NOT NULL DEFAULT 1, created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE edge (source text REFERENCES node, relation_type text, target text REFERENCES node,
  weight float8 NOT NULL, attributes jsonb NOT NULL DEFAULT '{}', version int NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (source, relation_type, target));
CREATE INDEX edge_by_target ON edge (target);
CREATE INDEX node_by_type ON node (type, id);
"""
PUT_BATCH = """
WITH n AS (
  INSERT INTO node (id, type, content, attributes)
  SELECT id, type, content, '{}' FROM jsonb_to_recordset($1::jsonb -> 'nodes') AS n(id text, type text, content text)
  ON CONFLICT (id) DO UPDATE SET type = excluded.type, content = excluded.content, version = node.version + 1,
    updated_at = now() RETURNING 1
), e AS (
  INSERT INTO edge (source, relation_type, target, weight)
  SELECT e."from", relation_type, e."to", weight FROM jsonb_to_recordset($1::jsonb -> 'edges')
    AS e("from" text, relation_type text, "to" text, weight float8)
  ON CONFLICT (source, relation_type, target) DO UPDATE SET weight = excluded.weight, version = edge.version + 1,
    updated_at = now() RETURNING 1
) SELECT (SELECT count(*) FROM n), (SELECT count(*) FROM e)
"""


class PostgresAnswer(NamedTuple):
    """The first column of the first row, and the milliseconds from the first byte sent to the last one received."""

    milliseconds: float
    value: bytes


class PostgresConnection:
    """A connection to a server that trusts it. A context manager; not thread-safe."""

    def __init__(self, url: str) -> None:
        self.socket = open_postgres_socket(url)

    def prepare(self, name: str, statement: str) -> None:
        """Prepare a statement."""
        self.exchange(encode_prepare(name, statement))

    def ask(self, name: str, *parameters: str) -> PostgresAnswer:
        """Run a prepared statement. Raises ServerFailed."""
        ready = encode_execute(name, *(each.encode() for each in parameters))
        start = time.perf_counter()
        read = self.exchange(ready)
        return PostgresAnswer((time.perf_counter() - start) * 1000, _first_value(read))

    def run(self, statements: str) -> None:
        """Run statements without parameters."""
        self.exchange(encode_message(b"Q", statements.encode() + b"\0"))

    def copy(self, table: str, lines: Iterable[bytes]) -> None:
        """Copy lines in the format of COPY into a table."""
        self.socket.sendall(encode_message(b"Q", f"COPY {table} FROM STDIN\0".encode()))
        if receive(self.socket)[:1] != b"G":
            raise ServerFailed(f"PostgreSQL does not take rows for {table}")
        for line in lines:
            self.socket.sendall(encode_message(b"d", line))
        self.exchange(encode_message(b"c", b""))

    def exchange(self, message: bytes) -> bytearray:
        """Send a message, and read the whole answer."""
        return exchange_with_postgres(self.socket, message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection."""
        self.socket.close()


def get_postgres_url() -> str | None:
    """Return the URL of the database to compare with, such as `postgresql://bench@127.0.0.1:5432/bench`."""
    return os.environ.get(POSTGRES_URL_VARIABLE)


def connect_without_delay(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a connection that sends small messages at once."""
    made = socket.create_connection((host, port), 600)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def open_postgres_socket(url: str) -> socket.socket:
    """Return a connection on which a session has started."""
    at = urlsplit(url)
    made = connect_without_delay(at.port or 5432, at.hostname or "127.0.0.1")
    names = f"user\0{at.username}\0database\0{at.path[1:]}\0\0".encode()
    exchange_with_postgres(made, struct.pack("!II", 8 + len(names), _PROTOCOL_VERSION) + names)
    return made


def exchange_with_postgres(connection: socket.socket, message: bytes) -> bytearray:
    """Send a message, and read the whole answer. Raises ServerFailed."""
    connection.sendall(message)
    read = bytearray()
    while not is_whole_postgres_answer(read):
        read += receive(connection)
    return read


def receive(connection: socket.socket) -> bytes:
    """Return what has arrived. Raises ServerFailed if the connection was closed."""
    block = connection.recv(BLOCK)
    if not block:
        raise ServerFailed("the server closed the connection within an answer")
    return block


def encode_message(kind: bytes, body: bytes) -> bytes:
    """Return a message of the protocol."""
    return kind + struct.pack("!I", 4 + len(body)) + body


def encode_prepare(name: str, statement: str) -> bytes:
    """Return the messages that prepare a statement."""
    return encode_message(b"P", f"{name}\0{statement}\0".encode() + b"\0\0") + encode_message(b"S", b"")


def encode_execute(name: str, *parameters: bytes) -> bytes:
    """Return the messages that run a prepared statement with parameters as text."""
    values = b"".join(struct.pack("!I", len(each)) + each for each in parameters)
    bound = f"\0{name}\0".encode() + struct.pack("!HH", 0, len(parameters)) + values + b"\0\0"
    return encode_message(b"B", bound) + encode_message(b"E", b"\0" + bytes(4)) + encode_message(b"S", b"")


def is_whole_postgres_answer(read: bytes | bytearray) -> bool:
    """Return whether an answer has been read to its end. Raises ServerFailed for an error."""
    if read[-6:-1] != _IDLE:
        return False
    if read[:1] == b"E" or read[-1:] == b"E":
        raise ServerFailed(f"PostgreSQL: {bytes(read[:300])!r}")
    return True


def _first_value(read: bytearray) -> bytes:
    """Return the first column of the first row of an answer."""
    at = 0
    while read[at] != _ROW:
        at += 1 + struct.unpack_from("!I", read, at + 1)[0]
        if at >= len(read):
            raise ServerFailed("PostgreSQL answered without a row")
    length = struct.unpack_from("!i", read, at + 7)[0]
    return b"" if length < 0 else bytes(read[at + 11 : at + 11 + length])
