"""What a process of a server settles before it imports the rest: a fifth of what its start takes."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def import_lightly() -> None:
    """Have numpy begin no threads, which spin for 30 ms when it is imported, and structlog do without rich.

    Neither is used: vectors are multiplied by one thread, and rows of the log are never coloured by rich. Who sets
    `OPENBLAS_NUM_THREADS` keeps it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # noqa: TID251 - it is set for numpy, and no setting of ours
    before = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]  # taken for one that is not installed, as `import` wants it
    try:
        import_module("structlog")
    finally:
        sys.modules["rich"] = before  # type: ignore[assignment]  # as above
        if before is None:
            del sys.modules["rich"]
