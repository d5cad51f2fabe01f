"""`kgserve stop`."""

from __future__ import annotations

import signal
from pathlib import Path

from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.server_discovery import find_data_folder_lock_holder, find_running_server_of_data_folder
from tests.cli.mcp_stdio.editor import SMALL
from tests.cli.running import SERVER_TIMEOUT_SECONDS, kgserve, serving


def test_it_stops_the_server_of_a_folder_and_names_it(tmp_path: Path) -> None:
    with serving(tmp_path, variables=SMALL) as server:
        stopped = kgserve("stop", "--data", tmp_path)
        assert (stopped.code, stopped.err) == (0, "")
        assert stopped.out.startswith(f"stopped the server at {server.url} (process {server.process.pid})")
        assert (find_data_folder_lock_holder(tmp_path), find_running_server_of_data_folder(tmp_path)) == (None, None)
        assert server.process.wait(SERVER_TIMEOUT_SECONDS) == 0
    again = kgserve("stop", "--data", tmp_path)
    assert (again.code, again.out) == (3, "")
    assert f"no server is running for {tmp_path}" in again.err


def test_a_hung_server_is_killed_with_force(tmp_path: Path) -> None:
    with serving(tmp_path, variables=SMALL) as server:
        server.process.send_signal(signal.SIGSTOP)
        assert kgserve("stop", "--data", tmp_path, "--force").out.startswith("killed the server")
        assert server.process.wait(SERVER_TIMEOUT_SECONDS) == -signal.SIGKILL


def test_a_process_other_than_a_server_is_not_stopped(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path):
        refused = kgserve("stop", "--data", tmp_path)
    assert refused.code == 1
    assert "is no running server" in refused.err
