"""Settings of a store are recorded in its journal, and survive damage to store.json and interrupted changes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kgserve.admin.doctor import StoreCheckReport, StoreRepairOptions, repair_and_check_stores
from kgserve.errors import Conflict, Unavailable
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import (
    PLAIN_STORE_FORMAT,
    STORE_FORMAT,
    StoreDescription,
    StoreLayout,
    read_store_settings_records,
)
from tests.stores.writing import NAME, batch, flip, forget_close, layout, opened, settings, write

CHOSEN = StoreSettings(name="Team", conflict_policy="manual", kind_whitelist=("t",), metadata={"a": True}, history=7)
ALIKE = batch(*(f"n{number}" for number in range(1_000)), content="alike " * 20)
"""Nodes that the journal packs."""


@pytest.fixture
def files(tmp_path: Path) -> StoreLayout:
    """Create a store with three settings changes that was not closed cleanly."""
    with opened(tmp_path) as store:
        store.change_settings(lambda _: StoreSettings(name="first"))
        store.change_settings(lambda _: StoreSettings(name="second"))
        store.change_settings(lambda _: CHOSEN)
    forget_close(tmp_path)
    return layout(tmp_path)


def test_a_store_of_a_newer_format_is_refused_unchanged(files: StoreLayout, tmp_path: Path) -> None:
    found = files.description()
    assert found is not None
    files.describe(msgspec.structs.replace(found, format=STORE_FORMAT + 1))
    before = {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()}
    with pytest.raises(Conflict, match="newer version"), opened(tmp_path):
        pass
    [report] = repair_and_check_stores(settings(tmp_path), NAME, StoreRepairOptions())
    assert not report.ok
    assert "newer version" in report.findings[0].detail
    assert before == {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()}


def store_file(files: StoreLayout) -> Path:
    return files.root / "store.json"


def newest_record(files: StoreLayout) -> Path:
    return max(files.journal.glob("settings.*"), key=lambda path: int(path.suffix[1:]))


def gone(files: StoreLayout) -> None:
    store_file(files).unlink()


def cut(files: StoreLayout) -> None:
    store_file(files).write_bytes(store_file(files).read_bytes()[:40])


def rubbish(files: StoreLayout) -> None:
    store_file(files).write_bytes(b"\xff\0" * 50)


def killed_between(files: StoreLayout) -> None:
    """Simulate a kill between the journal record and store.json."""
    before = msgspec.json.decode(store_file(files).read_bytes(), type=StoreDescription)
    store_file(files).write_bytes(msgspec.json.encode(before.with_settings(StoreSettings(name="second"), 0)))


def record_flipped(files: StoreLayout) -> None:
    flip(newest_record(files), 60)


def records_gone(files: StoreLayout) -> None:
    """Simulate a store of an older version without settings records."""
    for path in files.journal.glob("settings.*"):
        path.unlink()


@pytest.mark.parametrize("damage", [gone, cut, rubbish, killed_between, record_flipped, records_gone])
def test_settings_survive_damage(files: StoreLayout, damage: Callable[[StoreLayout], None]) -> None:
    data = files.root.parent
    made = files.created_at()
    damage(files)
    described = files.description()
    assert described is not None
    assert (described.settings, described.created_at) == (CHOSEN, made)
    with opened(data) as store:
        assert store.description == described
    assert msgspec.json.decode(store_file(files).read_bytes(), type=StoreDescription) == described
    assert (
        msgspec.json.decode(next(read_store_settings_records(files.journal)) or b"", type=StoreDescription) == described
    )


def test_if_both_copies_are_damaged_earlier_settings_are_used(files: StoreLayout) -> None:
    record_flipped(files)
    gone(files)
    with opened(files.root.parent) as store:
        assert store.description.settings == StoreSettings(name="second")


def look(files: StoreLayout) -> StoreCheckReport:
    return next(repair_and_check_stores(settings(files.root.parent), NAME, StoreRepairOptions()))


@pytest.mark.parametrize(("damage", "said"), [(rubbish, "store.json is damaged"), (record_flipped, "in the journal")])
def test_the_doctor_reports_damaged_settings_once(
    files: StoreLayout, damage: Callable[[StoreLayout], None], said: str
) -> None:
    damage(files)
    (found,) = [each for each in look(files).findings if each.part == "settings"]
    assert not found.ok
    assert said in found.detail
    assert "without loss" in found.detail
    assert look(files).ok
    assert files.load_description().settings == CHOSEN


@contextmanager
def unwritable(folder: Path) -> Generator[None]:
    """Make temporary files in a folder unwritable: the name of the new file is a broken link."""
    blocked = [folder / f"{name}.new" for name in ("settings.5", "store.json")]
    for path in blocked:
        path.symlink_to("missing/file")
    try:
        yield
    finally:
        for path in blocked:
            path.unlink()


def test_a_settings_change_takes_effect_with_its_journal_record(files: StoreLayout) -> None:
    with opened(files.root.parent) as store:
        assert newest_record(files).name == "settings.4"
        with unwritable(files.journal), pytest.raises(Unavailable, match="changing the settings"):
            store.change_settings(lambda _: StoreSettings(name="refused"))
        assert store.description.settings == CHOSEN
        with unwritable(files.root):
            assert store.change_settings(lambda _: StoreSettings(name="held"))
    with opened(files.root.parent) as store:
        assert store.description.settings.name == "held"
    assert b"held" in store_file(files).read_bytes()
    assert len(list(files.journal.glob("settings.*"))) == 2


def test_the_format_is_raised_before_older_versions_cannot_read_the_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        assert described(tmp_path).format == PLAIN_STORE_FORMAT
        write(store, ALIKE)
        # Must hold even if the process is killed from here on.
        assert described(tmp_path).format == STORE_FORMAT
        store.change_settings(lambda _: CHOSEN)
        assert (described(tmp_path).format, described(tmp_path).settings) == (STORE_FORMAT, CHOSEN)
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert (store.description.format, store.state.nodes) == (STORE_FORMAT, 1_001)


def test_a_write_is_refused_if_the_format_cannot_be_raised(files: StoreLayout) -> None:
    data = files.root.parent
    with opened(data) as store:
        with unwritable(files.journal), pytest.raises(Unavailable, match="raising the format"):
            write(store, ALIKE)
        assert (store.state.sequence, described(data).format) == (0, PLAIN_STORE_FORMAT)
        write(store, ALIKE)
        assert described(data).format == STORE_FORMAT


def described(data: Path) -> StoreDescription:
    found = layout(data).description()
    assert found is not None
    return found
