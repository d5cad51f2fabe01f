"""What JetStream keeps for a cluster, see `cluster.protocols`: the logs of all stores, the registry, and files.

Logs are sixteen streams with a subject per store: a stream per store was measured, and ten thousand of them keep the
servers busy with their heartbeats alone. The registry is streams of owners, beats and other entries, of which only the
newest of each is kept. Files have the form of the object store, so that `nats object get KGSERVE` finds them, too.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import msgspec
import xxhash

from kgserve.cluster.jetstream.connection import NatsConnection
from kgserve.cluster.jetstream.stream import JetStream, StreamMessage
from kgserve.cluster.protocols import Claim, Heard, Heartbeat, Owner, RegistryEntry
from kgserve.cluster.records import Logged, Position, Record, check_follows, decode_record, encode_record
from kgserve.errors import Fenced, NotFound, ReplicatedLogCorrupt
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import storing

_encode = msgspec.json.Encoder().encode
LOG_SHARDS = 16
"""For ever: it says where a store's log is."""


class JetStreamLog:
    """See `Log`. A position is the sequence of a message in its stream."""

    def __init__(self, connection: NatsConnection) -> None:
        """Make the streams that are not there. Raises Conflict and Unavailable."""
        with ThreadPoolExecutor(LOG_SHARDS) as threads:
            self._shards = [
                *threads.map(
                    lambda at: JetStream(connection, f"KGSERVE_LOG_{at:02d}", [_all_of(at)]), range(LOG_SHARDS)
                )
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
            raise ReplicatedLogCorrupt(
                f"the log of store {store!r} ends at position {to}, but {after} was acknowledged"
            )
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
        return LOG_SHARDS

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

    def trim(self, store: str, before: Position, *, erase: bool = False) -> None:
        """See `Log.trim`."""
        stream, subject = self._place(store)
        if (before := min(before, self.end(store))) > 0:
            (stream.erase if erase else stream.forget)(subject, before)

    def _some(self, store: str, after: Position) -> list[Logged]:
        """Records that follow on, as far as some server has them; the leader's next one where it does not."""
        stream, subject = self._place(store)
        found: list[Logged] = []
        for message in stream.batch(subject, after):
            try:
                found.append(_follows(store, found[-1].position if found else after, message))
            except ReplicatedLogCorrupt:
                break
        if found:
            return found
        if (message := stream.following(subject, after)) is None:
            raise ReplicatedLogCorrupt(f"the log of store {store!r} lacks what came after position {after}")
        return [_follows(store, after, message)]

    def _place(self, store: str) -> tuple[JetStream, str]:
        shard = xxhash.xxh3_64_intdigest(store.encode()) % LOG_SHARDS
        return self._shards[shard], _subject(shard, store)


def _subject(shard: int, store: str) -> str:
    return f"kgserve.platform.log.{shard:02d}.{store}"


def _all_of(shard: int) -> str:
    return _subject(shard, ">")


def _follows(store: str, after: Position, message: StreamMessage) -> Logged:
    try:
        found = decode_record(message.seq, message.data)
    except ValueError as error:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} is damaged at position {message.seq}: {error}"
        ) from error
    return check_follows(store, after, found)


_OWNER_SUBJECT_PREFIX = "kgserve.owner."
_HEARTBEAT_SUBJECT_PREFIX = "kgserve.beat."
_ENTRY_SUBJECT_PREFIX = "kgserve.entry."
_HEARTBEAT_ATTEMPT_TIMEOUT_SECONDS = 0.5
"""So long a beat that an election or a lost server swallowed holds up the next attempt: all are heard soon after it."""


class JetStreamRegistry:
    """See `Registry`. A revision is the sequence of a message in its stream."""

    def __init__(self, connection: NatsConnection) -> None:
        """Make the streams that are not there. Raises Conflict and Unavailable."""
        self._owners = JetStream(connection, "KGSERVE_OWNERS", [f"{_OWNER_SUBJECT_PREFIX}>"], newest=True)
        self._beats = JetStream(
            connection,
            "KGSERVE_BEATS",
            [f"{_HEARTBEAT_SUBJECT_PREFIX}>"],
            newest=True,
            attempt_seconds=_HEARTBEAT_ATTEMPT_TIMEOUT_SECONDS,
        )
        self._entries = JetStream(connection, "KGSERVE_ENTRIES", [f"{_ENTRY_SUBJECT_PREFIX}>"], newest=True)

    def entries(self, after: int = 0) -> dict[str, RegistryEntry]:
        """See `Registry.entries`."""
        found = self._entries.walk(f"{_ENTRY_SUBJECT_PREFIX}>", after)
        return {each.subject.removeprefix(_ENTRY_SUBJECT_PREFIX): RegistryEntry(each.data, each.seq) for each in found}

    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        """See `Registry.put_entry`."""
        return _replaced(self._entries, _ENTRY_SUBJECT_PREFIX + name, data, revision)

    def owners(self, after: int = 0) -> dict[str, Claim]:
        """See `Registry.owners`."""
        found = self._owners.walk(f"{_OWNER_SUBJECT_PREFIX}>", after)
        return {
            each.subject.removeprefix(_OWNER_SUBJECT_PREFIX): Claim(decode_json(each.data, Owner), each.seq)
            for each in found
        }

    def owner(self, store: str) -> Claim | None:
        """See `Registry.owner`."""
        found = self._owners.last(_OWNER_SUBJECT_PREFIX + store)
        return Claim(decode_json(found.data, Owner), found.seq) if found is not None else None

    def claim(self, store: str, owner: Owner, revision: int) -> int | None:
        """See `Registry.claim`."""
        return _replaced(self._owners, _OWNER_SUBJECT_PREFIX + store, _encode(owner), revision)

    def beat(self, beat: Heartbeat, revision: int) -> int | None:
        """See `Registry.beat`."""
        return _replaced(self._beats, _HEARTBEAT_SUBJECT_PREFIX + beat.node, _encode(beat), revision)

    def beats(self) -> dict[str, Heard]:
        """See `Registry.beats`."""
        return _heard(self._beats.walk(f"{_HEARTBEAT_SUBJECT_PREFIX}>"))

    def seen_beats(self) -> dict[str, Heard]:
        """See `Registry.seen_beats`: of any replica, for which the stream needs no leader."""
        return _heard(self._beats.batch(f"{_HEARTBEAT_SUBJECT_PREFIX}>", 0))


def _heard(found: Iterable[StreamMessage]) -> dict[str, Heard]:
    heard = [Heard(decode_json(each.data, Heartbeat), each.seq) for each in found]
    return {each.beat.node: each for each in heard}


def _replaced(stream: JetStream, subject: str, data: bytes, revision: int) -> int | None:
    try:
        return stream.put(subject, data, revision)
    except Fenced:
        return None


_BUCKET = "KGSERVE"
_CHUNK_SUBJECT_PREFIX = f"$O.{_BUCKET}.C."
_OBJECT_INFO_SUBJECT_PREFIX = f"$O.{_BUCKET}.M."
CHUNK_BYTES = 1 << 19


class _Info(msgspec.Struct, frozen=True):
    """A file, as the object store describes one: its chunks are the messages of the subject with its ``nuid``."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str


class JetStreamBlobs:
    """See `Blobs`."""

    def __init__(self, connection: NatsConnection) -> None:
        """Make the stream if it is not there. Raises Conflict and Unavailable."""
        self._stream = JetStream(
            connection, f"OBJ_{_BUCKET}", [f"{_CHUNK_SUBJECT_PREFIX}>", f"{_OBJECT_INFO_SUBJECT_PREFIX}>"]
        )

    def put(self, name: str, path: Path) -> bool:
        """See `Blobs.put`. What a broken one leaves behind is chunks that no file names."""
        if self._stream.last(_info_of(name)) is not None:
            return False
        info = self._put_chunks(name, path)
        with suppress(Fenced):
            self._stream.put(_info_of(name), _encode(info), 0)
            return True
        self._stream.forget(_CHUNK_SUBJECT_PREFIX + info.nuid)
        return False

    def get(self, name: str, path: Path) -> None:
        """See `Blobs.get`."""
        if (found := self._stream.last(_info_of(name))) is None:
            raise NotFound(f"the cluster has no file {name!r}")
        info, digest, size = decode_json(found.data, _Info), hashlib.sha256(), 0
        with storing(f"fetching {name!r} from the cluster"), path.open("wb") as file:
            for chunk in self._stream.walk(_CHUNK_SUBJECT_PREFIX + info.nuid):
                digest.update(chunk.data)
                size += file.write(chunk.data)
        if (size, _digest(digest.digest())) != (info.size, info.digest):
            path.unlink()
            raise ReplicatedLogCorrupt(
                f"the cluster's file {name!r} is not as it was put: {size} of {info.size} bytes are there"
            )

    def names(self, prefix: str) -> list[str]:
        """See `Blobs.names`."""
        found = (decode_json(each.data, _Info).name for each in self._stream.walk(f"{_OBJECT_INFO_SUBJECT_PREFIX}>"))
        return sorted(name for name in found if name.startswith(prefix))

    def drop(self, name: str, *, erase: bool = False) -> None:
        """See `Blobs.drop`."""
        if (found := self._stream.last(_info_of(name))) is not None:
            chunks = _CHUNK_SUBJECT_PREFIX + decode_json(found.data, _Info).nuid
            if erase:  # first what it has: who is broken off in between begins again at the name
                self._stream.erase(chunks)
            self._stream.forget(_info_of(name))
            self._stream.forget(chunks)

    def _put_chunks(self, name: str, path: Path) -> _Info:
        nuid, digest, size, chunks, after = token_hex(11), hashlib.sha256(), 0, 0, 0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                after = self._stream.put(_CHUNK_SUBJECT_PREFIX + nuid, chunk, after)
                size += len(chunk)
                chunks += 1
            changed = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC).isoformat()
        return _Info(name, _BUCKET, nuid, size, chunks, _digest(digest.digest()), changed)


def _info_of(name: str) -> str:
    return _OBJECT_INFO_SUBJECT_PREFIX + base64.urlsafe_b64encode(name.encode()).decode()


def _digest(digest: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(digest).decode()
