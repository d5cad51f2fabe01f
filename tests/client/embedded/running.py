"""Programs that use the library, run as separate processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from tests.cli.running import PythonProcess

IMPORTS = "import os, signal, sys, threading\nimport kgserve, kgserve.errors\n"
OPENING = "library = kgserve.open(FOLDER, embedding_provider='hashing')\nstore = library.store('s')\n"


class Program(PythonProcess):
    """A Python program whose ``FOLDER`` is a data folder, with ``library`` and ``store`` opened on it."""

    def __init__(self, folder: Path, text: str, opening: str = OPENING, python: Sequence[str] = ()) -> None:
        super().__init__(f"{IMPORTS}FOLDER = {str(folder)!r}\n{opening}{dedent(text)}", python=python)

    def line(self) -> str:
        """Return the next line of its output."""
        return self.stdout.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)
