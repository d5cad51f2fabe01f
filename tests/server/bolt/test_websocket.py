from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection
from websockets.typing import Origin

from kgserve.server.bolt.connection import BoltLimits
from kgserve.server.bolt.handshake import MAGIC
from kgserve.server.bolt.packstream import PackStreamDecoder
from tests.server.bolt.raw_client import CREDENTIALS, HELLO, LOGON, PULL, RECORD, RUN, SUCCESS, RawClient, encode
from tests.server.bolt.running import RunningServer, running
from tests.server.bolt.scripted_backend import ScriptedBackend

PAGE = Origin("https://browser.example")
PROPOSAL = MAGIC + bytes((0, 0, 8, 5)) + bytes(12)


@pytest.fixture
def open_server(backend: ScriptedBackend) -> Iterator[RunningServer]:
    with running(backend, BoltLimits(websocket_origins=frozenset({PAGE}))) as server:
        yield server
    assert backend.open_count == 0


def connect_to(server: RunningServer, origin: Origin | None = PAGE) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/", origin=origin, proxy=None, max_size=None)


def receive(client: Connection, count: int) -> bytes:
    """Return bytes from as many frames as they take."""
    data = b""
    while len(data) < count:
        part = client.recv(timeout=10)
        assert isinstance(part, bytes)
        data += part
    return data


def test_pages_of_allowed_origins_speak_bolt(open_server: RunningServer) -> None:
    with connect_to(open_server) as client:
        client.send(PROPOSAL[:3])
        client.send([PROPOSAL[3:7], PROPOSAL[7:]])
        assert receive(client, 4) == bytes((0, 0, 8, 5))
        client.ping().wait(10)
        client.send(encode(HELLO, {}) + encode(LOGON, CREDENTIALS))
        text = "x" * 300_000
        client.send(encode(RUN, "ECHO", {"text": text}, {}) + encode(PULL, {"n": -1}))
        tags: list[int] = []
        data = b""
        while len(tags) < 5:
            data += receive(client, 1)
            while len(data) >= 2 and (end := find_end(data)):
                message = PackStreamDecoder(end[0]).read_message()
                data = data[end[1] :]
                tags.append(message.tag)
                assert message.tag != RECORD or message.fields[0] == [text]
        assert tags == [SUCCESS, SUCCESS, SUCCESS, RECORD, SUCCESS]


def find_end(data: bytes) -> tuple[bytes, int] | None:
    """Return the first message and its size with chunk heads, if it is complete."""
    message, at = b"", 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2])
        message += data[at + 2 : at + 2 + size]
        at += 2 + size
        if not size:
            return message, at
    return None


@pytest.mark.parametrize("origin", [None, Origin("https://other.example"), Origin("null")])
def test_other_pages_are_refused(open_server: RunningServer, origin: Origin | None) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect_to(open_server, origin)
    assert caught.value.response.status_code == 403


def test_no_page_connects_without_settings(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus):
        connect_to(server)


@pytest.mark.parametrize("version", ["12", "14"])
def test_other_versions_are_refused(open_server: RunningServer, version: str) -> None:
    with RawClient(open_server.port, None) as client:
        key = "AAAAAAAAAAAAAAAAAAAAAA=="
        head = f"GET / HTTP/1.1\r\nOrigin: {PAGE}\r\nUpgrade: websocket\r\nSec-WebSocket-Key: {key}\r\n"
        client.send_bytes(f"{head}Sec-WebSocket-Version: {version}\r\n\r\n".encode())
        assert client.receive_bytes(1_000).startswith(b"HTTP/1.1 426 ")


def test_text_frames_end_the_connection(open_server: RunningServer) -> None:
    with connect_to(open_server) as client:
        client.send("text")
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=10)


def test_malformed_frames_end_the_connection(open_server: RunningServer) -> None:
    for number in range(100):
        client = connect_to(open_server)
        raw: socket.socket = client.socket
        raw.sendall(bytes((number, 0x80 | number)) + os.urandom(30))
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionClosed):  # noqa: PT012
            while True:
                client.recv(timeout=10)
    with connect_to(open_server) as client:
        client.send(PROPOSAL)
        assert receive(client, 4) == bytes((0, 0, 8, 5))


def test_long_heads_end_the_connection(open_server: RunningServer) -> None:
    with RawClient(open_server.port, None) as client:
        client.send_bytes(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3_000)
        assert client.receive_bytes(1) == b""
