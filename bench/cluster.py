"""What a replicated journal costs: `python -m bench.cluster [--appends N] [--rounds N]` (20 and 1 are quick).

Three NATS servers on loopback, on one disk. A record of 2 kB is appended by one writer and by 32, beside the same with
one file and one `fdatasync` in the same run. Then writers are stopped in full flight while another takes their store
over, and go on: nothing of theirs may be behind their successor's, and nothing that they were told of may be gone.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from bench.measure import Report, clock, rounded
from kgserve.cluster.jetstream.connection import NatsConnection
from kgserve.cluster.jetstream.kept import JetStreamLog
from kgserve.cluster.records import Record
from kgserve.errors import Fenced
from tests.cluster.servers import nats_servers

WRITERS = 32
RECORD_BYTES = 2_048
APPENDS = 1_000
ROUNDS = 8
STOPPED_AFTER = 0.5
TAKEN_OVER = 20
TRIED_ON = 20
"""Appends that a refused writer tries all the same."""

Append = Callable[[], object]


class Pace(NamedTuple):
    """What appends took, in milliseconds, and how many there were in a second."""

    p50: float
    p99: float
    rate: float

    def __str__(self) -> str:
        return f"p50 {rounded(self.p50)} p99 {rounded(self.p99)} ms, {self.rate:,.0f}/s"


def pace(writers: Sequence[Append], appends: int) -> Pace:
    """All writers at once, so many appends each."""

    def write(append: Append) -> list[float]:
        return [clock(append) for _ in range(appends)]

    began = time.perf_counter()
    with ThreadPoolExecutor(len(writers)) as threads:
        took = sorted(each for found in threads.map(write, writers) for each in found)
    seconds = time.perf_counter() - began
    return Pace(took[len(took) // 2], took[int(0.99 * (len(took) - 1))], len(took) / seconds)


def to_file(path: Path) -> Append:
    """Appends a record to a file, and waits for the disk."""
    record = os.urandom(RECORD_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append() -> None:
        os.write(descriptor, record)
        os.fdatasync(descriptor)

    return append


def to_log(log: JetStreamLog, store: str) -> Append:
    """Appends a record to a store's log."""
    data, at = os.urandom(RECORD_BYTES), [log.end(store)]

    def append() -> None:
        at[0] = log.append(store, at[0], Record("frame", 1, 1, 1, data))

    return append


def measure(report: Report, log: JetStreamLog, folder: Path, appends: int) -> None:
    """One writer and many, to a file and to the log."""
    for count in (1, WRITERS):
        each = max(appends // count, 10)
        local = pace([to_file(folder / f"{count}-{number}") for number in range(count)], each)
        ours = pace([to_log(log, f"paced-{count}-{number}") for number in range(count)], each)
        what = "an append" if count == 1 else f"an append, {count} writers"
        report.compare(what, str(ours), f"{local}: fdatasync", ours.p50 / local.p50)


def write_on(servers: str, store: str) -> None:
    """What is stopped: writes for as long as it may and tries on, and prints each position that it is told."""
    with closing(NatsConnection(servers)) as connection:
        log = JetStreamLog(connection)
        position, refused = log.end(store), 0
        while refused < TRIED_ON:
            try:
                position = log.append(store, position, Record("frame", 1, 1, 1, os.urandom(RECORD_BYTES)))
                print(position, flush=True)
            except Fenced:
                refused += 1


def taken_over(log: JetStreamLog, store: str) -> int:
    """Take a store over and write some records; the position of the first."""
    while True:
        # What the stopped one had sent may still come first.
        with suppress(Fenced):
            taken = position = log.append(store, log.end(store), Record("take", 2))
            break
    for _ in range(TAKEN_OVER):
        position = log.append(store, position, Record("frame", 2, 1, 1, b"successor"))
    return taken


def stopped_writer(log: JetStreamLog, servers: str, store: str) -> tuple[int, int, int]:
    """One round: records of the old owner behind the new one's, acknowledged ones that are gone, and refusals."""
    command = [sys.executable, "-m", "bench.cluster", "--writes-to", store, "--servers", servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline())]
        time.sleep(STOPPED_AFTER)
        writer.send_signal(signal.SIGSTOP)
        try:
            taken = taken_over(log, store)
        finally:
            writer.send_signal(signal.SIGCONT)
        told += [int(line) for line in writer.stdout.read().split()]
    assert writer.returncode == 0
    found = list(log.read(store, 0, log.end(store)))
    behind = sum(each.record.epoch == 1 for each in found if each.position > taken)
    return behind, len({*told} - {each.position for each in found}), TRIED_ON


def run(appends: int, rounds: int) -> Report:
    """All of it, with servers of its own."""
    report = Report(f"A replicated journal: records of {RECORD_BYTES:,} bytes, three servers on one machine")
    with (
        tempfile.TemporaryDirectory() as scratch,
        nats_servers(Path(scratch) / "nats") as servers,
        closing(NatsConnection(servers.urls)) as connection,
    ):
        log = JetStreamLog(connection)
        measure(report, log, Path(scratch), appends)
        found = [stopped_writer(log, servers.urls, f"stopped-{number}") for number in range(rounds)]
    behind, gone, refused = (sum(each) for each in zip(*found, strict=True))
    report.check(f"{rounds} stopped writers: records behind their successors'", f"{behind}", behind == 0)
    report.check("acknowledged records that are gone", f"{gone}", gone == 0)
    report.fact("appends of theirs that were refused", f"{refused}")
    return report


def main() -> int:
    """Measure, or be the writer that is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=APPENDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--writes-to", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.writes_to:
        write_on(chosen.servers, chosen.writes_to)
        return 0
    report = run(chosen.appends, chosen.rounds)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
