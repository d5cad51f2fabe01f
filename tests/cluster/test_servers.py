"""Checks of the NATS servers, and error messages about unsuitable ones."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from pathlib import Path

import nats
import pytest
import trustme
from nats.js.api import ObjectInfo, StreamConfig

from kgserve.cluster.jetstream.jetstream_backend import JetStreamBlobStorage, JetStreamReplicatedLog
from kgserve.cluster.jetstream.nats_connection import NatsConnection, NatsServerInfo, require_durable_nats_servers
from kgserve.cluster.jetstream.stream import ReplicatedJetStream
from kgserve.errors import Conflict, InvalidInput, Unavailable
from tests.cluster.proxy import Proxy
from tests.cluster.servers import CONFIGURATION, PASSWORD, USER, NatsServers, nats_servers


def changed(folder: Path, before: str, after: str) -> Path:
    text = CONFIGURATION.read_text()
    assert before in text
    path = folder / "changed.conf"
    path.write_text(text.replace(before, after))
    return path


def test_a_server_without_sync_on_every_write_is_rejected(tmp_path: Path) -> None:
    configuration = changed(tmp_path, "sync_interval: always", "sync_interval: 2m")
    with (
        nats_servers(tmp_path, 1, configuration) as one,
        pytest.raises(Conflict, match=r"'n0' would lose acknowledged writes .*`sync_interval: always`"),
    ):
        NatsConnection(one.urls)


def test_a_server_that_hides_its_sync_settings_is_rejected(tmp_path: Path) -> None:
    line = 'imports: [{ service: { account: SYSTEM, subject: "$SYS.REQ.SERVER.PING.VARZ" } }]'
    with (
        nats_servers(tmp_path, 1, changed(tmp_path, line, "")) as one,
        pytest.raises(Conflict, match=r"do not report their sync settings; .*import \$SYS.REQ.SERVER.PING.VARZ"),
    ):
        NatsConnection(one.urls)


@pytest.mark.parametrize(("version", "taken"), [("2.14.9", False), ("2.15.0", True), ("3.0.0-rc", True), ("?", False)])
def test_servers_have_to_be_new_enough(version: str, *, taken: bool) -> None:
    server = NatsServerInfo("n0", version)
    with pytest.raises(Conflict, match="sync_interval" if taken else f"'n0' is {version.replace('?', '.')}; 2.15 or"):
        require_durable_nats_servers([server])


def test_a_single_server_is_rejected(tmp_path: Path) -> None:
    alone = changed(tmp_path, "routes: $KGSERVE_NATS_ROUTES", "")
    text = alone.read_text()
    start = text.index("cluster {")
    alone.write_text(text[:start] + text[text.index("system_account") :])
    with (
        nats_servers(tmp_path, 1, alone) as one,
        closing(NatsConnection(one.urls, patience=3)) as connection,
        pytest.raises(Conflict, match="KGSERVE_LOG_00 of the cluster cannot be created: replicas > 1"),
    ):
        JetStreamReplicatedLog(connection)


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (StreamConfig(num_replicas=1), "must use file storage and 3 replicas"),
        (StreamConfig(num_replicas=3, max_age=60), "has limits that would delete messages"),
    ],
)
def test_a_stream_with_limits_is_rejected(
    servers: NatsServers, store: str, limits: StreamConfig, complaint: str
) -> None:
    name = f"MADE_{store}"

    async def make() -> None:
        client = await nats.connect(servers.urls.split(",")[0], user=USER, password=PASSWORD)
        await client.jetstream().add_stream(limits, name=name, subjects=[f"made.{store}"])
        await client.close()

    with closing(NatsConnection(servers.urls)) as connection:
        # The servers elect a leader before any client can create a stream.
        JetStreamReplicatedLog(connection)
        asyncio.run(make())
        with pytest.raises(Conflict, match=f"{name}.* {complaint}"):
            ReplicatedJetStream(connection, name, [f"made.{store}"])


def test_a_wrong_password_is_reported(servers: NatsServers) -> None:
    # The server closes the connection after its error, and the client may notice that first.
    reason = "[Aa]uthorization|reset by peer|closed"
    with pytest.raises(Unavailable, match=f"cannot connect to any server .* at 127.0.0.1:.*({reason})") as refused:
        NatsConnection(servers.urls.replace(PASSWORD, "wrong"), patience=1)
    assert "wrong" not in str(refused.value)


def test_servers_with_tls_accept_only_clients_that_know_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {"CERT": tmp_path / "cert.pem", "CERT_KEY": tmp_path / "key.pem", "CA": tmp_path / "ca.pem"}
    issued.cert_chain_pems[0].write_to_path(files["CERT"])
    issued.private_key_pem.write_to_path(files["CERT_KEY"])
    authority.cert_pem.write_to_path(files["CA"])
    for name, path in files.items():
        monkeypatch.setenv(f"KGSERVE_NATS_{name}", str(path))
    configuration = changed(tmp_path, "# include ./kgserve-nats-tls.conf", "include ./kgserve-nats-tls.conf")
    (tmp_path / "kgserve-nats-tls.conf").write_text(CONFIGURATION.with_name("kgserve-nats-tls.conf").read_text())
    with nats_servers(tmp_path / "nats", configuration=configuration) as three:
        urls = three.urls.replace("nats://", "tls://")
        with pytest.raises(Unavailable, match="certificate verify failed"):
            NatsConnection(urls, patience=2)
        monkeypatch.setenv("SSL_CERT_FILE", str(files["CA"]))
        with closing(NatsConnection(urls, patience=30)) as connection:
            assert JetStreamReplicatedLog(connection).latest() == [0] * 16


def test_an_unreachable_server_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}: .*refused|{port}"):
        NatsConnection(f"nats://127.0.0.1:{port}", patience=0.5)


def test_reconnection_attempts_close_their_sockets(servers: NatsServers) -> None:
    proxy = Proxy(servers.servers[0].port)
    with closing(proxy), closing(NatsConnection(f"nats://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}")):
        proxy.stop_answering()
        while proxy.count_clients()[0] < 4:
            time.sleep(0.05)
        assert proxy.count_clients()[1] <= 1


@pytest.mark.parametrize("addresses", ["", " , ", "http://host:4222", "host:4222", "nats://"])
def test_invalid_server_addresses_are_reported(addresses: str) -> None:
    with pytest.raises(InvalidInput, match="address of a NATS server"):
        NatsConnection(addresses)


def test_requests_on_a_closed_connection_are_reported(servers: NatsServers) -> None:
    connection = NatsConnection(servers.urls)
    log = JetStreamReplicatedLog(connection)
    connection.close()
    connection.close()
    with pytest.raises(Unavailable, match="is closed"):
        log.end("any")


def test_blobs_are_readable_by_the_object_store(servers: NatsServers, store: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcde" * 200_000)

    async def get() -> tuple[bytes | None, ObjectInfo]:
        client = await nats.connect(servers.urls.split(",")[0], user=USER, password=PASSWORD)
        bucket = await client.jetstream().object_store("KGSERVE")
        found = await bucket.get(f"snap/{store}")
        await client.close()
        return found.data, found.info

    with closing(NatsConnection(servers.urls)) as connection:
        JetStreamBlobStorage(connection).put(f"snap/{store}", tmp_path / "file")
    data, info = asyncio.run(get())
    assert data == b"abcde" * 200_000
    assert info.name == f"snap/{store}"
