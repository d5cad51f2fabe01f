from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kgserve.cluster.jetstream import nats_connection
from kgserve.cluster.jetstream.jetstream_backend import (
    JetStreamBlobStorage,
    JetStreamClusterRegistry,
    JetStreamReplicatedLog,
)
from kgserve.cluster.jetstream.nats_connection import NatsConnection
from tests.cluster.in_memory import MemoryRig
from tests.cluster.proxy import Proxy
from tests.cluster.rig import Node, Rig
from tests.cluster.servers import PASSWORD, USER, NatsServers, nats_servers
from tests.stores.writing import until


class JetStreamRig:
    """Rig of the JetStream backend. The nodes it creates are closed with it."""

    def __init__(self, servers: NatsServers, closing_with: ExitStack) -> None:
        self._servers = servers
        self._closing = closing_with

    def node(self) -> Node:
        return self._connected(self._servers.urls)[0]

    def faulty_node(self, patience: float) -> tuple[Node, Proxy]:
        proxy = self._closing.enter_context(closing(Proxy(self._servers.servers[0].port)))
        node, connection = self._connected(f"nats://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}")
        # Only now, because connecting may take longer on a busy machine.
        connection.patience = patience
        return node, proxy

    def lose_record(self, store: str, position: int) -> None:
        with closing(NatsConnection(self._servers.urls)) as made:
            stream, _ = JetStreamReplicatedLog(made)._place(store)
            stream._asked("STREAM.MSG.DELETE", {"seq": position})
        self.wait_until_gone(store, position)

    def wait_until_gone(self, store: str, position: int) -> None:
        # A server answers reads from any replica from its own, which may apply a deletion late.
        for server in self._servers.servers:
            self._wait_until_gone_from(server.url, store, position)

    def _wait_until_gone_from(self, url: str, store: str, position: int) -> None:
        with closing(NatsConnection(url)) as made:
            stream, subject = JetStreamReplicatedLog(made)._place(store)
            until(lambda: all(each.seq != position for each in stream.batch(subject, position - 1)))

    def _connected(self, urls: str) -> tuple[Node, NatsConnection]:
        made = self._closing.enter_context(closing(NatsConnection(urls)))
        return Node(JetStreamReplicatedLog(made), JetStreamClusterRegistry(made), JetStreamBlobStorage(made)), made


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """Start three servers for all tests of a worker process; each test uses names of its own."""
    with nats_servers(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=["in memory", "JetStream"])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    if request.param == "in memory":
        yield MemoryRig()
        return
    monkeypatch.setattr(nats_connection, "REPLY_QUIET_SECONDS", 0.05)
    with ExitStack() as stack:
        yield JetStreamRig(request.getfixturevalue("servers"), stack)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten timeouts, so that a missing response is soon considered lost."""
    monkeypatch.setattr(nats_connection, "NATS_ATTEMPT_TIMEOUT_SECONDS", 0.4)
