"""What no server can be faster than: an empty answer over HTTP, and one write that has reached the disk."""

from __future__ import annotations

import os
from pathlib import Path

from bench.measure import clock, times
from bench.wire import Wire, request

REPETITIONS = 300
RECORD = 2_048
"""Bytes of a record: about what a journal needs for 5 nodes and 5 edges."""


def health(wire: Wire, repetitions: int = REPETITIONS) -> float:
    """Milliseconds of `/health`, p50."""
    ready = request("GET", "/health")
    return times([wire.ask(ready).milliseconds for _ in range(repetitions)]).p50


def fdatasync(folder: Path, repetitions: int = REPETITIONS) -> float:
    """Milliseconds of one record appended and synced in `folder`, p50."""
    path, record = folder / "synced", os.urandom(RECORD)
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(record)
            os.fdatasync(file.fileno())

        took = times([clock(write) for _ in range(repetitions)]).p50
    path.unlink()
    return took
