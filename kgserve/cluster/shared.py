"""What nodes of a cluster share beside stores: the record of refusals and acts of administration, and keys.

Each node ships its own record to the log, where all read it. A node's lines go to a log of their own, in the order of
its files. Each entry says up to where these were taken, so nothing has to be kept beside it: who goes on, on whatever
machine, reads the last entry first.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import structlog

from kgserve.cluster.protocols import Log, Registry, RegistryEntry
from kgserve.cluster.records import Position, Record
from kgserve.errors import Fenced, KgserveError, ReplicatedLogCorrupt, Unconfirmed
from kgserve.platform.access.audit import AUDIT_FILE, AuditPosition, decode_records, lines_after
from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.access.authentication import KEY_FILE, Key, merge_keys
from kgserve.platform.codecs import decode_json, msgpack_decoder

log = structlog.get_logger()

SHARING_INTERVAL_SECONDS = 1.0
AUDIT_STRETCH_BYTES = 1 << 20
MAX_AUDIT_STRETCHES = 60
"""As much as a node's own files hold; what is older is let go of."""


class _Lines(msgspec.Struct, frozen=True, array_like=True):
    """An entry: some lines, and the place in the node's files behind them.

    ``stretches`` are the positions before which stretches of so many bytes begin, oldest first; ``size`` is that of the
    last of them. A reader begins with one, as it wants few lines or many.
    """

    file: int
    to: int
    stretches: tuple[Position, ...]
    size: int
    lines: bytes


class _End(NamedTuple):
    """Where a log ends, and what its last entry says."""

    position: Position
    entry: _Lines | None


_NO_LINES = _Lines(0, 0, (0,), 0, b"")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(_Lines).decode


class SharedAudit:
    """Ships what a node puts on record, in a thread of its own while it is entered."""

    def __init__(self, logs: Log, node: str, data_dir: Path) -> None:
        self._log = logs
        self._name = _log_of(node)
        self._data_dir = data_dir
        self._end: _End | None = None
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
        """Append what the files have beyond the log. Raises Unavailable, and LogTorn for a log that was damaged."""
        if (mark := self._marked()) == self._mark:
            return
        end = self._end or _end(self._log, self._name)
        self._end = None
        while (found := lines_after(self._data_dir, _place(end.entry))) is not None:
            end = self._append(end, *found)
        self._end, self._mark = end, mark

    def _append(self, end: _End, place: AuditPosition, lines: bytes) -> _End:
        last = end.entry or _NO_LINES
        stretches, size = last.stretches, last.size + len(lines)
        if last.size > AUDIT_STRETCH_BYTES:
            stretches, size = (*stretches, end.position), len(lines)
        entry = _Lines(*place, stretches[-MAX_AUDIT_STRETCHES:], size, lines)
        position = self._log.append(self._name, end.position, Record("frame", 0, data=_encode(entry)))
        if len(stretches) > MAX_AUDIT_STRETCHES:
            self._log.trim(self._name, entry.stretches[0] + 1)
        return _End(position, entry)

    def _marked(self) -> tuple[int, int] | None:
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
            except (Fenced, Unconfirmed):
                # Whether it was taken says the log's end, which is read anew.
                continue
            except (KgserveError, OSError) as error:
                log.warning("audit_not_shipped", reason=str(error))
            except Exception:
                # Whatever it is, the thread must go on.
                log.exception("audit_not_shipped")


def shared_records(logs: Log, node: str, limit: int) -> list[AuditRecord]:
    """The newest records of a node that it has shipped, oldest first. Raises Unavailable and LogTorn."""
    name = _log_of(node)
    end = _end(logs, name)
    if end.entry is None:
        return []
    begin = end.entry.stretches[-2:][0]
    lines = b"".join(_decode(each.record.data).lines for each in logs.read(name, begin, end.position))
    return [msgspec.structs.replace(each, node=node) for each in decode_records(lines, limit)]


def _log_of(node: str) -> str:
    """No store's name begins so."""
    return f"_audit.{node}"


def _end(logs: Log, name: str) -> _End:
    position = logs.end(name)
    if not position:
        return _End(0, None)
    for found in logs.left(name, position - 1):
        return _End(found.position, _decode(found.record.data))
    raise ReplicatedLogCorrupt(f"the last entry of {name!r} is damaged")


def _place(entry: _Lines | None) -> AuditPosition | None:
    return None if entry is None else AuditPosition(entry.file, entry.to)


_KEY_ENTRY_PREFIX = "key."
_encode_json = msgspec.json.Encoder().encode


class SharedKeys:
    """What a node's keys.json and the registry know of keys, each of which is to know what the other does.

    Keys are only added and revoked, so both sides come to the same whoever was first.
    """

    def __init__(self, registry: Registry, data_dir: Path) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self._held: dict[str, RegistryEntry] = {}
        self._seen = 0
        self._file: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Have each side know the other's keys, where either has changed. Raises Unavailable and KeysDamaged."""
        found = {
            name: each
            for name, each in self._registry.entries(self._seen).items()
            if name.startswith(_KEY_ENTRY_PREFIX)
        }
        self._held |= found
        self._seen = max([self._seen, *(each.revision for each in found.values())])
        if not found and self._mark() == self._file:
            return
        keys = merge_keys(self._data_dir, [decode_json(each.data, Key) for each in self._held.values()])
        for key in keys:
            self._tell(_KEY_ENTRY_PREFIX + key.id, _encode_json(key))
        self._file = self._mark()

    def _tell(self, name: str, data: bytes) -> None:
        held = self._held.get(name, RegistryEntry(b"", 0))
        # Who was overtaken meets at the next look what the other has told.
        if held.data != data and (revision := self._registry.put_entry(name, data, held.revision)) is not None:
            self._held[name] = RegistryEntry(data, revision)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = (self._data_dir / KEY_FILE).stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
