"""Where rows, notes and errors go: drawn on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kgserve.errors import KgserveError
from kgserve.model.answers import CypherAnswer
from kgserve.shell.caret import place, pointed, sentences
from kgserve.shell.formats import WRITERS, Mode
from kgserve.shell.script import Piece
from kgserve.shell.tables import draw, printable


class Screen:
    """Standard output and standard error. ``terminal`` says whether somebody is looking at the former."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self._first = True

    def show(self, answer: CypherAnswer, mode: Mode) -> None:
        """Write the rows."""
        if mode == "table" and self.terminal:
            self._draw(answer)
        else:
            self._write(answer, mode)
        sys.stdout.flush()  # a program may read along

    def tell(self, message: str) -> None:
        """Write what somebody asked to be told."""
        sys.stdout.write(f"{message}\n")

    def note(self, message: str) -> None:
        """Say something beside the rows, to a person only."""
        if self.terminal:
            self._coloured(sys.stdout, "dim", message)

    def warn(self, message: str) -> None:
        """Say what a program's author must know too, beside the rows."""
        sys.stdout.flush()
        self._coloured(sys.stderr, "yellow", message)

    def fail(self, error: KgserveError, piece: Piece | None = None, source: str | None = None) -> None:
        """Say what went wrong, and where: in which line of ``source``, and under the place in the statement."""
        sys.stdout.flush()
        first, *rest = (printable(line) for sentence in sentences(error) for line in sentence.split("\n"))
        where = f"{source}:{piece.line}: " if source and piece else ""
        self._coloured(sys.stderr, "bold red", f"{where}{first}")
        for line in rest:
            self._coloured(sys.stderr, "red", f"  {line}")
        found = place(error)
        if found and piece:
            for line in pointed(piece.text, *found):
                sys.stderr.write(f"{printable(line)}\n")

    def _draw(self, answer: CypherAnswer) -> None:
        draw(answer, Console(highlight=False))

    def _write(self, answer: CypherAnswer, mode: Mode) -> None:
        if mode == "table" and not answer.columns:
            return
        if mode == "table" and not self._first:
            sys.stdout.write("\n")  # what ends one table in a pipe
        self._first = False
        for text in WRITERS[mode](answer):
            sys.stdout.write(text)

    def _coloured(self, stream: TextIO, style: str, message: str) -> None:
        console = Console(file=stream, highlight=False, soft_wrap=True)
        console.print(Text(message, style=style))
