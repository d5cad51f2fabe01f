"""Optional columns of an engine file: added once a row has extras, without effect on reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from kgserve.projections.cypher_engine.engine.engine_handle import EngineProcessSession
from kgserve.storage.model.node_edge_fields import (
    EdgeExtras,
    EdgeExtrasUpsert,
    NodeEdgeColumnSet,
    NodeExtras,
    NodeExtrasUpsert,
)
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.projections.cypher_engine.driver.reading import contents
from tests.stores.test_compaction import outgrow
from tests.stores.writing import ask, assert_whole, batch, forget_close, layout, opened, write, write_together

IDS = [f"n{number}" for number in range(400)]
EDGES = [(node_id, IDS[(number + 1) % len(IDS)], "r") for number, node_id in enumerate(IDS)]
EXTRAS = NodeExtrasUpsert(
    "it's short", ("b", "a,[]", "日本"), 0, "ada", -62_135_596_800_000_000, 253_402_300_799_999_999
)
HELD = NodeExtras("it's short", ("b", "a,[]", "日本"), 0, "ada", -62_135_596_800_000_000, 253_402_300_799_999_999)
ON_EDGE, HELD_ON_EDGE = EdgeExtrasUpsert(0, "", -1, 1), EdgeExtras(0, "", -1, 1)
CLEARING = NodeExtrasUpsert("", (), None, "", None, None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    """Yield a store with a ring of nodes."""
    with opened(tmp_path) as opened_store:
        write(opened_store, batch(*IDS, edges=EDGES))
        yield opened_store


def extending(*ids: str, extras: NodeExtrasUpsert = EXTRAS) -> WriteBatch:
    """Return an upsert of extras for some nodes and for the edges that start there."""
    ring = dict(zip(IDS, EDGES, strict=True))
    edges = [EdgeUpsert(index, ring[node_id], extras=ON_EDGE) for index, node_id in enumerate(ids)]
    return WriteBatch(nodes=[NodeUpsert(i, node_id, extras=extras) for i, node_id in enumerate(ids)], edges=edges)


def seen(session: EngineProcessSession, ids: list[str]) -> tuple[list[NodeRow], list[EdgeRow]]:
    """Return nodes and the edges that start there, which must be equal from both ends."""
    found = contents(session)
    nodes = sorted((row for row in found.nodes if row.id in ids), key=lambda row: row.id)
    edges = sorted((row for row in found.outgoing if row.source in ids), key=lambda row: row.key)
    incoming = sorted((row for row in found.incoming if row.source in ids), key=lambda row: row.key)
    assert [msgspec.structs.replace(row, extras=None) for row in edges] == incoming
    return nodes, edges


def test_a_store_without_extras_has_no_extra_columns(store: OpenStore) -> None:
    assert store.engine.width is NodeEdgeColumnSet.PLAIN
    with store.engine.reading() as session:
        assert session.width is NodeEdgeColumnSet.PLAIN
        with pytest.raises(Exception, match="does not fit the schema"):
            session.rows("MATCH (e:Entity) RETURN e.summary")
    assert_whole(store)


@pytest.mark.parametrize("count", [1, 60, 400])
def test_the_first_extras_add_the_columns(store: OpenStore, count: int) -> None:
    with store.engine.reading() as before:
        plain = seen(before, IDS[:3])
        (report,) = write(store, extending(*IDS[:count]))
        assert (report.nodes_updated, report.edges_updated) == (count, count)
        ask(store)
        assert store.engine.width is NodeEdgeColumnSet.EXTRAS
        assert seen(before, IDS[:3]) == plain, "who was reading goes on with the file that he has"
    with store.engine.reading() as session:
        nodes, edges = seen(session, IDS)
    assert [row.extras for row in nodes] == [HELD if row.id in IDS[:count] else None for row in nodes]
    assert [row.extras for row in edges] == [HELD_ON_EDGE if row.source in IDS[:count] else None for row in edges]
    assert store.engine.rebuilds == 0, "nothing was wrong"
    assert_whole(store)


@pytest.mark.parametrize("count", [1, 60])
def test_recreating_a_node_adds_no_columns(store: OpenStore, count: int) -> None:
    again = [NodeUpsert(index, node_id, "t") for index, node_id in enumerate(IDS[:count])]
    write(store, WriteBatch(delete_nodes=IDS[:count], nodes=again))
    ask(store)
    assert (store.engine.width, store.engine.rebuilds) == (NodeEdgeColumnSet.PLAIN, 0)
    assert_whole(store)


def test_extras_of_an_edge_add_the_columns(store: OpenStore) -> None:
    write(store, WriteBatch(edges=[EdgeUpsert(0, EDGES[0], extras=EdgeExtrasUpsert(7))]))
    with store.engine.reading() as session:
        assert seen(session, ["n0", "n1"])[1][0].extras == EdgeExtras(7)
    assert_whole(store)


def test_columns_can_be_added_before_the_first_row(store: OpenStore) -> None:
    with store.engine.reading(width=NodeEdgeColumnSet.EXTRAS) as session:
        assert {row.extras for rows in seen(session, IDS) for row in rows} == {None}
    assert_whole(store)
    write(store, extending("n1"))
    assert_whole(store)


def test_the_first_extras_in_an_empty_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, "n0", "t", extras=EXTRAS), NodeUpsert(1, "n1", "t")]))
        with store.engine.reading() as session:
            assert {row.id: row.extras for row in contents(session).nodes} == {"n0": HELD, "n1": None}
        assert_whole(store)


def test_cleared_and_recreated_rows_have_no_extras(store: OpenStore) -> None:
    write(store, extending(*IDS[:50]))
    cleared, made_again = IDS[:45], IDS[45:50]
    clearing = [EdgeUpsert(i, EDGES[i], extras=EdgeExtrasUpsert(0, "", None, None)) for i in range(45)]
    nodes = [NodeUpsert(i, node_id, extras=CLEARING) for i, node_id in enumerate(cleared)]
    futures = write_together(
        store,
        WriteBatch(nodes=nodes, edges=clearing),
        WriteBatch(delete_nodes=made_again),
        batch(*made_again, edges=EDGES[44:50]),
    )
    assert [future.result(30).sequence for future in futures] == [3, 4, 5]
    with store.engine.reading() as session:
        found, edges = seen(session, IDS[:50])
    assert {row.id: row.extras for row in found} == dict.fromkeys(cleared, NodeExtras()) | dict.fromkeys(made_again)
    assert {row.source: row.extras for row in edges} == {
        node_id: EdgeExtras(0) if node_id in cleared[:44] else None for node_id in IDS[:50]
    }
    assert_whole(store)


def test_times_are_stored_and_cleared_individually(store: OpenStore) -> None:
    write(store, extending("n0"))
    write(store, extending("n0", extras=NodeExtrasUpsert(freshness_at=None, valid_from=UNSET, valid_to=0)))
    with store.engine.reading() as session:
        ((row,), _) = seen(session, ["n0"])
    assert row.extras == NodeExtras(HELD.summary, HELD.tags, None, "", HELD.valid_from, 0)


@pytest.mark.parametrize("clean", [True, False])
def test_columns_persist_across_a_restart(tmp_path: Path, *, clean: bool) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*IDS, edges=EDGES), extending("n0"))
        ask(store)
    if not clean:
        forget_close(tmp_path)
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.width is NodeEdgeColumnSet.EXTRAS
        assert store.engine.rebuilds == (0 if clean else 1)
        with store.engine.reading() as session:
            assert seen(session, ["n0"])[0][0].extras == HELD
        assert_whole(store)


def test_a_rebuilt_file_has_columns_if_a_row_has_extras(store: OpenStore) -> None:
    ask(store)
    with store.engine.commits:
        store.engine.heal("to see what becomes of it")
    assert store.engine.width is NodeEdgeColumnSet.PLAIN
    write(store, extending("n0"))
    with store.engine.commits:
        store.engine.heal("to see what becomes of it")
    assert store.engine.width is NodeEdgeColumnSet.EXTRAS
    assert_whole(store)


def test_compaction_keeps_the_columns(store: OpenStore, tmp_path: Path) -> None:
    outgrow(store)
    store.compactor.run()
    assert store.engine.width is NodeEdgeColumnSet.PLAIN
    write(store, extending("n0"))
    outgrow(store)
    store.compactor.run()
    assert store.compactor.done == 2
    assert store.engine.width is NodeEdgeColumnSet.EXTRAS
    assert_whole(store)
    assert len(list(layout(tmp_path).root.glob("graph*.kuzu"))) == 1


MEMORY = NodeExtrasUpsert(
    "short", name="Ada", confidence=0.5, confidence_at=7, importance=1.0, source="chat", context="at lunch", layer=3,
    ended="merged", former_from=None, former_to=9, belongs_to="n1",
)  # fmt: skip
OF_MEMORY = NodeExtras(
    "short", (), None, "", None, None, (), "Ada", 0.5, 7, 1.0, "chat", "at lunch", 3, "merged", None, 9, "n1"
)


def test_only_a_memory_or_a_name_adds_memory_columns(store: OpenStore) -> None:
    write(store, extending("n0"))
    with store.engine.reading() as session:
        assert session.width is NodeEdgeColumnSet.EXTRAS
        assert not {"name", "confidence", "layer"} & {
            row[1] for row in session.rows("CALL table_info('Entity') RETURN *")
        }
    write(
        store,
        WriteBatch(nodes=[NodeUpsert(0, "n1", extras=MEMORY), NodeUpsert(0, "n2", extras=NodeExtrasUpsert(name="B"))]),
    )
    write(store, WriteBatch(edges=[EdgeUpsert(0, EDGES[5], extras=EdgeExtrasUpsert(confidence=0.25, context="said"))]))
    with store.engine.reading() as session:
        nodes, edges = seen(session, ["n0", "n1", "n2", "n5", "n6"])
        assert session.width is NodeEdgeColumnSet.MEMORY
    found = {row.id: row.extras for row in nodes if row.extras is not None}
    assert found == {"n0": HELD, "n1": OF_MEMORY, "n2": NodeExtras(name="B")}
    assert EdgeExtras(confidence=0.25, context="said") in {row.extras for row in edges}
    assert_whole(store)


def test_a_former_memory_has_no_values_in_memory_columns(store: OpenStore) -> None:
    write(store, WriteBatch(nodes=[NodeUpsert(0, node_id, extras=MEMORY) for node_id in IDS[:50]]))
    gone = NodeExtrasUpsert(
        "", **dict.fromkeys(("confidence", "confidence_at", "importance", "layer", "former_to")), **NO_TEXT
    )
    futures = write_together(
        store,
        WriteBatch(nodes=[NodeUpsert(0, node_id, extras=gone) for node_id in IDS[:45]]),
        WriteBatch(delete_nodes=IDS[45:50]),
        batch(*IDS[45:50]),
    )
    assert [future.result(30).sequence for future in futures] == [3, 4, 5]
    with store.engine.reading() as session:
        found, _ = seen(session, IDS[:50])
    assert {row.id: row.extras for row in found} == dict.fromkeys(IDS[:45], NodeExtras()) | dict.fromkeys(IDS[45:50])
    assert_whole(store)


NO_TEXT = dict.fromkeys(("name", "source", "context", "ended", "belongs_to"), "")
