"""Log lines: one event per line on standard error, as JSON or for a terminal.

Modules write ``log = structlog.get_logger()`` and ``log.info("store_opened", store=name)``. What is bound with
``structlog.contextvars``, the request id above all, appears in every line of that request, worker threads included.
Lines of the standard library's ``logging`` (the HTTP server's) take the same way out.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure(format_: LogFormat, level: LogLevel) -> None:
    """Send lines of at least ``level`` to standard error; calling it again replaces what was set before."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared = _shared()
    structlog.configure(
        processors=[*shared, *_last(format_)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(format_)],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _last(format_: LogFormat) -> list[Processor]:
    if format_ == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    # The default would print the local variables of every frame: slow, and full of callers' data.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
