"""Log lines: one event per line on standard error, as JSON or for a terminal.

Modules write ``log = structlog.get_logger()`` and ``log.info("store_opened", store=name)``. What is bound with
``structlog.contextvars``, the request id above all, appears in every line of that request, worker threads included.
Lines of the standard library's ``logging`` (the HTTP server's) take the same way out.

The line of each request has a shorter way to the same place: `request` fills in a template that was rendered once, and
such lines wait for others, up to 20 ms, because a call of the system for each costs more than the line. They never wait
behind a line that came later, nor at the end of the process, unless it is killed.
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


def configure(format_: LogFormat, level: LogLevel) -> None:
    """Send lines of at least ``level`` to standard error; calling it again replaces what was set before."""
    global _short  # noqa: PLW0603 - as structlog's own configuration, it is the process's
    flush()
    output = _Output(sys.stderr)
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
    _short = _ShortWay.to(output, last[-1], format_, shown=number <= logging.INFO)


class Who(NamedTuple):
    """Whose request it was: the name of the key, or what stands for one, and the client's address."""

    caller: str
    address: str


def request(request_id: str, who: Who, method: str, path: str, status: int | None, ms: float, sent: int) -> None:
    """The line of a request that is over; ``sent`` are bytes of the answer.

    It is written as structlog would, and by structlog when that was configured elsewhere.
    """
    way = _short
    if way is None or status is None or structlog.get_config()["processors"][-1] is not way.last:
        of = {"caller": who.caller, "address": who.address}
        _log.info("request", method=method, path=path, **of, status=status, ms=ms, bytes=sent)
    elif way.shown:
        now = datetime.now(UTC).isoformat()[:-6]
        named = map(way.quoted, (path, who.caller, who.address))
        way.output.add(way.line(now, request_id, method, *named, status, ms, sent))


def json_line(event: str, **fields: object) -> str:
    """A line as the log has it in JSON, at the level info: for whom it concerns whatever level is shown."""
    line: Any = {**fields, "event": event}
    for processor in (*_shared(), *_last("json")):
        line = processor(None, "info", line)
    return str(line)


def masked(text: str) -> str:
    """A text in which of every key only the prefix is left, fit for a log."""
    return _SECRET_PATTERN.sub(r"\1_…", text) if "kgs_" in text else text


def flush() -> None:
    """Write what waits to be written."""
    if _short is not None:
        _short.output.catch_up()


class _Output:
    """A stream to which lines may be written at once, or soon."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self.flush = stream.flush

    def write(self, text: str) -> None:
        """Write behind what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._stream.write("".join(waiting) + text)
            self._stream.flush()

    def add(self, line: str) -> None:
        """Write this line, and others that come meanwhile, a little later. For the thread of an event loop."""
        with self._lock:
            self._waiting.append(line)
            alone = len(self._waiting) == 1
        if alone:
            asyncio.get_running_loop().call_later(LOG_FLUSH_DELAY_SECONDS, self.catch_up)

    def catch_up(self) -> None:
        """Write what waits, if the stream still takes it: nobody is there to be told otherwise."""
        with suppress(OSError, ValueError):
            self.write("")


class _ShortWay(NamedTuple):
    """How the line of a request is written: ``last`` is the processor that would render it."""

    output: _Output
    last: Processor
    shown: bool
    line: Callable[..., str]
    quoted: Callable[[str], str]

    @classmethod
    def to(cls, output: _Output, last: Processor, format_: LogFormat, *, shown: bool) -> _ShortWay:
        marks = {"method": "@2", "path": "@3", "caller": "@4", "address": "@5", "status": "@6", "ms": "@7"}
        marks |= {"bytes": "@8", "event": "request", "request_id": "@1", "level": "info", "timestamp": "@0Z"}
        text = str(last(None, "info", marks)).replace("{", "{{").replace("}", "}}")
        for place in range(3, 9):
            text = text.replace(f'"@{place}"', f"@{place}")  # numbers, and texts that come with their own quotes
        for place in range(9):
            text = text.replace(f"@{place}", f"{{{place}}}")
        quoted = encode_basestring_ascii if format_ == "json" else _for_terminal
        return cls(output, last, shown, f"{text}\n".format, quoted)


_short: _ShortWay | None = None
atexit.register(flush)

_NEEDS_QUOTES_PATTERN = re.compile("[ \t=\r\n\"']")


def _for_terminal(text: str) -> str:
    """As structlog's ConsoleRenderer shows a text among a line's fields."""
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
    # The default would print the local variables of every frame: slow, and full of callers' data.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
