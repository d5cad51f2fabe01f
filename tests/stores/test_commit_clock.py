"""Behaviour of a store when the system clock is wrong. The store runs in a process whose clock is set by a file."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kgserve.admin.future_timestamp_repair import count_future_timestamps, repair_future_timestamps
from kgserve.errors import Conflict
from kgserve.platform.codecs import decode_json
from kgserve.storage.commit_clock import (
    CLOCK_TRUST_MICROSECONDS,
    MAX_PLAUSIBLE_IDLE_MICROSECONDS,
    CommitClock,
    ForwardJumpGuardedClock,
    wall_time,
)
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS, MIN_COMMIT_TIME_MICROSECONDS, choose_commit_time
from tests.cli.running import environment, kgserve
from tests.project.reading import TOP
from tests.stores.writing import opened, write

YEAR = 365 * 86_400
NOW = MIN_COMMIT_TIME_MICROSECONDS + YEAR * 1_000_000

WRITER = """
import json, struct, sys, time
from pathlib import Path
from structlog.testing import capture_logs
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.graph.as_of_graph import PastMoment
from tests.projections.history.following import kept

shift = Path(sys.argv[2])
now = lambda: time.time_ns() // 1000
stamps, seen = [], []
with capture_logs() as lines, kept(Path(sys.argv[1])) as of:
    for name, seconds in json.loads(sys.argv[3]):
        with shift.open("r+b") as file:  # in place: a process that reads a truncated mapping is killed
            file.write(struct.pack("q", seconds))
        edges = [EdgeUpsert(0, ("a", name, "KNOWS"))] if name != "a" else []
        of.store.submit(WriteBatch(nodes=[NodeUpsert(0, name, "t")], edges=edges)).result(30)
        stamps.append(of.store.state.time - now())
    seen = PastMoment(of.historian, format_rfc3339_timestamp(now())).of(of.store)[1]
    future = of.store.clock.future_stamp
events = [line["event"] for line in lines if line["log_level"] == "warning"]
print(json.dumps({"stamps": stamps, "seen": seen, "future": future, "events": events}))
"""

PRUNER = """
import json, struct, sys, time
from pathlib import Path
import msgspec
from kgserve.errors import Conflict
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.commit_clock import RETENTION_CLOCK
from tests.projections.history.following import kept

found = {}
with kept(Path(sys.argv[1])) as of:
    of.store.change_settings(lambda now: msgspec.structs.replace(now, history=30))
    follower = of.historian.of(of.store)
    for content in ("old", "new"):
        of.store.submit(WriteBatch(nodes=[NodeUpsert(0, "a", "t", content)])).result(30)
    follower.wait(of.store.state.sequence, 30)
    found["before"] = follower.expired_up_to_now()
    with Path(sys.argv[2]).open("r+b") as file:
        file.write(struct.pack("q", int(sys.argv[3])))
    found["by_clock"] = follower.expired_sequence(time.time_ns() // 1000)
    found["due"] = follower.expired_up_to_now()
    try:
        RETENTION_CLOCK.require()
    except Conflict as error:
        found["refused"] = str(error)
print(json.dumps(found))
"""


class ClockObservations(msgspec.Struct):
    """Observations of the process: its log lines, and the clock offset of each commit's timestamp in microseconds."""

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


def run(script: str, data: Path, clock: Path, first: int, *arguments: str) -> bytes:
    """Run a script with the data folder, the clock file and arguments; the clock starts off by ``first`` seconds."""
    shift = data.with_name("shift")
    shift.write_bytes(struct.pack("q", first))
    variables = environment() | {"LD_PRELOAD": str(clock), "SHIFT_FILE": str(shift), "PYTHONPATH": str(TOP)}
    command = [sys.executable, "-c", script, data, shift, *arguments]
    done = subprocess.run(command, cwd=TOP, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.splitlines()[-1]


def commit(data: Path, clock: Path, *commits: tuple[str, int]) -> ClockObservations:
    """Commit nodes, each with the clock off by the given number of seconds; the first offset applies from the start."""
    texts = "[" + ",".join(f'["{name}",{seconds}]' for name, seconds in commits) + "]"
    return decode_json(run(WRITER, data, clock, commits[0][1], texts), ClockObservations)


@pytest.mark.parametrize(
    ("now", "last", "expected"),
    [
        (NOW, NOW - 5, NOW),
        (NOW, NOW, NOW + 1),
        (NOW, NOW + MAX_CLOCK_DRIFT_MICROSECONDS, NOW + MAX_CLOCK_DRIFT_MICROSECONDS + 1),
        (NOW, NOW + MAX_CLOCK_DRIFT_MICROSECONDS + 1, NOW),
        (MIN_COMMIT_TIME_MICROSECONDS - 1, NOW, NOW + 1),
    ],
    ids=["ahead", "same", "drift", "last one was ahead", "impossible clock"],
)
def test_a_commit_timestamp_follows_the_clock_unless_it_drifts(now: int, last: int, expected: int) -> None:
    assert choose_commit_time(now, StoreState(time=last).time) == expected


def test_a_clock_ahead_for_one_commit_does_not_affect_later_timestamps(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    found = commit(data, shifted_clock, ("a", 0), ("b", 2 * YEAR), ("c", 0))
    assert all(abs(each) < MAX_CLOCK_DRIFT_MICROSECONDS for each in found.stamps)
    assert found.seen == 3
    assert found.future
    assert found.events == ["clock_jumped", "clock_jumped", "stamps_of_the_future"]


def test_commits_stamped_ahead_before_the_start_are_reported_and_repaired(shifted_clock: Path, tmp_path: Path) -> None:
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


def test_commits_with_future_timestamps_are_part_of_the_current_state(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    commit(data, shifted_clock, ("a", 0), ("b", 2 * YEAR))
    found = commit(data, shifted_clock, ("c", 0))
    assert found.events == ["stamps_of_the_future"]
    assert found.seen == 3


def test_repair_ends_what_a_clock_ahead_ended_and_keeps_the_bounds_of_callers(tmp_path: Path) -> None:
    ahead = wall_time() + 2 * YEAR * 1_000_000
    ended, given = NodeExtrasUpsert(valid_to=ahead - 20), NodeExtrasUpsert(valid_to=ahead + YEAR * 1_000_000)
    with opened(tmp_path, check_interval=0) as store:
        store.clock = CommitClock("s", 0, lambda: ahead)
        nodes = [NodeUpsert(0, "ended", "t", extras=ended), NodeUpsert(1, "given", "t", extras=given)]
        edge = EdgeUpsert(0, ("ended", "given", "r"), extras=EdgeExtrasUpsert(valid_from=ahead - 20))
        write(store, WriteBatch(nodes=nodes, edges=[edge], links=[CrossStoreLinkUpsert("other", edge)]))
        # The stamp of the commit that ended it is then only in the history.
        write(store, WriteBatch(nodes=[NodeUpsert(0, "ended", "t", "changed")]))
        store.clock = CommitClock("s", 0)
        assert count_future_timestamps(store).count == 4
        assert repair_future_timestamps(store) == 4
        assert count_future_timestamps(store).count == 0
        assert store.check_rows()
        assert store.links.check()
        with store.reading_links() as (rows, links):
            found = {row.id: row for row in rows.all_nodes()}
            assert links is not None
            edges = [*rows.all_edges(), *(row.edge for row in links.outgoing("ended", 9))]
        assert {row.extras.valid_from for row in edges if row.extras is not None} == {found["ended"].updated_at}
        assert len(edges) == 2
        assert {name: row.extras.valid_to for name, row in found.items() if row.extras is not None} == {
            "ended": found["ended"].updated_at,
            "given": given.valid_to,
        }


class PruneCounts(msgspec.Struct):
    """Commit up to which the history was pruned, and how a request to prune by age was refused."""

    before: int
    by_clock: int
    due: int
    refused: str = ""


def test_setting_the_clock_forward_prunes_no_history(shifted_clock: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    found = decode_json(run(PRUNER, data, shifted_clock, 0, str(2 * YEAR)), PruneCounts)
    assert (found.before, found.by_clock, found.due) == (0, 2, 0)
    assert "the clock was set forward by 63,07" in found.refused
    # The clock is ahead from the start, so that the store seems to have been idle for two years.
    again = decode_json(run(PRUNER, data, shifted_clock, 2 * YEAR, str(2 * YEAR)), PruneCounts)
    assert (again.before, again.due) == (0, 0)
    assert again.by_clock >= 2


def test_ages_are_measured_since_the_start() -> None:
    wall, since = [NOW], [0]
    clock = ForwardJumpGuardedClock(lambda: wall[0], lambda: since[0])
    wall[0], since[0] = NOW + 5, 5
    assert (clock.now(), clock.require()) == (NOW + 5, NOW + 5)
    wall[0] -= 3
    assert clock.now() == NOW + 2
    wall[0] = NOW + 100 * MAX_CLOCK_DRIFT_MICROSECONDS
    assert clock.now() == NOW + 5
    with pytest.raises(Conflict, match="set forward by"):
        clock.require()
    assert (
        clock.is_trusted(MAX_PLAUSIBLE_IDLE_MICROSECONDS),
        clock.is_trusted(MAX_PLAUSIBLE_IDLE_MICROSECONDS + 1),
    ) == (True, False)
    since[0] = CLOCK_TRUST_MICROSECONDS
    assert clock.is_trusted(MAX_PLAUSIBLE_IDLE_MICROSECONDS + 1)


def test_a_clock_with_an_impossibly_early_start_is_corrected() -> None:
    wall = [0]
    clock = ForwardJumpGuardedClock(lambda: wall[0], lambda: 0)
    wall[0] = NOW
    assert clock.require() == NOW
