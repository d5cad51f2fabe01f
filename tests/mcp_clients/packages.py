"""The npm packages of this folder's lock file, installed once into the build folder, and the Node.js that runs them."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import environment

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "mcp-clients"
FILES = ("package.json", "package-lock.json")
PROGRAM = "converse.mjs"

INSTALL_SECONDS = 120
TYPESCRIPT = (20, 0)
NEWEST = (22, 19)
"""The inspector's least version of Node.js; the packages bring one for where the system's is older."""

# Without the packages' own scripts: none is needed, and so none of other people's code runs before the tests.
NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline")
PATIENT = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000")


def installed(failure: Path) -> Path:
    """The folder with the packages and the programs. Skips when they cannot be had; ``failure`` remembers why."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here, which other people's MCP clients need")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failure.exists():
            pytest.skip(failure.read_text())
        folder = BUILD / _digest()
        if not folder.exists() and (reason := _install(folder)):
            failure.write_text(f"the npm packages of tests/mcp_clients could not be installed: {reason}")
            pytest.skip(failure.read_text())
        # Beside the packages it finds them. Replaced at once, because another worker process may be reading it.
        Path(shutil.copy(HERE / PROGRAM, BUILD)).replace(folder / PROGRAM)
        return folder


def node(folder: Path, least: tuple[int, int]) -> str:
    """A Node.js that is new enough: the system's, or the one among the packages. Skips when there is none."""
    if (system := shutil.which("node")) and _version(system) >= least:
        return system
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    own = folder / "node_modules" / f"node-{platform.system().lower()}-{machine}" / "bin" / "node"
    if own.exists():
        return str(own)
    pytest.skip(f"this needs Node.js {least[0]}.{least[1]}, and the one here is older")


def _install(folder: Path) -> str | None:
    """Install beside the folder and rename, so that what bears the name is whole. What went wrong, if anything."""
    for old in BUILD.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    started = BUILD / "unfinished"
    started.mkdir()
    for name in FILES:
        shutil.copy(HERE / name, started)
    command = [*NPM_CI, *PATIENT]
    try:
        subprocess.run(
            command, cwd=started, env=environment(), capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"npm was not done after {INSTALL_SECONDS} s"
    except subprocess.CalledProcessError as error:
        said = [line.removeprefix("npm error ") for line in error.stderr.splitlines() if "npm error" in line]
        return "; ".join(said[:3]) or f"npm ended with {error.returncode}"
    started.rename(folder)
    return None


def _digest() -> str:
    digest = hashlib.sha256(platform.platform().encode())
    for name in FILES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def _version(program: str) -> tuple[int, ...]:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", answer)[:2])
