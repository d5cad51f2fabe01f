"""What was acknowledged outlives a power loss, though only what was synced is on the disk for certain."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kgserve
from bench.power_loss import disk
from bench.power_loss.recording import compile_recorder
from kgserve.library.face import Store
from kgserve.model.requests import NodeLine

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler makes what records the writes")

ROOT = Path(__file__).parents[2]
COMMITS = 8
MOMENTS = ("gone", "0", "6", "9", "closed")
"""Answers after which the power fails and nothing but what was synced is left."""
TORN = 3
SMALL = {"KGSERVE_JOURNAL_SEGMENT_MB": "1", "KGSERVE_JOURNAL_RETENTION_MB": "0", "KGSERVE_BUFFER_POOL_MB": "64"}
WORK = f"""
import os, sys
from pathlib import Path
import kgserve

data, record, life = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def say(what):
    print("said", what, record.stat().st_size, flush=True)

with kgserve.open(data, indexes=False) as library:
    store = library.store("s")
    if life == 0:
        library.store("gone").inject([{{"id": "a", "type": "t"}}])
        library.drop("gone", confirm="gone")
        say("gone")
    for number in range(life * {COMMITS}, (life + 1) * {COMMITS}):
        if number == {COMMITS} - 1:
            os.fdatasync = lambda _: os._exit(0)  # killed: written, and not synced
        new = {{"id": f"n{{number:02}}", "type": "t", "content": f"{{number:02}}" * 150_000}}
        sequence = store.inject([new, {{"id": "all", "type": f"t{{number}}"}}]).sequence
        say(number)
        if number % 3 == 2:
            list(store.nodes())
            store.node("all", as_of=sequence)
            with library.handle.use() as opened, opened.pool.lease("s") as leased:
                leased.compactor.run()
    store.cypher("MATCH (n:Entity) RETURN count(n)")
say("closed")
"""


class Worked:
    """A record of two processes that wrote, the first until it was killed, and its length at each answer."""

    def __init__(self, folder: Path) -> None:
        data, self.record = folder / "data", folder / "record"
        data.mkdir()
        recorder = {"LD_PRELOAD": str(compile_recorder(folder)), "RECORDED_FOLDER": str(data)}
        environment = {**SMALL, **recorder, "RECORD_FILE": str(self.record)}
        self.disk = disk.Disk(data)
        self.said: dict[str, int] = {}
        for life in ("0", "1"):
            command = [sys.executable, "-c", WORK, str(data), str(self.record), life]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
            lines = [line.split() for line in done.stdout.splitlines() if line.startswith("said ")]
            self.said |= {what: int(at) for _, what, at in lines}

    def acknowledged(self, at: int) -> int:
        """How many writes of the two processes had been answered by then, with that which was not."""
        return max((int(what) + 1 for what, when in self.said.items() if when <= at and what.isdecimal()), default=0)

    def states(self, left: Path) -> Iterator[int]:
        """Some lengths of the record; ``left`` is what the disk may have had then."""
        choice, last = random.Random(1), self.record.stat().st_size
        moments = {choice.randrange(last): "pages" for _ in range(TORN)}
        moments |= {self.said[what]: "nothing more" for what in MOMENTS}
        with self.record.open("rb") as file:
            records = disk.records(file)
            each = next(records, None)
            for at, manner in sorted(moments.items()):
                while each is not None and each.end <= at:
                    self.disk.take(each)
                    each = next(records, None)
                disk.survive(self.disk, left, manner, choice)
                yield at
                shutil.rmtree(left)


def test_what_was_acknowledged_is_there_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    worked, left = Worked(tmp_path), tmp_path / "left"
    for at in worked.states(left):
        least = worked.acknowledged(at)
        with kgserve.open(left, indexes=False) as library:
            names = {store.name for store in library.stores().stores}
            assert "gone" not in names or at < worked.said["gone"]
            assert "s" in names or not least
            if least:
                check(library.store("s"), least)


def check(store: Store, least: int) -> None:
    nodes = {line.id for line in store.export() if isinstance(line, NodeLine)}
    assert nodes >= {"all", *(f"n{number:02}" for number in range(least))}
    assert {node.id for node in store.nodes()} == nodes
    assert store.cypher("MATCH (n:Entity) RETURN count(n)").rows == [[len(nodes)]]
    store.node("all", as_of=store.stats().sequence)
    assert len(store.history("all", limit=100).states) == len(nodes) - 1
