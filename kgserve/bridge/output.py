"""Standard output, which carries the protocol and nothing else, and standard error, which carries the rest."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


class Output:
    """Writes whole lines, whichever thread they come from. ``on_end`` is called when nobody reads any more."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_end = on_end
        self._lock = threading.Lock()

    def write(self, message: bytes) -> None:
        """Write one message; line breaks between its tokens become spaces."""
        rest = memoryview(message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self._on_end()


def say(sentence: str) -> None:
    """Tell the person who looks into the editor's log."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"kgserve mcp: {sentence}\n")
        sys.stderr.flush()
