"""Log shipping of replicated stores: local journals are copies of the replicated log, and never ahead of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec

from kgserve.cluster.backend import ReplicatedLog, StoreOwnerEntry, append_split_log_record
from kgserve.cluster.replicated_log_records import (
    LogPosition,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    join_replicated_log_records,
)
from kgserve.errors import (
    Conflict,
    Fenced,
    KgserveError,
    OutcomeUnknown,
    ReplicaBehindLogStart,
    ReplicatedLogCorrupt,
    Unavailable,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, translate_storage_errors, write_file_atomically
from kgserve.storage.journal.journal import (
    Journal,
    JournalFrame,
    JournalFrameError,
    encode_journal_frame,
    encode_uncompressed_journal_frame,
    read_journal_frame,
)
from kgserve.storage.model.change_set import ChangeSet

LOG_POSITION_FILE = "log.json"
_encode = msgspec.json.Encoder().encode


class CopiedLogPosition(msgspec.Struct, frozen=True):
    """Position up to which local files are a copy of a log, and the last sequence before it.

    The log up to ``begins`` belongs to a dropped store. Data of the first ``erasures`` purges is not in the files.
    """

    position: LogPosition = 0
    sequence: int = 0
    begins: LogPosition = 0
    erasures: int = 0

    def is_outdated(self, owner: StoreOwnerEntry) -> bool:
        """Return whether the files are obsolete and must not be continued."""
        return owner.outdates(self.begins, self.position, self.erasures)


class ReplicatedJournalWriter:
    """Writer of a replicated store's journal: it appends to the replicated log first, then to the local files.

    After the first commit that is rejected, unconfirmed or not written to the files, it accepts no more. The log then
    has to be taken over again.
    """

    def __init__(
        self, journal: Journal, log: ReplicatedLog, store: str, epoch: int, reached: CopiedLogPosition
    ) -> None:
        """Create a writer. Use `take_over_replicated_log` instead."""
        self.journal = journal
        self.is_over = False
        self._log = log
        self.store = store
        self._epoch = epoch
        self._position = reached.position
        self.reached = reached
        """Position up to which the files are a copy; replaced atomically, readable from any thread."""

    def append(self, changes: list[ChangeSet]) -> None:
        """Make consecutive change sets durable in the log and the local files, all or none.

        Raises Fenced, Unavailable, and OutcomeUnknown, also if they are in the log but not in the files.
        """
        if self.is_over:
            raise Unavailable(f"store {self.store!r} is being taken over", retry_after=1)
        first, last = changes[0].sequence, changes[-1].sequence
        data = encode_journal_frame(changes)
        try:
            self._ship(data, first, last)
            try:
                self.journal.append_frame(data, first, last)
            except KgserveError as error:
                raise OutcomeUnknown(
                    f"the cluster's log has this commit of store {self.store!r}, but the files of this node do not; "
                    f"it appears when the store is opened again: {error.message}"
                ) from error
            self._reach(last)
        except BaseException:
            self.is_over = True
            raise

    def mark_log(self) -> None:
        """Append a record without commits, since the last record of a log cannot be erased.

        Raises the errors of `append`.
        """
        if self.is_over:
            raise Unavailable(f"store {self.store!r} is being taken over", retry_after=1)
        try:
            self._position = self._log.append(self.store, self._position, ReplicatedLogRecord("take", self._epoch))
        except BaseException:
            self.is_over = True
            raise
        self._reach(self.reached.sequence)

    def ship_after(self, sequence: int) -> None:
        """Append frames of the local files to the log, for a store created outside the cluster.

        Raises the errors of `append`.
        """
        for frame in self.journal.frames(sequence):
            self._ship(encode_uncompressed_journal_frame(frame), frame.first, frame.last)
        self._reach(self.journal.last)

    def note(self) -> None:
        """Record the position of the files, so that the next open need not compare them. Raises StorageFull."""
        if not self.is_over:
            write_replicated_log_copy_position(self.journal.folder.parent, self.reached)

    def record_purge(self, erasures: int) -> None:
        """Record that the files reflect a purge."""
        self.reached = msgspec.structs.replace(self.reached, erasures=erasures)

    def _reach(self, last: int) -> None:
        self.reached = msgspec.structs.replace(self.reached, position=self._position, sequence=last)

    def _ship(self, data: bytes, first: int, last: int) -> None:
        record = ReplicatedLogRecord("frame", self._epoch, first, last, data)
        self._position = append_split_log_record(self._log, self.store, self._position, record)


def fence_replicated_log_writers(log: ReplicatedLog, store: str, epoch: int) -> LogPosition:
    """Fence off earlier writers of a store's log, whatever it contains, and return the position of its last record.

    Raises OutcomeUnknown and Unavailable.
    """
    while True:
        try:
            return log.append(store, log.end(store), ReplicatedLogRecord("take", epoch))
        except Fenced:
            continue


def take_over_replicated_log(
    journal: Journal, log: ReplicatedLog, store: str, owner: StoreOwnerEntry
) -> ReplicatedJournalWriter:
    """Take over a store's log: bring the local journal to its end, and fence off earlier writers.

    The files of a store that is ``coming`` are appended to the log.

    Raises OutcomeUnknown, Unavailable, Fenced if an owner of a later epoch took over, ReplicatedLogCorrupt if the log
    lacks or contradicts local frames, and ReplicaBehindLogStart if the log was trimmed past the files.
    """
    reached = verify_replicated_log_copy_position(journal, store, owner)
    while True:
        end = log.end(store)
        reached = append_replicated_records(
            journal, log.read(store, reached.position, end), store, owner.epoch, reached
        )
        if not owner.coming:
            require_journal_not_ahead_of_log(journal, store, reached)
        try:
            position = log.append(store, end, ReplicatedLogRecord("take", owner.epoch))
        except Fenced:
            # The previous owner has just committed; read that, too.
            continue
        reached = msgspec.structs.replace(reached, position=position)
        shipping = ReplicatedJournalWriter(journal, log, store, owner.epoch, reached)
        if owner.coming:
            shipping.ship_after(max(reached.sequence, journal.oldest - 1))
        shipping.note()
        return shipping


def require_journal_not_ahead_of_log(journal: Journal, store: str, reached: CopiedLogPosition) -> None:
    """Raise ReplicatedLogCorrupt if the local journal contains more than the replicated log."""
    if journal.last > reached.sequence:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} ends with sequence {reached.sequence}, but this node has sequence "
            f"{journal.last}: durable commits are missing in the log"
        )


def append_replicated_records(
    journal: Journal,
    found: Iterable[PositionedReplicatedLogRecord],
    store: str,
    epoch: int | None,
    reached: CopiedLogPosition,
    *,
    durable: bool = True,
) -> CopiedLogPosition:
    """Append records found in the replicated log to the local journal, and return the new position.

    The position is that of the last complete record. Unless ``durable``, the caller has to sync the journal. Raises the
    errors of `take_over_replicated_log`; without ``epoch``, records of any owner are accepted.
    """
    local_frames = _frames_after(journal, reached.sequence)
    position, sequence = reached.position, reached.sequence
    for logged in join_replicated_log_records(found):
        position = logged.position
        if epoch is not None and logged.record.epoch > epoch:
            raise Fenced(f"store {store!r} was taken over by the owner of epoch {logged.record.epoch}")
        if logged.record.kind != "frame":
            continue
        frame = decode_logged_journal_frame(store, logged)
        if frame.first > journal.last + 1:
            raise ReplicatedLogCorrupt(
                f"the log of store {store!r} continues with sequence {frame.first} after {journal.last}"
            )
        if frame.first == journal.last + 1:
            journal.append_frame(logged.record.data, frame.first, frame.last, durable=durable)
        elif frame.first >= journal.oldest:
            _compare(store, frame, next(local_frames, None))
        sequence = frame.last
    return msgspec.structs.replace(reached, position=position, sequence=sequence)


def count_intact_replicated_log_frames(journal: Journal, log: ReplicatedLog, store: str, owner: StoreOwnerEntry) -> int:
    """Return the number of frames that a damaged log still has, if the journal has all of them and more.

    Raises Unavailable, and Conflict if the journal lacks or contradicts any, or has nothing that the log lacks.
    """
    found, end, torn = 0, owner.bases[0].sequence if owner.bases else 0, False
    local_frames = iter(journal.frames(journal.oldest - 1))
    for logged in join_replicated_log_records(log.read_intact_records(store, owner.oldest)):
        if logged.record.kind != "frame":
            continue
        try:
            frame = decode_logged_journal_frame(store, logged)
        except ReplicatedLogCorrupt:
            torn = True
            continue
        if frame.last > journal.last:
            raise Conflict(
                f"the files of store {store!r} here end at sequence {journal.last}, but its log has {frame.last}; "
                "repair it on the node that served it last"
            )
        found, torn, end = found + 1, torn or frame.first > end + 1, frame.last
        if frame.first >= journal.oldest:
            _compare_with(store, frame, local_frames)
    if not torn and end >= journal.last:
        raise Conflict(f"the log of store {store!r} is complete; the files here add nothing to it")
    return found


def _compare_with(store: str, frame: JournalFrame, local_frames: Iterator[JournalFrame]) -> None:
    """Raise Conflict unless a frame of the log is among the remaining frames of the files."""
    same = next((each for each in local_frames if each.first >= frame.first), None)
    try:
        _compare(store, frame, same)
    except ReplicatedLogCorrupt as error:
        raise Conflict(f"{error.message}; it is unknown which of the two is right") from error


def _frames_after(journal: Journal, sequence: int) -> Iterator[JournalFrame]:
    """Yield the journal's frames after a sequence, except those that a snapshot has replaced."""
    yield from journal.frames(max(sequence, journal.oldest - 1))


def decode_logged_journal_frame(store: str, logged: PositionedReplicatedLogRecord) -> JournalFrame:
    """Decode the journal frame in a record of the replicated log. Raises ReplicatedLogCorrupt."""
    data = logged.record.data
    try:
        return read_journal_frame(BytesIO(data), 0, len(data))
    except JournalFrameError as error:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} is damaged at position {logged.position}: {error}"
        ) from error


def _compare(store: str, frame: JournalFrame, local_frames: JournalFrame | None) -> None:
    if local_frames is None or (local_frames.first, local_frames.payload) != (frame.first, frame.payload):
        raise ReplicatedLogCorrupt(f"sequence {frame.first} of store {store!r} differs between the log and this node")


def delete_replicated_log_copy_position(folder: Path) -> None:
    """Delete the recorded position, so that the files no longer count as a copy of a log. Raises OSError."""
    (folder / LOG_POSITION_FILE).unlink(missing_ok=True)
    fsync_folder(folder)


def read_replicated_log_copy_position(folder: Path) -> CopiedLogPosition | None:
    """Return the recorded position of a store's files, or None."""
    path = folder / LOG_POSITION_FILE
    return decode_json(path.read_bytes(), CopiedLogPosition) if path.is_file() else None


def verify_replicated_log_copy_position(journal: Journal, store: str, owner: StoreOwnerEntry) -> CopiedLogPosition:
    """Return the position up to which the files are certainly a copy; the beginning if they have lost data since.

    Raises ReplicaBehindLogStart if the log no longer reaches back that far.
    """
    folder, fresh = journal.folder.parent, CopiedLogPosition(owner.begins, 0, owner.begins, owner.erasures)
    reached = read_replicated_log_copy_position(folder) or fresh
    if reached.begins != owner.begins or reached.sequence > journal.last:
        reached = msgspec.structs.replace(fresh, erasures=reached.erasures)
    if reached.is_outdated(owner) and not owner.coming:
        write_replicated_log_copy_position(folder, CopiedLogPosition(begins=owner.begins))
        raise ReplicaBehindLogStart(
            f"some files of store {store!r} were lost; they are being fetched again", retry_after=1
        )
    return reached


def write_replicated_log_copy_position(folder: Path, reached: CopiedLogPosition) -> None:
    """Record the position up to which a store's files are a copy of its log. Raises StorageFull."""
    with translate_storage_errors("recording the log position"):
        write_file_atomically(folder / LOG_POSITION_FILE, _encode(reached))
