"""Imports that servers and engine processes avoid."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from kgserve.platform import startup_imports
startup_imports.avoid_rich_and_numpy_threads_at_import()
startup_imports.import_httpx_without_its_command()
import httpx, numpy, structlog
print(len(os.listdir("/proc/self/task")), "rich" in sys.modules)
"""


@pytest.mark.parametrize(("chosen", "said"), [(None, "1 False"), ("2", f"{min(2, os.cpu_count() or 1)} False")])
def test_numpy_starts_no_extra_threads_and_rich_is_not_imported(chosen: str | None, said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}  # noqa: TID251
    if chosen:
        environment["OPENBLAS_NUM_THREADS"] = chosen
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == said
