from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.embedding.embedder import HashingEmbedder
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.text_indexes import (
    EMBEDDING_BATCH_SIZE,
    CurrentKeywordIndexProjection,
    CurrentVectorIndexProjection,
)
from kgserve.projections.update_scheduler import ProjectionSchedule, ScheduledProjection
from tests.stores.writing import batch, opened, until, write

Three = tuple[BackgroundProjection, BackgroundProjection, BackgroundProjection]


@pytest.fixture
def three(tmp_path: Path) -> Generator[Three]:
    with opened(tmp_path) as store:
        yield (
            CurrentKeywordIndexProjection(store),
            CurrentKeywordIndexProjection(store),
            CurrentKeywordIndexProjection(store),
        )


def taken(schedule: ProjectionSchedule) -> ScheduledProjection | None:
    """Return the projection that is served next, and end its step at once."""
    found = schedule.take()
    schedule.end_step()
    return found


def test_an_awaited_projection_is_served_first(three: Three) -> None:
    a, b, c = three
    schedule = ProjectionSchedule()
    for each in three:
        schedule.wake(each)
    schedule.prioritize(c)
    assert [taken(schedule) for _ in three] == [c, a, b]


def test_a_projection_awaited_during_its_step_is_served_first_again(three: Three) -> None:
    a, b, _ = three
    schedule = ProjectionSchedule()
    schedule.wake(a)
    schedule.wake(b)
    assert schedule.take() is a
    schedule.prioritize(a)
    schedule.wake(a)
    schedule.end_step()
    assert [taken(schedule), taken(schedule)] == [a, b]


def test_a_postponed_projection_is_not_prioritized(three: Three) -> None:
    a, b, _ = three
    schedule = ProjectionSchedule()
    schedule.postpone_step(a, 3600)
    schedule.wake(b)
    schedule.prioritize(a)
    assert taken(schedule) is b


def test_priority_ends_after_one_step(three: Three) -> None:
    a, b, _ = three
    schedule = ProjectionSchedule()
    schedule.wake(a)
    schedule.prioritize(a)
    assert taken(schedule) is a
    schedule.wake(b)
    schedule.wake(a)
    assert [taken(schedule), taken(schedule)] == [b, a]


def test_no_projection_is_served_after_close(three: Three) -> None:
    schedule = ProjectionSchedule()
    schedule.wake(three[0])
    schedule.close()
    assert schedule.take() is None


def test_take_returns_none_after_its_timeout(three: Three) -> None:
    schedule = ProjectionSchedule()
    assert schedule.take(0.01) is None
    assert not schedule.closed
    schedule.postpone_step(three[0], 0.01)
    assert schedule.take(10) is three[0]
    schedule.end_step()
    schedule.close()
    assert schedule.take(10) is None
    assert schedule.closed


def test_awaited_projections_of_other_stores_run_within_a_long_step(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        schedule, long, beside, other = (
            ProjectionSchedule(),
            CurrentKeywordIndexProjection(one),
            CurrentKeywordIndexProjection(one),
            CurrentKeywordIndexProjection(two),
        )
        for view in (long, beside, other):
            view.schedule = schedule
            view.serve()
        schedule.wake(long)
        assert schedule.take() is long
        for store in (one, two):
            write(store, batch("a"))
        schedule.wake_later(other)
        schedule.wake_later(beside)
        long._yield_to_requests(0)
        assert other.sequence == 0, "no caller waits for it"
        assert not other.wait(1, 0)
        assert not beside.wait(1, 0)
        give_way = threading.Thread(target=long._yield_to_requests, args=(0,))
        give_way.start()
        give_way.join()
        assert other.sequence == 0, "a step is made by one thread"
        long._yield_to_requests(0)
        assert (other.sequence, beside.sequence) == (1, 0)
        schedule.end_step()
        for view in (long, beside, other):
            assert schedule.forget(view)
            view.close()


def test_building_a_vector_graph_does_not_delay_other_stores(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        schedule = ProjectionSchedule()
        large, small = (
            CurrentVectorIndexProjection(one, HashingEmbedder(), exact_up_to=200),
            CurrentVectorIndexProjection(two, HashingEmbedder()),
        )
        write(one, batch(*(f"n{at}" for at in range(EMBEDDING_BATCH_SIZE)), content="words"))
        for view in (large, small):
            view.schedule = schedule
            view.serve()
        write(one, batch(*(f"m{at}" for at in range(EMBEDDING_BATCH_SIZE)), content="words"))
        write(two, batch("a", content="words"))
        schedule.wake(large)
        assert schedule.take() is large
        schedule.wake(small)
        assert not small.wait(1, 0)
        large.serve()
        assert (large.sequence, small.sequence) == (2, 1)
        schedule.end_step()
        for view in (large, small):
            assert schedule.forget(view)
            view.close()


@pytest.mark.parametrize("chunks", [1, 3])
def test_long_work_yields_to_requests_between_parts(tmp_path: Path, chunks: int) -> None:
    rests: list[int] = []
    with opened(tmp_path) as store, closing(CurrentVectorIndexProjection(store, HashingEmbedder())) as view:
        write(store, batch(*(f"n{at}" for at in range(chunks * EMBEDDING_BATCH_SIZE)), content="words"))

        def are_others_served() -> bool:
            rests.append(view.pending)
            return True

        view.schedule.are_others_served = are_others_served
        until(lambda: not store.writing)
        view.serve()
        assert view.sequence == 1
        began = time.monotonic()
        view._yield_to_requests(0.05)
        assert time.monotonic() - began >= 0.1
    # No pause after the last part, for which a caller may wait.
    assert rests == [*(left * EMBEDDING_BATCH_SIZE for left in range(chunks - 1, 0, -1)), 0]
