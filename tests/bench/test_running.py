from __future__ import annotations

from pathlib import Path

import pytest

from bench import crash, damage, pool
from bench.server import Server, ServerFailed
from bench.tally import Tally
from tests.fuzzing import is_thorough, some


def test_a_server_starts_answers_and_stops(tmp_path: Path) -> None:
    with Server(tmp_path) as server, server.client() as client:
        server.wait_ready()
        client.call("POST", "/api/memory/s/inject", {"nodes": [{"id": "a", "type": "t"}]})
        assert [line["id"] for line in client.export("s")] == ["a"]
        # In this order: what it takes now may grow between the two looks, and the most it took with it.
        assert 10 < server.mebibytes("VmRSS") <= server.mebibytes("VmHWM")
        assert server.threads() > 1
        assert server.descriptors() > 3
    assert not server.running


def test_a_server_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(ServerFailed, match="did not start"):
        Server(file)


def test_more_stores_than_may_be_open_are_all_there() -> None:
    report = pool.run(stores=12, open_stores=4)
    assert not report.wrong, report.lines


# A kill in the middle of writing is also in tests/abuse, damage of every file in tests/property.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_kill_in_each_phase_loses_nothing(tmp_path: Path) -> None:
    tallies: list[Tally] = []
    with crash.Crash(tmp_path, seed=1) as crashing:
        for number, phase in enumerate(some(crash.PHASES, "swap", "rebuild")):
            tallies.append(Tally(phase))
            crashing.round(number, phase, tallies[-1])
        tallies.append(Tally("at the end, doctor included"))
        crashing.finish(tallies[-1])
    assert [tally.violations for tally in tallies] == [[]] * len(tallies)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not is_thorough(), reason="tests/property and tests/cli/test_doctor.py flip bits of the same files")
def test_flipped_bits_in_the_engine_files_lose_nothing() -> None:
    tallies = damage.rounds(seed=1, repetitions=1, kinds=(damage.flip,))
    assert [tally.violations for tally in tallies] == [[]] * len(tallies)
    assert all(tally.reached for tally in tallies), tallies
