"""The server as a process: startup, refusals to start, shutdown."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kgserve import __version__
from kgserve.platform.server_discovery import SERVER_FILE, find_running_server_of_data_folder
from tests.cli.running import COMMAND, environment
from tests.server.http.serving import accepted
from tests.stores.writing import ids, opened, until

PATIENCE = 40
ON_A_TERMINAL = """
import fcntl, termios
from kgserve.__main__ import main
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
main()
"""
"""Make standard input the controlling terminal of its session."""


def serve(data: Path, *options: str) -> list[str]:
    return ["serve", "--data", str(data), "--port", "0", *options]


@contextmanager
def hangups(handler: signal.Handlers) -> Generator[None]:
    """Return the initial SIGHUP handler of a child process, independent of how the tests were started."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def process(data: Path, *options: str, hangup: signal.Handlers = signal.SIG_DFL) -> Generator[subprocess.Popen[str]]:
    command, pipe = [*COMMAND, *serve(data, *options)], subprocess.PIPE
    with hangups(hangup):
        begun = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())
    with begun as running:
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
def test_server_starts_publishes_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with process(data) as running:
        url = url_of(running, data)
        published = find_running_server_of_data_folder(data)
        assert published is not None
        assert (published.pid, published.url) == (running.pid, url)
        assert len(published.token or "") >= 32
        assert (data / "server.json").stat().st_mode & 0o777 == 0o600
        accepted(httpx.post(f"{url}/api/memory/demo/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        running.send_signal(number)
        _, said = running.communicate(timeout=PATIENCE)
        assert (running.returncode, "Traceback" in said) == (0, False), said
    assert find_running_server_of_data_folder(data) is None
    with opened(data, "demo") as store:
        assert ids(store) == ["a"]


def test_closed_terminal_stops_gracefully(tmp_path: Path) -> None:
    """SIGHUP when no process reads its output or log."""
    terminal, its = pty.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL, *serve(tmp_path)]
    with hangups(signal.SIG_DFL):
        begun = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True, env=environment())
    with begun as running:
        try:
            os.close(its)
            until(lambda: find_running_server_of_data_folder(tmp_path) is not None, PATIENCE)
            found = find_running_server_of_data_folder(tmp_path)
            assert found is not None
            accepted(httpx.post(f"{found.url}/api/memory/demo/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
            os.close(terminal)
            assert running.wait(PATIENCE) == 0
        finally:
            running.kill()
    assert not (tmp_path / SERVER_FILE).exists()


def test_nohup_ignores_a_closed_terminal(tmp_path: Path) -> None:
    with process(tmp_path, hangup=signal.SIG_IGN) as running:
        url = url_of(running, tmp_path)
        running.send_signal(signal.SIGHUP)
        for _ in range(3):
            assert accepted(httpx.get(f"{url}/health"))["status"] == "ok"
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


def test_slow_client_does_not_delay_shutdown(tmp_path: Path) -> None:
    with process(tmp_path, "--shutdown-grace", "4") as running:
        url = url_of(running, tmp_path)
        nodes = [{"id": f"n{number}", "type": "t", "content": "x" * 2_000} for number in range(4_000)]
        accepted(httpx.post(f"{url}/api/memory/demo/inject", json={"nodes": nodes}, timeout=30))
        with httpx.stream("GET", f"{url}/api/memory/demo/export") as export:
            assert export.status_code == 200
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE) == 0
