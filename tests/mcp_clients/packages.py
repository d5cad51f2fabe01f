"""The npm packages of this folder's lock file, installed once into the build folder, and a Node.js to run them."""

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
"""Minimum version of Node.js for the inspector; the packages include one for older systems."""

# No install scripts: none are needed, and third-party code does not run before the tests.
NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline")
PATIENT = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000")


def installed(failure: Path) -> Path:
    """Return the folder with packages and programs.

    Skips the test if they cannot be installed; ``failure`` stores the reason.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} was not found; the third-party MCP clients need it")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failure.exists():
            pytest.skip(failure.read_text())
        folder = BUILD / _digest()
        if not folder.exists() and (reason := _install(folder)):
            failure.write_text(f"the npm packages of tests/mcp_clients could not be installed: {reason}")
            pytest.skip(failure.read_text())
        # It finds the packages next to it. Replaced atomically, because another worker process may be reading it.
        Path(shutil.copy(HERE / PROGRAM, BUILD)).replace(folder / PROGRAM)
        return folder


def node(folder: Path, least: tuple[int, int]) -> str:
    """Return a sufficiently new Node.js: the system's, or the one among the packages. Skips the test without one."""
    if (system := shutil.which("node")) and _version(system) >= least:
        return system
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    own = folder / "node_modules" / f"node-{platform.system().lower()}-{machine}" / "bin" / "node"
    if own.exists():
        return str(own)
    pytest.skip(f"Node.js {least[0]}.{least[1]} is needed; the installed version is older")


def _install(folder: Path) -> str | None:
    """Install next to the folder and rename, so that the folder is always complete. Return the failure, if any."""
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
        return f"npm did not finish within {INSTALL_SECONDS} s"
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


if __name__ == "__main__":
    BUILD.mkdir(parents=True, exist_ok=True)
    unread = BUILD / "failure"
    unread.unlink(missing_ok=True)
    installed(unread)
