"""NATS servers on loopback, with the configuration that kgserve ships."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.project.reading import TOP

CONFIGURATION = TOP / "deploy" / "nats" / "kgserve-nats.conf"
USER, PASSWORD = "kgserve", "not-much-of-a-secret"
PATIENCE = 30.0


class NatsServer:
    """One server process, and where clients and other servers find it."""

    def __init__(
        self, name: str, folder: Path, ports: tuple[int, int], host: str = "127.0.0.1", within: Sequence[str] = ()
    ) -> None:
        """``within`` is the command that runs the server's, as in a network of its own."""
        self.name = name
        self.host = host
        self.port, self.route = ports
        self._within = within
        self.log = folder / f"{name}.log"
        self._folder = folder / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{USER}:{PASSWORD}@{self.host}:{self.port}"

    @property
    def route_url(self) -> str:
        return f"nats://{self.host}:{self.route}"

    def start(self, routes: list[str], configuration: Path = CONFIGURATION) -> None:
        variables = {
            "KGSERVE_NATS_NAME": self.name,
            "KGSERVE_NATS_LISTEN": f"{self.host}:{self.port}",
            "KGSERVE_NATS_CLUSTER_LISTEN": f"{self.host}:{self.route}",
            "KGSERVE_NATS_ROUTES": str(routes),
            "KGSERVE_NATS_FOLDER": str(self._folder),
            "KGSERVE_NATS_PASSWORD": PASSWORD,
        }
        program = Path(sys.executable).with_name("nats-server")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, str(program), "-c", str(configuration)],
                env=os.environ | variables,  # noqa: TID251 - it is no setting
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it; by default as a machine does that loses its power, but for the pages that the system has."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
            self._process.wait()
            self._process = None


class NatsServers:
    """Servers that know of each other."""

    def __init__(self, servers: Sequence[NatsServer], configuration: Path = CONFIGURATION) -> None:
        self.servers = servers
        self._configuration = configuration

    @classmethod
    def on_loopback(cls, folder: Path, count: int = 3, configuration: Path = CONFIGURATION) -> NatsServers:
        ports = free_ports(2 * count)
        found = [NatsServer(f"n{n}", folder, (ports[2 * n], ports[2 * n + 1])) for n in range(count)]
        return cls(found, configuration)

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            self.start_one(server)
        self.wait()

    def start_one(self, server: NatsServer) -> None:
        server.start([each.route_url for each in self.servers], self._configuration)

    def wait(self) -> None:
        """Until all of them take connections."""
        until = time.monotonic() + PATIENCE
        for server in self.servers:
            while not _listens(server):
                assert time.monotonic() < until, server.log.read_text()[-2000:]
                time.sleep(0.02)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@contextmanager
def nats_servers(folder: Path, count: int = 3, configuration: Path = CONFIGURATION) -> Generator[NatsServers]:
    """Servers for as long as the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = NatsServers.on_loopback(folder, count, configuration)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def _listens(server: NatsServer) -> bool:
    with suppress(OSError), socket.create_connection((server.host, server.port), timeout=1):
        return True
    return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
