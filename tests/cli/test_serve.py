from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from kgserve import __version__
from kgserve.platform.data_folder_lock import DataFolderLock
from tests.cli.running import COMMAND, ServerProcessHandle, environment, kgserve
from tests.platform.access.keys import bearer, given


@pytest.mark.abuse(73)
def test_a_second_server_on_the_folder_names_the_first(server: ServerProcessHandle) -> None:
    refused = kgserve("serve", "--data", server.data, "--port", 0)
    assert refused.code == 1
    assert refused.out == ""
    assert str(server.process.pid) in refused.err
    assert server.url in refused.err
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"


def test_an_occupied_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = kgserve("serve", "--data", tmp_path / "data", "--port", port)
    assert refused.code == 1
    assert refused.err.startswith(f"kgserve: cannot listen on 127.0.0.1, port {port}: address already in use")
    assert len(refused.err.splitlines()) == 1
    with DataFolderLock(tmp_path / "data"):
        pass


def test_an_invalid_data_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = kgserve("serve", "--data", tmp_path / "file", "--port", 0)
    assert refused.code == 1
    assert str(tmp_path / "file") in refused.err


def test_invalid_values_are_wrong_usage() -> None:
    for arguments, variables, named in [
        (("--port", "70000"), {}, "--port"),
        (("--port", "eighty"), {}, "--port"),
        (("--log-format", "xml"), {}, "--log-format"),
        (("--no-such-option",), {}, "--no-such-option"),
        ((), {"KGSERVE_QUERY_TIMEOUT": "soon"}, "KGSERVE_QUERY_TIMEOUT"),
        ((), {"KGSERVE_MAX_OPEN_STORES": "0"}, "KGSERVE_MAX_OPEN_STORES"),
    ]:
        refused = kgserve("serve", *arguments, variables=variables)
        assert refused.code == 2, refused
        assert named in refused.err


def test_the_server_file_is_private(server: ServerProcessHandle) -> None:
    assert (server.data / "server.json").stat().st_mode & 0o777 == 0o600


def test_a_json_log_contains_only_json_and_names_callers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = given(data, "read", name="the night job")
    command = [*COMMAND, "serve", "--data", str(data), "--port", "0", "--log-format", "json"]
    command += ["--engine-processes", "1000000"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as running:
        assert running.stdout is not None
        begun = json.loads(running.stdout.readline())
        url = begun["url"]
        statuses = [httpx.get(f"{url}/api/memory", headers=headers).status_code for headers in (bearer(key), {})]
        running.terminate()
        out, err = running.communicate(timeout=60)
    assert (begun["event"], begun["version"], begun["data"]) == ("listening", __version__, str(data))
    assert (out, statuses) == ("", [200, 401])
    lines = [json.loads(line) for line in err.splitlines()]
    excesses = {line["what"]: line["allowed_mb"] for line in lines if line["event"] == "limits_exceed_machine"}
    assert excesses["engines"] == 1_024_000_000
    asked = [(line["caller"], line["address"]) for line in lines if line.get("path") == "/api/memory"]
    assert asked == [("the night job", "127.0.0.1"), ("nobody", "127.0.0.1")]
