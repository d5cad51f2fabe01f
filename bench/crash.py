"""Crash test: `python -m bench.crash [--rounds N] [--seed S] [--phases NAME …]`.

The server is killed (SIGKILL) in each phase of its work in turn. After each kill, every acknowledged batch must be
complete and no batch partial, the store must open, its projections must agree with its rows, and its history must be
unchanged. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self

from bench import agreement, eager_server
from bench.ledger import ImportStream, Ledger, WriteUnit
from bench.server import BenchClient, ServerFailed, ServerProcess, background_work, scratch_folder
from bench.tally import Tally, check_with_doctor, export_when_open, show
from bench.writers import GONE, Upload, Writers

COUNT = b'{"query": "MATCH (n:Entity) RETURN count(n)"}'
FOLLOWING = {
    "write": "append",
    "engine's following": "engine",
    "catalog's following": "catalog",
    "index's following": "index",
    "base": "base",
}
"""Phases that are moments of `bench.eager_server`."""
PHASES = (*FOLLOWING, "import", "compaction", "swap", "rebuild")
SETTINGS = {
    "compact_wal_mb": 1,
    "journal_segment_mb": 1,
    "journal_retention_mb": 1,
    "embedding_provider": "hashing",
}
ROUNDS_PER_STORE = 10
ROUNDS_PER_DOCTOR = 5
ROUNDS_TO_REACH = 5
"""Rounds of a phase among which one must reach its moment."""
SEARCHED = 5
"""Units whose nodes are searched after each round."""
LARGE = 4_000
"""Size of a node's content in bytes when the engine's log must outgrow its limit soon."""
PATIENCE = 20.0
AGREED_SECONDS = 120.0
"""Seconds in which all projections must catch up with the journal."""


class CrashTest:
    """A data folder, the server that is killed on it, and the expected content of its current store."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._choice = random.Random(seed)
        # Last observed duration of each moment in seconds; kills are spread over it.
        self._windows = {"compaction": 0.4, "compaction_swapping": 0.05, "rebuild": 0.4}
        self._server = self._start_server()
        self._ledgers = [Ledger("crash-0")]
        self._past: dict[str, tuple[int, list[str]]] = {}
        self.slowest_recovery = 0.0

    @property
    def _ledger(self) -> Ledger:
        return self._ledgers[-1]

    def round(self, number: int, phase: str, tally: Tally) -> None:
        """Write, kill in the middle of a phase, restart, and compare."""
        if number % ROUNDS_PER_STORE == 0 and number:
            self._ledgers.append(Ledger(f"crash-{number // ROUNDS_PER_STORE}"))
        before = self._ledger.acknowledged
        tally.rounds += 1
        tally.reached += self._kill(f"r{number}", phase, tally)
        tally.acknowledged += self._ledger.acknowledged - before
        self._recover(tally)
        if (number + 1) % ROUNDS_PER_DOCTOR == 0:
            self._examine(tally)

    def finish(self, tally: Tally) -> None:
        """Compare every store once more, stop the server, and run the doctor on each."""
        with self._server.client() as client:
            for ledger in self._ledgers:
                tally.violations += ledger.verify(export_when_open(client, ledger.store))
        self._server.stop()
        for ledger in self._ledgers:
            check_with_doctor(self._data, ledger.store, tally)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server if it still runs."""
        if self._server.running:
            self._server.kill()

    def _kill(self, name: str, phase: str, tally: Tally) -> bool:
        """Write, and kill in the middle of a phase. Return True if the phase was in progress."""
        match phase:
            case "import":
                return self._kill_in_import(name, tally)
            case "compaction" | "swap":
                return self._kill_in_compaction(name, phase, tally)
            case "rebuild":
                return self._kill_in_rebuild(name, tally)
            case _:
                return self._kill_in_moment(name, FOLLOWING[phase], tally)

    def _kill_in_moment(self, name: str, moment: str, tally: Tally) -> bool:
        first, last = eager_server.start_event(moment), eager_server.end_event(moment)
        with Writers(self._server.port, self._ledger, name) as writers, self._continuous_queries():
            time.sleep(self._choice.uniform(0.1, 1.0))
            began = self._server.wait_event(first, self._server.mark(), PATIENCE)
            time.sleep(self._choice.uniform(0, self._windows.get(moment, 0.005)))
            self._server.kill()
        tally.violations += writers.unexpected
        self._windows[moment] = self._seconds_between(first, last) or self._windows.get(moment, 0.005)
        return began is not None and self._server.is_within(first, last)

    @contextmanager
    def _continuous_queries(self) -> Generator[None]:
        """Query engine and catalog continuously, so that they follow immediately."""
        ledger, server = self._ledger, self._server

        def ask(over: threading.Event) -> None:
            with suppress(*GONE), server.client() as client:
                while not over.wait(0.01):
                    client.send("POST", f"/api/memory/{ledger.store}/cypher", COUNT)
                    client.send("GET", f"/api/memory/{ledger.store}/nodes?limit=10")

        with background_work(ask):
            yield

    def _kill_in_import(self, name: str, tally: Tally) -> bool:
        stream = ImportStream(f"i{name}", 15_000)
        upload = Upload(self._server.port, self._ledger, stream)
        with Writers(self._server.port, self._ledger, name, threads=1) as writers:
            upload.start()
            time.sleep(self._choice.uniform(0.05, 0.8))
            cut_off = upload.is_alive()
            self._server.kill()
        upload.join()
        tally.violations += writers.unexpected + upload.unexpected
        return cut_off

    def _kill_in_compaction(self, name: str, phase: str, tally: Tally) -> bool:
        place = "compaction_started" if phase == "compaction" else "compaction_swapping"
        window = self._windows["compaction" if phase == "compaction" else place]
        since = self._server.mark()
        with Writers(self._server.port, self._ledger, name, size=LARGE) as writers, self._continuous_queries():
            reached = self._provoke(writers, place, since)
            writers.resume()
            before = self._server.mark()
            done = self._server.wait_event("compaction_done", before, self._choice.uniform(0, window))
            self._server.kill()
        tally.violations += writers.unexpected
        return reached and done is None

    def _provoke(self, writers: Writers, place: str, since: int) -> bool:
        """Write, with pauses, until the server logs the given place."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            writers.resume()
            if self._server.wait_event(place, since, 1.0):
                return True
            writers.pause()  # a compaction waits for a second without writes
            if self._server.wait_event(place, since, 2.5):
                return True
        return False

    def _kill_in_rebuild(self, name: str, tally: Tally) -> bool:
        with Writers(self._server.port, self._ledger, name) as writers:
            time.sleep(self._choice.uniform(0.1, 0.5))
            self._server.kill()
        tally.violations += writers.unexpected
        reached = False
        for _ in range(self._choice.choice((1, 1, 2))):
            self._server = self._start_server()
            threading.Thread(target=self._ask_for_store, args=(self._server,), daemon=True).start()
            began = self._server.wait_event("rebuild_started", 0, PATIENCE) is not None
            delay = self._choice.uniform(0, self._windows["rebuild"])
            done = self._server.wait_event("rebuild_done", 0, delay) is not None
            reached = reached or (began and not done)
            self._server.kill()
        return reached

    def _start_server(self) -> ServerProcess:
        return ServerProcess(self._data, SETTINGS, module="bench.eager_server")

    def _ask_for_store(self, server: ServerProcess) -> None:
        with suppress(*GONE), server.client() as client:
            client.send("POST", f"/api/memory/{self._ledger.store}/cypher", COUNT)

    def _recover(self, tally: Tally) -> None:
        start = time.monotonic()
        self._server = self._start_server()
        self._server.wait_ready()
        with self._server.client() as client:
            exported = export_when_open(client, self._ledger.store)
            self.slowest_recovery = max(self.slowest_recovery, time.monotonic() - start)
            tally.violations += self._ledger.verify(exported)
            if exported:
                tally.violations += self._projection_differences(client) + self._history_differences(client)
        self._windows["rebuild"] = self._seconds_between("rebuild_started", "rebuild_done") or self._windows["rebuild"]

    def _projection_differences(self, client: BenchClient) -> list[str]:
        """Return differences between projections and current rows after the projections had time to catch up."""
        store, end = self._ledger.store, time.monotonic() + AGREED_SECONDS
        while True:
            try:
                wrong = [f"{store}: {text}" for text in agreement.find_inconsistencies(client, store)]
                wrong += [
                    text for unit in self._ledger.settled_units()[-SEARCHED:] for text in self._search_faults(unit)
                ]
            except ServerFailed as error:
                wrong = [f"{store}: {error}"]
            if not wrong or time.monotonic() > end:
                return wrong
            time.sleep(0.1)

    def _history_differences(self, client: BenchClient) -> list[str]:
        """Return differences between the history and the last export; keep the current export for the next round."""
        store = self._ledger.store
        before = self._past.get(store)
        sequence = client.call("GET", f"/api/memory/{store}/stats")["sequence"]
        self._past[store] = sequence, sorted(map(repr, client.export(store, f"?as_of={sequence}")))
        if before is None or before[1] == sorted(map(repr, client.export(store, f"?as_of={before[0]}"))):
            return []
        return [f"{store}: the history as of {before[0]} has changed"]

    def _search_faults(self, unit: WriteUnit) -> list[str]:
        """Search for the nodes of a unit, waiting for the last commit. Return a message if any are missing."""
        with self._server.client() as client:
            api = f"/api/memory/{self._ledger.store}"
            body = {
                "query": f'"generation {unit.allowed[0].generation}"',
                "mode": "keyword",
                "syntax": True,
                "id_prefix": f"{unit.name}/",
                "limit": 100,
                "at_least": client.call("GET", f"{api}/stats")["sequence"],
            }
            found = {hit["node"]["id"] for hit in client.call("POST", f"{api}/search", body)["hits"]}
        wanted = {key[0] for key in unit.rows(unit.allowed[0]) if len(key) == 1}
        return [] if found == wanted else [f"search finds {len(found)} of the {len(wanted)} nodes of {unit.name}"]

    def _seconds_between(self, first: str, last: str) -> float | None:
        """Return the seconds between two lines of the current server's log."""
        start, end = (self._server.wait_event(name, 0, 0.0) for name in (first, last))
        if start is None or end is None or end["timestamp"] < start["timestamp"]:
            return None
        return (datetime.fromisoformat(end["timestamp"]) - datetime.fromisoformat(start["timestamp"])).total_seconds()

    def _examine(self, tally: Tally) -> None:
        lasted = self._seconds_between("compaction_started", "compaction_done")
        self._windows["compaction"] = lasted or self._windows["compaction"]
        self._server.stop()
        check_with_doctor(self._data, self._ledger.store, tally)
        self._server = self._start_server()


def kill_rounds(rounds: int, seed: int, phases: Sequence[str] = PHASES) -> list[Tally]:
    """Run rounds over phases in turn on a temporary data folder."""
    tallies = {phase: Tally(f"killed in mid-{phase}") for phase in phases}
    end = Tally("all stores at the end, doctor included")
    with scratch_folder() as folder, CrashTest(folder, seed) as crash:
        for number in range(rounds):
            phase = phases[number % len(phases)]
            known = len(tallies[phase].violations)
            crash.round(number, phase, tallies[phase])
            for text in tallies[phase].violations[known:]:
                print(f"\n! round {number + 1}, {phase}: {text}", file=sys.stderr)
            bad = sum(len(tally.violations) for tally in tallies.values())
            print(f"\rround {number + 1} of {rounds}, {bad} violations", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        end.rounds = end.reached = 1
        crash.finish(end)
    for tally in tallies.values():
        if tally.rounds >= ROUNDS_TO_REACH and not tally.reached:
            tally.violations.append("no round has reached this moment")
    print(f"slowest from start to a complete export: {crash.slowest_recovery:.1f} s")
    return [*tallies.values(), end]


def main() -> int:
    """Run the requested rounds and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=100, help="number of kills (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of delays and data (default 1)")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, help="moments to kill in (default all)")
    given = parser.parse_args()
    start = time.monotonic()
    tallies = kill_rounds(given.rounds, given.seed, given.phases)
    show(tallies)
    print(f"{time.monotonic() - start:.0f} s in total, seed {given.seed}")
    return int(any(tally.violations for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
