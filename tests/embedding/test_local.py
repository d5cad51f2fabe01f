from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kgserve.embedding.default_model_build import verify_embedding_model_vectors
from kgserve.embedding.embedder import Embedder, HashingEmbedder, LocalEmbedder, load_embedder
from kgserve.embedding.model_files import PREPARED_MODEL, get_embedding_model_folder
from kgserve.errors import InvalidInput, Unavailable
from kgserve.platform.settings import Settings
from tests.captured_log import capture_log
from tests.embedding.prepared import model_settings

SAME_AND_OTHER = [
    # a sentence, the same in other words, and one that shares words with it but means something else
    ("How do I reset my password?", "I forgot my login and need a new one", "How do I reset my watch?"),
    ("The physician prescribed an antibiotic", "The doctor gave her medicine", "The prescribed reading is an essay"),
    ("He purchased a car", "He bought an automobile", "He purchased a house"),
    ("The film was boring", "I found the movie dull", "The film was developed in a dark room"),
    ("Our flight was delayed for hours", "The plane left very late", "Our flight of stairs was cleaned for hours"),
    ("The baby is asleep", "The infant is sleeping", "The baby elephant weighs a ton"),
    (
        "Stocks fell sharply on Monday",
        "Share prices dropped at the start of the week",
        "My dentist is closed on Monday",
    ),
    (
        "The server crashed after the update",
        "Following the upgrade the machine went down",
        "The waiter served the soup",
    ),
]


@pytest.fixture(scope="module")
def configured() -> Settings:
    return model_settings()


@pytest.fixture(scope="module")
def embedder(configured: Settings) -> Iterator[Embedder]:
    loaded = load_embedder(configured)
    yield loaded
    loaded.close()


def test_vectors_match_the_reference_computation(configured: Settings) -> None:
    loaded = load_embedder(configured)
    assert isinstance(loaded, LocalEmbedder)
    verify_embedding_model_vectors(get_embedding_model_folder(configured, PREPARED_MODEL), loaded.manifest)


def test_metadata_is_available_before_loading(embedder: Embedder) -> None:
    assert not embedder.degraded
    assert embedder.dimensions == 384
    assert embedder.model_id == "sentence-transformers/all-MiniLM-L6-v2@53aa51172d14"


def test_paraphrases_are_closer_than_shared_words(embedder: Embedder) -> None:
    for sentence, same, other in SAME_AND_OTHER:
        one, two, three = embedder.embed([sentence, same, other])
        assert one @ two > one @ three, sentence


def test_question_retrieves_its_answer(embedder: Embedder) -> None:
    sentences = [text for pair in SAME_AND_OTHER for text in pair[1:]]
    known = embedder.embed(sentences)
    found = [sentences[int(np.argmax(known @ embedder.embed([pair[0]])[0]))] for pair in SAME_AND_OTHER]
    assert sum(hit == pair[1] for hit, pair in zip(found, SAME_AND_OTHER, strict=True)) >= 7


def test_vectors_are_float32_of_unit_length(embedder: Embedder) -> None:
    texts = ["one", "two words", "three or more words"] * 13
    vectors = embedder.embed(texts)
    assert vectors.shape == (39, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, 384)


def test_vectors_are_independent_of_the_batch(embedder: Embedder) -> None:
    chance = random.Random(7)
    words = ["river", "bank", "money", "water", "loan", "stream", "account", "fish", "interest", "boat"]
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 60))) for _ in range(50)]
    together = embedder.embed(texts)
    alone = np.concatenate([embedder.embed([text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-5
    shuffled = chance.sample(range(50), 50)
    assert np.abs(embedder.embed([texts[index] for index in shuffled]) - together[shuffled]).max() < 1e-5


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\0", "\ud800 half", "🙂" * 300, "字" * 5000, "x" * 100_000, "a b " * 1_250_000]
)
def test_any_text_has_a_vector(embedder: Embedder, text: str) -> None:
    vector = embedder.embed([text])
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_embedder_is_thread_safe(embedder: Embedder) -> None:
    texts = [f"sentence number {number} about {number * 7}" for number in range(40)]
    expected = embedder.embed(texts)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(embedder.embed, [texts] * 8):
            assert np.abs(vectors - expected).max() < 1e-5


def test_a_closed_embedder_raises_unavailable(configured: Settings) -> None:
    loaded = load_embedder(configured)
    loaded.embed(["something"])
    loaded.close()
    loaded.close()
    with pytest.raises(Unavailable, match="closed"):
        loaded.embed(["something"])


def test_no_network_access(configured: Settings) -> None:
    program = """
import sys
calls = []
sys.addaudithook(lambda event, details: event.startswith("socket.") and calls.append((event, details)))
from kgserve.platform import settings
from kgserve.embedding.embedder import load_embedder
embedder = load_embedder(settings.load_settings({"models_dir": sys.argv[1]}))
embedder.embed(["a question"])
print(embedder.degraded, [event for event, _ in calls if event in ("socket.connect", "socket.getaddrinfo")])
"""
    command = [sys.executable, "-c", program, str(configured.models_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


def test_missing_model_falls_back_to_hashing_and_logs_the_remedy(tmp_path: Path) -> None:
    with capture_log() as lines:
        loaded = load_embedder(Settings(data_dir=tmp_path))
    assert isinstance(loaded, HashingEmbedder)
    assert loaded.degraded
    (line,) = lines
    assert line["log_level"] == "warning"
    assert "kgserve model prepare" in line["reason"]
    assert list(tmp_path.iterdir()) == []


def test_missing_model_log_names_the_pull_command(tmp_path: Path) -> None:
    with capture_log() as lines:
        load_embedder(Settings(data_dir=tmp_path, embedding_model="BAAI/bge-small-en-v1.5"))
    assert "kgserve model pull BAAI/bge-small-en-v1.5" in lines[0]["reason"]


@pytest.mark.parametrize("name", ["../elsewhere", "..", "", "a/b/c", "/etc", "a\0b"])
def test_paths_are_rejected_as_model_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid model name"):
        load_embedder(Settings(data_dir=tmp_path, embedding_model=name))


@pytest.fixture
def copied(configured: Settings, tmp_path: Path) -> Settings:
    """Return a copy of the prepared model whose files may be replaced but not modified in place."""
    copy = msgspec.structs.replace(configured, models_dir=tmp_path)
    folder = get_embedding_model_folder(copy, PREPARED_MODEL)
    folder.mkdir()
    for file in get_embedding_model_folder(configured, PREPARED_MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    assert not load_embedder(copy).degraded
    return copy


@pytest.mark.parametrize("harm", ["missing", "flipped", "cut", "empty"])
def test_damaged_model_is_detected_before_use(copied: Settings, harm: str) -> None:
    for path in sorted(get_embedding_model_folder(copied, PREPARED_MODEL).iterdir()):
        original = path.readlink()
        data = bytearray(original.read_bytes())
        path.unlink()
        match harm:
            case "flipped":
                data[len(data) // 2] ^= 0x10
            case "cut":
                data = data[:-1000]
            case _:
                data = bytearray()
        if harm != "missing":
            path.write_bytes(data)
        with capture_log() as lines:
            loaded = load_embedder(copied)
        assert loaded.degraded, path
        assert "kgserve model prepare" in lines[0]["reason"]
        path.unlink(missing_ok=True)
        path.symlink_to(original)
