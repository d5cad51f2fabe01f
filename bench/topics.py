"""Sentences on many topics, twelve each, and the names of their topics."""

from __future__ import annotations

from pathlib import Path


def topics() -> dict[str, list[str]]:
    """The sentences of each topic."""
    found: dict[str, list[str]] = {}
    for block in Path(__file__).with_name("topics.txt").read_text(encoding="utf-8").split("# ")[1:]:
        name, *sentences = block.splitlines()
        found[name] = sentences
    return found
