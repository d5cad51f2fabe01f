"""Set-up says in one sentence what a machine lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import environment
from tests.project.reading import TOP


def preflight(python: str, path: str | None = None, *more: str) -> subprocess.CompletedProcess[str]:
    variables = environment() | ({"PATH": path} if path is not None else {})
    variables.pop("CXX", None)
    return subprocess.run(
        ["/bin/sh", "scripts/preflight.sh", python, *more],
        cwd=TOP,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_machine_that_has_everything_passes_in_silence(tmp_path: Path) -> None:
    program(tmp_path, "c++", "exit 0")
    done = preflight(sys.executable, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_python() -> None:
    assert "python-that-is-not-there was not found" in one_sentence(preflight("python-that-is-not-there"))


def test_an_old_python(tmp_path: Path) -> None:
    old = program(tmp_path, "python3", 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac')
    assert "Python 3.11 or newer is needed" in one_sentence(preflight(old))
    assert "3.9.2" in one_sentence(preflight(old))


def test_no_venv(tmp_path: Path) -> None:
    bare = program(tmp_path, "python3", 'case "$2" in *venv*) exit 1;; *) exit 0;; esac')
    assert "venv" in one_sentence(preflight(bare))


def test_set_up_goes_on_without_headers_or_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bare = program(tmp_path, "python3", 'case "$2" in *Python.h*) exit 1;; *) exit 0;; esac')
    for done in (preflight(bare), preflight(sys.executable, str(tmp_path / "empty"))):
        assert (done.returncode, done.stdout) == (0, "")
        (line,) = done.stderr.splitlines()
        for manager in ("apt-get install g++ python3-dev", "dnf install", "pacman -S", "apk add"):
            assert manager in line


def test_the_extra_depends_on_a_compiler(tmp_path: Path) -> None:
    assert preflight(sys.executable, str(tmp_path), "extras").stdout == ""
    program(tmp_path, "c++", "exit 0")
    assert preflight(sys.executable, str(tmp_path), "extras").stdout == "hnswlib,\n"


@pytest.mark.parametrize(
    ("uv", "configured", "used"),
    [
        ("case $* in *--offline*) exit 1;; esac", "", ["uv --offline", "uv"]),
        ("exit 0", "global.extra-index-url='https://more.example'", ["uv --offline"]),
        ("exit 1", "", ["uv --offline", "uv", "pip"]),
        ("exit 0", ":env:.index-url='https://index.example'", ["pip"]),
    ],
)
def test_uv_installs_and_pip_where_uv_fails_or_pip_has_an_index(
    tmp_path: Path, uv: str, configured: str, used: list[str]
) -> None:
    log = f'case "$*" in *install*) echo "${{0##*/}} $*" >>{tmp_path}/log;; esac\n'
    python = program(tmp_path, "python", f'{log}case "$*" in *config*) echo "{configured}";; esac')
    program(tmp_path, "uv", log + uv)
    subprocess.run(
        ["/bin/sh", "scripts/install.sh", python, "prepare"],
        cwd=TOP,
        env=environment() | {"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    calls = (tmp_path / "log").read_text().splitlines()
    assert all(call.endswith("--constraint constraints.txt --editable .[prepare]") for call in calls)
    tools = ["uv --offline" if "--offline" in call else "uv" if call.startswith("uv") else "pip" for call in calls]
    assert tools == used
