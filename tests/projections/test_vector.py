from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kgserve.projections.folder_manifest import INDEX_MANIFEST_FILE
from kgserve.projections.indexed_text import EntitySearchFilter
from kgserve.projections.vector import vector_index
from kgserve.projections.vector.vector_index import VectorIndex
from tests.programs import needs_hnswlib
from tests.project.reading import TOP
from tests.stores.writing import flip

WIDTH = 16
Vectors = NDArray[np.float32]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "vector"


def make(count: int, seed: int = 0) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def names(count: int, first: int = 0) -> list[str]:
    return [f"n{number}" for number in range(first, first + count)]


def fill(index: VectorIndex, vectors: Vectors, kinds: int = 1) -> None:
    index.put(names(len(vectors)), [f"t{i % kinds}" for i in range(len(vectors))], vectors)


def found(index: VectorIndex, query: Vectors, limit: int, only: EntitySearchFilter | None = None) -> list[str]:
    return [hit.id for hit in index.search(query, limit, only or EntitySearchFilter())]


def nearest(vectors: Vectors, query: Vectors, limit: int) -> list[str]:
    return [f"n{place}" for place in np.argsort(-(vectors @ query), kind="stable")[:limit]]


def test_small_indexes_search_exactly(folder: Path) -> None:
    vectors, index = make(500), VectorIndex(folder, WIDTH, "m")
    fill(index, vectors)
    for query in make(20, seed=1):
        assert found(index, query, 10) == nearest(vectors, query, 10)
        hit = index.search(query, 1)[0]
        assert hit.similarity == pytest.approx(float((vectors @ query).max()), abs=1e-6)


@pytest.mark.parametrize("exact_up_to", [1000, 0])
def test_a_limit_above_the_index_size_returns_everything(folder: Path, exact_up_to: int) -> None:
    index = VectorIndex(folder, WIDTH, "m", exact_up_to)
    assert found(index, make(1)[0], 5) == []
    fill(index, make(20))
    index.remove(names(15))
    assert sorted(found(index, make(1)[0], 100)) == sorted(names(5, 15))
    assert found(index, make(1)[0], 0) == []


@needs_hnswlib
def test_the_index_switches_to_the_graph_and_back(folder: Path) -> None:
    vectors, index = make(400), VectorIndex(folder, WIDTH, "m", exact_up_to=200)
    fill(index, vectors[:200])
    assert not index.is_approximate
    fill(index, vectors)
    assert index.is_approximate
    queries = make(30, seed=2)
    hits = sum(len(set(found(index, query, 10)) & set(nearest(vectors, query, 10))) for query in queries)
    assert hits >= 0.95 * 10 * len(queries)
    index.remove(names(250, 150))
    assert not index.is_approximate
    assert found(index, queries[0], 10) == nearest(vectors[:150], queries[0], 10)


@needs_hnswlib
def test_vectors_stay_with_their_entities_when_the_graph_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hnswlib raises where it gets no memory; here, because its graph was not enlarged."""
    vectors, index = make(1200), VectorIndex(folder, WIDTH, "m", exact_up_to=100)
    fill(index, vectors[:1000])
    with monkeypatch.context() as patch:
        patch.setattr(vector_index, "_ensure_capacity", lambda *_: None)
        with pytest.raises(RuntimeError, match="exceeds the specified limit"):
            index.put(names(100, 1000), ["t"] * 100, vectors[1000:1100])
    assert not index.is_approximate
    assert found(index, vectors[999], 10) == nearest(vectors[: len(index)], vectors[999], 10)
    index.put(names(100, 1100), ["t"] * 100, vectors[1100:])
    assert index.is_approximate
    assert found(index, vectors[1150], 1) == ["n1150"]
    np.testing.assert_allclose(index.vectors_of(["n1150"])["n1150"], vectors[1150], atol=1e-6)


@pytest.mark.parametrize("exact_up_to", [1000, 0])
def test_updated_and_deleted_vectors(folder: Path, exact_up_to: int) -> None:
    vectors, index = make(50), VectorIndex(folder, WIDTH, "m", exact_up_to)
    fill(index, vectors)
    index.put(["n3"], ["t0"], vectors[7:8])
    index.remove(["n7", "never there"])
    assert found(index, vectors[7], 1) == ["n3"]
    assert len(index) == 49
    assert "n7" not in index.ids
    vector = index.vectors_of(["n3", "n7", "n8"])
    assert sorted(vector) == ["n3", "n8"]
    np.testing.assert_allclose(vector["n3"], vectors[7], atol=1e-6)


@pytest.mark.parametrize("exact_up_to", [1000, 0])
def test_filters_return_all_matches(folder: Path, exact_up_to: int) -> None:
    vectors, index = make(300), VectorIndex(folder, WIDTH, "m", exact_up_to)
    fill(index, vectors, kinds=30)
    query = make(1, seed=3)[0]
    order = nearest(vectors, query, 300)
    assert found(index, query, 10, EntitySearchFilter(frozenset({"t4"}))) == [
        key for key in order if int(key[1:]) % 30 == 4
    ]
    assert found(index, query, 50, EntitySearchFilter(None, "n29")) == [key for key in order if key.startswith("n29")]
    assert found(index, query, 5, EntitySearchFilter(frozenset())) == []


def test_order_of_equal_similarities_is_independent_of_the_limit(folder: Path) -> None:
    index = VectorIndex(folder, WIDTH, "m")
    index.put(names(300), ["t"] * 300, np.repeat(make(3), 100, axis=0))
    query = make(1, seed=5)[0]
    whole = found(index, query, 300)
    assert all(found(index, query, limit) == whole[:limit] for limit in range(1, 300, 7))


@pytest.mark.parametrize("exact_up_to", [1000, pytest.param(10, marks=needs_hnswlib)])
def test_save_and_load(folder: Path, exact_up_to: int) -> None:
    vectors, index = make(60), VectorIndex(folder, WIDTH, "m", exact_up_to)
    fill(index, vectors, kinds=3)
    index.remove(names(10))
    index.save(9)
    again = VectorIndex(folder, WIDTH, "m", exact_up_to)
    assert (again.fresh, again.sequence, len(again), again.is_approximate) == (False, 9, 50, exact_up_to == 10)
    for query in make(5, seed=4):
        assert found(again, query, 5) == found(index, query, 5)
        assert found(again, query, 5, EntitySearchFilter(frozenset({"t1"}))) == found(
            index, query, 5, EntitySearchFilter(frozenset({"t1"}))
        )
    again.put(["new"], ["t"], vectors[:1])
    assert found(again, vectors[0], 1) == ["new"]


WITHOUT_HNSWLIB = """
import sys
from pathlib import Path

sys.modules["hnswlib"] = None
from kgserve.projections.vector.vector_index import MIN_SLOW_EXACT_VECTORS, VectorIndex
from tests.projections.test_vector import WIDTH, fill, found, make, names, nearest

index, vectors = VectorIndex(Path(sys.argv[1]), WIDTH, "m", 10), make(MIN_SLOW_EXACT_VECTORS)
assert (index.fresh, index.sequence, len(index), index.is_approximate) == (False, 9, 59, False)
assert index.ids == set(names(59))
for query in make(5, seed=4):
    assert found(index, query, 10) == nearest(vectors[:59], query, 10)
fill(index, vectors[:-1])
assert index.note is None
fill(index, vectors)
assert "pip install 'kgserve[hnswlib]'" in index.note
assert not index.is_approximate
for query in make(5, seed=4):
    assert found(index, query, 10) == nearest(vectors, query, 10)
index.remove(names(len(vectors) - 60, 60))
assert index.note is None
index.save(10)
"""


@needs_hnswlib
def test_without_hnswlib_every_search_is_exact(folder: Path) -> None:
    vectors, index = make(60), VectorIndex(folder, WIDTH, "m", 10)
    fill(index, vectors)
    index.remove(["n59"])
    index.save(9)
    subprocess.run([sys.executable, "-c", WITHOUT_HNSWLIB, folder], cwd=TOP, check=True)
    again = VectorIndex(folder, WIDTH, "m", 10)
    assert (again.sequence, len(again), again.is_approximate, again.note) == (10, 60, False, None)
    again.put(["new"], ["t"], vectors[:1])
    assert again.is_approximate


def test_vectors_of_another_model_are_discarded(folder: Path) -> None:
    index = VectorIndex(folder, WIDTH, "m")
    fill(index, make(5))
    index.save(9)
    other = VectorIndex(folder, WIDTH, "other")
    assert (other.fresh, other.sequence, len(other)) == (True, 0, 0)


@pytest.mark.parametrize("exact_up_to", [1000, 0])
@pytest.mark.parametrize("kind", ["flipped", "truncated", "deleted"])
@pytest.mark.parametrize("which", ["entities.msgpack", "vectors", INDEX_MANIFEST_FILE])
def test_damage_is_detected(folder: Path, exact_up_to: int, kind: str, which: str) -> None:
    index = VectorIndex(folder, WIDTH, "m", exact_up_to)
    fill(index, make(20))
    index.save(9)
    path = next(path for path in folder.iterdir() if path.name.startswith(which))
    match kind:
        case "flipped":
            flip(path, path.stat().st_size // 2)
        case "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        case _:
            path.unlink()
    again = VectorIndex(folder, WIDTH, "m", exact_up_to)
    assert (again.fresh, again.sequence, len(again)) == (True, 0, 0)


@pytest.mark.parametrize("exact_up_to", [1000, 0])
def test_invalid_vectors_are_rejected(folder: Path, exact_up_to: int) -> None:
    index = VectorIndex(folder, WIDTH, "m", exact_up_to)
    nan = make(1)
    nan[0, 0] = np.nan
    for ids, vectors in ((["a"], nan), (["a"], make(1)[:, :-1]), (["a", "b"], make(1)), (["a"], make(1)[0])):
        with pytest.raises(ValueError, match="vectors of shape"):
            index.put(ids, ["t"] * len(ids), vectors)
    assert len(index) == 0


def test_clear_removes_all_vectors(folder: Path) -> None:
    index = VectorIndex(folder, WIDTH, "m")
    fill(index, make(5))
    index.save(9)
    index.clear()
    assert (len(index), index.sequence, index.fresh, folder.exists()) == (0, 0, True, False)
    assert VectorIndex(folder, WIDTH, "m").fresh


def test_concurrent_searches_during_writes(folder: Path) -> None:
    vectors, index = make(600), VectorIndex(folder, WIDTH, "m", exact_up_to=100)
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        query = make(1, seed=6)[0]
        while not stop.is_set():
            try:
                hits = index.search(query, 20)
                wrong.extend(hit for hit in hits if hit.id not in known)
                index.vectors_of([hit.id for hit in hits])
            except Exception as error:  # noqa: BLE001  # reported by the assertion below
                wrong.append(error)
                return

    known = set(names(600))
    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for first in range(0, 600, 50):
        index.put(names(50, first), ["t"] * 50, vectors[first : first + 50])
        index.remove(names(25, first))
    index.remove(names(500))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(index) == 50


@pytest.mark.parametrize("exact_up_to", [1000, 0])
def test_similar_entities_of_a_stored_vector(folder: Path, exact_up_to: int) -> None:
    vectors, index = make(300), VectorIndex(folder, WIDTH, "m", exact_up_to)
    fill(index, vectors)
    index.remove(["n7"])
    near = index.find_similar([*names(40), "nobody"], 0.4, 5)
    assert near.keys() == {*names(40)} - {"n7"}
    for node_id, hits in near.items():
        own = int(node_id[1:])
        similarities = vectors @ vectors[own]
        similarities[[own, 7]] = -1.0
        wanted = [f"n{place}" for place in np.argsort(-similarities, kind="stable")[:5] if similarities[place] > 0.4]
        assert [hit.id for hit in hits] == wanted
        assert all(hit.similarity == pytest.approx(similarities[int(hit.id[1:])], abs=1e-5) for hit in hits)
    assert VectorIndex(folder, WIDTH, "m").find_similar(["n1"], 0.0, 5) == {}
