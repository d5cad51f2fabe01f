"""In-memory implementation of the cluster protocols, which shows that the suite tests the protocols only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from kgserve.cluster.backend import (
    ClusterNodeHeartbeat,
    StoreOwnerEntry,
    VersionedHeartbeat,
    VersionedRegistryEntry,
    VersionedStoreOwnerEntry,
)
from kgserve.cluster.replicated_log_records import (
    LogPosition,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    decode_replicated_log_record,
    encode_replicated_log_record,
    require_next_replicated_log_record,
)
from kgserve.errors import Fenced, NotFound, OutcomeUnknown, ReplicatedLogCorrupt
from tests.cluster.rig import Node


class SharedMessageLog:
    """State shared by all nodes: the messages of each subject by sequence."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[str, dict[int, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self._numbers = count(7, 3)
        self._done: dict[object, int] = {}

    def put(self, subject: str, data: bytes, after: int, identity: object, *, newest: bool) -> int:
        """Store a message like a server: once per identity, and only after the named last message."""
        with self.lock:
            if identity in self._done:
                return self._done[identity]
            messages = self.messages.setdefault(subject, {})
            if (last := max(messages, default=0)) != after:
                raise Fenced(f"{subject} ends at {last}, not at {after}")
            if newest:
                messages.clear()
            number = self._done[identity] = next(self._numbers)
            messages[number] = data
            return number


class Wire:
    """Connection of a node to the shared state, which can lose responses and duplicate requests."""

    def __init__(self, shared: SharedMessageLog, patience: float) -> None:
        self.shared = shared
        self._patience = patience
        self._answering = threading.Event()
        self._times = 1
        self.heal()

    def lose_answers(self) -> None:
        self._answering.clear()

    def double_requests(self) -> None:
        self._times = 2

    def heal(self) -> None:
        self._times = 1
        self._answering.set()

    def put(self, subject: str, data: bytes, after: int, *, newest: bool = False) -> int:
        identity = object()
        numbers = [self.shared.put(subject, data, after, identity, newest=newest) for _ in range(self._times)]
        if not self._answering.wait(self._patience):
            raise OutcomeUnknown(f"no answer within {self._patience:g} seconds")
        return numbers[-1]


class MemoryLog:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def end(self, store: str) -> LogPosition:
        return max(self._records(store), default=0)

    def append(self, store: str, after: LogPosition, record: ReplicatedLogRecord) -> LogPosition:
        return self._wire.put(f"log {store}", encode_replicated_log_record(after, record), after)

    def read(self, store: str, after: LogPosition, to: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        if to < after:
            raise ReplicatedLogCorrupt(f"the log of store {store!r} ends at {to}, before {after}")
        records = self._records(store)
        for position in sorted(records):
            if after < position <= to:
                yield require_next_replicated_log_record(
                    store, after, decode_replicated_log_record(position, records[position])
                )
                after = position
        if after < to:
            raise ReplicatedLogCorrupt(f"the log of store {store!r} lacks the records after position {after}")

    def read_intact_records(self, store: str, after: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        records = self._records(store)
        for position in sorted(records):
            if position > after:
                with suppress(ValueError):
                    yield decode_replicated_log_record(position, records[position])

    @property
    def shards(self) -> int:
        return 1

    def shard_of(self, store: str) -> int:
        return 0

    def latest(self) -> list[LogPosition | None]:
        return [max((each.position for _, each in self.recent(0, 0)), default=0)]

    def recent(self, shard: int, after: LogPosition) -> list[tuple[str, PositionedReplicatedLogRecord]]:
        assert shard == 0
        with self._wire.shared.lock:
            subjects = [each.removeprefix("log ") for each in self._wire.shared.messages if each.startswith("log ")]
        found = [(store, each) for store in subjects for each in self.read_intact_records(store, after)]
        return sorted(found, key=lambda pair: pair[1].position)

    def trim(self, store: str, before: LogPosition, *, erase: bool = False) -> None:
        with self._wire.shared.lock:
            records = self._wire.shared.messages.get(f"log {store}", {})
            for position in sorted(records)[:-1]:
                if position < before:
                    del records[position]

    def _records(self, store: str) -> dict[int, bytes]:
        with self._wire.shared.lock:
            return dict(self._wire.shared.messages.get(f"log {store}", {}))


class MemoryRegistry:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def owners(self, after: int = 0) -> dict[str, VersionedStoreOwnerEntry]:
        with self._wire.shared.lock:
            stores = [key.removeprefix("owner ") for key in self._wire.shared.messages if key.startswith("owner ")]
        found = {store: claim for store in stores if (claim := self.owner(store)) is not None}
        return {store: claim for store, claim in found.items() if claim.revision > after}

    def owner(self, store: str) -> VersionedStoreOwnerEntry | None:
        with self._wire.shared.lock:
            entries = [*self._wire.shared.messages.get(f"owner {store}", {}).items()]
        return (
            VersionedStoreOwnerEntry(msgspec.json.decode(entries[0][1], type=StoreOwnerEntry), entries[0][0])
            if entries
            else None
        )

    def claim(self, store: str, owner: StoreOwnerEntry, revision: int) -> int | None:
        return self._replaced(f"owner {store}", msgspec.json.encode(owner), revision)

    def entries(self, after: int = 0) -> dict[str, VersionedRegistryEntry]:
        with self._wire.shared.lock:
            found = {key: dict(each) for key, each in self._wire.shared.messages.items() if key.startswith("entry ")}
        return {
            key.removeprefix("entry "): VersionedRegistryEntry(data, number)
            for key, each in found.items()
            for number, data in each.items()
            if number > after
        }

    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        return self._replaced(f"entry {name}", data, revision)

    def beat(self, beat: ClusterNodeHeartbeat, revision: int) -> int | None:
        return self._replaced(f"beat {beat.node}", msgspec.json.encode(beat), revision)

    def beats(self) -> dict[str, VersionedHeartbeat]:
        with self._wire.shared.lock:
            found = [value for key, value in self._wire.shared.messages.items() if key.startswith("beat ")]
        heard = [
            VersionedHeartbeat(msgspec.json.decode(data, type=ClusterNodeHeartbeat), number)
            for each in found
            for number, data in each.items()
        ]
        return {each.beat.node: each for each in heard}

    read_replica_heartbeats = beats

    def _replaced(self, subject: str, data: bytes, revision: int) -> int | None:
        try:
            return self._wire.put(subject, data, revision, newest=True)
        except Fenced:
            return None


class MemoryBlobs:
    def __init__(self, shared: SharedMessageLog) -> None:
        self._files = shared.files

    def put(self, name: str, path: Path) -> bool:
        data = path.read_bytes()
        return self._files.setdefault(name, data) is data

    def get(self, name: str, path: Path) -> None:
        if name not in self._files:
            raise NotFound(f"there is no file {name!r}")
        path.write_bytes(self._files[name])

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._files if name.startswith(prefix))

    def drop(self, name: str, *, erase: bool = False) -> None:
        self._files.pop(name, None)


class MemoryRig:
    """Rig of the in-memory backend."""

    def __init__(self) -> None:
        self._shared = SharedMessageLog()

    def node(self) -> Node:
        return self.faulty_node(10)[0]

    def faulty_node(self, patience: float) -> tuple[Node, Wire]:
        wire = Wire(self._shared, patience)
        return Node(MemoryLog(wire), MemoryRegistry(wire), MemoryBlobs(self._shared)), wire

    def lose_record(self, store: str, position: int) -> None:
        del self._shared.messages[f"log {store}"][position]

    def wait_until_gone(self, store: str, position: int) -> None:
        assert position not in self._shared.messages[f"log {store}"]
