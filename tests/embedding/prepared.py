"""Real embedding model for tests of meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.embedding.model_files import PREPARED_MODEL, get_embedding_model_folder, read_verified_model_manifest
from kgserve.errors import Unavailable
from kgserve.platform import settings
from kgserve.platform.settings import Settings


def model_settings() -> Settings:
    """Return settings for the prepared model; skip the test if `make setup` could not prepare it."""
    found = settings.load_settings(
        {"models_dir": settings.load_settings().models_dir or Path("kgserve-data/models").absolute()}
    )
    try:
        read_verified_model_manifest(get_embedding_model_folder(found, PREPARED_MODEL), PREPARED_MODEL)
    except Unavailable as reason:
        pytest.skip(reason.message)
    return found
