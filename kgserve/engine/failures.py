"""The engine's errors, told apart by their text, for it raises RuntimeError for everything."""

from __future__ import annotations

from kgserve.errors import EngineFailed, InvalidInput, KgserveError, StorageFull, TimedOut, Unavailable

# First match wins. Texts of kuzu 0.11.3.
_TABLE: tuple[tuple[str, type[KgserveError], str], ...] = (
    ("Interrupted.", TimedOut, "the query ran into its time limit and was stopped"),
    ("No space left on device", StorageFull, "no room on the disk; free some space and try again"),
    ("Buffer manager exception", Unavailable, "the query needs more memory than the store's page cache has"),
    ("Parser exception", InvalidInput, "the query cannot be parsed"),
    ("Binder exception", InvalidInput, "the query does not fit the schema"),
)


def translate(error: RuntimeError) -> KgserveError:
    """The error of ours that an engine error stands for; EngineFailed for what has no entry."""
    text = str(error)
    for part, kind, message in _TABLE:
        if part in text:
            return kind(message)
    return EngineFailed(f"the engine failed: {text}")
