"""File descriptors: how many this process has, how many it may have, and how many its settings need."""

from __future__ import annotations

import os
import resource

from kgserve.platform.settings import Settings

DESCRIPTORS_PER_STORE = 24
"""Descriptors that an open store needs at most at a time, with its projections."""
DESCRIPTORS_PER_ENGINE = 4
BASE_DESCRIPTORS = 64
"""Descriptors that the process itself needs: libraries, logs, pipes, the listener, and those of one opening store."""
_FOLDER_OF_DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - at import


def get_descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 30) if soft == resource.RLIM_INFINITY else soft


def count_free_descriptors() -> int:
    """Return how many more descriptors this process may open; 0 if it cannot even count them."""
    try:
        return get_descriptor_limit() - len(os.listdir(_FOLDER_OF_DESCRIPTORS))  # noqa: PTH208 - names only
    except OSError:
        return 0


def count_needed_descriptors(settings: Settings) -> int:
    """Return how many descriptors the limits of the settings allow to be in use at the same time."""
    return (
        BASE_DESCRIPTORS
        + settings.max_connections
        + settings.max_open_stores * DESCRIPTORS_PER_STORE
        + settings.engine_processes * DESCRIPTORS_PER_ENGINE
    )


def compute_max_connections(settings: Settings) -> int:
    """Return how many connections may be open: the setting, or half of what the process has if that is less."""
    return min(settings.max_connections, max(8, (get_descriptor_limit() - BASE_DESCRIPTORS) // 2))
