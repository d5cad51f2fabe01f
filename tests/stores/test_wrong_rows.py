"""The engine is known to lose and alter rows. A store must reopen whatever was planned on a wrong row."""

from __future__ import annotations

from pathlib import Path
from typing import LiteralString

import pytest

from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from tests.stores.writing import ask, batch, forget_close, opened, tamper, write

ALTERED = "MATCH (e:Entity {id: 'a'}) SET e.content = 'rogue'"
LOST = "MATCH (:Entity {id: 'a'})-[k:RELATES_TO]->(:Entity) DELETE k"
ROGUE = """
CREATE (e:Entity {id: 'z', type: 't', content: '', attributes: '{}', version: 1, sequence: 1,
                  created_at: timestamp('2020-01-01'), updated_at: timestamp('2020-01-01')})
"""


@pytest.mark.parametrize(
    ("wrong", "then", "nodes", "edges"),
    [
        (ALTERED, WriteBatch(nodes=[NodeUpsert(0, "a", "u")]), 2, 1),
        (ALTERED, WriteBatch(delete_nodes=["a"]), 1, 0),
        (LOST, batch(edges=[("a", "b", "r")]), 2, 1),
        (LOST, WriteBatch(delete_nodes=["a"]), 1, 0),
        (ROGUE, batch("z", content="new"), 3, 1),
    ],
)
def test_a_write_planned_on_a_wrong_row_does_not_block_the_store(
    tmp_path: Path, wrong: LiteralString, then: WriteBatch, nodes: int, edges: int
) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", content="true", edges=[("a", "b", "r")]))
        tamper(store, wrong)
        write(store, then)
        assert (store.state.nodes, store.state.edges) == (nodes, edges)
        ask(store)
        store.check()
        assert store.check().ok
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert store.check().ok
        assert (store.state.nodes, store.state.edges) == (nodes, edges)
        write(store, batch("later"))
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert store.state.nodes == nodes + 1
