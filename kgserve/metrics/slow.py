"""The line about whatever took long: one per operation, with what its time went to, and nothing of its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from kgserve.metrics.instruments import Tally

log = structlog.get_logger()


class SlowLog:
    """Warns of operations that took at least ``milliseconds``; 0 turns it off."""

    def __init__(self, milliseconds: int) -> None:
        self.seconds = milliseconds / 1000 if milliseconds else float("inf")
        self.counted = Tally()

    def note(self, kind: str, seconds: float, parts: Mapping[str, float], **fields: Any) -> None:
        """Say so if it was slow."""
        if seconds < self.seconds:
            return
        self.counted.add(kind)
        shown = {name: round(each * 1000, 1) for name, each in dict(parts).items()}  # the writing thread may add one
        log.warning("slow_operation", kind=kind, ms=round(seconds * 1000, 1), parts_ms=shown, **fields)
