"""Discovery and start of servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from kgserve.platform import server_discovery
from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.server_discovery import (
    DiscoveredServer,
    ServerLaunchFailed,
    assume_server_at_address,
    ensure_server_running,
    find_data_folder_lock_holder,
    find_running_server_of_data_folder,
    is_server_ready,
    replace_older_server,
    replace_wildcard_host_in_url,
    resolve_data_folder,
    resolve_server_at_url,
)
from kgserve.platform.settings import Settings
from kgserve.platform.version import __version__
from tests.cli.mcp_stdio.editor import SMALL, editing, end, ending
from tests.cli.running import SERVER_TIMEOUT_SECONDS, environment, serving
from tests.stores.writing import until


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of the servers that these tests start."""
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)


def test_discovery_defaults_equal_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings()
    given = (server_discovery.DEFAULT_DATA_FOLDER, server_discovery.DEFAULT_HOST, server_discovery.DEFAULT_PORT)
    assert given == (str(settings.data_dir), settings.host, str(settings.port))
    assert server_discovery.resolve_mcp_tool_call_timeout() == settings.call_timeout
    for text, seconds in (("7", 7.0), ("0", 60.0), ("inf", 60.0), ("soon", 60.0)):
        monkeypatch.setenv("KGSERVE_CALL_TIMEOUT", text)
        assert server_discovery.resolve_mcp_tool_call_timeout() == seconds
    places = {field.name for field in msgspec.structs.fields(Settings) if Path in get_args(get_args(field.type)[0])}
    assert {f"KGSERVE_{name.upper()}" for name in places} == set(server_discovery.PATH_VARIABLES)
    monkeypatch.chdir(tmp_path)
    assert resolve_data_folder() == tmp_path / "kgserve-data"
    monkeypatch.setenv("KGSERVE_DATA_DIR", "elsewhere")
    assert resolve_data_folder() == tmp_path / "elsewhere"
    assert resolve_data_folder("/data") == Path("/data")


def test_an_address_to_listen_on_becomes_one_to_connect_to() -> None:
    assert replace_wildcard_host_in_url("http://0.0.0.0:8080") == "http://127.0.0.1:8080"
    assert replace_wildcard_host_in_url("http://[::]:8080/") == "http://[::1]:8080"
    assert replace_wildcard_host_in_url("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"


def test_the_server_at_a_url_is_matched_with_its_own_folder(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path) as lock:
        lock.publish("http://0.0.0.0:80", "secret", "PEM")
        known = DiscoveredServer("http://127.0.0.1:80", "secret", "PEM", os.getpid(), __version__)
        assert find_running_server_of_data_folder(tmp_path) == known
        for url in ("http://127.0.0.1:80", "http://127.0.0.1", "http://0.0.0.0:80", "http://127.0.0.1:80/below"):
            assert resolve_server_at_url(f"{url}/", tmp_path) == known._replace(url=url)
        assert resolve_server_at_url("http://127.0.0.1:81", tmp_path) == DiscoveredServer("http://127.0.0.1:81")
    assert resolve_server_at_url("http://127.0.0.1:80", tmp_path) == DiscoveredServer("http://127.0.0.1:80")
    assert assume_server_at_address("::", 1, tls=True) == DiscoveredServer("https://[::1]:1")


def test_a_key_replaces_the_token() -> None:
    found = DiscoveredServer("http://127.0.0.1:80", "secret")
    assert found.headers == found.with_key(None).headers == {"Authorization": "Bearer secret"}
    assert found.with_key("mine").headers == {"Authorization": "Bearer mine"}
    assert DiscoveredServer(found.url).headers == {}


def test_nothing_is_found_in_an_empty_folder(tmp_path: Path) -> None:
    assert find_running_server_of_data_folder(tmp_path) is None
    assert find_running_server_of_data_folder(tmp_path / "none") is None
    assert not is_server_ready(DiscoveredServer("http://127.0.0.1:9"))


def test_ten_concurrent_starts_make_one_server_that_later_ones_find(tmp_path: Path) -> None:
    with ending(tmp_path):
        with ThreadPoolExecutor(10) as threads:
            servers = set(threads.map(ensure_server_running, [tmp_path] * 10))
        (server,) = servers
        assert ensure_server_running(tmp_path) == find_running_server_of_data_folder(tmp_path) == server
        assert (tmp_path / "server.log").read_text().count("listening on") == 1
        assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600

        end(tmp_path, signal.SIGKILL)
        following = ensure_server_running(tmp_path)
        assert following.pid not in {None, server.pid}
        assert is_server_ready(following)

        end(tmp_path, signal.SIGTERM)  # it still holds the folder while it stops, and may answer once more
        until(lambda: ensure_server_running(tmp_path).pid != following.pid)
        assert is_server_ready(ensure_server_running(tmp_path))


def test_an_occupied_port_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, ending(tmp_path):
        port = taken.getsockname()[1]
        monkeypatch.setenv("KGSERVE_PORT", str(port))
        server = ensure_server_running(tmp_path)
        assert server.url.startswith("http://127.0.0.1:")
        assert not server.url.endswith(f":{port}")


def test_the_configured_port_is_used_when_free_and_a_long_log_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("KGSERVE_PORT", str(port))
    (tmp_path / "server.log").write_bytes(b"x" * (server_discovery.MAX_SERVER_LOG_BYTES + 1))
    with ending(tmp_path):
        assert ensure_server_running(tmp_path).url == f"http://127.0.0.1:{port}"
        assert (tmp_path / "server.log").stat().st_size < 1000
        assert (tmp_path / "server.log.1").stat().st_size == server_discovery.MAX_SERVER_LOG_BYTES + 1


def test_a_server_that_another_process_starts_is_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def start() -> None:
        with serving(data, variables=SMALL):
            started.wait()

    started = threading.Event()
    other = threading.Thread(target=start)
    other.start()
    try:
        until(lambda: find_data_folder_lock_holder(data) is not None)
        assert find_running_server_of_data_folder(data) is None, "it holds the folder but does not listen yet"
        assert is_server_ready(ensure_server_running(data))
        assert not (data / "server.log").exists()
    finally:
        started.set()
        other.join()


def test_a_folder_locked_by_a_process_other_than_a_server_is_an_error(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path), pytest.raises(ServerLaunchFailed, match=r"process \d+ holds .*is no running server"):
        ensure_server_running(tmp_path, patience=0.5)


def test_a_hung_server_is_an_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, variables=SMALL) as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(ServerLaunchFailed, match="does not respond"):
                ensure_server_running(data, patience=0.5)
            assert time.monotonic() - started < SERVER_TIMEOUT_SECONDS
        finally:
            server.process.send_signal(signal.SIGCONT)


def variables_of(process: int | None) -> dict[str, str]:
    """Return the environment that a process was started with."""
    given = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(each.split("=", 1) for each in given if "=" in each)


def test_a_launched_server_runs_in_its_own_folder_with_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KGSERVE_MODELS_DIR", "models")
    monkeypatch.setenv("KGSERVE_KEY", "kgs_of_the_client")
    monkeypatch.setenv("OF_THE_EDITOR", "1")
    data = tmp_path / "data"
    with ending(data):
        server = ensure_server_running(data)
        assert Path(f"/proc/{server.pid}/cwd").readlink() == data
        seen = variables_of(server.pid)
        assert seen["KGSERVE_MODELS_DIR"] == str(tmp_path / "models")
        assert {"KGSERVE_KEY", "OF_THE_EDITOR"}.isdisjoint(seen)
        assert (server.version, server.pid) == (
            __version__,
            int((data / server_discovery.LAUNCH_LOCK_FILE).read_text()),
        )
        assert "--idle-exit\x0086400" in Path(f"/proc/{server.pid}/cmdline").read_text()


def test_an_unused_server_exits_and_a_lost_server_file_is_restored(tmp_path: Path) -> None:
    with serving(tmp_path, "--idle-exit", "3", variables=SMALL) as server:
        (tmp_path / server_discovery.SERVER_FILE).unlink()
        until(lambda: find_running_server_of_data_folder(tmp_path) is not None)
        (tmp_path / server_discovery.SERVER_FILE).write_bytes(b"{")
        until(lambda: find_running_server_of_data_folder(tmp_path) is not None)
        assert server.process.wait(SERVER_TIMEOUT_SECONDS) == 0


def test_an_older_server_is_replaced_when_it_is_idle_and_was_launched(tmp_path: Path) -> None:
    with ending(tmp_path):
        server = ensure_server_running(tmp_path)
        file = tmp_path / server_discovery.SERVER_FILE
        assert replace_older_server(tmp_path, server) is None
        older = server._replace(version="0.0.9")
        file.write_bytes(server_discovery.encode_server_discovery_file(older))
        assert "in use" in str(replace_older_server(tmp_path, older))
        os.utime(file, (0, time.time() - 2 * server_discovery.REPLACEABLE_IDLE_SECONDS))
        launched = (tmp_path / server_discovery.LAUNCH_LOCK_FILE).read_text()
        (tmp_path / server_discovery.LAUNCH_LOCK_FILE).write_text("1\n")
        assert "has to be restarted manually" in str(replace_older_server(tmp_path, older))
        (tmp_path / server_discovery.LAUNCH_LOCK_FILE).write_text(launched)
        assert find_running_server_of_data_folder(tmp_path) == older
        with editing("--data", tmp_path, log=tmp_path.with_suffix(".log")) as editor:
            editor.open()
        assert "0.0.9" in tmp_path.with_suffix(".log").read_text()
        following = find_running_server_of_data_folder(tmp_path)
        assert following is not None
        assert (following.version, following.pid != server.pid) == (__version__, True)


def test_the_log_of_a_server_that_cannot_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGSERVE_MAX_NODES", "many")
    with pytest.raises(ServerLaunchFailed, match=r"(?s)exit code 2.*server\.log.*KGSERVE_MAX_NODES"):
        ensure_server_running(tmp_path)


def test_an_invalid_data_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerLaunchFailed, match=r"file cannot be a data folder: .*--data"):
        ensure_server_running(tmp_path / "file")


def test_a_launched_server_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kgserve.platform.server_discovery import ensure_server_running; "
        "print(ensure_server_running(Path(sys.argv[1])).pid)"
    )
    with ending(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env=environment(SMALL),
        )
        found = find_running_server_of_data_folder(tmp_path)
        assert found is not None
        assert is_server_ready(found)
        assert str(found.pid) == done.stdout.strip()
