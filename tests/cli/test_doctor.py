from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.cli.running import ServerProcessHandle, kgserve
from tests.stores.writing import assert_whole, batch, ids, opened, write


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with two stores that were closed cleanly."""
    data = tmp_path_factory.mktemp("left") / "data"
    for name in ("one", "two"):
        with opened(data, name) as store:
            write(store, batch(*(f"{name}-{number}" for number in range(20))))
    return data


@pytest.fixture
def folder(left: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return shutil.copytree(left, tmp_path / "data")


def test_an_intact_folder_has_no_findings(folder: Path) -> None:
    examined = kgserve("doctor", "--data", folder)
    assert examined.code == 0, examined
    head, *rows = examined.lines()
    assert head == ["store", "part", "result", "detail"]
    assert {row[0] for row in rows} == {"one", "two"}
    assert {row[2] for row in rows} == {"ok"}


def test_it_reports_how_the_engines_file_was_closed(folder: Path) -> None:
    def told() -> str:
        return next(row[3] for row in kgserve("doctor", "one", "--data", folder).lines() if row[1] == "engine file")

    assert "no file exists" in told()
    assert "closed at sequence 1, the journal is at 1" in told()
    with opened(folder, "one") as store:
        write(store, batch("later"))
    assert "closed at sequence 1, the journal is at 2" in told()
    (folder / "one_memory" / "engine.json").unlink()
    assert "not closed cleanly" in told()


def test_one_store_can_be_named(folder: Path) -> None:
    assert {row[0] for row in kgserve("doctor", "one", "--data", folder).lines()[1:]} == {"one"}


@pytest.mark.parametrize("rebuild", [(), ("--rebuild",)], ids=["alone", "rebuild"])
def test_a_damaged_engine_file_is_rebuilt(folder: Path, rebuild: tuple[str, ...]) -> None:
    # The first look at a folder without Cypher queries creates the engine's file.
    assert kgserve("doctor", "one", "--data", folder).code == 0
    file = folder / "one_memory" / "graph.kuzu"
    file.write_bytes(b"\0" * file.stat().st_size)
    mended = kgserve("doctor", "one", *rebuild, "--data", folder)
    assert mended.code == (0 if rebuild else 1), mended
    assert "rebuilt from the journal" in mended.out
    again = kgserve("doctor", "--data", folder)
    assert again.code == 0, again
    assert "rebuilt from the journal" not in again.out
    with opened(folder, "one") as store:
        assert store.state.nodes == 20


def flip(path: Path, choice: random.Random) -> None:
    """Flip one bit at each of 20 positions."""
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_under_the_same_size_and_time_lose_nothing(folder: Path, seed: int) -> None:
    """The doctor finds the flipped bits and rebuilds the file, or they are harmless."""
    assert kgserve("doctor", "one", "--data", folder).code == 0
    file = folder / "one_memory" / "graph.kuzu"
    status = file.stat()
    flip(file, random.Random(seed))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    if kgserve("doctor", "one", "--data", folder).code:
        assert kgserve("doctor", "one", "--rebuild", "--data", folder).code == 0
    with opened(folder, "one") as store:
        assert_whole(store)
        assert len(ids(store)) == 20


def test_a_damaged_journal_is_found_and_truncated_only_on_request(folder: Path) -> None:
    segment = min((folder / "one_memory" / "journal").glob("*.log"))
    whole = segment.read_bytes()
    middle = len(whole) // 2
    segment.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :] + whole[-middle:])
    found = kgserve("doctor", "--data", folder)
    assert found.code == 1, found
    assert {(row[0], row[2]) for row in found.lines()[1:]} >= {("one", "BAD"), ("two", "ok")}
    assert segment.name in found.out
    kgserve("doctor", "one", "--salvage", "--data", folder)
    assert kgserve("doctor", "--data", folder).code == 0


def test_a_folder_of_a_running_server_is_not_examined(server: ServerProcessHandle) -> None:
    refused = kgserve("doctor", "--data", server.data)
    assert refused.code == 1
    assert str(server.process.pid) in refused.err


def test_a_missing_folder_or_store_is_reported(folder: Path, tmp_path: Path) -> None:
    unknown = kgserve("doctor", "three", "--data", folder)
    assert unknown.code == 1
    assert "three" in unknown.err
    missing = kgserve("doctor", "--data", tmp_path / "none")
    assert missing.code == 1
    assert str(tmp_path / "none") in missing.err
    assert not (tmp_path / "none").exists()


def test_damage_next_to_the_stores_is_reported(folder: Path) -> None:
    assert kgserve("keys", "create", "--name", "ann", "--role", "read", "--data", folder).code == 0
    for name in ("keys.json", "audit.log"):
        file = folder / name
        file.write_bytes(file.read_bytes().replace(b"ann", b"eve"))
    examined = kgserve("doctor", "--data", folder)
    assert examined.code == 1, examined
    assert "its checksum does not match its keys" in examined.out
    assert "lines are incomplete or damaged and are left out: 1 of audit.log" in examined.out
