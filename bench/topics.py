"""Sentences on many topics, twelve each, and the names of their topics."""

from __future__ import annotations

from pathlib import Path

TOPICS = Path(__file__).with_name("topics.txt")


def topics(path: Path = TOPICS) -> dict[str, list[str]]:
    """The sentences of each topic."""
    found: dict[str, list[str]] = {}
    for block in path.read_text(encoding="utf-8").split("# ")[1:]:
        name, *sentences = block.splitlines()
        found[name] = sentences
    return found
