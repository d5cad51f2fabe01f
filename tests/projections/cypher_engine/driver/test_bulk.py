"""Files larger than the page cache that they are built and read with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kgserve.projections.cypher_engine.engine.engine_handle import EngineOptions, build_engine_file
from kgserve.projections.cypher_engine.engine.protocol import EngineFileOptions
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.engines import ENGINE
from tests.storage.journal.history import History

CACHE = 32 << 20
OPTIONS = EngineOptions(EngineFileOptions(cache_bytes=CACHE), engine=ENGINE, readers=1)


@pytest.fixture
def rows(tmp_path: Path) -> tuple[Path, StoreState]:
    """Return more rows than fit into the page cache: many of 8 kB, a few of 1 MB, then small ones."""
    history = History()
    choice = random.Random(7)
    sizes = [*(8_000,) * 4_000, *(1_000_000,) * 8, *(10,) * 2_000]
    for start in range(0, len(sizes), 500):
        puts = [
            NodeUpsert(index, f"n{start + index}", "t", choice.randbytes(size // 2).hex())
            for index, size in enumerate(sizes[start : start + 500])
        ]
        history.add(WriteBatch(nodes=puts, edges=[EdgeUpsert(0, (puts[0].id, puts[-1].id, "r"))]))
    folder = tmp_path / "rows"
    folder.mkdir()
    return folder, materialize_rows_to_parquet(None, history.changes, folder, memory_bytes=CACHE).state


def test_a_file_is_built_and_dumped_in_a_cache_smaller_than_its_rows(
    tmp_path: Path, rows: tuple[Path, StoreState]
) -> None:
    folder, state = rows
    path = tmp_path / "graph.kuzu"
    engine = build_engine_file(path, folder, state, OPTIONS)
    dumped = tmp_path / "dumped"
    dumped.mkdir()
    with engine.reader(timeout=0) as session:
        assert session.dump(dumped) == state
        assert session.rows("MATCH (e:Entity {id: 'n4001'}) RETURN size(e.content)") == [[1_000_000]]
        assert session.rows("MATCH (e:Entity) WHERE e.id IS NULL RETURN count(*)") == [[0]]
        assert session.rows("MATCH (e:Entity)-[:RELATES_TO]->(:Entity) RETURN count(*)") == [[state.edges]]
    engine.retire()
    assert snapshot.digest_and_count_snapshot_rows(dumped) == (state.digest, state.nodes, state.edges)
    assert sorted(found.name for found in dumped.iterdir()) == [snapshot.EDGES_FILE, snapshot.NODES_FILE]
    assert sorted(found.name for found in folder.iterdir()) == [snapshot.EDGES_FILE, snapshot.NODES_FILE]
