"""Servers of benchmarks as tests start them: forked, and their commands run within the test's process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping

import pytest
from typing_extensions import override

import bench.server
from tests.cli.fork_server import ForkedProcess, fork
from tests.cli.running import kgserve


class LaunchedServer(ForkedProcess):
    """A forked server whose log is read from a pipe."""

    def __init__(self, forked: ForkedProcess, log: int) -> None:
        self.__dict__.update(vars(forked))
        self.stderr = os.fdopen(log, encoding="utf-8")

    @override
    def close(self) -> None:
        """Close the pipe of its log."""
        super().close()
        self.stderr.close()


def launch(module: str, arguments: list[str], more: Mapping[str, str]) -> LaunchedServer:
    """Fork the server that `bench.server.launch` would start."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as errors:
        environment = {**os.environ, **more}  # noqa: TID251 - only passed on
        return LaunchedServer(fork(arguments, environment, errors, module=module), reading)


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command that `bench.server.run` would run."""
    done = kgserve(*arguments)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


@pytest.fixture(autouse=True)
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork the servers that a test's benchmark starts."""
    begun: list[LaunchedServer] = []

    def forked(module: str, arguments: list[str], more: Mapping[str, str]) -> LaunchedServer:
        begun.append(launch(module, arguments, more))
        return begun[-1]

    if "COVERAGE_PROCESS_CONFIG" not in os.environ:  # noqa: TID251 - coverage measures started processes, but not forked ones
        monkeypatch.setattr(bench.server, "launch", forked)
        monkeypatch.setattr(bench.server, "run", run)
    yield
    for each in begun:
        each.close()
