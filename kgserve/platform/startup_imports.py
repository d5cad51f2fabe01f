"""Imports that shorten the start of servers and of programs with a client, and of child processes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path


def avoid_rich_and_numpy_threads_at_import() -> None:
    """Import structlog without rich, and keep numpy from starting threads.

    Neither is needed: vectors are multiplied in one thread, and log lines are not rendered by rich. An existing value
    of `OPENBLAS_NUM_THREADS` is kept.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # noqa: TID251 - numpy's variable, not a setting of kgserve
    _import_without("structlog", "rich")


def import_httpx_without_its_command() -> None:
    """Import httpx without click, pygments and rich, which only the command `httpx` needs."""
    _import_without("httpx", "httpx._main")


def _import_without(module: str, missing: str) -> None:
    """Import a module while another one cannot be imported, as if it were not installed."""
    before = sys.modules.get(missing)
    sys.modules[missing] = None  # type: ignore[assignment]  # makes its import fail
    try:
        import_module(module)
    finally:
        sys.modules[missing] = before  # type: ignore[assignment]  # as above
        if before is None:
            del sys.modules[missing]


def build_child_process_environment() -> dict[str, str]:
    """Return this process's environment, with which a new one imports this package from any working directory."""
    path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
    return {**os.environ, "PYTHONPATH": path}  # noqa: TID251 - only passed on
