"""Both database engines behind the same stores: each opens only its own files, and both give the same answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.platform.settings import EngineName
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.backup.holding import back_up, restored
from tests.stores.writing import NAME, assert_whole, batch, layout, settings, until, write

GRAPH = batch(*(f"n{number}" for number in range(50)), edges=[(f"n{n}", f"n{n // 2}", "r") for n in range(50)])
READS = (
    "MATCH (e:Entity) RETURN count(*)",
    "MATCH (e:Entity {id: 'n7'}) RETURN e",
    "MATCH (a:Entity)-[r]->(b:Entity {id: 'n3'}) RETURN r, a.id ORDER BY a.id",
    "MATCH p = (a:Entity {id: 'n40'})-[*1..3]->(b:Entity) RETURN p, length(p) ORDER BY length(p), b.id",
    "MATCH (e:Entity) WITH e.type AS kind, collect(e.id) AS ids RETURN kind, list_sort(ids)",
)


def answers(pool: StorePool) -> list[Any]:
    return [run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query)).rows for query in READS]


def changed(pool: StorePool, query: str) -> Any:
    return msgspec.to_builtins(
        run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query, mode="write")).changes
    )


def kept_link(data: Path) -> Path:
    """Create a hard link to the engine's file, to recognize the same file later."""
    link = data / "kept"
    link.hardlink_to(layout(data).engine)
    return link


def magic(data: Path) -> bytes:
    return layout(data).engine.read_bytes()[:4]


def rebuilt(store: OpenStore) -> tuple[int, str | None]:
    return store.engine.rebuilds, store.engine.found_damaged


def test_a_store_can_switch_engines_and_back(tmp_path: Path) -> None:
    data, found = tmp_path / "data", list[list[Any]]()
    for number, engine in enumerate[EngineName](("kuzu", "ladybug", "ladybug", "kuzu")):
        with StorePool(settings(data, engine=engine)) as pool:
            with pool.lease(NAME, create=True) as store:
                if not number:
                    write(store, GRAPH)
                found.append(answers(pool))
                assert rebuilt(store) == (0, None)
                assert_whole(store)
            if number == 1:
                back_up(pool, tmp_path / "backup")
        assert magic(data) == (b"KUZU" if engine == "kuzu" else b"LBUG")
    assert found == found[:1] * 4
    with StorePool(settings(tmp_path / "other", engine="kuzu")) as pool:
        again = restored(pool, tmp_path / "backup")
        assert_whole(again)
        pool.release(again)


def test_a_marker_without_engine_name_means_kuzu(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, engine="kuzu")) as pool:
        with pool.lease(NAME, create=True) as store:
            write(store, GRAPH)
        expected = answers(pool)
    mark = layout(tmp_path).root / "engine.json"
    content = msgspec.json.decode(mark.read_bytes().splitlines()[0])
    assert content.pop("engine") == "kuzu 0.11.3"
    mark.write_bytes(msgspec.json.encode(content))
    kept = kept_link(tmp_path)
    with StorePool(settings(tmp_path, engine="kuzu")) as pool:
        assert answers(pool) == expected
    assert layout(tmp_path).engine.samefile(kept)


def test_an_engine_file_of_another_version_is_not_opened(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, engine="ladybug")) as pool:
        with pool.lease(NAME, create=True) as store:
            write(store, GRAPH)
        expected = answers(pool)
    files = layout(tmp_path)
    mark = files.engine_mark()
    assert mark is not None
    files.mark_engine(mark.state, "ladybug 0.21.9")
    kept = kept_link(tmp_path)
    with StorePool(settings(tmp_path, engine="ladybug")) as pool:
        assert answers(pool) == expected
        with pool.lease(NAME) as store:
            assert rebuilt(store) == (0, None)
    assert not files.engine.samefile(kept)


def test_ladybug_writes_reads_and_reopens(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, engine="ladybug")) as pool, pool.lease(NAME, create=True) as store:
        write(store, GRAPH)
        before = answers(pool)
        made = changed(pool, "MATCH (a:Entity {id: 'n1'}) CREATE (b:Entity {id: 'new', type: 't'})-[:RELATES_TO"
                             " {relation_type: 'made'}]->(a) SET a.content = 'seen'")  # fmt: skip
        assert {name: made[name] for name in ("nodes_created", "nodes_updated", "edges_created")} == {
            "nodes_created": 1, "nodes_updated": 1, "edges_created": 1,
        }  # fmt: skip
        assert answers(pool)[0] == [[51]]
        changed(pool, "MATCH (e:Entity {id: 'new'}) DETACH DELETE e")
        assert answers(pool) == before
        engine = store.engine._engine
        assert engine is not None
        os.kill(engine._process.number, signal.SIGKILL)
        until(lambda: engine.has_died)
        assert answers(pool) == before
        assert_whole(store)
    with StorePool(settings(tmp_path, engine="ladybug")) as pool:
        assert answers(pool) == before
