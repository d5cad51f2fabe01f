from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from kgserve.views.follower import View
from kgserve.views.indexer import Turns
from kgserve.views.indexes import KeywordFollower
from tests.store.writing import opened

Three = tuple[View, View, View]


@pytest.fixture
def three(tmp_path: Path) -> Generator[Three]:
    with opened(tmp_path) as store:
        yield KeywordFollower(store), KeywordFollower(store), KeywordFollower(store)


def taken(turns: Turns) -> View | None:
    """Who is served next, and served at once."""
    found = turns.take()
    turns.done()
    return found


def test_who_is_waited_for_goes_first(three: Three) -> None:
    a, b, c = three
    turns = Turns()
    for each in three:
        turns.wake(each)
    turns.hurry(c)
    assert [taken(turns) for _ in three] == [c, a, b]


def test_who_is_waited_for_while_served_goes_first_again(three: Three) -> None:
    a, b, _ = three
    turns = Turns()
    turns.wake(a)
    turns.wake(b)
    assert turns.take() is a
    turns.hurry(a)
    turns.wake(a)
    turns.done()
    assert [taken(turns), taken(turns)] == [a, b]


def test_who_is_put_off_is_not_hurried(three: Three) -> None:
    a, b, _ = three
    turns = Turns()
    turns.put_off(a, 3600)
    turns.wake(b)
    turns.hurry(a)
    assert taken(turns) is b


def test_a_hurry_ends_when_it_has_been_served(three: Three) -> None:
    a, b, _ = three
    turns = Turns()
    turns.wake(a)
    turns.hurry(a)
    assert taken(turns) is a
    turns.wake(b)
    turns.wake(a)
    assert [taken(turns), taken(turns)] == [b, a]


def test_nobody_is_served_once_closed(three: Three) -> None:
    turns = Turns()
    turns.wake(three[0])
    turns.close()
    assert turns.take() is None


def test_who_serves_may_stop_waiting_for_a_while(three: Three) -> None:
    turns = Turns()
    assert turns.take(0.01) is None
    assert not turns.closed
    turns.put_off(three[0], 0.01)
    assert turns.take(10) is three[0]
    turns.done()
    turns.close()
    assert turns.take(10) is None
    assert turns.closed
