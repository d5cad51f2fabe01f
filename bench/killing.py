"""What the benches that kill a server have in common: a data folder, rounds in turn over some phases, one table.

The real server is killed (SIGKILL) while it writes; in some phases once more, while it makes good what it missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from bench.ledger import Ledger, Stream
from bench.server import Server
from bench.tally import Tally, export_when_open, show
from bench.writers import Upload, Writers

ROUNDS_PER_STORE = 5
STEPS = 3_000
IMPORTING = "importing"


class Killing(ABC):
    """One data folder, the server that is killed on it, and what its current store must hold."""

    NAME: ClassVar[str]
    PHASES: ClassVar[tuple[str, ...]]
    KILLED_AGAIN: ClassVar[tuple[str, ...]]
    SETTINGS: ClassVar[Mapping[str, Any]]

    def __init__(self, data: Path, seed: int) -> None:
        self.data = data
        self.choice = random.Random(seed)
        self.ledger = Ledger(f"{self.NAME}-0")
        self.server = self._start()
        self.slowest = 0.0

    def round(self, number: int, phase: str, tally: Tally) -> None:
        """Write, kill, start again, compare."""
        if number % ROUNDS_PER_STORE == 0 and number:
            self.ledger = Ledger(f"{self.NAME}-{number // ROUNDS_PER_STORE}")
        before = self.ledger.acknowledged
        tally.rounds += 1
        tally.reached += self.kill(f"r{number}", phase, tally)
        tally.acknowledged += self.ledger.acknowledged - before
        self.server = self._start()
        if phase in self.KILLED_AGAIN:
            with self.server.client() as client:
                export_when_open(client, self.ledger.store)
            time.sleep(self.choice.uniform(0, 0.3))
            self.server.kill()
            self.server = self._start()
        self.compare(tally)

    def kill(self, name: str, phase: str, tally: Tally) -> bool:
        """Write for a while and kill the server; whether the moment was hit that the phase is for."""
        upload: Upload | None = None
        with Writers(self.server.port, self.ledger, name, threads=2) as writers:
            if phase == IMPORTING:
                upload = Upload(self.server.port, self.ledger, Stream(f"i{name}", STEPS))
                upload.start()
            time.sleep(self.choice.uniform(0.2, 1.5))
            hit = self.is_moment(phase, upload)
            self.server.kill()
        if upload is not None:
            upload.join()
            tally.violations += upload.unexpected
        tally.violations += writers.unexpected
        return hit

    @abstractmethod
    def is_moment(self, phase: str, upload: Upload | None) -> bool:
        """Called just before the kill: whether this is the moment that the phase is for, and what it does to be."""

    @abstractmethod
    def compare(self, tally: Tally) -> None:
        """Note whatever is not as acknowledged."""

    @abstractmethod
    def summary(self) -> str:
        """What to say after all rounds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, should something have failed."""
        if self.server.running:
            self.server.kill()

    def _start(self) -> Server:
        return Server(self.data, dict(self.SETTINGS))


def run(kind: type[Killing], description: str, remark: str = "") -> int:
    """The rounds that the command line asks for, and their table. Exit code 1 on any violation."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{kind.NAME}_crash", description=description)
    parser.add_argument("--rounds", type=int, default=40, help="kills (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the delays and of the data (default 1)")
    given = parser.parse_args()
    start = time.monotonic()
    tallies = _rounds(kind, given.rounds, given.seed)
    show(tallies)
    print(f"{time.monotonic() - start:.0f} s in all, seed {given.seed}{remark}")
    return int(any(tally.violations for tally in tallies))


def _rounds(kind: type[Killing], count: int, seed: int) -> list[Tally]:
    """Rounds in turn over the phases, on a data folder that goes away afterwards."""
    tallies = {phase: Tally(f"killed while {phase}") for phase in kind.PHASES}
    with (
        tempfile.TemporaryDirectory(prefix=f"kgserve-{kind.NAME}-crash-", ignore_cleanup_errors=True) as folder,
        kind(Path(folder), seed) as crash,
    ):
        for number in range(count):
            phase = kind.PHASES[number % len(kind.PHASES)]
            crash.round(number, phase, tallies[phase])
            bad = sum(len(tally.violations) for tally in tallies.values())
            print(f"\rround {number + 1} of {count}, {bad} violations", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        crash.server.stop()
    print(crash.summary())
    return list(tallies.values())
