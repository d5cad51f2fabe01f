"""Audit log of refusals and administrative actions: audit.log of a data folder, one JSON record per line.

Each line ends with a checksum of its record. Lines of older versions have none and are accepted.

Refusals are rate-limited, so that an attacker can neither fill the disk nor hide among other refusals. Per source
(address, or /64 network of IPv6, and key), the first ten refusals in a minute are written, then only their number. The
same applies to failed administrative actions; successful ones are always written.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import structlog
import xxhash

from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.codecs import convert_plain_value_to_type, json_decoder
from kgserve.platform.file_permissions import rename_path_obstacle
from kgserve.platform.network_addresses import network_counted_as_one_client
from kgserve.platform.structured_log import mask_api_keys
from kgserve.platform.timestamps import format_rfc3339_timestamp

log = structlog.get_logger()

AUDIT_FILE = "audit.log"
MAX_AUDIT_FILE_BYTES = 10 << 20
MAX_ROTATED_AUDIT_FILES = 5
"""Number of rotated files, audit.log.1 to audit.log.5."""

REFUSAL_WINDOW_SECONDS = 60.0
MAX_REFUSALS_PER_SOURCE = 10
MAX_REFUSALS_PER_WINDOW = 600
"""Refusals written per window by all sources together; `MAX_REFUSALS_PER_SOURCE` limits one address and key."""
_MAX_REFUSAL_SOURCES = 1_024
_MAX_AUDITED_TEXT_CHARS = 200

_decode = json_decoder(AuditRecord).decode
_CHECKED_LINE_PATTERN = re.compile(rb'(.*),"check":"([0-9a-f]{16})"}')
_AUDIT_READ_BLOCK_BYTES = 256 << 10
_MAX_FIRST_LINE_BYTES = 8192


class _RefusalSource:
    """Refusals of one address and key in the current window."""

    def __init__(self, last: AuditRecord) -> None:
        self.seen = 0
        self.left_out = 0
        self.last = last


class AuditLog:
    """Writer of the audit log. Thread-safe. Write errors are logged and never fail the request.

    Only the holder of the data folder's lock may rotate the file (``rotating``).
    """

    def __init__(self, data_dir: Path, *, rotating: bool = True) -> None:
        self._path = data_dir / AUDIT_FILE
        self._rotating = rotating
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, str | None], _RefusalSource] = OrderedDict()
        self._window_ends = 0.0
        self._written = 0

    def record_admin_action(self, act: str, outcome: str, **details: str | None) -> None:
        """Record an administrative action and its outcome. ``details`` are fields of `AuditRecord`."""
        with self._lock:
            self._write([_record("admin", act, outcome, details)])

    def record_refusal(self, act: str, outcome: str, **details: str | None) -> None:
        """Record a refusal, subject to rate limits."""
        self._record_limited(_record("denied", act, outcome, details))

    def record_failed_action(self, act: str, outcome: str, **details: str | None) -> None:
        """Record a failed administrative action, subject to the same rate limits as refusals."""
        self._record_limited(_record("admin", act, outcome, details))

    def _record_limited(self, record: AuditRecord) -> None:
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
        """Write the counts of the current window."""
        with self._lock:
            self._write(self._summaries())

    def _source(self, record: AuditRecord, lines: list[AuditRecord]) -> _RefusalSource:
        name = (network_counted_as_one_client(record.address), record.key)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _RefusalSource(record)
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
        text = b"".join(map(_encode_line, records))
        try:
            if aside := rename_path_obstacle(self._path):
                log.error("audit_set_aside", file=self._path.name, set_aside=aside.name)
            if self._rotating:
                self._rotate(len(text))
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text if _ends_with_whole_line(descriptor) else b"\n" + text)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.exception("audit_not_written", error=str(error), lines=len(records))

    def _rotate(self, size: int) -> None:
        try:
            if self._path.stat().st_size + size <= MAX_AUDIT_FILE_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(MAX_ROTATED_AUDIT_FILES, 0, -1):
            older = self._path.with_name(f"{AUDIT_FILE}.{number - 1}") if number > 1 else self._path
            if older.exists():
                older.replace(self._path.with_name(f"{AUDIT_FILE}.{number}"))


def _ends_with_whole_line(descriptor: int) -> bool:
    """Return whether a file is empty or ends with a line break, which it does unless a write was cut off."""
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def _encode_line(record: AuditRecord) -> bytes:
    text = msgspec.json.encode(record)
    return b'%b,"check":"%b"}\n' % (text[:-1], _checksum(text))


def _checksum(text: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(text).encode()


def _decode_line(line: bytes) -> AuditRecord | None:
    """Return the record of a line, or None if the line is incomplete or damaged."""
    checked = _CHECKED_LINE_PATTERN.fullmatch(line)
    if checked is not None and _checksum(checked[1] + b"}") != checked[2]:
        return None
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None


def _record(kind: str, act: str, outcome: str, details: dict[str, str | None]) -> AuditRecord:
    given = {"act": act, "outcome": outcome, **details}
    clean = {name: mask_api_keys(text)[:_MAX_AUDITED_TEXT_CHARS] for name, text in given.items() if text is not None}
    return convert_plain_value_to_type(
        {"time": format_rfc3339_timestamp(time.time_ns() // 1000), "kind": kind, **clean}, AuditRecord
    )


def _summary(source: _RefusalSource) -> list[AuditRecord]:
    if not source.left_out:
        return []
    return [msgspec.structs.replace(source.last, act="more of the same", store=None, request="", times=source.left_out)]


class AuditPosition(NamedTuple):
    """Read position in an audit file. The file is identified by a hash of its first line, since rotation renames it."""

    file: int
    to: int


def read_newest_audit_records(data_dir: Path, limit: int) -> list[AuditRecord]:
    """Return the newest records of a data folder, oldest first."""
    found: list[AuditRecord] = []
    for path in _paths(data_dir):
        with suppress(FileNotFoundError, IsADirectoryError):
            found = decode_audit_records(path.read_bytes(), limit - len(found)) + found
        if len(found) >= limit:
            break
    return found


def decode_audit_records(lines: bytes, limit: int) -> list[AuditRecord]:
    """Return the last ``limit`` records of some lines. Incomplete and damaged lines are skipped."""
    decoded = map(_decode_line, reversed(lines.splitlines()))
    return [*islice((each for each in decoded if each is not None), limit)][::-1]


def count_damaged_audit_lines(data_dir: Path) -> dict[str, int]:
    """Return the number of incomplete and damaged lines of each audit file that has any."""
    counts = dict[str, int]()
    for path in _paths(data_dir):
        with suppress(FileNotFoundError, IsADirectoryError):
            lines = path.read_bytes().splitlines()
            counts[path.name] = sum(_decode_line(line) is None for line in lines)
    return {name: count for name, count in counts.items() if count}


def read_audit_lines_after(data_dir: Path, place: AuditPosition | None) -> tuple[AuditPosition, bytes] | None:
    """Return whole lines after a position, and the position after them, or None if no more exist.

    Without a position, reading starts at the oldest record.
    """
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
    """Yield the existing non-empty files, newest first, opened at their beginning.

    A file rotated meanwhile is yielded twice with the same identity; none is missed.
    """
    for path in _paths(data_dir):
        with suppress(FileNotFoundError, IsADirectoryError):
            file = stack.enter_context(path.open("rb"))
            if first := file.readline(_MAX_FIRST_LINE_BYTES):
                file.seek(0)
                yield xxhash.xxh3_64_intdigest(first), file


def _paths(data_dir: Path) -> list[Path]:
    """Return the paths of all audit files, newest first."""
    return [
        data_dir / AUDIT_FILE,
        *(data_dir / f"{AUDIT_FILE}.{number}" for number in range(1, MAX_ROTATED_AUDIT_FILES + 1)),
    ]
