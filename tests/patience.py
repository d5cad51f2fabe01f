"""What is waited for shortly, since somebody waits, may take longer beside other tests: they have more patience."""

from __future__ import annotations

from kgserve.ops import recall, render

SECONDS = 10.0


def be_patient() -> None:
    """Let recalls wait until indexes have seen what was stored just now, and readers of the past for its history."""
    recall.FRESH_SECONDS = render.FRESH_SECONDS = SECONDS
