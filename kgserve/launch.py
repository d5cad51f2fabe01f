"""Finding the server of a data folder, or starting one. Standard library only: the editors' bridge starts with this.

However many processes ask at once, one server comes of it: whoever starts it holds ``launch.lock`` until it answers,
and the others find it then. It runs in a session of its own and outlives the process that started it.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kgserve.permissions import private_folder
from kgserve.server_file import holder, read_server_file, trust

LAUNCH_LOCK = "launch.lock"
LOG_FILE = "server.log"
MAX_LOG = 1 << 20
"""Bytes of a log from which on the next start begins a new one; the one before is kept as server.log.1."""

PATIENCE = 30.0
"""Seconds that a server may take until it answers; one that is stopping takes up to 20 to be gone."""

DEFAULT_DATA = "kgserve-data"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = "8080"

_SHOWN_LINES = 8
_ANSWER_TIMEOUT = 5.0
_FIRST_DELAY, _LAST_DELAY = 0.02, 0.25
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - addresses to listen on, not to connect to


class Server(NamedTuple):
    """Where a server is, and the token that local clients send it; ``pid`` only for one found by its data folder.

    ``certificate`` is the one that it shows, as PEM, when it was found so and serves over TLS.
    """

    url: str
    token: str | None = None
    pid: int | None = None
    certificate: str | None = None


class LaunchFailed(Exception):
    """No server could be had. ``str(error)`` is for the person who asked."""


def data_folder(given: str | None = None) -> Path:
    """The absolute data folder: ``given``, else KGSERVE_DATA_DIR, else kgserve-data in the working directory."""
    chosen = given or os.environ.get("KGSERVE_DATA_DIR") or DEFAULT_DATA
    return Path(chosen).expanduser().absolute()


def chosen_key(given: str | None = None) -> str | None:
    """The key to send: ``given``, else KGSERVE_KEY, else none."""
    return given or os.environ.get("KGSERVE_KEY") or None


def find(data_dir: Path) -> Server | None:
    """The server that has the data folder and has begun to accept connections, if there is one."""
    found = read_server_file(data_dir)
    if found is None:
        return None
    return Server(reachable(found.url), found.token, found.pid, found.certificate)


def ensure(data_dir: Path, patience: float = PATIENCE) -> Server:
    """A server of the data folder that answers, started if none runs. Raises LaunchFailed after ``patience`` seconds.

    A server that is starting or stopping is waited for.
    """
    found = find(data_dir)
    deadline = time.monotonic() + patience
    if found is not None and answers(found, patience):
        return found
    with _alone(data_dir, deadline):
        return _Launch(data_dir, deadline).run()


def answers(server: Server, patience: float = _ANSWER_TIMEOUT) -> bool:
    """Whether the server accepts connections and is ready for work, or at least for reading, in at most 5 seconds."""
    with closing(connection_to(server, min(patience, _ANSWER_TIMEOUT))) as connection:
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status != http.client.SERVICE_UNAVAILABLE
        except (OSError, http.client.HTTPException):
            return False


def connection_to(server: Server, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet; ``timeout`` is in seconds."""
    parts = urlsplit(server.url)
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.netloc, timeout=timeout)
    return http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=trust(server.certificate))


def reachable(url: str) -> str:
    """``url`` without a trailing slash, and with a host to connect to where the server listens on every address."""
    parts = urlsplit(url)
    host = _EVERYWHERE.get(parts.hostname or "")
    return f"{parts.scheme}://{host}:{parts.port}" if host else url.rstrip("/")


class _Launch:
    """One attempt to have a server, by the process that holds the launch lock."""

    def __init__(self, data_dir: Path, deadline: float) -> None:
        self._data_dir = data_dir
        self._deadline = deadline
        self._child: subprocess.Popen[bytes] | None = None
        self._any_port = _port_is_taken()

    def run(self) -> Server:
        delay = _FIRST_DELAY
        while (left := self._deadline - time.monotonic()) > 0:
            found = find(self._data_dir)
            if found is not None and answers(found, left):
                return found
            self._start_or_look()
            time.sleep(delay)
            delay = min(delay * 1.3, _LAST_DELAY)
        raise LaunchFailed(self._out_of_patience())

    def _start_or_look(self) -> None:
        if self._child is not None and self._child.returncode is not None:
            self._consider_end(self._child.returncode)
        if self._child is None and holder(self._data_dir) is None:
            self._child = _start(self._data_dir, any_port=self._any_port)

    def _consider_end(self, code: int) -> None:
        """The server that was started has ended: another one was quicker, its port is gone, or it cannot start."""
        self._child = None
        if holder(self._data_dir) is not None:
            return
        if self._any_port or not _port_is_taken():
            raise LaunchFailed(f"`kgserve serve` ended with exit code {code}; {_shown(self._data_dir)}")
        self._any_port = True

    def _out_of_patience(self) -> str:
        who = self._child.pid if self._child is not None else holder(self._data_dir)
        if self._child is None and find(self._data_dir) is None:
            return f"process {who or 'unknown'} holds {self._data_dir}, but it serves nothing: wait for it, or stop it"
        return f"the server (process {who}) does not answer; {_shown(self._data_dir)}"


def _start(data_dir: Path, *, any_port: bool) -> subprocess.Popen[bytes]:
    """Start ``kgserve serve`` in a session of its own."""
    command = [sys.executable, "-m", "kgserve", "serve", "--data", str(data_dir)]
    command += ["--port", "0"] if any_port else []
    # A line per request would fill the disk: nobody rotates this log while the server runs.
    command += ["--log-level", "warning"] if not os.environ.get("KGSERVE_LOG_LEVEL") else []
    with closing(_Log(data_dir)) as log:
        child = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=log.descriptor, stderr=log.descriptor, start_new_session=True
        )
    # Waited for, so that a server that is killed does not stay behind as a zombie of this process.
    threading.Thread(target=child.wait, name="kgserve-launched", daemon=True).start()
    return child


class _Log:
    """server.log, open for appending."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / LOG_FILE
        if path.exists() and path.stat().st_size > MAX_LOG:
            path.replace(path.with_name(f"{LOG_FILE}.1"))
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def close(self) -> None:
        os.close(self.descriptor)


def _shown(data_dir: Path) -> str:
    """The last lines of the log, as the end of a sentence."""
    path = data_dir / LOG_FILE
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return f"{path} cannot be read"
    shown = [line for line in lines if line.strip()][-_SHOWN_LINES:]
    return "\n".join([f"the end of {path}:", *shown]) if shown else f"{path} is empty"


def _port_is_taken() -> bool:
    """Whether something else listens where a server would by default. What is no port is left for it to refuse."""
    host = os.environ.get("KGSERVE_HOST") or DEFAULT_HOST
    port = os.environ.get("KGSERVE_PORT") or DEFAULT_PORT
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError):
        return port.isdecimal()
    return False


@contextmanager
def _alone(data_dir: Path, deadline: float) -> Generator[None]:
    """Hold the launch lock. Raises LaunchFailed when the folder cannot be used or another start takes too long."""
    try:
        private_folder(data_dir)
        descriptor = os.open(data_dir / LAUNCH_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LaunchFailed(
            f"{data_dir} cannot be a data folder: {(error.strerror or str(error)).lower()}; name another with --data"
        ) from error
    try:
        _take(descriptor, data_dir, deadline)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, data_dir: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LaunchFailed(f"another process has been starting a server; {_shown(data_dir)}") from None
            time.sleep(_FIRST_DELAY)
        else:
            return
