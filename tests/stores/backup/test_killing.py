"""A backup or restore killed at any moment leaves the previous state intact."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.admin import backup as ops
from kgserve.stores.backup.create import BackupOptions
from kgserve.stores.pool import StorePool
from tests.cli.running import environment, kgserve
from tests.cli.running import start_command as begun_process
from tests.stores.backup.holding import LONG, faults, manifest, restored
from tests.stores.writing import NAME, PATIENCE, batch, ids, opened, settings, write

KILLS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "data"
    with opened(folder, journal_segment_mb=1) as store:
        for turn in range(4):
            write(store, *(batch(f"{turn}-{n}", content=LONG * 40) for n in range(8)))
        store.compactor.run()
        write(store, batch("last"))
    return folder


def killed(arguments: list[str], begun: Path, source: random.Random) -> bool:
    """Start a command and kill it shortly after it began to write. Return whether it was still running."""
    with Path(os.devnull).open("w") as nothing:
        process = begun_process((), arguments, environment(), nothing, nothing)
    deadline = time.monotonic() + PATIENCE
    while not any(begun.parent.glob(begun.name)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(source.random() * 0.03)
    process.kill()
    with closing(process):
        return process.wait(PATIENCE) != 0


def test_a_killed_backup_keeps_the_previous_one(data: Path, tmp_path: Path) -> None:
    folder, source, cut = tmp_path / "backup", random.Random(5), 0
    with StorePool(settings(data)) as pool:
        ops.back_up_single_store(pool, folder, NAME, BackupOptions(live=False))
    before = manifest(folder)
    for turn in range(KILLS):
        with opened(data) as store:
            write(store, batch(f"more {turn}", content=LONG * 40))
            last = store.state.sequence
        number = manifest(folder).runs.stop
        full = ["--full"] if turn % 2 else []
        command = ["backup", "--to", str(folder), "--data", str(data), *full]
        cut += killed(command, folder / "stores" / NAME / f"run-{number:06d}", source)
        assert faults(folder) == []
        now = manifest(folder)
        assert now == before or now.bases[-1].last.sequence == last
        before = now
    assert kgserve("backup", "--to", folder, "--data", data).code == 0
    with StorePool(settings(tmp_path / "again")) as pool:
        assert ids(restored(pool, folder)) == sorted(
            [*(f"{turn}-{n}" for turn in range(4) for n in range(8)), "last", *(f"more {n}" for n in range(KILLS))]
        )


def test_a_killed_restore_leaves_no_store(data: Path, tmp_path: Path) -> None:
    folder, source = tmp_path / "backup", random.Random(6)
    with StorePool(settings(data)) as pool:
        ops.back_up_single_store(pool, folder, NAME, BackupOptions(live=False))
        rows, state = ids(pool.acquire(NAME)), pool.acquire(NAME).state
    into = tmp_path / "into"
    for _ in range(KILLS):
        command = ["restore", str(folder), "--data", str(into)]
        killed(command, into / ".dropped-*", source)
        with StorePool(settings(into)) as pool:
            assert [path.name for path in into.glob(".dropped-*")] == [], "what was left is cleared away"
            assert pool.names() in ([], [NAME])
            for name in pool.names():
                store = pool.acquire(name)
                assert (ids(store), store.state) == (rows, state)
        shutil.rmtree(into)
    assert faults(folder) == []
