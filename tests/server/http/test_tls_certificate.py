"""TLS: the server process, local clients, and refusals to start."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate

from kgserve.cli.mcp_stdio.connection import McpExchange, McpServerConnectionPool
from kgserve.cli.shell.session import ServerConnection
from kgserve.client import AsyncClient, Client, Unreachable
from kgserve.errors import InvalidInput
from kgserve.platform.metrics.exposition import MetricsScrape
from kgserve.platform.server_discovery import (
    DiscoveredServer,
    create_client_tls_context,
    encode_server_discovery_file,
    find_running_server_of_data_folder,
    is_server_ready,
)
from kgserve.platform.settings import Settings
from kgserve.server.http.tls_certificate import EXPIRY_WARNING_DAYS, ServerCertificate, find_certificate_expiry
from tests.captured_log import capture_log
from tests.cli.running import ServerProcessHandle, kgserve, kgserve_process, serving
from tests.server.http.certificates import Files, certificate
from tests.server.http.sockets import HEALTH, eventually, until_closed

PATIENCE = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificate for another name than the address: local clients trust it anyway."""
    return certificate(tmp_path_factory.mktemp("tls"), "graph.example")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[ServerProcessHandle]:
    """Server process with that certificate."""
    with serving(tmp_path_factory.mktemp("secured") / "data", *options(files)) as running:
        yield running


def options(files: Files) -> tuple[str, ...]:
    return ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--indexes", "none")


def address(running: ServerProcessHandle) -> tuple[str, int]:
    url = httpx.URL(running.url)
    return url.host, url.port or 443


def believing(files: Files) -> ssl.SSLContext:
    """Remote client that trusts the authority and checks the name."""
    return ssl.create_default_context(cafile=str(files.ca))


def shown(running: ServerProcessHandle) -> str:
    """Return the certificate that the server presents."""
    return ssl.get_server_certificate(address(running), timeout=PATIENCE)


def test_remote_clients(secured: ServerProcessHandle, files: Files) -> None:
    with (
        socket.create_connection(address(secured), PATIENCE) as plain,
        believing(files).wrap_socket(plain, server_hostname="graph.example") as connection,
    ):
        assert connection.version() in {"TLSv1.2", "TLSv1.3"}
        connection.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"strict-transport-security: max-age=" in answer


def test_certificate_expiry_is_a_metric(secured: ServerProcessHandle, files: Files) -> None:
    with httpx.Client(verify=believing(files), timeout=PATIENCE) as client:
        text = client.get(f"{secured.url}/metrics", extensions={"sni_hostname": "graph.example"}).text
    expires = load_pem_x509_certificate(files.cert.read_bytes()).not_valid_after_utc
    assert MetricsScrape.read(text).value("kgserve_certificate_end_timestamp_seconds") == expires.timestamp()


def test_parser_errors_reach_the_client_over_tls(secured: ServerProcessHandle, files: Files) -> None:
    with (
        socket.create_connection(address(secured), PATIENCE) as plain,
        believing(files).wrap_socket(plain, server_hostname="graph.example") as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"strict-transport-security: max-age=" in answer


def test_old_versions_are_refused(secured: ServerProcessHandle) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(address(secured), PATIENCE) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain).close()


@pytest.mark.abuse(13)
def test_abuse_13_slow_handshakes_end(tmp_path: Path, files: Files) -> None:
    """ABUSE 13: like slow heads."""
    with serving(tmp_path / "data", *options(files), "--head-timeout", "1") as hasty:
        for start in (b"\x16\x03\x01", b""):
            with socket.create_connection(address(hasty), PATIENCE) as connection:
                connection.sendall(start)
                assert until_closed(connection) == b""


def test_shutdown_does_not_wait_for_idle_tls_clients(tmp_path: Path, files: Files) -> None:
    patient = ("--head-timeout", "60", "--keep-alive", "600", "--shutdown-grace", "600")
    with serving(tmp_path / "data", *options(files), *patient) as running:
        plain = socket.create_connection(address(running))
        with believing(files).wrap_socket(plain, server_hostname="graph.example") as idle:
            idle.sendall(HEALTH)
            assert idle.recv(12) == b"HTTP/1.1 200"
            running.process.terminate()
            assert running.process.wait(PATIENCE) == 0


def test_http_without_tls_gets_no_answer(secured: ServerProcessHandle) -> None:
    with socket.create_connection(address(secured), PATIENCE) as connection:
        connection.sendall(HEALTH)
        assert b"200" not in until_closed(connection)


def test_commands_over_tls(secured: ServerProcessHandle, files: Files) -> None:
    """They read the trusted certificate from server.json; other clients reject it."""
    lines = '{"kind":"node","id":"a","type":"t"}\n'
    assert kgserve("import", "tls", "-", "--data", secured.data, stdin=lines).code == 0
    assert "tls" in kgserve("stores", "--data", secured.data).out
    asked = kgserve("shell", "tls", "-c", "MATCH (n) RETURN n.id", "--data", secured.data)
    assert asked.code == 0
    assert "a" in asked.out
    assert kgserve("stores", "--data", secured.data, "--server", secured.url).code == 0
    elsewhere = kgserve("stores", "--data", secured.data.parent / "other", "--server", secured.url)
    assert elsewhere.code != 0
    assert "Traceback" not in elsewhere.err


def test_clients_over_tls(secured: ServerProcessHandle) -> None:
    with Client(data=secured.data) as client:
        assert client.health().status == "ok"
    with Client(secured.url, data=secured.data) as client:
        assert client.health().status == "ok"
    assert asyncio.run(_asked_asynchronously(secured)) == "ok"
    with Client(secured.url, data=secured.data.parent / "other", retries=0) as client, pytest.raises(Unreachable):
        client.health()


async def _asked_asynchronously(secured: ServerProcessHandle) -> str:
    async with AsyncClient(data=secured.data) as client:
        return (await client.health()).status


def test_shell_and_bridge_over_tls(secured: ServerProcessHandle) -> None:
    shell = ServerConnection(None, secured.data, lambda _: None)
    assert shell.stores() is not None
    shell.close()
    found = find_running_server_of_data_folder(secured.data)
    assert found is not None
    assert is_server_ready(found)
    assert not is_server_ready(found._replace(certificate=None))
    connections = McpServerConnectionPool({})
    with McpExchange(connections, found) as exchange:
        exchange.send("GET", {})
        assert exchange.answer.status in {400, 405, 406}
        exchange.body()
    connections.get(found).close()


def test_server_json_over_tls(secured: ServerProcessHandle, files: Files) -> None:
    found = find_running_server_of_data_folder(secured.data)
    assert found is not None
    assert found.url == secured.url
    assert found.url.startswith("https://127.0.0.1:")
    assert found.certificate is not None
    assert found.certificate in files.cert.read_text()
    assert b"certificate" not in encode_server_discovery_file(DiscoveredServer("http://x", "t", pid=1))


def test_only_the_published_certificate_is_trusted(secured: ServerProcessHandle, tmp_path: Path, files: Files) -> None:
    other = certificate(tmp_path, "graph.example").cert.read_text()
    for pem in (other, ""):
        with (
            socket.create_connection(address(secured), PATIENCE) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            create_client_tls_context(pem).wrap_socket(plain).close()


def test_certificate_reload_on_sighup(tmp_path: Path) -> None:
    """At SIGHUP; files without a certificate leave the current one in service."""
    files = certificate(tmp_path / "tls")
    with serving(tmp_path / "data", *options(files)) as running:
        before = shown(running)
        with Client(data=running.data) as client:
            assert client.health().status == "ok"
            certificate(tmp_path / "tls")
            running.process.send_signal(signal.SIGHUP)
            eventually(lambda: shown(running) != before)
            after = shown(running)
            eventually(
                lambda: (
                    (found := find_running_server_of_data_folder(running.data)) is not None
                    and found.certificate == after
                )
            )
            files.cert.write_text("-----BEGIN CERTIFICATE-----\n")
            running.process.send_signal(signal.SIGHUP)
            eventually(lambda: "certificate_not_renewed" in (tmp_path / "data.log").read_text())
            assert shown(running) == after
        with Client(data=running.data) as client:
            assert client.health().status == "ok"


def spoiled(folder: Path, fault: str) -> Settings:
    """Create settings with one fault."""
    files = certificate(folder / "good")
    match fault:
        case "no key":
            return Settings(tls_cert=files.cert)
        case "no certificate":
            return Settings(tls_key=files.key)
        case "missing":
            files.key.unlink()
        case "other key":
            files.key.write_bytes(certificate(folder / "other").key.read_bytes())
        case "password":
            key = load_pem_private_key(files.key.read_bytes(), None)
            encrypted = BestAvailableEncryption(b"x")
            files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
        case "swapped":
            return Settings(tls_cert=files.key, tls_key=files.cert)
        case "cut":
            files.cert.write_bytes(files.cert.read_bytes()[:200])
        case _:
            files.cert.write_text("hello")
    return Settings(tls_cert=files.cert, tls_key=files.key)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no key", "must be given together"),
        ("no certificate", "must be given together"),
        ("missing", "key.pem cannot be read: no such file"),
        ("other key", "the key belongs to another certificate"),
        ("password", "has a password; use a key without one"),
        ("swapped", "cannot be used for TLS"),
        ("cut", "cannot be used for TLS"),
        ("text", "is not a PEM file"),
    ],
)
def test_unusable_certificates_are_refused(tmp_path: Path, fault: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        ServerCertificate.from_settings(spoiled(tmp_path, fault))


def test_tls_error_ends_the_command(tmp_path: Path) -> None:
    done = kgserve("serve", "--data", tmp_path / "data", "--port", "0", "--tls-cert", tmp_path / "none.pem")
    assert done.code == 1
    assert done.err.strip().endswith("must be given together, or neither to serve without TLS")


@pytest.mark.parametrize(
    ("days", "event"), [(EXPIRY_WARNING_DAYS - 1, "certificate_ends_soon"), (-1, "certificate_not_valid"), (90, None)]
)
def test_expiring_certificate_logs_a_warning(tmp_path: Path, days: int, event: str | None) -> None:
    files = certificate(tmp_path, days=days)
    with capture_log() as logged:
        made = ServerCertificate(files.cert, files.key)
    assert [line["event"] for line in logged] == ([event] if event else [])
    ends = find_certificate_expiry(made.context, made.pem)
    assert (ends is None) == (days < 0)
    assert ends is None or abs(ends.timestamp() - time.time() - days * 86_400) < 3600


def test_without_tls_nothing_is_set() -> None:
    assert ServerCertificate.from_settings(Settings()) is None


def test_bridge_process_over_tls(secured: ServerProcessHandle) -> None:
    """As an editor runs it: MCP from standard input over TLS."""
    asked = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        '"clientInfo":{"name":"t","version":"1"}}}\n'
    )
    done = kgserve_process("mcp", "--data", secured.data, stdin=asked)
    assert '"serverInfo"' in done.out, done.err
