"""Reads on the event loop answer as those in threads do, and end with `WouldBlock` instead of waiting."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.api.operation import ApiUseCase
from kgserve.api.operation_table import USE_CASES
from kgserve.errors import KgserveError
from kgserve.graph.graph_reader import MAX_NONBLOCKING_READ_BYTES, MAX_NONBLOCKING_SCANNED_NODES
from kgserve.graph.request_bodies import CountNodesRequest, GetNodesByIdRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import (
    EdgeIdRequest,
    IncomingEdgesRequest,
    NodeEdgesRequest,
    NodeListParameters,
    TagListParameters,
)
from kgserve.memory.entity_models import EntityIdRequest, RelationInput
from kgserve.memory.entity_operations import create_relation
from kgserve.memory.memory_crud import get_memory, store_memory
from kgserve.memory.memory_models import ReadMemoryRequest, StoreMemoryRequest
from kgserve.memory.nonblocking_reads import MAX_NONBLOCKING_RELATIONS
from kgserve.platform.codecs import json_decoder
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.storage.rows.current_rows import DeltaMergeLimits
from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import fill
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, batch, settings, write

CASES = {case.name: case for case in USE_CASES}
CHOICE = random.Random()
"""Seeded by the fixture and by each test, which therefore draws the same in any order."""
IDS = [f"n{number:03}" for number in range(120)]
ASKED_IDS = [*IDS, "nobody", "ä", "n", "n1"]
MOMENTS = (None, "now", "any", "2019-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreHandle]:
    """Yield a store with rows of every form, some merged into a base and changed again."""
    CHOICE.seed(41)
    with StorePool(settings(tmp_path_factory.mktemp("short"))) as pool, pool.lease(NAME, create=True) as store:
        store.rows.limits = DeltaMergeLimits(rows=1)
        fill(pool, [_drawn_node(node_id) for node_id in IDS[:100]], [_drawn_edge() for _ in range(150)])
        store.rows.limits = DeltaMergeLimits()
        fill(pool, [_drawn_node(node_id) for node_id in IDS[80:]], [_drawn_edge() for _ in range(40)])
        write(store, batch("ä"), batch(delete_nodes=["n003", "n095", "n110"]))
        yield graph_of(pool, NAME)


def _drawn_node(node_id: str) -> dict[str, Any]:
    optional = {
        "tags": CHOICE.sample(["a", "b", "c:d"], 2),
        "valid_from": CHOICE.choice(["2010-01-01T00:00:00Z", "2020-01-01T00:00:00Z"]),
        "valid_to": CHOICE.choice(["2021-01-01T00:00:00Z", "2900-01-01T00:00:00Z"]),
        "freshness_at": CHOICE.choice(["2020-01-01T00:00:00Z", "2900-01-01T00:00:00Z"]),
        "summary": "in short ü",
        "attributes": {"x": CHOICE.choice([1, 1.5, -0.0, 1e300, 'ü\n"', [None, {"y": []}]]), "a": True},
    }
    kept = CHOICE.sample([*optional], CHOICE.randrange(4))
    return {"id": node_id, "type": CHOICE.choice("tuv"), "content": "text \u2028 😀"} | {k: optional[k] for k in kept}


def _drawn_edge() -> dict[str, Any]:
    ends = {"from": CHOICE.choice(IDS[:6]), "to": CHOICE.choice(IDS[:80])}
    return ends | {"relation_type": CHOICE.choice("RS"), "weight": CHOICE.random(), "ordinal": CHOICE.randrange(5)}


def _drawn_request(name: str) -> msgspec.Struct:
    types = CHOICE.sample(["t", "u", "none"], CHOICE.randrange(3))
    tags = CHOICE.sample(["a", "b", "c:d", "none"], CHOICE.choice([0, 0, 1, 2]))
    valid_at, limit = CHOICE.choice(MOMENTS), CHOICE.choice([1, 3, 40])
    page: dict[str, Any] = {"node_id": CHOICE.choice(ASKED_IDS[:8]), "offset": CHOICE.choice([0, 2]), "limit": limit}
    requests: dict[str, msgspec.Struct] = {
        "get_nodes": GetNodesByIdRequest(ids=CHOICE.choices(ASKED_IDS, k=limit), valid_at=valid_at),
        "nodes": NodeListParameters(type=types, tag=tags, limit=limit, offset=page["offset"], valid_at=valid_at),
        "count": CountNodesRequest(types=types, tags=tags, valid_at=valid_at),
        "list_tags": TagListParameters(limit=limit),
        "outgoing": NodeEdgesRequest(**page, kinds=["R"][: CHOICE.randrange(2)], valid_at=valid_at),
        "incoming": IncomingEdgesRequest(**page, valid_at=valid_at),
        "edge": EdgeIdRequest(edge_id=f"{IDS[0]}~{CHOICE.choice('RS')}~{CHOICE.choice(IDS[:40])}"),
    }
    return requests[name]


def _answer(case: ApiUseCase, graph: StoreHandle, request: msgspec.Struct) -> bytes | str:
    try:
        found = case.ask(graph, request)
    except KgserveError as error:
        return repr(error)
    return found if isinstance(found, bytes) else msgspec.json.encode(found)


@pytest.mark.parametrize("name", ["get_nodes", "nodes", "count", "list_tags", "outgoing", "incoming", "edge"])
def test_reads_on_the_event_loop_answer_as_in_threads(graph: StoreHandle, name: str) -> None:
    case, answered = CASES[name], 0
    CHOICE.seed(name)
    for _ in range(150):
        request = _drawn_request(name)
        there = _answer(case, graph, request)
        assert _answer(case, graph.nonblocking_handle(), request) == there
        if isinstance(there, bytes):
            answered += 1
            assert msgspec.json.encode(json_decoder(case.answer).decode(there)) == there
    assert answered > 20


def test_a_page_in_compact_form_matches(graph: StoreHandle) -> None:
    request = NodeListParameters(limit=100, compact=True)
    there = _answer(CASES["nodes"], graph, request)  # also opens the catalog
    assert _answer(CASES["nodes"], graph.nonblocking_handle(), request) == there


def test_reads_that_would_wait_leave_the_event_loop(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        graph, page = graph_of(pool, NAME), NodeListParameters(type=["t"])
        write(store, batch("a", "b"))
        _refuses("nodes", graph, page)  # the catalog is closed
        _answer(CASES["nodes"], graph, page)
        _accepts("nodes", graph, page)
        write(store, batch("c"))
        for name, request in (("nodes", page), ("count", CountNodesRequest()), ("list_tags", TagListParameters())):
            _refuses(name, graph, request)  # the catalog is behind
        _accepts("nodes", graph, NodeListParameters())
        _answer(CASES["nodes"], graph, page)
        store.query_catalog(lambda *_: _in_thread(_refuses, "nodes", graph, page))  # the catalog is in use
        _refuses("nodes", graph, NodeListParameters(attributes='{"x":1}'))
        _refuses("get_nodes", graph, GetNodesByIdRequest(ids=["a"], as_of=1))


def test_reads_of_too_much_leave_the_event_loop(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        graph, many = graph_of(pool, NAME), [f"n{number:05}" for number in range(MAX_NONBLOCKING_SCANNED_NODES + 1)]
        write(store, batch("z", "zz", content="x" * (MAX_NONBLOCKING_READ_BYTES // 2)), batch(*many))
        _accepts("get_nodes", graph, GetNodesByIdRequest(ids=["z", "n00000"]))
        _refuses("get_nodes", graph, GetNodesByIdRequest(ids=["z", "zz"]))
        _answer(CASES["count"], graph, CountNodesRequest())
        _accepts("count", graph, CountNodesRequest(types=["t"]))
        _refuses("count", graph, CountNodesRequest(types=["t"], valid_at="now"))
        _accepts("nodes", graph, NodeListParameters(type=["t"], limit=100))
        _refuses("nodes", graph, NodeListParameters(type=["t"], limit=1, offset=MAX_NONBLOCKING_SCANNED_NODES))


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work, *arguments).result(PATIENCE)


def _accepts(name: str, graph: StoreHandle, request: msgspec.Struct) -> None:
    assert isinstance(_answer(CASES[name], graph.nonblocking_handle(), request), bytes)


def _refuses(name: str, graph: StoreHandle, request: msgspec.Struct) -> None:
    with pytest.raises(WouldBlock):
        CASES[name].ask(graph.nonblocking_handle(), request)


def test_memories_and_entities_on_the_event_loop_answer_as_in_threads(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        graph = graph_of(pool, NAME)
        memories = [
            store_memory(graph, StoreMemoryRequest(content=f"text {place}", entity_names=names, dedup="off")).result()
            for place, names in enumerate((["Ada"], ["Ada", "Bob"], []))
        ]
        create_relation(graph, RelationInput(source="Ada", target="Bob", relation_type="knows")).result()
        entity = memories[1].entities[0].id
        asked = [
            *(("memory", ReadMemoryRequest(memory_id=each.id, touch=False)) for each in memories),
            *(("memory", ReadMemoryRequest(memory_id=each, touch=False)) for each in ("none", entity)),
            *(("entity", EntityIdRequest(entity_id=each)) for each in (entity, memories[1].entities[1].id)),
        ]
        for name, request in asked:
            there, here = (_answer(CASES[name], each, request) for each in (graph, graph.nonblocking_handle()))
            assert _without_decay(here) == _without_decay(there)
        for count in (1, 2):
            read = get_memory(graph.nonblocking_handle(), ReadMemoryRequest(memory_id=memories[0].id))
            assert read.access_count == count
        _refuses("entity", graph, EntityIdRequest(entity_id="ada"))  # a name
        fill(pool, [], [{"from": entity, "to": each.id, "relation_type": "R"} for each in memories])
        write(store, batch(*(f"n{number}" for number in range(MAX_NONBLOCKING_RELATIONS))))
        edges = [
            {"from": memories[0].id, "to": f"n{n}", "relation_type": "R"} for n in range(MAX_NONBLOCKING_RELATIONS)
        ]
        fill(pool, [], edges)
        _refuses("memory", graph, ReadMemoryRequest(memory_id=memories[0].id))


def _without_decay(answer: bytes | str) -> bytes | str:
    return re.sub(rb'"effective_confidence":[0-9.e-]+', b"", answer) if isinstance(answer, bytes) else answer
