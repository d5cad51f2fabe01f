"""Damaged backups are rejected, and the error names the location."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kgserve.admin import backup as ops
from kgserve.errors import BackupDamaged, KgserveError
from kgserve.stores.backup.folder_layout import BackupFolder
from kgserve.stores.backup.restore import verify_backup
from kgserve.stores.pool import StorePool
from tests.stores.backup.holding import faults, files, make, manifest
from tests.stores.writing import NAME, flip, settings

FLIPS = 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "backup"))


def kinds(folder: Path) -> set[str]:
    return {path.suffix for path in files(folder)}


def test_an_intact_backup_is_accepted(whole: Path) -> None:
    assert faults(whole) == []
    assert kinds(whole) == {".json", ".parquet", ".sqlite", ".log"}, "the other tests would miss a kind of file"
    assert len(manifest(whole).bases[-1].runs) == 3


def test_any_flipped_bit_is_detected(copy: Path) -> None:
    source = random.Random(20_261_121)
    for _ in range(FLIPS):
        path = source.choice(files(copy))
        data = path.read_bytes()
        at = source.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << source.randrange(8))]) + data[at + 1 :])
        assert str(path) in " ".join(faults(copy)), f"{path} at {at}"
        path.write_bytes(data)
    assert faults(copy) == []


def test_any_truncated_or_extended_file_is_detected(copy: Path) -> None:
    source = random.Random(7)
    for path in files(copy):
        data = path.read_bytes()
        for changed in (data[: source.randrange(len(data))], data + b"\0"):
            path.write_bytes(changed)
            assert faults(copy), path
        path.write_bytes(data)


def test_any_missing_file_is_detected(copy: Path) -> None:
    for path in files(copy):
        aside = copy.parent / "aside"
        path.rename(aside)
        assert faults(copy), path
        aside.rename(path)


def test_swapped_files_are_detected(copy: Path) -> None:
    for first in files(copy):
        second = next(path for path in files(copy) if path.read_bytes() != first.read_bytes())
        one, other = first.read_bytes(), second.read_bytes()
        first.write_bytes(other)
        second.write_bytes(one)
        assert faults(copy), (first, second)
        first.write_bytes(one)
        second.write_bytes(other)


@pytest.mark.parametrize("place", [".", "stores", f"stores/{NAME}", f"stores/{NAME}/run-000001"])
def test_an_extra_file_is_detected(copy: Path, place: str) -> None:
    extra = copy / place / "extra"
    extra.write_text("not ours")
    assert str(extra) in " ".join(faults(copy))


def test_the_manifest_of_another_store_is_rejected(copy: Path) -> None:
    stores = copy / "stores"
    shutil.copytree(stores / NAME, stores / "other")
    assert faults(copy) == [], "a first backup that was interrupted before it was entered is not counted"
    with pytest.raises(BackupDamaged, match="belongs to store"):
        BackupFolder(copy).store("other").read()


def test_the_first_damaged_frame_of_a_journal_is_named(copy: Path) -> None:
    piece = manifest(copy).bases[-1].pieces[0]
    path = copy / "stores" / NAME / piece.file.path
    flip(path, 100)
    assert "a frame whose checksum does not fit at offset 0" in faults(copy)[0]
    with pytest.raises(BackupDamaged, match=str(path)):
        list(_restore(copy))


def _restore(folder: Path) -> list[str]:
    with StorePool(settings(folder.parent / "data")) as pool:
        try:
            ops.restore_stores(pool, folder, [ops.StoreRestoreSpec(NAME, "again")])
        finally:
            assert pool.names() == []
            assert [path.name for path in pool.data_dir.iterdir()] == []
        return pool.names()


def test_a_damaged_file_prevents_a_restore(copy: Path) -> None:
    source = random.Random(3)
    used = [copy / "stores" / NAME / file.path for file in manifest(copy).bases[-1].files]
    for path in used:
        data = path.read_bytes()
        flip(path, source.randrange(len(data)))
        with pytest.raises(KgserveError) as refused:
            _restore(copy)
        assert str(path.name) in refused.value.message or str(path.parent) in refused.value.message
        path.write_bytes(data)


def test_verify_reports_the_covered_range(whole: Path) -> None:
    found = next(iter(verify_backup(BackupFolder(whole))))
    base = found.bases[-1]
    assert (base.last, found.leftovers) == (14, 0)
    assert base.first == 9
