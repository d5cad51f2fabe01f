"""What a store that is not open holds, without opening it."""

from __future__ import annotations

from kgserve.errors import JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import named
from kgserve.journal.frame import Frame, FrameError
from kgserve.journal.journal import list_segments, read_segment
from kgserve.model.change import StoreState
from kgserve.store.layout import Layout


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
        last: Frame | None = None
        try:
            for frame in read_segment(segment, None):
                last = frame
        except FrameError:
            # A torn tail; what comes before it is what the store will open with.
            pass
        if last is not None:
            return last.changes()[-1].state
    snapshots = snapshot.list_snapshots(layout.journal)
    return snapshot.verify(snapshots[0]).state if snapshots else StoreState()
