"""Set-up says in one sentence what a machine lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.running import environment
from tests.project.reading import TOP


def preflight(python: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    variables = environment() | ({"PATH": path} if path is not None else {})
    variables.pop("CXX", None)
    return subprocess.run(
        ["/bin/sh", "scripts/preflight.sh", python], cwd=TOP, env=variables, capture_output=True, text=True, check=False
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


def test_no_headers(tmp_path: Path) -> None:
    bare = program(tmp_path, "python3", 'case "$2" in *Python.h*) exit 1;; *) exit 0;; esac')
    assert "python3-dev" in one_sentence(preflight(bare))


def test_no_compiler(tmp_path: Path) -> None:
    assert "C++ compiler" in one_sentence(preflight(sys.executable, str(tmp_path)))
