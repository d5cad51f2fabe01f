"""Turns of conversations: nodes that a relation connects to the next turn."""

from __future__ import annotations

NEXT_TURN_RELATION = "next"
"""Relation from a turn of a conversation to the next one. Its ends are ranked as turns by searches."""
