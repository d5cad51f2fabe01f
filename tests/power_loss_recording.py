"""Python programs with recorded file operations, and the disk states after a power loss."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.power_loss import disk
from bench.power_loss.recording import compile_recorder
from bench.preload import COMPILER

ROOT = Path(__file__).parents[1]
SEED = 1

needs_compiler = pytest.mark.skipif(not shutil.which(COMPILER), reason="a C compiler is needed for the recorder")


class RecordedPrograms:
    """An empty folder, and the record of programs' operations on it.

    `said` maps a program's words to record lengths.
    """

    def __init__(self, folder: Path) -> None:
        self.data, self.left, self._record = folder / "data", folder / "left", folder / "record"
        self.data.mkdir()
        self._record.touch()
        self._recorder = compile_recorder(folder)
        self._disk = disk.RecordedDisk(self.data)
        self.said: dict[str, int] = {}

    @property
    def length(self) -> int:
        """Length of the record in bytes."""
        return self._record.stat().st_size

    def run(self, program: str, *arguments: str, environment: Mapping[str, str]) -> None:
        """Run a program on the folder, available as ``data``; it may ``say`` words and exit as it likes."""
        head = (
            "import os, sys\nfrom pathlib import Path\ndata, record = Path(sys.argv[1]), Path(sys.argv[2])\n"
            "def say(what): print('said', what, record.stat().st_size, flush=True)\n"
        )
        more = {"LD_PRELOAD": str(self._recorder), "RECORDED_FOLDER": str(self.data), "RECORD_FILE": str(self._record)}
        command = [sys.executable, "-c", head + program, str(self.data), str(self._record), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env={**environment, **more}, capture_output=True, text=True, check=True
        )
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("said ")]
        self.said |= {what: int(at) for _, what, at in lines}

    def states(self, moments: Mapping[int, str]) -> Iterator[int]:
        """Yield each length of the record per manner of loss, in order, with `left` as the disk's state."""
        choice = random.Random(SEED)
        with self._record.open("rb") as file:
            records = disk.records(file)
            each = next(records, None)
            for at, manner in sorted(moments.items()):
                while each is not None and each.end <= at:
                    self._disk.take(each)
                    each = next(records, None)
                disk.write_surviving_state(self._disk, self.left, manner, choice)
                yield at
                shutil.rmtree(self.left)
