"""The server as a process: start, refusals to start, stop."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kgserve import __version__
from kgserve.reach import SERVER_FILE, find
from tests.http.serving import accepted

PATIENCE = 40
PROGRAM = """
import sys
from pathlib import Path
from kgserve.app import serve
from kgserve.settings import Settings
sys.exit(serve(Settings(data_dir=Path(sys.argv[1]), port=int(sys.argv[2]), shutdown_grace=float(sys.argv[3]))))
"""
TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
"""Makes standard input the terminal whose end its session is told of."""


@contextmanager
def process(data: Path, port: int = 0, grace: float = 20) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, str(data), str(port), str(grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def url_of(running: subprocess.Popen[str], data: Path) -> str:
    assert running.stdout is not None
    line = running.stdout.readline()
    found = re.fullmatch(r"kgserve (\S+) listening on (http://127\.0\.0\.1:\d+) \(data: (.*)\)\n", line)
    assert found, line
    assert (found[1], found[3]) == (__version__, str(data))
    return found[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_starts_publishes_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with process(data) as running:
        url = url_of(running, data)
        published = find(data)
        assert published is not None
        assert (published.pid, published.url) == (running.pid, url)
        assert len(published.token or "") >= 32
        assert (data / "server.json").stat().st_mode & 0o777 == 0o600
        accepted(httpx.post(f"{url}/api/memory/demo/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        running.send_signal(number)
        assert running.wait(PATIENCE) == 0
    assert find(data) is None
    with process(data) as running:
        assert accepted(httpx.get(f"{url_of(running, data)}/api/memory/demo/nodes/a"))["node"]["id"] == "a"


def test_a_closed_terminal_ends_it_in_order(tmp_path: Path) -> None:
    """SIGHUP with nobody left to read its output, not even the log."""
    terminal, its = pty.openpty()
    command = [sys.executable, "-c", TERMINAL + PROGRAM, str(tmp_path), "0", "20"]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True) as running:
        try:
            os.close(its)
            deadline = time.monotonic() + PATIENCE
            while (found := find(tmp_path)) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found is not None
            accepted(httpx.post(f"{found.url}/api/memory/demo/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
            os.close(terminal)
            assert running.wait(PATIENCE) == 0
        finally:
            running.kill()
    assert not (tmp_path / SERVER_FILE).exists()


def test_under_nohup_a_closed_terminal_is_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process(tmp_path) as running:
            url = url_of(running, tmp_path)
            running.send_signal(signal.SIGHUP)
            for _ in range(3):
                assert accepted(httpx.get(f"{url}/health"))["status"] == "ok"
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_server_on_the_folder_names_the_first(tmp_path: Path) -> None:
    with process(tmp_path) as first:
        url = url_of(first, tmp_path)
        with process(tmp_path) as second:
            out, err = second.communicate(timeout=PATIENCE)
            assert second.returncode == 1
        assert out == ""
        assert str(first.pid) in err
        assert "Traceback" not in err
        assert accepted(httpx.get(f"{url}/health"))["status"] == "ok"


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process(tmp_path, port) as running:
            _, err = running.communicate(timeout=PATIENCE)
            assert running.returncode == 1
    assert (
        err.strip()
        .splitlines()[-1]
        .startswith(f"kgserve: cannot listen on 127.0.0.1, port {port}: address already in use")
    )
    assert "Traceback" not in err
    with process(tmp_path) as running:
        url_of(running, tmp_path)


def test_a_client_that_does_not_read_cannot_hold_up_the_stop(tmp_path: Path) -> None:
    with process(tmp_path, grace=8) as running:
        url = url_of(running, tmp_path)
        nodes = [{"id": f"n{number}", "type": "t", "content": "x" * 2_000} for number in range(10_000)]
        accepted(httpx.post(f"{url}/api/memory/demo/inject", json={"nodes": nodes}, timeout=30))
        with httpx.stream("GET", f"{url}/api/memory/demo/export") as export:
            assert export.status_code == 200
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE) == 0
