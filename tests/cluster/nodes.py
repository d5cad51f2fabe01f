"""kgserve nodes as processes, connected to a cluster's servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from kgserve.client import Client
from tests.cli.fork_server import ForkedProcess
from tests.cli.running import StartedProcess, start_command
from tests.cluster.servers import LOOPBACK, NatsServers, free_ports

PATIENCE = 60.0


class ServingNode:
    """A process that serves a data folder at a fixed address.

    It is forked from a process with all imports, or started by a ``program`` such as `COMMAND`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        servers: str,
        port: int,
        host: str = LOOPBACK,
        *,
        copies: int = 1,
        program: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"http://{host}:{port}"
        self.data_dir = folder / name
        self.log = folder / f"{name}.log"
        options = ["serve", "--host", host, "--insecure-no-auth", "--port", str(port), "--data-dir", str(self.data_dir)]
        options += ["--node-name", name, "--cluster", servers, "--cluster-copies", str(copies)]
        options += ["--embedding-provider", "hashing", "--log-format", "json"]
        options += ["--compact-wal-mb", "1", "--journal-segment-mb", "1"]
        self.backup_dir = folder / f"{name}-backups"
        options += ["--backup-dir", str(self.backup_dir)]
        self._arguments = options
        self._program = program
        self.process: StartedProcess | ForkedProcess | None = None
        self.source: Path | None = None
        """Source folder of another version to run, if any."""

    def start(self) -> None:
        """Start the process, and wait until it responds."""
        with self.log.open("ab") as log:
            self.process = start_command(self._program, self._arguments, _environment(), log, log, self.source)
        until = time.monotonic() + PATIENCE
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < until, self.log.read_text()[-2000:]
            time.sleep(0.05)

    def answers(self) -> bool:
        """Return whether it accepts requests."""
        try:
            return httpx.get(f"{self.url}/health", timeout=1).is_success
        except httpx.TransportError:
            return False

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, and wait until it has exited."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE)

    def client(self) -> Client:
        """Return a client of this node."""
        return Client(self.url)


@contextmanager
def serving_nodes(
    servers: NatsServers, folder: Path, count: int = 3, *, copies: int = 1, program: Sequence[str] = ()
) -> Generator[list[ServingNode]]:
    """Run nodes within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(count)
    nodes = [
        ServingNode(f"k{number}", folder, servers.urls, port, copies=copies, program=program)
        for number, port in enumerate(ports)
    ]
    try:
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(ServingNode.start, nodes))
        settle(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.end(signal.SIGKILL)


def settle(nodes: list[ServingNode]) -> None:
    """Wait until each node has seen all others."""
    until = time.monotonic() + PATIENCE
    for node in nodes:
        with node.client() as client:
            while [each.state for each in client.cluster().nodes] != ["alive"] * len(nodes):
                assert time.monotonic() < until, node.log.read_text()[-2000:]
                time.sleep(0.1)


def _environment() -> dict[str, str]:
    # Like an installation: compiled bytecode is reused at the next start.
    unwanted = ("KGSERVE_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}  # noqa: TID251
