"""The C library's allocator, which most memory of the engine goes through.

glibc makes an arena for every thread that finds the others busy, up to eight a core, and what is freed in one serves no
other. Measured on two cores, four small stores under writes for minutes: a resident size of 810 growing to 850 MiB with
sixteen arenas, of which 145 to 280 MB were in use; 600 to 625 MiB, and no growth, with four.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS_PER_CORE = 2
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def bound_arenas(most: int = ARENAS_PER_CORE * (os.cpu_count() or 1)) -> None:
    """Have so many arenas, two a core. To be called before there are threads; does nothing where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, most)


def give_back() -> None:
    """Return what is free to the system: what a closed engine has freed stays with the process otherwise.

    So does what Arrow, which has an allocator of its own, has freed.
    """
    # Another thread may just be importing it, and then it has no pool yet.
    pool_of_arrow = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)
    if pool_of_arrow is not None:
        pool_of_arrow().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
