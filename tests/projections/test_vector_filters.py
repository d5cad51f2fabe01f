"""Filters of the vector index, compared with a scan of every entity."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kgserve.embedding.cache import round_to_half_precision
from kgserve.projections.indexed_text import (
    NO_FACETS,
    EntityFilterableFields,
    EntitySearchFilter,
    IndexedEntityText,
    MemoryFilterableFields,
)
from kgserve.projections.keyword_index import KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.vector import graph_files, vector_index, vector_rows
from kgserve.projections.vector.vector_index import VectorIndex
from tests.fuzzing import examples
from tests.programs import needs_hnswlib

WIDTH = 8
TIMES = st.none() | st.integers(-2, 2)
TAGS = st.frozensets(st.sampled_from("xyz"), max_size=2)
TYPES = st.sampled_from(["person", "place", "thing"])
IDS = st.text("aé/\0", min_size=1, max_size=3)
LAYERS, SOURCES = st.integers(0, 3), st.sampled_from(["", "chat", "mail"])
MARKS = st.none() | st.builds(MemoryFilterableFields, st.integers(-2, 2), st.none() | LAYERS, SOURCES)
FACETS = st.builds(
    lambda tags, *rest: EntityFilterableFields(tuple(sorted(tags)), *rest), TAGS, TIMES, TIMES, TIMES, MARKS
)
FILTERS = st.builds(
    EntitySearchFilter,
    st.none() | st.frozensets(TYPES | st.just("unknown"), max_size=3),
    st.just("") | IDS | st.just("unknown"),
    TAGS,
    TIMES,
    TIMES,
    TIMES,
    memories=st.booleans(),
    layers=st.none() | st.frozensets(LAYERS, max_size=2),
    sources=st.none() | st.frozensets(SOURCES | st.just("unknown"), max_size=2),
    created=st.none() | st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
)

Vectors = NDArray[np.float32]


class Entity(msgspec.Struct, frozen=True):
    id: str
    type: str
    number: int
    facets: EntityFilterableFields | None
    since: int


PUTS = st.lists(st.builds(Entity, IDS, TYPES, st.integers(0, 99), st.none() | FACETS, st.integers(0, 3)), max_size=12)
STEPS = st.lists(PUTS | st.lists(IDS, max_size=5).map(tuple) | st.just("save"), min_size=1, max_size=8)


def vectors_of(count: int, seed: int = 0, width: int = WIDTH) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


KNOWN = vectors_of(100)


def passes(entity: Entity, only: EntitySearchFilter) -> bool:
    held = only.as_of is None or entity.since <= only.as_of
    return held and only.passes(entity.id, entity.type, entity.facets)


def put(index: VectorIndex, entities: list[Entity]) -> None:
    index.put(
        [each.id for each in entities],
        [each.type for each in entities],
        KNOWN[[each.number for each in entities]],
        [each.since for each in entities],
        [each.facets for each in entities],
    )


def carried_out(folder: Path, steps: list[list[Entity] | tuple[str, ...] | str], exact_up_to: int) -> VectorIndex:
    index = VectorIndex(folder / "vector", WIDTH, "m", exact_up_to)
    for step in steps:
        match step:
            case list():
                put(index, step)
            case tuple():
                index.remove(step)
            case _:
                index.save(1)
                index = VectorIndex(folder / "vector", WIDTH, "m", exact_up_to)
    return index


def present(steps: list[list[Entity] | tuple[str, ...] | str]) -> dict[str, Entity]:
    there: dict[str, Entity] = {}
    for step in steps:
        if isinstance(step, list):
            there |= {entity.id: entity for entity in step}
        elif isinstance(step, tuple):
            there = {node_id: entity for node_id, entity in there.items() if node_id not in step}
    return there


@pytest.mark.parametrize("exact_up_to", [1000, 0])
@given(steps=STEPS, filters=st.lists(FILTERS, min_size=5, max_size=10), limit=st.integers(1, 40))
@examples(25)
def test_filters_equal_a_full_scan(
    exact_up_to: int, steps: list[list[Entity] | tuple[str, ...] | str], filters: list[EntitySearchFilter], limit: int
) -> None:
    query = vectors_of(1, seed=7)[0]
    with tempfile.TemporaryDirectory() as folder:
        index = carried_out(Path(folder), steps, exact_up_to)
        for only in filters:
            hits = index.search(query, limit, only)
            near = {
                each.id: float(KNOWN[each.number] @ query) for each in present(steps).values() if passes(each, only)
            }
            best = sorted(near.values(), reverse=True)[:limit]
            assert [hit.similarity for hit in hits] == pytest.approx(best, abs=1e-5)
            assert [near[hit.id] for hit in hits] == pytest.approx(best, abs=1e-5)
            assert len({hit.id for hit in hits}) == len(hits)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[VectorIndex, Vectors]:
    """Return a graph of 6,000 vectors, of which every third was replaced and every seventh deleted."""
    vectors = vectors_of(6_000, seed=1)
    index = VectorIndex(tmp_path_factory.mktemp("large") / "vector", WIDTH, "m", exact_up_to=100)
    ids, types = [f"n{number}" for number in range(6_000)], [f"t{number % 20}" for number in range(6_000)]
    facets = [EntityFilterableFields(valid_to=5) if number % 50 == 0 else NO_FACETS for number in range(6_000)]
    index.put(ids, types, vectors, facets=facets)
    vectors[::3] = vectors_of(2_000, seed=2)
    index.put(ids[::3], types[::3], vectors[::3], facets=facets[::3])
    index.remove(ids[::7])
    return index, vectors


@pytest.mark.parametrize(
    "only",
    [
        EntitySearchFilter(valid_at=9),
        EntitySearchFilter(frozenset(f"t{number}" for number in range(12))),
        EntitySearchFilter(frozenset({"t3"})),
        EntitySearchFilter(id_prefix="n5"),
    ],
)
@pytest.mark.parametrize("limit", [1, 10, 300, 6_000])
def test_filters_on_a_large_graph_return_all_matches(
    large: tuple[VectorIndex, Vectors], only: EntitySearchFilter, limit: int
) -> None:
    index, vectors = large
    numbers = [
        number
        for number in range(6_000)
        if number % 7
        and only.passes(
            f"n{number}", f"t{number % 20}", EntityFilterableFields(valid_to=5) if number % 50 == 0 else None
        )
    ]
    found = near = 0
    for query in vectors_of(20, seed=3):
        order = sorted(numbers, key=lambda number: -float(vectors[number] @ query))[:limit]
        hits = [hit.id for hit in index.search(query, limit, only)]
        assert len(hits) == len(order)
        assert {int(hit[1:]) for hit in hits} <= set(numbers)
        found += len({f"n{number}" for number in order} & set(hits))
        near += len(order)
    assert found >= 0.97 * near


@needs_hnswlib
def test_small_result_sets_are_exact_despite_a_graph(tmp_path: Path) -> None:
    # Without a filter the graph finds about 90% of these.
    vectors, queries = vectors_of(4_000, seed=6, width=64), vectors_of(10, seed=7, width=64)
    index = VectorIndex(tmp_path / "vector", 64, "m", exact_up_to=3_000)
    index.put([f"n{number}" for number in range(4_000)], ["one", "one", "one", "other"] * 1_000, vectors)
    assert index.is_approximate
    ones = np.flatnonzero(np.arange(4_000) % 4 != 3)
    for query in queries:
        order = ones[np.argsort(-(vectors[ones] @ query), kind="stable")][:40]
        assert [hit.id for hit in index.search(query, 40, EntitySearchFilter(frozenset({"one"})))] == [
            f"n{n}" for n in order
        ]


def test_matches_far_from_the_query_are_found(tmp_path: Path) -> None:
    """The graph visits many entities that do not match; all matches are found nevertheless."""
    query = vectors_of(1, seed=3)[0]
    vectors = vectors_of(4_000, seed=2)
    vectors[::2] = np.where((vectors[::2] @ query > 0)[:, None], -vectors[::2], vectors[::2])
    vectors[1::2] = np.where((vectors[1::2] @ query > 0)[:, None], vectors[1::2], -vectors[1::2])
    index = VectorIndex(tmp_path / "vector", WIDTH, "m", exact_up_to=100)
    index.put([f"n{number}" for number in range(4_000)], ["far", "near"] * 2_000, vectors)
    order = np.argsort(-(vectors[::2] @ query), kind="stable")[:30] * 2
    assert [hit.id for hit in index.search(query, 30, EntitySearchFilter(frozenset({"far"})))] == [
        f"n{n}" for n in order
    ]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_filters_by_codes_find_nearly_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_reopened: bool
) -> None:
    monkeypatch.setattr(vector_index, "_MAX_EXACT_COMPONENTS", 0)
    monkeypatch.setattr(vector_index, "_MIN_CODE_CANDIDATES", 300)
    # As embeddings, these vary in fewer directions than they have dimensions.
    directions = vectors_of(12, seed=13, width=256)
    vectors, queries = (vectors_of(count, seed=count, width=12) @ directions for count in (3_000, 10))
    vectors, queries = (
        round_to_half_precision(each / np.linalg.norm(each, axis=1, keepdims=True)) for each in (vectors, queries)
    )
    index = VectorIndex(tmp_path / "vector", 256, "m", exact_up_to=100)
    index.put([f"n{number}" for number in range(3_000)], ["few", "many", "many"] * 1_000, vectors)
    index.put(["n1"], ["many"], queries[:1])
    vectors[1] = queries[0]
    if is_reopened:
        index.save(1)
        index = VectorIndex(tmp_path / "vector", 256, "m", exact_up_to=100)
    many = np.flatnonzero(np.arange(3_000) % 3 != 0)
    found = 0
    for query in queries:
        hits = index.search(query, 20, EntitySearchFilter(frozenset({"many"})))
        near = {f"n{number}": float(vectors[number] @ query) for number in many}
        assert [hit.similarity for hit in hits] == pytest.approx([near[hit.id] for hit in hits], abs=1e-5)
        found += len({hit.id for hit in hits} & set(sorted(near, key=lambda each: -near[each])[:20]))
    assert index.search(queries[0], 1, EntitySearchFilter(frozenset({"many"})))[0].id == "n1"
    assert found >= 0.95 * 200


@pytest.mark.parametrize("exact_up_to", [100_000, 100])
def test_saved_rows_equal_the_given_vectors(tmp_path: Path, exact_up_to: int) -> None:
    count = vector_rows.MAX_IN_MEMORY_ROWS + 500
    vectors, ids = round_to_half_precision(vectors_of(count)), [f"n{number}" for number in range(count)]
    index = VectorIndex(tmp_path / "vector", WIDTH, "m", exact_up_to)
    for first in range(0, count, 700):
        index.put(ids[first : first + 700], ["t"] * len(ids[first : first + 700]), vectors[first : first + 700])
    index.save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["vector"]
    again = VectorIndex(tmp_path / "vector", WIDTH, "m", exact_up_to)
    again.put(["new"], ["t"], vectors[:1])
    for each in (index, again):
        found = each.vectors_of(ids)
        np.testing.assert_array_equal(np.stack([found[node_id] for node_id in ids]), vectors)
    np.testing.assert_array_equal(again.vectors_of(["new"])["new"], vectors[0])


@needs_hnswlib
def test_a_graph_file_of_another_layout_is_read_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, ids = vectors_of(600), [f"n{number}" for number in range(600)]
    index = VectorIndex(tmp_path / "vector", WIDTH, "m", exact_up_to=100)
    index.put(ids, ["t"] * 600, vectors)
    monkeypatch.setattr(graph_files, "_HNSW_HEADER_BYTES", 104)
    index.save(1)
    assert (tmp_path / "vector" / "vectors.hnsw").exists()
    found = VectorIndex(tmp_path / "vector", WIDTH, "m", exact_up_to=100).vectors_of(ids)
    np.testing.assert_array_equal(np.stack([found[node_id] for node_id in ids]), vectors)


@needs_hnswlib
@pytest.mark.parametrize("is_rounded", [True, False])
def test_a_graph_of_an_older_version_is_halved_and_answers_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_rounded: bool
) -> None:
    vectors, ids = vectors_of(3_000, width=64), [f"n{number}" for number in range(3_000)]
    index = VectorIndex(tmp_path / "vector", 64, "m", exact_up_to=100)
    index.put(ids, ["t"] * 3_000, round_to_half_precision(vectors) if is_rounded else vectors)
    index.remove(ids[::7])
    with monkeypatch.context() as older:
        older.setattr(vector_index, "split_graph_file", lambda *_: None)
        older.setattr(vector_index, "VECTOR_INDEX_KIND", "vector 2")
        index.save(1)
    whole = VectorIndex(tmp_path / "vector", 64, "m", exact_up_to=100)
    assert (whole.sequence, whole.is_approximate) == (1, True)
    whole.save(2)
    assert not (tmp_path / "vector" / "vectors.hnsw").exists()
    halved = VectorIndex(tmp_path / "vector", 64, "m", exact_up_to=100)
    for query in vectors_of(20, seed=5, width=64):
        before, after = whole.search(query, 30), halved.search(query, 30)
        similarities = {hit.id: hit.similarity for hit in before}
        if is_rounded:
            assert after == before
        assert len(similarities.keys() & {hit.id for hit in after}) >= 29
        assert all(abs(hit.similarity - similarities.get(hit.id, hit.similarity)) < 0.001 for hit in after)
    assert [path.name for path in tmp_path.iterdir()] == ["vector"]


@needs_hnswlib
def test_an_interrupted_graph_build_is_repeated_later(tmp_path: Path) -> None:
    broken = True

    def between(_: float) -> None:
        if broken:
            raise InterruptedError

    vectors, ids = vectors_of(300), [f"n{number}" for number in range(300)]
    index = VectorIndex(tmp_path / "vector", WIDTH, "m", 100, between)
    with pytest.raises(InterruptedError):
        index.put(ids, ["t"] * 300, vectors)
    query = vectors[7]
    assert (len(index), index.is_approximate, index.search(query, 1)[0].id) == (300, False, "n7")
    broken = False
    index.remove(["n0"])
    assert (len(index), index.is_approximate, index.search(query, 1)[0].id) == (299, True, "n7")


def test_a_withdrawn_memory_is_never_valid(tmp_path: Path) -> None:
    """Neither index finds it with any `valid_at`; both find it without one."""
    withdrawn = EntityFilterableFields(valid_from=5, valid_to=5, marks=MemoryFilterableFields(5))
    vectors, words = VectorIndex(tmp_path / "vector", WIDTH, "m"), KeywordIndex(tmp_path / "keyword")
    vectors.put(["m1"], ["fact"], KNOWN[:1], facets=[withdrawn])
    words.write([IndexedEntityText("m1", "fact", "paris", facets=withdrawn)], (), 1)
    for moment in (-1, 4, 5, 6, 1 << 60):
        only = EntitySearchFilter(valid_at=moment, memories=True)
        assert (vectors.search(KNOWN[0], 5, only), words.search(KeywordQuery("paris"), 5, only)) == ([], [])
    everything = EntitySearchFilter(memories=True)
    assert len(vectors.search(KNOWN[0], 5, everything)) == len(words.search(KeywordQuery("paris"), 5, everything)) == 1
