"""`kgserve health`, as a container's health check runs it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.cli.running import ServerProcessHandle, kgserve, serving
from tests.server.http.certificates import certificate


def test_a_running_server(server: ServerProcessHandle) -> None:
    done = kgserve("health", "--data", server.data)
    assert (done.code, done.out) == (0, f"{server.url} is alive\n")


def test_a_ready_server(server: ServerProcessHandle) -> None:
    done = kgserve("health", "--ready", "--server", server.url)
    assert (done.code, done.out) == (0, f"{server.url} is ready\n")


def test_a_server_with_tls(tmp_path: Path) -> None:
    files = certificate(tmp_path / "tls")
    with serving(tmp_path / "data", "--tls-cert", str(files.cert), "--tls-key", str(files.key)) as secure:
        assert secure.url.startswith("https://")
        assert kgserve("health", "--data", secure.data).out == f"{secure.url} is alive\n"


def test_successful_probes_are_not_logged(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running, httpx.Client() as http:
        for path in ("/health", "/ready", "/docs"):
            assert http.get(f"{running.url}{path}").status_code == 200
        refused = http.get(f"{running.url}/health", headers={"host": "elsewhere.example"})
        assert refused.status_code == 421
    lines = [json.loads(line) for line in (tmp_path / "data.log").read_text().splitlines() if line.startswith("{")]
    asked = [(line["path"], line["status"]) for line in lines if line["event"] == "request"]
    assert asked == [("/docs", 200), ("/health", 421)]


def test_no_server(tmp_path: Path) -> None:
    done = kgserve("health", "--data", tmp_path, variables={"KGSERVE_PORT": "9"})
    assert (done.code, done.out) == (3, "")
    assert f"no server has opened {tmp_path}" in done.err


def test_a_server_other_than_kgserve(server: ServerProcessHandle) -> None:
    done = kgserve("health", "--server", f"{server.url}/not-here")
    assert done.code == 1
