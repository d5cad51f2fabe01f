"""Links, edges into other stores, stored as rows of their source's store."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kgserve.errors import DiskFull
from kgserve.projections.cross_store_links.cross_store_link_index import (
    CrossStoreLinkReader,
    CrossStoreLinksVersion,
    InboundLinkTable,
    OutboundLinkCount,
)
from kgserve.projections.inbound_cross_store_links import InboundCrossStoreLinkIndex
from kgserve.storage.journal import snapshot
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow
from kgserve.storage.model.store_rows_digest import hash_cross_store_link
from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert, WriteBatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import (
    assert_whole,
    batch,
    forget_close,
    hurt,
    layout,
    opened,
    settings,
    write,
    write_together,
)

STORES = ("other", "third", "s")


def link(
    source: str, store: str, target: str, weight: float | None = None, kind: str = "knows"
) -> CrossStoreLinkUpsert:
    return CrossStoreLinkUpsert(store, EdgeUpsert(0, (source, target, kind), weight))


def links(*puts: CrossStoreLinkUpsert) -> WriteBatch:
    return WriteBatch(links=[*puts])


def everything(store: OpenStore) -> dict[CrossStoreLinkKey, CrossStoreLinkRow]:
    with store.links.reading() as (reader, _):
        if reader is None:
            return {}
        found = [row for some in reader.iterate_links() for row in some]
        state = reader.state
    assert (state.count, int.from_bytes(state.digest)) == (
        len(found),
        sum(map(hash_cross_store_link, found)) % (1 << 128),
    )
    return {row.key: row for row in found}


def weights(store: OpenStore) -> dict[tuple[str, str, str], float]:
    return {(key.edge[0], key.store, key.edge[1]): row.edge.weight for key, row in everything(store).items()}


def test_a_link_is_created_changed_and_deleted_like_an_edge(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        [_, made] = write(store, batch("a", "b"), links(link("a", "other", "x"), link("a", "other", "y", 2.0)))
        assert (made.edges_created, made.sequence, store.state.edges) == (2, 2, 0)
        [same] = write(store, WriteBatch(links=[link("a", "other", "x")], touch=False))
        assert (same.edges_unchanged, same.sequence) == (1, 2)
        [changed] = write(store, links(link("a", "other", "x", 0.5)))
        assert (changed.edges_updated, changed.sequence) == (1, 3)
        row = everything(store)[CrossStoreLinkKey("other", ("a", "x", "knows"))]
        assert (row.edge.weight, row.edge.version, row.edge.sequence) == (0.5, 2, 3)
        [gone] = write(store, WriteBatch(delete_links=[CrossStoreLinkKey("other", ("a", "y", "knows")), row.key]))
        assert (gone.edges_deleted, weights(store)) == (2, {})
        assert_whole(store)


def test_a_link_requires_its_source_and_is_deleted_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        [report] = write(store, links(link("nobody", "other", "x")))
        assert (report.skipped_count, report.skipped[0].reason) == (1, 'no such node: "nobody"')
        write(store, batch("a", "b"), links(link("a", "other", "x"), link("b", "other", "x")))
        [report] = write(store, WriteBatch(delete_nodes=["a"]))
        assert (report.edges_deleted, weights(store)) == (1, {("b", "other", "x"): 1.0})
        # In one group: created by one write, deleted by the next, and created again.
        futures = write_together(
            store,
            links(link("b", "third", "z", 3.0)),
            WriteBatch(delete_nodes=["b"]),
            WriteBatch(nodes=batch("b").nodes, links=[link("b", "other", "w")]),
        )
        assert [future.result().edges_deleted for future in futures] == [0, 2, 0]
        assert weights(store) == {("b", "other", "w"): 1.0}


def test_a_bulk_delete_removes_links(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc"), links(link("a", "other", "x"), link("b", "other", "x")))
        with store.rows.stage_deletion() as foreseen:
            from kgserve.stores.bulk_delete import BulkDelete

            removal = BulkDelete(foreseen, ["a", "c"], [])
            store.submit_prepared(lambda: removal).result(30)
        assert weights(store) == {("b", "other", "x"): 1.0}
        assert_whole(store)


class _Model:
    """Model of links with their weights, by source, store and target; applies random changes to itself and a store."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.links: dict[tuple[str, str, str], float] = {}
        self.nodes = set[str]()

    def step(self, store: OpenStore) -> None:
        node = self.choose.choice("abcdef")
        self.choose.choice((self.put_node, self.delete_node, self.delete_link, self.put_link, self.put_link))(
            store, node
        )

    def put_node(self, store: OpenStore, node: str) -> None:
        write(store, batch(node))
        self.nodes.add(node)

    def delete_node(self, store: OpenStore, node: str) -> None:
        write(store, WriteBatch(delete_nodes=[node]))
        self.nodes.discard(node)
        self.links = {key: weight for key, weight in self.links.items() if key[0] != node}

    def delete_link(self, store: OpenStore, node: str) -> None:
        for source, into, target in [key for key in self.links if key[0] == node][:1]:
            write(store, WriteBatch(delete_links=[CrossStoreLinkKey(into, (source, target, "knows"))]))
            del self.links[source, into, target]

    def put_link(self, store: OpenStore, node: str) -> None:
        into, target, weight = self.choose.choice(STORES), self.choose.choice("uvwxyz"), self.choose.random()
        write(store, links(link(node, into, target, weight)))
        if node in self.nodes:
            self.links[node, into, target] = weight


@pytest.mark.parametrize("seed", range(3))
def test_links_match_a_model_across_reopening_loss_and_compaction(tmp_path: Path, seed: int) -> None:
    model = _Model(seed)
    for round_ in range(8):
        with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
            for _ in range(model.choose.randrange(1, 10)):
                model.step(store)
            if model.choose.random() < 0.3:
                write(store, batch("large", content=str(round_) * (1 << 20)))
                store.compactor.run()
            if model.choose.random() < 0.7:
                assert weights(store) == model.links
        hurt(tmp_path, layout(tmp_path).links, model.choose)
    with opened(tmp_path) as store:
        assert weights(store) == model.links
        assert_whole(store)


def test_a_snapshot_includes_links_older_than_the_journal(tmp_path: Path) -> None:
    with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
        write(store, batch("a"), links(link("a", "other", "x"), link("a", "third", "y")))
        for round_ in range(3):
            write(store, batch("large", content=f"{round_}" * (1 << 20)), batch("next", content=str(round_)))
            store.compactor.run()
        assert store.journal.oldest > 3
        newest = snapshot.list_journal_snapshots(store.layout.journal)[0]
        before = everything(store)
        assert {row.key: row for some in snapshot.read_snapshot_cross_store_links(newest) for row in some} == before
    shutil.rmtree(layout(tmp_path).views)
    with opened(tmp_path) as store:
        assert everything(store) == before


def test_queries_of_links(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b"))
        write(store, links(*(link("a", "other", f"{at:02d}") for at in range(20)), link("b", "third", "x")))
        write(store, links(link("b", "other", "05", 0.5, "likes")))

        def ask(
            reader: CrossStoreLinkReader, rows: RowsSnapshot
        ) -> tuple[list[str], list[str], list[OutboundLinkCount], int]:
            out = [row.edge.target for row in reader.outgoing("a", 3)]
            to = [row.edge.source for row in reader.to("other", "05", 10)]
            return out, to, reader.outbound("", 10), rows.at

        assert store.links.ask(ask) == (
            ["00", "01", "02"],
            ["a", "b"],
            [OutboundLinkCount("other", 21), OutboundLinkCount("third", 1)],
            3,
        )


def test_link_ids_may_contain_nul(tmp_path: Path) -> None:
    long, odd = "a\0b", "x\0y"
    with opened(tmp_path) as store:
        write(store, batch("a", long))
        write(store, links(link("a", "other", "x"), link(long, "other", "x"), link(long, "other", odd)))
        [same] = write(store, WriteBatch(links=[link(long, "other", odd)], touch=False))
        assert (same.edges_created, same.edges_unchanged) == (0, 1)
        rows = everything(store)
        [gone] = write(store, WriteBatch(delete_nodes=[long]))
        assert (gone.nodes_deleted, gone.edges_deleted) == (1, 2)
        assert weights(store) == {("a", "other", "x"): 1.0}
        assert_whole(store)
    inbound = InboundLinkTable(tmp_path / "inbound.sqlite")
    inbound.follow("s", rows.values(), (), CrossStoreLinksVersion(1, 1))
    for targets, count in (({"x"}, 2), ({odd}, 1), ({odd, "x"}, 3), ({"x\0"}, 0)):
        assert len([*inbound.to("other", targets)]) == count
    inbound.close()


def test_a_reader_keeps_its_snapshot_of_links(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"), links(link("a", "other", "x")))
        with store.links.reading() as (reader, rows):
            assert reader is not None
            write(store, WriteBatch(delete_nodes=["a"]))
            assert [row.edge.target for row in reader.outgoing("a", 10)] == ["x"]
            assert rows.has("a")
        assert everything(store) == {}


def test_a_damaged_link_is_detected_and_rebuilt(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"), links(link("a", "other", "x")))
        before = everything(store)
        assert store.links._file is not None
        store.links._file._connection.execute("UPDATE link SET row = CAST('?' AS BLOB)")
        store.links._file._connection.commit()
        assert not store.check().ok
        assert everything(store) == before
        assert store.check().ok


def test_stores_without_links_omit_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "knows")]), WriteBatch(delete_nodes=["a"]))
        [frame, *_] = store.journal.frames(0)
        assert b"links" not in frame.payload


@pytest.mark.parametrize("harm", ["none", "damaged", "killed"])
def test_inbound_links_include_those_from_closed_stores(tmp_path: Path, harm: str) -> None:
    with StorePool(settings(tmp_path)) as pool:
        for name in STORES[:2]:
            with pool.lease(name, create=True) as store:
                write(store, batch("a"), links(link("a", "s", "x"), link("a", "s", "y")))
    if harm == "damaged":
        layout(tmp_path, "other").links.write_bytes(b"no file of SQLite's" * 100)
    if harm == "killed":
        forget_close(tmp_path, "other")
    with StorePool(settings(tmp_path)) as pool:
        assert pool.inbound.counts("s", may_open=False) == (
            [("other", 2), ("third", 2)] if harm == "none" else [("third", 2)]
        )
        assert not pool.open_stores()
        assert pool.inbound.counts("s") == [("other", 2), ("third", 2)]
        assert [*pool.open_stores()] == ([] if harm == "none" else ["other"])
        assert [(origin, row.edge.target) for origin, row in pool.inbound.to("s", ["y"])] == [
            ("other", "y"),
            ("third", "y"),
        ]
        with pool.lease("third") as store:
            write(store, links(link("a", "s", "z")))
        assert pool.inbound.counts("s") == [("other", 2), ("third", 3)]


def test_inbound_links_are_complete_after_the_disk_was_full(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        inbound, many = pool.inbound, [link("a", "s", f"x{number}") for number in range(200)]
        assert isinstance(inbound, InboundCrossStoreLinkIndex)
        with pool.lease("other", create=True) as store:
            write(store, batch("a"), links(link("a", "s", "y")))
            assert inbound.counts("s") == [("other", 1)]
            assert inbound._file is not None
            inbound._file._connection.execute("PRAGMA max_page_count = 1")
            write(store, links(*many))
            with pytest.raises(DiskFull):
                inbound.counts("s")
            assert inbound.counts("s") == [("other", 201)]
        inbound._release()
        assert inbound.counts("s") == [("other", 201)]
