"""Real servers and real commands for the tests of the command line."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec

from kgserve.cli.root import run

COMMAND = (sys.executable, "-m", "kgserve")
PATIENCE = 60


class Running(msgspec.Struct, frozen=True):
    """A server process: where it listens, and the folder that it holds."""

    url: str
    data: Path
    process: subprocess.Popen[str]


class Outcome(msgspec.Struct, frozen=True):
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    def lines(self) -> list[list[str]]:
        """The fields of the tab-separated lines of standard output."""
        return [line.split("\t") for line in self.out.splitlines()]


def kgserve(*arguments: object, stdin: str = "", variables: Mapping[str, str] | None = None) -> Outcome:
    """Run a command to its end. No command may ever show a traceback."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=environment(variables),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def kgserve_here(*arguments: object) -> Outcome:
    """The same in this process, in a tenth of the time; for commands that come to their end by themselves."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*map(str, arguments)])
    return Outcome(code, out.getvalue(), err.getvalue())


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child process sees: this one's environment without settings of kgserve, and ``variables``."""
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - it is only passed on
        if not name.startswith("KGSERVE_")
    } | dict(variables or {})


@contextmanager
def serving(
    data: Path, *options: str, variables: Mapping[str, str] | None = None, program: Sequence[str] = COMMAND
) -> Generator[Running]:
    """A server on a free port; it is stopped with SIGTERM unless the test has ended it."""
    log = data.parent / f"{data.name}.log"
    command = [*program, "serve", "--data", str(data), "--port", "0", "--log-format", "json", *options]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(variables)
        ) as process,
    ):
        try:
            yield Running(_address(process, log), data, process)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listening on (https?://\S+)", line):
            return found[1]
    raise AssertionError(f"the server did not start: {log.read_text()}")
