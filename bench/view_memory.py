"""What the indexes hold in memory: those of many small stores, the model, and the vectors of a large store.

`python -m bench.view_memory`. Of this process, from /proc/self/smaps_rollup; ``anonymous`` leaves out pages of files.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from kgserve.embedding.cache import EmbeddingCache
from kgserve.embedding.embedder import Embedder, for_indexing, load_embedder
from kgserve.platform import settings
from kgserve.platform.allocator import bound_arenas, give_back
from kgserve.projections.keyword import KeywordIndex
from kgserve.projections.text import Filter, Text
from kgserve.projections.vector.index import VectorIndex
from kgserve.projections.vector.past import PastVectors

STORES = 32
TEXTS = 50
VECTORS = 20_000
WIDTH = 384
MODEL = "bench"


def tell(what: str) -> None:
    """One line: resident, anonymous and threads now; first as it is, then with what is free given back."""
    gc.collect()
    before, _ = _held()
    give_back()
    after, anonymous = _held()
    threads = len(list(Path("/proc/self/task").iterdir()))
    print(f"{what:44} {before:7.1f} → {after:7.1f} MiB, anonymous {anonymous:7.1f}, {threads} threads", flush=True)


def _held() -> tuple[float, float]:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    values = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return values["Rss"], values["Anonymous"]


def _small_stores(folder: Path, stack: ExitStack) -> list[object]:
    vectors = _vectors(TEXTS)
    kept: list[object] = []
    for number in range(STORES):
        place = folder / f"store{number}"
        place.mkdir()
        texts = [Text(f"n{each}", "note", f"the river number {each * number}", 1) for each in range(TEXTS)]
        past = [Text(each.id, each.type, each.content, 1, until=2) for each in texts]
        for name, some in (("keyword", texts), ("past-keyword", past)):
            (index := KeywordIndex(place / name)).write(some, (), 1)
            kept.append(index)
        present = VectorIndex(place / "vector", WIDTH, MODEL)
        present.put([each.id for each in texts], ["note"] * TEXTS, vectors)
        cache = stack.enter_context(closing(EmbeddingCache(place / "embeddings.sqlite")))
        cache.put_many(MODEL, [each.content for each in texts], vectors)
        gone = stack.enter_context(closing(PastVectors(place / "past-vector", WIDTH, MODEL)))
        gone.write(past, {each.content: vector for each, vector in zip(past, vectors, strict=True)}, 2, 0)
        kept += [present, cache, gone]
    return kept


def _vectors(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    rows = np.random.default_rng(1).standard_normal((count, WIDTH), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def _model(prompt: Embedder) -> None:
    prompt.embed(["a question"])
    tell("the model, for queries")
    patient = for_indexing(settings.load(), prompt)
    patient.embed([f"a text of some length, number {number} " * (number % 12 + 1) for number in range(128)])
    tell("and while much is indexed")
    patient.close()
    tell("after a rest")


def _large(folder: Path) -> None:
    index = VectorIndex(folder / "large" / "vector", WIDTH, MODEL)
    started = time.perf_counter()
    for first in range(0, VECTORS, 1_000):
        some = [f"n{number:07}" for number in range(first, first + 1_000)]
        index.put(some, [f"t{number % 8}" for number in range(1_000)], _vectors(1_000))
    tell(f"{VECTORS:,} vectors, put in {time.perf_counter() - started:.0f} s")
    index.save(1)
    del index
    tell("closed")
    index = VectorIndex(folder / "large" / "vector", WIDTH, MODEL)
    index.search(_vectors(1)[0], 10, Filter(frozenset({"t3"}), id_prefix="n00012"))
    tell("opened and searched with filters")


def main() -> int:
    """Print a line for each step."""
    bound_arenas()
    tell("imported")
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as name, ExitStack() as stack:
        kept = _small_stores(Path(name), stack)
        tell(f"indexes of {STORES} small stores")
        kept.clear()
        _large(Path(name))
        prompt = stack.enter_context(closing(load_embedder(settings.load())))
        if prompt.degraded:
            print("no embedding model is prepared: what it takes was not measured")
        else:
            _model(prompt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
