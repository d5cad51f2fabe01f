"""The journal of a store whose truth is the replicated log: its files are a copy of that, and never ahead of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec

from kgserve.cluster.protocols import Log, Owner, append_whole
from kgserve.cluster.records import Logged, Position, Record, joined
from kgserve.errors import Conflict, CopyTooOld, Fenced, ReplicatedLogCorrupt, Unavailable
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import storing, sync_folder, write_whole
from kgserve.storage.journal.journal import Frame, FrameError, Journal, encode_frame, frame_bytes, read_frame
from kgserve.storage.model.change import ChangeSet

LOG_POSITION_FILE = "log.json"
_encode = msgspec.json.Encoder().encode


class ShippedPosition(msgspec.Struct, frozen=True):
    """How far files are a copy of a log: a position in it, and the last sequence up to there.

    What the log holds up to ``begins`` is of a store that was dropped. What was erased in so many ``erasures`` is not
    in the files.
    """

    position: Position = 0
    sequence: int = 0
    begins: Position = 0
    erasures: int = 0

    def is_outdated(self, owner: Owner) -> bool:
        """Whether the files are to be gone on with no more."""
        return owner.outdates(self.begins, self.position, self.erasures)


class Shipping:
    """What writes to the journal of a store that this node owns: first to the log, then to the files.

    After the first commit that is refused, or of which nobody could say, or that the files did not take, it takes no
    more: the log has to be taken over anew.
    """

    def __init__(self, journal: Journal, log: Log, store: str, epoch: int, reached: ShippedPosition) -> None:
        """Use `take_over`."""
        self.journal = journal
        self.is_over = False
        self._log = log
        self.store = store
        self._epoch = epoch
        self._position = reached.position
        self.reached = reached
        """How far the files are a copy now; replaced as a whole, for any thread."""

    def append(self, changes: list[ChangeSet]) -> None:
        """Make consecutive change sets durable in the log and in the files, all or none of them.

        Raises Fenced, Unconfirmed, StorageFull and Unavailable.
        """
        if self.is_over:
            raise Unavailable(f"store {self.store!r} is being taken over", retry_after=1)
        first, last = changes[0].sequence, changes[-1].sequence
        data = encode_frame(changes)
        try:
            self._ship(data, first, last)
            self.journal.append_frame(data, first, last)
            self._reach(last)
        except BaseException:
            self.is_over = True
            raise

    def ship_after(self, sequence: int) -> None:
        """Give the log what the files alone have: that of a store which was begun without one. Raises as `append`."""
        for frame in self.journal.frames(sequence):
            self._ship(frame_bytes(frame), frame.first, frame.last)
        self._reach(self.journal.last)

    def note(self) -> None:
        """Put down how far the files are, so that who opens them next need not compare them. Raises StorageFull."""
        if not self.is_over:
            note_reached(self.journal.folder.parent, self.reached)

    def erased(self, erasures: int) -> None:
        """Something was erased: the files are of afterwards."""
        self.reached = msgspec.structs.replace(self.reached, erasures=erasures)

    def _reach(self, last: int) -> None:
        self.reached = msgspec.structs.replace(self.reached, position=self._position, sequence=last)

    def _ship(self, data: bytes, first: int, last: int) -> None:
        record = Record("frame", self._epoch, first, last, data)
        self._position = append_whole(self._log, self.store, self._position, record)


def fence(log: Log, store: str, epoch: int) -> Position:
    """Keep whoever wrote to a store's log from doing so again, whatever is in it; the position of its last record.

    Raises Unconfirmed and Unavailable.
    """
    while True:
        try:
            return log.append(store, log.end(store), Record("take", epoch))
        except Fenced:
            continue


def take_over(journal: Journal, log: Log, store: str, owner: Owner) -> Shipping:
    """Bring a journal's files to the end of the log, and keep whoever wrote to it before from doing so again.

    The files of a store that is ``coming`` are given to the log.

    Raises Fenced when the owner of a later epoch was there, LogTorn when the log lacks what the files have or holds
    something else, CopyTooOld when it no longer goes back as far as they do, Unconfirmed and Unavailable.
    """
    reached = reached_by(journal, store, owner)
    while True:
        end = log.end(store)
        reached = copied(journal, log.read(store, reached.position, end), store, owner.epoch, reached)
        if not owner.coming:
            require_not_ahead(journal, store, reached)
        try:
            position = log.append(store, end, Record("take", owner.epoch))
        except Fenced:
            # The owner before has just written: that belongs to the store.
            continue
        reached = msgspec.structs.replace(reached, position=position)
        shipping = Shipping(journal, log, store, owner.epoch, reached)
        if owner.coming:
            shipping.ship_after(max(reached.sequence, journal.oldest - 1))
        shipping.note()
        return shipping


def require_not_ahead(journal: Journal, store: str, reached: ShippedPosition) -> None:
    """Raise LogTorn when files hold more than the log that they are a copy of as far as it goes."""
    if journal.last > reached.sequence:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} ends with sequence {reached.sequence}, but this node has sequence "
            f"{journal.last}: commits that were durable are missing in the log"
        )


def copied(
    journal: Journal,
    found: Iterable[Logged],
    store: str,
    epoch: int | None,
    reached: ShippedPosition,
    *,
    durable: bool = True,
) -> ShippedPosition:
    """How far a journal's files are a copy of the log, once they have what was ``found`` in it from there on.

    That is behind its last record as a whole: parts of a next one may be there. If it is not to be ``durable`` at once,
    the journal is to be synced. Raises as `take_over`; without an ``epoch`` whoever owns the store may have written.
    """
    mine = _frames_after(journal, reached.sequence)
    position, sequence = reached.position, reached.sequence
    for logged in joined(found):
        position = logged.position
        if epoch is not None and logged.record.epoch > epoch:
            raise Fenced(f"store {store!r} was taken over by the owner of epoch {logged.record.epoch}")
        if logged.record.kind != "frame":
            continue
        frame = frame_of(store, logged)
        if frame.first > journal.last + 1:
            raise ReplicatedLogCorrupt(
                f"the log of store {store!r} goes on with sequence {frame.first} after {journal.last}"
            )
        if frame.first == journal.last + 1:
            journal.append_frame(logged.record.data, frame.first, frame.last, durable=durable)
        elif frame.first >= journal.oldest:
            _compare(store, frame, next(mine, None))
        sequence = frame.last
    return msgspec.structs.replace(reached, position=position, sequence=sequence)


def matching(journal: Journal, log: Log, store: str, owner: Owner) -> int:
    """How many frames a torn log still has, each of which the journal's files have as well, and more.

    Raises Conflict when they do not, or when the log lacks nothing that they have, and Unavailable.
    """
    found, end, torn = 0, owner.bases[0].sequence if owner.bases else 0, False
    mine = iter(journal.frames(journal.oldest - 1))
    for logged in joined(log.left(store, owner.oldest)):
        if logged.record.kind != "frame":
            continue
        try:
            frame = frame_of(store, logged)
        except ReplicatedLogCorrupt:
            torn = True
            continue
        if frame.last > journal.last:
            raise Conflict(
                f"the files of store {store!r} here end at sequence {journal.last}, and its log has {frame.last}: they "
                "are not what it lacks; ask the node that served it last"
            )
        found, torn, end = found + 1, torn or frame.first > end + 1, frame.last
        if frame.first >= journal.oldest:
            _compare_with(store, frame, mine)
    if not torn and end >= journal.last:
        raise Conflict(f"the log of store {store!r} lacks nothing that the files here have")
    return found


def _compare_with(store: str, frame: Frame, mine: Iterator[Frame]) -> None:
    """Raise Conflict unless a frame of a log is among the files', which are looked through from where they are."""
    same = next((each for each in mine if each.first >= frame.first), None)
    try:
        _compare(store, frame, same)
    except ReplicatedLogCorrupt as error:
        raise Conflict(f"{error.message}: neither is known to be right") from error


def _frames_after(journal: Journal, sequence: int) -> Iterator[Frame]:
    """The files' own frames after a sequence, without those that they let go of, since a snapshot has them."""
    yield from journal.frames(max(sequence, journal.oldest - 1))


def frame_of(store: str, logged: Logged) -> Frame:
    """The frame in a record. Raises LogTorn."""
    data = logged.record.data
    try:
        return read_frame(BytesIO(data), 0, len(data))
    except FrameError as error:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} is damaged at position {logged.position}: {error}"
        ) from error


def _compare(store: str, frame: Frame, mine: Frame | None) -> None:
    if mine is None or (mine.first, mine.payload) != (frame.first, frame.payload):
        raise ReplicatedLogCorrupt(
            f"sequence {frame.first} of store {store!r} is another one in the log than on this node"
        )


def forget_reached(folder: Path) -> None:
    """Have the files of a store's folder be no copy of a log. Raises OSError."""
    (folder / LOG_POSITION_FILE).unlink(missing_ok=True)
    sync_folder(folder)


def read_reached(folder: Path) -> ShippedPosition | None:
    """How far the files of a store's folder were a copy when that was last put down, if it ever was."""
    path = folder / LOG_POSITION_FILE
    return decode_json(path.read_bytes(), ShippedPosition) if path.is_file() else None


def reached_by(journal: Journal, store: str, owner: Owner) -> ShippedPosition:
    """How far the files are a copy for certain. If they have lost more than was put down, from the beginning.

    Raises CopyTooOld when the log no longer goes back as far as that.
    """
    folder, fresh = journal.folder.parent, ShippedPosition(owner.begins, 0, owner.begins, owner.erasures)
    reached = read_reached(folder) or fresh
    if reached.begins != owner.begins or reached.sequence > journal.last:
        reached = msgspec.structs.replace(fresh, erasures=reached.erasures)
    if reached.is_outdated(owner) and not owner.coming:
        note_reached(folder, ShippedPosition(begins=owner.begins))
        raise CopyTooOld(f"the files of store {store!r} were lost in part; they are fetched again", retry_after=1)
    return reached


def note_reached(folder: Path, reached: ShippedPosition) -> None:
    """Put down how far the files of a store's folder are a copy of its log. Raises StorageFull."""
    with storing("noting how far the log was read"):
        write_whole(folder / LOG_POSITION_FILE, _encode(reached))
