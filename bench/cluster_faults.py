"""Faults of a cluster's machines by name."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.cluster_machines import SimulatedMachine, start_server

STRUCK_SECONDS = 20.0
CLOCK_SECONDS = 3600

Strike = Callable[[list[SimulatedMachine], SimulatedMachine], None]


class MachineFault(NamedTuple):
    """A fault: its description, how to cause and undo it, and its duration in seconds.

    It strikes the machine with the number ``at``, if set, else the machine that serves the most stores.
    """

    what: str
    begin: Strike
    end: Strike
    seconds: float = STRUCK_SECONDS
    at: int | None = None


def _shuffled(machines: list[SimulatedMachine]) -> list[SimulatedMachine]:
    return random.sample(machines, len(machines))


def _kill_node(_: list[SimulatedMachine], machine: SimulatedMachine) -> None:
    machine.node.end(signal.SIGKILL)
    machine.node.start()


def _black_out(among: list[SimulatedMachine], _: SimulatedMachine) -> None:
    for machine in _shuffled(among):
        machine.lose_power()


def _start(those: list[SimulatedMachine], among: list[SimulatedMachine]) -> None:
    for machine in _shuffled(those):
        start_server(machine, among)
    for machine in those:
        machine.node.start()


def _kill_servers(among: list[SimulatedMachine], _: SimulatedMachine) -> None:
    for machine in _shuffled(among):
        machine.server.stop()
        time.sleep(random.uniform(0, 0.1))


def _start_servers(among: list[SimulatedMachine], _: SimulatedMachine) -> None:
    for machine in _shuffled(among):
        start_server(machine, among)


def _set_clock(_: list[SimulatedMachine], machine: SimulatedMachine) -> None:
    machine.set_clock(CLOCK_SECONDS)
    time.sleep(STRUCK_SECONDS / 2)
    machine.set_clock(-CLOCK_SECONDS)


def _restart_each(among: list[SimulatedMachine], _: SimulatedMachine) -> None:
    for machine in among:
        machine.node.end()
        machine.node.source = None
        machine.node.start()
        time.sleep(2)


def _nothing(_: list[SimulatedMachine], __: SimulatedMachine) -> None:
    """Do nothing."""


def _at(strike: Callable[[SimulatedMachine], None]) -> Strike:
    """Strike one machine only."""
    return lambda _, machine: strike(machine)


def _start_again(among: list[SimulatedMachine], machine: SimulatedMachine) -> None:
    _start([machine], among)


FAULTS: dict[str, MachineFault] = {
    "kill": MachineFault("node killed, restarted immediately", _kill_node, _nothing, 0),
    "loss": MachineFault("node and NATS server killed, down for 20 s", _at(SimulatedMachine.kill), _start_again),
    "power": MachineFault(
        "machine without power for 20 s; unsynced data is lost", _at(SimulatedMachine.lose_power), _start_again
    ),
    "blackout": MachineFault(
        "all machines without power, one after the other, as in `power`",
        _black_out,
        lambda among, _: _start(among, among),
        0,
    ),
    "stop": MachineFault(
        "node stopped for 20 s",
        _at(lambda it: it.node.send(signal.SIGSTOP)),
        _at(lambda it: it.node.send(signal.SIGCONT)),
    ),
    "cut": MachineFault("machine cut off for 20 s", _at(SimulatedMachine.cut), _at(SimulatedMachine.plug)),
    "half": MachineFault(
        "packets from the machine to others lost for 20 s", _at(SimulatedMachine.mute), _at(SimulatedMachine.unmute)
    ),
    "server": MachineFault(
        "NATS server killed, leader of a third of the shards, down for 20 s",
        _at(lambda it: it.server.stop()),
        lambda among, machine: start_server(machine, among),
    ),
    "servers": MachineFault("all NATS servers killed within 300 ms, restarted", _kill_servers, _start_servers, 0),
    "clock": MachineFault(
        "clock of a node an hour ahead, then an hour behind",
        _set_clock,
        _at(lambda it: it.set_clock(0)),
        STRUCK_SECONDS / 2,
        at=0,
    ),
    "disk": MachineFault(
        "disk of a node full for 20 s", _at(SimulatedMachine.fill_disk), _at(SimulatedMachine.empty_disk), at=-1
    ),
    "rolling": MachineFault(
        "each node stopped by SIGTERM and restarted, one after the other", _restart_each, _nothing, 0
    ),
    "move": MachineFault("stores moved to other nodes", _nothing, _nothing, 0),
    "calm": MachineFault("nothing", _nothing, _nothing),
}
