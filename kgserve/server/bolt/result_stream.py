"""Results of running statements, as encoded records. Everything here runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kgserve.server.bolt.backend_interface import BoltResult, InterruptionSignal, StatementSummary
from kgserve.server.bolt.chunks import frame_bolt_message
from kgserve.server.bolt.messages import RECORD_TAG
from kgserve.server.bolt.packstream import PackStreamEncoder, PackStreamStructure

MAX_BATCH_BYTES = 64 * 1024
MAX_BATCH_SECONDS = 0.05
"""Time after which rows that are there are sent, although more are wanted."""

_DISCARD_BATCH_ROWS = 1_000


class EncodedRecordBatch(msgspec.Struct, frozen=True):
    """Encoded records, their number, and whether the result has ended after them."""

    data: bytes
    count: int
    is_last: bool


class BoltResultStream:
    """Result of one statement with a read-ahead of one row, so that the end is known with the last row."""

    def __init__(
        self, result: BoltResult, encoder: PackStreamEncoder, interruption: InterruptionSignal, database: str
    ) -> None:
        self.columns = result.columns
        self.database = database
        self.has_records = False
        self._result = result
        self._encoder = encoder
        self._interruption = interruption
        self._rows: Iterator[Sequence[Any]] | None = None
        self._ahead: Sequence[Any] | None = None
        self._is_closed = False

    def pull(self, limit: int | None) -> EncodedRecordBatch:
        """Return the next records: at most ``limit``, or as many as fit into a batch."""
        buffer = bytearray()
        records: list[bytes] = []
        until = time.monotonic() + MAX_BATCH_SECONDS
        size = 0
        self._read_ahead()
        while self._ahead is not None and (limit is None or len(records) < limit):
            buffer.clear()
            self._encoder.write(buffer, PackStreamStructure(RECORD_TAG, (list(self._ahead),)))
            records.append(frame_bolt_message(buffer))
            size += len(buffer)
            self._ahead = None
            is_full = size >= MAX_BATCH_BYTES or time.monotonic() >= until
            if is_full and len(records) != limit:
                self._interruption.check()
                return EncodedRecordBatch(b"".join(records), len(records), is_last=False)
            self._read_ahead()
        return EncodedRecordBatch(b"".join(records), len(records), is_last=self._ahead is None)

    def discard(self, limit: int | None) -> bool:
        """Skip rows, all if ``limit`` is None; return whether the result has ended."""
        if limit is None:
            self._ahead = None
            # Whether an unread result has rows is not known then.
            self.has_records = self.has_records or self._rows is None
            self._result.discard(self._iterator())
            return True
        for number in range(limit):
            if number % _DISCARD_BATCH_ROWS == 0:
                self._interruption.check()
            self._read_ahead()
            if self._ahead is None:
                return True
            self._ahead = None
        self._read_ahead()
        return self._ahead is None

    def summary(self) -> StatementSummary:
        """Return the summary, after the end."""
        return self._result.summary()

    def close(self) -> None:
        """Release the result; further calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._result.close()

    def _iterator(self) -> Iterator[Sequence[Any]]:
        if self._rows is None:
            self._rows = self._result.rows()
        return self._rows

    def _read_ahead(self) -> None:
        if self._ahead is None:
            self._ahead = next(self._iterator(), None)
            self.has_records = self.has_records or self._ahead is not None
