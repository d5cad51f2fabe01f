"""Lock of a data folder, and discovery of its server by local clients."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kgserve.errors import Conflict
from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.server_discovery import (
    SERVER_FILE,
    SERVER_LOCK_FILE,
    DiscoveredServer,
    find_running_server_of_data_folder,
)
from kgserve.platform.version import __version__

HOLD = """
import sys, time
from pathlib import Path
from kgserve.platform.data_folder_lock import DataFolderLock
with DataFolderLock(Path(sys.argv[1])) as lock:
    lock.publish("http://127.0.0.1:1", "secret")
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_naming_the_lock_holder(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict) as refused:
            DataFolderLock(tmp_path).acquire()
        assert f"process {holder.pid} at http://127.0.0.1:1" in refused.value.message
        assert find_running_server_of_data_folder(tmp_path) == DiscoveredServer(
            "http://127.0.0.1:1", "secret", pid=holder.pid, version=__version__
        )
        holder.kill()
    assert (tmp_path / SERVER_FILE).exists()
    assert find_running_server_of_data_folder(tmp_path) is None
    with DataFolderLock(tmp_path):
        assert find_running_server_of_data_folder(tmp_path) is None


def test_server_json_is_readable_by_its_user_only(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path) as lock:
        lock.publish("http://127.0.0.1:1", "secret")
        for name in (SERVER_FILE, SERVER_LOCK_FILE):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        found = find_running_server_of_data_folder(tmp_path)
        assert found is not None
        assert found.pid == os.getpid()
    assert not (tmp_path / SERVER_FILE).exists()
    assert find_running_server_of_data_folder(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"pid":"x","url":1,"token":2}', b"\xff\xfe\xff"])
def test_an_unreadable_server_json_is_ignored(tmp_path: Path, content: bytes) -> None:
    with DataFolderLock(tmp_path):
        (tmp_path / SERVER_FILE).write_bytes(content)
        assert find_running_server_of_data_folder(tmp_path) is None


def test_a_missing_folder_has_no_server(tmp_path: Path) -> None:
    assert find_running_server_of_data_folder(tmp_path / "nowhere") is None


def test_discovery_does_not_prevent_a_server_start(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path)
    for _ in range(20):
        with lock:
            lock.publish("http://127.0.0.1:1", "secret")
            assert find_running_server_of_data_folder(tmp_path) is not None
        assert find_running_server_of_data_folder(tmp_path) is None
    lock.release()
