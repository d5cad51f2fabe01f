"""The simulated power loss: without losing unsynced data it would prove nothing."""

import os
from pathlib import Path

import pytest

from bench import cluster_machines, lossy_disk
from bench.lossy_disk import LossyDisk


def test_only_synced_data_survives(tmp_path: Path) -> None:
    if why := cluster_machines.missing_prerequisite() or lossy_disk.missing_disk_prerequisite():
        pytest.skip(why)
    folder = tmp_path / "disk"
    disk = LossyDisk(folder, 16)
    try:
        with (folder / "file").open("wb", buffering=0) as file:
            file.write(b"synced")
            os.fsync(file.fileno())
            file.write(b" and not")
        (folder / "other").write_bytes(b"never synced")
        disk.lose_unsynced()
        assert (folder / "file").read_bytes() == b"synced"
        assert [each.name for each in folder.iterdir()] == ["file"]
        (folder / "other").write_bytes(b"it can be written to again")
    finally:
        disk.unmount()
