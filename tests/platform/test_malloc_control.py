"""Number of malloc arenas of a process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kgserve.platform.malloc_control import MAX_ARENAS_PER_CORE, release_free_memory

SPREADING = """
import ctypes, sys, threading
from kgserve.platform import malloc_control

if sys.argv[2] == "bound":
    malloc_control.limit_malloc_arenas()
count = int(sys.argv[3])
together = threading.Barrier(count)
libc = ctypes.CDLL(None)

def allocate():
    together.wait()
    ctypes.CDLL(None).malloc(1 << 16)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
malloc_control.release_free_memory()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has arenas")
def test_malloc_arenas_are_bounded(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1

    def arenas(how: str) -> int:
        told = tmp_path / how
        subprocess.run([sys.executable, "-c", SPREADING, told, how, str(6 * cores)], check=True, timeout=60)
        return told.read_text().count("<heap ")

    assert arenas("bound") <= MAX_ARENAS_PER_CORE * cores < arenas("free")


def test_a_partially_imported_pyarrow_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    release_free_memory()
