"""Download of other models from the hub that fastembed uses, only by explicit command."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
from fastembed import TextEmbedding
from huggingface_hub import constants as hub

from kgserve.embedding import model_files
from kgserve.embedding.embedder import LocalEmbedder
from kgserve.errors import InvalidInput, KgserveError, Unavailable
from kgserve.platform.settings import Settings

HUB_TIMEOUT_SECONDS = 5.0
"""Timeout of a first request to the hub; without it an unreachable hub takes over 30 seconds to fail."""
DEFAULT_MAX_TOKENS = 512
MAX_MODEL_TOKENS = 1 << 16


def pull_model(settings: Settings, name: str, report: Callable[[str], None]) -> model_files.ModelManifest:
    """Install the model ``name``, downloading it from the hub unless it is installed.

    Raises InvalidInput for a model that fastembed does not know, Unavailable if the hub does not provide it.
    """
    known = _description(name)
    folder = model_files.get_embedding_model_folder(settings, known["model"])
    try:
        return model_files.read_verified_model_manifest(folder, known["model"])
    except Unavailable:
        _check_hub(known["sources"]["hf"])
    with model_files.replace_folder_atomically(folder) as new:
        report(f"fetching {known['sources']['hf']} ({known['size_in_GB']:.2f} GB) from {hub.ENDPOINT}")
        _download(known, new)
        manifest = _manifest(known, new)
        model_files.write_model_manifest(new, manifest)
        report("verifying the model on a sentence")
        _try(new, manifest)
    return manifest


def list_pullable_models() -> Iterable[str]:
    """Return the names of the models that can be pulled."""
    return sorted(model["model"] for model in TextEmbedding.list_supported_models() if _is_usable(model))


def _description(name: str) -> dict[str, Any]:
    for model in TextEmbedding.list_supported_models():
        if model["model"].lower() == name.lower() and _is_usable(model):
            return model
    raise InvalidInput(
        f"fastembed does not know the model {name!r}; available models: {', '.join(list_pullable_models())}"
    )


def _is_usable(model: dict[str, Any]) -> bool:
    return bool(model["sources"].get("hf")) and str(model["model_file"]).endswith(".onnx")


def _check_hub(repository: str) -> None:
    if hub.HF_HUB_OFFLINE:
        raise Unavailable("HF_HUB_OFFLINE is set, so the model hub cannot be used")
    try:
        answer = httpx.get(
            f"{hub.ENDPOINT}/api/models/{repository}", timeout=HUB_TIMEOUT_SECONDS, follow_redirects=True
        )
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unavailable(
            f"the model hub {hub.ENDPOINT} does not provide {repository} ({reason}); "
            "`kgserve model prepare` builds the default model without a hub"
        ) from None


def _download(known: dict[str, Any], folder: Path) -> None:
    cache = folder.parent / "hub"
    files = [known["model_file"], *known["additional_files"]]
    try:
        found = TextEmbedding.download_files_from_huggingface(known["sources"]["hf"], str(cache), extra_patterns=files)
        shutil.copytree(found, folder, dirs_exist_ok=True)  # the cache holds symlinks into its own store
    except Exception as error:  # errors of several libraries without a common base class
        raise Unavailable(f"{known['sources']['hf']} could not be fetched: {error}") from error
    shutil.rmtree(cache)


def _manifest(known: dict[str, Any], folder: Path) -> model_files.ModelManifest:
    files = model_files.compute_model_file_checksums(folder)
    weights = [files[name] for name in (known["model_file"], *known["additional_files"]) if name in files]
    if not weights:
        raise Unavailable(f"{known['sources']['hf']} does not contain {known['model_file']}")
    return model_files.ModelManifest(
        name=known["model"],
        dimensions=known["dim"],
        max_tokens=_max_tokens(folder),
        weights_sha256=_one_sum(weights),
        source=f"{hub.ENDPOINT}/{known['sources']['hf']}",
        files=files,
    )


def _one_sum(weights: list[model_files.FileChecksum]) -> str:
    if len(weights) == 1:
        return weights[0].sha256
    return hashlib.sha256("".join(each.sha256 for each in weights).encode()).hexdigest()


def _max_tokens(folder: Path) -> int:
    """Return the number of tokens that the model reads; some models' files omit it or say 1e30."""
    try:
        given = json.loads((folder / "tokenizer_config.json").read_bytes()).get("model_max_length")
    except (OSError, ValueError):
        given = None
    return given if isinstance(given, int) and 0 < given <= MAX_MODEL_TOKENS else DEFAULT_MAX_TOKENS


def _try(folder: Path, manifest: model_files.ModelManifest) -> None:
    embedder = LocalEmbedder(folder, manifest, threads=1, batch=1)
    try:
        embedder.embed(["A sentence."])
    except KgserveError:
        raise
    except Exception as error:
        raise Unavailable(f"{manifest.name} was downloaded, but does not work: {error}") from error
    finally:
        embedder.close()
