"""The logs of all stores on JetStream: sixteen streams, and a subject per store.

A stream per store was measured: ten thousand of them keep the servers busy with their heartbeats alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import xxhash

from kgserve.cluster.jetstream.connection import Connection
from kgserve.cluster.jetstream.stream import Message, Stream
from kgserve.cluster.records import Logged, Position, Record, check_follows, decode_record, encode_record
from kgserve.errors import LogTorn

SHARDS = 16
"""For ever: it says where a store's log is."""


class JetStreamLog:
    """See `Log`. A position is the sequence of a message in its stream."""

    def __init__(self, connection: Connection) -> None:
        """Make the streams that are not there. Raises Conflict and Unavailable."""
        with ThreadPoolExecutor(SHARDS) as threads:
            self._shards = [
                *threads.map(lambda at: Stream(connection, f"KGSERVE_LOG_{at:02d}", [_all_of(at)]), range(SHARDS))
            ]

    def end(self, store: str) -> Position:
        """See `Log.end`."""
        stream, subject = self._place(store)
        last = stream.last(subject)
        return last.seq if last is not None else 0

    def append(self, store: str, after: Position, record: Record) -> Position:
        """See `Log.append`."""
        stream, subject = self._place(store)
        return stream.put(subject, encode_record(after, record), after)

    def read(self, store: str, after: Position, to: Position) -> Iterator[Logged]:
        """See `Log.read`."""
        if to < after:
            raise LogTorn(f"the log of store {store!r} ends at position {to}, but {after} was acknowledged")
        while after < to:
            for logged in self._some(store, after):
                after = logged.position
                if after <= to:
                    yield logged

    def left(self, store: str, after: Position) -> Iterator[Logged]:
        """See `Log.left`."""
        stream, subject = self._place(store)
        for message in stream.walk(subject, after):
            with suppress(ValueError):
                yield decode_record(message.seq, message.data)

    @property
    def shards(self) -> int:
        """See `Log.shards`."""
        return SHARDS

    def latest(self, shard: int) -> Position:
        """See `Log.latest`."""
        last = self._shards[shard].last(_all_of(shard))
        return last.seq if last is not None else 0

    def recent(self, shard: int, after: Position) -> list[tuple[str, Logged]]:
        """See `Log.recent`."""
        found: list[tuple[str, Logged]] = []
        for message in self._shards[shard].batch(_all_of(shard), after):
            with suppress(ValueError):
                store = message.subject.removeprefix(_subject(shard, ""))
                found.append((store, decode_record(message.seq, message.data)))
        return found

    def trim(self, store: str, before: Position) -> None:
        """See `Log.trim`."""
        stream, subject = self._place(store)
        if (before := min(before, self.end(store))) > 0:
            stream.forget(subject, before)

    def _some(self, store: str, after: Position) -> list[Logged]:
        """Records that follow on, as far as some server has them; the leader's next one where it does not."""
        stream, subject = self._place(store)
        found: list[Logged] = []
        for message in stream.batch(subject, after):
            try:
                found.append(_follows(store, found[-1].position if found else after, message))
            except LogTorn:
                break
        if found:
            return found
        if (message := stream.following(subject, after)) is None:
            raise LogTorn(f"the log of store {store!r} lacks what came after position {after}")
        return [_follows(store, after, message)]

    def _place(self, store: str) -> tuple[Stream, str]:
        shard = xxhash.xxh3_64_intdigest(store.encode()) % SHARDS
        return self._shards[shard], _subject(shard, store)


def _subject(shard: int, store: str) -> str:
    return f"kgserve.log.{shard:02d}.{store}"


def _all_of(shard: int) -> str:
    return _subject(shard, ">")


def _follows(store: str, after: Position, message: Message) -> Logged:
    try:
        found = decode_record(message.seq, message.data)
    except ValueError as error:
        raise LogTorn(f"the log of store {store!r} is damaged at position {message.seq}: {error}") from error
    return check_follows(store, after, found)
