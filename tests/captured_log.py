"""Capture of one test's log lines, separate from those of other tests' servers in the same process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, WrappedLogger


@contextmanager
def capture_log(**own: object) -> Generator[list[EventDict]]:
    """Collect the lines with the given fields from all threads; without fields, the lines of this thread.

    A field may be bound to the context; a set matches any of its members. Lines of every level are collected, with the
    level as ``log_level``, whatever level is configured. Other lines are dropped meanwhile.
    """
    found, thread = list[EventDict](), threading.get_ident()

    def collect(_: WrappedLogger, method: str, line: EventDict) -> EventDict:
        if _has(line, own) if own else threading.get_ident() == thread:
            found.append({**line, "log_level": "error" if method == "exception" else method})
        raise structlog.DropEvent

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, collect],
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
    )
    try:
        yield found
    finally:
        structlog.configure(**before) if before else structlog.reset_defaults()


def _has(line: EventDict, own: dict[str, object]) -> bool:
    return all(
        line.get(name) in wanted if isinstance(wanted, set) else line.get(name) == wanted
        for name, wanted in own.items()
    )
