"""Power loss test: `python -m bench.power_loss [--states N] [--seed S]`.

A real server is stopped, killed and restarted while clients write, query, import, change settings and drop stores. All
of its file operations are recorded. From the record, the test builds folders that a disk may hold after a power loss at
some moment: unsynced data is present partially or not at all. Each folder is opened and compared with the writes
acknowledged by then. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.power_loss import disk
from bench.power_loss.disk import LOSS_MODES
from bench.power_loss.recording import RecordedServer, compile_recorder
from bench.power_loss.recovery_check import examine
from bench.server import unwind_on_sigterm
from bench.tally import Tally, show

STATES_PER_RECORDING = 25


class PowerLoss:
    """Random disk states and the violations found."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tallies = {manner: Tally(f"unsynced: {manner}") for manner in LOSS_MODES}
        self.slowest = 0.0
        self._folder = folder
        self._seed = seed
        self._recorder = compile_recorder(folder)

    def states(self, count: int) -> None:
        """Record as often as necessary, and examine ``count`` states."""
        done = 0
        while done < count:
            recording = RecordedServer(Path(tempfile.mkdtemp(dir=self._folder)), self._recorder, self._seed)
            recording.run()
            self.tallies[LOSS_MODES[0]].violations += recording.unexpected
            some = min(STATES_PER_RECORDING, count - done)
            self._examine(recording, some, done)
            done, self._seed = done + some, self._seed + 1
            print(f"\r{done} of {count} states, {self.bad} violations", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)

    @property
    def bad(self) -> int:
        """Number of violations."""
        return sum(len(tally.violations) for tally in self.tallies.values())

    def _examine(self, recording: RecordedServer, count: int, number: int) -> None:
        choice = random.Random(recording.seed)
        now = recording.disk()
        with recording.file.open("rb") as file:
            moments = _record_lengths(recording.file, count, choice)
            for each in disk.records(file):
                while moments and moments[0] < each.end:
                    self._check_one(now, recording, moments.pop(0), random.Random(f"{recording.seed}-{number}"), number)
                    number += 1
                now.take(each)

    def _check_one(
        self, now: disk.RecordedDisk, recording: RecordedServer, position: int, choice: random.Random, number: int
    ) -> None:
        manner = LOSS_MODES[number % len(LOSS_MODES)]
        tally = self.tallies[manner]
        left = recording.file.with_name("left")
        tally.rounds += 1
        tally.reached += disk.write_surviving_state(now, left, manner, choice) > 0
        tally.acknowledged += recording.timeline.at(position).acknowledged
        wrong, seconds = examine(left, recording.timeline, position, choice)
        tally.violations += [f"recording {recording.seed}, at {position}: {text}" for text in wrong]
        self.slowest = max(self.slowest, seconds)
        if wrong and (kept := os.environ.get("KEEP_STATES")):
            shutil.copytree(left, Path(kept) / f"{recording.seed}-{position}", dirs_exist_ok=True)
        shutil.rmtree(left)


def _record_lengths(file: Path, count: int, choice: random.Random) -> list[int]:
    """Return sorted lengths of the record: half of them random, half just after changes of names."""
    with file.open("rb") as opened:
        found = [(each.kind in disk.NAMES, each.end) for each in disk.records(opened)]
    names = [end for is_name, end in found if is_name]
    anywhere = [end for _, end in found]
    return sorted(choice.choice(names if at % 2 else anywhere) for at in range(count))


def main() -> int:
    """Build and examine the states, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.power_loss", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--states", type=int, default=100, help="number of disk states (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the work, the moments and the losses (default 1)")
    given = parser.parse_args()
    unwind_on_sigterm()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kgserve-power-", ignore_cleanup_errors=True) as folder:
        power = PowerLoss(Path(folder).resolve(), given.seed)
        power.states(given.states)
    show(list(power.tallies.values()))
    print("'moment hit': the disk differed from the server's view")
    print(f"slowest from opening to a complete export: {power.slowest:.1f} s")
    print(f"{time.monotonic() - start:.0f} s in total, seed {given.seed}")
    return int(power.bad > 0)


if __name__ == "__main__":
    sys.exit(main())
