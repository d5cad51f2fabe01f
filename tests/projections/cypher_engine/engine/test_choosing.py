"""Choice of the engine by a setting, and the error when it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from kgserve.projections.cypher_engine.engine.files import format_cypher_engine_name_and_version
from tests.cli.running import environment

PROJECT = Path(__file__).parents[4]
PACKAGES = Path(msgspec.__file__).parents[1]
OPENING = "import sys, kgserve; kgserve.open(sys.argv[1], indexes=False)"


@pytest.fixture(scope="module")
def without_ladybug(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which Python finds all installed packages except Ladybug."""
    folder = tmp_path_factory.mktemp("packages")
    for each in PACKAGES.iterdir():
        if not each.name.startswith("ladybug"):
            (folder / each.name).symlink_to(each)
    return environment({"PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}", "KGSERVE_ENGINE": "ladybug"})


@pytest.mark.parametrize("way", ["server", "library"])
def test_a_missing_engine_is_reported_at_startup(tmp_path: Path, without_ladybug: dict[str, str], way: str) -> None:
    data = str(tmp_path / "data")
    program = ["-m", "kgserve", "serve", "--port", "0", "--data", data] if way == "server" else ["-c", OPENING, data]
    command = [sys.executable, "-S", *program]
    done = subprocess.run(command, env=without_ladybug, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "the engine ladybug is not installed; run: pip install 'kgserve[ladybug]'" in said
    if way == "server":
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_the_edition_names_the_installed_engine() -> None:
    assert format_cypher_engine_name_and_version("kuzu") == f"kuzu {version('kuzu')}"
    assert format_cypher_engine_name_and_version("ladybug") == f"ladybug {version('ladybug')}"
