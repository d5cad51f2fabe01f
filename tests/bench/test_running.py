from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import crash, damage
from bench.server import ServerFailed, ServerProcess
from bench.tally import Tally
from tests.fuzzing import some


def test_a_server_starts_answers_and_stops(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, server.client() as client:
        server.wait_ready()
        client.call("POST", "/api/memory/s/inject", {"nodes": [{"id": "a", "type": "t"}]})
        assert [line["id"] for line in client.export("s")] == ["a"]
        # In this order: current memory may grow between the two readings, and the maximum with it.
        assert 10 < server.mebibytes("VmRSS") <= server.mebibytes("VmHWM")
        assert server.threads() > 1
        assert server.descriptors() > 3
    assert not server.running


def test_a_server_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(ServerFailed, match="did not start"):
        ServerProcess(file)


# Kills in the middle of writing are also in tests/abuse, damage of every file in tests/property.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_kill_in_each_phase_loses_nothing(tmp_path: Path) -> None:
    tallies: list[Tally] = []
    with crash.CrashTest(tmp_path, seed=1) as crashing:
        for number, phase in enumerate(some(crash.PHASES, "rebuild")):
            tallies.append(Tally(phase))
            crashing.round(number, phase, tallies[-1])
        tallies.append(Tally("at the end, doctor included"))
        crashing.finish(tallies[-1])
    assert [tally.violations for tally in tallies] == [[]] * len(tallies)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("only", "damage_name", "verdict"),
    [
        ("^s_memory/history.sqlite$", "delete", damage.REFUSED),
        ("^s_memory/views/past-vector/texts.sqlite$", "folder", damage.REBUILT),
        (r"^s_memory/views/rows/.*\.texts$", "flip", damage.REBUILT),
        (r"^s_memory/views/rows/.*\.rows$", "unreadable", damage.REBUILT),
        ("^s_memory/views/keyword/.managed.json$", "empty", damage.REBUILT),
        ("^server.lock$", "folder", damage.REBUILT),
        ("^audit.log$", "folder", damage.LOST_LINES),
    ],
)
def test_a_damaged_file_is_rebuilt_or_its_loss_is_reported(
    folders: damage.DamageFolders, answers: dict[str, object], only: str, damage_name: str, verdict: str
) -> None:
    [case] = [case for case in damage.list_cases(folders, only) if case.damage == damage_name]
    outcome = damage.try_case(folders, case, answers)
    assert outcome.verdict == verdict, outcome


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[damage.DamageFolders]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in damage.SETTINGS.items():
            patch.setenv(name, value)
        yield damage.build_folders(tmp_path_factory.mktemp("damage"))


@pytest.fixture(scope="module")
def answers(folders: damage.DamageFolders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return damage.answer_folder(shutil.copytree(folders.data, tmp_path_factory.mktemp("before") / "data"))
