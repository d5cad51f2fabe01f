"""A simulated user at a terminal with a shell."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tests.cli.screen import SCREEN_TIMEOUT_SECONDS, Screen

ENTER, TAB, UP = "\r", "\t", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"

ENDLESS = (
    "MATCH (a:Entity), (b:Entity), (c:Entity), (d:Entity) WHERE a.id < b.id AND b.id < c.id AND c.id > d.id"
    " RETURN max(a.id + d.id)"
)
"""A cross product that exceeds every time limit on the store ``crowd``."""


class Terminal(Screen):
    """A shell on a terminal of 100 by 40 characters. ``home`` is the user's home folder."""

    def __init__(self, home: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        own = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        super().__init__(["shell", *arguments], 100, 40, own | dict(variables or {}))

    def wipe(self) -> None:
        """Clear the screen and show a new prompt."""
        self.type(CTRL_C, "\x0c")
        deadline = time.monotonic() + SCREEN_TIMEOUT_SECONDS
        while self.shown.count("\n") or not self.shown.endswith(">"):
            assert time.monotonic() < deadline, self.shown
            self.take_in()
