"""Stores as reader processes see them: the answers of the server, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from kgserve.errors import KgserveError
from kgserve.graph import node_reads
from kgserve.graph.request_bodies import GetNodesByIdRequest, TraverseRequest
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.graph.url_parameters import GetNodeRequest, IncomingEdgesRequest, NodeEdgesRequest
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.server.readers import reader_process_stores
from kgserve.server.readers.reader_process_stores import ReaderProcessStores
from kgserve.server.readers.shared_commit_page import MAX_ANNOUNCED_STORES, SharedCommitPage
from kgserve.storage.rows.current_rows import DeltaMergeLimits
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StoreNotOpen, StorePool
from tests.property.batches import Batches
from tests.property.graph import BatchRejection, Graph
from tests.stores.writing import NAME, batch, settings

IDS = 60


class _SharedPool:
    """A pool of stores, and a reader's view of them."""

    def __init__(self, data: Path) -> None:
        self.page = SharedCommitPage()
        self.pool = StorePool(settings(data, indexes="none", history=False))
        self.followed = ReaderProcessStores(self.pool.settings, self.page, self.pool.observation)
        self.ours = CallerStoreHandles(self.pool)
        self.theirs = CallerStoreHandles(cast("StorePool", self.followed))

    def open(self) -> OpenStore:
        """Open the store and announce it, as the server does."""
        store = self.pool.acquire(NAME, create=True)
        announce = self.page.open(NAME)
        assert announce is not None
        store.rows.announce_commits(announce)
        return store

    def shut(self, store: OpenStore) -> None:
        """Withdraw the store and give it back, as the server does before it closes it."""
        store.rows.announce_commits(None)
        self.page.close(NAME)
        self.pool.release(store)


@pytest.fixture
def shared(tmp_path: Path) -> Generator[_SharedPool]:
    made = _SharedPool(tmp_path)
    with made.pool:
        yield made


def outcome(handles: CallerStoreHandles, run: Callable[[StoreHandle, Any], Any], request: Any) -> bytes | str:
    try:
        return run(handles.graph(NAME).nonblocking_handle(), request)
    except WouldBlock:
        return "blocks"
    except KgserveError as error:
        return error.message


def requests(batches: Batches) -> list[tuple[Callable[[StoreHandle, Any], Any], Any]]:
    """Return one random request of each operation that reader processes answer."""
    choice, some, walk, moment = batches.random.choice, batches.some_id, batches.walk(), batches.moment()
    valid = choice((None, "any", *(() if moment is None else (format_rfc3339_timestamp(moment),))))
    kinds = choice(([], ["knows"]))
    page: dict[str, Any] = {"limit": choice((1, 3, 200)), "offset": choice((0, 2)), "valid_at": valid, "kinds": kinds}
    types = None if walk.relation_types is None else [*walk.relation_types]
    return [
        (node_reads.get_node, GetNodeRequest(node_id=some(), valid_at=valid)),
        (node_reads.get_nodes, GetNodesByIdRequest(ids=[some() for _ in range(choice((1, 5, 40)))], valid_at=valid)),
        (node_reads.list_outgoing_edges, NodeEdgesRequest(node_id=some(), **page)),
        (node_reads.list_incoming_edges, IncomingEdgesRequest(node_id=some(), **page)),
        (
            node_reads.traverse_graph,
            TraverseRequest(
                start_id=walk.start, depth=walk.depth, direction=walk.direction, relation_types=types,
                min_weight=walk.min_weight, max_nodes=walk.max_nodes, valid_at=valid,
            ),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_answers_equal_those_of_the_server(shared: _SharedPool, seed: int) -> None:
    batches, graph = Batches(seed, IDS, extended=0.3 * seed), Graph()
    store, compared = shared.open(), 0
    for _ in range(30):
        store.rows.limits = DeltaMergeLimits(rows=batches.random.choice((40, 50_000)))
        with suppress(KgserveError, BatchRejection):
            written = batches.any_batch(graph)
            graph.write(written, store.submit(written).result().sequence)
        if batches.random.random() < 0.1:
            store.rows.fold(copying=True)
        for run, request in requests(batches):
            expected, found = outcome(shared.ours, run, request), outcome(shared.theirs, run, request)
            if found == "blocks":  # the server renamed a base while the reader opened it
                found = outcome(shared.theirs, run, request)
            # A merge that ended in between has put edges in another order.
            assert found in {expected, outcome(shared.ours, run, request)}, (run, request)
            compared += isinstance(found, bytes)
        if batches.random.random() < 0.1:
            shared.shut(store)
            if batches.random.random() < 0.5:
                shared.pool.drop(NAME)
                graph = Graph()
            assert outcome(shared.theirs, *requests(batches)[0]) == "blocks"
            store = shared.open()
    assert compared > 50
    shared.shut(store)


def test_large_commits_are_left_to_the_server(shared: _SharedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process_stores, "MAX_ROWS_PER_CATCH_UP", 5)
    store = shared.open()
    store.submit(batch("a")).result()
    asked = node_reads.get_node, GetNodeRequest(node_id="a")
    assert outcome(shared.theirs, *asked) == outcome(shared.ours, *asked)
    store.submit(batch(*(f"n{number}" for number in range(20)))).result()
    assert [outcome(shared.theirs, *asked) for _ in range(3)] == ["blocks"] * 3
    store.rows.fold()
    assert outcome(shared.theirs, *asked) == outcome(shared.ours, *asked)
    for number in range(8):
        store.submit(batch(f"m{number}")).result()
    assert [outcome(shared.theirs, *asked) == "blocks" for _ in range(2)] == [True, False]
    shared.shut(store)


def test_staged_bases_are_left_to_the_server(shared: _SharedPool) -> None:
    store = shared.open()
    store.submit(batch("a")).result()
    asked = node_reads.get_node, GetNodeRequest(node_id="a")
    with store.rows.stage_deletion() as staged:
        staged.leave_out({0}, set())
        assert outcome(shared.theirs, *asked) == "blocks"
    assert outcome(shared.theirs, *asked) == outcome(shared.ours, *asked)
    shared.shut(store)


def test_replaced_bases_are_released(shared: _SharedPool) -> None:
    store = shared.open()
    store.submit(batch("a")).result()
    asked = node_reads.get_node, GetNodeRequest(node_id="a")
    assert outcome(shared.theirs, *asked) == outcome(shared.ours, *asked)
    assert not shared.page.has_released(0, shared.page.change)
    shared.followed.release_replaced_bases()
    store.rows.fold(copying=True)
    held = {path.name for path in store.rows.folder.iterdir()}

    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {Path(line.removesuffix(" (deleted)")).name for line in lines if str(store.rows.folder) in line}

    assert mapped() - held
    change = shared.page.change
    shared.followed.release_replaced_bases()
    shared.page.release(0, change)
    assert mapped() <= held
    assert shared.page.has_released(0, change)
    shared.shut(store)


def test_callers_see_their_stores_only(shared: _SharedPool) -> None:
    store = shared.open()
    store.submit(batch("a")).result()
    asked = node_reads.get_node, GetNodeRequest(node_id="a")
    for stores in ((NAME,), ("other",)):
        caller = AuthenticatedCaller("k", "read", stores)
        expected = outcome(shared.ours.for_caller(caller), *asked)
        assert outcome(shared.theirs.for_caller(caller), *asked) == expected
    shared.shut(store)


def test_page_announces_until_all_slots_are_used() -> None:
    page = SharedCommitPage()
    names = [f"store-{number}" for number in range(MAX_ANNOUNCED_STORES)]
    announced, same_base, new_base = {name: page.open(name) for name in names}, False, True
    assert page.open("one-too-many") is None
    assert page.find(names[0]) is None  # nothing was announced yet
    for number, announce in enumerate(announced.values()):
        assert announce is not None
        announce(number, same_base)
    assert [found.sequence for name in names if (found := page.find(name))] == [*range(MAX_ANNOUNCED_STORES)]
    before = page.find(names[7])
    page.close(names[7])
    assert page.find(names[7]) is None
    again = page.open(names[7])
    assert again is not None
    again(3, new_base)
    after = page.find(names[7])
    assert before is not None
    assert after is not None
    assert (after.sequence, after.bases, after.incarnation > before.incarnation) == (3, 1, True)


def test_store_that_is_not_open_is_left_to_the_server(shared: _SharedPool) -> None:
    with pytest.raises(StoreNotOpen):
        shared.followed.acquire_open("missing")
    with pytest.raises(StoreNotOpen):
        shared.followed.lease("missing")
