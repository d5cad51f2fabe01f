"""Libraries in C that a program is started with, and that stand between it and the system."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMPILER = "cc"


def compiled(source: Path, folder: Path) -> Path:
    """The library of a C file, made in a folder. Raises CalledProcessError."""
    made = folder / f"{source.stem}.so"
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-D_LARGEFILE64_SOURCE", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return made
