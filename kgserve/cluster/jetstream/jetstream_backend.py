"""Cluster backend on NATS JetStream: the logs of all stores, the registry, and files.

The logs are sixteen streams with a subject per store, because thousands of streams would keep the servers busy with
heartbeats. The registry consists of streams that keep the newest message per subject. Files are stored in the format of
the object store, so that `nats object get KGSERVE` can read them.
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
from typing_extensions import override

from kgserve.cluster.backend import (
    BlobStorage,
    ClusterEntryRegistry,
    ClusterNodeHeartbeat,
    ReplicatedLog,
    StoreOwnerEntry,
    VersionedHeartbeat,
    VersionedRegistryEntry,
    VersionedStoreOwnerEntry,
)
from kgserve.cluster.jetstream.nats_connection import NatsConnection
from kgserve.cluster.jetstream.stream import JetStreamMessage, ReplicatedJetStream, read_last_sequences
from kgserve.cluster.replicated_log_records import (
    LogPosition,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    decode_replicated_log_record,
    encode_replicated_log_record,
    require_next_replicated_log_record,
)
from kgserve.errors import Fenced, NotFound, ReplicatedLogCorrupt
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import translate_storage_errors

_encode = msgspec.json.Encoder().encode
LOG_SHARDS = 16
"""Number of log streams. Must never change, because it determines the stream of each store."""


class JetStreamReplicatedLog(ReplicatedLog):
    """Replicated log on JetStream. A position is the sequence of a message in its stream."""

    def __init__(self, connection: NatsConnection) -> None:
        """Create missing streams. Raises Conflict and Unavailable."""
        self._connection = connection
        with ThreadPoolExecutor(LOG_SHARDS) as threads:
            self._shards = [
                *threads.map(
                    lambda at: ReplicatedJetStream(connection, f"KGSERVE_LOG_{at:02d}", [_all_of(at)]),
                    range(LOG_SHARDS),
                )
            ]

    @override
    def end(self, store: str) -> LogPosition:
        stream, subject = self._place(store)
        last = stream.last(subject)
        return last.seq if last is not None else 0

    @override
    def append(self, store: str, after: LogPosition, record: ReplicatedLogRecord) -> LogPosition:
        stream, subject = self._place(store)
        return stream.put(subject, encode_replicated_log_record(after, record), after)

    @override
    def read(self, store: str, after: LogPosition, to: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        if to < after:
            raise ReplicatedLogCorrupt(
                f"the log of store {store!r} ends at position {to}, but {after} was acknowledged"
            )
        while after < to:
            for logged in self._some(store, after):
                after = logged.position
                if after <= to:
                    yield logged

    @override
    def read_intact_records(self, store: str, after: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        stream, subject = self._place(store)
        for message in stream.walk(subject, after):
            with suppress(ValueError):
                yield decode_replicated_log_record(message.seq, message.data)

    @property
    @override
    def shards(self) -> int:
        return LOG_SHARDS

    @override
    def shard_of(self, store: str) -> int:
        return xxhash.xxh3_64_intdigest(store.encode()) % LOG_SHARDS

    @override
    def latest(self) -> list[LogPosition | None]:
        return read_last_sequences(self._connection, self._shards)

    @override
    def recent(self, shard: int, after: LogPosition) -> list[tuple[str, PositionedReplicatedLogRecord]]:
        found: list[tuple[str, PositionedReplicatedLogRecord]] = []
        for message in self._shards[shard].batch(_all_of(shard), after):
            with suppress(ValueError):
                store = message.subject.removeprefix(_subject(shard, ""))
                found.append((store, decode_replicated_log_record(message.seq, message.data)))
        return found

    @override
    def trim(self, store: str, before: LogPosition, *, erase: bool = False) -> None:
        stream, subject = self._place(store)
        if (before := min(before, self.end(store))) > 0:
            (stream.erase if erase else stream.forget)(subject, before)

    def _some(self, store: str, after: LogPosition) -> list[PositionedReplicatedLogRecord]:
        """Return consecutive records from any replica; if it lags, the leader's next record."""
        stream, subject = self._place(store)
        found: list[PositionedReplicatedLogRecord] = []
        for message in stream.batch(subject, after):
            try:
                found.append(_follows(store, found[-1].position if found else after, message))
            except ReplicatedLogCorrupt:
                break
        if found:
            return found
        if (message := stream.following(subject, after)) is None:
            raise ReplicatedLogCorrupt(f"the log of store {store!r} lacks the records after position {after}")
        return [_follows(store, after, message)]

    def _place(self, store: str) -> tuple[ReplicatedJetStream, str]:
        shard = self.shard_of(store)
        return self._shards[shard], _subject(shard, store)


def _subject(shard: int, store: str) -> str:
    return f"{_LOG_SUBJECT_PREFIX}{shard:02d}.{store}"


def _all_of(shard: int) -> str:
    return _subject(shard, ">")


def _follows(store: str, after: LogPosition, message: JetStreamMessage) -> PositionedReplicatedLogRecord:
    try:
        found = decode_replicated_log_record(message.seq, message.data)
    except ValueError as error:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} is damaged at position {message.seq}: {error}"
        ) from error
    return require_next_replicated_log_record(store, after, found)


_LOG_SUBJECT_PREFIX = "kgserve.log."
_OWNER_SUBJECT_PREFIX = "kgserve.owner."
_HEARTBEAT_SUBJECT_PREFIX = "kgserve.beat."
_ENTRY_SUBJECT_PREFIX = "kgserve.entry."
_HEARTBEAT_ATTEMPT_TIMEOUT_SECONDS = 0.5
"""Timeout of one attempt to send a heartbeat, short so that nodes recover quickly after an election."""


class JetStreamClusterRegistry(ClusterEntryRegistry):
    """Cluster registry on JetStream. A revision is the sequence of a message in its stream."""

    def __init__(self, connection: NatsConnection) -> None:
        """Create missing streams. Raises Conflict and Unavailable."""
        self._owners = ReplicatedJetStream(connection, "KGSERVE_OWNERS", [f"{_OWNER_SUBJECT_PREFIX}>"], newest=True)
        self._beats = ReplicatedJetStream(
            connection,
            "KGSERVE_BEATS",
            [f"{_HEARTBEAT_SUBJECT_PREFIX}>"],
            newest=True,
            attempt_seconds=_HEARTBEAT_ATTEMPT_TIMEOUT_SECONDS,
        )
        self._entries = ReplicatedJetStream(connection, "KGSERVE_ENTRIES", [f"{_ENTRY_SUBJECT_PREFIX}>"], newest=True)

    @override
    def entries(self, after: int = 0) -> dict[str, VersionedRegistryEntry]:
        found = self._entries.walk(f"{_ENTRY_SUBJECT_PREFIX}>", after)
        return {
            each.subject.removeprefix(_ENTRY_SUBJECT_PREFIX): VersionedRegistryEntry(each.data, each.seq)
            for each in found
        }

    @override
    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        return _replaced(self._entries, _ENTRY_SUBJECT_PREFIX + name, data, revision)

    @override
    def owners(self, after: int = 0) -> dict[str, VersionedStoreOwnerEntry]:
        found = self._owners.walk(f"{_OWNER_SUBJECT_PREFIX}>", after)
        return {
            each.subject.removeprefix(_OWNER_SUBJECT_PREFIX): VersionedStoreOwnerEntry(
                decode_json(each.data, StoreOwnerEntry), each.seq
            )
            for each in found
        }

    @override
    def owner(self, store: str) -> VersionedStoreOwnerEntry | None:
        found = self._owners.last(_OWNER_SUBJECT_PREFIX + store)
        return (
            VersionedStoreOwnerEntry(decode_json(found.data, StoreOwnerEntry), found.seq) if found is not None else None
        )

    @override
    def claim(self, store: str, owner: StoreOwnerEntry, revision: int) -> int | None:
        return _replaced(self._owners, _OWNER_SUBJECT_PREFIX + store, _encode(owner), revision)

    @override
    def beat(self, beat: ClusterNodeHeartbeat, revision: int) -> int | None:
        return _replaced(self._beats, _HEARTBEAT_SUBJECT_PREFIX + beat.node, _encode(beat), revision)

    @override
    def beats(self) -> dict[str, VersionedHeartbeat]:
        return _heard(self._beats.walk(f"{_HEARTBEAT_SUBJECT_PREFIX}>"))

    @override
    def read_replica_heartbeats(self) -> dict[str, VersionedHeartbeat]:
        # Read from any replica, which needs no leader.
        return _heard(self._beats.batch(f"{_HEARTBEAT_SUBJECT_PREFIX}>", 0))


def _heard(found: Iterable[JetStreamMessage]) -> dict[str, VersionedHeartbeat]:
    heard = [VersionedHeartbeat(decode_json(each.data, ClusterNodeHeartbeat), each.seq) for each in found]
    return {each.beat.node: each for each in heard}


def _replaced(stream: ReplicatedJetStream, subject: str, data: bytes, revision: int) -> int | None:
    try:
        return stream.put(subject, data, revision)
    except Fenced:
        return None


_BUCKET = "KGSERVE"
_CHUNK_SUBJECT_PREFIX = f"$O.{_BUCKET}.C."
_OBJECT_INFO_SUBJECT_PREFIX = f"$O.{_BUCKET}.M."
BLOB_CHUNK_BYTES = 1 << 19


class _ObjectInfo(msgspec.Struct, frozen=True):
    """Metadata of a file in the object store; its chunks are the messages of the subject with its ``nuid``."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str


class JetStreamBlobStorage(BlobStorage):
    """Blob storage in the JetStream object store."""

    def __init__(self, connection: NatsConnection) -> None:
        """Create the stream if it is missing. Raises Conflict and Unavailable."""
        self._stream = ReplicatedJetStream(
            connection, f"OBJ_{_BUCKET}", [f"{_CHUNK_SUBJECT_PREFIX}>", f"{_OBJECT_INFO_SUBJECT_PREFIX}>"]
        )

    @override
    def put(self, name: str, path: Path) -> bool:
        # An interrupted upload leaves chunks that no file refers to.
        if self._stream.last(_info_of(name)) is not None:
            return False
        info = self._put_chunks(name, path)
        with suppress(Fenced):
            self._stream.put(_info_of(name), _encode(info), 0)
            return True
        self._stream.forget(_CHUNK_SUBJECT_PREFIX + info.nuid)
        return False

    @override
    def get(self, name: str, path: Path) -> None:
        if (found := self._stream.last(_info_of(name))) is None:
            raise NotFound(f"the cluster has no file {name!r}")
        info, digest, size = decode_json(found.data, _ObjectInfo), hashlib.sha256(), 0
        with translate_storage_errors(f"fetching {name!r} from the cluster"), path.open("wb") as file:
            for chunk in self._stream.walk(_CHUNK_SUBJECT_PREFIX + info.nuid):
                digest.update(chunk.data)
                size += file.write(chunk.data)
        if (size, _digest(digest.digest())) != (info.size, info.digest):
            path.unlink()
            raise ReplicatedLogCorrupt(f"the cluster's file {name!r} is damaged: {size} of {info.size} bytes were read")

    @override
    def names(self, prefix: str) -> list[str]:
        found = (
            decode_json(each.data, _ObjectInfo).name for each in self._stream.walk(f"{_OBJECT_INFO_SUBJECT_PREFIX}>")
        )
        return sorted(name for name in found if name.startswith(prefix))

    @override
    def drop(self, name: str, *, erase: bool = False) -> None:
        if (found := self._stream.last(_info_of(name))) is not None:
            chunks = _CHUNK_SUBJECT_PREFIX + decode_json(found.data, _ObjectInfo).nuid
            if erase:  # chunks first, so that an interrupted deletion can be repeated by name
                self._stream.erase(chunks)
            self._stream.forget(_info_of(name))
            self._stream.forget(chunks)

    def _put_chunks(self, name: str, path: Path) -> _ObjectInfo:
        nuid, digest, size, chunks, after = token_hex(11), hashlib.sha256(), 0, 0, 0
        with path.open("rb") as file:
            while chunk := file.read(BLOB_CHUNK_BYTES):
                digest.update(chunk)
                after = self._stream.put(_CHUNK_SUBJECT_PREFIX + nuid, chunk, after)
                size += len(chunk)
                chunks += 1
            changed = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC).isoformat()
        return _ObjectInfo(name, _BUCKET, nuid, size, chunks, _digest(digest.digest()), changed)


def _info_of(name: str) -> str:
    return _OBJECT_INFO_SUBJECT_PREFIX + base64.urlsafe_b64encode(name.encode()).decode()


def _digest(digest: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(digest).decode()
