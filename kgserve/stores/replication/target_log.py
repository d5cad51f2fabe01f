"""Log and catalog of a replication target.

The log is a sequence of numbered objects. Each names what was shipped since the one before. The append is the fence:
an object is created only if its number is free, so of two writers exactly one continues the log. The catalog is the
result of applying the log in order. Checkpoints store it, so that readers need only the newest one and what follows.

The catalog describes each store by the manifest of a backup, and the keys of its objects are the paths in a backup
folder. A target is therefore restored and verified as a backup.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import BackupDamaged, InvalidInput, NotFound
from kgserve.platform.codecs import decode_json
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.backup.folder_layout import (
    BACKUP_FORMAT,
    BACKUP_STORES_FOLDER,
    BackedUpFile,
    BackedUpJournalFrames,
    BackupChain,
    BackupEndState,
    BackupManifest,
    BackupRunFiles,
)
from kgserve.stores.replication.target_storage import TargetObjectExists, TargetStorage, create_or_confirm_object

log = structlog.get_logger()

TARGET_FORMAT = 1
LOG_PREFIX = "log/"
CHECKPOINT_PREFIX = "checkpoints/"
KEPT_CHECKPOINTS = 2
_DIGEST_BYTES = 32


class ShippedJournalFrames(msgspec.Struct, frozen=True, tag="frames"):
    """Journal frames of a store that were shipped, and the state after them.

    ``frames`` is None if only the settings or the extent of the history changed.
    """

    store: str
    run: int
    frames: BackedUpJournalFrames | None
    mark: BackupEndState


class ShippedBase(msgspec.Struct, frozen=True, tag="base"):
    """A new base of a store. ``purges`` counts the completed purges of the store.

    With ``erases``, all older objects of the store are deleted. With ``continues``, the base has the commits that were
    shipped before, so that followers need not fetch it.
    """

    store: str
    base: BackupChain
    purges: int
    erases: bool
    continues: bool


class ShippedStoreDrop(msgspec.Struct, frozen=True, tag="drop"):
    """The store was dropped."""

    store: str


class ShippedStoreGap(msgspec.Struct, frozen=True, tag="gap"):
    """The shipped base can no longer be continued, and a new one has yet to be shipped."""

    store: str


ShippedRecord = ShippedJournalFrames | ShippedBase | ShippedStoreDrop | ShippedStoreGap


class TargetLogEntry(msgspec.Struct, frozen=True):
    """One object of the log.

    ``leader`` identifies the data folder that is shipped, ``session`` the process. ``time`` is in microseconds: every
    commit that was durable by then has been shipped.
    """

    format: int
    number: int
    epoch: int
    leader: str
    session: str
    time: int
    records: list[ShippedRecord] = []


class ReplicatedStore(msgspec.Struct):
    """A store in a target. ``is_current`` is False from a gap or drop on, until the next base.

    ``lineage`` is the number of the entry with which its unbroken sequence of commits began, and ``lineage_bases`` the
    number of bases since then. ``added`` and ``added_bytes`` are the journal pieces after the newest base, and their
    size.
    """

    manifest: BackupManifest
    lineage: int
    lineage_bases: int = 1
    purges: int = 0
    is_dropped: bool = False
    is_current: bool = True
    added: int = 0
    added_bytes: int = 0

    @property
    def base(self) -> BackupChain:
        """Newest base."""
        return self.manifest.bases[-1]

    @property
    def is_base_missing(self) -> bool:
        """True if the store has commits that only a new base will ship."""
        return not self.is_current and not self.is_dropped


class TargetCatalog(msgspec.Struct):
    """Contents of a target after the entry ``number`` of its log. ``garbage`` lists objects that may be deleted."""

    format: int = TARGET_FORMAT
    number: int = 0
    epoch: int = 0
    leader: str = ""
    session: str = ""
    time: int = 0
    stores: dict[str, ReplicatedStore] = {}
    garbage: list[str] = []

    def limit_coverage(self, time: int) -> int:
        """Return a time up to which commits were shipped, or an earlier one if a store waits for a base since then."""
        return min((time, *(each.base.last.taken for each in self.stores.values() if each.is_base_missing)))

    def apply(self, entry: TargetLogEntry) -> None:
        """Apply the next entry of the log."""
        for record in entry.records:
            self._apply(record, entry)
        self.number, self.epoch = entry.number, entry.epoch
        self.leader, self.session, self.time = entry.leader, entry.session, entry.time

    def _apply(self, record: ShippedRecord, entry: TargetLogEntry) -> None:
        known = self.stores.get(record.store)
        if isinstance(record, ShippedBase):
            self.stores[record.store] = self._add_base(record, known, entry)
        elif known is None:
            raise BackupDamaged(f"entry {entry.number} of the log continues store {record.store!r}, which has no base")
        elif isinstance(record, ShippedJournalFrames):
            _extend_base(known, record)
        else:
            _cover_until(known, self.time)
            known.is_current = False
            known.is_dropped = known.is_dropped or isinstance(record, ShippedStoreDrop)

    def _add_base(self, record: ShippedBase, known: ReplicatedStore | None, entry: TargetLogEntry) -> ReplicatedStore:
        bases, lineage, count = [record.base], entry.number, 1
        if known is not None:
            # The pass of this entry shipped no commits of the former base.
            _cover_until(known, self.time)
            if record.continues:
                lineage, count = known.lineage, known.lineage_bases + 1
            if record.erases:
                self.garbage += list_object_keys(record.store, known.manifest.bases)
            else:
                bases = [*known.manifest.bases, record.base]
        return ReplicatedStore(BackupManifest(BACKUP_FORMAT, record.store, bases), lineage, count, record.purges)

    def retire(self, horizon: int) -> None:
        """Remove bases that only serve restores to times before ``horizon``, in microseconds."""
        for name, store in list(self.stores.items()):
            bases = store.manifest.bases
            kept = next((at for at, base in enumerate(bases) if base.last.taken >= horizon), len(bases) - 1)
            if kept == len(bases) - 1 and store.is_dropped and bases[-1].last.taken < horizon:
                kept = len(bases)
                del self.stores[name]
            if kept:
                self.garbage += list_object_keys(name, bases[:kept])
                store.manifest = msgspec.structs.replace(store.manifest, bases=bases[kept:])

    def covered_manifest(self, name: str) -> BackupManifest:
        """Return the manifest of a store, which covers the time up to the newest entry. Raises NotFound."""
        if (store := self.stores.get(name)) is None:
            held = ", ".join(sorted(self.stores)) or "no store"
            raise NotFound(f"the target does not hold store {name!r}; it holds {held}")
        _cover_until(store, self.time)
        return store.manifest


def _cover_until(store: ReplicatedStore, time: int) -> None:
    """Extend the time up to which the newest base can be restored."""
    marks = store.base.marks
    if store.is_current and marks[-1].taken < time:
        marks[-1] = msgspec.structs.replace(marks[-1], taken=time)


def _extend_base(store: ReplicatedStore, record: ShippedJournalFrames) -> None:
    base = store.base
    if record.frames is not None:
        if base.runs[-1].number != record.run:
            base.runs.append(BackupRunFiles(record.run, []))
        base.runs[-1].pieces.append(record.frames)
        store.added += 1
        store.added_bytes += record.frames.file.bytes
    marks = base.marks
    # The first and the last mark of each period of equal settings are enough to restore any point of it.
    if len(marks) > 1 and all(_is_same_period(mark, record.mark) for mark in marks[-2:]):
        marks.pop()
    marks.append(record.mark)


def _is_same_period(one: BackupEndState, other: BackupEndState) -> bool:
    return one.settings == other.settings and one.history_oldest == other.history_oldest


def list_object_keys(store: str, bases: list[BackupChain]) -> list[str]:
    """Return the keys of all objects of some bases."""
    return [make_object_key(store, file) for base in bases for file in base.files]


def make_object_key(store: str, file: BackedUpFile) -> str:
    """Return the key of a file of a base."""
    return f"{BACKUP_STORES_FOLDER}/{store}/{file.path}"


def make_log_key(number: int) -> str:
    """Return the key of an entry of the log."""
    return f"{LOG_PREFIX}{number:020d}"


_Document = TypeVar("_Document", TargetLogEntry, TargetCatalog)


def encode_target_document(document: TargetLogEntry | TargetCatalog) -> bytes:
    """Return the bytes of a log entry or checkpoint: SHA-256, then compressed JSON."""
    content = zlib.compress(msgspec.json.encode(document), 1)
    return hashlib.sha256(content).digest() + content


def decode_target_document(where: str, data: bytes, kind: type[_Document]) -> _Document:
    """Decode a log entry or checkpoint. Raises BackupDamaged naming the object ``where``."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise BackupDamaged(f"{where}: checksum mismatch; the object is cut or damaged")
    try:
        found = decode_json(zlib.decompress(content), kind)
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError) as error:
        raise BackupDamaged(f"{where}: cannot be read: {error}") from error
    if found.format != TARGET_FORMAT:
        raise BackupDamaged(f"{where}: format {found.format} is not supported by this version of kgserve")
    return found


class TargetLog:
    """Log of a target. Not thread-safe."""

    def __init__(self, storage: TargetStorage) -> None:
        self.storage = storage
        self.catalog = TargetCatalog()

    def load(self) -> TargetCatalog:
        """Read the catalog from the newest intact checkpoint and the log after it.

        Raises BackupDamaged if the log has a gap or a damaged entry, and Unavailable.
        """
        self.catalog = self._newest_checkpoint()
        for _ in self.follow():
            pass
        self.require_no_gap()
        return self.catalog

    def require_no_gap(self) -> None:
        """Raise BackupDamaged if the log continues behind a missing entry. Applies nothing."""
        due = self.catalog.number + 1
        later = self._numbers(LOG_PREFIX)
        if later and later[-1] >= due and self.read_entry(due) is None:
            where = f"{self.storage.url}/{make_log_key(due)}"
            raise BackupDamaged(f"{where}: missing, but the log continues to entry {later[-1]}")

    def verify_entries(self) -> None:
        """Check all entries of the log that are kept. Raises BackupDamaged and Unavailable."""
        numbers = self._numbers(LOG_PREFIX)
        for due, number in enumerate(numbers, numbers[0] if numbers else 0):
            if number != due or self.read_entry(due) is None:
                raise BackupDamaged(f"{self.storage.url}/{make_log_key(due)}: missing")

    def follow(self) -> Iterator[TargetLogEntry]:
        """Apply and yield the entries after the catalog's. Raises BackupDamaged and Unavailable."""
        while (entry := self.read_entry(self.catalog.number + 1)) is not None:
            self.catalog.apply(entry)
            yield entry

    def read_entry(self, number: int) -> TargetLogEntry | None:
        """Return an entry of the log, or None. Raises BackupDamaged and Unavailable."""
        key = make_log_key(number)
        if (data := self.storage.read(key)) is None:
            return None
        entry = decode_target_document(f"{self.storage.url}/{key}", data, TargetLogEntry)
        if entry.number != number:
            raise BackupDamaged(f"{self.storage.url}/{key}: contains entry {entry.number}")
        for record in entry.records:
            _require_store_name(f"{self.storage.url}/{key}", record.store)
        return entry

    def append(self, entry: TargetLogEntry) -> bool:
        """Append an entry and apply it. Return False if another process has appended one. Raises Unavailable."""
        if not create_or_confirm_object(self.storage, make_log_key(entry.number), encode_target_document(entry)):
            return False
        self.catalog.apply(entry)
        return True

    def write_checkpoint(self) -> None:
        """Store the catalog, then delete the garbage and the log before the checkpoint before. Raises Unavailable."""
        key = f"{CHECKPOINT_PREFIX}{self.catalog.number:020d}"
        try:
            self.storage.create(key, encode_target_document(self.catalog))
        except TargetObjectExists:
            return
        self.storage.delete(self.catalog.garbage)
        self.catalog.garbage = []
        numbers = self._numbers(CHECKPOINT_PREFIX)
        if len(numbers) > KEPT_CHECKPOINTS:
            oldest = numbers[-KEPT_CHECKPOINTS]
            self.storage.delete(f"{CHECKPOINT_PREFIX}{number:020d}" for number in numbers[:-KEPT_CHECKPOINTS])
            self.storage.delete(make_log_key(number) for number in self._numbers(LOG_PREFIX) if number <= oldest)

    def _newest_checkpoint(self) -> TargetCatalog:
        faults: list[str] = []
        for number in reversed(self._numbers(CHECKPOINT_PREFIX)):
            key = f"{CHECKPOINT_PREFIX}{number:020d}"
            if (data := self.storage.read(key)) is None:
                continue
            try:
                found = decode_target_document(f"{self.storage.url}/{key}", data, TargetCatalog)
            except BackupDamaged as error:
                log.error("replication_checkpoint_damaged", reason=error.message)
                faults.append(error.message)
                continue
            for name in found.stores:
                _require_store_name(f"{self.storage.url}/{key}", name)
            return found
        if faults and self.storage.read(make_log_key(1)) is None:
            raise BackupDamaged(f"no checkpoint of the target is intact: {'; '.join(faults)}")
        return TargetCatalog()

    def _numbers(self, prefix: str) -> list[int]:
        names = (key.removeprefix(prefix) for key in self.storage.names(prefix))
        return sorted(int(name) for name in names if name.isdecimal())


def _require_store_name(where: str, name: str) -> None:
    try:
        check_store_name(name)
    except InvalidInput as error:
        raise BackupDamaged(f"{where}: {error.message}") from None


def open_target_log(storage: TargetStorage) -> TargetLog:
    """Load the log of an existing target. Raises NotFound for an empty one, BackupDamaged and Unavailable."""
    target = TargetLog(storage)
    if not target.load().number:
        raise NotFound(f"{storage.url} holds no replicated stores; start `kgserve replicate` first")
    return target
