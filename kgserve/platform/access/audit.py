"""The record of who was refused what, and of every act of administration: audit.log of a data folder, JSON by line.

An attacker must be able neither to fill the disk with refusals nor to drown one's own among others': of each address
(of IPv6, each network of 64 bits) and key the first ten in a minute are written, then only their number when the minute
is over. So it is with acts of administration that fail; those that are done are all written.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import structlog
import xxhash

from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.codecs import convert, json_decoder
from kgserve.platform.hosts import network_of
from kgserve.platform.log import masked
from kgserve.platform.permissions import make_way
from kgserve.platform.times import format_time

log = structlog.get_logger()

AUDIT_FILE = "audit.log"
MAX_AUDIT_FILE_BYTES = 10 << 20
MAX_ROTATED_AUDIT_FILES = 5
"""Older files, audit.log.1 to audit.log.5."""

REFUSAL_WINDOW_SECONDS = 60.0
MAX_REFUSALS_PER_SOURCE = 10
MAX_REFUSALS_PER_WINDOW = 600
"""Refusals written within a window: of one address and key, and of all of them together."""
_MAX_REFUSAL_SOURCES = 1_024
_MAX_AUDITED_TEXT_CHARS = 200

_decode = json_decoder(AuditRecord).decode
_AUDIT_READ_BLOCK_BYTES = 256 << 10
_MAX_FIRST_LINE_BYTES = 8192


class _Source:
    """The refusals of one address and key within the present window."""

    def __init__(self, last: AuditRecord) -> None:
        self.seen = 0
        self.left_out = 0
        self.last = last


class Audit:
    """Writes the log. For any thread. What cannot be written is an error in the server's log, and holds nothing up.

    Only who holds the data folder's lock may turn the file over (``rotating``): two could turn it over at once.
    """

    def __init__(self, data_dir: Path, *, rotating: bool = True) -> None:
        self._path = data_dir / AUDIT_FILE
        self._rotating = rotating
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, str | None], _Source] = OrderedDict()
        self._window_ends = 0.0
        self._written = 0

    def administered(self, act: str, outcome: str, **details: str | None) -> None:
        """An act of administration, with its outcome. ``details`` are fields of `AuditRecord`."""
        with self._lock:
            self._write([_record("admin", act, outcome, details)])

    def denied(self, act: str, outcome: str, **details: str | None) -> None:
        """A refusal. Bounded, see above."""
        self._bounded(_record("denied", act, outcome, details))

    def failed(self, act: str, outcome: str, **details: str | None) -> None:
        """An act of administration that came to nothing: bounded like a refusal, or it would be as good for a flood."""
        self._bounded(_record("admin", act, outcome, details))

    def _bounded(self, record: AuditRecord) -> None:
        with self._lock:
            lines = self._summaries() if time.monotonic() >= self._window_ends else []
            source = self._source(record, lines)
            source.seen, source.last = source.seen + 1, record
            if source.seen <= MAX_REFUSALS_PER_SOURCE and self._written < MAX_REFUSALS_PER_WINDOW:
                self._written += 1
                lines.append(record)
            else:
                source.left_out += 1
            self._write(lines)

    def close(self) -> None:
        """Write down the numbers of the present window."""
        with self._lock:
            self._write(self._summaries())

    def _source(self, record: AuditRecord, lines: list[AuditRecord]) -> _Source:
        name = (network_of(record.address), record.key)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _Source(record)
            if len(self._sources) > _MAX_REFUSAL_SOURCES:
                _, oldest = self._sources.popitem(last=False)
                if self._written < MAX_REFUSALS_PER_WINDOW:
                    self._written += 1
                    lines += _summary(oldest)
        return source

    def _summaries(self) -> list[AuditRecord]:
        lines = [line for source in self._sources.values() for line in _summary(source)]
        self._sources.clear()
        self._written, self._window_ends = 0, time.monotonic() + REFUSAL_WINDOW_SECONDS
        return lines

    def _write(self, records: list[AuditRecord]) -> None:
        if not records:
            return
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            if aside := make_way(self._path):
                log.error("audit_set_aside", file=self._path.name, set_aside=aside.name)
            if self._rotating:
                self._turn_over(len(text))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.exception("audit_not_written", error=str(error), lines=len(records))

    def _turn_over(self, coming: int) -> None:
        try:
            if self._path.stat().st_size + coming <= MAX_AUDIT_FILE_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(MAX_ROTATED_AUDIT_FILES, 0, -1):
            older = self._path.with_name(f"{AUDIT_FILE}.{number - 1}") if number > 1 else self._path
            if older.exists():
                older.replace(self._path.with_name(f"{AUDIT_FILE}.{number}"))


def _record(kind: str, act: str, outcome: str, details: dict[str, str | None]) -> AuditRecord:
    given = {"act": act, "outcome": outcome, **details}
    clean = {name: masked(text)[:_MAX_AUDITED_TEXT_CHARS] for name, text in given.items() if text is not None}
    return convert({"time": format_time(time.time_ns() // 1000), "kind": kind, **clean}, AuditRecord)


def _summary(source: _Source) -> list[AuditRecord]:
    if not source.left_out:
        return []
    return [msgspec.structs.replace(source.last, act="more of the same", store=None, request="", times=source.left_out)]


class AuditPosition(NamedTuple):
    """Where a file of the record was read up to. It is known by its first line, for its name changes."""

    file: int
    to: int


def newest_records(data_dir: Path, limit: int) -> list[AuditRecord]:
    """The newest records of a data folder, oldest first."""
    found: list[AuditRecord] = []
    for path in _paths(data_dir):
        with suppress(FileNotFoundError, IsADirectoryError):
            found = decode_records(path.read_bytes(), limit - len(found)) + found
        if len(found) >= limit:
            break
    return found


def decode_records(lines: bytes, limit: int) -> list[AuditRecord]:
    """The last of some lines. One that is no record is left out: it was being written when the machine stopped."""
    found: list[AuditRecord] = []
    for line in reversed(lines.splitlines()):
        if len(found) == limit:
            break
        with suppress(msgspec.MsgspecError):
            found.append(_decode(line))
    return found[::-1]


def lines_after(data_dir: Path, place: AuditPosition | None) -> tuple[AuditPosition, bytes] | None:
    """Some whole lines after a place, and the place behind them; None for no more. From the oldest for no place."""
    with ExitStack() as stack:
        files = dict(reversed([*_opened(data_dir, stack)]))
        left = [*files.items()]
        if place is not None and place.file in files:
            left = left[[*files].index(place.file) :]
            left[0][1].seek(place.to)
        for name, file in left:
            at, block = file.tell(), file.read(_AUDIT_READ_BLOCK_BYTES)
            if lines := block[: block.rfind(b"\n") + 1]:
                return AuditPosition(name, at + len(lines)), lines
    return None


def _opened(data_dir: Path, stack: ExitStack) -> Iterator[tuple[int, BinaryIO]]:
    """The files that are there and not empty, newest first, at their beginnings.

    One that is turned over meanwhile is met twice, as the same, and none is missed.
    """
    for path in _paths(data_dir):
        with suppress(FileNotFoundError, IsADirectoryError):
            file = stack.enter_context(path.open("rb"))
            if first := file.readline(_MAX_FIRST_LINE_BYTES):
                file.seek(0)
                yield xxhash.xxh3_64_intdigest(first), file


def _paths(data_dir: Path) -> list[Path]:
    """Newest first."""
    return [
        data_dir / AUDIT_FILE,
        *(data_dir / f"{AUDIT_FILE}.{number}" for number in range(1, MAX_ROTATED_AUDIT_FILES + 1)),
    ]
