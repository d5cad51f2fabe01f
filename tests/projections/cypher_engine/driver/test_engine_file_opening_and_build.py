"""Engine files: applied changes are read back, and errors are detected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import EngineFailed, InvalidInput, KgserveError, StorageFull, TimedOut, Unavailable
from kgserve.projections.cypher_engine.driver.error_translation import translate_engine_error
from kgserve.projections.cypher_engine.engine.engine_handle import (
    EngineHandle,
    EngineOptions,
    EngineProcessSession,
    EngineReplaced,
    build_engine_file,
)
from kgserve.projections.cypher_engine.engine.protocol import EngineFileOptions
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.engines import ENGINE
from tests.fuzzing import some
from tests.projections.cypher_engine.driver.reading import contents
from tests.storage.journal.history import History
from tests.stores.writing import ask, batch, opened, tamper, write

OPTIONS = EngineOptions(EngineFileOptions(cache_bytes=64 << 20), engine=ENGINE, readers=2, read_timeout=0.2)


def built(folder: Path, history: History) -> EngineHandle:
    """Return an engine file with the result of a history."""
    rows = folder / f"rows-{history.state.sequence}"
    rows.mkdir()
    path = folder / f"{history.state.sequence}.kuzu"
    return build_engine_file(path, rows, materialize_rows_to_parquet(None, history.changes, rows).state, OPTIONS)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineHandle]:
    opened_engine = built(tmp_path, History())
    yield opened_engine
    if not opened_engine.closed:
        opened_engine.retire()


def measured(engine: EngineHandle, folder: Path) -> tuple[int, int, int]:
    dumped = folder / "dumped"
    dumped.mkdir(exist_ok=True)
    with engine.reader(timeout=0) as session:
        session.dump(dumped)
    return snapshot.digest_and_count_snapshot_rows(dumped)


def applied(engine: EngineHandle, history: History, written: WriteBatch) -> None:
    change = history.add(written)
    engine.apply(NetChange([change]), history.state)
    assert engine.state == history.state


@pytest.mark.parametrize("size", some((1, 10, 11, 20, 21, 40, 41, 200, 201, 450), 1, 10, 11, 21, 41, 201))
def test_every_kind_of_change_at_every_size(engine: EngineHandle, tmp_path: Path, size: int) -> None:
    history = History()
    ids = [f"n{number}" for number in range(size)]
    keys: list[EdgeKey] = [(ids[number], ids[number * 7 % size], f"r{number}") for number in range(size)]
    for written in (
        WriteBatch(nodes=[NodeUpsert(i, node_id, "t", node_id) for i, node_id in enumerate(ids)]),
        WriteBatch(edges=[EdgeUpsert(i, key, float(i)) for i, key in enumerate(keys)]),
        WriteBatch(nodes=[NodeUpsert(i, node_id, content="new") for i, node_id in enumerate(ids)]),
        WriteBatch(edges=[EdgeUpsert(i, key, -1.0, '{"a":1}') for i, key in enumerate(keys)]),
        WriteBatch(delete_edges=keys[::2]),
        WriteBatch(delete_nodes=ids[::2]),
        WriteBatch(nodes=[NodeUpsert(i, node_id, "u") for i, node_id in enumerate(ids)]),
        WriteBatch(delete_nodes=ids),
    ):
        applied(engine, history, written)
        assert measured(engine, tmp_path) == (history.state.digest, history.state.nodes, history.state.edges)


def test_unusual_texts_round_trip(engine: EngineHandle, tmp_path: Path) -> None:
    odd = [
        "'",
        '"',
        "`",
        "\\",
        "\0",
        "a\0b",
        "\n",
        "\r\n",
        "😀",
        "\u202e",
        "\ufeff",
        "$i",
        "{}",
        " ",
        "NULL",
        "x" * 512,
    ]
    for start, count in ((0, len(odd)), (1, 3)):
        history = History()
        engine = built(tmp_path / f"{start}", history) if (tmp_path / f"{start}").mkdir() is None else engine
        some = odd[start : start + count]
        puts = [NodeUpsert(i, text, text, text * 3, '{"k":"\\u0000ü"}') for i, text in enumerate(some)]
        edges = [EdgeUpsert(i, (text, some[0], text), 0.1, '{"k":"ü"}') for i, text in enumerate(some)]
        applied(engine, history, WriteBatch(nodes=puts, edges=edges))
        assert measured(engine, tmp_path)[0] == history.state.digest
        found = contents(engine.writer)
        assert all(found.node(text) == history.workspace.nodes[text] for text in some)
        engine.retire()


def test_a_file_built_from_rows_holds_them(tmp_path: Path) -> None:
    history = History()
    history.add(batch("a", "b", edges=[("a", "b", "r"), ("a", "a", "r")]))
    engine = built(tmp_path, history)
    assert engine.state == history.state
    assert measured(engine, tmp_path) == (history.state.digest, 2, 2)
    assert {row.key for row in contents(engine.writer).incoming} == {("a", "b", "r"), ("a", "a", "r")}
    engine.retire()


@pytest.mark.parametrize(
    "written",
    [
        WriteBatch(nodes=[NodeUpsert(0, "a", content="new")]),
        WriteBatch(delete_nodes=["a"]),
        WriteBatch(edges=[EdgeUpsert(0, ("a", "b", "r"))]),
        WriteBatch(delete_edges=[("b", "a", "r")]),
    ],
)
def test_a_missing_row_is_detected(engine: EngineHandle, written: WriteBatch) -> None:
    history = History()
    applied(engine, history, batch("a", "b", edges=[("b", "a", "r")]))
    engine.writer.run("MATCH (a:Entity {id: 'a'}) DETACH DELETE a")
    change = history.add(written)
    with pytest.raises(EngineFailed):
        engine.apply(NetChange([change]), history.state)


def test_a_duplicate_row_is_detected(engine: EngineHandle) -> None:
    history = History()
    applied(engine, history, batch("a"))
    with pytest.raises(EngineFailed):
        engine.apply(NetChange(history.changes), history.state)


def test_rows_with_wrong_counts_are_rejected(tmp_path: Path) -> None:
    history = History()
    history.add(batch("a", "b"))
    state = materialize_rows_to_parquet(None, history.changes, tmp_path).state
    with pytest.raises(EngineFailed):
        build_engine_file(tmp_path / "g.kuzu", tmp_path, StoreState(1, 1, state.digest, 3, 0), OPTIONS)


def test_a_retired_engine_closes_after_its_last_reader(engine: EngineHandle) -> None:
    with engine.reader() as session:
        engine.retire()
        assert not engine.closed
        with pytest.raises(EngineReplaced), engine.reader():
            pass
        assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[0]]
    assert engine.closed


def test_more_readers_than_connections(engine: EngineHandle) -> None:
    with engine.reader(), engine.reader(), pytest.raises(Unavailable), engine.reader():
        pass
    with engine.reader() as session:
        assert session.rows("RETURN 1") == [[1]]


def fail_within_a_transaction(session: EngineProcessSession) -> None:
    session.run("BEGIN TRANSACTION READ ONLY")
    session.run("MATCH (x:Nothing) RETURN x")


def test_a_failed_reader_is_not_reused(engine: EngineHandle) -> None:
    for _ in range(5):
        with pytest.raises(InvalidInput), engine.reader() as session:
            fail_within_a_transaction(session)
    with engine.reader() as session:
        session.run("BEGIN TRANSACTION READ ONLY")
        session.run("COMMIT")


@pytest.mark.parametrize(
    "statement", ["MATCH (f:SchemaFile {number: 2}) DELETE f", "MATCH (f:SchemaFile {number: 1}) SET f.xxh3 = 'x'"]
)
def test_a_file_with_another_schema_is_rebuilt(tmp_path: Path, statement: str) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        tamper(store, statement)
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.rebuilds == 1
        assert store.check().ok


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 100_000, b"SQLite format 3\0" * 1000])
def test_a_foreign_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "g.kuzu"
    path.write_bytes(content)
    try:
        engine = EngineHandle(path, OPTIONS)
    except KgserveError:
        return
    engine.retire()
    pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Interrupted.", TimedOut),
        ("IO exception: Cannot write to file. No space left on device", StorageFull),
        ("Buffer manager exception: Unable to allocate memory! The buffer pool is full", Unavailable),
        ("Parser exception: Invalid input <x y>", InvalidInput),
        ("Binder exception: Table X does not exist.", InvalidInput),
        ("Runtime exception: Found duplicated primary key value a", EngineFailed),
        ("", EngineFailed),
    ],
)
def test_errors_are_classified(text: str, kind: type[KgserveError]) -> None:
    assert type(translate_engine_error(RuntimeError(text))) is kind
