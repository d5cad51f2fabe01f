"""Copies of stores that other nodes of a cluster serve: open ones, which may be read, and files for the next take-over.

Both are gone on with from the stores' logs, by one thread: about a second after a commit they have it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple, Protocol

import structlog
from msgspec.structs import replace

from kgserve.cluster.ownership import Elsewhere, Ownership
from kgserve.cluster.protocols import Log, Owner
from kgserve.cluster.records import Logged, Position, joined
from kgserve.cluster.shipping import Reached, copied, frame_of, note_reached, reached_by, require_not_ahead
from kgserve.errors import KgserveError, LogTorn, NoStore, ServedElsewhere, Unavailable
from kgserve.journal.journal import Journal
from kgserve.model.change import ChangeSet
from kgserve.settings import MEBIBYTE
from kgserve.store.placement import Held, OpenStore

log = structlog.get_logger()

ROUND_SECONDS = 1.0
"""So old a copy is at most, as long as its log can be read."""
IDLE_SECONDS = 10.0
"""After so long without news the files of a copy are closed, and are on the disk as far as that is noted."""
_GROWN = 2
"""Files are fetched anew when so many times what a snapshot is made after has come since theirs."""


def served_elsewhere(store: str, found: Elsewhere) -> ServedElsewhere:
    """What is said to who asks this node for a store of another one."""
    told = f"store {store!r} is served by node {found.node!r} of the cluster, at {found.url}"
    return ServedElsewhere(told, found.node, found.url)


class CopyCommits:
    """The commits of a store that another node serves: what its log has, and nothing else."""

    is_copy = True

    def __init__(self, journal: Journal, logs: Log, ownership: Ownership, store: str, reached: Reached) -> None:
        self._journal = journal
        self._log = logs
        self._ownership = ownership
        self._store = store
        self._reached = reached
        self._turn = threading.Lock()
        self._arriving: bytes | None = None
        self._is_over = False

    @property
    def is_current(self) -> bool:
        """See `Commits.is_current`: whether it may be read as a copy."""
        owner = self._ownership.known(self._store)
        if self._is_over or owner is None or owner.node == self._ownership.node:
            return False
        return not self._reached.is_outdated(owner)

    def confirm(self) -> bool:
        """See `Commits.confirm`: never as the store itself. Raises ServedElsewhere while it is another node's."""
        if self.is_current:
            self.refuse()
        return False

    def refuse(self) -> None:
        """Raise ServedElsewhere, if it is another node's. Raises NoStore and Unavailable."""
        found = self._ownership.decided(self._store, self._ownership.claimed(self._store))
        if isinstance(found, Elsewhere):
            raise served_elsewhere(self._store, found)

    def append(self, changes: list[ChangeSet]) -> None:
        """See `Commits.append`: what is just arriving. Raises ServedElsewhere for anything else."""
        if self._arriving is None:
            self.refuse()
            raise Unavailable(f"store {self._store!r} is being taken over", retry_after=1)
        self._journal.append_frame(self._arriving, changes[0].sequence, changes[-1].sequence)

    def keeping(self, *, alone: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - its owner has to know
        """See `Commits.keeping`: it is kept here, and nowhere else."""
        return nullcontext()

    def note(self) -> None:
        """See `Commits.note`."""
        note_reached(self._journal.folder.parent, self._reached)

    def catch_up(self, store: OpenStore, found: Sequence[Logged] = ()) -> None:
        """Take in what the log has by now, of which some was ``found`` already. Blocks.

        Raises LogTorn, upon which it is of no use any more, StorageFull and Unavailable.
        """
        with self._turn:
            try:
                for logged in joined(_news(self._log, self._store, self._reached.position, found)):
                    self._take(store, logged)
            except LogTorn:
                self._is_over = True
                raise
            finally:
                self._arriving = None

    def _take(self, store: OpenStore, logged: Logged) -> None:
        sequence = self._reached.sequence
        if logged.record.kind == "frame":
            frame = frame_of(self._store, logged)
            if frame.first != sequence + 1:
                raise LogTorn(f"the log of store {self._store!r} goes on with sequence {frame.first} after {sequence}")
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
    reached: Reached
    used: float


class CopiedFiles(Protocol):
    """Where the files of copies are."""

    def copied_files(self, name: str) -> tuple[Journal, Reached]:
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
        self._most_bytes = _GROWN * compact_mb * MEBIBYTE
        self._seen: list[Position | None] = [None] * logs.shards
        self._files: dict[str, _Files] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, held: Held) -> None:
        """Follow the logs from now on, for the stores that are ``held`` and those whose files are to be here."""
        self._thread = threading.Thread(target=self._run, args=(held,), name="copies", daemon=True)
        self._thread.start()

    def opened(self, journal: Journal, name: str, owner: Owner) -> CopyCommits:
        """The commits of a copy that is being opened, once it has what the log has by now.

        Raises CopyTooOld, LogTorn and Unavailable.
        """
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

    def _run(self, held: Held) -> None:
        while not self._closing.wait(ROUND_SECONDS):
            try:
                for shard in range(self._log.shards):
                    self._follow(shard, held)
                self._close_idle(held)
            except KgserveError as error:
                log.warning("copies_not_followed", reason=str(error))
            except Exception:
                # Whatever it is, the thread must go on.
                log.exception("copies_not_followed")

    def _follow(self, shard: int, held: Held) -> None:
        seen = self._seen[shard]
        if seen is None:
            # What came before is read when a copy is opened, or when something comes after it.
            self._seen[shard] = self._log.latest(shard)
            return
        while not self._closing.is_set() and (found := self._log.recent(shard, seen)):
            news: defaultdict[str, list[Logged]] = defaultdict(list)
            for store, logged in found:
                news[store].append(logged)
            for store, each in news.items():
                self._take(store, each, held)
            seen = self._seen[shard] = found[-1][1].position

    def _take(self, name: str, found: list[Logged], held: Held) -> None:
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

    def _close_idle(self, held: Held) -> None:
        before = time.monotonic() - IDLE_SECONDS
        for name in [name for name, each in self._files.items() if each.used < before]:
            with held.unopened(name) as is_unopened:
                if is_unopened:
                    self.let_go(name)
