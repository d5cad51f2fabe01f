from __future__ import annotations

import random
import socket
import ssl

import pytest

from kgserve.server.bolt.handshake import MAGIC, choose_bolt_version
from tests.server.bolt.raw_client import CREDENTIALS, HELLO, LOGON, SUCCESS, RawClient
from tests.server.bolt.running import RunningServer

MANIFEST_OF_DRIVERS = bytes.fromhex("000001ff 00080805 00020404 00000003")


@pytest.mark.parametrize(
    ("proposal", "version"),
    [
        ("00000805", (5, 8)),
        ("00080805", (5, 8)),
        ("00000005", (5, 0)),
        ("00000305", (5, 3)),
        ("00040c05", (5, 8)),
        ("00030c05", None),
        ("00000404", (4, 4)),
        ("00020404", (4, 4)),
        ("00000304", None),
        ("00000003", None),
        ("00000006", None),
        ("00000000", None),
    ],
)
def test_the_highest_common_version_of_a_proposal_is_chosen(proposal: str, version: tuple[int, int] | None) -> None:
    assert choose_bolt_version(bytes.fromhex(proposal)) == version


@pytest.mark.parametrize(
    ("proposals", "answer"),
    [
        ("00000006 00000805 00000404 00000000", "00000805"),
        ("00000404 00000805 00000000 00000000", "00000404"),
        ("00000003 00000002 00000001 00000000", "00000000"),
    ],
)
def test_the_first_proposal_that_fits_wins(server: RunningServer, proposals: str, answer: str) -> None:
    with RawClient(server.port, None) as client:
        client.send_bytes(MAGIC + bytes.fromhex(proposals))
        assert client.receive_bytes(4).hex() == answer
        assert answer != "00000000" or client.receive_bytes(1) == b""


@pytest.mark.parametrize("choice", ["00000805 00", "00000005 8000", "00000404 00"])
def test_drivers_choose_from_the_manifest(server: RunningServer, choice: str) -> None:
    with RawClient(server.port, None) as client:
        client.send_bytes(MAGIC + MANIFEST_OF_DRIVERS)
        assert client.receive_bytes(14).hex() == "000001ff" + "02" + "00080805" + "00000404" + "00"
        client.send_bytes(bytes.fromhex(choice))
        assert client.ask(HELLO, {"user_agent": "test/1", **CREDENTIALS})[0] == SUCCESS


@pytest.mark.parametrize("choice", ["00000006 00", "00080805 00", "00000905 00", "00000805 " + "80" * 20])
def test_a_choice_that_was_not_offered_ends_the_connection(server: RunningServer, choice: str) -> None:
    with RawClient(server.port, None) as client:
        client.send_bytes(MAGIC + MANIFEST_OF_DRIVERS)
        client.receive_bytes(14)
        client.send_bytes(bytes.fromhex(choice))
        assert client.receive_bytes(1) == b""


def test_http_clients_get_a_bad_request(server: RunningServer) -> None:
    with RawClient(server.port, None) as client:
        client.send_bytes(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = client.receive_bytes(1_000)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Bolt" in answer


def test_tls_to_a_plain_port_fails(server: RunningServer) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_random_bytes_end_the_connection(server: RunningServer) -> None:
    random_ = random.Random(3)
    for number in range(200):
        with RawClient(server.port, None) as client:
            start = (b"", MAGIC, MAGIC + MANIFEST_OF_DRIVERS, MAGIC[:2])[number % 4]
            client.send_bytes(start + random_.randbytes(40))
            client.socket.shutdown(socket.SHUT_WR)
            client.receive_bytes(1_000)
    with RawClient(server.port) as client:
        client.log_on()


def test_random_messages_end_the_connection(server: RunningServer) -> None:
    random_ = random.Random(5)
    for _ in range(200):
        with RawClient(server.port) as client:
            if random_.random() < 0.5:
                client.log_on()
            data = random_.randbytes(random_.randrange(1, 60))
            tag = random_.choice((HELLO, LOGON, 0x10, 0x3F, 0x66, random_.randrange(256)))
            message = bytes((0xB0 + random_.randrange(4), tag)) + data
            client.send_bytes(len(message).to_bytes(2) + message + random_.choice((b"\0\0", b"", b"\xff\xff")))
            client.socket.shutdown(socket.SHUT_WR)
            client.receive_bytes(1_000)
    with RawClient(server.port) as client:
        client.log_on()
