"""Replication to a folder: cost on writes, lag, and what a killed leader loses: `python -m bench.replication`.

Real processes: a server, `kgserve replicate`, and a follower. The target is a folder on the same disk, so that its
syncs compete with those of the journal.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import BenchmarkReport
from bench.server import HASHING, BenchClient, ServerFailed, ServerProcess, background_work, run, scratch_folder
from kgserve.errors import KgserveError
from kgserve.stores.replication.target_address import open_target_storage
from kgserve.stores.replication.target_log import ShippedJournalFrames, TargetLog

STORE = "s"
WRITES_PER_SECOND = 100
ROUND_SECONDS = 5.0
ROUNDS = 6
LAG_SECONDS = 30.0
KILL_ROUNDS = 5
POLL_SECONDS = 0.005
MAX_COST_PERCENT = 5.0
LOSS_WINDOW_SECONDS = 1.0


@contextmanager
def replicating(data: Path, target: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run `kgserve replicate`, which has shipped all stores once it is yielded; it is killed at the end."""
    command = [sys.executable, "-m", "kgserve", "replicate", "--all", str(target), "--data", str(data)]
    process = subprocess.Popen([*command, "--log-level", "error"])
    try:
        end = time.monotonic() + 60
        while STORE not in newest_sequences(target):
            if time.monotonic() > end:
                raise ServerFailed("nothing was shipped")
            time.sleep(0.1)
        time.sleep(1)
        yield process
    finally:
        process.kill()
        process.wait()


def newest_sequences(target: Path) -> dict[str, int]:
    """Return the last sequence of each store in a target."""
    try:
        stores = TargetLog(open_target_storage(str(target))).load().stores
    except KgserveError:
        return {}
    return {name: store.base.last.sequence for name, store in stores.items()}


def write_steadily(client: BenchClient, seconds: float, first: int) -> list[tuple[float, float, int]]:
    """Write at `WRITES_PER_SECOND`. Return start, end and sequence of each write, up to the first failure."""
    done: list[tuple[float, float, int]] = []
    begun = time.perf_counter()
    for number in range(int(seconds * WRITES_PER_SECOND)):
        time.sleep(max(0.0, begun + number / WRITES_PER_SECOND - time.perf_counter()))
        node = {"id": f"n{first + number}", "type": "thing", "content": f"Thing {first + number} of the bench"}
        started = time.perf_counter()
        try:
            answer = client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": [node]})
        except (OSError, ServerFailed):
            break
        done.append((started, time.perf_counter(), answer["sequence"]))
    return done


def measure_cost(report: BenchmarkReport, folder: Path) -> None:
    """Compare writes with and without a process that ships them, in alternating rounds."""
    took: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    with ServerProcess(folder / "data", HASHING) as server, server.client() as client:
        write_steadily(client, ROUND_SECONDS, 0)
        for number in range(1, 2 * ROUNDS + 1):
            ships = number % 2 == 0
            before = server.processor_seconds()
            if ships:
                with replicating(folder / "data", folder / "target"):
                    before = server.processor_seconds()
                    done = write_steadily(client, ROUND_SECONDS, number * 10_000)
            else:
                done = write_steadily(client, ROUND_SECONDS, number * 10_000)
            used[ships].append((server.processor_seconds() - before) / len(done) * 1e6)
            took[ships] += [(end - start) * 1000 for start, end, _ in done]
    for ships, how in ((False, "without"), (True, "with")):
        found = statistics.quantiles(took[ships], n=100)
        report.fact(
            f"write {how} replication",
            f"p50 {found[49]:.2f} ms, p90 {found[89]:.2f} ms, p99 {found[98]:.2f} ms, "
            f"{statistics.median(used[ships]):,.0f} µs of the server's processor time",
        )
    for what, figures in (("p50 of a write", took), ("processor time of a write", used)):
        cost = (statistics.median(figures[True]) / statistics.median(figures[False]) - 1) * 100
        report.at_most(f"cost, {what}", f"{cost:+.1f} %", cost, MAX_COST_PERCENT, "%")


def measure_lag(report: BenchmarkReport, folder: Path) -> None:
    """Report the time from the answer of a write until it is in the target, and until a follower serves it."""
    in_target: dict[int, float] = {}
    at_follower: dict[int, float] = {}
    target = TargetLog(open_target_storage(str(folder / "target")))
    with ServerProcess(folder / "data", HASHING) as server, server.client() as client:
        first = write_steadily(client, 1, 0)[-1][2]
        with replicating(folder / "data", folder / "target"):
            target.load()
            follower = ServerProcess(folder / "copy", {**HASHING, "follow": folder / "target"})

            def watch(over: object) -> None:
                seen = {"target": first, "follower": first}
                with follower.client() as reader:
                    while not over.is_set():  # type: ignore[attr-defined]
                        for entry in target.follow():
                            marks = [each for each in entry.records if isinstance(each, ShippedJournalFrames)]
                            note(in_target, seen, "target", max((each.mark.sequence for each in marks), default=0))
                        note(at_follower, seen, "follower", reader.call("GET", "/api/memory")["stores"][0]["sequence"])
                        time.sleep(POLL_SECONDS)

            with follower, background_work(watch):
                done = write_steadily(client, LAG_SECONDS, 10_000)
                time.sleep(3)
    for what, seen in (("in the target", in_target), ("answered by the follower", at_follower)):
        lags = [seen[sequence] - end for _, end, sequence in done if sequence in seen]
        found = statistics.quantiles(lags, n=100)
        text = f"p50 {found[49]:.2f} s, p99 {found[98]:.2f} s, max {max(lags):.2f} s"
        report.check(f"lag until {what}", text, len(lags) == len(done))


def note(seen_at: dict[int, float], seen: dict[str, int], where: str, last: int) -> None:
    """Note the present as the time at which the sequences up to ``last`` were first seen."""
    moment = time.perf_counter()
    for sequence in range(seen[where] + 1, last + 1):
        seen_at[sequence] = moment
    seen[where] = max(seen[where], last)


def measure_loss(report: BenchmarkReport, folder: Path) -> None:
    """Kill the leader and the shipper under load, promote a follower, and compare it with what was acknowledged."""
    windows: list[float] = []
    lost = missing = 0
    for number in range(KILL_ROUNDS):
        data, target, copy = (folder / f"{name}{number}" for name in ("data", "target", "copy"))
        with ServerProcess(data, HASHING) as server, server.client() as client:
            done = write_steadily(client, 1, 0)
            with replicating(data, target) as shipper:
                with ServerProcess(copy, {**HASHING, "follow": target}):

                    def kill(_: object, server: ServerProcess = server, shipper: object = shipper) -> None:
                        time.sleep(random.uniform(2, 4))
                        shipper.kill()  # type: ignore[attr-defined]
                        server.kill()

                    with background_work(kill):
                        done += write_steadily(client, 30, 10_000)
                killed = done[-1][1]
        shipped = newest_sequences(target)[STORE]
        promoted = run(["promote", "--data", str(copy)])
        with ServerProcess(copy, HASHING) as server, server.client() as client:
            found = client.call("GET", "/api/memory")["stores"][0]["sequence"]
        missing += shipped - found if promoted.returncode == 0 else shipped
        gone = [end for _, end, sequence in done if sequence > found]
        lost += len(gone)
        windows.append(killed - gone[0] if gone else 0.0)
    report.check("shipped commits that the promoted follower lacks", f"{missing}", missing == 0)
    text = f"max {max(windows):.2f} s, median {statistics.median(windows):.2f} s, {lost} writes in {KILL_ROUNDS} rounds"
    report.at_most("loss window", text, max(windows), LOSS_WINDOW_SECONDS, "s")


def main(arguments: Sequence[str]) -> int:
    """Print a table. Return 1 when a limit was exceeded or a shipped commit is missing."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=("cost", "lag", "loss"))
    given = options.parse_args(arguments)
    report = BenchmarkReport("Replication to a folder on the same disk")
    for name, part in (("cost", measure_cost), ("lag", measure_lag), ("loss", measure_loss)):
        if given.only in (None, name):
            with scratch_folder() as folder:
                part(report, folder)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
