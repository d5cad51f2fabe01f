"""The servers of benches as tests begin them: forked, and their commands run within the test's process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping

import pytest
from typing_extensions import override

import bench.server
from tests.cli.nursery import Forked, fork
from tests.cli.running import kgserve


class Launched(Forked):
    """A forked server whose log is read from a pipe."""

    def __init__(self, forked: Forked, log: int) -> None:
        self.__dict__.update(vars(forked))
        self.stderr = os.fdopen(log, encoding="utf-8")

    @override
    def close(self) -> None:
        """Let go of what it wrote to."""
        super().close()
        self.stderr.close()


def launch(module: str, arguments: list[str], more: Mapping[str, str]) -> Launched:
    """What `bench.server.launch` begins."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as errors:
        environment = {**os.environ, **more}  # noqa: TID251 - it is only passed on
        return Launched(fork(arguments, environment, errors, module=module), reading)


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """What `bench.server.run` runs."""
    done = kgserve(*arguments)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


@pytest.fixture(autouse=True)
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that uses a bench's server forks it."""
    begun: list[Launched] = []

    def forked(module: str, arguments: list[str], more: Mapping[str, str]) -> Launched:
        begun.append(launch(module, arguments, more))
        return begun[-1]

    if "COVERAGE_PROCESS_CONFIG" not in os.environ:  # noqa: TID251 - coverage sees what was begun, not what was forked
        monkeypatch.setattr(bench.server, "launch", forked)
        monkeypatch.setattr(bench.server, "run", run)
    yield
    for each in begun:
        each.close()
