from __future__ import annotations

import re
from pathlib import Path

from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.server.app import (
    MemoryAndDiskCapacity,
    ResourceLimitExceedingMachine,
    find_limits_exceeding_machine,
    measure_machine_memory_and_disk,
)
from tests.stores.writing import settings

GIBIBYTE = 1 << 30


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def a_system(root: Path, groups: str) -> Path:
    """Write the files of a system with 8 GiB and a process in some control groups."""
    return write(root, proc__meminfo="MemTotal:  8388608 kB\nMemFree: 1 kB\n", proc__self__cgroup=groups)


def test_memory_is_the_installed_memory_without_a_group_limit(tmp_path: Path) -> None:
    assert measure_machine_memory_and_disk(tmp_path, a_system(tmp_path, "0::/a/b\n")).memory == 8 * GIBIBYTE
    write(tmp_path, **{"sys__fs__cgroup__a__memory.max": "max\n"})
    assert measure_machine_memory_and_disk(tmp_path, tmp_path).memory == 8 * GIBIBYTE


def test_the_lowest_group_limit_applies(tmp_path: Path) -> None:
    a_system(tmp_path, "1:cpu:/\n0::/a/b\n")
    write(tmp_path, **{"sys__fs__cgroup__a__b__memory.max": f"{3 * GIBIBYTE}", "sys__fs__cgroup__a__memory.max": "max"})
    assert measure_machine_memory_and_disk(tmp_path, tmp_path).memory == 3 * GIBIBYTE
    write(tmp_path, **{"sys__fs__cgroup__a__memory.max": f"{2 * GIBIBYTE}\n"})
    assert measure_machine_memory_and_disk(tmp_path, tmp_path).memory == 2 * GIBIBYTE
    write(tmp_path, **{"sys__fs__cgroup__memory.max": f"{GIBIBYTE}\n"})
    assert measure_machine_memory_and_disk(tmp_path, tmp_path).memory == GIBIBYTE


def test_limits_of_cgroup_v1_apply(tmp_path: Path) -> None:
    a_system(tmp_path, "4:cpu,memory:/docker/x\n0::/\n")
    write(tmp_path, **{"sys__fs__cgroup__memory__memory.limit_in_bytes": f"{GIBIBYTE}"})
    assert measure_machine_memory_and_disk(tmp_path, tmp_path).memory == GIBIBYTE


def test_unknown_limits_are_not_compared(tmp_path: Path) -> None:
    found = measure_machine_memory_and_disk(tmp_path / "nothing", tmp_path)
    assert found == MemoryAndDiskCapacity(None, None)
    assert find_limits_exceeding_machine(Settings(engine_processes=1_000_000), found) == []


def test_memory_and_disk_of_this_machine_are_found(tmp_path: Path) -> None:
    found = measure_machine_memory_and_disk(tmp_path)
    assert found.memory is not None
    assert found.memory > 64 * MEBIBYTE
    assert found.disk


def test_each_limit_exceeded_alone_is_reported(tmp_path: Path) -> None:
    large = MemoryAndDiskCapacity(1 << 50, 1 << 50)
    small = MemoryAndDiskCapacity(2 * GIBIBYTE, GIBIBYTE)
    chosen = settings(tmp_path, engine_processes=2, engine_memory_mb=1024, max_open_stores=8, max_connections=8)
    assert find_limits_exceeding_machine(Settings(), large) == []
    assert [each.what for each in find_limits_exceeding_machine(Settings(), small)] == [
        "engines",
        "open stores",
        "request bodies",
        "a store",
    ]
    assert [each.what for each in find_limits_exceeding_machine(chosen, small)] == ["a store"]
    more = settings(tmp_path, engine_processes=3, max_open_stores=8, max_connections=8, history_mb=1)
    assert find_limits_exceeding_machine(more, small) == [
        ResourceLimitExceedingMachine("engines", "engine_processes * engine_memory_mb", 3072, 2048)
    ]


def test_reported_excesses_name_existing_settings() -> None:
    names = {
        name
        for each in find_limits_exceeding_machine(Settings(), MemoryAndDiskCapacity(1, 1))
        for name in re.findall(r"[a-z_]{4,}", each.settings)
    }
    assert names <= set(Settings.__struct_fields__)
