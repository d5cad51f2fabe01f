"""Lines on their way from a file or a pipe into an import."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import BinaryIO

BLOCK = 256 << 10
"""Bytes sent at a time."""

SILENCE_SECONDS = 5.0
SIGN_OF_LIFE = b" " * 1024
"""Blanks before a line belong to it and change nothing. A body that brings nothing for too long is given up on."""


def lines_of(file: BinaryIO, silence: float = SILENCE_SECONDS) -> Iterator[bytes]:
    """What is in the file, block by block; from a pipe what is there, and blanks while it is silent between lines."""
    read = getattr(file, "read1", file.read)  # waiting for a whole block would stall what comes behind the pipe
    between_lines = True
    while True:
        while between_lines and not _speaks(file, silence):
            yield SIGN_OF_LIFE
        block = read(BLOCK)
        if not block:
            return
        between_lines = block.endswith(b"\n")
        yield block


def _speaks(file: BinaryIO, seconds: float) -> bool:
    """Whether a read would return within a time: it has something, or ends."""
    try:
        return bool(select.select([file], [], [], seconds)[0])
    except (OSError, ValueError):  # no file of the system's: it is all there
        return True
