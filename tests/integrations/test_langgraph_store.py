"""LangGraphStore against the interface of LangGraph's stores, compared with its InMemoryStore where both can do it."""

from __future__ import annotations

import asyncio
import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from kgserve.client import Store
from kgserve.errors import NotFound
from kgserve.integrations.langgraph_store import LangGraphStore

ADA, BOB = ("users", "ada"), ("users", "bob")
PAST = "2020-01-01T00:00:00Z"


@pytest.fixture
def items(graph: Store) -> LangGraphStore:
    return LangGraphStore(graph)


def filled(store: BaseStore) -> BaseStore:
    store.batch(
        [
            PutOp(ADA, "a", {"kind": "note", "rank": 1, "nested": {"deep": [1, {"x": None}]}, "none": None}),
            PutOp(ADA, "b", {"kind": "note", "rank": 2.5, "flag": True, "nested": {"deep": [1]}}),
            PutOp((*ADA, "archive"), "c", {"kind": "task", "rank": 3, "name": "Zoë 🐈"}),
            PutOp(BOB, "a", {"kind": "note", "rank": 10}),
            PutOp(("teams",), "a", {"kind": "team", "rank": 0}),
        ]
    )
    return store


def test_values_round_trip_and_a_put_replaces(items: LangGraphStore) -> None:
    assert items.get(ADA, "a") is None
    assert items.search(ADA) == []
    assert items.list_namespaces() == []
    items.delete(ADA, "a")
    value = {"text": "tea", "none": None, "list": [1, 2.5, "x", None, True], "deep": {"a": {"b": []}}, "": "empty key"}
    items.put(ADA, "a", value)
    first = items.get(ADA, "a")
    assert first is not None
    assert (first.value, first.namespace, first.key) == (value, ADA, "a")
    items.put(ADA, "a", {"other": 1})
    second = items.get(ADA, "a")
    assert second is not None
    assert second.value == {"other": 1}
    assert second.created_at == first.created_at < second.updated_at
    assert isinstance(second.created_at, dt.datetime)
    items.put(ADA, "empty", {})
    assert items.get(ADA, "empty") is not None
    items.delete(ADA, "a")
    assert items.get(ADA, "a") is None
    items.delete(ADA, "a")


@pytest.mark.parametrize(
    "filters",
    [
        None,
        {},
        {"kind": "note"},
        {"rank": {"$gt": 1}},
        {"rank": {"$gte": 1, "$lt": 3}},
        {"rank": {"$lte": 1}, "kind": {"$eq": "note"}},
        {"kind": {"$ne": "note"}},
        {"flag": True},
        {"none": None},
        {"nested": {"deep": [1]}},
        {"nested": {"deep": [1, {"x": None}]}},
        {"rank": 1.0},
        {"name": "Zoë 🐈"},
        {"kind": "none of these"},
    ],
)
@pytest.mark.parametrize("prefix", [(), ("users",), ADA])
def test_filters_find_what_the_memory_store_finds(
    filters: dict[str, Any] | None, prefix: tuple[str, ...], compared: tuple[BaseStore, BaseStore]
) -> None:
    found, expected = (
        {(item.namespace, item.key) for item in store.search(prefix, filter=filters)} for store in compared
    )
    assert found == expected


@pytest.fixture(scope="module")
def compared(client: Any) -> tuple[BaseStore, BaseStore]:
    return filled(LangGraphStore(client.store("langgraph-compared"))), filled(InMemoryStore())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"prefix": ("users",)},
        {"prefix": ("users", "*", "archive")},
        {"suffix": ("archive",)},
        {"suffix": ("*", "bob")},
        {"prefix": ("users",), "suffix": ("archive",)},
        {"max_depth": 1},
        {"max_depth": 2, "limit": 1, "offset": 1},
        {"prefix": ("nowhere",)},
    ],
)
def test_namespaces_are_listed_as_by_the_memory_store(
    asked: dict[str, Any], compared: tuple[BaseStore, BaseStore]
) -> None:
    found, expected = (store.list_namespaces(**asked) for store in compared)
    assert found == expected


def test_filters_of_values_without_an_order_do_not_match(items: LangGraphStore) -> None:
    items.put(ADA, "a", {"rank": "high"})
    items.put(ADA, "b", {})
    assert items.search(ADA, filter={"rank": {"$gt": 1}}) == []
    assert [item.key for item in items.search(ADA, filter={"rank": {"$gte": "high"}})] == ["a"]
    with pytest.raises(ValueError, match=r"unknown filter operator '\$near'"):
        items.search(ADA, filter={"rank": {"$near": 1}})


def test_pages_of_a_search(items: LangGraphStore) -> None:
    items.batch([PutOp(ADA, f"{number:02}", {"even": number % 2 == 0}) for number in range(25)])
    keys = [item.key for item in items.search(ADA, filter={"even": True}, limit=5, offset=5)]
    assert keys == ["10", "12", "14", "16", "18"]
    assert len(items.search(ADA)) == 10
    assert items.search(ADA, limit=0) == []


def test_queries_find_what_was_just_put(items: LangGraphStore) -> None:
    items.put(ADA, "tea", {"text": "Ada drinks green tea", "kind": "drink"})
    items.put(ADA, "sport", {"text": "Ada plays chess", "kind": "game"})
    items.put(BOB, "tea", {"text": "Bob drinks green tea"})
    items.put(ADA, "secret", {"text": "green tea is hidden"}, index=False)
    items.put(ADA, "title", {"text": "green tea", "head": {"title": "Coffee"}}, index=["head.title"])
    found = items.search(ADA, query="green tea", limit=2)
    assert (found[0].key, found[0].namespace) == ("tea", ADA)
    assert found[0].score is not None
    assert {item.namespace for item in found} == {ADA}
    assert [item.key for item in items.search(ADA, query="green tea", filter={"kind": "game"})] == ["sport"]
    assert "secret" not in {item.key for item in items.search(ADA, query="green tea")}
    assert items.search(ADA, query="coffee")[0].key == "title"
    assert items.search(ADA, query="green tea" + " " * 10_000)[0].key == found[0].key
    keywords = LangGraphStore(items.store, mode="keyword", fields=["text"])
    assert [item.key for item in keywords.search((), query="chess")] == ["sport"]


def test_a_batch_reads_first_and_its_last_put_wins(items: LangGraphStore) -> None:
    items.put(ADA, "a", {"n": 0})
    results = items.batch(
        [
            PutOp(ADA, "a", {"n": 1}),
            GetOp(ADA, "a"),
            PutOp(ADA, "a", {"n": 2}),
            PutOp(ADA, "b", {"n": 3}),
            PutOp(ADA, "b", None),
            SearchOp(ADA),
            ListNamespacesOp((MatchCondition("prefix", ("users",)),)),
            GetOp(ADA, "missing"),
        ]
    )
    assert results[1].value == {"n": 0}  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert [item.value for item in results[5]] == [{"n": 0}]  # pyright: ignore[reportOptionalIterable, reportGeneralTypeIssues]
    assert results[6:] == [[ADA], None]
    assert items.get(ADA, "a").value == {"n": 2}  # pyright: ignore[reportOptionalMemberAccess]
    assert items.get(ADA, "b") is None
    assert items.batch([]) == []


@pytest.mark.parametrize("namespace", [(), ("a.b",), ("",), ("langgraph", "x"), ("a", 1)])
def test_invalid_namespaces_are_refused(namespace: Any, items: LangGraphStore) -> None:
    with pytest.raises(InvalidNamespaceError):
        items.put(namespace, "a", {})
    if namespace and namespace[0] != "langgraph":
        with pytest.raises(InvalidNamespaceError):
            items.batch([GetOp(namespace, "a")])


def test_labels_and_keys_may_hold_anything_else(items: LangGraphStore) -> None:
    namespace = ('quote"', "slash/[]", "Zoë 🐈", "two words", "line\nbreak")
    items.put(namespace, 'k.ey"[', {"a": 1})
    assert items.get(namespace, 'k.ey"[').namespace == namespace  # pyright: ignore[reportOptionalMemberAccess]
    assert items.list_namespaces(prefix=namespace[:2]) == [namespace]
    assert len(items.search(namespace[:1])) == 1
    with pytest.raises(ValueError, match="more than 512 bytes"):
        items.put(ADA, "k" * 600, {})


def test_items_expire_and_reads_extend_their_lives(graph: Store) -> None:
    items = LangGraphStore(graph, ttl={"default_ttl": 60, "refresh_on_read": True})
    items.put(ADA, "long", {"n": 1, "text": "tea"})
    items.put(ADA, "forever", {"n": 2}, ttl=None)
    items.put(ADA, "short", {"n": 3, "text": "tea"}, ttl=0.0001)
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=2)).isoformat()
    graph.inject([{"id": '["users","ada","long"]', "freshness_at": soon}])
    graph.inject([{"id": '["users","ada","short"]', "freshness_at": PAST}])
    assert items.get(ADA, "short") is None
    assert {item.key for item in items.search(ADA, refresh_ttl=False)} == {"long", "forever"}
    assert {item.key for item in items.search(ADA, query="tea", refresh_ttl=False)} >= {"long"}
    assert "short" not in {item.key for item in items.search(ADA, query="tea")}

    def expiry(key: str) -> Any:
        return graph.get_nodes([f'["users","ada","{key}"]']).nodes[0].freshness_at

    extended = expiry("long")
    assert extended > soon
    items.get(ADA, "long")
    assert expiry("long") == extended, "an expiry that would hardly move is not written"
    assert not expiry("forever")
    assert items.sweep_ttl() == 1
    assert items.sweep_ttl() == 0
    items.put(ADA, "long", {"n": 1}, ttl=None)
    assert not expiry("long")
    graph.inject([{"id": '["users","ada","long"]', "freshness_at": PAST}])
    assert items.list_namespaces() == [ADA]
    assert LangGraphStore(items.store).sweep_ttl() == 1


def test_items_that_were_retired_are_gone_until_they_are_put_again(items: LangGraphStore) -> None:
    for key in ("x", "y"):
        items.put(("a",), key, {"t": "one"})
        items.store.retire(f'["a","{key}"]')
    assert (items.get(("a",), "x"), items.search(("a",))) == (None, [])
    items.put(("a",), "x", {"t": "new"})
    assert [item.value for item in items.search(("a",))] == [{"t": "new"}]
    items.delete(("a",), "y")
    with pytest.raises(NotFound):
        items.store.node('["a","y"]')
    items.put(("a",), "y", {"t": "one"})
    items.store.merge('["a","x"]', '["a","y"]')
    assert items.get(("a",), "x") is None


def test_concurrent_puts_are_all_kept(items: LangGraphStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: items.put(ADA, f"{number % 8}", {"n": number}), range(48)))
    assert {item.value["n"] % 8 for item in items.search(ADA)} == set(range(8))


def test_the_asynchronous_methods(items: LangGraphStore) -> None:
    async def use() -> None:
        await asyncio.gather(*(items.aput(ADA, f"{number}", {"n": number}) for number in range(12)))
        assert len(await items.asearch(ADA, limit=20)) == 12
        assert (await items.aget(ADA, "3")).value == {"n": 3}  # pyright: ignore[reportOptionalMemberAccess]
        await items.adelete(ADA, "3")
        assert await items.aget(ADA, "3") is None
        assert await items.alist_namespaces() == [ADA]
        cancelled = asyncio.ensure_future(items.aget(ADA, "4"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert (await items.aget(ADA, "4")).value == {"n": 4}  # pyright: ignore[reportOptionalMemberAccess]

    asyncio.run(use())
