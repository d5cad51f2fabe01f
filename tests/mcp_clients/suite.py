"""The protocol's conformance suite as background processes, which mostly wait."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tests.cli.running import SERVER_TIMEOUT_SECONDS, environment
from tests.mcp_clients.packages import NEWEST, node

VERSIONS = ("2025-11-25", "2026-07-28")
PROGRAM = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SAID = "said"


class Run(msgspec.Struct, frozen=True):
    """The suite for one protocol version, and the folder of its reports."""

    process: subprocess.Popen[bytes]
    folder: Path

    def reports(self) -> list[Path]:
        """Wait for all reports, and return one per scenario."""
        self.process.wait(3 * SERVER_TIMEOUT_SECONDS)
        found = [*self.folder.glob("*/checks.json")]
        assert found, (self.folder / SAID).read_text()
        return found


@contextmanager
def running(packages: Path, url: str, folder: Path) -> Generator[Mapping[str, Run]]:
    """Run the suite against a server in all versions concurrently; kill what still runs at the end of the block."""
    with ExitStack() as stack:
        yield {version: stack.enter_context(_run(packages, url, version, folder / version)) for version in VERSIONS}


@contextmanager
def _run(packages: Path, url: str, version: str, folder: Path) -> Generator[Run]:
    command = [node(packages, NEWEST), str(packages / PROGRAM), "server", "--url", f"{url}/mcp"]
    command += ["--suite", "all", "--spec-version", version, "--output-dir", str(folder)]
    folder.mkdir()
    with (
        (folder / SAID).open("wb") as said,
        subprocess.Popen(
            command, cwd=folder, env=environment({"HOME": str(folder)}), stdout=said, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield Run(process, folder)
        finally:
            process.kill()
