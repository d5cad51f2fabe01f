from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.embedding.cache import (
    EmbeddingCache,
    embed_texts_with_cache,
    embedding_cache_key,
    round_to_half_precision,
)
from kgserve.embedding.embedder import HashingEmbedder
from kgserve.errors import Unavailable
from tests.captured_log import capture_log

MODEL = "a model"


class CountingEmbedder(HashingEmbedder):
    """Embedder that records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return super().embed(texts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "views" / "embeddings.sqlite"


@pytest.fixture
def cache(path: Path) -> Iterator[EmbeddingCache]:
    opened = EmbeddingCache(path)
    yield opened
    opened.close()


def vectors_of(count: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 384)).astype(np.float32)


def texts_of(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


def unrounded(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors


@pytest.mark.parametrize("rounded", [unrounded, round_to_half_precision])
def test_cached_vectors_survive_reopening(path: Path, rounded: Callable[..., NDArray[np.float32]]) -> None:
    texts, vectors = texts_of(1234), rounded(vectors_of(1234))
    for first in (True, False):
        cache = EmbeddingCache(path)
        if first:
            cache.put_many(MODEL, texts, vectors)
        got = cache.get_many(MODEL, [*texts, "unknown"])
        assert got.pop() is None
        assert (np.stack([row for row in got if row is not None]) == vectors).all()
        assert len(cache) == 1234
        cache.close()
    assert (path.stat().st_size < 1_200_000) is (rounded is round_to_half_precision)


def test_models_have_separate_vectors(cache: EmbeddingCache) -> None:
    one, other = vectors_of(1, 1), vectors_of(1, 2)
    cache.put_many("one", ["text"], one)
    assert cache.get_many("other", ["text"]) == [None]
    cache.put_many("other", ["text"], other)
    (got,) = cache.get_many("one", ["text"])
    assert got is not None
    assert (got == one[0]).all()


def test_the_last_write_wins(cache: EmbeddingCache) -> None:
    for seed in (1, 2):
        cache.put_many(MODEL, ["text"], vectors_of(1, seed))
    (got,) = cache.get_many(MODEL, ["text"])
    assert got is not None
    assert (got == vectors_of(1, 2)[0]).all()
    assert len(cache) == 1


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "字🙂", "x" * 1_000_000])
def test_any_text_is_a_key(cache: EmbeddingCache, text: str) -> None:
    cache.put_many(MODEL, [text], vectors_of(1))
    assert cache.get_many(MODEL, [text])[0] is not None
    assert cache.get_many(MODEL, [text + "."]) == [None]


def test_each_distinct_text_is_embedded_once(cache: EmbeddingCache) -> None:
    embedder = CountingEmbedder()
    texts = ["one", "two", "one", "three", "two"]
    for _ in range(2):
        found = embed_texts_with_cache(embedder, cache, texts)
        assert (found == round_to_half_precision(HashingEmbedder().embed(texts))).all()
    assert embedder.asked == ["one", "two", "three"]
    embed_texts_with_cache(embedder, cache, ["three", "four"])
    assert embedder.asked == ["one", "two", "three", "four"]
    assert embed_texts_with_cache(embedder, cache, []).shape == (0, 384)


def test_vectors_are_rounded_unless_that_would_change_more_than_precision() -> None:
    vectors = vectors_of(4) * np.array([[1e-9], [1e-2], [1.0], [1e9]], np.float32)
    rounded = round_to_half_precision(vectors)
    assert [(row == own).all() for row, own in zip(rounded, vectors, strict=True)] == [True, False, False, True]
    products = (rounded * vectors).sum(axis=1) / np.linalg.norm(rounded, axis=1) / np.linalg.norm(vectors, axis=1)
    assert products == pytest.approx(1.0, abs=1e-6)


def test_vectors_of_other_dimensions_are_recomputed(cache: EmbeddingCache) -> None:
    cache.put_many(HashingEmbedder.model_id, ["text"], np.ones((1, 8), dtype=np.float32))
    assert embed_texts_with_cache(HashingEmbedder(), cache, ["text"]).shape == (1, 384)
    assert len(cache) == 1


def test_oldest_vectors_are_evicted(path: Path) -> None:
    cache = EmbeddingCache(path, max_vectors=1000)
    texts = texts_of(2500)
    cache.put_many(MODEL, texts, vectors_of(2500))
    kept = [row is not None for row in cache.get_many(MODEL, texts)]
    assert kept == [False] * 1500 + [True] * 1000
    cache.close()


def test_threads_and_processes_share_one_cache_file(path: Path, cache: EmbeddingCache) -> None:
    program = f"""
import sys, numpy as np
from pathlib import Path
from kgserve.embedding.cache import EmbeddingCache
cache = EmbeddingCache(Path(sys.argv[1]))
for number in range(300):
    cache.put_many({MODEL!r}, [f"process {{number}}"], np.full((1, 384), number, dtype=np.float32))
cache.close()
"""
    vectors = vectors_of(300)
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as other, ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda number: cache.put_many(MODEL, [f"thread {number}"], vectors[number : number + 1]), range(300)
            )
        )
    assert other.returncode == 0
    assert len(cache) == 600
    got = cache.get_many(MODEL, [f"thread {number}" for number in range(300)])
    assert (np.stack([row for row in got if row is not None]) == vectors).all()


def test_a_closed_cache_raises_unavailable(path: Path) -> None:
    cache = EmbeddingCache(path)
    cache.put_many(MODEL, ["text"], vectors_of(1))
    cache.close()
    cache.close()
    with pytest.raises(Unavailable, match="closed"):
        cache.get_many(MODEL, ["text"])
    assert not path.with_name(path.name + "-wal").exists()


def test_close_releases_all_file_descriptors(path: Path) -> None:
    for _ in range(5):
        cache = EmbeddingCache(path)
        cache.put_many(MODEL, ["text"], vectors_of(1))
        cache.close()
    assert not [name for name in map(_target, Path("/proc/self/fd").iterdir()) if name.startswith(str(path))]


def _target(descriptor: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(descriptor.readlink())
    return ""


@pytest.mark.parametrize(
    "harm", ["garbage", "empty", "cut", "cut to the header", "another database", "a table of another shape"]
)
def test_a_damaged_file_is_replaced(path: Path, harm: str) -> None:
    fill(path, 600)
    data = path.read_bytes()
    match harm:
        case "garbage":
            path.write_bytes(random.Random(1).randbytes(len(data)))
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "cut to the header":
            path.write_bytes(data[:100])
        case _:
            path.unlink()
            table = "vectors (something)" if "table" in harm else "another (thing)"
            with sqlite3.connect(path) as connection:
                connection.execute(f"CREATE TABLE {table}")
            connection.close()
    check_cache_is_correct(path, 600)


def damage_some_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    pages, chance = len(data) // 4096, random.Random(9)
    for page in chance.sample(range(40, pages), 5):
        data[page * 4096 : page * 4096 + 8] = b"\xff" * 8
    path.write_bytes(data)


def test_the_readable_rows_of_a_damaged_file_are_kept(path: Path) -> None:
    fill(path, 600)
    damage_some_pages(path)
    cache = EmbeddingCache(path)
    with capture_log(path=str(path)) as log:
        cache.get_many(MODEL, texts_of(600))  # notices the damage
    assert "embedding_cache_salvaged" in [line["event"] for line in log]
    found = cache.get_many(MODEL, texts_of(600))
    assert 500 < sum(row is not None for row in found) < 600
    assert all(row is None or (row == known).all() for row, known in zip(found, vectors_of(600), strict=True))
    assert {file.name for file in path.parent.iterdir()} <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    cache.close()


def test_erased_vectors_leave_a_damaged_or_locked_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 600)
    damage_some_pages(path)
    cache, keys = EmbeddingCache(path), [embedding_cache_key(MODEL, text) for text in texts_of(600)]
    cache.forget(keys[:590])
    assert all(row is None for row in cache.get_many(MODEL, texts_of(590)))
    assert 0 < len(cache) <= 10
    cache.close()
    monkeypatch.setattr("kgserve.embedding.cache._CACHE_LOCK_TIMEOUT_SECONDS", 0.01)
    cache = EmbeddingCache(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            cache.forget(keys[590:])
    cache.forget(keys[590:])
    assert len(cache) == 0
    cache.close()


def test_flipped_bits_never_give_a_wrong_vector(path: Path) -> None:
    chance = random.Random(5)
    for _ in range(25):
        fill(path, 60)
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 10, 1000])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        check_cache_is_correct(path, 60)


def test_a_deleted_cache_file_is_recreated(path: Path, cache: EmbeddingCache) -> None:
    cache.put_many(MODEL, ["text"], vectors_of(1))
    for file in path.parent.iterdir():
        file.unlink()
    cache.put_many(MODEL, ["more"], vectors_of(1))
    assert len(cache.get_many(MODEL, ["text", "more"])) == 2


def test_an_unwritable_cache_only_costs_recomputation(tmp_path: Path) -> None:
    (tmp_path / "views").write_text("a file where the folder should be")
    cache = EmbeddingCache(tmp_path / "views" / "embeddings.sqlite")
    embedder = CountingEmbedder()
    for _ in range(2):
        assert embed_texts_with_cache(embedder, cache, ["text"]).shape == (1, 384)
    assert embedder.asked == ["text", "text"]
    cache.close()


def test_cache_opens_after_a_kill_during_a_write(path: Path) -> None:
    program = f"""
import sys, numpy as np
from pathlib import Path
from kgserve.embedding.cache import EmbeddingCache
cache = EmbeddingCache(Path(sys.argv[1]))
for number in range(10**6):
    cache.put_many({MODEL!r}, [f"text {{number}}"], np.full((1, 384), number, dtype=np.float32))
    print(number, flush=True)
"""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            written = [int(next(writer.stdout)) for _ in range(200)]
            writer.kill()
        cache = EmbeddingCache(path)
        got = cache.get_many(MODEL, texts_of(len(written)))
        assert all(row is not None and (row == number).all() for number, row in enumerate(got))
        cache.close()


def fill(path: Path, count: int) -> None:
    cache = EmbeddingCache(path)
    cache.put_many(MODEL, texts_of(count), vectors_of(count))
    cache.close()


def check_cache_is_correct(path: Path, count: int) -> None:
    """Check that no cached vector is wrong and that new vectors can be stored."""
    cache = EmbeddingCache(path)
    vectors = vectors_of(count)
    for row, expected in zip(cache.get_many(MODEL, texts_of(count)), vectors, strict=True):
        assert row is None or (row == expected).all()
    for _ in range(2):  # a write may be the first to detect the damage
        cache.put_many(MODEL, texts_of(count), vectors)
    got = cache.get_many(MODEL, texts_of(count))
    assert (np.stack([row for row in got if row is not None]) == vectors).all()
    cache.close()
