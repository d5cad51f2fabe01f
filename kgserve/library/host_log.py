"""Log lines of a program that is not ours: they go where Python's own logging takes them."""

from __future__ import annotations

import logging

import structlog


def defer_to_host() -> None:
    """Hand log lines to `logging`, under their modules' names, unless the program has configured structlog itself.

    As structlog comes it would write all of them to standard output. `logging` shows warnings on standard error, and
    nothing below them, until the program says otherwise. What was slow interests those who look after a server: of that
    it shows nothing either.
    """
    if structlog.is_configured():
        return
    _show_only_when_asked("kgserve.metrics.slow")
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _show_only_when_asked(name: str) -> None:
    """`logging` prints a warning that finds no handler, so it finds one that does nothing."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
