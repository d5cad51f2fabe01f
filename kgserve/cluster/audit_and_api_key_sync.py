"""Replication of audit records, and synchronization of API keys, between the nodes of a cluster.

Each node ships its audit records to a log of its own, which all nodes can read, in the order of its files. Each log
entry contains the read position in those files. A node that continues, on any machine, reads the last entry first and
needs no other state.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog

from kgserve.cluster.backend import ClusterEntryRegistry, ReplicatedLog, VersionedRegistryEntry
from kgserve.cluster.replicated_log_records import LogPosition, ReplicatedLogRecord
from kgserve.errors import Fenced, KgserveError, OutcomeUnknown, ReplicatedLogCorrupt
from kgserve.platform.access.audit import AUDIT_FILE, AuditPosition, decode_audit_records, read_audit_lines_after
from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.access.authentication import KEY_FILE, ApiKey, merge_api_keys_of_cluster_nodes
from kgserve.platform.codecs import decode_json, msgpack_decoder

log = structlog.get_logger()

SHARING_INTERVAL_SECONDS = 1.0
MIN_AUDIT_STRETCH_BYTES = 1 << 20
MAX_AUDIT_STRETCHES = 60
"""Number of stretches kept in a node's log, about as much as its own files hold; older ones are trimmed."""


class _AuditLogEntry(msgspec.Struct, frozen=True, array_like=True):
    """A log entry: some audit lines, and the read position after them in the node's files.

    ``stretches`` are the positions before which stretches of `MIN_AUDIT_STRETCH_BYTES` begin, oldest first; ``size`` is
    that of the last one in bytes. Readers start at a stretch, depending on how many lines they want.
    """

    file: int
    to: int
    stretches: tuple[LogPosition, ...]
    size: int
    lines: bytes


class _LogEnd(NamedTuple):
    """Position and content of a log's last entry."""

    position: LogPosition
    entry: _AuditLogEntry | None


_EMPTY_ENTRY = _AuditLogEntry(0, 0, (0,), 0, b"")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(_AuditLogEntry).decode


class ClusterAuditLogWriter:
    """Replicates a node's audit records to its log in the cluster, in a thread of its own while entered."""

    def __init__(self, logs: ReplicatedLog, node: str, data_dir: Path) -> None:
        self._log = logs
        self._name = _log_of(node)
        self._data_dir = data_dir
        self._end: _LogEnd | None = None
        self._mark: tuple[int, int] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def ship(self) -> None:
        """Append new audit records to the log. Raises Unavailable, and ReplicatedLogCorrupt if the log is damaged."""
        if (mark := self._file_state()) == self._mark:
            return
        end = self._end or _end(self._log, self._name)
        self._end = None
        while (found := read_audit_lines_after(self._data_dir, _place(end.entry))) is not None:
            end = self._append(end, *found)
        self._end, self._mark = end, mark

    def _append(self, end: _LogEnd, place: AuditPosition, lines: bytes) -> _LogEnd:
        last = end.entry or _EMPTY_ENTRY
        stretches, size = last.stretches, last.size + len(lines)
        if last.size > MIN_AUDIT_STRETCH_BYTES:
            stretches, size = (*stretches, end.position), len(lines)
        entry = _AuditLogEntry(*place, stretches[-MAX_AUDIT_STRETCHES:], size, lines)
        position = self._log.append(self._name, end.position, ReplicatedLogRecord("frame", 0, data=_encode(entry)))
        if len(stretches) > MAX_AUDIT_STRETCHES:
            self._log.trim(self._name, entry.stretches[0] + 1)
        return _LogEnd(position, entry)

    def _file_state(self) -> tuple[int, int] | None:
        try:
            found = (self._data_dir / AUDIT_FILE).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(SHARING_INTERVAL_SECONDS)
            try:
                self.ship()
            except (Fenced, OutcomeUnknown):
                # The outcome is unknown; the next attempt reads the end of the log.
                continue
            except (KgserveError, OSError) as error:
                log.warning("audit_not_shipped", reason=str(error))
            except Exception:
                # The thread must survive any error.
                log.exception("audit_not_shipped")


def read_replicated_audit_records(logs: ReplicatedLog, node: str, limit: int) -> list[AuditRecord]:
    """Return the newest shipped audit records of a node, oldest first. Raises Unavailable and ReplicatedLogCorrupt."""
    name = _log_of(node)
    end = _end(logs, name)
    if end.entry is None:
        return []
    begin = end.entry.stretches[-2:][0]
    lines = b"".join(_decode(each.record.data).lines for each in logs.read(name, begin, end.position))
    return [msgspec.structs.replace(each, node=node) for each in decode_audit_records(lines, limit)]


def _log_of(node: str) -> str:
    """Return the log name of a node's audit records. Store names cannot begin with an underscore."""
    return f"_audit.{node}"


def _end(logs: ReplicatedLog, name: str) -> _LogEnd:
    position = logs.end(name)
    if not position:
        return _LogEnd(0, None)
    for found in logs.read_intact_records(name, position - 1):
        return _LogEnd(found.position, _decode(found.record.data))
    raise ReplicatedLogCorrupt(f"the last entry of {name!r} is damaged")


def _place(entry: _AuditLogEntry | None) -> AuditPosition | None:
    return None if entry is None else AuditPosition(entry.file, entry.to)


_KEY_ENTRY_PREFIX = "key."
_encode_json = msgspec.json.Encoder().encode


class ApiKeySync:
    """Two-way synchronization of a node's keys.json with the registry.

    Keys are only added and revoked, so both sides converge in any order.
    """

    def __init__(self, registry: ClusterEntryRegistry, data_dir: Path) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self._held: dict[str, VersionedRegistryEntry] = {}
        self._seen = 0
        self._file: tuple[int, int, int] | None = None
        # True until both sides have what either had.
        self._is_behind = False

    def look(self) -> None:
        """Synchronize both sides if either has changed. Raises Unavailable and KeyFileDamaged."""
        found = {
            name: each
            for name, each in self._registry.entries(self._seen).items()
            if name.startswith(_KEY_ENTRY_PREFIX)
        }
        self._held |= found
        self._seen = max([self._seen, *(each.revision for each in found.values())])
        # Read before the file, so that a key that is changed meanwhile is noticed.
        if (mark := self._mark()) == self._file and not found and not self._is_behind:
            return
        self._is_behind = True
        keys = merge_api_keys_of_cluster_nodes(
            self._data_dir, [decode_json(each.data, ApiKey) for each in self._held.values()]
        )
        for key in keys:
            self._publish(_KEY_ENTRY_PREFIX + key.id, _encode_json(key))
        self._file, self._is_behind = mark, False

    def _publish(self, name: str, data: bytes) -> None:
        held = self._held.get(name, VersionedRegistryEntry(b"", 0))
        # If another node was faster, the next call reads what it wrote.
        if held.data != data and (revision := self._registry.put_entry(name, data, held.revision)) is not None:
            self._held[name] = VersionedRegistryEntry(data, revision)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = (self._data_dir / KEY_FILE).stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
