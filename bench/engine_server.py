"""A server with an engine's process to strike, and who asks beside: what the parts of `bench.engine` share."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.measure import Report, times
from bench.server import Client, Server
from bench.wire import Wire, request

STORE, OTHER = "bombed", "other"
NODES = 3_000
WORDS = "a few words"
COUNT = "MATCH (e:Entity) RETURN count(*)"
SLOW = "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN sum(a.version + b.version + c.version)"
TWICE, HALF_MORE = 2.0, 1.5
READY_SECONDS = 120.0


class Others:
    """Who asks beside: point queries of another store, and walks, reads and searches of the store that is struck."""

    def __init__(self, server: Server, *, searches: bool = False) -> None:
        self._port = server.port
        query = request("POST", f"/api/memory/{OTHER}/cypher", {"query": "MATCH (e:Entity {id: 'n7'}) RETURN e.id"})
        walk = request("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n7", "depth": 2})
        self._asked = {"a statement of another store": query, "a walk of the same store": walk}
        if searches:
            search = {"query": "words", "limit": 5}
            self._asked["a node of the same store"] = request("GET", f"/api/memory/{STORE}/nodes/n7")
            self._asked["a search of the same store"] = request("POST", f"/api/memory/{STORE}/search", search)

    @contextmanager
    def asking(self) -> Generator[dict[str, list[float]]]:
        """Milliseconds of each kind while the block runs; the statement of the other store waits 10 ms each time."""
        stop = threading.Event()
        found: dict[str, list[float]] = {name: [] for name in self._asked}

        def ask(name: str) -> None:
            with Wire(self._port) as wire:
                while not stop.is_set():
                    found[name].append(wire.ask(self._asked[name]).milliseconds)
                    stop.wait(0.01)

        threads = [threading.Thread(target=ask, args=(name,)) for name in self._asked]
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class Watch:
    """The largest resident memory of the server and of each process that it has begun, in MiB, while a block runs."""

    def __init__(self, server: Server) -> None:
        self.server = self.process = 0.0
        self._pid = server.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.server = max(self.server, resident(self._pid))
            self.process = max([self.process, *map(resident, processes(self._pid))])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def resident(number: int) -> float:
    """MiB of memory of a process, files left out; 0 when it has ended. What it shares with others is in it."""
    try:
        pages = Path(f"/proc/{number}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def share(number: int) -> float:
    """MiB of memory of a process, of what it shares its part only: to be added up. 0 when it has ended."""
    try:
        lines = Path(f"/proc/{number}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def family(server: int) -> list[int]:
    """A server's process, the nursery that it has begun, and the engines' processes."""
    return [server, *_children(server), *processes(server)]


def processes(server: int) -> list[int]:
    """The engines' processes of a server: its nursery's children."""
    return [each for nursery in _children(server) for each in _children(nursery)]


def processes_of(server: int, store: str) -> list[int]:
    """Those that have files of one store open."""
    return [each for each in processes(server) if any(f"/{store}_memory/" in path for path in _open_files(each))]


def _children(number: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{number}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _open_files(number: int) -> Generator[str]:
    with suppress(OSError):
        for link in Path(f"/proc/{number}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


@contextmanager
def filled(settings: dict[str, object], content: str) -> Generator[tuple[Server, Client]]:
    """A server with both stores, their engines open; the one to strike has nodes of that content."""
    with (
        tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder,
        Server(Path(folder), settings) as server,
        server.client() as client,
    ):
        for store, text in ((STORE, content), (OTHER, WORDS)):
            client.upload(store, _lines(text))
            asked(client, store, COUNT)
        yield server, client


def _lines(content: str) -> Generator[bytes]:
    for number in range(NODES):
        node = {"kind": "node", "id": f"n{number}", "type": "t", "content": content}
        yield msgspec.json.encode(node) + b"\n"
    for number in range(NODES):
        for step in (1, 2, 3):
            edge = {"from": f"n{number}", "to": f"n{(number * 7 + step) % NODES}", "relation_type": "r"}
            yield msgspec.json.encode({"kind": "edge", **edge}) + b"\n"


def asked(client: Client, store: str, query: str) -> tuple[int, Any, float]:
    """Status, answer and seconds of a statement."""
    started = time.perf_counter()
    reply = client.send("POST", f"/api/memory/{store}/cypher", msgspec.json.encode({"query": query}))
    return reply.status, reply.json(), time.perf_counter() - started


def compared(report: Report, before: dict[str, list[float]], meanwhile: dict[str, list[float]], most: float) -> None:
    """A line for each kind of request of `Others`: alone, and while something went on."""
    for name, each in before.items():
        alone, beside = times(each), times(meanwhile[name])
        report.compare(f"{name}: p95 beside", beside.fine, alone.fine, beside.p95 / alone.p95, ("≤", most))
