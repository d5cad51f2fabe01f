"""`kgserve deploy`: shipped files, printed and written."""

from __future__ import annotations

from pathlib import Path

from kgserve.cli.deploy import SHIPPED_FILES
from tests.cli.running import kgserve
from tests.project.reading import TOP


def test_every_file_is_listed_and_printed() -> None:
    listed = kgserve("deploy", "list").lines()[1:]
    assert [(line[0], line[1]) for line in listed] == [
        (what, each.name) for what in SHIPPED_FILES for each in SHIPPED_FILES[what]
    ]
    for what, name, *_ in listed:
        assert kgserve("deploy", "print", what, name).out == next(
            (TOP / each.path).read_text() for each in SHIPPED_FILES[what] if each.name == name
        )
    assert kgserve("deploy", "print", "systemd").out == (TOP / "deploy/systemd/kgserve.service").read_text()


def test_every_deploy_file_is_shipped() -> None:
    known = {each.path for found in SHIPPED_FILES.values() for each in found}
    there = {path.relative_to(TOP).as_posix() for path in (TOP / "deploy").rglob("*") if path.is_file()}
    assert known == there


def test_all_files_are_written_to_a_folder_without_overwriting(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "units"
    done = kgserve("deploy", "print", "systemd", "--to", folder)
    assert done.code == 0, done.err
    assert {Path(line).name for line in done.out.splitlines()} == {each.name for each in SHIPPED_FILES["systemd"]}
    (folder / "kgserve.env").write_text("mine")
    (folder / "kgserve.service").unlink()
    again = kgserve("deploy", "print", "systemd", "--to", folder)
    assert again.code == 1
    assert "kgserve.env" in again.err
    assert (folder / "kgserve.env").read_text() == "mine"
    assert not (folder / "kgserve.service").exists()


def test_an_unknown_file_is_rejected(tmp_path: Path) -> None:
    assert "kgserve-backup.timer" in kgserve("deploy", "print", "systemd", "nothing").err
    assert kgserve("deploy", "print", "nothing").code == 2
    assert kgserve("deploy", "print", "nginx", "kgserve.conf", "--to", tmp_path).code == 2
