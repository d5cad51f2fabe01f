from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.platform.sqlite_files import remove_sqlite_files
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.node_and_memory_filters import NodeFilter, PagePosition
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.storage.journal.history import History


def row(node_id: str, type_: str) -> NodeRow:
    return NodeRow(node_id, type_, "content", "{}", 1, 1, 0, 0)


def listed(catalog: NodeCatalog) -> list[str]:
    return catalog.list_matching_ids(NodeFilter(), PagePosition(), 99).items


def test_the_catalog_follows_random_writes(tmp_path: Path) -> None:
    source, history, catalog = random.Random(7), History(), NodeCatalog(tmp_path / "catalog.sqlite")
    ids = [f"n{number}" for number in range(12)]
    for number in range(60):
        start = len(history.changes)
        for _ in range(source.randint(1, 3)):
            some = source.sample(ids, 4)
            history.add(
                WriteBatch(
                    nodes=[NodeUpsert(i, node_id, source.choice("tuv"), str(number)) for i, node_id in enumerate(some)],
                    edges=[EdgeUpsert(0, (some[0], some[1], source.choice("rs"))), EdgeUpsert(1, (some[0], "n0", "r"))],
                    delete_nodes=source.sample(ids, 2),
                )
            )
        catalog.apply(NetChange(history.changes[start:]), history.state.sequence)
        nodes = history.workspace.nodes
        edges = [key for key, row in history.workspace.edges.items() if row is not None]
        assert catalog.sequence == history.state.sequence
        assert listed(catalog) == sorted(nodes)
        typed = sorted(node_id for node_id, row in nodes.items() if row.type == "t" and node_id > "n1")
        assert catalog.list_matching_ids(NodeFilter(types=("t",)), PagePosition("n1"), 99).items == typed
        assert catalog.types(9) == Counter(row.type for row in nodes.values())
        assert catalog.relation_types(9) == Counter(key[2] for key in edges)
    catalog.close()


def test_the_catalog_can_be_filled_at_once(tmp_path: Path) -> None:
    catalog = NodeCatalog(tmp_path / "views" / "catalog.sqlite")
    assert catalog.sequence == -1
    for _ in range(2):
        catalog.rebuild([row("a", "t"), row("b", "u"), row("c", "t")], [("r", 5)], 9)
    catalog.close()
    again = NodeCatalog(catalog.path)
    assert (again.sequence, again.types(9), again.types(1), again.relation_types(9)) == (
        9,
        {"t": 2, "u": 1},
        {"t": 2},
        {"r": 5},
    )
    again.close()


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_foreign_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(content)
    catalog = NodeCatalog(path)
    assert (catalog.sequence, listed(catalog)) == (-1, [])
    catalog.close()


def test_a_file_of_an_earlier_format_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    with sqlite3.connect(path) as earlier:
        earlier.execute("CREATE TABLE node (id TEXT PRIMARY KEY, type TEXT NOT NULL)")
    earlier.close()
    catalog = NodeCatalog(path)
    assert (catalog.sequence, listed(catalog)) == (-1, [])
    catalog.close()


def test_reads_see_the_last_commit_during_a_write(tmp_path: Path) -> None:
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    catalog.rebuild([row("a", "t")], [], 1)

    def nodes() -> Iterator[NodeRow]:
        yield row("b", "t")
        assert listed(catalog) == ["a"]

    catalog.rebuild(nodes(), [], 2)
    assert listed(catalog) == ["b"]
    catalog.close()


def test_removing_deletes_all_files(tmp_path: Path) -> None:
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    catalog.rebuild([row("a", "t")], [], 1)
    remove_sqlite_files(catalog.path)
    assert list(tmp_path.iterdir()) == []
    catalog.close()
