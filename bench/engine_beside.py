"""What statements that go on for long cost those who write to the same store, and walk in it, over HTTP."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import msgspec

from bench.engine_server import HALF_MORE, SLOW, STORE, WORDS, filled
from bench.measure import Report, times
from bench.server import Server
from bench.wire import Wire, request

STATEMENTS = 4
TIMEOUT = 20.0
BLOCKS, REPETITIONS = 5, 100
FEW_BLOCKS, FEW_REPETITIONS = 1, 50
NEW = 5
SETTINGS: dict[str, object] = {"indexes": False, "query_timeout": TIMEOUT}
KINDS = ("inject", "traverse")


def beside(*, quick: bool) -> Report:
    """Injects and walks, with no statement and with four that go on all the time, in turn."""
    report = Report(f"beside: with {STATEMENTS} statements that go on all the time on the same store")
    blocks, repetitions = (FEW_BLOCKS, FEW_REPETITIONS) if quick else (BLOCKS, REPETITIONS)
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}
    crowded: dict[str, list[float]] = {kind: [] for kind in KINDS}
    statuses = list[int]()
    with filled(SETTINGS, WORDS) as (server, _client), Wire(server.port) as wire:
        for block in range(blocks):
            _measure(wire, 2 * block, repetitions, alone)
            with _statements(server) as answered:
                _measure(wire, 2 * block + 1, repetitions, crowded)
            statuses += answered
    report.fact("statements that ended meanwhile", f"{len(statuses)}, with {sorted(set(statuses))}")
    for kind in KINDS:
        before, meanwhile = times(alone[kind]), times(crowded[kind])
        report.compare(f"{kind}: p50", meanwhile.fine, before.fine, meanwhile.p50 / before.p50)
        report.compare(f"{kind}: p95", meanwhile.fine, before.fine, meanwhile.p95 / before.p95, ("≤", HALF_MORE))
    return report


def _measure(wire: Wire, block: int, repetitions: int, found: dict[str, list[float]]) -> None:
    walk = request("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n7", "depth": 2})
    for number in range(repetitions):
        found["inject"].append(wire.ask(_inject(f"{block}-{number}")).milliseconds)
        found["traverse"].append(wire.ask(walk).milliseconds)


def _inject(name: str) -> bytes:
    nodes = [{"id": f"new-{name}-{each}", "type": "t", "content": WORDS} for each in range(NEW)]
    edges = [{"from": node["id"], "to": "n7", "relation_type": "s"} for node in nodes]
    return request("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes, "edges": edges})


@contextmanager
def _statements(server: Server) -> Generator[list[int]]:
    """Statements that take all the time there is, each of a caller of its own; their statuses once the block ends."""
    answered = list[int]()
    connections = [
        # Another address of this machine is another caller: one may not have all places.
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=60, source_address=(f"127.0.0.{2 + each}", 0))
        for each in range(STATEMENTS)
    ]
    stop = threading.Event()
    threads = [threading.Thread(target=_go_on, args=(each, stop, answered)) for each in connections]
    for thread in threads:
        thread.start()
    try:
        stop.wait(0.5)
        yield answered
    finally:
        stop.set()
        for connection in connections:
            _leave(connection)
        for thread in threads:
            thread.join()


def _go_on(connection: http.client.HTTPConnection, stop: threading.Event, answered: list[int]) -> None:
    body = msgspec.json.encode({"query": SLOW})
    with suppress(OSError, http.client.HTTPException):
        while not stop.is_set():
            path = f"/api/memory/{STORE}/cypher"
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            answered.append(answer.status)


def _leave(connection: http.client.HTTPConnection) -> None:
    """The server has the statement stop of a caller who leaves."""
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
