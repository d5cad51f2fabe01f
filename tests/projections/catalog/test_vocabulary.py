"""Counts and lists by type, tag and validity equal those computed from the rows, after any sequence of writes."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kgserve.graph.node_reads import get_node_summary_or_short_content
from kgserve.graph.url_parameters import NodeListParameters
from kgserve.platform.sqlite_files import remove_sqlite_files
from kgserve.projections.catalog.node_catalog import NodeCatalog, prefix_upper_bound
from kgserve.storage.model.attribute_filters import build_attribute_filter_conditions, matches_attribute_conditions
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.node_and_memory_filters import MAX_SCANNED_NODES, MatchCount, NodeFilter, PagePosition
from kgserve.storage.model.node_edge_fields import NodeExtras, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.type_and_tag_frequency_models import NodeTypeFrequency, TagFrequency
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests import fuzzing
from tests.graphs import graph_of, nodes_of
from tests.stores.writing import NAME, write
from tests.stores.writing import settings as in_folder

IDS = [f"n{number}" for number in range(9)] + ["é", "a\0b"]
TYPES = ["t", "u", "a,b", "T"]
TAGS = ["red", "re", "status:open", "status:done", "status:", ":x", "a:b:c", "a:b\0", "\U0010ffff", "é:ü"]
NOW = 2
TIMES = st.none() | st.integers(0, 4)

# Some are not in kgserve's own format, as written by an older version or another program.
ATTRIBUTES = [
    *("{}", '{"a":1}', '{"a":1.0,"b":true}', '{"a":"1"}', '{"a":null}', '{"a":[1]}', '{"b":true}', '{"a":{"a":1}}')
]

extras = st.none() | st.builds(
    NodeExtras,
    summary=st.sampled_from(["", "short", "long " * 40]),
    tags=st.lists(st.sampled_from(TAGS), max_size=4).map(tuple),
    valid_from=TIMES,
    valid_to=TIMES,
)
contents = st.sampled_from(["", " \n", "some  content", "x" * 200])
rows = st.builds(
    NodeRow,
    id=st.sampled_from(IDS),
    type=st.sampled_from(TYPES),
    content=contents,
    attributes=st.sampled_from(ATTRIBUTES),
    version=st.integers(1, 9),
    sequence=st.just(1),
    created_at=st.just(0),
    updated_at=st.just(0),
    extras=extras,
)
batches = st.tuples(
    st.lists(rows, max_size=6), st.sets(st.sampled_from(IDS), max_size=3), st.sampled_from(["", "restart", "damage"])
)
filters = st.builds(
    NodeFilter,
    types=st.lists(st.sampled_from([*TYPES, "none"]), max_size=3).map(tuple),
    tags=st.lists(st.sampled_from([*TAGS, "none"]), max_size=2).map(tuple),
    valid_at=TIMES,
    attributes=st.sampled_from([{}, {}, {"a": 1.0}, {"a": "1"}, {"a": None}, {"b": True}, {"a": 1, "b": True}]).map(
        build_attribute_filter_conditions
    ),
)


def row(node_id: str, type_: str = "t", tags: Iterable[str] = (), valid_to: int | None = None) -> NodeRow:
    return NodeRow(node_id, type_, "content", "{}", 1, 1, 0, 0, NodeExtras(tags=tuple(tags), valid_to=valid_to))


def net_of(present: dict[str, NodeRow], put: list[NodeRow], deleted: set[str]) -> NetChange:
    """Return the change after ``present``, and update ``present``."""
    net = NetChange()
    for node_id in deleted & present.keys():
        del present[node_id]
        net.nodes_deleted.add(node_id)
    for each in {each.id: each for each in put}.values():
        known = each.id in present or each.id in net.nodes_deleted
        net.nodes_deleted.discard(each.id)
        (net.nodes_updated if known else net.nodes_created)[each.id] = each
        present[each.id] = each
    return net


def fits(each: NodeRow, wanted: NodeFilter) -> bool:
    own = each.extras or NodeExtras()
    at = wanted.valid_at
    started = at is None or own.valid_from is None or own.valid_from <= at
    return (
        each.type in (wanted.types or TYPES)
        and all(tag in own.tags for tag in wanted.tags)
        and started
        and (at is None or own.valid_to is None or own.valid_to > at)
        and matches_attribute_conditions(each.attributes, wanted.attributes)
    )


def paged(catalog: NodeCatalog, wanted: NodeFilter, limit: int, skip: int) -> list[str]:
    found: list[str] = []
    place: PagePosition | None = PagePosition("", skip)
    while place is not None:
        before = place
        items, place = catalog.list_matching_ids(wanted, place, limit)
        assert len(items) == limit or place is None
        assert place is None or place.after > before.after
        found += items
    return found


def most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def check_counts(catalog: NodeCatalog, present: dict[str, NodeRow]) -> None:
    found = catalog.vocabulary(lambda node_id: get_node_summary_or_short_content(present[node_id]), NOW)
    tags = Counter(tag for each in present.values() if each.extras for tag in set(each.extras.tags))
    prefixes: Counter[str] = Counter()
    for tag, count in tags.items():
        if tag.find(":") > 0:
            prefixes[tag[: tag.find(":")]] += count
    types = Counter(each.type for each in present.values())
    assert found.nodes == len(present)
    assert [(each.kind, each.count) for each in found.kinds] == most(types)
    assert [(each.tag, each.count) for each in found.tags] == most(tags)
    assert [(each.prefix, each.count) for each in found.tag_prefixes] == most(prefixes)
    for each in found.tag_prefixes:
        values = Counter({t[len(each.prefix) + 1 :]: n for t, n in tags.items() if t.startswith(each.prefix + ":")})
        assert each.values == [value for value, _ in most(values)]
    for kind in found.kinds:
        assert kind.examples == examples(present, kind)
    for start in ("", "r", "re", "red", "status", "status:", "status:o", ":", "a:b", "\U0010ffff", "z"):
        wanted = [TagFrequency(tag=tag, count=n) for tag, n in most(tags) if tag.startswith(start)]
        assert catalog.tags(start, 100) == wanted
        assert catalog.tags(start, 1) == wanted[:1]


def examples(present: dict[str, NodeRow], kind: NodeTypeFrequency) -> list[str]:
    valid = (row for node_id in sorted(present) if (row := present[node_id]).is_valid_at(NOW))
    first = [row for row in valid if row.type == kind.kind][:3]
    texts = [" ".join(((each.extras and each.extras.summary) or each.content).split()) for each in first]
    return [text if len(text) <= 120 else text[:119].rstrip() + "…" for text in texts if text]


# Shrinking a failure takes minutes, but a test may run for two only.
@settings(fuzzing.examples(20), phases=(Phase.reuse, Phase.generate))
@given(steps=st.lists(batches, max_size=8), wanted=st.lists(filters, max_size=6), limit=st.integers(1, 4))
def test_counts_and_lists_follow_the_rows(
    steps: list[tuple[list[NodeRow], set[str], str]], wanted: list[NodeFilter], limit: int
) -> None:
    present: dict[str, NodeRow] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.sqlite"
        catalog = NodeCatalog(path)
        for number, (put, deleted, then) in enumerate(steps):
            catalog.apply(net_of(present, put, deleted), number)
            if then:
                catalog.close()
            if then == "damage":
                remove_sqlite_files(path)
                path.write_bytes(b"damaged " * 1000)
            if then:
                catalog = NodeCatalog(path)
            if catalog.sequence == -1:
                catalog.rebuild(list(present.values()), [], number)
            check_counts(catalog, present)
            if any(each.attributes for each in wanted) and not catalog.has_attributes:
                catalog.index_attributes(present.values())
            for skip, each in enumerate(wanted):
                fitting = [node_id for node_id in sorted(present) if fits(present[node_id], each)]
                assert paged(catalog, each, limit, 0) == fitting
                assert paged(catalog, each, limit, skip) == fitting[skip:]
                assert catalog.count(each) == MatchCount(len(fitting), exact=True)
                assert sorted(catalog.find_matching_ids(each, 99)) == fitting
        catalog.close()


def test_pagination_with_skip_continues_on_the_next_page(tmp_path: Path) -> None:
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    number = MAX_SCANNED_NODES + 10
    over = [row(f"{place:06}", tags=("old",), valid_to=5) for place in range(number)]
    catalog.rebuild([*over, row("x", tags=("old",)), row("y", tags=("old",))], [], 1)
    for wanted in (NodeFilter(valid_at=9), NodeFilter(tags=("old",), valid_at=9)):
        items, place = catalog.list_matching_ids(wanted, PagePosition("", 1), 10)
        assert (items, place) == ([], PagePosition(f"{MAX_SCANNED_NODES - 1:06}", 1))
        items, place = catalog.list_matching_ids(wanted, place or PagePosition(), 10)
        assert (items, place) == (["y"], None)
    catalog.close()


def test_the_rarest_condition_selects_the_index(tmp_path: Path) -> None:
    """The first page of a rare tag or type is complete, although a page may not examine all other entries."""
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    many = [row(f"{place:06}", "t", ("common",)) for place in range(MAX_SCANNED_NODES + 10)]
    catalog.rebuild([*many, row("x", "t", ("common", "rare")), row("y", "u", ("common",))], [], 1)
    for wanted, expected in (
        (NodeFilter(tags=("common", "rare")), "x"),
        (NodeFilter(types=("u",), tags=("common",)), "y"),
        (NodeFilter(types=("u", "v"), valid_at=3), "y"),
    ):
        items, place = catalog.list_matching_ids(wanted, PagePosition(), 10)
        assert (items, place) == ([expected], None)
    catalog.close()


def test_counts_and_lists_are_capped(tmp_path: Path) -> None:
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    tags = [f"p{place:03}:{value:02}" for place in range(110) for value in range(12)]
    nodes = [row(f"n{place}", f"t{place:03}", tags[place * 12 : place * 12 + 12]) for place in range(110)]
    catalog.rebuild(nodes, [], 1)
    found = catalog.vocabulary(str, NOW)
    assert [len(part) for part in (found.kinds, found.tag_prefixes, found.tags)] == [100, 100, 100]
    assert found.tag_prefixes[0].values == [f"{value:02}" for value in range(10)]
    catalog.close()


def test_a_large_example_value_is_omitted() -> None:
    assert (
        get_node_summary_or_short_content(NodeRow("a", "t", "x" * 100_000, "{}", 1, 1, 0, 0))
        == get_node_summary_or_short_content(None)
        == ""
    )
    assert get_node_summary_or_short_content(row("b")) == "content"


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("INSERT INTO tagged VALUES (?, ?)", ("red", "n2")),
        ("INSERT INTO tagged VALUES (?, ?)", ("red", "nobody")),
        ("UPDATE tagged SET id = ?", ("n2",)),
    ],
)
def test_a_wrong_index_is_rebuilt(tmp_path: Path, statement: str, values: tuple[str, ...]) -> None:
    wanted = NodeListParameters(tag=["red"])
    tagged = NodeUpsert(0, "n1", "t", extras=NodeExtrasUpsert(tags=("red",)))
    with StorePool(in_folder(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        write(store, WriteBatch(nodes=[tagged, NodeUpsert(1, "n2", "t")]))
        assert [node.id for node in nodes_of(graph_of(pool, NAME), wanted).nodes] == ["n1"]
        with sqlite3.connect(store.layout.catalog) as damaging:
            damaging.execute(statement, values)
        damaging.close()
        assert [node.id for node in nodes_of(graph_of(pool, NAME), wanted).nodes] == ["n1"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("a", "b"), ("az", "a{"), ("\ud7ff", "\ue000"), ("a\U0010ffff", "b"), ("\U0010ffff", b""), ("é", "ê")],
)
def test_the_upper_bound_of_a_prefix(start: str, expected: str | bytes) -> None:
    assert prefix_upper_bound(start) == expected


def test_a_prefix_shared_by_many_tags(tmp_path: Path) -> None:
    """Above 5,000 tags the index by count is used, with the same result."""
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    nodes = [row(f"n{place}", tags=[f"k{place * 100 + n:06}" for n in range(100)]) for place in range(60)]
    nodes += [row("twice", tags=["k005999", "k000007", "other"])]
    catalog.rebuild(nodes, [], 1)
    assert [(each.tag, each.count) for each in catalog.tags("k", 3)] == [("k000007", 2), ("k005999", 2), ("k000000", 1)]
    assert [each.tag for each in catalog.tags("k0000", 2)] == ["k000007", "k000000"]
    assert [each.tag for each in catalog.tags("o", 2)] == ["other"]
    catalog.close()


def test_a_stale_attribute_index_is_rebuilt(tmp_path: Path) -> None:
    """A version that does not know the index leaves it behind while it follows the journal."""
    path, wanted = tmp_path / "catalog.sqlite", NodeFilter(attributes=build_attribute_filter_conditions({"a": 1}))
    rows = [row("n1"), msgspec.structs.replace(row("n2"), attributes='{"a":1}')]
    catalog = NodeCatalog(path)
    catalog.rebuild(rows, [], 1)
    assert not catalog.has_attributes
    catalog.index_attributes(rows)
    assert catalog.find_matching_ids(wanted, 9) == ["n2"]
    catalog.close()
    catalog = NodeCatalog(path)
    assert catalog.has_attributes
    catalog.close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE cursor SET sequence = 2")
    other.close()
    path.with_name("catalog.sqlite-seal").unlink()
    catalog = NodeCatalog(path)
    assert (catalog.sequence, catalog.has_attributes) == (2, False)
    catalog.index_attributes([msgspec.structs.replace(row("n1"), attributes='{"a":1.0}'), row("n2")])
    assert catalog.find_matching_ids(wanted, 9) == ["n1"]
    catalog.close()


def test_a_wrong_attribute_index_is_rebuilt(tmp_path: Path) -> None:
    wanted = NodeListParameters(attributes='{"a": 1}')
    with StorePool(in_folder(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, "n1", "t", attributes='{"a":1}'), NodeUpsert(1, "n2", "t")]))
        assert [node.id for node in nodes_of(graph_of(pool, NAME), wanted).nodes] == ["n1"]
        with sqlite3.connect(store.layout.catalog) as damaging:
            damaging.execute("UPDATE attribute SET id = 'n2'")
        damaging.close()
        assert [node.id for node in nodes_of(graph_of(pool, NAME), wanted).nodes] == ["n1"]


def test_a_count_examines_a_limited_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.catalog.node_catalog.MAX_COUNTED_NODES", 10)
    catalog = NodeCatalog(tmp_path / "catalog.sqlite")
    rows = [row(f"n{number:02}", f"t{number % 3}", ["all"], valid_to=5) for number in range(30)]
    catalog.rebuild(rows, [], 1)
    assert catalog.count(NodeFilter(tags=("all",))) == MatchCount(30, exact=True)
    assert catalog.count(NodeFilter(types=("t1", "t2", "none"))) == MatchCount(20, exact=True)
    assert catalog.count(NodeFilter(types=("t1",), tags=("all",))) == MatchCount(10, exact=True)
    assert catalog.count(NodeFilter(types=("t1", "t2"), tags=("all",), valid_at=1)).exact is False
    assert catalog.count(NodeFilter(valid_at=1)) == MatchCount(11, exact=False)
    assert catalog.count(NodeFilter(types=("t0",), valid_at=5)) == MatchCount(0, exact=True)
    catalog.close()
