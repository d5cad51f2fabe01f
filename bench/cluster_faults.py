"""What befalls the machines of a cluster, each fault by its name."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.cluster_machines import Machine, start_server

STRUCK_SECONDS = 20.0
CLOCK_SECONDS = 3600

Strike = Callable[[list[Machine], Machine], None]


class Fault(NamedTuple):
    """What is done to a machine, for how long it stays so, and how it is undone.

    It befalls the machine of a number, where only that one can be struck so, and else the one that serves most stores.
    """

    what: str
    begin: Strike
    end: Strike
    seconds: float = STRUCK_SECONDS
    at: int | None = None


def _kill(_: list[Machine], machine: Machine) -> None:
    machine.node.end(signal.SIGKILL)
    machine.node.start()


def _lose(_: list[Machine], machine: Machine) -> None:
    machine.kill()


def _black_out(among: list[Machine], _: Machine) -> None:
    for machine in random.sample(among, len(among)):
        machine.lose_power()


def _start(those: list[Machine], among: list[Machine]) -> None:
    for machine in random.sample(those, len(those)):
        start_server(machine, among)
    for machine in those:
        machine.node.start()


def _find(among: list[Machine], machine: Machine) -> None:
    _start([machine], among)


def _stop(_: list[Machine], machine: Machine) -> None:
    machine.node.send(signal.SIGSTOP)


def _go_on(_: list[Machine], machine: Machine) -> None:
    machine.node.send(signal.SIGCONT)


def _kill_server(_: list[Machine], machine: Machine) -> None:
    machine.server.stop()


def _start_server(among: list[Machine], machine: Machine) -> None:
    start_server(machine, among)


def _kill_servers(among: list[Machine], _: Machine) -> None:
    for machine in random.sample(among, len(among)):
        machine.server.stop()
        time.sleep(random.uniform(0, 0.1))


def _start_servers(among: list[Machine], _: Machine) -> None:
    for machine in random.sample(among, len(among)):
        start_server(machine, among)


def _jump(_: list[Machine], machine: Machine) -> None:
    machine.set_clock(CLOCK_SECONDS)
    time.sleep(STRUCK_SECONDS / 2)
    machine.set_clock(-CLOCK_SECONDS)


def _set_right(_: list[Machine], machine: Machine) -> None:
    machine.set_clock(0)


def _fill(_: list[Machine], machine: Machine) -> None:
    machine.fill_disk()


def _empty(_: list[Machine], machine: Machine) -> None:
    machine.empty_disk()


def _nothing(_: list[Machine], __: Machine) -> None:
    """It goes on as it is."""


def _restart_each(among: list[Machine], _: Machine) -> None:
    for machine in among:
        machine.node.end()
        machine.node.source = None
        machine.node.start()
        time.sleep(2)


FAULTS: dict[str, Fault] = {
    "kill": Fault("node killed, started again at once", _kill, _nothing, 0),
    "loss": Fault("node and NATS server killed, away for 20 s", _lose, _find),
    "power": Fault(
        "machine without power for 20 s, which forgets what was not synced",
        lambda _, machine: machine.lose_power(),
        _find,
    ),
    "blackout": Fault(
        "all machines without power, one after the other, as in `power`",
        _black_out,
        lambda among, _: _start(among, among),
        0,
    ),
    "stop": Fault("node stopped for 20 s", _stop, _go_on),
    "cut": Fault("machine cut off for 20 s", lambda _, machine: machine.cut(), lambda _, machine: machine.plug()),
    "half": Fault(
        "machine hears others, who do not hear it, for 20 s",
        lambda _, machine: machine.mute(),
        lambda _, machine: machine.unmute(),
    ),
    "server": Fault("NATS server killed, leader of a third of the shards, away for 20 s", _kill_server, _start_server),
    "servers": Fault("all NATS servers killed within 300 ms, started again", _kill_servers, _start_servers, 0),
    "clock": Fault("clock of a node an hour ahead, then an hour behind", _jump, _set_right, STRUCK_SECONDS / 2, at=0),
    "disk": Fault("disk of a node full for 20 s", _fill, _empty, at=-1),
    "rolling": Fault("each node ended by SIGTERM and started again, one after the other", _restart_each, _nothing, 0),
    "move": Fault("stores moved to other nodes", _nothing, _nothing, 0),
    "calm": Fault("nothing", _nothing, _nothing),
}
