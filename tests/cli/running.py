"""Real servers and commands for tests of the command line."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec
import structlog
from typing_extensions import override

from kgserve.cli.root import run_command_line
from kgserve.client.embedded import route_logs_to_stdlib_logging
from kgserve.platform import structured_log
from tests.cli.fork_server import ForkedProcess, fork

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COMMAND = (sys.executable, "-m", "kgserve")
SERVER_TIMEOUT_SECONDS = 60


class ServerProcessHandle(msgspec.Struct, frozen=True):
    """A server process: its address and its data folder."""

    url: str
    data: Path
    process: subprocess.Popen[str] | ForkedProcess


class CommandResult(msgspec.Struct, frozen=True):
    """Result of a command: its exit code and output."""

    code: int
    out: str
    err: str

    def lines(self) -> list[list[str]]:
        """Return the fields of the tab-separated lines of standard output."""
        return [line.split("\t") for line in self.out.splitlines()]


def kgserve(*arguments: object, stdin: str = "", variables: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command to its end in this process, which takes a tenth of the time of a separate process.

    It has the environment of a separate process, and its log configuration is undone. Concurrent log lines of other
    tests' servers are not part of its output.
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
        code = run_command_line([*map(str, arguments)])
    assert "internal error in kgserve" not in _text(err), _text(err)
    return CommandResult(code, _text(out), _text(err))


def kgserve_process(*arguments: object, stdin: str = "", variables: Mapping[str, str] | None = None) -> CommandResult:
    """Run the command as a process: for libraries that read the environment once, and for real streams.

    Asserts that the command shows no traceback.
    """
    done = run_process([*map(str, arguments)], stdin, variables)
    assert "Traceback" not in done.err, done.err
    return done


def run_process(
    arguments: Sequence[str],
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    *,
    program: str | None = None,
) -> CommandResult:
    """Run a command, or a Python ``program`` that uses kgserve, as a forked process to its end."""
    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as err,
        _given(stdin) as given,
        closing(start_command((), arguments, environment(variables), err, out, text=program, given=given)) as process,
    ):
        try:
            code = process.wait(SERVER_TIMEOUT_SECONDS)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return CommandResult(code, out.read(), err.read())


class PythonProcess:
    """A Python ``program`` as a process with pipes for its streams. A context manager that kills it at the end.

    Forked from a process that has imported kgserve, unless ``python`` gives the command of an interpreter.
    """

    def __init__(self, program: str, *arguments: str, python: Sequence[str] = ()) -> None:
        self._errors = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        reading, writing = os.pipe()
        self.stdin = os.fdopen(writing, "w", encoding="utf-8")
        given = ["-c", program, *arguments] if python else arguments
        text = None if python else program
        with os.fdopen(reading) as stream:
            process = start_command(python, given, environment(), self._errors, text=text, given=stream)
        assert process.stdout is not None
        self.process, self.stdout, self.pid = process, process.stdout, process.pid

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.process.kill()
        self.process.wait(SERVER_TIMEOUT_SECONDS)

    def end(self, answer: str = "") -> CommandResult:
        """Wait for the end of the process; ``answer`` is written to its standard input."""
        self.stdin.write(answer)
        self.stdin.close()
        out = self.stdout.read()
        code = self.process.wait(SERVER_TIMEOUT_SECONDS)
        self._errors.seek(0)
        return CommandResult(code, out, self._errors.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.close()
        self._errors.close()
        with suppress(BrokenPipeError):
            self.stdin.close()


@contextmanager
def _given(text: str) -> Generator[IO[str]]:
    """Yield a pipe from which a short text can be read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as given:
        given.write(text)
    with os.fdopen(reading, encoding="utf-8") as stream:
        yield stream


@contextmanager
def log_as_before() -> Generator[None]:
    """Reset the log's configuration to a library's default for a block, and restore it afterwards."""
    root, chosen = logging.getLogger(), structlog.get_config() if structlog.is_configured() else None
    handlers, level, short = _streams(root), root.level, structured_log._short
    structlog.reset_defaults()
    route_logs_to_stdlib_logging()
    try:
        yield
    finally:
        structlog.configure(**chosen) if chosen else structlog.reset_defaults()
        for handler in _streams(root):
            root.removeHandler(handler)
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(level)
        structured_log._short = short


def _streams(root: logging.Logger) -> list[logging.Handler]:
    """Return the program's own handlers; pytest adds and removes others."""
    return [handler for handler in root.handlers if type(handler) is logging.StreamHandler]


class _OwnOutput(io.BytesIO):
    """Output that excludes writes of threads that existed before."""

    def __init__(self, text: bytes, others: set[threading.Thread]) -> None:
        super().__init__(text)
        self._others = others

    @override
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
    """Change this process's environment for the duration of a block."""
    seen = os.environ  # noqa: TID251 - only passed on
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
    """Return the environment of a child process: this one's without settings of kgserve, and ``variables``.

    A server under load starts no reader processes unless a test asks for them.
    """
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - only passed on
        if not name.startswith("KGSERVE_")
    } | {"KGSERVE_READERS": "0", **(variables or {})}


@contextmanager
def serving(
    data: Path, *options: str, variables: Mapping[str, str] | None = None, program: Sequence[str] = ()
) -> Generator[ServerProcessHandle]:
    """Yield a server on a free port, stopped with SIGTERM unless the test has ended it.

    Forked from a process that has imported kgserve, or started by a ``program`` such as `COMMAND`.
    """
    said = data.parent / f"{data.name}.log"
    arguments = ["serve", "--data", str(data), "--port", "0", "--log-format", "json", *options]
    with (
        said.open("w") as errors,
        closing(start_command(program, arguments, environment(variables), errors)) as process,
    ):
        try:
            yield ServerProcessHandle(_address(process, said), data, process)
        finally:
            process.terminate()
            process.wait(SERVER_TIMEOUT_SECONDS)


class StartedProcess(subprocess.Popen[str]):
    """A process with the interface of `ForkedProcess`."""

    def close(self) -> None:
        """Wait for the end of the process, and close the pipe of its output."""
        self.__exit__(None, None, None)


def start_command(
    program: Sequence[str],
    arguments: Sequence[str],
    variables: Mapping[str, str],
    errors: IO[Any],
    output: IO[Any] | None = None,
    folder: Path | None = None,
    *,
    text: str | None = None,
    given: IO[Any] | None = None,
) -> StartedProcess | ForkedProcess:
    """Start a command as a process: forked, or by a ``program``, in a ``folder``.

    ``text`` is a Python program to run instead of the command, ``given`` its standard input.
    """
    if not program and "COVERAGE_PROCESS_CONFIG" not in variables:  # forks are not measured
        return fork(arguments, variables, errors, output, program=text, given=given)
    command = [*(program or COMMAND), *arguments] if text is None else [sys.executable, "-c", text, *arguments]
    streams: dict[str, Any] = {"stdin": given, "stdout": output or subprocess.PIPE, "stderr": errors}
    return StartedProcess(command, text=True, env=variables, cwd=folder, **streams)


def _address(process: subprocess.Popen[str] | ForkedProcess, said: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r'"url": "(https?://[^"]+)"', line):
            return found[1]
    raise AssertionError(f"the server did not start: {said.read_text()}")
