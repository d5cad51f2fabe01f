"""What the files of a store that is not open tell: its state, and who else knows how far it had come.

The latter are views that were told of commits once the journal had them on the disk. So none of them can rightly be
ahead of the journal, whatever became of the machine: a view that is not synced may be behind or damaged after a power
loss, but what it says it has seen was durable before. One that is ahead is proof that the journal has lost its end. One
that cannot be read says nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from kgserve.decoding import decode_json
from kgserve.errors import JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import named
from kgserve.journal.journal import Journal, Seen, list_segments, whole_part
from kgserve.model.change import StoreState
from kgserve.rows.view import newest_base
from kgserve.settings import MEBIBYTE
from kgserve.store.layout import Layout

# The moment is written with the cursor: a damaged number is believed only where it stands twice.
_HISTORY = "SELECT sequence FROM cursor WHERE sequence IN (SELECT sequence FROM moment)"
_SEEN = "SELECT sequence FROM cursor"
_PATIENCE = 1.0  # seconds to wait for a lock; nobody should hold one


def witnesses(layout: Layout) -> Iterator[Seen]:
    """What each view of a store that is not open says it has seen; none is changed, and it takes a millisecond."""
    yield Seen("the history", seen_by_history(layout))
    yield Seen("the catalog", _of_database(layout.catalog, _SEEN))
    yield Seen("what is known of memories", _of_database(layout.memories, _SEEN))
    yield Seen("the keyword index", _of_manifest(layout.views / "keyword"))
    yield Seen("the vector index", _of_manifest(layout.views / "vector"))
    yield Seen("the present rows", newest_base(layout.rows))


def seen_by_history(layout: Layout) -> int:
    """The last commit that the history says it has seen; 0 where it says nothing. It may be open."""
    return _of_database(layout.history, _HISTORY)


class _Manifest(msgspec.Struct, frozen=True):
    """The part of a sealed folder's manifest that matters here."""

    sequence: int


def _of_manifest(folder: Path) -> int:
    try:
        return decode_json((folder / "manifest.json").read_bytes(), _Manifest).sequence
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _of_database(path: Path, query: str) -> int:
    if not path.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)) as connection:
            found = connection.execute(query).fetchone()
    except sqlite3.Error:
        return 0
    return found[0] if found and isinstance(found[0], int) else 0


def open_journal(layout: Layout, segment_mb: int) -> Journal:
    """The journal of a store that is not open, as far as it has to be looked through. Raises JournalDamaged."""
    after = snapshot.newest_sequence(layout.journal) if layout.journal.is_dir() else 0
    if (mark := layout.close_mark()) is None:
        layout.sync_names()
    trusted = mark and mark.journal
    return Journal.open(layout.journal, segment_mb * MEBIBYTE, after, trusted, witnesses(layout))


def closed_state(layout: Layout) -> StoreState:
    """The state in the mark of its clean close, or else the one in the last whole frame of its journal.

    Raises JournalDamaged when no segment is left, FileNotFoundError when there is no store.
    """
    mark = layout.close_mark()
    if mark is not None:
        return mark.state
    segments = list_segments(layout.journal)
    if not segments:
        raise JournalDamaged(f"{named(layout.journal)}: no segment of it is left; run `kgserve doctor --salvage`")
    for segment in reversed(segments):
        # What comes before a torn tail is what the store will open with.
        last, _ = whole_part(segment, None)
        if last is not None:
            return last.changes()[-1].state
    snapshots = snapshot.list_snapshots(layout.journal)
    return snapshot.verify(snapshots[0]).state if snapshots else StoreState()
