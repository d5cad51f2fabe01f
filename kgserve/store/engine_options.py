"""What the settings say about the engine's files."""

from __future__ import annotations

import threading

from kgserve.engine.engine import EngineOptions
from kgserve.engine.protocol import FileOptions
from kgserve.metrics.slow import SlowLog
from kgserve.settings import MEBIBYTE, Settings

LEAST_BESIDE_MB = 256
"""What an engine's process may take beside its page cache, at the least."""


def engine_options(settings: Settings, store: str, slow: SlowLog, closing: threading.Event) -> EngineOptions:
    """What the engine files of a store are opened with."""
    return EngineOptions(
        file=FileOptions(
            cache_bytes=settings.buffer_pool_mb * MEBIBYTE,
            threads=settings.engine_threads,
            memory_bytes=max(settings.engine_memory_mb - settings.buffer_pool_mb, LEAST_BESIDE_MB) * MEBIBYTE,
        ),
        readers=settings.read_connections,
        read_timeout=settings.query_timeout,
        store=store,
        slow=slow,
        closing=closing,
    )
