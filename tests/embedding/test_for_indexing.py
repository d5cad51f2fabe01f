"""The model copy for indexing: when it is loaded and unloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from kgserve.embedding.embedder import (
    MAX_INTERACTIVE_CHARS,
    HashingEmbedder,
    IndexingEmbedder,
    LocalEmbedder,
    create_indexing_embedder,
    load_embedder,
)
from kgserve.errors import Unavailable
from tests.embedding.prepared import model_settings
from tests.stores.writing import until


def another(rest: float | None = None) -> LocalEmbedder:
    loaded = load_embedder(model_settings())
    assert isinstance(loaded, LocalEmbedder)
    return LocalEmbedder(loaded.folder, loaded.manifest, threads=1, batch=16, rest=rest)


@pytest.fixture
def prompt() -> Iterator[LocalEmbedder]:
    with closing(another()) as embedder:
        yield embedder


def test_idle_model_is_unloaded_and_reloaded_on_use() -> None:
    with closing(another(rest=0.05)) as embedder:
        assert not embedder.is_loaded
        first = embedder.embed(["a text"])
        until(lambda: not embedder.is_loaded)
        np.testing.assert_array_equal(embedder.embed(["a text"]), first)
        until(lambda: not embedder.is_loaded)


def test_model_in_use_is_not_unloaded() -> None:
    texts = [f"text number {number}" for number in range(8)]
    with closing(another(rest=0.001)) as embedder:
        for _ in range(20):
            assert embedder.embed(texts).shape == (8, 384)


def timers_of(embedder: LocalEmbedder) -> list[threading.Timer]:
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    return [each for each in timers if each.function == embedder._unload_if_idle]


def test_close_cancels_the_idle_timer() -> None:
    embedder = another(rest=60)
    embedder.embed(["a text"])
    assert timers_of(embedder)
    embedder.close()
    with pytest.raises(Unavailable, match="closed"):
        embedder.embed(["a text"])
    until(lambda: not timers_of(embedder))


def test_small_inputs_use_the_query_model(prompt: LocalEmbedder) -> None:
    with closing(another()) as patient:
        both = IndexingEmbedder(prompt, patient)
        vector = prompt.embed(["a few words"])
        np.testing.assert_allclose(both.embed(["a few words"]), vector, atol=1e-5)
        assert not patient.is_loaded
        both.embed(["many words " * MAX_INTERACTIVE_CHARS])
        assert patient.is_loaded


def test_indexing_does_not_load_the_query_model(prompt: LocalEmbedder) -> None:
    with closing(another()) as patient:
        IndexingEmbedder(prompt, patient).embed(["a few words"])
        assert (prompt.is_loaded, patient.is_loaded) == (False, True)


def test_only_local_models_get_a_copy_for_indexing(prompt: LocalEmbedder) -> None:
    hashing = HashingEmbedder()
    assert create_indexing_embedder(model_settings(), hashing) is hashing
    with closing(create_indexing_embedder(model_settings(), prompt)) as copy:
        assert (copy.model_id, copy.dimensions, copy.degraded) == (prompt.model_id, prompt.dimensions, False)
