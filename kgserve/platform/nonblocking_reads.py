"""Reads on the event loop: they end with `WouldBlock` instead of waiting, and are repeated in a thread."""

from __future__ import annotations


class WouldBlock(Exception):
    """A non-blocking read would have to wait, or would take too long; repeat it where blocking is allowed."""
