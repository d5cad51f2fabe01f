"""Import settings of server processes, which shorten their start, and of their child processes."""

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
    before = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` fail as if not installed
    try:
        import_module("structlog")
    finally:
        sys.modules["rich"] = before  # type: ignore[assignment]  # as above
        if before is None:
            del sys.modules["rich"]


def build_child_process_environment() -> dict[str, str]:
    """Return this process's environment, with which a new one imports this package from any working directory."""
    path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
    return {**os.environ, "PYTHONPATH": path}  # noqa: TID251 - only passed on
