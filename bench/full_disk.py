"""A disk that fills up: writes are refused with 507, reads go on, and with new room everything does."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bench.ledger import Ledger, State, Unit
from bench.server import Client, Server, ServerFailed
from bench.tally import Tally, consult, export_when_open
from bench.writers import Writers

STORE = "full"
DISK_MB = 96
BALLAST_MB = 32
FILL_SECONDS = 90.0
RECOVERY_SECONDS = 30.0
Fill = Callable[[Server, Ledger, Tally, Path], bool]
SETTINGS = {"compact_wal_mb": 8, "journal_segment_mb": 4, "journal_retention_mb": 4}


def rounds(repetitions: int = 2) -> list[Tally]:
    """Fill a small memory disk and make room again; needs root, and says so where it is not."""
    return [
        _rounds("disk filled by the store", _fill, repetitions),
        _rounds("disk filled by another, while writing", _squeeze, repetitions),
    ]


def _rounds(kind: str, fill: Fill, repetitions: int) -> Tally:
    tally = Tally(kind)
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory(prefix="kgserve-full-", ignore_cleanup_errors=True) as folder:
            try:
                with small_disk(Path(folder)):
                    _round(Path(folder), tally, fill)
            except PermissionError as reason:
                tally.remark = f"skipped: {reason}"
            except ServerFailed as failure:
                tally.violations.append(str(failure))
    return tally


@contextmanager
def small_disk(folder: Path) -> Generator[None]:
    """Mount a memory disk of 96 MiB over a folder. Raises PermissionError where that is not allowed."""
    if os.geteuid() != 0:
        raise PermissionError("a small disk can only be mounted by root")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PermissionError(f"a small disk cannot be mounted here ({done.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _round(folder: Path, tally: Tally, fill: Fill) -> None:
    tally.rounds += 1
    data, ledger = folder / "data", Ledger(STORE)
    ballast = folder / "ballast"
    ballast.write_bytes(b"\1" * (BALLAST_MB << 20))
    with Server(data, SETTINGS) as server, server.client() as client:
        probe = Unit("probe", 100_000, None)
        _write_unit(client, ledger, probe, State(1))
        tally.reached += fill(server, ledger, tally, ballast)
        _check_reads(client, probe, tally)
        ballast.unlink()
        tally.remark = f"writes came back after {_writes_again(client, ledger, probe, tally):.1f} s"
        with Writers(server.port, ledger, "after", threads=2, adopt=False) as writers:
            time.sleep(0.5)
        tally.violations += writers.unexpected + ledger.verify(export_when_open(client, STORE))
    tally.acknowledged += ledger.acknowledged
    consult(data, STORE, tally)
    with Server(data, SETTINGS) as server, server.client() as client:
        tally.violations += ledger.verify(export_when_open(client, STORE))


def _fill(server: Server, ledger: Ledger, tally: Tally, _ballast: Path) -> bool:
    """Write until a write is refused, and a while on; whether one was refused."""
    with Writers(server.port, ledger, "fill", threads=2, size=20_000, adopt=False) as writers:
        refused = writers.refused.wait(FILL_SECONDS)
        time.sleep(1.0)
    return _refused(writers, tally, refused=refused)


def _squeeze(server: Server, ledger: Ledger, tally: Tally, ballast: Path) -> bool:
    """Let the ballast take all that is left in the middle of writes; whether a write was refused."""
    with Writers(server.port, ledger, "squeeze", adopt=False) as writers:
        time.sleep(0.5)
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        refused = writers.refused.wait(5)
        time.sleep(1.0)
    return _refused(writers, tally, refused=refused)


def _refused(writers: Writers, tally: Tally, *, refused: bool) -> bool:
    tally.violations += writers.unexpected
    if not refused:
        tally.violations.append("no write was refused although the disk must be full")
    return refused


def _check_reads(client: Client, probe: Unit, tally: Tally) -> None:
    """Every kind of read, and a write that must be refused with 507."""
    walk = msgspec.json.encode({"start_id": probe.id(1), "depth": 3})
    for method, path, body in (
        ("GET", f"/api/memory/{STORE}/{probe.path(1)}", None),
        ("POST", f"/api/memory/{STORE}/traverse", walk),
        ("GET", f"/api/memory/{STORE}/stats", None),
        ("GET", f"/api/memory/{STORE}/export", None),
        ("GET", "/api/memory", None),
        ("GET", "/health", None),
    ):
        reply = client.send(method, path, body)
        if reply.status != 200:
            tally.violations.append(f"{method} {path} on a full disk: {reply.status} {reply.body[:200]!r}")
    large = Unit("large", 1_000_000, None)
    reply = client.send("POST", f"/api/memory/{STORE}/inject", msgspec.json.encode(large.batch(1)))
    if reply.status != 507:
        tally.violations.append(f"12 MB on a full disk: {reply.status} {reply.body[:200]!r}, not 507")


def _write_unit(client: Client, ledger: Ledger, unit: Unit, state: State) -> bool:
    ledger.attempt(unit, state)
    path = f"/api/memory/{ledger.store}/inject"
    if client.send("POST", path, msgspec.json.encode(unit.batch(state.generation))).status != 200:
        return False
    ledger.acknowledge(unit, state)
    return True


def _writes_again(client: Client, ledger: Ledger, probe: Unit, tally: Tally) -> float:
    """Seconds until a write succeeds."""
    start = time.monotonic()
    while not _write_unit(client, ledger, probe, State(2)):
        if time.monotonic() - start > RECOVERY_SECONDS:
            tally.violations.append(f"no write in {RECOVERY_SECONDS:.0f} s after there was room again")
            break
        time.sleep(0.1)
    return time.monotonic() - start
