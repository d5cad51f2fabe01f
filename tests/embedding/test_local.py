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

from kgserve.embedding.embedder import Embedder, HashingEmbedder, LocalEmbedder, load_embedder
from kgserve.embedding.model_files import MODEL_MANIFEST_FILE, PREPARED_MODEL, model_folder
from kgserve.embedding.prepare import check_vectors
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


def test_the_model_gives_the_vectors_that_were_computed_from_its_weights_by_hand(configured: Settings) -> None:
    loaded = load_embedder(configured)
    assert isinstance(loaded, LocalEmbedder)
    check_vectors(model_folder(configured, PREPARED_MODEL), loaded.manifest)


def test_it_says_what_it_is_at_once(embedder: Embedder) -> None:
    assert not embedder.degraded
    assert embedder.dimensions == 384
    assert embedder.model_id == "sentence-transformers/all-MiniLM-L6-v2@53aa51172d14"


def test_meaning_counts_more_than_words(embedder: Embedder) -> None:
    for sentence, same, other in SAME_AND_OTHER:
        one, two, three = embedder.embed([sentence, same, other])
        assert one @ two > one @ three, sentence


def test_a_question_finds_its_answer_among_many(embedder: Embedder) -> None:
    sentences = [text for pair in SAME_AND_OTHER for text in pair[1:]]
    known = embedder.embed(sentences)
    found = [sentences[int(np.argmax(known @ embedder.embed([pair[0]])[0]))] for pair in SAME_AND_OTHER]
    assert sum(hit == pair[1] for hit, pair in zip(found, SAME_AND_OTHER, strict=True)) >= 7


def test_rows_are_float32_of_length_one(embedder: Embedder) -> None:
    texts = ["one", "two words", "three or more words"] * 13
    vectors = embedder.embed(texts)
    assert vectors.shape == (39, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, 384)


def test_a_vector_depends_on_its_text_alone(embedder: Embedder) -> None:
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


def test_several_threads_share_it(embedder: Embedder) -> None:
    texts = [f"sentence number {number} about {number * 7}" for number in range(40)]
    expected = embedder.embed(texts)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(embedder.embed, [texts] * 8):
            assert np.abs(vectors - expected).max() < 1e-5


def test_after_close_it_says_so(configured: Settings) -> None:
    loaded = load_embedder(configured)
    loaded.embed(["something"])
    loaded.close()
    loaded.close()
    with pytest.raises(Unavailable, match="closed"):
        loaded.embed(["something"])


def test_no_network_is_asked(configured: Settings) -> None:
    program = """
import sys
calls = []
sys.addaudithook(lambda event, details: event.startswith("socket.") and calls.append((event, details)))
from kgserve.platform import settings
from kgserve.embedding.embedder import load_embedder
embedder = load_embedder(settings.load({"models_dir": sys.argv[1]}))
embedder.embed(["a question"])
print(embedder.degraded, [event for event, _ in calls if event in ("socket.connect", "socket.getaddrinfo")])
"""
    command = [sys.executable, "-c", program, str(configured.models_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


def test_without_a_model_words_must_do_and_the_log_says_what_helps(tmp_path: Path) -> None:
    with capture_log() as lines:
        loaded = load_embedder(Settings(data_dir=tmp_path))
    assert isinstance(loaded, HashingEmbedder)
    assert loaded.degraded
    (line,) = lines
    assert line["log_level"] == "warning"
    assert "kgserve model prepare" in line["reason"]
    assert list(tmp_path.iterdir()) == []


def test_another_model_that_is_not_there_names_the_command_that_brings_it(tmp_path: Path) -> None:
    with capture_log() as lines:
        load_embedder(Settings(data_dir=tmp_path, embedding_model="BAAI/bge-small-en-v1.5"))
    assert "kgserve model pull BAAI/bge-small-en-v1.5" in lines[0]["reason"]


@pytest.mark.parametrize("name", ["../elsewhere", "..", "", "a/b/c", "/etc", "a\0b"])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="not the name of a model"):
        load_embedder(Settings(data_dir=tmp_path, embedding_model=name))


@pytest.fixture
def copied(configured: Settings, tmp_path: Path) -> Settings:
    """The prepared model in a folder whose files may be replaced, not written to."""
    copy = msgspec.structs.replace(configured, models_dir=tmp_path)
    folder = model_folder(copy, PREPARED_MODEL)
    folder.mkdir()
    for file in model_folder(configured, PREPARED_MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    assert not load_embedder(copy).degraded
    return copy


@pytest.mark.parametrize("file", [MODEL_MANIFEST_FILE, "model.onnx", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("harm", ["missing", "flipped", "cut", "empty"])
def test_a_damaged_model_is_noticed_before_it_is_used(copied: Settings, file: str, harm: str) -> None:
    path = model_folder(copied, PREPARED_MODEL) / file
    data = bytearray(path.read_bytes())
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
    assert loaded.degraded
    assert "kgserve model prepare" in lines[0]["reason"]
