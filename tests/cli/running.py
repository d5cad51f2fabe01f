"""Real servers and real commands for the tests of the command line."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import structlog

from kgserve.cli.root import run
from kgserve.client.embedded import defer_to_host
from kgserve.platform import log
from tests.cli.nursery import Forked, fork

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COMMAND = (sys.executable, "-m", "kgserve")
PATIENCE = 60


class Running(msgspec.Struct, frozen=True):
    """A server process: where it listens, and the folder that it holds."""

    url: str
    data: Path
    process: subprocess.Popen[str] | Forked


class Outcome(msgspec.Struct, frozen=True):
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    def lines(self) -> list[list[str]]:
        """The fields of the tab-separated lines of standard output."""
        return [line.split("\t") for line in self.out.splitlines()]


def kgserve(*arguments: object, stdin: str = "", variables: Mapping[str, str] | None = None) -> Outcome:
    """Run a command to its end in this process, in a tenth of the time that one of its own takes.

    It sees the environment that a process of its own would see, and what it chooses for the log is undone. Lines that
    other tests' servers log meanwhile are no output of it.
    """
    others = {*threading.enumerate()} - {threading.current_thread()}
    out, err = _captured(others=others), _captured(others=others)
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        _standard_input(_captured(stdin)),
        _variables(environment(variables)),
        log_as_before(),
    ):
        code = run([*map(str, arguments)])
    assert "a defect in kgserve" not in _text(err), _text(err)
    return Outcome(code, _text(out), _text(err))


def kgserve_process(*arguments: object, stdin: str = "", variables: Mapping[str, str] | None = None) -> Outcome:
    """The same as a process: for what serves, what a signal ends, and libraries that read the environment once.

    No command may ever show a traceback.
    """
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


@contextmanager
def log_as_before() -> Generator[None]:
    """A command finds the log as a library leaves it, whatever was chosen before; what it chooses is undone."""
    root, chosen = logging.getLogger(), structlog.get_config() if structlog.is_configured() else None
    handlers, level, short = _streams(root), root.level, log._short
    structlog.reset_defaults()
    defer_to_host()
    try:
        yield
    finally:
        structlog.configure(**chosen) if chosen else structlog.reset_defaults()
        for handler in _streams(root):
            root.removeHandler(handler)
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(level)
        log._short = short


def _streams(root: logging.Logger) -> list[logging.Handler]:
    """Handlers of the program's own; pytest adds and removes others."""
    return [handler for handler in root.handlers if type(handler) is logging.StreamHandler]


class _OwnOutput(io.BytesIO):
    """Output without what threads write that were there before."""

    def __init__(self, text: bytes, others: set[threading.Thread]) -> None:
        super().__init__(text)
        self._others = others

    def write(self, data: ReadableBuffer, /) -> int:
        return memoryview(data).nbytes if threading.current_thread() in self._others else super().write(data)


def _captured(text: str = "", others: set[threading.Thread] | None = None) -> io.TextIOWrapper:
    return io.TextIOWrapper(_OwnOutput(text.encode(), others or set()), encoding="utf-8", write_through=True)


def _text(captured: io.TextIOWrapper) -> str:
    assert isinstance(captured.buffer, io.BytesIO)
    return captured.buffer.getvalue().decode()


@contextmanager
def _standard_input(stream: io.TextIOWrapper) -> Generator[None]:
    before, sys.stdin = sys.stdin, stream
    try:
        yield
    finally:
        sys.stdin = before


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Generator[None]:
    """Change what differs in this process's environment, and back at the end of the block."""
    seen = os.environ  # noqa: TID251 - it is only passed on
    before = dict(seen)
    for name in before.keys() - wanted.keys():
        del seen[name]
    seen.update({name: value for name, value in wanted.items() if before.get(name) != value})
    try:
        yield
    finally:
        for name in set(seen) - before.keys():
            del seen[name]
        seen.update({name: value for name, value in before.items() if seen.get(name) != value})


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child process sees: this one's environment without settings of kgserve, and ``variables``."""
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - it is only passed on
        if not name.startswith("KGSERVE_")
    } | dict(variables or {})


@contextmanager
def serving(
    data: Path, *options: str, variables: Mapping[str, str] | None = None, program: Sequence[str] = ()
) -> Generator[Running]:
    """A server on a free port; it is stopped with SIGTERM unless the test has ended it.

    It is forked from a process that has imported what it is made of, or begun by a ``program`` such as `COMMAND`.
    """
    said = data.parent / f"{data.name}.log"
    arguments = ["serve", "--data", str(data), "--port", "0", "--log-format", "json", *options]
    with said.open("w") as errors, closing(begun(program, arguments, environment(variables), errors)) as process:
        try:
            yield Running(_address(process, said), data, process)
        finally:
            process.terminate()
            process.wait(PATIENCE)


class Begun(subprocess.Popen[str]):
    """A process as `Forked` shows it."""

    def close(self) -> None:
        """Wait for its end, and let go of what it wrote to."""
        self.__exit__(None, None, None)


def begun(
    program: Sequence[str],
    arguments: Sequence[str],
    variables: Mapping[str, str],
    errors: IO[Any],
    output: IO[Any] | None = None,
    folder: Path | None = None,
) -> Begun | Forked:
    """A command as a process of its own: forked, unless a ``program`` is named that begins it, in a ``folder``."""
    if not program and "COVERAGE_PROCESS_CONFIG" not in variables:  # coverage sees what was begun, not what was forked
        return fork(arguments, variables, errors, output)
    command = [*(program or COMMAND), *arguments]
    return Begun(command, stdout=output or subprocess.PIPE, stderr=errors, text=True, env=variables, cwd=folder)


def _address(process: subprocess.Popen[str] | Forked, said: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r'"url": "(https?://[^"]+)"', line):
            return found[1]
    raise AssertionError(f"the server did not start: {said.read_text()}")
