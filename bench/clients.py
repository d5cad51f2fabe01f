"""Many clients at once, in a process of their own: `python -m bench.clients PORT CONNECTIONS SECONDS [FILE]`.

It prints JSON. FILE is the exchange file of what the store holds; WordNet when it is left out.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from bench import baseline, graphs, wordnet
from bench.batches import PATH, new_batch
from bench.server import Client


class Together(msgspec.Struct):
    """What some clients achieved together."""

    seconds: float
    milliseconds: list[float]
    failed: int

    @property
    def rate(self) -> float:
        """Batches per second."""
        return len(self.milliseconds) / self.seconds


def measure(port: int, connections: int, seconds: float, exchange_file: Path | None = None) -> Together:
    """Let so many clients inject for so long into a store that holds WordNet, or else `exchange_file`."""
    held = [] if exchange_file is None else [str(exchange_file)]
    command = [sys.executable, "-m", "bench.clients", str(port), str(connections), str(seconds), *held]
    done = subprocess.run(command, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Together)


class _Worker(threading.Thread):
    """One client with a connection of its own."""

    def __init__(self, port: int, name: str, graph: wordnet.Graph, start: threading.Event, seconds: float) -> None:
        super().__init__(name=name)
        self._port, self._graph, self._begin, self._seconds = port, graph, start, seconds
        self.milliseconds: list[float] = []
        self.failed = 0

    def run(self) -> None:
        choice = random.Random(self.name)
        encode = msgspec.json.Encoder().encode
        with Client(self._port) as client:
            self._begin.wait()
            end = time.perf_counter() + self._seconds
            while (now := time.perf_counter()) < end:
                batch = new_batch(f"{self.name}-{len(self.milliseconds)}", choice, self._graph)
                if client.send("POST", PATH, encode(batch)).status == 200:
                    self.milliseconds.append((time.perf_counter() - now) * 1000)
                else:
                    self.failed += 1


def _together(graph: wordnet.Graph, port: int, connections: int, seconds: float) -> Together:
    start = threading.Event()
    workers = [_Worker(port, f"c{connections}-{n}-{os.getpid()}", graph, start, seconds) for n in range(connections)]
    for worker in workers:
        worker.start()
    began = time.perf_counter()
    start.set()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - began
    return Together(took, [one for w in workers for one in w.milliseconds], sum(w.failed for w in workers))


if __name__ == "__main__":
    if len(sys.argv) > 4:
        held = graphs.as_graph(baseline.read_rows(Path(sys.argv[4])))
    else:
        held = wordnet.read(wordnet.folder())
    result = _together(held, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    sys.stdout.buffer.write(msgspec.json.encode(result))
