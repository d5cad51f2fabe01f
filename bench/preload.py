"""C libraries that are preloaded into a program to intercept its system calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMPILER = "cc"


def compile_preload_library(source: Path, folder: Path) -> Path:
    """Compile a C file to a shared library in a folder. Raises CalledProcessError."""
    made = folder / f"{source.stem}.so"
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-D_LARGEFILE64_SOURCE", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return made
