from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

from kgserve.reach import find
from tests.cli.running import PATIENCE, Running, kgserve, serving


def test_it_answers_and_leaves_in_order(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
        found = find(server.data)
        assert found is not None
        assert (found.pid, found.url) == (server.process.pid, server.url)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert find(tmp_path / "data") is None


def test_ctrl_c_stops_it_without_a_traceback(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) in (0, 130)
    assert "Traceback" not in (tmp_path / "data.log").read_text()


@pytest.mark.abuse(73)
def test_a_second_server_on_the_folder_names_the_first(server: Running) -> None:
    refused = kgserve("serve", "--data", server.data, "--port", 0)
    assert refused.code == 1
    assert str(server.process.pid) in refused.err
    assert server.url in refused.err


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = kgserve("serve", "--data", tmp_path / "data", "--port", port)
    assert refused.code == 1
    assert str(port) in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_data_folder_that_cannot_be_one_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = kgserve("serve", "--data", tmp_path / "file", "--port", 0)
    assert refused.code == 1
    assert str(tmp_path / "file") in refused.err


def test_a_variable_sets_what_no_option_does(tmp_path: Path) -> None:
    folder = tmp_path / "from-variable"
    with serving(tmp_path / "data", variables={"KGSERVE_DATA_DIR": str(folder), "KGSERVE_MAX_NODES": "1"}) as server:
        nodes = [{"id": name, "type": "letter"} for name in "ab"]
        assert httpx.post(f"{server.url}/api/memory/x/inject", json={"nodes": nodes}).status_code in (400, 413)
    assert not folder.exists(), "--data wins over KGSERVE_DATA_DIR"


def test_values_that_do_not_fit_are_wrong_usage() -> None:
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


def test_the_server_file_is_for_its_owner_only(server: Running) -> None:
    assert (server.data / "server.json").stat().st_mode & 0o777 == 0o600
