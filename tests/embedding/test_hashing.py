from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.embedding.embedder import HashingEmbedder, load_embedder
from kgserve.platform.settings import Settings

EMBEDDER = HashingEmbedder()


def similarity(one: str, other: str) -> float:
    first, second = EMBEDDER.embed([one, other])
    return float(first @ second)


def test_settings_select_the_hashing_embedder() -> None:
    loaded = load_embedder(Settings(embedding_provider="hashing"))
    assert (loaded.model_id, loaded.dimensions, loaded.degraded) == ("hashing-words-3-4-grams-384-v1", 384, True)


@given(st.text())
def test_vectors_are_unit_length(text: str) -> None:
    (vector,) = EMBEDDER.embed([text])
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@given(st.lists(st.text(max_size=40), max_size=5))
def test_vectors_are_independent_of_the_batch(texts: list[str]) -> None:
    together = EMBEDDER.embed(texts)
    assert together.shape == (len(texts), 384)
    for row, text in zip(together, texts, strict=True):
        assert (row == EMBEDDER.embed([text])[0]).all()


def test_shared_words_and_word_parts_increase_similarity() -> None:
    assert similarity("login of users", "users log in") > similarity("login of users", "quarterly revenue") + 0.2
    assert similarity("authentication", "authenticating") > 0.3
    assert similarity("The Cat!", "the cat") == pytest.approx(1, abs=1e-5)
    assert similarity("ＣＡＴ", "cat") == pytest.approx(1, abs=1e-5)


def test_word_frequency_is_damped() -> None:
    once = similarity("cat dog", "cat")
    often = similarity("cat cat cat cat dog", "cat")
    assert once < often < 0.99


def test_vectors_are_the_same_in_every_process() -> None:
    program = (
        "from kgserve.embedding.embedder import HashingEmbedder\n"
        "print(HashingEmbedder().embed(['the same everywhere'])[0].tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == EMBEDDER.embed(["the same everywhere"])[0].tobytes().hex()


def test_vectors_are_stable_for_a_model_id() -> None:
    (vector,) = EMBEDDER.embed(["a fixed sentence"])
    assert vector[[146, 329, 312, 293, 276]] == pytest.approx(
        [-0.516398, -0.387298, -0.387298, 0.387298, 0.129099], abs=1e-5
    )


@pytest.mark.parametrize("text", ["x" * 5_000_000, "a b c " * 1_000_000, "\ud800" * 1000])
def test_huge_texts_are_embedded_quickly(text: str) -> None:
    started = time.thread_time()
    EMBEDDER.embed([text])
    assert time.thread_time() - started < 5  # 0.02 on an idle machine
