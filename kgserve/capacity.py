"""What the settings allow a server to take, beside what the machine has: told when it starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from kgserve.settings import MEBIBYTE, Settings

STORE_MB = 80
"""What an open store may keep in memory of commits that its files do not have yet: rows and memories."""
_SEGMENTS = 2


class Machine(msgspec.Struct, frozen=True):
    """Bytes of memory that this process may take, and of the disk that the data folder is on; None where not known."""

    memory: int | None
    disk: int | None


class Excess(msgspec.Struct, frozen=True):
    """Something that the settings allow more of than there is, in MiB, and the settings that decide."""

    what: str
    settings: str
    allowed_mb: int
    machine_mb: int


def machine(folder: Path, root: Path = Path("/")) -> Machine:
    """What there is, as the files of a system below ``root`` say it: the least of its memory and its groups' limits."""
    found = [*_installed(root), *_group_limits(root)]
    disk: int | None = None
    with suppress(OSError):
        disk = shutil.disk_usage(folder).total
    return Machine(min(found, default=None), disk)


def excesses(settings: Settings, there: Machine) -> list[Excess]:
    """The limits that alone allow more than a machine has."""
    memory = [
        ("engines", "engine_processes * engine_memory_mb", settings.engine_processes * settings.engine_memory_mb),
        ("open stores", f"max_open_stores * {STORE_MB}", settings.max_open_stores * STORE_MB),
        ("request bodies", "max_connections * max_body_mb", settings.max_connections * settings.max_body_mb),
    ]
    segments = _SEGMENTS * max(settings.journal_segment_mb, settings.compact_wal_mb)
    store = settings.journal_retention_mb + segments + settings.history_mb
    disk = [("a store", "journal_retention_mb + history_mb", store)]
    return [*_beyond(memory, there.memory), *_beyond(disk, there.disk)]


def _beyond(limits: list[tuple[str, str, int]], there: int | None) -> Iterator[Excess]:
    if there is None:
        return
    for what, names, allowed in limits:
        if allowed * MEBIBYTE > there:
            yield Excess(what, names, allowed, there // MEBIBYTE)


def _installed(root: Path) -> Iterator[int]:
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) << 10


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of this process's control group and of those above it, in either version."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")


def _limits(top: Path, path: str, name: str) -> Iterator[int]:
    # Within a container the path may be that of the host, and the group's files are at the top.
    inner = top / path.strip("/")
    for folder in (inner, *inner.parents):
        with suppress(OSError, ValueError):
            yield int((folder / name).read_text())
        if folder == top:
            return
