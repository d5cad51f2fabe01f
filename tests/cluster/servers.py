"""NATS servers on loopback with the configuration that kgserve ships."""

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
LOOPBACK = "127.0.0.1"


class NatsServer:
    """One server process and its ports; ``within`` is a command prefix to start it elsewhere."""

    def __init__(
        self, name: str, folder: Path, ports: tuple[int, int], host: str = LOOPBACK, within: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.port, route = ports
        self.host = host
        self.route = f"{host}:{route}"
        self._within = within
        self.log = folder / f"{name}.log"
        self.folder = folder / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{USER}:{PASSWORD}@{self.host}:{self.port}"

    def start(self, routes: list[str], configuration: Path = CONFIGURATION) -> None:
        variables = {
            "KGSERVE_NATS_NAME": self.name,
            "KGSERVE_NATS_LISTEN": f"{self.host}:{self.port}",
            "KGSERVE_NATS_CLUSTER_LISTEN": self.route,
            "KGSERVE_NATS_ROUTES": str([f"nats://{USER}:{PASSWORD}@{route}" for route in routes]),
            "KGSERVE_NATS_FOLDER": str(self.folder),
            "KGSERVE_NATS_PASSWORD": PASSWORD,
        }
        program = Path(sys.executable).with_name("nats-server")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, program, "-c", configuration],
                env=os.environ | variables,  # noqa: TID251 - it is no setting
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the server; by default like a power loss, except for data in the page cache."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
            self._process.wait()
            self._process = None


class NatsServers:
    """A cluster of NATS servers."""

    def __init__(self, servers: list[NatsServer], configuration: Path = CONFIGURATION) -> None:
        self.servers = servers
        self._configuration = configuration

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            self.start_one(server)
        self.wait()

    def start_one(self, server: NatsServer) -> None:
        server.start([each.route for each in self.servers], self._configuration)

    def wait(self) -> None:
        """Wait until all servers accept connections."""
        until = time.monotonic() + PATIENCE
        for server in self.servers:
            while not _listens(server.host, server.port):
                assert time.monotonic() < until, server.log.read_text()[-2000:]
                time.sleep(0.02)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@contextmanager
def nats_servers(folder: Path, count: int = 3, configuration: Path = CONFIGURATION) -> Generator[NatsServers]:
    """Run servers within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2 * count)
    named = [NatsServer(f"n{n}", folder, (ports[2 * n], ports[2 * n + 1])) for n in range(count)]
    servers = NatsServers(named, configuration)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
