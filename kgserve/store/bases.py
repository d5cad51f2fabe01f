"""What there is of a store for other nodes of a cluster, besides its log: put after a snapshot, fetched before opening.

With a snapshot go the history, which the log could no longer tell once it is trimmed, and the embeddings, which would
take hours to compute again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from kgserve.cluster.bases import fetch, is_whole, names_of, put_files, sweep
from kgserve.cluster.ownership import Ownership
from kgserve.cluster.protocols import Base, Blobs, Log, Owner
from kgserve.cluster.shipping import Reached, copied, note_reached
from kgserve.decoding import decode_json
from kgserve.errors import JournalDamaged, LogTorn, NotFound, Unavailable
from kgserve.journal import snapshot
from kgserve.journal.journal import Journal
from kgserve.settings import MEBIBYTE, Settings
from kgserve.sqlite_files import copy_database
from kgserve.store.closed_store import seen_by_history
from kgserve.store.layout import JOURNAL, Layout, StoreFile, write_description
from kgserve.store.rebuild import fresh_folder

log = structlog.get_logger()

GROWTH = 1.25
"""Embeddings are put anew once they have grown by so much: what is missing is computed again by who takes over."""
PATIENCE_SECONDS = 5.0
"""How long a history that is behind is waited for."""
_LOOK_SECONDS = 0.05


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
    def keeping(self, reached: Callable[[], Reached], *, alone: bool) -> Generator[None]:
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
            since = Reached(owner.begins, journal.oldest - 1, owner.begins)
            history = self._history() if self._sees(owner, since.sequence) else None
            bases = (self._put(owner, since, history, None),)
        return partial(replace, coming=False, bases=bases)

    def _keep(self, since: Reached, *, alone: bool) -> None:
        name, scratch = self._layout.name, self._layout.scratch / "kept"
        owner = self._ownership.still_mine(name).owner
        before = owner.bases[-1] if owner.bases else None
        if not alone and before is not None and _snapshot_of(self._layout).keys() <= before.files.keys():
            return
        base = self._put(owner, since, self._awaited_history(owner, since.sequence), None if alone else before)
        if alone and not is_whole(self._blobs, name, base, scratch):
            raise LogTorn(f"the snapshot of store {name!r} that was put into the cluster is damaged there")
        first = base if alone else before
        if not alone and before is not None and not is_whole(self._blobs, name, before, scratch):
            first = None
        kept = (base,) if first is None or first is base else (first, base)
        erasures = owner.erasures + 1 if alone else owner.erasures
        owner = self._ownership.keep(name, partial(replace, bases=kept, erasures=erasures))
        if first is not None:
            self._log.trim(name, first.position)
        sweep(self._blobs, name, owner, names_of(kept))
        log.info("base_kept", store=name, sequence=base.sequence, trimmed=first is not None)

    def _put(self, owner: Owner, since: Reached, history: Path | None, before: Base | None) -> Base:
        """Have a base of the newest snapshot, with the embeddings of the one before if those are nearly all."""
        paths = _snapshot_of(self._layout)
        if history is not None:
            paths[self._key(self._layout.history)] = history
        key, taken, size = self._key(self._layout.embeddings), None, 0
        if self._layout.embeddings.exists():
            size = self._layout.embeddings.stat().st_size
            if before is not None and key in before.files and size <= GROWTH * before.vectors:
                taken, size = before.files[key], before.vectors
            else:
                paths[key] = self._copy_of(self._layout.embeddings)
        try:
            names = put_files(self._blobs, self._layout.name, owner.epoch, paths)
        finally:
            shutil.rmtree(self._layout.scratch / "base", ignore_errors=True)
        return Base(since.sequence, since.position, names | ({key: taken} if taken else {}), size)

    def _awaited_history(self, owner: Owner, sequence: int) -> Path | None:
        """A copy of the history, if the store has one, which has seen a commit. Raises Unavailable."""
        if not self._keeps_history(owner):
            return None
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._sees(owner, sequence):
            if time.monotonic() > until:
                raise Unavailable(f"the history of store {self._layout.name!r} is behind", retry_after=5)
            time.sleep(_LOOK_SECONDS)
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
    names = [*snapshot.verify(snapshots[0]).files, snapshot.MANIFEST]
    return {f"{JOURNAL}/{snapshots[0].name}/{name}": snapshots[0] / name for name in names}


def fetch_store(
    folder: Path, layout: Layout, owner: Owner, blobs: Blobs, logs: Log, segment_mb: int, *, to_own: bool
) -> None:
    """Make a store's files in an empty folder, of the newest base that is whole and what the log has since.

    Who is ``to_own`` it must be its last owner. Raises LogTorn when there is none, Fenced, StorageFull and Unavailable.
    """
    failed = LogTorn(f"store {layout.name!r} has no base in the cluster")
    for base in reversed(owner.bases):
        try:
            fetch(blobs, base, fresh_folder(folder))
            for each in snapshot.list_snapshots(folder / JOURNAL):
                snapshot.verify(each)
            write_description(folder, decode_json(owner.description, StoreFile))
            journal = Journal.create(folder / JOURNAL, segment_mb * MEBIBYTE, base.sequence + 1)
            try:
                begun = Reached(base.position, base.sequence, owner.begins, owner.erasures)
                found = logs.read(layout.name, base.position, logs.end(layout.name))
                note_reached(
                    folder, copied(journal, found, layout.name, owner.epoch if to_own else None, begun, durable=False)
                )
                journal.sync()
            finally:
                journal.close()
        except (NotFound, LogTorn, JournalDamaged) as error:
            log.error("base_unusable", store=layout.name, sequence=base.sequence, reason=str(error))
            failed = LogTorn(f"no base of store {layout.name!r} in the cluster is whole: {error}")
        else:
            log.info("base_fetched", store=layout.name, sequence=base.sequence)
            return
    raise failed
