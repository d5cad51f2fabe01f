"""Machines that are network namespaces joined by a bridge, and what befalls their links. It takes root, and `ip`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

BRIDGE = "kgt-bridge"
_NETWORK = "10.77.31"


class Machine:
    """A namespace with an address of its own, which all others reach, and so does who made it."""

    def __init__(self, number: int) -> None:
        self.name = f"kgt-m{number}"
        self.address = f"{_NETWORK}.{10 + number}"
        self.within = ("ip", "netns", "exec", self.name)
        self._link = f"kgt-v{number}"

    def make(self) -> None:
        """Have it, on the bridge."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._link, "master", BRIDGE, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Nothing comes in or goes out."""
        _ip("link", "set", self._link, "down")

    def deafen(self, others: Sequence[Machine]) -> None:
        """Nothing comes in, as nobody finds the way; what goes out arrives."""
        for of in ((), *(("-n", other.name) for other in others)):
            _ip(*of, "route", "add", "blackhole", f"{self.address}/32")

    def mute(self) -> None:
        """Nothing goes out; what comes in arrives."""
        # Half of the network, in which all are, is more special than the way to the whole.
        _ip("-n", self.name, "route", "add", "blackhole", f"{_NETWORK}.0/25")

    def part_from(self, other: Machine) -> None:
        """The two do not reach each other; everybody else reaches both."""
        _ip("-n", self.name, "route", "add", "blackhole", f"{other.address}/32")

    def mend(self, others: Sequence[Machine]) -> None:
        """All of its links are whole."""
        _ip("link", "set", self._link, "up")
        for name in (self.name, *(other.name for other in others)):
            _ip("-n", name, "route", "flush", "type", "blackhole")
        with suppress(subprocess.CalledProcessError):
            _ip("route", "del", "blackhole", f"{self.address}/32")


@contextmanager
def machines(count: int) -> Generator[Sequence[Machine]]:
    """Machines for as long as the block runs."""
    found = [Machine(number) for number in range(count)]
    remove(found)
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_NETWORK}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for machine in found:
            machine.make()
        yield found
    finally:
        remove(found)


def remove(found: Sequence[Machine]) -> None:
    """Remove what was made, now or by a run that was killed."""
    for machine in found:
        for what in (("netns", "del", machine.name), ("route", "del", "blackhole", f"{machine.address}/32")):
            with suppress(subprocess.CalledProcessError):
                _ip(*what)
    with suppress(subprocess.CalledProcessError):
        _ip("link", "del", BRIDGE)


def refusal() -> str | None:
    """Why there can be no such machines here; None if there can."""
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    if shutil.which("ip") is None:
        return "there is no command ip: Debian's package is iproute2"
    try:
        with machines(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"this machine makes no network namespaces: {error.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
