"""Memory settings of a store, defaults from the server's settings, and stores older than both."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kgserve.platform.settings import Settings, load_settings
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.projections.memory_index.confidence_decay import memory_half_lives_from_settings
from kgserve.storage.model.store_settings import (
    MemorySettings,
    MemorySettingsChange,
    StoreSettings,
    default_store_settings,
)
from kgserve.storage.store_folder_layout import StoreDescription
from tests.stores.writing import layout, opened

NAMES = MemorySettings.__struct_fields__


def test_every_memory_setting_can_be_changed_and_preset() -> None:
    assert MemorySettingsChange.__struct_fields__ == NAMES
    preset = [name.removeprefix("memory_") for name in Settings.__struct_fields__ if name.startswith("memory_")]
    assert preset == [name for name in NAMES if name != "half_life_by_type"]
    assert default_store_settings(Settings()) == StoreSettings()


def test_a_settings_change_is_merged_by_field() -> None:
    before = MemorySettings(alpha=0.7, half_life_by_type={"fact": 90.0})
    assert MemorySettingsChange().applied_to(before) == before
    change = msgspec.convert({"half_life_days": None, "alpha": None, "dedup": "off"}, MemorySettingsChange)
    after = change.applied_to(before)
    assert (after.half_life_days, after.alpha, after.dedup) == (None, 0.7, "off")
    assert memory_half_lives_from_settings(after).of("fact") == 90 * DAY_MICROSECONDS
    assert memory_half_lives_from_settings(after).of("preference") is None


def test_environment_variables_apply_to_new_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGSERVE_MEMORY_HALF_LIFE_DAYS", "null")
    monkeypatch.setenv("KGSERVE_MEMORY_PRUNE", "delete")
    found = default_store_settings(load_settings()).memory
    assert (found.half_life_days, found.prune, found.reinforcement) == (None, "delete", "restore")


def test_a_number_as_reinforcement_sets_the_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    older = msgspec.convert({"reinforcement": 0.2}, MemorySettings)
    assert (older.reinforcement, older.reinforcement_amount) == ("restore", 0.2)
    adds = MemorySettingsChange(reinforcement="add").applied_to(older)
    assert (adds.reinforcement, adds.reinforcement_amount) == ("add", 0.2)
    again = MemorySettingsChange(reinforcement=0.3).applied_to(adds)
    assert (again.reinforcement, again.reinforcement_amount) == ("add", 0.3)
    monkeypatch.setenv("KGSERVE_MEMORY_REINFORCEMENT", "0.4")
    assert default_store_settings(load_settings()).memory.reinforcement_amount == 0.4


def test_an_older_store_has_default_memory_settings(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.change_settings(lambda _: StoreSettings(name="old"))
    written = layout(tmp_path).root / "store.json"
    older = msgspec.json.decode(written.read_bytes())
    del older["memory"]
    assert msgspec.convert(older, StoreDescription).settings == StoreSettings(name="old")
