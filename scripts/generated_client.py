"""Generate a client from /openapi-3.0.json with a third-party generator, and use it against a real server.

Validator and generator run in their own environment below build/, with the versions of generated_client.txt.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.server import BenchClient, ServerProcess

HERE = Path(__file__).resolve().parent
PINS = HERE / "generated_client.txt"
PROGRAM = HERE.parent / "tests" / "http" / "generated_conversation.py"
BUILD = HERE.parent / "build" / "generated-client"
INSTALL_SECONDS = 300
SECONDS = 60


def prepare_environment() -> Path:
    """Return the program folder of an environment with the pinned packages."""
    programs, installed = BUILD / "bin", BUILD / PINS.name
    if not installed.exists() or installed.read_bytes() != PINS.read_bytes():
        _run([sys.executable, "-m", "venv", "--clear", str(BUILD)], INSTALL_SECONDS)
        _run([str(programs / "pip"), "install", "--quiet", "--requirement", str(PINS)], INSTALL_SECONDS)
        installed.write_bytes(PINS.read_bytes())
    return programs


def _run(command: list[str], seconds: float, folder: Path | None = None, programs: Path | None = None) -> None:
    # the generator formats its output with a program of its own environment
    environment = None if programs is None else {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(command, check=True, timeout=seconds, cwd=folder, env=environment)  # noqa: S603 - pinned programs


def main() -> None:
    """Run the check. A failure raises the error of the failing program."""
    programs = prepare_environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ServerProcess(folder / "data", {"embedding_provider": "hashing"}) as server:
            description = folder / "openapi.json"
            description.write_bytes(BenchClient(server.port).send("GET", "/openapi-3.0.json").body)
            _run([str(programs / "openapi-spec-validator"), str(description)], SECONDS)
            generate = [str(programs / "openapi-python-client"), "generate", "--path", str(description)]
            _run([*generate, "--meta", "none", "--output-path", "generated"], SECONDS, folder, programs)
            url = f"http://127.0.0.1:{server.port}"
            _run([str(programs / "python"), str(PROGRAM), str(folder), url], SECONDS, folder, programs)


if __name__ == "__main__":
    main()
