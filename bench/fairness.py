"""What a crowd of one key does to others: `python -m bench.fairness [--seconds N] [--crowd NAME] [--keyless]`.

Ordinary clients, each with a key of its own, ask for a node, walk, search and write in turn: alone, then beside a crowd
that shares one key. Crowds are twenty searches that wait for an index, an import of 200 MB over and over, 200
listeners, and 64 writers; each is a process of its own. Then 15,000 asks for events of stores that are not there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.measure import Report, Times, times
from bench.server import Client, Server, ServerFailed, end_when_told
from bench.wire import Wire, request
from kgserve.platform.access.authentication import add_key, mint

ORDINARY = 4
PAUSE_SECONDS = 0.01
"""For which an ordinary client looks at an answer before it asks again."""
NODES, DEGREE = 5_000, 3
OWN, WAITED, IMPORTED, WRITTEN = "own", "waited", "imported", "written"
WAITING, LISTENERS, WRITERS = 20, 200, 64
WAITED_TEXTS, WAITED_AT_ONCE = 20_000, 5_000
IMPORT_BYTES = 200 << 20
ASKS = 15_000
SETTLING_SECONDS = 3.0
GREEDY_SECONDS = 0.05
"""For which who was refused waits at least, however long the answer has told it to."""
SETTINGS: dict[str, object] = {
    "max_event_streams": 256,
    "max_event_streams_per_key": LISTENERS,
    "shutdown_grace": 60,
    "log_level": "warning",
}
MARK = ("≤", 2.0)
WORDS = ["river", "stone", "lantern", "market", "winter", "signal", "copper", "garden", "engine", "harbour", "letter"]


def text(number: int, words: int = 12) -> str:
    """Words that are the same for a number each time."""
    chosen = random.Random(number)
    return " ".join(chosen.choice(WORDS) + str(chosen.randrange(50)) for _ in range(words))


def make(client: Client) -> None:
    """The store that ordinary clients ask."""
    nodes = [{"id": f"n{at}", "type": "thing", "content": text(at)} for at in range(NODES)]
    ends = random.Random(1)
    edges = [
        {"from": f"n{at}", "to": f"n{ends.randrange(NODES)}", "relation_type": "NEAR"}
        for at in range(NODES)
        for _ in range(DEGREE)
    ]
    sequence = client.call("POST", f"/api/memory/{OWN}/inject", {"nodes": nodes, "edges": edges})["sequence"]
    waited = {"query": "river", "at_least": sequence, "mode": "keyword"}
    while client.send("POST", f"/api/memory/{OWN}/search", json.dumps(waited).encode()).status != 200:
        time.sleep(0.5)


def asks(number: int, key: str) -> dict[str, bytes]:
    """What an ordinary client asks in its turn."""
    at, store = number % NODES, f"/api/memory/{OWN}"
    walk = {"start_id": f"n{at}", "depth": 2}
    wrote = {
        "nodes": [{"id": f"w{at}-{each}", "type": "note", "content": text(number + each)} for each in range(2)],
        "edges": [{"from": f"w{at}-0", "to": f"n{at}", "relation_type": "ABOUT"}],
    }
    return {
        "node": request("GET", f"{store}/nodes/n{at}", key=key),
        "traverse": request("POST", f"{store}/traverse", walk, key=key),
        "search": request("POST", f"{store}/search", {"query": text(number, 3)}, key=key),
        "inject": request("POST", f"{store}/inject", wrote, key=key),
    }


class Ordinary:
    """Clients that use the server as one does; their times, by what was asked."""

    def __init__(self, port: int, keys: Sequence[str]) -> None:
        self._port, self._keys = port, keys

    def measured(self, seconds: float) -> dict[str, Times]:
        """Percentiles of what all of them saw."""
        found: dict[str, list[float]] = {}
        end = time.monotonic() + seconds
        clients = [threading.Thread(target=self._ask, args=(at, end, found)) for at in range(len(self._keys))]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        return {name: times(taken) for name, taken in found.items()}

    def _ask(self, number: int, end: float, found: dict[str, list[float]]) -> None:
        drawn = random.Random(number)
        with Wire(self._port) as wire:
            while time.monotonic() < end:
                for name, ready in asks(drawn.randrange(1 << 30), self._keys[number]).items():
                    found.setdefault(name, []).append(wire.ask(ready).milliseconds)
                    time.sleep(PAUSE_SECONDS)


class Crowd:
    """One key's requests, from a process of its own until it is ended; it tells how often it was answered how."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self.statuses: Counter[int] = Counter()
        self.begun = threading.Event()

    def waiting(self) -> None:
        """Searches of a store whose index is far behind."""
        nodes = [{"id": f"t{at}", "type": "t", "content": text(at, 60)} for at in range(WAITED_TEXTS)]
        with Wire(self._port) as wire:
            for first in range(0, WAITED_TEXTS, WAITED_AT_ONCE):
                some = {"nodes": nodes[first : first + WAITED_AT_ONCE]}
                wire.ask(request("POST", f"/api/memory/{WAITED}/inject", some, key=self._key))
        wanted = {"query": "river", "at_least": WAITED_TEXTS // WAITED_AT_ONCE}
        ready = request("POST", f"/api/memory/{WAITED}/search", wanted, key=self._key)
        self._many(WAITING, lambda _: ready)

    def importing(self) -> None:
        """Large imports, one after the other."""
        while True:
            with socket.create_connection(("127.0.0.1", self._port)) as sent:
                head = ["POST /api/memory/imported/import HTTP/1.1", "Host: 127.0.0.1"]
                head += ["Content-Type: application/x-ndjson", "Transfer-Encoding: chunked"]
                head += [f"Authorization: Bearer {self._key}", "", ""] if self._key else ["", ""]
                sent.sendall("\r\n".join(head).encode())
                self.begun.set()
                for block in blocks():
                    sent.sendall(f"{len(block):x}\r\n".encode() + block + b"\r\n")
                sent.sendall(b"0\r\n\r\n")
                self.statuses[int(sent.recv(1 << 16)[9:12])] += 1

    def listening(self) -> None:
        """Streams of the events of all stores."""
        streams = [socket.create_connection(("127.0.0.1", self._port)) for _ in range(LISTENERS)]
        for stream in streams:
            stream.sendall(request("GET", "/api/events", accept="text/event-stream", key=self._key))
            self.statuses[int(stream.recv(1 << 16)[9:12])] += 1
        self.begun.set()
        while True:
            for stream in streams:
                stream.settimeout(0.001)
                with suppress(TimeoutError):
                    stream.recv(1 << 16)

    def writing(self) -> None:
        """Small writes, each as soon as the one before is answered."""

        def ready(number: int) -> bytes:
            nodes = [{"id": f"x{number}-{at}", "type": "t", "content": text(number + at)} for at in range(10)]
            return request("POST", f"/api/memory/{WRITTEN}/inject", {"nodes": nodes}, key=self._key)

        self._many(WRITERS, ready)

    def asking(self) -> None:
        """Events of stores that are not there."""
        with Wire(self._port) as wire:
            for at in range(ASKS):
                ready = request("GET", f"/api/memory/none-{at}/events", accept="text/event-stream", key=self._key)
                self.statuses[wire.send(ready).status] += 1

    def _many(self, count: int, ready: Callable[[int], bytes]) -> None:
        def ask(own: int) -> None:
            drawn = random.Random(own)
            with Wire(self._port) as wire:
                while True:
                    status = wire.send(ready(drawn.randrange(100_000))).status
                    self.statuses[status] += 1
                    if status != 200:
                        time.sleep(GREEDY_SECONDS)

        threads = [threading.Thread(target=ask, args=(own,), daemon=True) for own in range(count)]
        for each in threads:
            each.start()
        self.begun.set()
        for each in threads:
            each.join()


CROWDS: dict[str, str] = {
    "waiting": f"{WAITING} waiting searches",
    "importing": "an import of 200 MB",
    "listening": f"{LISTENERS} listeners",
    "writing": f"{WRITERS} writers",
}


def blocks() -> Iterator[bytes]:
    """The lines of an import, in blocks."""
    content, sent, number = text(1, 100), 0, 0
    while sent < IMPORT_BYTES:
        lines = [{"kind": "node", "id": f"i{number + at}", "type": "t", "content": content} for at in range(500)]
        block = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        number, sent = number + 500, sent + len(block)
        yield block


def crowd(kind: str, port: int, key: str) -> None:
    """Be a crowd until standard input ends; print when it has begun, and in the end how it was answered."""
    one = Crowd(port, key)
    threading.Thread(target=getattr(one, kind), daemon=True).start()
    one.begun.wait()
    print(flush=True)
    sys.stdin.read()
    print(json.dumps(one.statuses), flush=True)
    os._exit(0)


@contextmanager
def beside(kind: str, port: int, key: str) -> Generator[Counter[str]]:
    """A crowd while inside; what it was answered is there afterwards."""
    statuses: Counter[str] = Counter()
    command = [sys.executable, "-m", "bench.fairness", "--be", kind, "--port", str(port), "--key", key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield statuses
            statuses.update(json.loads(process.communicate("")[0]))
        finally:
            process.kill()


def given(data: Path, name: str) -> str:
    """A new key's text."""
    key, shown = mint(name, "write", ("*",), time.time_ns() // 1000, None)
    add_key(data, key)
    return shown


def run(seconds: float, crowds: Sequence[str], *, keyless: bool) -> Report:
    """Each crowd beside ordinary clients, on a server and a store of its own."""
    report = Report(f"Fairness: {ORDINARY} ordinary clients beside a crowd {'of the same address' * keyless}")
    for kind in crowds:
        folder = Path(tempfile.mkdtemp(prefix="fairness-"))
        try:
            _beside(report, folder / "data", kind, seconds, keyless=keyless)
        finally:
            shutil.rmtree(folder)
    return report


def _beside(report: Report, data: Path, kind: str, seconds: float, *, keyless: bool) -> None:
    with Server(data, SETTINGS) as server:
        with server.client() as client:
            make(client)
        data.mkdir(exist_ok=True)
        keys = [""] * (ORDINARY + 1) if keyless else [given(data, f"key-{at}") for at in range(ORDINARY + 1)]
        ordinary = Ordinary(server.port, keys[:ORDINARY])
        ordinary.measured(2)
        alone = ordinary.measured(seconds)
        before = server.mebibytes("RssAnon")
        with beside(kind, server.port, keys[-1]) as statuses:
            found = ordinary.measured(seconds)
        time.sleep(SETTLING_SECONDS)
        after = server.mebibytes("RssAnon")
        for name, taken in found.items():
            report.compare(
                f"{name} beside {CROWDS[kind]}", str(taken), str(alone[name]), taken.p95 / alone[name].p95, MARK
            )
        said = ", ".join(f"{count} times {status}" for status, count in sorted(statuses.items()))
        report.fact(f"memory before and after {CROWDS[kind]}", f"{before:.0f}, {after:.0f} MiB; it was answered {said}")


def not_there() -> Report:
    """Memory before and after asking for events of stores that are not there."""
    report = Report("Events of stores that are not there")
    folder = Path(tempfile.mkdtemp(prefix="fairness-"))
    try:
        with Server(folder / "data", SETTINGS | {"indexes": False, "rate_limit": 0}) as server:
            one = Crowd(server.port, "")
            one.asking()
            before = server.mebibytes("RssAnon")
            one.asking()
            grown = server.mebibytes("RssAnon") - before
            report.at_most(f"{ASKS:,} asks more", f"{grown:.1f} MiB", grown, 2, "MiB")
            report.check("each is answered", str(dict(one.statuses)), set(one.statuses) == {404})
    finally:
        shutil.rmtree(folder)
    return report


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--crowd", choices=[*CROWDS], action="append")
    parser.add_argument("--keyless", action="store_true", help="everybody on this machine, without keys")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--key", default="", help=argparse.SUPPRESS)
    given_ = parser.parse_args()
    if given_.be:
        crowd(given_.be, given_.port, given_.key)
    end_when_told()
    reports = [run(given_.seconds, given_.crowd or [*CROWDS], keyless=given_.keyless), not_there()]
    for report in reports:
        report.show()
    sys.exit(any(report.wrong for report in reports))


if __name__ == "__main__":
    try:
        main()
    except ServerFailed as error:
        sys.exit(f"bench.fairness: {error}")
