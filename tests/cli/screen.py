"""A program of kgserve on a pseudo-terminal, with simulated typing and a rendered screen."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import pexpect
import pyte
from typing_extensions import override

from tests.cli.running import environment

SCREEN_TIMEOUT_SECONDS = 60.0


class _QueryAnsweringScreen(pyte.Screen):
    """A screen that answers terminal queries, such as for the cursor's position."""

    def __init__(self, width: int, height: int, child: pexpect.spawn[str]) -> None:
        super().__init__(width, height)
        self._child = child

    @override
    def write_process_input(self, data: str) -> None:
        self._child.send(data)


class Screen:
    """A command on a terminal."""

    def __init__(
        self, command: Sequence[str], width: int = 120, height: int = 30, variables: Mapping[str, str] | None = None
    ) -> None:
        own = {"COLUMNS": str(width), "LINES": str(height), "TERM": "xterm-256color"}
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "kgserve", *command],
            env=environment(own | dict(variables or {})),
            dimensions=(height, width),
            encoding="utf-8",
            use_poll=True,  # descriptors may exceed 1,023, the limit of select
        )
        self._screen = _QueryAnsweringScreen(width, height, self.child)
        self._stream = pyte.Stream(self._screen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child.isalive():
            self.child.kill(signal.SIGKILL)
            self.child.wait()  # close waits only a tenth of a second, too short on a busy machine
        self.child.close()

    @property
    def shown(self) -> str:
        """Visible text of the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def type(self, *keys: str) -> None:
        """Press keys."""
        self.child.send("".join(keys))

    def see(self, pattern: str) -> re.Match[str]:
        """Wait until a regular expression matches the screen."""
        deadline = time.monotonic() + SCREEN_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.shown, re.MULTILINE):
                return found
            self.take_in()
        raise AssertionError(f"{pattern!r} did not appear on the screen:\n{self.shown}")

    def end(self) -> int:
        """Wait until the program has exited. Return its exit code."""
        self.child.expect(pexpect.EOF, timeout=SCREEN_TIMEOUT_SECONDS)
        self.child.wait()
        assert self.child.exitstatus is not None
        return self.child.exitstatus

    def take_in(self) -> None:
        """Render pending output."""
        try:
            self._stream.feed(self.child.read_nonblocking(65536, 0.1))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF as error:
            raise AssertionError(f"it has left:\n{self.shown}") from error
