"""Control of the C library's allocator, which serves most of the engine's memory.

glibc creates up to eight arenas per core, and memory freed in one cannot be used by another. Two arenas per core keep
the resident size of a busy server from growing.
"""

from __future__ import annotations

import ctypes
import os
import sys

MAX_ARENAS_PER_CORE = 2
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def limit_malloc_arenas(limit: int = MAX_ARENAS_PER_CORE * (os.cpu_count() or 1)) -> None:
    """Limit the number of malloc arenas. Call before threads start; without glibc, it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, limit)


def release_free_memory() -> None:
    """Return free memory to the operating system, including what Arrow's own allocator has freed."""
    # While another thread is importing pyarrow, it has no pool yet.
    pool_of_arrow = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)
    if pool_of_arrow is not None:
        pool_of_arrow().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
