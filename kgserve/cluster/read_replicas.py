"""Copies of stores that other nodes of a cluster serve: open ones, which may be read, and files for the next take-over.

Both are gone on with from the stores' logs, by one thread: about a second after a commit they have it. What there is of
a store for other nodes besides its log is put after a snapshot, and fetched before opening: with the snapshot the
history, which the log could no longer tell once it is trimmed, and the embeddings, which would take hours to compute
again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from msgspec.structs import replace
from typing_extensions import override

from kgserve.cluster.bases import fetch, is_whole, names_of, put_files, sweep
from kgserve.cluster.ownership import OwnedBy, Ownership
from kgserve.cluster.protocols import Blobs, BootstrapSnapshot, Log, Owner
from kgserve.cluster.records import Logged, Position, joined
from kgserve.cluster.shipping import ShippedPosition, copied, frame_of, note_reached, reached_by, require_not_ahead
from kgserve.errors import (
    JournalDamaged,
    KgserveError,
    NoStore,
    NotFound,
    OwnerUnreachable,
    ReplicatedLogCorrupt,
    ServedElsewhere,
    Unavailable,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.platform.sqlite_files import copy_database
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.layout import JOURNAL_FOLDER, Layout, StoreFile, seen_by_history, write_description
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.rebuild import fresh_folder
from kgserve.stores.placement import CommitLog, CommittingStore, HeldStores

log = structlog.get_logger()

REPLICA_POLL_SECONDS = 1.0
"""So old a copy is at most, as long as its log can be read."""
REPLICA_IDLE_SECONDS = 10.0
"""After so long without news the files of a copy are closed, and are on the disk as far as that is noted."""
_REFETCH_GROWTH_FACTOR = 2
"""Files are fetched anew when so many times what a snapshot is made after has come since theirs."""


def refusal(store: str, found: OwnedBy) -> ServedElsewhere | OwnerUnreachable:
    """What is said to who asks this node for a store of another one."""
    if found.quiet:
        return OwnerUnreachable(
            f"store {store!r} is served by node {found.node!r} of the cluster, which has not been heard of for "
            "seconds: if that lasts, another node takes it over; try again",
            retry_after=1,
        )
    return served_elsewhere(store, found)


def served_elsewhere(store: str, found: OwnedBy) -> ServedElsewhere:
    """Where a store of another node is to be had."""
    told = f"store {store!r} is served by node {found.node!r} of the cluster, at {found.url}"
    return ServedElsewhere(told, found.node, found.url)


class CopyCommits(CommitLog):
    """The commits of a store that another node serves: what its log has, and nothing else."""

    is_copy = True

    def __init__(self, journal: Journal, logs: Log, ownership: Ownership, store: str, reached: ShippedPosition) -> None:
        super().__init__(journal)
        self._log = logs
        self._ownership = ownership
        self._store = store
        self._reached = reached
        self._turn = threading.Lock()
        self._arriving: bytes | None = None
        self._is_over = False

    @property
    @override
    def is_current(self) -> bool:
        owner = self._ownership.known(self._store)
        if self._is_over or owner is None or owner.node == self._ownership.node:
            return False
        return not self._reached.is_outdated(owner)

    @override
    def confirm(self) -> bool:
        if self.is_current:
            self.refuse()
        return False

    def refuse(self) -> None:
        """Raise ServedElsewhere or OwnerQuiet, if it is another node's. Raises NoStore and Unavailable."""
        found = self._ownership.decided(self._store, self._ownership.claimed(self._store))
        if isinstance(found, OwnedBy):
            raise refusal(self._store, found)

    @override
    def append(self, changes: list[ChangeSet]) -> None:
        if self._arriving is None:
            self.refuse()
            raise Unavailable(f"store {self._store!r} is being taken over", retry_after=1)
        self.journal.append_frame(self._arriving, changes[0].sequence, changes[-1].sequence)

    @override
    def note(self) -> None:
        note_reached(self.journal.folder.parent, self._reached)

    @override
    def catch_up(self, store: CommittingStore, found: Sequence[Logged] = ()) -> None:
        """Take in what the log has by now, of which some was ``found`` already. Blocks.

        Raises LogTorn, upon which it is of no use any more, StorageFull and Unavailable.
        """
        with self._turn:
            try:
                for logged in joined(_news(self._log, self._store, self._reached.position, found)):
                    self._take(store, logged)
            except ReplicatedLogCorrupt:
                self._is_over = True
                raise
            finally:
                self._arriving = None

    def _take(self, store: CommittingStore, logged: Logged) -> None:
        sequence = self._reached.sequence
        if logged.record.kind == "frame":
            frame = frame_of(self._store, logged)
            if frame.first != sequence + 1:
                raise ReplicatedLogCorrupt(
                    f"the log of store {self._store!r} goes on with sequence {frame.first} after {sequence}"
                )
            self._arriving, sequence = logged.record.data, frame.last
            store.follow(frame.changes())
        self._reached = replace(self._reached, position=logged.position, sequence=sequence)


def _news(logs: Log, store: str, after: Position, found: Sequence[Logged]) -> Iterable[Logged]:
    """What a log has after a position: what was found, if it is that. Raises LogTorn and Unavailable."""
    if found and found[0].before == after:
        return found
    if found and found[-1].position <= after:
        return ()
    return logs.read(store, after, logs.end(store))


class _Files(NamedTuple):
    """The journal of a copy that nobody reads, and when something last came."""

    journal: Journal
    reached: ShippedPosition
    used: float


class CopiedFiles(Protocol):
    """Where the files of copies are."""

    def copied_files(self, name: str) -> tuple[Journal, ShippedPosition]:
        """The journal of a copy that is not open, made if there was none, and how far it was a copy. Raises NoStore."""
        ...

    def remove(self, name: str) -> None:
        """Remove a store's files."""
        ...


class Copies:
    """Goes on with all copies of a node: a thread of its own, from `begin` to `close`.

    ``copies``: of how many nodes that do not serve a store this one has to be one, to have its files.
    """

    def __init__(self, logs: Log, ownership: Ownership, files: CopiedFiles, copies: int, compact_mb: int) -> None:
        self._log = logs
        self._ownership = ownership
        self._where = files
        self._copies = copies
        self._most_bytes = _REFETCH_GROWTH_FACTOR * compact_mb * MEBIBYTE
        self._seen: list[Position] = []
        self._files: dict[str, _Files] = {}
        self._lock = threading.Lock()
        self._first = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, held: HeldStores) -> None:
        """Follow the logs from now on, for the stores that are ``held`` and those whose files are to be here."""
        self._thread = threading.Thread(target=self._run, args=(held,), name="copies", daemon=True)
        self._thread.start()

    def opened(self, journal: Journal, name: str, owner: Owner) -> CopyCommits:
        """The commits of a copy that is being opened, once it has what the log has by now.

        Raises CopyTooOld, LogTorn and Unavailable.
        """
        self._look_first()
        reached = reached_by(journal, name, owner)
        reached = copied(journal, self._log.read(name, reached.position, self._log.end(name)), name, None, reached)
        require_not_ahead(journal, name, reached)
        return CopyCommits(journal, self._log, self._ownership, name, reached)

    def close(self) -> None:
        """Follow no more; what has come is on the disk."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        for name in list(self._files):
            self.let_go(name)

    def let_go(self, name: str) -> None:
        """Close the files of a copy, which is to be opened or removed, and which nobody opens meanwhile."""
        with self._lock:
            files = self._files.pop(name, None)
        if files is None:
            return
        try:
            files.journal.sync()
            note_reached(files.journal.folder.parent, files.reached)
        except (KgserveError, OSError) as error:
            # Less is known of it, and compared when it is opened.
            log.warning("copy_not_noted", store=name, reason=str(error))
        files.journal.close()

    def _run(self, held: HeldStores) -> None:
        while not self._closing.wait(REPLICA_POLL_SECONDS):
            try:
                self._look_first()
                for shard in range(self._log.shards):
                    self._follow(shard, held)
                self._close_idle(held)
            except KgserveError as error:
                log.warning("copies_not_followed", reason=str(error))
            except Exception:
                # Whatever it is, the thread must go on.
                log.exception("copies_not_followed")

    def _look_first(self) -> None:
        """See how far the logs are, before any copy is opened.

        What came before is read when one is opened, or when something comes after it.
        """
        with self._first:
            if not self._seen:
                self._seen = [self._log.latest(shard) for shard in range(self._log.shards)]

    def _follow(self, shard: int, held: HeldStores) -> None:
        while not self._closing.is_set() and (found := self._log.recent(shard, self._seen[shard])):
            news: defaultdict[str, list[Logged]] = defaultdict(list)
            for store, logged in found:
                news[store].append(logged)
            for store, each in news.items():
                self._take(store, each, held)
            self._seen[shard] = found[-1][1].position

    def _take(self, name: str, found: list[Logged], held: HeldStores) -> None:
        try:
            with held.held_open(name) as store:
                if store is not None:
                    if isinstance(store.commits, CopyCommits) and store.commits.is_current:
                        store.commits.catch_up(store, found)
                    return
            if self._ownership.keeps_copy(name, self._copies):
                with held.unopened(name) as is_unopened, suppress(NoStore):
                    if is_unopened:
                        self._go_on(name, found)
        except (KgserveError, OSError) as error:
            log.warning("copy_not_followed", store=name, reason=str(error))

    def _go_on(self, name: str, found: list[Logged]) -> None:
        """Have the files of a copy that is not open go on with what has come. At the store's gate."""
        files = self._files.get(name)
        journal, reached = (files.journal, files.reached) if files else self._where.copied_files(name)
        # There at once, so that it is closed whatever comes.
        self._files[name] = _Files(journal, reached, time.monotonic())
        try:
            news = _news(self._log, name, reached.position, found)
            reached = copied(journal, news, name, None, reached, durable=False)
            require_not_ahead(journal, name, reached)
        except BaseException:
            self.let_go(name)
            raise
        self._files[name] = _Files(journal, reached, time.monotonic())
        if journal.bytes > self._most_bytes and self._has_newer_base(name, journal):
            self._where.remove(name)

    def _has_newer_base(self, name: str, journal: Journal) -> bool:
        owner = self._ownership.known(name)
        return owner is not None and bool(owner.bases) and owner.bases[-1].sequence >= journal.oldest

    def _close_idle(self, held: HeldStores) -> None:
        before = time.monotonic() - REPLICA_IDLE_SECONDS
        for name in [name for name, each in self._files.items() if each.used < before]:
            with held.unopened(name) as is_unopened:
                if is_unopened:
                    self.let_go(name)


EMBEDDINGS_UPLOAD_GROWTH_FACTOR = 1.25
"""Embeddings are put anew once they have grown by so much: what is missing is computed again by who takes over."""
REPLICA_HISTORY_TIMEOUT_SECONDS = 5.0
"""How long a history that is behind is waited for."""
_REPLICA_HISTORY_POLL_SECONDS = 0.05


class Bases:
    """Makes and keeps the bases of one store that this node serves."""

    def __init__(self, layout: Layout, settings: Settings, blobs: Blobs, logs: Log, ownership: Ownership) -> None:
        self._layout = layout
        self._settings = settings
        self._blobs = blobs
        self._log = logs
        self._ownership = ownership
        self._turn = threading.Lock()

    @contextmanager
    def keeping(self, reached: Callable[[], ShippedPosition], *, alone: bool) -> Generator[None]:
        """Keep the snapshot that is taken within the block for all nodes, and trim the log before the one before it.

        With ``alone`` nothing from before it stays. Raises Fenced, Unconfirmed, StorageFull and Unavailable.
        """
        since = reached()
        yield
        with self._turn:
            self._keep(since, alone=alone)

    def arrival(self, owner: Owner, journal: Journal) -> Callable[[Owner], Owner]:
        """What changes once the log has all of a store that is coming, whose journal may begin with a snapshot.

        Raises JournalDamaged, StorageFull and Unavailable.
        """
        bases = owner.bases
        if journal.oldest > 1 and not bases:
            since = ShippedPosition(owner.begins, journal.oldest - 1, owner.begins)
            history = self._history() if self._sees(owner, since.sequence) else None
            bases = (self._put(owner, since, history, None),)
        return partial(replace, coming=False, bases=bases)

    def _keep(self, since: ShippedPosition, *, alone: bool) -> None:
        name, scratch = self._layout.name, self._layout.scratch / "kept"
        owner = self._ownership.still_mine(name).owner
        before = owner.bases[-1] if owner.bases else None
        if not alone and before is not None and _snapshot_of(self._layout).keys() <= before.files.keys():
            return
        base = self._put(owner, since, self._awaited_history(owner, since.sequence), None if alone else before)
        if alone and not is_whole(self._blobs, name, base, scratch):
            raise ReplicatedLogCorrupt(f"the snapshot of store {name!r} that was put into the cluster is damaged there")
        first = base if alone else before
        if not alone and before is not None and not is_whole(self._blobs, name, before, scratch):
            first = None
        kept = (base,) if first is None or first is base else (first, base)
        erasures = owner.erasures + 1 if alone else owner.erasures
        owner = self._ownership.keep(name, partial(replace, bases=kept, erasures=erasures))
        if first is not None:
            self._log.trim(name, first.position, erase=alone)
        sweep(self._blobs, name, owner, names_of(kept), erase=alone)
        log.info("base_kept", store=name, sequence=base.sequence, trimmed=first is not None)

    def _put(
        self, owner: Owner, since: ShippedPosition, history: Path | None, before: BootstrapSnapshot | None
    ) -> BootstrapSnapshot:
        """Have a base of the newest snapshot, with the embeddings of the one before if those are nearly all."""
        paths = _snapshot_of(self._layout)
        if history is not None:
            paths[self._key(self._layout.history)] = history
        key, taken, size = self._key(self._layout.embeddings), None, 0
        if self._layout.embeddings.exists():
            size = self._layout.embeddings.stat().st_size
            if before is not None and key in before.files and size <= EMBEDDINGS_UPLOAD_GROWTH_FACTOR * before.vectors:
                taken, size = before.files[key], before.vectors
            else:
                paths[key] = self._copy_of(self._layout.embeddings)
        try:
            names = put_files(self._blobs, self._layout.name, owner.epoch, paths)
        finally:
            shutil.rmtree(self._layout.scratch / "base", ignore_errors=True)
        return BootstrapSnapshot(since.sequence, since.position, names | ({key: taken} if taken else {}), size)

    def _awaited_history(self, owner: Owner, sequence: int) -> Path | None:
        """A copy of the history, if the store has one, which has seen a commit. Raises Unavailable."""
        if not self._keeps_history(owner):
            return None
        until = time.monotonic() + REPLICA_HISTORY_TIMEOUT_SECONDS
        while not self._sees(owner, sequence):
            if time.monotonic() > until:
                raise Unavailable(f"the history of store {self._layout.name!r} is behind", retry_after=5)
            time.sleep(_REPLICA_HISTORY_POLL_SECONDS)
        return self._history()

    def _keeps_history(self, owner: Owner) -> bool:
        return self._settings.history and decode_json(owner.description, StoreFile).history != "none"

    def _sees(self, owner: Owner, sequence: int) -> bool:
        exists = self._keeps_history(owner) and self._layout.history.exists()
        return exists and seen_by_history(self._layout) >= sequence

    def _history(self) -> Path:
        return self._copy_of(self._layout.history)

    def _copy_of(self, database: Path) -> Path:
        copy = self._layout.scratch / "base" / database.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        copy_database(database, copy)
        return copy

    def _key(self, path: Path) -> str:
        return str(path.relative_to(self._layout.root))


def _snapshot_of(layout: Layout) -> dict[str, Path]:
    """The files of a store's newest snapshot, by their paths in its folder. Raises JournalDamaged."""
    snapshots = snapshot.list_snapshots(layout.journal)
    if not snapshots:
        raise JournalDamaged(f"store {layout.name!r} has no snapshot")
    names = [*snapshot.verify(snapshots[0]).files, snapshot.SNAPSHOT_MANIFEST_FILE]
    return {f"{JOURNAL_FOLDER}/{snapshots[0].name}/{name}": snapshots[0] / name for name in names}


def fetch_store(
    folder: Path, layout: Layout, owner: Owner, blobs: Blobs, logs: Log, segment_mb: int, *, to_own: bool
) -> None:
    """Make a store's files in an empty folder, of the newest base that is whole and what the log has since.

    Who is ``to_own`` it must be its last owner. Raises LogTorn when there is none, Fenced, StorageFull and Unavailable.
    """
    failed = ReplicatedLogCorrupt(f"store {layout.name!r} has no base in the cluster")
    for base in reversed(owner.bases):
        try:
            fetch(blobs, base, fresh_folder(folder))
            for each in snapshot.list_snapshots(folder / JOURNAL_FOLDER):
                snapshot.verify(each)
            write_description(folder, decode_json(owner.description, StoreFile))
            journal = Journal.create(folder / JOURNAL_FOLDER, segment_mb * MEBIBYTE, base.sequence + 1)
            try:
                begun = ShippedPosition(base.position, base.sequence, owner.begins, owner.erasures)
                found = logs.read(layout.name, base.position, logs.end(layout.name))
                note_reached(
                    folder, copied(journal, found, layout.name, owner.epoch if to_own else None, begun, durable=False)
                )
                journal.sync()
            finally:
                journal.close()
        except (NotFound, ReplicatedLogCorrupt, JournalDamaged) as error:
            log.error("base_unusable", store=layout.name, sequence=base.sequence, reason=str(error))
            failed = ReplicatedLogCorrupt(f"no base of store {layout.name!r} in the cluster is whole: {error}")
        else:
            log.info("base_fetched", store=layout.name, sequence=base.sequence)
            return
    raise failed
