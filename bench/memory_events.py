"""What listeners hear of memories: how soon, over kills, and of a consolidation."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.listener import Listener, Told
from bench.measure import Report, times
from bench.server import Client, Server

STORE = "memories"
MEMORIES = f"/api/memories?store={STORE}"
EVENTS = f"/api/events?store={STORE}"
TOLD = 200
AIM_MS = 100.0
KILLS = 10
WRITERS = 4
PAIRS = 40
PATIENCE = 60.0
MARKER = "index_ready"
"""What is told of the server and not of a commit: it has the place of what came before it."""


def events(settings: dict[str, object]) -> Report:
    """Measure on servers and data folders of its own."""
    report = Report(f"events of memories: {TOLD} alone, {KILLS} kills, a consolidation of {PAIRS} pairs")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server:
        _soon(report, server)
        _consolidation(report, server)
    with tempfile.TemporaryDirectory() as folder:
        _killed(report, Path(folder), settings)
    return report


class _Ear:
    """Hears everything, in a thread, and comes back after each end of the stream to where it was."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.heard: list[Told] = []
        self.at: dict[str, float] = {}
        self._last = ""
        self._ending = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Hear from now on."""
        self._thread.start()
        self._ready.wait(PATIENCE)

    def stop(self) -> None:
        """Hear no more."""
        self._ending = True
        self._thread.join(PATIENCE)

    def wait(self, kind: str, count: int) -> list[Told]:
        """What is of a kind, once there are so many, or patience ends."""
        end = time.monotonic() + PATIENCE
        while len(found := self.of(kind)) < count and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def of(self, kind: str) -> list[Told]:
        """What was heard of a kind."""
        return [each for each in self.heard if each.kind == kind]

    def _run(self) -> None:
        while not self._ending:
            with suppress(OSError, AssertionError), Listener(self.server.port, EVENTS, self._last, 1.0) as listener:
                listener.greet()
                self._ready.set()
                try:
                    self._listen(listener)
                finally:
                    self._last = listener.last_id
            time.sleep(0.01)

    def _listen(self, listener: Listener) -> None:
        for told in listener.events():
            if told.kind == "memory_created":
                self.at[told.data["id"]] = time.perf_counter()
            if told.kind != MARKER:
                self.heard.append(told)
            if self._ending:
                return


def _soon(report: Report, server: Server) -> None:
    answered: dict[str, float] = {}
    with server.client() as client:
        client.call("PUT", f"/api/memory/{STORE}")
        ear = _Ear(server)
        ear.start()
        for number in range(TOLD):
            made = _store(client, f"Note {number} is about {number * 7}")
            answered[made["id"]] = time.perf_counter()
        ear.wait("memory_created", TOLD)
        ear.stop()
    late = [max(ear.at[each] - moment, 0.0) * 1000 for each, moment in answered.items() if each in ear.at]
    report.check("told of", f"{len(late)} of {TOLD}", len(late) == TOLD == len(ear.of("memory_created")))
    took = times(late)
    report.at_most("memory_created after the answer", took.fine, took.p50, AIM_MS, "ms")


def _consolidation(report: Report, server: Server) -> None:
    with server.client() as client:
        for number in range(PAIRS):
            for _ in range(2):
                _store(client, f"Pair {number} says the same", dedup="off")
        ear = _Ear(server)
        ear.start()
        done = client.call("POST", f"/api/memories/consolidate?store={STORE}", {})
        complete = ear.wait("consolidation_complete", 1)
        ear.stop()
    gone = [each for each in ear.of("memory_deleted") if each.data["reason"] == "merged"]
    numbers = [(each.data["merged"], each.data["deleted"]) for each in complete]
    due = [(done["memories_merged"], done["memories_deleted"])]
    report.check("consolidation_complete, merged and deleted", str(numbers), numbers == due == [(PAIRS, PAIRS)])
    report.check("memories told as merged", str(len(gone)), len(gone) == PAIRS)


def _killed(report: Report, folder: Path, settings: dict[str, object]) -> None:
    chance, running = random.Random(11), [Server(folder, settings)]
    with running[0].client() as client:
        client.call("PUT", f"/api/memory/{STORE}")
    ear, acknowledged, ending = _Ear(running[0]), set[str](), threading.Event()
    ear.start()

    def write(writer: int) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            with suppress(Exception), running[0].client(timeout=20) as client:
                while not ending.is_set():
                    number += 1
                    made = _store(client, f"Writer {writer} writes note {number}", entity_names=[f"W{writer}"])
                    acknowledged.add(made["id"])
            time.sleep(0.02)

    writers = [threading.Thread(target=write, args=(each,)) for each in range(WRITERS)]
    for each in writers:
        each.start()
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.3, 1.2))
        running[0].kill()
        running[0] = Server(folder, settings)
        ear.server = running[0]
    time.sleep(1.0)
    ending.set()
    for each in writers:
        each.join()
    with running[0].client() as client:
        there = {line["id"] for line in client.export(STORE) if line.get("confidence") is not None}
    ear.wait("memory_created", len(there))
    ear.stop()
    replay = _replay(running[0].port, len(ear.heard))
    running[0].stop()
    _compare(report, ear.heard, replay, there, acknowledged)


def _replay(port: int, count: int) -> list[Told]:
    found: list[Told] = []
    with Listener(port, f"/api/memory/{STORE}/events?since=0", timeout=2.0) as listener, suppress(TimeoutError):
        for told in listener.events():
            if told.kind != MARKER:
                found.append(told)
            if len(found) >= count + 1:
                break
    return found


def _compare(report: Report, heard: list[Told], replay: list[Told], there: set[str], acknowledged: set[str]) -> None:
    created = Counter(each.data["id"] for each in heard if each.kind == "memory_created")
    twice = len(heard) - len({each.id for each in heard}) + sum(count - 1 for count in created.values())
    report.check("acknowledged and gone", str(len(acknowledged - there)), acknowledged <= there)
    report.check(f"memories told of over {KILLS} kills", f"{len(created):,} of {len(there):,}", created.keys() == there)
    report.check("told twice", str(twice), twice == 0)
    places = [each.id.rpartition(":")[2] for each in heard]
    again = [each.id.rpartition(":")[2] for each in replay]
    report.check("as in a replay from the start", f"{len(places):,}, {len(again):,}", places == again)


def _store(client: Client, content: str, **more: Any) -> Any:
    return client.call("POST", MEMORIES, {"content": content, **more})
