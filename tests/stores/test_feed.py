from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from kgserve.errors import Gone, InvalidInput, JournalDamaged, NotFound
from kgserve.graph import event_subscriptions
from kgserve.graph.event_checkpoints import (
    CHECKPOINTS_FOLDER,
    MAX_CHECKPOINTS,
    EventCheckpoints,
    parse_multi_store_event_id,
)
from kgserve.graph.event_subscriptions import EventDelivery, EventSubscription, JournalEventReader
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.storage.changefeed import ChangeFeed, ChangeFeedPageLimits, ChangeFeedReader
from kgserve.storage.journal.journal_reader import JournalReader, find_oldest_journal_sequence
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter, FeedPosition
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import NAME, PATIENCE, batch, flip, layout, newest_segment, opened, settings, write

EVERYTHING = ChangeFeedEventFilter()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with opened(tmp_path / "data") as store:
        yield store


def nothing() -> None:
    """Wake callback that does nothing."""


def reader(store: OpenStore, after: int | None = None, limits: ChangeFeedPageLimits | None = None) -> ChangeFeedReader:
    position = None if after is None else FeedPosition.after(after)
    return ChangeFeedReader(store.feed, position, nothing, limits or ChangeFeedPageLimits())


def take_all(reader: ChangeFeedReader, *, may_block: bool = True) -> list[str]:
    found: list[str] = []
    while (page := reader.take(EVERYTHING, may_block=may_block)) or not reader.is_caught_up():
        assert page is not None
        found += [f"{entry.event.sequence}-{entry.event.index}" for entry in page]
    return found


def test_a_reader_starts_now_and_sees_each_write_once(store: OpenStore) -> None:
    write(store, batch("before"))
    listener = reader(store)
    assert take_all(listener) == []
    write(store, batch("a", "b"), batch("c"))
    assert take_all(listener, may_block=False) == ["2-0", "2-1", "3-0"]
    assert take_all(listener) == []


def test_a_reader_may_start_at_any_sequence(store: OpenStore) -> None:
    write(store, batch("a", "b"), batch("c"), batch("d", "e"))
    assert take_all(reader(store, 0)) == ["1-0", "1-1", "2-0", "3-0", "3-1"]
    assert take_all(reader(store, 2)) == ["3-0", "3-1"]
    middle = ChangeFeedReader(store.feed, FeedPosition(3, 1), nothing)
    assert take_all(middle) == ["3-1"]


def test_older_changes_are_read_from_the_journal(store: OpenStore) -> None:
    forgetful = ChangeFeed(store.layout, kept=3)
    forgetful.opened(store.state.sequence)
    listener = ChangeFeedReader(forgetful, None, nothing)
    write(store, *(batch(f"n{n}", "same", content=str(n)) for n in range(20)))
    forgetful.record(list(store.journal.read(0)), store.state.sequence)
    assert listener.take(EVERYTHING, may_block=False) is None
    assert take_all(listener) == [f"{sequence}-{index}" for sequence in range(1, 21) for index in (0, 1)]


def test_without_listeners_no_change_is_buffered(store: OpenStore) -> None:
    write(store, batch("a"))
    assert store.feed.recent(FeedPosition(1)) is None
    listener = reader(store)
    write(store, batch("b"))
    assert store.feed.recent(FeedPosition(2))
    listener.close()
    assert store.feed.recent(FeedPosition(2)) is None


def test_feed_pages_are_bounded(store: OpenStore) -> None:
    write(store, batch(*(f"n{n}" for n in range(7))))
    listener = reader(store, 0, ChangeFeedPageLimits(events=3))
    assert [len(listener.take(EVERYTHING) or ()) for _ in range(4)] == [3, 3, 1, 0]
    listener = reader(store, 0, ChangeFeedPageLimits(bytes=10))
    assert [len(listener.take(EVERYTHING) or ()) for _ in range(8)] == [1] * 7 + [0]


def test_a_narrow_selection_still_advances(store: OpenStore) -> None:
    write(store, *(batch(f"n{n}", "x", content=str(n)) for n in range(9)))
    listener = reader(store, 0, ChangeFeedPageLimits(scanned=4))
    pages = 0
    while not listener.is_caught_up():
        assert listener.take(ChangeFeedEventFilter(kinds=frozenset({"edge_deleted"}))) == []
        pages += 1
    assert pages == 5  # two commits each, with two events that count as one more


def test_lag_is_reported(store: OpenStore) -> None:
    write(store, batch("a"))
    listener = reader(store, 0)
    assert listener.unread_event_count == 0  # still catching up from an old position, which is not lag
    take_all(listener)
    write(store, batch("b", "c"), batch("d"))
    assert listener.unread_event_count == 3
    take_all(listener)
    assert listener.unread_event_count == 0


def test_markers_reach_all_listeners(store: OpenStore) -> None:
    store.feed.publish_marker("index_ready", {"index": "vector"})
    listener = reader(store)
    write(store, batch("a"))
    store.feed.publish_marker("index_ready", {"index": "keyword", "sequence": 1})
    found = [entry for _ in range(3) for entry in listener.take(EVERYTHING) or ()]
    assert [entry.event.kind for entry in found] == ["node_created", "index_ready"]
    assert b'"index":"keyword"' in found[1].data


def test_a_tail_reads_across_segments_and_keeps_its_position(tmp_path: Path) -> None:
    with opened(tmp_path / "data", journal_segment_mb=1) as store:
        folder = store.layout.journal
        tail = JournalReader(folder)
        expected = 1
        for _ in range(8):
            text = "x" * 400_000
            write(store, batch("a", content=text + str(store.state.sequence)), batch(f"b{store.state.sequence}"))
            for change in tail.read(expected, store.state.sequence):
                assert change.sequence == expected
                expected += 1
        assert expected == 17
        assert len(store.journal.segments) > 2
        assert [change.sequence for change in JournalReader(folder).read(5, 9)] == [5, 6, 7, 8, 9]
        assert [change.sequence for change in tail.read(2, 3)] == [2, 3]


def test_reading_a_dropped_part_of_the_journal_raises_gone(tmp_path: Path) -> None:
    with opened(tmp_path / "data", journal_segment_mb=1) as store:
        write(store, *(batch("a", content=f"{n}" * 600_000) for n in range(6)))
        store.journal.remove_segments_before(4, 0)
        oldest = find_oldest_journal_sequence(store.layout.journal)
        assert oldest > 1
        with pytest.raises(Gone) as caught:
            list(JournalReader(store.layout.journal).read(1, 6))
        assert caught.value.oldest == oldest
        with pytest.raises(Gone):
            reader(store, 0).take(EVERYTHING)


def test_journal_damage_raises_an_error_naming_the_file(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        write(store, batch("a"), batch("b"))
        flip(newest_segment(tmp_path / "data"), 60)
        with pytest.raises(JournalDamaged, match=r"00001\.log"):
            reader(store, 0).take(EVERYTHING)


def test_a_listener_survives_eviction_of_the_store(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data", max_open_stores=1)) as pool:
        with pool.lease("a", create=True) as store:
            write(store, batch("x"))
        woken = threading.Event()
        listener = ChangeFeedReader(pool.feeds.of("a"), None, woken.set)
        with pool.lease("b", create=True):
            pass
        assert list(pool.open_stores()) == ["b"]
        woken.clear()
        with pool.lease("a") as store:
            write(store, batch("y"))
        assert woken.wait(PATIENCE)
        assert take_all(listener) == ["2-0"]


def test_the_feed_of_a_closed_store_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        write(store, batch("a"), batch("b"))
    with StorePool(settings(tmp_path / "data")) as pool:
        assert take_all(ChangeFeedReader(pool.feeds.of(NAME), FeedPosition.after(0), nothing)) == ["1-0", "2-0"]
        assert take_all(ChangeFeedReader(pool.feeds.of(NAME), None, nothing)) == []
        assert pool.open_stores() == {}


def test_the_feed_of_a_missing_store(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool, pytest.raises(NotFound):
        ChangeFeedReader(pool.feeds.of("nobody"), None, nothing)


def test_following_all_stores_includes_created_and_dropped_ones(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        pool.create("a")
        listener = JournalEventReader(CallerStoreHandles(pool), EventSubscription(None), nothing)
        listener.open()
        assert listener.place == "a:0,*:0"
        with pool.lease("b", create=True) as store:
            write(store, batch("x"))
        assert read_events(listener) == [("store_created", "b:0-0,a:0,*:0"), ("node_created", "b:1-0,a:0,*:0")]
        pool.drop("b")
        pool.create("b")
        assert read_events(listener) == [("store_dropped", "a:0,*:0"), ("store_created", "b:0-0,a:0,*:0")]
        pool.drop("a")
        assert read_events(listener) == [("store_dropped", "b:0,*:0")]
        listener.close()


def test_resuming_a_feed_of_all_stores(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        for name in ("a", "new"):
            with pool.lease(name, create=True) as store:
                write(store, batch("x"), batch("y"))
        listener = JournalEventReader(
            CallerStoreHandles(pool),
            EventSubscription(None, {"a": FeedPosition(2), "gone": FeedPosition(9), "*": FeedPosition(1)}),
            nothing,
        )
        listener.open()
        assert sorted(kind for kind, _ in read_events(listener)) == [
            "node_created", "node_created", "node_created", "store_created", "store_dropped",
        ]  # fmt: skip
        assert listener.place == "a:2,new:2,*:0"
        listener.close()


@pytest.mark.parametrize("many", [False, True])
def test_resuming_after_a_store_was_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, many: bool
) -> None:
    monkeypatch.setattr(event_subscriptions, "MAX_FOLLOWED_STORES", 1 if many else 1_000)
    with StorePool(settings(tmp_path / "data")) as pool:
        for name in ("a", "b"):
            with pool.lease(name, create=True) as store:
                write(store, batch("x"), batch("y"))
        before = deliveries_of(listening_to(pool, EventSubscription(None, {"*": FeedPosition(1)})))[-1].id or ""
        tag = ""
        for events in (["node_created"] * 3, ["node_created"]):
            pool.drop("a")
            with pool.lease("a", create=True) as store:
                write(store, *(batch(f"n{number}") for number in range(len(events))))
            assert store.feed.incarnation > tag
            tag = store.feed.incarnation
            found = deliveries_of(listening_to(pool, resume_at(before)))
            assert [each.kind for each in found] == ["store_dropped", "store_created", *events]
            assert f"a:{len(events)}-0~{tag}" in (found[-1].id or "")
            again = [deliveries_of(listening_to(pool, resume_at(each.id or ""))) for each in found]
            assert [len(rest) for rest in again] == [*reversed(range(len(found)))]
            before = found[-1].id or ""
        for position in (FeedPosition.after(1), FeedPosition.after(1).in_incarnation("other")):
            with pytest.raises(Gone, match="created again or restored"):
                listening_to(pool, EventSubscription(("a",), {"a": position}))
        begun = EventSubscription(("a",), {"a": FeedPosition.after(0)})
        assert len(deliveries_of(listening_to(pool, begun))) == 1
    with StorePool(settings(tmp_path / "data")) as pool:
        assert deliveries_of(listening_to(pool, resume_at(before))) == []


def listening_to(pool: StorePool, subscription: EventSubscription) -> JournalEventReader:
    listener = JournalEventReader(CallerStoreHandles(pool), subscription, nothing)
    listener.open()
    return listener


def test_a_feed_of_named_stores_ends_when_all_are_dropped(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        pool.create("a")
        pool.create("b")
        listener = JournalEventReader(CallerStoreHandles(pool), EventSubscription(("a", "b")), nothing)
        listener.open()
        pool.drop("a")
        assert read_events(listener) == [("store_dropped", "b:0")]
        assert not listener.read().ended
        pool.drop("b")
        assert read_events(listener) == [("store_dropped", None)]
        assert listener.read().ended
        listener.close()


@pytest.mark.parametrize("position", [FeedPosition(3), FeedPosition(9), FeedPosition(2, 1)])
def test_a_position_ahead_of_the_store_raises_gone(tmp_path: Path, position: FeedPosition) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        with pool.lease("a", create=True) as store:
            write(store, batch("x"))
        listener = JournalEventReader(CallerStoreHandles(pool), EventSubscription(("a",), {"a": position}), nothing)
        with pytest.raises(Gone, match="ends at sequence 1") as caught:
            listener.open()
        listener.close()
        assert caught.value.oldest == 1


def read_events(listener: JournalEventReader) -> list[tuple[str, str | None]]:
    """Return the kinds and ids of all events available."""
    found: list[tuple[str, str | None]] = []
    while True:
        page = listener.read()
        found += [(each.kind, each.id) for each in page.deliveries]
        if page.idle and not page.deliveries:
            return found


def test_a_feed_reads_the_layout_of_its_store(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        assert store.feed.layout.journal == layout(tmp_path / "data").journal
        assert store.feed.latest == store.state.sequence
        assert store.feed.oldest == 1


def by_store(deliveries: list[EventDelivery]) -> dict[str, list[bytes]]:
    """Return the events of each store in order, without the times of those that no journal holds."""
    found: dict[str, list[bytes]] = {}
    for each in deliveries:
        data = msgspec.json.decode(each.data)
        if each.kind == "store_dropped":
            data.pop("time")
        found.setdefault(data["store"], []).append(msgspec.json.encode([each.kind, data]))
    return found


def deliveries_of(listener: JournalEventReader) -> list[EventDelivery]:
    found: list[EventDelivery] = []
    while not (page := listener.read_without_waiting() or listener.read()).idle or page.deliveries:
        found += page.deliveries
    return found


def resume_at(event_id: str) -> EventSubscription:
    positions, checkpoint = parse_multi_store_event_id(event_id, "id")
    return EventSubscription(None, positions, checkpoint=checkpoint)


class RandomStoreChanges:
    """Random writes to a few stores, which are also dropped and created again."""

    names = tuple(f"s{number}" for number in range(6))

    def __init__(self, pool: StorePool, seed: int) -> None:
        self.pool, self.random = pool, Random(seed)

    def write(self, name: str, *, marked: bool = False) -> None:
        random = self.random
        with self.pool.lease(name, create=True) as store:
            write(store, *(batch(f"{random.randrange(9)}", "both") for _ in range(random.randrange(3))))
            if marked:
                store.feed.publish_marker("index_ready", {"index": f"{random.random()}"})

    def write_to_some(self) -> None:
        for name in self.random.choices(self.pool.names(), k=3):
            self.write(name, marked=True)

    def drop_or_create_some(self) -> None:
        for name in self.random.sample(self.names, 3):
            if name in self.pool.names():
                self.pool.drop(name)
            if self.random.random() < 0.7:
                self.write(name)


@pytest.mark.parametrize("since", [None, 0])
def test_a_feed_of_many_stores_delivers_what_a_feed_of_few_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: int | None
) -> None:
    monkeypatch.setattr(event_subscriptions, "MAX_AWAKE_STORES", 1)
    monkeypatch.setattr(event_subscriptions, "MAX_NAMED_POSITIONS", 2)
    with StorePool(settings(tmp_path / "data", max_open_stores=2)) as pool:
        changes = RandomStoreChanges(pool, since or 7)

        def listening(subscription: EventSubscription, *, many: bool) -> JournalEventReader:
            monkeypatch.setattr(event_subscriptions, "MAX_FOLLOWED_STORES", 0 if many else 1_000)
            listener = JournalEventReader(CallerStoreHandles(pool), subscription, nothing)
            listener.open()
            return listener

        for name in changes.names[:4]:
            changes.write(name)
        wanted = EventSubscription(None, {} if since is None else {"*": FeedPosition.after(since)})
        many, few = listening(wanted, many=True), listening(wanted, many=False)
        assert by_store(deliveries_of(many)) == by_store(deliveries_of(few))
        found: list[EventDelivery] = []
        for turn in range(10):
            found = [] if turn == 7 else found
            changes.write_to_some() if turn % 2 or turn > 6 else changes.drop_or_create_some()
            delivered = deliveries_of(many)
            assert by_store(delivered) == by_store(deliveries_of(few))
            found += delivered
        for at, event_id in enumerate(each.id for each in found):
            if event_id is not None:
                assert event_id.count(":") <= 5
                again = listening(resume_at(event_id), many=at % 2 == 0)
                rest = [each for each in found[at + 1 :] if each.id is not None]
                assert by_store(deliveries_of(again)) == by_store(rest)
                again.close()
        few.close()
        many.close()


def test_a_checkpoint_that_is_no_longer_kept_is_gone(tmp_path: Path) -> None:
    checkpoints = EventCheckpoints(tmp_path)
    places = [FeedPosition(number + 2, 0, "incarnation" * (number % 2)) for number in range(MAX_CHECKPOINTS + 1)]
    kept = [checkpoints.save({"a": place}) for place in places]
    assert [checkpoints.load(name, "last_event_id")["a"] for name in kept[-2:]] == places[-2:]
    for name in (kept[0], "0" * 32):
        with pytest.raises(Gone, match="no longer kept"):
            checkpoints.load(name, "last_event_id")
    (tmp_path / CHECKPOINTS_FOLDER / kept[-1]).write_bytes(b"damaged")
    with pytest.raises(Gone):
        checkpoints.load(kept[-1], "last_event_id")
    with pytest.raises(InvalidInput):
        checkpoints.load("../keys.json", "last_event_id")
