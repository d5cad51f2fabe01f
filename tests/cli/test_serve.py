from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from kgserve.store.lock import DataFolderLock
from tests.cli.running import Running, kgserve


@pytest.mark.abuse(73)
def test_a_second_server_on_the_folder_names_the_first(server: Running) -> None:
    refused = kgserve("serve", "--data", server.data, "--port", 0)
    assert refused.code == 1
    assert refused.out == ""
    assert str(server.process.pid) in refused.err
    assert server.url in refused.err
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = kgserve("serve", "--data", tmp_path / "data", "--port", port)
    assert refused.code == 1
    assert refused.err.startswith(f"kgserve: cannot listen on 127.0.0.1, port {port}: address already in use")
    assert len(refused.err.splitlines()) == 1
    with DataFolderLock(tmp_path / "data"):
        pass


def test_a_data_folder_that_cannot_be_one_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = kgserve("serve", "--data", tmp_path / "file", "--port", 0)
    assert refused.code == 1
    assert str(tmp_path / "file") in refused.err


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
