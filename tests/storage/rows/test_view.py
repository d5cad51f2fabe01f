"""Current rows compared with two dicts: merged repeatedly, read as of a commit, damaged."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeExtras
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.rows.base_segment import MappedRowBaseSegment, concatenate_ranges
from kgserve.storage.rows.base_segment_file_format import ROWS_MAGIC
from kgserve.storage.rows.base_segment_merge import build_base_segment_from_rows, write_merged_row_base_segment
from kgserve.storage.rows.current_rows import (
    UNSYNCED_MARK,
    CurrentRowsProjection,
    DeltaMergeLimits,
    collect_row_changes_since_base,
)
from kgserve.storage.rows.graph_drawing_samples import count_degrees
from kgserve.storage.rows.row_delta import InMemoryRowsDelta
from kgserve.storage.rows.row_json_encoder import RowsDamaged
from kgserve.storage.rows.rows_snapshot import MAX_SINGLE_READS, RowsSnapshot
from kgserve.storage.rows.snapshot_row_tuples import iterate_edge_tuples, iterate_node_tuples
from tests.captured_log import capture_log

IDS = ["", "é", "a\0b", "\U0010ffff", *(f"n{number}" for number in range(40))]
TIMES = [None, -62_135_596_800_000_000, 0, 1_700_000_000_123_456]
MOMENTS = [-1, 0, 1, 1_700_000_000_123_456]
STAMP = "2025-07-15T12:00:00.000000Z"
AT_ONCE = DeltaMergeLimits(rows=40)
"""Limits with which every commit of a model becomes a base."""
ABSENT = [f"absent{number}" for number in range(1_000)]


class Model:
    """Expected contents of the view after each commit; `next` makes a random commit."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.nodes: dict[str, NodeRow] = {}
        self.edges: dict[EdgeKey, EdgeRow] = {}
        self.at = 0

    def node(self, node_id: str) -> NodeRow:
        pick = self.source.choice
        extras = NodeExtras(pick(("", "s")), pick(((), ("t", "ü"))), pick(TIMES), "", pick(TIMES), pick(TIMES), (3,))
        content = pick(("", 'quoted "text"\n', "x" * 3000))
        return NodeRow(node_id, "t", content, '{"k":[1.5]}', 1, self.at, 0, self.at, pick((None, extras)))

    def edge(self, key: EdgeKey) -> EdgeRow:
        pick = self.source.choice
        extras = EdgeExtras(pick((None, -3, 7)), "ada", pick(TIMES), pick(TIMES))
        return EdgeRow(
            *key, pick((1.0, -0.5)), encode_edge_attributes(STAMP, STAMP, '{"k":1}'), 1, self.at, pick((None, extras))
        )

    def next(self) -> ChangeSet:
        self.at += 1
        source, old_nodes, old_edges = self.source, dict(self.nodes), dict(self.edges)
        gone = {node_id for node_id in source.sample(IDS, 3) if node_id in self.nodes}
        cut = {key for key in self.edges if key[0] in gone or key[1] in gone or source.random() < 0.05}
        for node_id in gone:
            del self.nodes[node_id]
        for key in cut:
            del self.edges[key]
        self.nodes |= {node_id: self.node(node_id) for node_id in source.sample(IDS, 6)}
        ends = list(self.nodes)
        keys = [(source.choice(ends), source.choice(ends), source.choice("rsé")) for _ in range(15)]
        self.edges |= {key: self.edge(key) for key in keys}
        news = [row for node_id, row in self.nodes.items() if row is not old_nodes.get(node_id)]
        new_edges = [row for key, row in self.edges.items() if row is not old_edges.get(key)]
        return ChangeSet(
            sequence=self.at,
            time=self.at,
            nodes_created=[row for row in news if row.id not in old_nodes or row.id in gone],
            nodes_updated=[row for row in news if row.id in old_nodes and row.id not in gone],
            nodes_deleted=sorted(gone),
            edges_created=[row for row in new_edges if row.key not in old_edges or row.key in cut],
            edges_updated=[row for row in new_edges if row.key in old_edges and row.key not in cut],
            edges_deleted=sorted(cut),
            digest=bytes(16),
            nodes=len(self.nodes),
            edges=len(self.edges),
        )


def check(rows: RowsSnapshot, nodes: dict[str, NodeRow], edges: dict[EdgeKey, EdgeRow]) -> None:
    assert list(rows.ids_after("")) == [node_id for node_id in sorted(nodes) if node_id]
    assert {row.id: row for row in rows.all_nodes()} == nodes
    assert {row.key: row for row in rows.all_edges()} == edges
    assert {row[0]: NodeRow(*row) for some in iterate_node_tuples(rows) for row in some} == nodes
    assert {row[:3]: EdgeRow(*row) for some in iterate_edge_tuples(rows) for row in some} == edges
    for node_id in IDS:
        assert rows.node(node_id) == nodes.get(node_id)
        assert {row.key for row in rows.outgoing(node_id)} == {key for key in edges if key[0] == node_id}
        assert sorted(row.key for row in rows.incoming(node_id)) == sorted(key for key in edges if key[1] == node_id)
    for key, row in edges.items():
        assert rows.edge(key) == row
    # Results keep the order of the keys, on which pages of lists rely.
    assert list(rows.nodes([*IDS, *ABSENT])) == [node_id for node_id in IDS if node_id in nodes]
    assert rows.nodes([*IDS, *ABSENT]) == nodes
    check_edges(rows, nodes, edges)
    keys = sorted(edges)
    assert list(rows.edges([*keys, *((absent, absent, "r") for absent in ABSENT)])) == keys
    assert rows.edges(keys) == edges


def check_edges(rows: RowsSnapshot, nodes: dict[str, NodeRow], edges: dict[EdgeKey, EdgeRow]) -> None:
    numbers = np.array([rows.delta.number(node_id) for node_id in nodes], np.int64)
    ends = Counter(end for key in edges for end in key[:2])
    assert count_degrees(rows, numbers) == [ends[node_id] for node_id in nodes]
    base = rows.base
    for number in range(base.nodes):
        around = [(base.edges_of(number, outgoing=each), base.weights) for each in (True, False)]
        near = [(end, weights[edge]) for own, weights in around for edge, end in zip(*own, strict=True)]
        assert [[*base.weighted_ends(number, most)] for most in (2, 1_000)] == [near[:2], near]
    leaving = rows.edges_around(numbers, outgoing=True)
    for moment in MOMENTS:
        true = {key for key, row in edges.items() if row.is_valid_at(moment)}
        assert {row.key for row in rows.rows_of(rows.filter_valid_edges(leaving, moment))} == true
        true &= {key for key in true if nodes[key[0]].is_valid_at(moment) and nodes[key[1]].is_valid_at(moment)}
        assert {row.key for row in rows.rows_of(rows.filter_valid(leaving, moment))} == true


@pytest.mark.parametrize("seed", range(4))
def test_rows_survive_merges_and_reopening(tmp_path: Path, seed: int) -> None:
    model, view, journal = Model(seed), CurrentRowsProjection(tmp_path), list[ChangeSet]()
    held: list[tuple[RowsSnapshot, dict[str, NodeRow], dict[EdgeKey, EdgeRow]]] = []
    for number in range(30):
        view.limits = model.source.choice((DeltaMergeLimits(), AT_ONCE))
        journal.append(model.next())
        view.apply(journal[-1:])
        with view.reading() as rows:
            check(rows, model.nodes, model.edges)
            assert rows.relation_counts() == {
                name: count for name in "rsé" if (count := sum(key[2] == name for key in model.edges))
            }
        if number % 7 == 3:
            reader = view.reading()
            held.append((reader.__enter__(), dict(model.nodes), dict(model.edges)))
        if number % 5 == 4:
            view.fold()
            assert view.base_sequence == model.at
        if number == 22:
            view = CurrentRowsProjection(tmp_path)
            view.catch_up(lambda after: journal[after:])
    for rows, nodes, edges in held:
        check(rows, nodes, edges)
        assert rows.edges([*model.edges]) == {key: row for key, row in edges.items() if key in model.edges}
        assert [rows.edge(key) for key in model.edges] == [edges.get(key) for key in model.edges]


def test_reader_sees_one_commit_during_writes_and_merges(tmp_path: Path) -> None:
    model, view, stop = Model(9), CurrentRowsProjection(tmp_path), threading.Event()
    states: dict[int, tuple[dict[str, NodeRow], dict[EdgeKey, EdgeRow]]] = {0: ({}, {})}

    def write() -> None:
        while not stop.is_set() and model.at < 400:
            group = [model.next() for _ in range(model.source.randint(1, 3))]
            states[model.at] = dict(model.nodes), dict(model.edges)
            view.limits = model.source.choice((DeltaMergeLimits(), AT_ONCE))
            view.apply(group)

    def fold() -> None:
        while not stop.is_set():
            view.fold()

    threads = [threading.Thread(target=write), threading.Thread(target=fold)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            with view.reading() as rows:
                check(rows, *states[rows.at])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with view.reading() as rows:
        check(rows, *states[model.at])


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    model, view = Model(3), CurrentRowsProjection(tmp_path)
    for _ in range(10):
        view.apply([model.next()])
    view.fold()
    (rows,), (texts,) = tmp_path.glob("*.rows"), tmp_path.glob("*.texts")
    for path in (rows, texts):
        whole = path.read_bytes()
        for offset in range(0, len(whole), max(len(whole) // 150, 1)):
            path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x20]) + whole[offset + 1 :])
            with pytest.raises(RowsDamaged):
                MappedRowBaseSegment(rows).check()
        for size in (0, 7, 40, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(RowsDamaged):
                MappedRowBaseSegment(rows).check()
        path.write_bytes(whole)
    texts.unlink()
    with pytest.raises(RowsDamaged):
        MappedRowBaseSegment(rows)


def test_reading_a_changed_text_raises(tmp_path: Path) -> None:
    view, content = CurrentRowsProjection(tmp_path), "x" * (1 << 20)
    row = NodeRow("a", "t", content, "{}", 1, 1, 1, 1)
    view.apply([ChangeSet(sequence=1, time=1, digest=bytes(16), nodes=1, edges=0, nodes_created=[row])])
    view.fold()
    (rows,), (texts,) = tmp_path.glob("*.rows"), tmp_path.glob("*.texts")
    whole = texts.read_bytes()
    first = whole.index(content.encode())
    for place in (first, first + len(content) // 2, first + len(content) - 1):
        texts.write_bytes(whole[:place] + b"y" + whole[place + 1 :])
        with pytest.raises(RowsDamaged):
            MappedRowBaseSegment(rows).node(0)


@pytest.mark.parametrize("others", ["", "a", "z", "az"])
def test_know_merges_detects_redirects(tmp_path: Path, others: str) -> None:
    """Independent of the position of MERGED_INTO among the relation types."""
    for merges in (False, True):
        types = [*others, *([MERGED_INTO_RELATION] if merges else [])]
        edges = [EdgeRow("a", "b", each, 1.0, encode_edge_attributes(STAMP, STAMP, "{}"), 1, 1) for each in types]
        nodes = [NodeRow(each, "t", "", "{}", 1, 1, 1, 1) for each in "ab"]
        view = CurrentRowsProjection(tmp_path / f"{merges}")
        change = ChangeSet(
            sequence=1, time=1, digest=bytes(16), nodes=2, edges=len(edges), nodes_created=nodes, edges_created=edges
        )
        view.apply([change])
        with view.reading() as held:
            assert held.has_merges == merges
        view.fold()
        with view.reading() as held:
            assert held.has_merges == merges


def test_versions_are_kept_only_while_readers_need_them(tmp_path: Path) -> None:
    view = CurrentRowsProjection(tmp_path)
    put = partial(_put_again, view)
    put(1)
    with view.reading() as first:
        put(2)
        with view.reading():
            put(3)
        put(4)
        assert first.node("a") == NodeRow("a", "t", "1", "{}", 1, 1, 1, 1)
        assert _kept_versions(view) == [4, 3, 2, 1]
    put(5)
    assert _kept_versions(view) == [5, 4]


def _put_again(view: CurrentRowsProjection, number: int) -> None:
    row = NodeRow("a", "t", str(number), "{}", number, 1, number, number)
    change = ChangeSet(sequence=number, time=number, digest=bytes(16), nodes=1, edges=0)
    (change.nodes_created if number == 1 else change.nodes_updated).append(row)
    view.apply([change])


def _kept_versions(view: CurrentRowsProjection) -> list[int]:
    """Return the commits of one node's versions in memory, the newest first."""
    with view.reading() as rows:
        version, found = rows.delta.nodes[rows.delta.number("a")], list[int]()
        while version is not None:
            found.append(version.sequence)
            version = version.before
        return found


def test_text_file_is_replaced_when_half_of_it_is_unused(tmp_path: Path) -> None:
    model, view = Model(9), CurrentRowsProjection(tmp_path)
    sizes, names = list[int](), list[str]()
    for _ in range(40):
        view.apply([model.next()])
        with view.reading() as before:
            view.fold()
            (texts,) = tmp_path.glob("*.texts")
            sizes.append(texts.stat().st_size)
            names.append(texts.name)
            # A reader of a superseded base keeps its rows.
            check(before, model.nodes, model.edges)
    with view.reading() as rows:
        used = int(rows.base.node_size.sum() + rows.base.edge_size.sum())
        check(rows, model.nodes, model.edges)
    changes = [one != other for one, other in pairwise(names)]
    assert 0 < changes.count(True) < len(changes) / 2
    assert all(changed or more >= less for changed, (less, more) in zip(changes, pairwise(sizes), strict=True))
    assert max(sizes) < 6 * used


def test_failed_merge_restores_text_file(tmp_path: Path) -> None:
    model, view = Model(9), CurrentRowsProjection(tmp_path)
    view.apply([model.next()])
    view.fold()
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    view.apply([model.next()])
    taken = tmp_path / "taken"
    taken.mkdir()
    with view.reading() as rows, pytest.raises(OSError, match="taken"):
        write_merged_row_base_segment(rows.base, collect_row_changes_since_base(rows), view.state, taken)
    taken.rmdir()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_base_of_all_rows_is_built_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.storage.rows.base_segment_merge.BASE_BUILD_BATCH_ROWS", 7)
    model = Model(4)
    for _ in range(5):
        model.next()
    state = StoreState(model.at, model.at, 1, len(model.nodes), len(model.edges))
    base = build_base_segment_from_rows(tmp_path, reversed(model.nodes.values()), reversed(model.edges.values()), state)
    assert base.state == state
    check(RowsSnapshot(base, InMemoryRowsDelta(base), state), model.nodes, model.edges)


HARM: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-9],
    "another beginning": lambda data: b"?" + data[1:],
    "another end": lambda data: data[:-1] + b"?",
}


@pytest.mark.parametrize("harm", HARM)
def test_damaged_base_falls_back_to_an_older_one_or_none(tmp_path: Path, harm: str) -> None:
    model, view = Model(5), CurrentRowsProjection(tmp_path)
    view.apply([model.next()])
    view.fold()
    (path,) = tmp_path.glob("*.rows")
    path.write_bytes(HARM[harm](path.read_bytes()))
    again = CurrentRowsProjection(tmp_path)
    assert (again.base_sequence, again.state.nodes) == (0, 0)
    assert len(list(tmp_path.iterdir())) == 1


def test_base_of_another_format_is_not_damage(tmp_path: Path) -> None:
    model, view = Model(5), CurrentRowsProjection(tmp_path)
    view.apply([model.next()])
    view.fold()
    (path,) = tmp_path.glob("*.rows")
    path.write_bytes(path.read_bytes().replace(ROWS_MAGIC, b"KGROWS02"))
    with capture_log() as events:
        assert CurrentRowsProjection(tmp_path).state.nodes == 0
    assert [(each["event"], each["log_level"]) for each in events] == [("rows_of_another_format", "info")]


def test_unsynced_base_is_verified_or_synced(tmp_path: Path) -> None:
    model, view = Model(3), CurrentRowsProjection(tmp_path)
    view.limits = AT_ONCE
    journal = [model.next()]
    view.apply(journal)
    (path,), (texts,) = tmp_path.glob("*.rows"), tmp_path.glob("*.texts")
    assert UNSYNCED_MARK in path.suffixes
    texts.write_bytes(bytes(8) + texts.read_bytes()[8:])
    view = CurrentRowsProjection(tmp_path)
    assert view.base_sequence == 0
    view.catch_up(lambda after: journal[after:])
    view.limits = AT_ONCE
    journal.append(model.next())
    view.apply(journal[1:])
    view.sync()
    (path,) = tmp_path.glob("*.rows")
    assert UNSYNCED_MARK not in path.suffixes
    view = CurrentRowsProjection(tmp_path)
    assert view.base_sequence == 2
    with view.reading() as rows:
        check(rows, model.nodes, model.edges)


def test_node_texts_in_bulk_equal_single_reads(tmp_path: Path) -> None:
    view, model = CurrentRowsProjection(tmp_path), Model(5)
    # New nodes sort before those of the base, and the last one of the base changes, too.
    names = [f"{'n' if number < 2 * MAX_SINGLE_READS else 'm'}{number:03}" for number in range(3 * MAX_SINGLE_READS)]
    for ids in (
        names[: 2 * MAX_SINGLE_READS],
        names[MAX_SINGLE_READS + 1 : 2 * MAX_SINGLE_READS : 2],
        names[2 * MAX_SINGLE_READS :],
    ):
        model.at += 1
        rows = [model.node(node_id) for node_id in ids]
        new = [row for row in rows if row.id not in model.nodes]
        old = [row for row in rows if row.id in model.nodes]
        model.nodes |= {row.id: row for row in rows}
        change = ChangeSet(
            sequence=model.at,
            time=model.at,
            nodes_created=new,
            nodes_updated=old,
            digest=bytes(16),
            nodes=len(model.nodes),
            edges=0,
        )
        view.apply([change])
        if model.at == 1:
            view.fold()
    with view.reading() as held:
        numbers = np.array([held.number(name) for name in names])
        for now in (0, 1 << 60):
            assert held.node_texts(numbers, now) == [held.node_texts(np.array([each]), now)[0] for each in numbers]
        for moment in filter(None, TIMES):
            true = [held.is_node_valid_at(int(each), moment) for each in numbers]
            assert held.valid_nodes_mask(numbers, moment).tolist() == true
            assert held.filter_valid_nodes(set(numbers.tolist()), moment) == set(numbers[true].tolist())
        for several in (names, names[:3], names[: 2 * MAX_SINGLE_READS + 1]):
            some = [held.number(name) for name in model.source.sample(several, len(several))]
            ordered = [held.number(name) for name in sorted(several)]
            assert held.some_in_order(some) == held.in_order(np.array(some)).tolist() == ordered


@pytest.mark.parametrize("extra_edges", [0, 1])
def test_edges_with_shared_suffixes_are_read_from_columns(tmp_path: Path, extra_edges: int) -> None:
    relation, stamps = 'A",\n"relation_type":"é', (STAMP, "2025-07-15T12:00:00.000001Z")
    kinds = [("a,", -0.0, stamps[0]), (relation, 0.25, stamps[1])]
    edges = [
        EdgeRow(source, target, name, weight, encode_edge_attributes(stamp, stamp, "{}"), 1, 1)
        for source in IDS[:20]
        for target in IDS[:5]
        for name, weight, stamp in kinds
    ]
    # A slice with an edge of another kind is decoded from its texts.
    edges += [EdgeRow("n1", "n2", "r", 3.0, encode_edge_attributes(STAMP, STAMP, '{"k":1}'), 2, 1)][:extra_edges]
    view = CurrentRowsProjection(tmp_path / "rows", "store")
    nodes = [NodeRow(node_id, "t", "", "{}", 1, 1, 0, 1) for node_id in sorted(IDS, key=str.encode)]
    view.renew(nodes, edges, StoreState(1, 1, 0, len(nodes), len(edges)), lambda _: ())
    with view.reading() as rows:
        assert bool(rows.base.array("edge_ending").all()) is not bool(extra_edges)
        found = [EdgeRow(*row) for some in iterate_edge_tuples(rows) for row in some]
    assert sorted(map(repr, found)) == sorted(map(repr, edges))
    view.close()


def test_ranges_are_concatenated() -> None:
    source = random.Random(3)
    starts = np.array(sorted(source.sample(range(1_000), 50)), dtype=np.int64)
    ends = starts + np.array([source.choice((0, 1, 7)) for _ in starts])
    expected = [number for start, end in zip(starts, ends, strict=True) for number in range(int(start), int(end))]
    assert concatenate_ranges(starts, ends).tolist() == expected
    assert concatenate_ranges(starts[:1], starts[:1] + 3).tolist() == [int(starts[0]) + more for more in range(3)]
    assert concatenate_ranges(starts[:0], ends[:0]).tolist() == []
