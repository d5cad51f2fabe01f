"""Programs that use the library, run as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Self

from tests.cli.running import PATIENCE, Outcome, environment

IMPORTS = "import os, signal, sys, threading\nimport kgserve, kgserve.errors\n"
OPENING = "library = kgserve.open(FOLDER, embedding_provider='hashing')\nstore = library.store('s')\n"


class Program:
    """A Python program whose ``FOLDER`` is a data folder, with ``library`` and ``store`` opened on it."""

    def __init__(self, folder: Path, text: str, *options: str, opening: str = OPENING) -> None:
        program = f"{IMPORTS}FOLDER = {str(folder)!r}\n{opening}{dedent(text)}"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", program],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment(),
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next line that it writes."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def end(self, answer: str = "") -> Outcome:
        """Wait until it has ended; ``answer`` is what it may read."""
        out, err = self._process.communicate(answer, PATIENCE)
        return Outcome(self._process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
