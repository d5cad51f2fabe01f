"""A store with far more contents than page cache: `python -m bench.big_store [--gb N] [--seed S] [--through http]`.

Contents of 1 to 8 kB are made by seed and written: into the journal of an open store, which leaves all of it to the
rebuild, or with `--through http` as an import. The process is killed (SIGKILL). Another opens the store, compares
counts and digest, asks in Cypher, compacts, is killed, and a third opens it from the snapshot. Of each step seconds and
the most memory, files that are mapped left out, of the process and of the engine's; exit code 1 when anything differs.
Takes about six times the contents on the disk.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.engine_server import processes
from bench.server import Server
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.process import own_memory
from kgserve.storage.journal import snapshot
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import ChangeSet, StoreState
from kgserve.storage.model.digest import shift
from kgserve.storage.model.rows import EdgeRow, NodeRow, edge_attributes
from kgserve.stores.pool import StorePool
from kgserve.stores.store import OpenStore

NAME = "big"
_ROWS = 2_000
_GB = 1_000_000_000
_LEAST, _MOST = 1_000, 8_000
_TIME = "2026-01-01T00:00:00.000000Z"
_MICROSECONDS = 1_767_225_600_000_000


def contents(gigabytes: float, seed: int) -> Iterator[list[tuple[str, str]]]:
    """Ids and contents, a few thousand at a time, until there is enough."""
    choice = random.Random(seed)
    left, number = int(gigabytes * _GB), 0
    while left > 0:
        rows: list[tuple[str, str]] = []
        for _ in range(_ROWS):
            rows.append((f"node-{number}", choice.randbytes(choice.randrange(_LEAST, _MOST) // 2).hex()))
            left -= len(rows[-1][1])
            number += 1
        yield rows


def write_journal(store: OpenStore, blocks: Iterable[list[tuple[str, str]]]) -> StoreState:
    """Append the nodes, each with an edge to the first of its block; the state that they come to."""
    state = store.state
    attributes = edge_attributes(_TIME, _TIME, "{}")
    for rows in blocks:
        sequence = state.sequence + 1
        nodes = [NodeRow(key, "Text", text, "{}", 1, sequence, _MICROSECONDS, _MICROSECONDS) for key, text in rows]
        edges = [EdgeRow(key, rows[0][0], "follows", 1.0, attributes, 1, sequence) for key, _text in rows]
        digest = shift(state.digest, [*nodes, *edges], ())
        counts = state.nodes + len(nodes), state.edges + len(edges)
        change = ChangeSet(
            sequence=sequence,
            time=_MICROSECONDS,
            nodes_created=nodes,
            edges_created=edges,
            digest=digest.to_bytes(16),
            nodes=counts[0],
            edges=counts[1],
        )
        store.journal.append([change])
        state = StoreState(sequence, _MICROSECONDS, digest, *counts)
    return state


def write(folder: Path, gigabytes: float, seed: int) -> None:
    """Make the store, tell its state, and be killed."""
    pool = StorePool(_settings(folder))
    store = pool.acquire(NAME, create=True)
    _tell("written", time.perf_counter(), lambda: write_journal(store, contents(gigabytes, seed)))
    os.kill(os.getpid(), signal.SIGKILL)


def upload(folder: Path, gigabytes: float, seed: int) -> None:
    """Import the same into a server and kill it."""
    with Server(folder) as server:
        started = time.perf_counter()
        answer = server.client(3600).upload(NAME, _lines(gigabytes, seed))
        print(f"imported   {time.perf_counter() - started:8.1f} s  {answer}", flush=True)
        server.kill()


def _lines(gigabytes: float, seed: int) -> Iterator[bytes]:
    for rows in contents(gigabytes, seed):
        nodes = [{"kind": "node", "id": key, "type": "Text", "content": text} for key, text in rows]
        yield b"".join(msgspec.json.encode(node) + b"\n" for node in nodes)


def open_and_compact(folder: Path) -> None:
    """Open it, compare, compact, compare, and be killed."""
    pool = StorePool(_settings(folder))
    store = _tell("opened", time.perf_counter(), lambda: pool.acquire(NAME))
    _tell("checked", time.perf_counter(), lambda: _sound(store))
    _tell("asked", time.perf_counter(), lambda: _asked(store))
    _tell("checked", time.perf_counter(), lambda: _sound(store))
    _tell("compacted", time.perf_counter(), store.compactor.run)
    if store.compactor.done != 1:
        sys.exit("it was not compacted")
    newest = snapshot.verify(snapshot.list_snapshots(Layout(folder, NAME).journal)[0])
    print(f"snapshot   {newest.state}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def open_again(folder: Path) -> None:
    """Open it from the snapshot."""
    pool = StorePool(_settings(folder))
    store = _tell("reopened", time.perf_counter(), lambda: pool.acquire(NAME))
    print(f"state      {store.state}", flush=True)
    pool.release(store)
    pool.close()


def _sound(store: OpenStore) -> StoreState:
    if not store.check().ok:
        sys.exit("the engine's rows do not come to the digest")
    return store.state


def _asked(store: OpenStore) -> list[list[Any]]:
    """The first statement waits for the engine's file to be made."""
    with store.engine.reading(timeout=0) as session:
        counted = session.rows("MATCH (e:Entity) RETURN count(*), sum(size(e.content))")
    if counted[0][0] != store.state.nodes:
        sys.exit("the engine does not have all nodes")
    return counted


def _settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, check_interval=0, log_level="error")


def _tell(what: str, started: float, do: Any) -> Any:
    with _Watch() as watch:
        result = do()
    seconds = time.perf_counter() - started
    memory = f"{watch.own:6} MiB at most, the engine's processes {watch.engines:6} MiB"
    print(f"{what:10} {seconds:8.1f} s  {memory}  {_said(result)}", flush=True)
    return result


def _said(result: Any) -> str:
    return str(result.state if isinstance(result, OpenStore) else result or "")


class _Watch:
    """The most memory of this process and of those that it has begun, in MiB; what they map of files is left out."""

    def __init__(self) -> None:
        self.own = self.engines = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))
            engines = sum(map(own_memory, processes(os.getpid()))) >> 20
            self.own, self.engines = max(self.own, own), max(self.engines, engines)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> int:
    """Run the steps, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--through", choices=("journal", "http"), default="journal")
    parser.add_argument("--step", choices=("write", "open", "again"))
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    if chosen.step == "write":
        write(chosen.folder, chosen.gb, chosen.seed)
    elif chosen.step == "open":
        open_and_compact(chosen.folder)
    elif chosen.step == "again":
        open_again(chosen.folder)
    else:
        return _all_steps(chosen)
    return 0


def _all_steps(chosen: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="big-store-"))
    try:
        if chosen.through == "http":
            upload(folder, chosen.gb, chosen.seed)
        else:
            _step("write", folder, chosen)
        done = [_step("open", folder, chosen) == -signal.SIGKILL, _step("again", folder, chosen) == 0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(done) else 1


def _step(step: str, folder: Path, chosen: argparse.Namespace) -> int:
    options = ["--gb", str(chosen.gb), "--seed", str(chosen.seed), "--step", step, "--folder", str(folder)]
    return subprocess.run([sys.executable, "-m", "bench.big_store", *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
