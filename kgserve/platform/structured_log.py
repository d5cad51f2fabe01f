"""Logging: one event per line on standard error, as JSON or for a terminal.

Modules write ``log = structlog.get_logger()`` and ``log.info("store_opened", store=name)``. Values bound with
``structlog.contextvars``, such as the request id, appear in every line of that request, including worker threads. Lines
of the standard library's ``logging`` are formatted the same way.

Access log lines take a faster path: `log_request` fills a pre-rendered template, and lines are written in batches after
at most 20 ms. They keep their order relative to other lines, and are flushed at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import Processor

_log = structlog.get_logger()

LOG_FLUSH_DELAY_SECONDS = 0.02

_SECRET_PATTERN = re.compile(r"(kgs_[a-z0-9]{8})_[A-Za-z0-9_-]+")

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logging(format_: LogFormat, level: LogLevel) -> None:
    """Send log lines of at least ``level`` to standard error, replacing an earlier configuration."""
    global _short  # noqa: PLW0603 - global to the process, like structlog's configuration
    flush_buffered_log_lines()
    output = _BufferedStream(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    shared, last = _shared(), _last(format_)
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", output)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(cast("TextIO", output))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(format_)],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    _short = _AccessLogTemplate.to(output, last[-1], format_, shown=number <= logging.INFO)


class RequestCallerIdentity(NamedTuple):
    """Caller of a request: the name of its key or a substitute, and the client's address."""

    caller: str
    address: str


def log_request(
    request_id: str, who: RequestCallerIdentity, method: str, path: str, status: int | None, ms: float, sent: int
) -> None:
    """Log a finished request; ``sent`` is the size of the response in bytes.

    The line equals structlog's output, and is written by structlog if that was configured elsewhere.
    """
    template = _short
    if template is None or status is None or structlog.get_config()["processors"][-1] is not template.last:
        of = {"caller": who.caller, "address": who.address}
        _log.info("request", method=method, path=path, **of, status=status, ms=ms, bytes=sent)
    elif template.shown:
        now = datetime.now(UTC).isoformat()[:-6]
        named = map(template.quoted, (path, who.caller, who.address))
        template.output.add(template.line(now, request_id, method, *named, status, ms, sent))


def format_json_log_line(event: str, **fields: object) -> str:
    """Return a log line as JSON at level info, regardless of the configured level."""
    line: Any = {**fields, "event": event}
    for processor in (*_shared(), *_last("json")):
        line = processor(None, "info", line)
    return str(line)


def mask_api_keys(text: str) -> str:
    """Return the text with API keys reduced to their prefixes."""
    return _SECRET_PATTERN.sub(r"\1_…", text) if "kgs_" in text else text


def flush_buffered_log_lines() -> None:
    """Write all buffered lines."""
    if _short is not None:
        _short.output.catch_up()


class _BufferedStream:
    """Stream whose lines are written at once or in batches.

    Lines are lost if the stream is closed, its reader has ended or its disk is full: no request may fail for that.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._waiting: list[str] = []

    def flush(self) -> None:
        """Do nothing: `write` flushes."""

    def write(self, text: str) -> None:
        """Write text after all buffered lines."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            with suppress(OSError, ValueError):
                self._stream.write("".join(waiting) + text)
                self._stream.flush()

    def add(self, line: str) -> None:
        """Buffer a line, to be written shortly. For the thread of an event loop."""
        with self._lock:
            self._waiting.append(line)
            alone = len(self._waiting) == 1
        if alone:
            asyncio.get_running_loop().call_later(LOG_FLUSH_DELAY_SECONDS, self.catch_up)

    def catch_up(self) -> None:
        """Write buffered lines."""
        self.write("")


class _AccessLogTemplate(NamedTuple):
    """Template for access log lines; ``last`` is the processor that would render them."""

    output: _BufferedStream
    last: Processor
    shown: bool
    line: Callable[..., str]
    quoted: Callable[[str], str]

    @classmethod
    def to(cls, output: _BufferedStream, last: Processor, format_: LogFormat, *, shown: bool) -> _AccessLogTemplate:
        marks = {"method": "@2", "path": "@3", "caller": "@4", "address": "@5", "status": "@6", "ms": "@7"}
        marks |= {"bytes": "@8", "event": "request", "request_id": "@1", "level": "info", "timestamp": "@0Z"}
        text = str(last(None, "info", marks)).replace("{", "{{").replace("}", "}}")
        for place in range(3, 9):
            text = text.replace(f'"@{place}"', f"@{place}")  # numbers, and texts that are already quoted
        for place in range(9):
            text = text.replace(f"@{place}", f"{{{place}}}")
        quoted = encode_basestring_ascii if format_ == "json" else _for_terminal
        return cls(output, last, shown, f"{text}\n".format, quoted)


_short: _AccessLogTemplate | None = None
atexit.register(flush_buffered_log_lines)

_NEEDS_QUOTES_PATTERN = re.compile("[ \t=\r\n\"']")


def _for_terminal(text: str) -> str:
    """Quote a field as structlog's ConsoleRenderer does."""
    return repr(text) if _NEEDS_QUOTES_PATTERN.search(text) else text


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _last(format_: LogFormat) -> list[Processor]:
    if format_ == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    # The default prints local variables of every frame, which is slow and exposes callers' data.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
