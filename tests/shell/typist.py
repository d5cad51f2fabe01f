"""A person at a terminal: what is typed goes to a shell on a pseudo-terminal, what it draws is kept as a screen."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pexpect
import pyte

from tests.cli.running import environment

ENTER, TAB, UP = "\r", "\t", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"
PATIENCE = 20.0

ENDLESS = (
    "MATCH (a:Entity), (b:Entity), (c:Entity), (d:Entity) WHERE a.id < b.id AND b.id < c.id AND c.id > d.id"
    " RETURN max(a.id + d.id)"
)
"""A cross product that outlasts every time limit, on the store ``crowd``."""


class _Answering(pyte.Screen):
    """A screen that answers the questions that programs ask a terminal, such as where its cursor is."""

    def __init__(self, width: int, height: int, child: pexpect.spawn[str]) -> None:
        super().__init__(width, height)
        self._child = child

    def write_process_input(self, data: str) -> None:
        self._child.send(data)


class Terminal:
    """A shell on a terminal of 100 by 40 characters. ``home`` is the folder of the user's files."""

    def __init__(self, home: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        own = {
            "COLUMNS": "100",
            "LINES": "40",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "TERM": "xterm-256color",
        }
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "kgserve", "shell", *arguments],
            env=environment(own | dict(variables or {})),
            dimensions=(40, 100),
            encoding="utf-8",
        )
        self._screen = _Answering(100, 40, self.child)
        self._stream = pyte.Stream(self._screen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.close(force=True)

    @property
    def shown(self) -> str:
        """What stands on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def type(self, *keys: str) -> None:
        """Press keys."""
        self.child.send("".join(keys))

    def see(self, pattern: str) -> re.Match[str]:
        """Wait until a regular expression is found on the screen."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.shown, re.MULTILINE):
                return found
            self._take_in()
        raise AssertionError(f"{pattern!r} did not appear on the screen:\n{self.shown}")

    def wipe(self) -> None:
        """Begin with an empty screen and a prompt."""
        self.type(CTRL_C, "\x0c")
        deadline = time.monotonic() + PATIENCE
        while self.shown.count("\n") or not self.shown.endswith(">"):
            assert time.monotonic() < deadline, self.shown
            self._take_in()

    def end(self) -> int:
        """Wait until the shell has left; its exit code."""
        self.child.expect(pexpect.EOF, timeout=PATIENCE)
        self.child.wait()
        assert self.child.exitstatus is not None
        return self.child.exitstatus

    def _take_in(self) -> None:
        try:
            self._stream.feed(self.child.read_nonblocking(65536, 0.1))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF as error:
            raise AssertionError(f"the shell has left:\n{self.shown}") from error
