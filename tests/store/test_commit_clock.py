"""What a store does when the time of day was wrong. Its process is one whose clock is set by a file."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kgserve.decoding import decode_json
from kgserve.model.change import StoreState
from kgserve.model.plan import FIRST_POSSIBLE_TIME, MAX_DRIFT, commit_time
from tests.cli.running import environment, kgserve
from tests.project.reading import TOP

YEAR = 365 * 86_400
NOW = FIRST_POSSIBLE_TIME + YEAR * 1_000_000

WRITER = """
import json, struct, sys, time
from pathlib import Path
from structlog.testing import capture_logs
from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.change import Access
from kgserve.model.times import format_time
from kgserve.ops.moments import Past
from tests.history.following import kept

shift = Path(sys.argv[2])
now = lambda: time.time_ns() // 1000
stamps, seen = [], []
with capture_logs() as lines, kept(Path(sys.argv[1])) as of:
    for name, seconds in json.loads(sys.argv[3]):
        shift.write_bytes(struct.pack("q", seconds))
        edges = [EdgePut(0, ("a", name, "KNOWS"))] if name != "a" else []
        of.store.submit(WriteBatch(nodes=[NodePut(0, name, "t")], edges=edges)).result(30)
        stamps.append(of.store.state.time - now())
    seen = Past(of.historian, format_time(now())).of(of.store)[1]
    future = of.store.clock.future_stamp
events = [line["event"] for line in lines if line["log_level"] == "warning"]
print(json.dumps({"stamps": stamps, "seen": seen, "future": future, "events": events}))
"""


class Found(msgspec.Struct):
    """What the process saw: by how much each commit's stamp was off its clock, in microseconds, and what it logged."""

    stamps: list[int]
    seen: int
    future: int | None
    events: list[str]


@pytest.fixture(scope="module")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    source = TOP / "bench" / "shifted_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def commit(data: Path, clock: Path, *commits: tuple[str, int]) -> Found:
    """Commit nodes, each while the clock is off by so many seconds; the first one counts from the start on."""
    shift = data.with_name("shift")
    shift.write_bytes(struct.pack("q", commits[0][1]))
    variables = environment() | {"LD_PRELOAD": str(clock), "SHIFT_FILE": str(shift), "PYTHONPATH": str(TOP)}
    texts = "[" + ",".join(f'["{name}",{seconds}]' for name, seconds in commits) + "]"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, data, shift, texts], cwd=TOP, env=variables, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return decode_json(done.stdout.splitlines()[-1], Found)


@pytest.mark.parametrize(
    ("now", "last", "expected"),
    [
        (NOW, NOW - 5, NOW),
        (NOW, NOW, NOW + 1),
        (NOW, NOW + MAX_DRIFT, NOW + MAX_DRIFT + 1),
        (NOW, NOW + MAX_DRIFT + 1, NOW),
        (FIRST_POSSIBLE_TIME - 1, NOW, NOW + 1),
    ],
    ids=["ahead", "same", "drift", "last one was ahead", "impossible clock"],
)
def test_a_commit_is_stamped_with_the_clock_unless_that_drifts(now: int, last: int, expected: int) -> None:
    assert commit_time(now, StoreState(time=last).time) == expected


def test_a_clock_that_was_ahead_for_one_commit_stamps_no_later_one(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    found = commit(data, shifted_clock, ("a", 0), ("b", 2 * YEAR), ("c", 0))
    assert all(abs(each) < MAX_DRIFT for each in found.stamps)
    assert found.seen == 3
    assert found.future
    assert found.events == ["clock_jumped", "clock_jumped", "stamps_of_the_future"]


def test_a_clock_that_was_ahead_before_the_start_is_reported_and_repaired(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    commit(data, shifted_clock, ("a", 0), ("b", 2 * YEAR))
    examined = kgserve("doctor", "--data", data)
    assert examined.code == 1
    assert "1 nodes, 1 edges and 0 access counters are stamped in the future" in examined.out
    assert "--repair-times" in examined.out
    assert kgserve("doctor", "--repair-times", "--data", data).code == 0
    assert kgserve("doctor", "--data", data).code == 0
    found = commit(data, shifted_clock, ("d", 0))
    assert (found.events, found.future) == ([], None)
    assert found.seen == 4


def test_commits_of_the_future_are_part_of_the_present(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    commit(data, shifted_clock, ("a", 0), ("b", 2 * YEAR))
    found = commit(data, shifted_clock, ("c", 0))
    assert found.events == ["stamps_of_the_future"]
    assert found.seen == 3
