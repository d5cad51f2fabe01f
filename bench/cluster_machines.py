"""Three simulated machines: network namespaces joined by a bridge, each with a NATS server and a kgserve node.

Everything runs in namespaces of one process and disappears when that process ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.lossy_disk import LossyDisk
from bench.preload import compile_preload_library
from kgserve.errors import KgserveError
from tests.cli.running import COMMAND
from tests.cluster.nodes import ServingNode
from tests.cluster.servers import PASSWORD, USER, NatsServer, NatsServers

COUNT = 3
NETWORK = "10.213.0"
NODE_PORT, NATS_PORTS = 8080, (4222, 6222)
NOBODY = "02:00:00:00:00:99"
CLOCK = Path(__file__).with_name("shifted_clock.c")
DISK_MIB = 1024
SETTLE_TIMEOUT_SECONDS = 90.0
_SHIFT = struct.Struct("=q")
PROGRAMS = ("ip", "unshare", "setpriv", "mount")


def missing_prerequisite() -> str | None:
    """Return the reason why machines cannot be simulated here, as a sentence; None if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces."
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"program {program!r} was not found (packages iproute2 and util-linux)."
    if not Path(sys.executable).with_name("nats-server").exists():
        return "nats-server was not found next to this Python; `make setup` installs it."
    trial = [*_namespace_command(), "ip", "link", "add", "tried", "type", "bridge"]
    tried = subprocess.run(trial, capture_output=True, check=False)
    return None if tried.returncode == 0 else f"namespaces cannot be created here: {tried.stderr.decode().strip()}."


def run_in_namespaces(arguments: Sequence[str]) -> int:
    """Run a module of this program in its own namespaces. Return its exit code."""
    return subprocess.run([*_namespace_command(), sys.executable, "-m", *arguments], check=False).returncode


def _namespace_command() -> list[str]:
    unshared = ["--net", "--mount", "--pid", "--mount-proc"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *unshared]


class SimulatedMachine:
    """One simulated machine: its processes and its network link."""

    def __init__(self, number: int, folder: Path, clock: Path | None = None) -> None:
        """Initialize the machine. With the library ``clock``, its node's time of day can be set."""
        self.number = number
        self.host = f"{NETWORK}.{number + 1}"
        self.name = f"m{number}"
        within = ["ip", "netns", "exec", self.name]
        self.server = NatsServer(f"n{number}", folder, NATS_PORTS, self.host, within)
        self.clock = folder / f"clock-{number}"
        urls = ",".join(f"nats://{USER}:{PASSWORD}@{NETWORK}.{each + 1}:{NATS_PORTS[0]}" for each in range(COUNT))
        if clock is not None:
            self.clock.write_bytes(bytes(_SHIFT.size))
            within = [*within, "env", f"LD_PRELOAD={clock}", f"SHIFT_FILE={self.clock}"]
        self.node = ServingNode(f"k{number}", folder, urls, NODE_PORT, self.host, program=[*within, *COMMAND])
        self._disks: list[LossyDisk] = []

    def join(self) -> None:
        """Create the network namespace and link."""
        _ip(f"netns add {self.name}")
        _ip(f"link add {self._link} type veth peer name eth0 netns {self.name}")
        _ip(f"link set {self._link} master br0 up")
        for line in (f"addr add {self.host}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _ip(f"-n {self.name} {line}")

    def cut(self) -> None:
        """Disconnect the network link."""
        _ip(f"link set {self._link} down")

    def plug(self) -> None:
        """Reconnect the network link."""
        _ip(f"link set {self._link} up")

    def mute(self) -> None:
        """Drop packets from this machine to others; it still receives theirs."""
        for other in self._others:
            _ip(f"-n {self.name} neigh replace {other} lladdr {NOBODY} dev eth0 nud permanent")

    def unmute(self) -> None:
        """Undo `mute`."""
        for other in self._others:
            _ip(f"-n {self.name} neigh del {other} dev eth0")

    def set_clock(self, seconds: int) -> None:
        """Shift the clock of the machine's node by ``seconds``."""
        # Written in place: the node has mapped the file.
        with self.clock.open("r+b") as file:
            file.write(_SHIFT.pack(seconds))

    def limit_disk(self) -> None:
        """Put the node's data on a small disk."""
        self.node.data_dir.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0700", "tmpfs", str(self.node.data_dir)]
        subprocess.run(["mount", *options], check=True)

    def have_lossy_disks(self) -> None:
        """Put the data of node and server on small disks that lose unsynced data on a power failure."""
        self._disks = [LossyDisk(folder, DISK_MIB) for folder in (self.node.data_dir, self.server.folder)]

    def kill(self) -> None:
        """Kill all processes of the machine."""
        self.server.stop()
        self.node.end(signal.SIGKILL)

    def lose_power(self) -> None:
        """Kill all processes and discard the disks' unsynced data."""
        self.kill()
        for disk in self._disks:
            disk.lose_unsynced()

    def fill_disk(self) -> None:
        """Fill the small disk."""
        with self._ballast.open("wb") as file, suppress(OSError):
            while file.write(b"\0" * (1 << 20)):
                file.flush()

    def empty_disk(self) -> None:
        """Free the small disk."""
        self._ballast.unlink()

    @property
    def serves(self) -> list[str]:
        """Return the stores that the node serves; none while it does not answer."""
        with suppress(KgserveError), closing(self.node.client()) as client:
            return [each.name for each in client.stores().stores if each.state != "elsewhere"]
        return []

    @property
    def opened(self) -> int:
        """Return how often the node has opened a store."""
        return self.node.log.read_text().count('"store_opened"')

    def revive(self) -> bool:
        """Restart the node if it has exited unexpectedly, as a supervisor would. Return True if it was restarted."""
        if self.node.process is not None and self.node.process.poll() is not None:
            self.node.start()
            return True
        return False

    @property
    def _link(self) -> str:
        return f"h{self.number}"

    @property
    def _others(self) -> list[str]:
        return [f"{NETWORK}.{each + 1}" for each in range(COUNT) if each != self.number]

    @property
    def _ballast(self) -> Path:
        return self.node.data_dir / "ballast"


@contextmanager
def machines(
    folder: Path, *, faked: bool, small: bool, lossy: bool, before: Path | None = None
) -> Generator[list[SimulatedMachine]]:
    """Yield running machines.

    ``faked``: the first machine's clock can be set. ``small``: the last machine has a small disk. ``lossy``: each
    machine can lose its power and unsynced data. ``before``: source of another version that nodes run until they are
    restarted.
    """
    _create_bridge()
    clock = compile_preload_library(CLOCK, folder) if faked else None
    each = [SimulatedMachine(number, folder, clock if number == 0 else None) for number in range(COUNT)]
    servers = NatsServers([machine.server for machine in each])
    for machine in each:
        machine.join()
    if lossy:
        # `ip netns exec` gives each program its own mounts; shared propagation unmounts the others' copies too.
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        for machine in each:
            machine.have_lossy_disks()
    elif small:
        each[-1].limit_disk()
    try:
        servers.start()
        for machine in each:
            machine.node.source = before
            machine.node.start()
        settle(each)
        yield each
    finally:
        for machine in each:
            machine.node.end(signal.SIGKILL)
        servers.stop()


def settle(each: list[SimulatedMachine]) -> None:
    """Wait until every node considers every node alive."""
    _wait_until(partial(_is_settled, each), "the nodes do not find each other")


def start_server(machine: SimulatedMachine, among: list[SimulatedMachine]) -> None:
    """Restart the machine's NATS server."""
    machine.server.start([each.server.route for each in among])


def _is_settled(each: list[SimulatedMachine]) -> bool:
    for machine in each:
        with suppress(KgserveError), closing(machine.node.client()) as client:
            status = client.cluster()
            if not status.silent and [node.state for node in status.nodes] == ["alive"] * len(each):
                continue
        return False
    return True


def _wait_until(holds: partial[bool], otherwise: str) -> None:
    until = time.monotonic() + SETTLE_TIMEOUT_SECONDS
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"{otherwise} for {SETTLE_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.2)


def _create_bridge() -> None:
    Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
    for line in ("link set lo up", "link add br0 type bridge", f"addr add {NETWORK}.254/24 dev br0"):
        _ip(line)
    _ip("link set br0 up")


def _ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True)
