"""Soak test with kills: `python -m bench.soak [--minutes N] [--seed S]`.

Eight writers, eight readers, four listeners, and a backup every minute. For the first three fifths of the time, the
server is killed (SIGKILL) at random and restarted. Then it runs undisturbed, while memory, threads and descriptors are
monitored. Acknowledged writes must exist and no write partially. Listeners must receive every commit once. The only 5xx
allowed is 503 around a restart. Backups must verify. Exit code 1 on a violation.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from bench.agreement import find_inconsistencies
from bench.ledger import Ledger
from bench.server import ServerProcess, run, scratch_folder
from bench.soak_clients import UNITS, Reader, SoakListener, SoakServerState, Writer
from bench.tally import Tally, check_with_doctor, export_when_open

STORES = 4
WRITERS = READERS = 8
SETTINGS = {
    "embedding_provider": "hashing",
    "compact_wal_mb": 2,
    "journal_segment_mb": 4,
    "buffer_pool_mb": 64,
    "log_level": "warning",
}
KILLED_FOR = 0.6
"""Share of the time in which the server is killed."""
LIFE_SECONDS = (8.0, 30.0)
BACKUP_SECONDS = 60.0
PATIENCE = 120.0
MAX_MEMORY_RATIO = 1.2
"""Maximum ratio of memory in the last to the second quarter of the undisturbed time."""
MAX_GROWTH = {"threads": 6.0, "descriptors": 16.0}
"""Maximum growth of other figures; a compaction or rebuild may be in progress."""


class Sample(NamedTuple):
    """Sample of the server's process: MiB of memory, threads, open descriptors."""

    memory: float
    threads: float
    descriptors: float


class ProcessMonitor:
    """Samples of a server's process."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._samples: list[Sample] = []

    def take(self) -> None:
        """Add a sample."""
        server = self._server
        self._samples.append(Sample(server.mebibytes("VmRSS"), server.threads(), server.descriptors()))

    def quarter(self, number: int, field: str) -> float:
        """Return the median of a figure in the first (0) to last (3) quarter of the samples."""
        count = len(self._samples)
        part = self._samples[number * count // 4 : (number + 1) * count // 4] or self._samples[-1:]
        return statistics.median(getattr(each, field) for each in part)

    def judge(self) -> list[str]:
        """Return the figures that grew too much."""
        wrong: list[str] = []
        if self.quarter(3, "memory") > MAX_MEMORY_RATIO * self.quarter(1, "memory"):
            wrong.append(f"memory grew: {self}")
        for field, most in MAX_GROWTH.items():
            if self.quarter(3, field) - self.quarter(1, field) > most:
                wrong.append(f"{field} grew: {self}")
        return wrong

    @override
    def __str__(self) -> str:
        """Format all figures by quarters."""
        quarters = {each: [f"{self.quarter(number, each):.0f}" for number in range(4)] for each in Sample._fields}
        return "; ".join(f"{field} {' → '.join(figures)}" for field, figures in quarters.items())


class Backups(threading.Thread):
    """Thread that backs up the data folder into one folder repeatedly."""

    def __init__(self, site: SoakServerState, data: Path, folder: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self._site, self._data, self._folder, self._seconds = site, data, folder, seconds
        self.lives = 0  # number of servers so far

    @override
    def run(self) -> None:
        """Make one backup after another; one interrupted by a kill may fail."""
        while not self._site.over.wait(self._seconds):
            lives = self.lives
            done = run(["backup", "--data", str(self._data), "--to", str(self._folder)])
            if done.returncode == 0:
                self._site.count("backup")
            elif self.lives != lives or self._site.is_moving:
                self._site.count("backup interrupted by a kill")
            else:
                self._site.violate(f"backup: exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")

    def verify(self) -> None:
        """Verify the backup folder at the end."""
        done = run(["verify", str(self._folder)])
        if done.returncode != 0:
            self._site.violate(f"verify: exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")


class Soak:
    """A data folder with its server and all clients."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self._data = folder / "data"
        self._seconds = seconds
        self._choice = random.Random(seed)
        self.site = SoakServerState()
        self.ledgers = [Ledger(f"soak-{number}") for number in range(STORES)]
        self._writers = [Writer(self.site, f"w{n}", self.ledgers[n % STORES]) for n in range(WRITERS)]
        stores = [ledger.store for ledger in self.ledgers]
        units = [f"{writer.name}-{number}" for writer in self._writers for number in range(UNITS)]
        self._readers = [Reader(self.site, f"r{number}", stores, units) for number in range(READERS)]
        self._hearers = [SoakListener(self.site, store) for store in stores]
        self._backups = Backups(self.site, self._data, folder / "backup", min(BACKUP_SECONDS, seconds / 4))
        self._server = ServerProcess(self._data, SETTINGS)
        self.watch = ProcessMonitor(self._server)
        self.kills = 0
        self.slowest = 0.0

    def run(self) -> None:
        """Run the whole test and the final checks."""
        try:
            self._run()
        finally:
            self.site.over.set()
            if self._server.running:
                self._server.kill()

    def _run(self) -> None:
        begun = time.monotonic()
        with self._server.client() as client:
            for ledger in self.ledgers:
                client.call("PUT", f"/api/memory/{ledger.store}")
        self._admit_writers()
        for each in (*self._writers, *self._readers, *self._hearers, self._backups):
            each.start()
        until = begun + KILLED_FOR * self._seconds
        while (left := until - time.monotonic()) > 0:
            self._run_for(min(self._choice.uniform(*LIFE_SECONDS), left))
            self._kill()
        self.watch = ProcessMonitor(self._server)
        self._run_for(max(begun + self._seconds - time.monotonic(), LIFE_SECONDS[0]))
        self.site.violations += self.watch.judge()
        self._finish()

    def _admit_writers(self) -> None:
        self._backups.lives += 1
        self.site.starts(self._server)
        self.site.opens()

    def _run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.watch.take()
            time.sleep(0.5)
            if not self._server.running:
                self.site.violate(f"the server exited unexpectedly; log: {self._server.log_tail()}")
                self._restart()

    def _kill(self) -> None:
        self.site.ends()
        self._server.kill()
        self.kills += 1
        self._restart()

    def _restart(self) -> None:
        self.site.ends()
        self._note_defects()
        self.site.rests()
        start = time.monotonic()
        self._server = ServerProcess(self._data, SETTINGS)
        self._server.wait_ready()
        self._compare()
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.watch = ProcessMonitor(self._server)
        self._admit_writers()

    def _compare(self) -> None:
        with self._server.client() as client:
            for ledger in self.ledgers:
                self.site.violations += ledger.verify(export_when_open(client, ledger.store))

    def _note_defects(self) -> None:
        for name in ("internal_error", "answer_broken_off"):
            if found := self._server.wait_event(name, 0, 0.0):
                self.site.violate(f"in the log: {str(found)[-700:]}")

    def _finish(self) -> None:
        self.site.rests()
        self._check_listeners()
        self.site.over.set()
        for each in (*self._writers, *self._readers, *self._hearers, self._backups):
            each.join(PATIENCE)
        self._compare()
        with self._server.client() as client:
            for ledger in self.ledgers:
                self.site.violations += find_inconsistencies(client, ledger.store)
        self._note_defects()
        self._server.stop()
        self._backups.verify()
        tally = Tally("at the end")
        for ledger in self.ledgers:
            check_with_doctor(self._data, ledger.store, tally)
        self.site.violations += tally.violations

    def _check_listeners(self) -> None:
        """Check that listeners have received every acknowledged commit once."""
        for hearer, ledger in zip(self._hearers, self.ledgers, strict=True):
            written = {at: n for each in self._writers if each.writes_to(ledger) for at, n in each.events.items()}
            end = time.monotonic() + PATIENCE
            while not hearer.reached(max(written)) and time.monotonic() < end:
                time.sleep(0.1)
            time.sleep(0.5)  # the last commit may have several events
            wrong = [at for at, number in written.items() if not number <= hearer.seen.get(at, 0)]
            if wrong:
                self.site.violate(f"{hearer.name}: {len(wrong)} commits not reported completely: {sorted(wrong)[:5]}")


def show(soak: Soak, seconds: float) -> None:
    """Print the figures."""
    counts: Sequence[tuple[str, int]] = sorted(soak.site.counts.items())
    for name, number in counts:
        print(f"{number:>10,}  {name}")
    acknowledged = sum(ledger.acknowledged for ledger in soak.ledgers)
    print(f"{acknowledged:,} writes acknowledged; {soak.kills} kills; {seconds:.0f} s")
    print(f"slowest from start to every store compared: {soak.slowest:.1f} s")
    print(f"without kills: {soak.watch}")
    for text in soak.site.violations[:20]:
        print(f"! {text}")
    print(f"{len(soak.site.violations)} violations")


def main() -> int:
    """Run for the requested time and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10, help="duration (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills (default 1)")
    given = parser.parse_args()
    start = time.monotonic()
    with scratch_folder() as folder:
        soak = Soak(folder, 60 * given.minutes, given.seed)
        soak.run()
    show(soak, time.monotonic() - start)
    return int(bool(soak.site.violations))


if __name__ == "__main__":
    sys.exit(main())
