from __future__ import annotations

import errno
import random
import subprocess
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgserve.projections.indexed_text import EntityFilterableFields, EntitySearchFilter, IndexedEntityText
from kgserve.projections.vector.past_vectors import UNUSED_ROWS_ALLOWANCE, PastTextVectorIndex
from kgserve.projections.vector.vector_index import VectorHit
from kgserve.projections.vector.vector_rows import VectorFile, dot_products
from tests.cli.running import PythonProcess
from tests.stores.writing import flip

WIDTH = 8
VECTORS = np.eye(WIDTH, dtype=np.float32)
QUERY = np.arange(WIDTH, dtype=np.float32)
BATCH = 100


def some_texts(source: random.Random, count: int) -> list[IndexedEntityText]:
    """Return texts of 40 entities, in the order of their ends."""
    return [
        IndexedEntityText(
            f"{source.choice('ab')}{number % 20}",
            source.choice("tu"),
            f"text {source.randrange(count)}",
            number,
            "",
            source.choice(
                [
                    None,
                    EntityFilterableFields(("red",)),
                    EntityFilterableFields(("red", "blue"), 5),
                    EntityFilterableFields((), 7, 3, 6),
                    EntityFilterableFields((), None, 4),
                ]
            ),
            number + 15,
        )
        for number in range(count)
    ]


@cache
def vector_of(content: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a deterministic vector for a text."""
    return np.random.default_rng([*content.encode()]).standard_normal(WIDTH, np.float32)


def fill(index: PastTextVectorIndex, texts: list[IndexedEntityText], ended: int = 0) -> None:
    """Add texts in batches, as an index does."""
    for first in range(0, len(texts), BATCH):
        some = texts[first : first + BATCH]
        index.write(some, {text.content: vector_of(text.content) for text in some}, first, ended)


def opened(folder: Path) -> closing[PastTextVectorIndex]:
    return closing(PastTextVectorIndex(folder, WIDTH, "m"))


def everything(index: PastTextVectorIndex, last: int) -> list[list[VectorHit]]:
    return [
        sorted(index.search(QUERY, 99, EntitySearchFilter(as_of=at)), key=lambda hit: hit.id)
        for at in range(0, last, 7)
    ]


def assert_same(found: list[list[VectorHit]], wanted: list[list[VectorHit]]) -> None:
    """Compare ids and similarities, up to rounding, which depends on the layout of rows."""
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in wanted]
    similarities = [[hit.similarity for hits in all_hits for hit in hits] for all_hits in (found, wanted)]
    assert similarities[0] == pytest.approx(similarities[1], abs=1e-4)


def test_past_vectors_are_searched_as_of_a_commit(tmp_path: Path) -> None:
    def text(
        node_id: str, since: int, until: int, place: int, facets: EntityFilterableFields | None = None
    ) -> IndexedEntityText:
        return IndexedEntityText(node_id, "t", f"text {place}", since, "", facets, until)

    index = PastTextVectorIndex(tmp_path / "past", WIDTH, "m")
    vectors = {f"text {place}": VECTORS[place] for place in range(3)}
    index.write(
        [text("a", 1, 3, 0), text("a", 3, 4, 1), text("b", 2, 9, 2, EntityFilterableFields(("red",)))], vectors, 9, 0
    )
    index.write([text("a", 4, 6, 1), text("a", 4, 6, 1)], {}, 9, 0)
    assert len(index) == 3, "consecutive equal texts are one, even if added twice"

    def found(at: int, limit: int = 9, **only: Any) -> list[str]:
        hits = index.search(VECTORS[0] + VECTORS[1] * 0.5, limit, EntitySearchFilter(as_of=at, **only))
        return [hit.id for hit in hits]

    assert [found(at) for at in (0, 1, 2, 5, 6, 9)] == [[], ["a"], ["a", "b"], ["a", "b"], ["b"], []]
    assert found(2, tags=frozenset({"red"})) == ["b"]
    assert found(2, limit=1) == ["a"]
    assert np.array_equal(index.vectors_of(["a", "b", "c"], 5)["a"], VECTORS[1])
    index.write([], {}, 9, 6)
    assert (len(index), found(2), index.sequence) == (1, ["b"], 9)
    index.close()
    assert PastTextVectorIndex(tmp_path / "past", WIDTH, "m").sequence == 9
    assert PastTextVectorIndex(tmp_path / "past", WIDTH, "other").sequence == 0


@pytest.mark.parametrize("of", ["one entity", "one text"])
def test_cost_of_adding_a_text_does_not_grow_with_the_index(tmp_path: Path, of: str) -> None:
    steps: list[int] = []

    def text(number: int) -> IndexedEntityText:
        if of == "one text":
            return IndexedEntityText(f"n{number}", "t", "said by all", 1, until=2)
        return IndexedEntityText("n", "t", f"text {number % 2}", number, until=number + 1)

    with opened(tmp_path) as index:
        for first in (1, 401):
            fill(index, [text(number) for number in range(first, first + 400)])
            steps.append(0)
            index._writer.set_progress_handler(lambda: steps.append(steps.pop() + 1), 10)
            fill(index, [text(first + 400)])
            index._writer.set_progress_handler(None, 0)
    assert 0 < steps[1] < 1.5 * steps[0]


def test_past_filters_equal_current_filters(tmp_path: Path) -> None:
    source = random.Random(3)
    texts = some_texts(source, 400)
    with opened(tmp_path / "past") as index:
        fill(index, texts)
        for _ in range(300):
            only = EntitySearchFilter(
                source.choice([None, frozenset("t"), frozenset("x")]),
                source.choice(["", "a", "b1", "c"]),
                source.choice([frozenset[str](), frozenset({"red"}), frozenset({"blue", "red"}), frozenset({"x"})]),
                source.choice([None, *range(2, 8)]),
                source.choice([None, *range(4, 8)]),
                source.randrange(420),
            )
            at = only.as_of or 0
            held = [text for text in texts if text.since <= at < (text.until or 0)]
            wanted = {text.id: text.content for text in held if only.passes(text.id, text.type, text.facets)}
            near = sorted((-float(vector_of(content) @ QUERY), node_id) for node_id, content in wanted.items())
            hits = index.search(QUERY, 5, only)
            np.testing.assert_allclose([-hit.similarity for hit in hits], [score for score, _ in near[:5]], rtol=1e-4)
            assert {hit.id for hit in hits} <= set(wanted)
            assert set(index.vectors_of(["a1", "b3"], at)) == {"a1", "b3"} & {text.id for text in held}


def test_similarities_of_any_row_subset_are_equal(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((40_000, WIDTH), np.float32)
    file = VectorFile(tmp_path / "vectors", WIDTH)
    for first in range(0, len(rows), 10_000):
        file.write(first, rows[first : first + 10_000])
    source = np.random.default_rng(2)
    for count in (0, 1, 50, 5_000, 60_000):
        places = source.integers(0, len(rows), count)
        np.testing.assert_allclose(dot_products(file.rows, places, QUERY), rows[places] @ QUERY, rtol=1e-3, atol=1e-4)


def test_the_file_shrinks_after_most_texts_are_pruned(tmp_path: Path) -> None:
    texts = [
        IndexedEntityText("a", "t", f"text {number}", number, until=number + 1)
        for number in range(4 * UNUSED_ROWS_ALLOWANCE)
    ]
    folder = tmp_path / "past"
    folder.mkdir()
    (folder / "vectors-9").write_bytes(b"left behind by a kill")
    with opened(folder) as index:
        fill(index, texts)
        [before] = folder.glob("vectors-*")
        size = before.stat().st_size
        index.write((), {}, 9, UNUSED_ROWS_ALLOWANCE)
        assert [*folder.glob("vectors-*")] == [before], "a quarter is gone"
        index.write((), {}, 9, 3 * UNUSED_ROWS_ALLOWANCE)
        [after] = folder.glob("vectors-*")
        assert after.stat().st_size < size / 2
        assert len(index) == UNUSED_ROWS_ALLOWANCE
        late = 3 * UNUSED_ROWS_ALLOWANCE + 5
        for _ in range(2):
            [hit] = index.search(QUERY, 9, EntitySearchFilter(as_of=late))
            assert hit.similarity == pytest.approx(float(vector_of(f"text {late}") @ QUERY), rel=1e-4)
            fill(
                index,
                [
                    IndexedEntityText("b", "t", "text 0", 1, until=2),
                    IndexedEntityText("a", "t", "new", 4 * UNUSED_ROWS_ALLOWANCE, until=4 * UNUSED_ROWS_ALLOWANCE + 1),
                ],
            )
    with opened(folder) as index:
        assert len(index) == UNUSED_ROWS_ALLOWANCE + 2
        [hit] = index.search(QUERY, 9, EntitySearchFilter(as_of=late))
        [new] = index.search(QUERY, 9, EntitySearchFilter(as_of=4 * UNUSED_ROWS_ALLOWANCE))
        assert new.similarity == pytest.approx(float(vector_of("new") @ QUERY), rel=1e-4)


def test_texts_are_found_after_a_failed_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [IndexedEntityText("a", "t", f"text {number}", number, until=number + 1) for number in range(2_000)]
    last = IndexedEntityText("b", "t", "text 0", 1_990, until=2_000)

    def raise_disk_full(*_: object) -> VectorFile:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path / "past") as index:
        fill(index, texts)
        with monkeypatch.context() as patched:
            patched.setattr(VectorFile, "copy", raise_disk_full)
            with pytest.raises(OSError, match="No space"):
                index.write([last], {"text 0": vector_of("text 0")}, 2_000, 1_990)
        for _ in range(2):
            assert {hit.id for hit in index.search(QUERY, 9, EntitySearchFilter(as_of=1_995))} == {"a", "b"}
            assert len(index) == 11
            index.write([last], {"text 0": vector_of("text 0")}, 2_000, 1_990)


@pytest.mark.parametrize("harm", ["vector", "text", "cut", "gone", "emptied"])
def test_a_damaged_file_is_replaced_by_an_empty_one(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "past"
    with opened(folder) as index:
        fill(index, some_texts(random.Random(1), 300))
    vectors, texts = folder / "vectors-0", folder / "texts.sqlite"
    match harm:
        case "vector":
            flip(vectors, 77)
        case "text":
            flip(texts, texts.read_bytes().rindex(b"a19"))
        case "cut":
            vectors.write_bytes(vectors.read_bytes()[:99])
        case "gone":
            vectors.unlink()
        case _:
            texts.write_bytes(b"")
            vectors.write_bytes(b"")
    with opened(folder) as index:
        assert (len(index), index.sequence) == (0, 0)
        fill(index, some_texts(random.Random(1), 300))
        assert index.search(QUERY, 1, EntitySearchFilter(as_of=99))


WRITER = """
import random, sys
from pathlib import Path
from kgserve.projections.vector.past_vectors import PastTextVectorIndex
from tests.projections.test_past_vectors import WIDTH, fill, some_texts
texts = some_texts(random.Random(5), 3_000)
index = PastTextVectorIndex(Path(sys.argv[1]), WIDTH, "m")
print("begun", flush=True)
while True:
    for ended in (0, 2_600):  # the second call compacts the file
        fill(index, texts, ended)
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[list[VectorHit]]]:
    """Return length and results of an index that was written without a kill."""
    texts = some_texts(random.Random(5), 3_000)
    with opened(tmp_path_factory.mktemp("whole")) as index:
        fill(index, texts, 2_600)
        fill(index, texts, 2_600)
        return len(index), everything(index, 3_100)


@pytest.mark.parametrize("seconds", [0.02, 0.2, 0.5, 0.9])
def test_a_kill_at_any_point_yields_the_same_index(
    tmp_path: Path, seconds: float, expected: tuple[int, list[list[VectorHit]]]
) -> None:
    killed = tmp_path / "killed"
    with PythonProcess(WRITER, str(killed)) as process:
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.process.wait(seconds)
    texts = some_texts(random.Random(5), 3_000)
    with opened(killed) as index:
        assert len(index) or seconds < 0.9, "something was whole"
        fill(index, texts, 2_600)
        fill(index, texts, 2_600)
        length, answers = expected
        assert len(index) == length
        assert_same(everything(index, 3_100), answers)
