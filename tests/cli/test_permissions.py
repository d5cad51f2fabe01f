"""Permissions of files that kgserve writes, whatever the umask."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import httpx
import pytest

from tests.cli.running import COMMAND, kgserve, serving
from tests.client.embedded.running import OPENING, Program

CARELESS = ("sh", "-c", 'umask 0; exec "$@"', "sh", *COMMAND)
NODES = {"nodes": [{"id": "a", "type": "secret", "content": "private"}]}


def careless(*arguments: object) -> None:
    """Run a command with umask 0."""
    before = os.umask(0)
    try:
        done = kgserve(*arguments)
    finally:
        os.umask(before)
    assert done.code == 0, done.err


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in [folder, *folder.rglob("*")] if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with one store, created by a server with umask 0."""
    data = tmp_path_factory.mktemp("made") / "data"
    with serving(data, program=CARELESS) as server:
        for nodes in (NODES, NODES):
            httpx.post(f"{server.url}/api/memory/s/inject", json=nodes).raise_for_status()
        httpx.get(f"{server.url}/api/memory/s/search", params={"query": "nobody"})
    return data


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, modes included."""
    return shutil.copytree(made, tmp_path / "new" / "data")


def test_server_and_commands_write_private_files(folder: Path, tmp_path: Path) -> None:
    backups, restored, lines = tmp_path / "safe" / "backups", tmp_path / "restored", tmp_path / "s.ndjson"
    careless("keys", "create", "--role", "admin", "--name", "me", "--data", folder)
    careless("backup", "--to", backups, "--data", folder)
    careless("keys", "create", "--role", "admin", "--name", "me", "--data", restored)
    careless("restore", backups, "--data", restored)
    careless("export", "s", "--data", restored, "-o", lines)
    careless("import", "t", lines, "--data", restored)
    assert {path for each in (folder, backups.parent) for path in open_to_others(each)} == set()
    assert [path for path in open_to_others(restored) if path.is_dir()] == []
    assert stat.S_IMODE(lines.stat().st_mode) == 0o666, "the user's own file follows the umask"


def test_a_library_keeps_the_umask_and_restricts_the_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    text = "store.inject([{'id': 'a', 'type': 't'}])\nprint(os.umask(0))\nlibrary.close()"
    with Program(data, text, opening="os.umask(0)\n" + OPENING) as program:
        assert program.line() == "0"
        assert program.end().code == 0
    for path in (data, data / "s_memory"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_existing_folder_is_restricted_at_startup(folder: Path) -> None:
    unlock(folder)
    outside = folder.parent / "outside"
    outside.write_text("linked to")
    outside.chmod(0o644)
    (folder / "s_memory" / "link").symlink_to(outside)
    with serving(folder):
        pass
    assert [path for path in open_to_others(folder) if not path.is_symlink()] == []
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert "data_folder_closed_to_others" in (folder.parent / f"{folder.name}.log").read_text()


def test_foreign_files_in_the_folder_keep_their_modes(folder: Path) -> None:
    unlock(folder)
    own = folder / "thesis.tex"
    own.write_text("mine")
    own.chmod(0o644)
    assert kgserve("backup", "--to", folder.parent / "backups", "--data", folder).code == 0
    assert set(open_to_others(folder)) == {folder, own}


def test_doctor_reports_and_repairs_permissions(folder: Path) -> None:
    assert "modes" not in kgserve("doctor", "--data", folder).out
    unlock(folder)
    found = kgserve("doctor", "--data", folder)
    assert found.code == 1
    assert ["data folder", "modes", "BAD"] in [line[:3] for line in found.lines()]
    assert open_to_others(folder) == []
    assert kgserve("doctor", "--data", folder).code == 0
    # Unreachable within a private folder: not a fault, but repaired.
    (folder / "s_memory" / "graph.kuzu").chmod(0o644)
    assert kgserve("doctor", "--data", folder).code == 0
    assert open_to_others(folder) == []


def unlock(folder: Path) -> None:
    """Set the modes that older versions left."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
