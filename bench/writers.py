"""Clients that write into a store until the server is gone, and record acknowledgements in a ledger."""

from __future__ import annotations

import http.client
import random
import threading
from types import TracebackType
from typing import Self

import msgspec
from typing_extensions import override

from bench.graphs import blocks
from bench.ledger import ImportStream, Ledger, UnitState, WriteUnit
from bench.server import BenchClient, HttpReply

GONE = (OSError, http.client.HTTPException)
KEPT = 50
"""Units of earlier rounds that each client continues with."""


class Writers:
    """Threads with their own connections that inject, update and delete units. A context manager.

    With `adopt`, they also continue with units of earlier rounds. `unexpected` are answers that no write should get;
    `refused` is set at the first 503 or 507.
    """

    def __init__(
        self, port: int, ledger: Ledger, seed: str, threads: int = 4, size: int = 400, *, adopt: bool = True
    ) -> None:
        self.unexpected: list[str] = []
        self.refused = threading.Event()
        self._port, self._ledger, self._size = port, ledger, size
        self._go, self._over = threading.Event(), threading.Event()
        self._go.set()
        older = ledger.settled_units()[-KEPT * threads :] if adopt else []
        self._threads = [
            threading.Thread(target=self._write, args=(f"{seed}-{number}", older[number::threads]), daemon=True)
            for number in range(threads)
        ]

    def pause(self) -> None:
        """Let each client finish its request and wait."""
        self._go.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._go.set()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._go.set()
        for thread in self._threads:
            thread.join()

    def _write(self, name: str, own: list[WriteUnit]) -> None:
        choice = random.Random(name)
        number = 0
        with BenchClient(self._port, timeout=60) as client:
            while self._go.wait() and not self._over.is_set():
                unit = choice.choice(own) if own and choice.random() < 0.35 else None
                if unit is None:
                    unit = WriteUnit(f"{name}-{number}", self._size, own[-1].name if own else None)
                    number += 1
                try:
                    known = self._step(client, unit, choice)
                except GONE:
                    return
                if known and unit not in own:
                    own.append(unit)
                elif not known and unit in own:
                    own.remove(unit)

    def _step(self, client: BenchClient, unit: WriteUnit, choice: random.Random) -> bool:
        """Make one request. Return True if the unit's state is known afterwards."""
        reply, after = write_unit(client, self._ledger, unit, choice)
        if reply.status == 200:
            self._ledger.acknowledge(unit, after)
            return True
        self._refused(reply)
        return False

    def _refused(self, reply: HttpReply) -> None:
        self.refused.set()
        if reply.status not in (503, 507):
            self.unexpected.append(f"a write was answered {reply.status}: {_text(reply)}")
        self._over.wait(0.05)


def write_unit(
    client: BenchClient, ledger: Ledger, unit: WriteUnit, choice: random.Random
) -> tuple[HttpReply, UnitState]:
    """Write a unit's next state, sometimes without its first node. Return the answer and that state."""
    now, api = unit.allowed[0], f"/api/memory/{ledger.store}"
    delete = now.generation > 0 and now.first and choice.random() < 0.25
    after = UnitState(now.generation, first=False) if delete else UnitState(now.generation + 1)
    ledger.attempt(unit, after)
    if delete:
        return client.send("DELETE", f"{api}/{unit.path(0)}"), after
    return client.send("POST", f"{api}/inject", msgspec.json.encode(unit.batch(after.generation))), after


def _text(reply: HttpReply) -> str:
    return reply.body[:300].decode(errors="replace")


class Upload(threading.Thread):
    """Thread that sends one import of a stream, completely or until the connection breaks."""

    def __init__(self, port: int, ledger: Ledger, stream: ImportStream) -> None:
        super().__init__(daemon=True)
        self._port, self._ledger, self._stream = port, ledger, stream
        self.unexpected: list[str] = []
        ledger.attempt_stream(stream)

    @override
    def run(self) -> None:
        """Send all lines."""
        path = f"/api/memory/{self._ledger.store}/import"
        try:
            with BenchClient(self._port, timeout=60) as client:
                reply = client.send("POST", path, blocks(record for _, record in self._stream.lines()), "x-ndjson")
        except GONE:
            return
        if reply.status == 200 and reply.json()["ok"]:
            self._ledger.acknowledge_stream(self._stream)
        else:
            self.unexpected.append(f"an import was answered {reply.status}: {_text(reply)}")
