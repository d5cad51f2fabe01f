"""Valid time of superseded facts: any order of writes, corrections, and boundary cases."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph import history_queries, mutations, node_reads
from kgserve.graph.answers import EntityVersion
from kgserve.graph.cypher import statement_execution
from kgserve.graph.request_bodies import CypherRequest, DeleteNodesRequest, TraverseRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import EntityHistoryRequest, NodeIdRequest, NodeListParameters
from kgserve.memory import forget, memory_crud, paginated_lists, retain
from kgserve.memory.memory_models import (
    MemoryEntityInput,
    MemoryIdRequest,
    MemoryListQuery,
    ReadMemoryRequest,
    StoreMemoryRequest,
    UpdateMemoryRequest,
)
from kgserve.memory.retain_forget_recall_models import (
    ForgetRequest,
    RetainAnswer,
    RetainBatchAnswer,
    RetainBatchRequest,
    RetainMemoryOutcome,
    RetainTextRequest,
)
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores import bulk_delete
from kgserve.stores.pool import StorePool
from tests.fuzzing import is_thorough
from tests.graphs import graph_of, nodes_of, walked
from tests.stores.writing import PATIENCE, assert_whole, held, settings

Operations = list[RetainMemoryOutcome]

DAY = 86_400_000_000
FACTS = 20_000 if is_thorough() else 2_000
ALICE = [MemoryEntityInput(name="Alice", entity_type="person")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("stores"))) as pool:
        yield pool


@pytest.fixture
def graph(place: StorePool, store: str) -> StoreHandle:
    # Neither indexes nor history: valid time is in the rows alone.
    return graph_of(place, store)


def retain_text(graph: StoreHandle, content: str, **wanted: Any) -> RetainAnswer:
    return retain.retain_text_or_conversation(graph, RetainTextRequest(content=content, **wanted)).result(PATIENCE)


def retain_operation(graph: StoreHandle, content: str, **wanted: Any) -> RetainMemoryOutcome:
    """Retain a text; return the operation on the memory itself."""
    return next(each for each in retain_text(graph, content, **wanted).operations if each.type != "link")


def versions(graph: StoreHandle, memory: str) -> list[EntityVersion]:
    return history_queries.list_entity_versions(graph, EntityHistoryRequest(entity_id=memory)).versions


def true_at(graph: StoreHandle, moment: str | None) -> dict[str, str]:
    """Return listed contents by memory id at a valid time."""
    page = paginated_lists.list_memories(graph, MemoryListQuery(valid_at=moment, limit=1000))
    assert page.next_cursor is None
    found = {each.id.partition("@")[0]: each.content for each in page.memories}
    assert len(found) == len(page.memories)
    return found


def put_home_versions(graph: StoreHandle) -> None:
    retain_operation(
        graph, "Alice lives in Berlin.", entity_id="home", valid_from="2022-01-01T00:00:00Z", entities=ALICE
    )
    retain_operation(
        graph, "Alice lives in London.", entity_id="home", valid_from="2025-01-01T00:00:00Z", entities=ALICE
    )
    late = {"valid_from": "2019-01-01T00:00:00Z", "valid_to": "2021-01-01T00:00:00Z"}
    retain_operation(graph, "Alice lives in Madrid.", entity_id="home", entities=ALICE, **late)


def test_valid_time_reads_work_without_history(graph: StoreHandle) -> None:
    put_home_versions(graph)
    done = retain_operation(graph, "Alice lives in London, England.", entity_id="home", update="correct")
    assert (done.type, done.memory_id) == ("update", "home")
    found = versions(graph, "home")
    assert [(each.id, each.content.split()[3][:6], each.valid_from, each.valid_to) for each in found] == [
        ("home@3", "Madrid", "2019-01-01T00:00:00.000000Z", "2021-01-01T00:00:00.000000Z"),
        ("home@1", "Berlin", "2022-01-01T00:00:00.000000Z", "2025-01-01T00:00:00.000000Z"),
        ("home@4", "London", "2025-01-01T00:00:00.000000Z", None),
    ]
    assert {each.entity_id for each in found} == {"home"}
    expected = {
        "2018-01-01T00:00:00Z": [],
        "2020-01-01T00:00:00Z": ["home@3"],
        "2021-06-01T00:00:00Z": [],
        "2023-01-01T00:00:00Z": ["home@1"],
        "2026-01-01T00:00:00Z": ["home"],
        None: ["home"],
    }
    for moment, ids in expected.items():
        page = paginated_lists.list_memories(graph, MemoryListQuery(valid_at=moment, tags=[], source=None))
        assert [each.id for each in page.memories] == ids
        walk = TraverseRequest(start_id="Alice", direction="both", valid_at=moment)
        assert [node.id for node in walked(graph, walk).nodes if node.id != "Alice"] == ids
        assert [node.id for node in nodes_of(graph, NodeListParameters(type=["fact"], valid_at=moment)).nodes] == ids
    # An archived version can be read, but neither changed nor superseded.
    assert memory_crud.get_memory(graph, ReadMemoryRequest(memory_id="home@1")).access_count == 0
    for wanted in ({"supersedes": "home@1"}, {"supersedes": "home", "entity_id": "x"}):
        with pytest.raises((Conflict, InvalidInput)):
            retain_operation(graph, "x", **wanted)
    with pytest.raises(NotFound):
        memory_crud.update_memory(graph, UpdateMemoryRequest(memory_id="home@1", content="x")).result(PATIENCE)
    # A repeated statement creates no version and is not merged into a former one.
    assert retain_operation(graph, "Alice lives in London, England.", entity_id="home").type == "noop"
    assert retain_operation(graph, "Alice lives in Berlin.").type == "create"
    # Deletion includes all versions.
    memory_crud.delete_memory(graph, MemoryIdRequest(memory_id="home")).result(PATIENCE)
    assert [*true_at(graph, "2020-01-01T00:00:00Z").values()] == ["Alice lives in Berlin."]
    with pytest.raises((NotFound, Conflict)):
        versions(graph, "home")


def delete_by_node(graph: StoreHandle) -> None:
    assert mutations.delete_node(graph, NodeIdRequest(node_id="home")).result(PATIENCE).edges_deleted == 5


def delete_by_filter(graph: StoreHandle) -> None:
    wanted = DeleteNodesRequest(types=["fact"], limit=1)
    foretold = node_reads.delete_matching_nodes(graph, msgspec.structs.replace(wanted, dry_run=True)).result(PATIENCE)
    done = node_reads.delete_matching_nodes(graph, wanted).result(PATIENCE)
    assert (done.ids, done.edges_deleted) == (foretold.ids, foretold.edges_deleted) == (["home"], 5)


def delete_by_statement(graph: StoreHandle) -> None:
    query = "MATCH (n:Entity {id: 'home'}) DETACH DELETE n"
    changes = statement_execution.run_cypher_request(graph, CypherRequest(query=query, mode="write")).changes
    assert changes is not None
    assert (changes.nodes_deleted, changes.edges_deleted) == (3, 5)


def delete_with_another_version(graph: StoreHandle) -> None:
    with graph.lease() as store, held(store):
        request = RetainTextRequest(content="Alice lives in Rome.", entity_id="home", valid_from="2026-01-01T00:00:00Z")
        later = retain.retain_text_or_conversation(graph, request)
        gone = mutations.delete_node(graph, NodeIdRequest(node_id="home"))
    later.result(PATIENCE)
    gone.result(PATIENCE)


@pytest.mark.parametrize("delete", [delete_by_node, delete_by_filter, delete_by_statement, delete_with_another_version])
@pytest.mark.parametrize("is_large", [False, True])
def test_deletion_includes_former_versions(
    graph: StoreHandle, monkeypatch: pytest.MonkeyPatch, delete: Callable[[StoreHandle], None], *, is_large: bool
) -> None:
    put_home_versions(graph)
    if is_large:
        monkeypatch.setattr(bulk_delete, "MIN_BULK_DELETE_ROWS", 1)
    with graph.lease() as store:
        # Nodes of other callers with such names are not versions.
        nodes = [NodeUpsert(0, "draft", "paper", "x"), NodeUpsert(1, "other@1", "paper", "y")]
        edges = [
            EdgeUpsert(0, (source, target, VERSION_OF_RELATION))
            for source, target in (("draft", "other@1"), ("draft", "Alice"))
        ]
        store.submit(WriteBatch(nodes=nodes, edges=edges)).result(PATIENCE)
        delete(graph)
        mutations.delete_node(graph, NodeIdRequest(node_id="other@1")).result(PATIENCE)
        with store.reading() as rows:
            assert {row.id for row in rows.all_nodes()} == {"Alice", "draft"}
            assert [row.key for row in rows.all_edges()] == [("draft", "Alice", VERSION_OF_RELATION)]
        assert_whole(store)


def test_overlapping_validity_is_rejected(graph: StoreHandle) -> None:
    put_home_versions(graph)

    def changed(**wanted: Any) -> None:
        memory_crud.update_memory(graph, UpdateMemoryRequest(memory_id="home", **wanted)).result(PATIENCE)

    for wanted in ({"valid_from": "2024-12-31T00:00:00Z"}, {"valid_from": "2018-01-01T00:00:00Z"}):
        with pytest.raises(Conflict, match=r"'home@\d' is valid from 20"):
            changed(**wanted)
        with pytest.raises(Conflict, match="former version"):
            retain_operation(graph, "Alice lives in London.", entity_id="home", update="correct", **wanted)
    # Between two former versions, and after them.
    changed(valid_from="2021-02-01T00:00:00Z", valid_to="2021-11-01T00:00:00Z")
    with pytest.raises(Conflict, match="'home@1' is valid from 2022-01-01"):
        changed(valid_to="2022-02-01T00:00:00Z")
    changed(valid_to="2022-01-01T00:00:00Z", valid_from="2021-01-01T00:00:00Z")
    assert true_at(graph, "2021-06-01T00:00:00Z") == {"home": "Alice lives in London."}
    retain_operation(graph, "Alice lives in Rome.", entity_id="home", update="correct", valid_to="2021-05-01T00:00:00Z")


NEVER = 1 << 62


class ModelFact(NamedTuple):
    start: int
    end: int
    text: str


def find_true_fact(known: list[ModelFact], moment: int, now: int) -> ModelFact | None:
    """Return the fact that is true at a moment: the last to begin, except those that have ended since."""
    for fact in sorted(known, reverse=True):
        if fact.start <= moment and (moment < fact.end or fact.end > now):
            return fact if moment < fact.end else None
    return None


def list_true_spans(known: list[ModelFact], now: int) -> list[ModelFact]:
    """Return the spans in which one fact after the other is true."""
    moments = sorted({at for fact in known for at in (fact.start, fact.end)})
    spans: list[tuple[ModelFact | None, int]] = [(None, 0)]
    for moment in moments:
        fact = find_true_fact(known, moment, now)
        if fact != spans[-1][0]:
            spans.append((fact, moment))
    ends = [at for _, at in spans[1:]] + [NEVER]
    return [ModelFact(at, end, fact.text) for (fact, at), end in zip(spans, ends, strict=True) if fact is not None]


def retain_concurrently(graph: StoreHandle, requests: list[RetainTextRequest]) -> list[Operations]:
    """Retain each in a separate write of the same group commit: later ones see earlier decisions."""
    waiting = [retain.retain_text_or_conversation(graph, request) for request in requests]
    return [each.result(PATIENCE).operations for each in waiting]


def retain_as_batch(graph: StoreHandle, requests: list[RetainTextRequest]) -> list[Operations]:
    done = retain.retain_text_batch(graph, RetainBatchRequest(items=requests)).result(PATIENCE)
    return [each.operations for each in done.results]


@pytest.mark.parametrize("tell", [retain_concurrently, retain_as_batch])
def test_fact_order_does_not_change_result(
    place: StorePool, store: str, tell: Callable[[StoreHandle, list[RetainTextRequest]], list[Operations]]
) -> None:
    made = random.Random(7)
    graph = graph_of(place, store)
    starts = {(f"s{made.randrange(60)}", made.randrange(20_000) * DAY) for _ in range(FACTS)}
    facts = [
        (
            subject,
            start,
            start + made.randrange(1, 2_000) * DAY if made.random() < 0.3 else None,
            f"v{made.randrange(9)}",
        )
        for subject, start in sorted(starts)
    ]
    made.shuffle(facts)
    for first in range(0, len(facts), 100):
        requests = [
            RetainTextRequest(
                content=text,
                entity_id=subject,
                valid_from=format_rfc3339_timestamp(start),
                valid_to=None if end is None else format_rfc3339_timestamp(end),
                source="told",
            )
            for subject, start, end, text in facts[first : first + 100]
        ]
        for operations in tell(graph, requests):
            assert {each.type for each in operations} <= {"create", "update"}
            for each in operations:
                version = memory_crud.get_memory(graph, ReadMemoryRequest(memory_id=each.memory_id, touch=False))
                assert version.id.partition("@")[0] == each.memory_id.partition("@")[0]
    model: dict[str, list[ModelFact]] = {}
    for subject, start, end, text in facts:
        model.setdefault(subject, []).append(ModelFact(start, NEVER if end is None else end, text))
    now = now_in_microseconds()
    for _ in range(30):
        moment = made.randrange(22_000) * DAY + made.randrange(DAY)
        found = {subject: find_true_fact(known, moment, now) for subject, known in model.items()}
        expected = {subject: fact.text for subject, fact in found.items() if fact is not None}
        at = format_rfc3339_timestamp(moment)
        assert true_at(graph, at) == expected
        by_source = paginated_lists.list_memories(
            graph, MemoryListQuery(valid_at=at, source="told", types=["fact"], limit=1000)
        )
        assert len(by_source.memories) == len(expected)
    for subject, known in model.items():
        told_of = versions(graph, subject)
        assert len({each.id for each in told_of}) == len(told_of)
        assert [(each.content, each.valid_from, each.valid_to) for each in told_of] == [
            (
                span.text,
                format_rfc3339_timestamp(span.start),
                None if span.end == NEVER else format_rfc3339_timestamp(span.end),
            )
            for span in list_true_spans(known, now)
        ]
        assert [each.id for each in told_of][-1].startswith(f"{subject}@")


def retain_items(graph: StoreHandle, *items: dict[str, Any]) -> RetainBatchAnswer:
    request = msgspec.convert({"items": items}, RetainBatchRequest)
    return retain.retain_text_batch(graph, request).result(PATIENCE)


def test_batch_equals_sequential_retains(place: StorePool, store: str) -> None:
    items: list[dict[str, Any]] = [
        {"content": "Alice lives in Berlin.", "entity_id": "home", "valid_from": "2022-01-01T00:00:00Z"},
        {"content": "Alice lives in London.", "supersedes": "home", "valid_from": "2025-01-01T00:00:00Z"},
        {
            "content": "Alice lives in Madrid.",
            "entity_id": "home",
            "valid_from": "2019-01-01T00:00:00Z",
            "valid_to": "2021-01-01T00:00:00Z",
        },
        {"content": "alice lives in london", "entity_id": "home"},
        {"content": "Alice lives in London, England.", "entity_id": "home", "update": "correct", "tags": ["x"]},
        {"content": "Tea is at four.", "dedup": "exact"},
        {"content": "tea is at four", "dedup": "exact"},
        {"content": [{"content": "Hello"}, {"content": "Good day"}], "source": "chat"},
        {"content": [{"content": "Good day"}, {"content": "Bye"}], "source": "chat", "first": 1},
        {"content": "Alice lives in Leeds.", "entity_id": "home", "valid_from": "2026-01-01T00:00:00Z"},
        {"content": "Alice lived in Rome.", "entity_id": "home", "valid_from": "2018-01-01T00:00:00Z"},
    ]
    for each in items[:3]:
        each["entities"] = [{"name": "Alice", "entity_type": "person"}]
    one, other = (graph_of(place, f"{store}-{name}") for name in ("one", "other"))
    done = retain_items(one, *items)
    assert [{step.type for step in each.operations} for each in done.results] == [
        {
            step.type
            for step in retain.retain_text_or_conversation(other, msgspec.convert(each, RetainTextRequest))
            .result(PATIENCE)
            .operations
        }
        for each in items
    ]
    told_of = [
        [(each.content, each.valid_from, each.valid_to) for each in versions(graph, "home")] for graph in (one, other)
    ]
    assert told_of[0] == told_of[1]
    assert [content.split()[3] for content, *_ in told_of[0]] == [
        "Rome.",
        "Madrid.",
        "Rome.",
        "Berlin.",
        "London,",
        "Leeds.",
    ]
    for moment in ("2020-01-01T00:00:00Z", "2023-01-01T00:00:00Z", None):
        walk = TraverseRequest(start_id="Alice", direction="both", valid_at=moment)
        found = [{node.content for node in walked(graph, walk).nodes} for graph in (one, other)]
        assert found[0] == found[1]
        assert len(found[0]) == 2
    # Reported version ids exist, and no other version ids do.
    for each in done.results[:3]:
        step = each.operations[0]
        assert step.version_id is not None
        assert step.version_id in {version.id for version in versions(one, "home")}
    assert len({version.id for version in versions(one, "home")}) == 6


def test_batch_is_atomic_and_reports_fault_position(graph: StoreHandle) -> None:
    fine = {"content": "Fine.", "entity_id": "fine"}
    for wanted, kind, said in (
        ({"content": "x", "supersedes": "missing"}, NotFound, "items[1]: there is no memory 'missing'"),
        ({"content": "x", "entity_id": "fine", "update": "never"}, Conflict, "items[1]: memory 'fine'"),
        ({"content": "x", "parent": "missing"}, NotFound, "items[1]: parent_id: "),
        (
            {"content": "x", "entity_id": "fine", "valid_from": "2020-01-01T00:00:00Z", "valid_to": "1"},
            InvalidInput,
            "items[1].valid_to: is not an RFC 3339 time",
        ),
        (
            {"content": "x", "entity_id": "fine", "valid_to": "2020-01-01T00:00:00Z"},
            InvalidInput,
            "items[1].valid_to: must be after valid_from",
        ),
        ({"content": [{"content": " "}]}, InvalidInput, "items[1].content: contains no text"),
        ({"content": [{"content": "x", "at": "soon"}]}, InvalidInput, "items[1].content[0].created_at"),
        ({"content": [{"content": "x"}] * 1_000}, InvalidInput, "items: contain 1,001 texts and messages"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            retain_items(graph, fine, wanted)
    assert retain_items(graph, fine).results[0].operations[0].type == "create"


def test_adjacent_and_equal_bounds(graph: StoreHandle) -> None:
    # A fact with the same start replaces the other: a version of zero length would never be valid.
    retain_operation(graph, "a", entity_id="m", valid_from="2020-01-01T00:00:00Z")
    assert retain_operation(graph, "b", entity_id="m", valid_from="2020-01-01T00:00:00Z").type == "update"
    assert [each.content for each in versions(graph, "m")] == ["b"]
    assert retain_operation(graph, "b", entity_id="m", valid_from="2020-01-01T00:00:00Z").type == "noop"
    # An end in the future, then an earlier one; a late fact without end ends where the next begins.
    retain_operation(graph, "c", entity_id="m", valid_from="2021-01-01T00:00:00Z", valid_to="2099-01-01T00:00:00Z")
    retain_operation(graph, "d", entity_id="m", valid_from="2023-01-01T00:00:00Z")
    retain_operation(graph, "e", entity_id="m", valid_from="2022-01-01T00:00:00Z")
    found = [(each.content, each.valid_from and each.valid_from[:4], each.valid_to and each.valid_to[:4])
             for each in versions(graph, "m")]  # fmt: skip
    assert found == [("b", "2020", "2021"), ("c", "2021", "2022"), ("e", "2022", "2023"), ("d", "2023", None)]
    # The head has no known start: a past fact was valid before it.
    retain_operation(graph, "now here", entity_id="n")
    retain_operation(
        graph, "was there", entity_id="n", valid_from="2019-01-01T00:00:00Z", valid_to="2021-01-01T00:00:00Z"
    )
    assert [each.content for each in versions(graph, "n")] == ["was there", "now here"]
    assert true_at(graph, "2020-01-01T00:00:00Z")["n"] == "was there"
    assert true_at(graph, None)["n"] == "now here"
    # Head and version share a commit: their ids stay distinct, also when the head is superseded.
    retain_operation(graph, "and now", entity_id="n")
    ids = [each.id for each in versions(graph, "n")]
    assert len({*ids}) == 3
    with pytest.raises(InvalidInput):
        retain_operation(graph, "x", entity_id="n", valid_from="2024-01-01T00:00:00Z", valid_to="2024-01-01T00:00:00Z")
    with pytest.raises(Conflict):
        retain_operation(graph, "never", entity_id="n", update="never")
    with pytest.raises(NotFound):
        retain_operation(graph, "missing", supersedes="nobody")


JOB = "Ann works at Acme."


def year(of: int) -> str:
    return f"{of}-01-01T00:00:00Z"


def spans(graph: StoreHandle, memory: str) -> list[tuple[str, str | None, str | None]]:
    """Return the versions of a memory with the years of their bounds."""
    return [
        (each.content, each.valid_from and each.valid_from[:4], each.valid_to and each.valid_to[:4])
        for each in versions(graph, memory)
    ]


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ({}, {"valid_to": year(2099)}, [(JOB, "2099")]),
        ({}, {"valid_to": year(2020)}, [(JOB, "2020")]),
        ({"valid_from": year(2010)}, {"valid_to": year(2020)}, [(JOB, "2020")]),
        ({"valid_from": year(2010), "valid_to": year(2015)}, {}, [(JOB, "2015"), (JOB, None)]),
        (
            {"valid_from": year(2010), "valid_to": year(2015)},
            {"valid_to": year(2099)},
            [(JOB, "2015"), (JOB, "2099")],
        ),
        ({"valid_from": year(2010), "valid_to": year(2015)}, {"valid_to": year(2014)}, [(JOB, "2014")]),
        ({"valid_to": year(2099)}, {"valid_from": year(2010)}, [(JOB, "2099")]),
        ({}, {"valid_from": year(2010), "valid_to": year(2012)}, [(JOB, "2012"), (JOB, None)]),
        ({}, {"valid_from": year(2090)}, [(JOB, "2090"), (JOB, None)]),
        ({"valid_from": year(2090)}, {}, [(JOB, "2090"), (JOB, None)]),
    ],
)
@pytest.mark.parametrize("name", ["entity_id", "supersedes"])
def test_known_text_with_other_times_is_update(
    graph: StoreHandle, name: str, first: dict[str, str], again: dict[str, str], expected: list[tuple[str, str | None]]
) -> None:
    retain_operation(graph, JOB, entity_id="job", **first)
    done = retain_operation(graph, JOB, **{name: "job"}, **again)
    assert done.type == "update"
    assert [(content, end) for content, _, end in spans(graph, "job")] == expected
    assert done.version_id in {each.id for each in versions(graph, "job")}
    is_true_now = "2090" in str(expected) or expected[-1][1] in {None, "2099"}
    assert true_at(graph, None) == ({"job": JOB} if is_true_now else {})
    if len(expected) == 1:
        assert retain_operation(graph, JOB, entity_id="job", update="never", **again).type == "noop"
    # Sent again, the times are known.
    assert retain_operation(graph, JOB, **{name: "job"}, **again).type == "noop"


def test_expiry_of_known_text_is_stored(graph: StoreHandle) -> None:
    retain_operation(graph, JOB, entity_id="job")
    assert retain_operation(graph, JOB, entity_id="job", expires_in="1h").type == "update"
    [version] = versions(graph, "job")
    assert version.valid_to is not None
    known = retain_operation(graph, JOB, entity_id="job")
    assert (known.type, known.reason) == ("noop", f"is known already, until {version.valid_to}")
    with pytest.raises(Conflict, match="other times"):
        retain_operation(graph, JOB, entity_id="job", update="never", expires_in="2h")


def test_ended_fact_interrupts_present_one(graph: StoreHandle) -> None:
    def lived(city: str, start: int | None, end: int | None = None) -> str:
        bounds = {"valid_from": start and year(start), "valid_to": end and year(end)}
        return retain_operation(graph, city, entity_id="home", **bounds).reason

    lived("Berlin", 2010)
    assert lived("Bonn", 2012, 2013) == "was true until 2013-01-01T00:00:00.000000Z, before what 'home' says now"
    assert true_at(graph, None) == {"home": "Berlin"}
    assert spans(graph, "home") == [("Berlin", "2010", "2012"), ("Bonn", "2012", "2013"), ("Berlin", "2013", None)]
    # Berlin began in 2010, so a fact that begins later ends it also after the interruption.
    lived("Paris", 2011)
    lived("Ulm", 2009)
    assert spans(graph, "home") == [
        ("Ulm", "2009", "2010"),
        ("Berlin", "2010", "2011"),
        ("Paris", "2011", "2012"),
        ("Bonn", "2012", "2013"),
        ("Paris", "2013", None),
    ]
    lived("Rome", 2011, 2014)
    assert [city for city, *_ in spans(graph, "home")] == ["Ulm", "Berlin", "Rome", "Bonn", "Rome"]
    assert true_at(graph, None) == {}


@pytest.mark.parametrize("start", [None, year(2020)])
def test_batch_keeps_texts_that_begin_together(graph: StoreHandle, start: str | None) -> None:
    texts = ["u1", "u2", "u3", "u3", "u4"]
    done = retain_items(graph, *({"content": text, "entity_id": "f", "valid_from": start} for text in texts))
    steps = [each.operations[0] for each in done.results]
    assert [step.type for step in steps] == ["create", "update", "update", "noop", "update"]
    told_of = {each.id: each.content for each in versions(graph, "f")}
    assert [told_of[step.version_id or ""] for step in steps] == texts
    assert len(told_of) == 4
    assert true_at(graph, None) == {"f": "u4"}


def test_random_statements_are_stored_without_overlap(graph: StoreHandle) -> None:
    made = random.Random(11)
    for _ in range(400 if is_thorough() else 120):
        years = sorted(made.sample(range(2015, 2035), 2))
        given = {"valid_from": year(years[0]), "valid_to": year(years[1]), "expires_in": "1h"}
        wanted = {name: given[name] for name in made.choice(BOUNDS)}
        memory, text = f"m{made.randrange(3)}", f"v{made.randrange(3)}"
        try:
            done = retain_operation(graph, text, entity_id=memory, **wanted)
        except InvalidInput:
            continue
        told_of = versions(graph, memory)
        assert (done.version_id, text) in [(each.id, each.content) for each in told_of]
        bounds = [each for each in told_of if each.valid_from is None or each.valid_from != each.valid_to]
        ends = zip(bounds, sorted(bounds, key=lambda each: each.valid_from or "")[1:], strict=False)
        assert all(one.valid_to is not None and one.valid_to <= (other.valid_from or "") for one, other in ends)
        if "valid_from" not in wanted and "valid_to" not in wanted:
            assert true_at(graph, None)[memory] == text


BOUNDS = ((), ("expires_in",), ("valid_from",), ("valid_to",), ("valid_from", "valid_to"))


def test_version_like_ids_are_rejected_and_concurrent_facts_kept(graph: StoreHandle) -> None:
    for wanted in (
        StoreMemoryRequest(content="x", memory_id="a@12"),
        StoreMemoryRequest(content="x", memory_id="a@1.2"),
    ):
        with pytest.raises(InvalidInput):
            memory_crud.store_memory(graph, wanted)
    memory_crud.store_memory(graph, StoreMemoryRequest(content="x", memory_id="ann@home")).result(PATIENCE)
    first = retain_operation(graph, "zero", entity_id="m")
    assert first.type == "create"
    waiting = [
        retain.retain_text_or_conversation(graph, RetainTextRequest(content=f"state {at}", supersedes="m"))
        for at in range(5)
    ]
    assert {each.operations[0].type for each in (one.result(PATIENCE) for one in waiting)} == {"update"}
    found = versions(graph, "m")
    # Facts with the same start replace each other.
    assert found[-1].content == "state 4"
    assert found[0].content == "zero"
    assert len({each.id for each in found}) == len(found)
    assert all(each.valid_to is not None for each in found[:-1])


def test_entities_follow_superseded_text(graph: StoreHandle) -> None:
    for name in ("Berlin", "London"):
        retain_text(graph, f"{name} is a city.", entities=[MemoryEntityInput(name=name, entity_type="location")])
    retain_operation(graph, "Alice lives in Berlin.", entity_id="home", entities=ALICE)
    done = retain_text(graph, "She moved to London.", entity_id="home", valid_from="2026-01-01T00:00:00Z")
    assert [(each.type, each.content) for each in done.operations] == [
        ("update", "She moved to London."),
        ("link", "London"),
    ]
    now = memory_crud.get_memory(graph, ReadMemoryRequest(memory_id="home"))
    assert {each.id for each in now.entities} == {"Alice", "London"}
    then = memory_crud.get_memory(graph, ReadMemoryRequest(memory_id=versions(graph, "home")[0].id))
    assert {each.id for each in then.entities} == {"Alice", "Berlin"}


def test_forget_single_version(graph: StoreHandle) -> None:
    put_home_versions(graph)
    done = forget.soft_delete_or_restore_memories(graph, ForgetRequest(entity_id="home@1")).result(PATIENCE)
    assert (done.memories_removed, done.ids) == (1, ["home@1"])
    assert [each.content.split()[3] for each in versions(graph, "home")] == ["Madrid.", "London."]
    back = forget.soft_delete_or_restore_memories(graph, ForgetRequest(entity_id="home@1", undo=True)).result(PATIENCE)
    assert (back.memories_restored, back.relations_restored) == (1, 1)
    assert len(versions(graph, "home")) == 3
