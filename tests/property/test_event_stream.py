"""Events of a listener that disconnects and resumes, from memory or from files: each exactly once, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import MAX_SINGLE_EVENT_ROWS, ChangeFeedEventFilter, FeedPosition
from kgserve.stores.open_store import OpenStore
from tests.fuzzing import examples
from tests.stores.writing import batch, opened, write

EVERYTHING = ChangeFeedEventFilter()

# Sizes of writes, pages read after each, and whether the listener leaves and resumes by its last id.
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 7, MAX_SINGLE_EVENT_ROWS + 1]), st.integers(0, 3), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@contextmanager
def fresh() -> Generator[OpenStore]:
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "data", journal_segment_mb=1) as store:
        yield store


class Visitor:
    """A listener that keeps only what it received."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._reader = self._enter(FeedPosition(1))
        self.seen: list[str] = []

    def take(self, pages: int, *, may_block: bool) -> None:
        for _ in range(pages):
            for entry in self._reader.take(EVERYTHING, may_block=may_block) or ():
                self.seen.append(f"{entry.event.sequence}-{entry.event.index}")

    def leave_and_return(self) -> None:
        self._reader.close()
        self._reader = self._enter(FeedPosition.parse(self.seen[-1]) if self.seen else FeedPosition(1))

    def finish(self) -> list[str]:
        while not self._reader.is_caught_up():
            self.take(1, may_block=True)
        self._reader.close()
        return self.seen

    def _enter(self, position: FeedPosition) -> ChangeFeedReader:
        return ChangeFeedReader(self._store.feed, position, lambda: None)


@given(STEPS)
@examples(8)
def test_each_event_is_received_once_and_in_order(steps: list[tuple[int, int, bool, bool]]) -> None:
    expected: list[str] = []
    with fresh() as store:
        visitor = Visitor(store)
        for number, (rows, pages, leaves, may_block) in enumerate(steps):
            (report,) = write(store, batch(*(f"{number}/{n}" for n in range(rows))))
            if rows:
                expected += [f"{report.sequence}-{n}" for n in range(rows if rows <= MAX_SINGLE_EVENT_ROWS else 1)]
            visitor.take(pages, may_block=may_block)
            if leaves:
                visitor.leave_and_return()
        assert visitor.finish() == expected
