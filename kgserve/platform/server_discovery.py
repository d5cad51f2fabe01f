"""One way to a server: finding the one of a data folder, starting it, and how a client speaks with it and believes it.

Standard library only: the editors' bridge starts with this. Two files of a data folder speak of its server:
``server.lock`` is locked for as long as a process has the folder, and names it; ``server.json`` is there once that
process accepts connections.

However many processes ask for a server at once, one comes of it: whoever starts it holds ``launch.lock`` until it
answers, and the others find it then. It runs in a session of its own and outlives the process that started it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from kgserve.platform.http_client import ClientConnection
from kgserve.platform.permissions import make_way, private_folder
from kgserve.platform.platform_support import refusal
from kgserve.platform.version import __version__

if TYPE_CHECKING:
    import ssl
    import subprocess

SERVER_LOCK_FILE = "server.lock"
SERVER_FILE = "server.json"
LAUNCH_LOCK_FILE = "launch.lock"
LOG_FILE = "server.log"
MAX_LOG_BYTES = 1 << 20
"""Bytes of a log from which on the next start begins a new one; the one before is kept as server.log.1."""

UNKNOWN_PID = 0
"""The holder's process id while it has the lock and has not written its own yet."""

LAUNCH_TIMEOUT_SECONDS = 30.0
"""Seconds that a server may take until it answers; one that is stopping takes up to 20 to be gone."""

DEFAULT_DATA = "kgserve-data"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = "8080"

TOOL_CALL_TIMEOUT_SECONDS = 60.0
"""Seconds that the bridge waits for a tool without being told otherwise."""

LAUNCHED_IDLE_SECONDS = 86_400
"""Seconds without use after which a server ends that was started here; one that a person starts goes on for ever."""

REPLACEABLE_IDLE_SECONDS = 60.0
"""Seconds without use after which an older server may be replaced. server.json is as old as the last use."""

STOP_TIMEOUT_SECONDS = 30.0
"""Seconds that a server may take to end; it takes 20 at most by itself."""

_UNAVAILABLE = 503
_MAX_KILLS = 2
_MAX_LOG_LINES = 8
_ANSWER_TIMEOUT_SECONDS = 4.0
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.25
_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - addresses to listen on, not to connect to


class DiscoveredServer(NamedTuple):
    """Where a server is, and the token that local clients send it.

    ``certificate`` is the one that it shows, as PEM, when that is known; ``pid`` and ``version`` are those of one found
    by its data folder.
    """

    url: str
    token: str | None = None
    certificate: str | None = None
    pid: int | None = None
    version: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def with_key(self, key: str | None) -> DiscoveredServer:
        """The same, with ``key`` sent instead of its token, if there is one."""
        return self._replace(token=key) if key else self


class LaunchFailed(Exception):
    """No server could be had. ``str(error)`` is for the person who asked."""


def data_folder(given: str | None = None) -> Path:
    """The absolute data folder: ``given``, else KGSERVE_DATA_DIR, else kgserve-data in the working directory."""
    chosen = given or os.environ.get("KGSERVE_DATA_DIR") or DEFAULT_DATA
    return Path(chosen).expanduser().absolute()


def chosen_key(given: str | None = None) -> str | None:
    """The key to send: ``given``, else KGSERVE_KEY, else none."""
    return given or os.environ.get("KGSERVE_KEY") or None


def wishes(store: str | None, tools: str | None, answers: str | None) -> dict[str, str]:
    """What an editor asks for, as headers: the given, else KGSERVE_TOOLS and KGSERVE_ANSWERS."""
    named = {
        "Kgserve-Store": store,
        "Kgserve-Tools": tools or os.environ.get("KGSERVE_TOOLS"),
        "Kgserve-Answers": answers or os.environ.get("KGSERVE_ANSWERS"),
    }
    return {name: value for name, value in named.items() if value}


def chosen_timeout(given: float | str | None = None) -> float:
    """Seconds that a call may take: ``given``, else KGSERVE_CALL_TIMEOUT, else the default; no time counts as none."""
    return seconds_of(given or os.environ.get("KGSERVE_CALL_TIMEOUT", "")) or TOOL_CALL_TIMEOUT_SECONDS


def seconds_of(text: float | str) -> float | None:
    """A finite time above 0, if it is one."""
    with suppress(ValueError):
        seconds = float(text)
        return seconds if 0 < seconds < float("inf") else None
    return None


def find(data_dir: Path) -> DiscoveredServer | None:
    """The server that has the data folder and has begun to accept connections, if there is one."""
    found = read(data_dir)
    if found is None or holder(data_dir) != found.pid:
        return None
    return found._replace(url=reachable(found.url))


def at(url: str, data_dir: Path) -> DiscoveredServer:
    """The server at ``url``; of the one that serves the data folder, token and certificate are known."""
    found = find(data_dir)
    if found is None or _host_and_port(found.url) != _host_and_port(url):
        return DiscoveredServer(url.rstrip("/"))
    return found._replace(url=url.rstrip("/"))


def configured(host: str, port: int, *, tls: bool) -> DiscoveredServer:
    """The server that listens on this address, if one does."""
    return DiscoveredServer(reachable(f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"))


def ensure(data_dir: Path, patience: float = LAUNCH_TIMEOUT_SECONDS) -> DiscoveredServer:
    """A server of the data folder that answers, started if none runs. Raises LaunchFailed after ``patience`` seconds.

    A server that is starting or stopping is waited for.
    """
    found = find(data_dir)
    deadline = time.monotonic() + patience
    if found is not None and _answers_or_hangs(found, patience):
        return found
    with _launch_lock(data_dir, deadline):
        return _Launch(data_dir, deadline).run()


def answers(server: DiscoveredServer, patience: float = _ANSWER_TIMEOUT_SECONDS) -> bool:
    """Whether the server accepts connections and is ready for work, or at least for reading, in at most 4 seconds."""
    try:
        return _is_ready(server, patience)
    except TimeoutError:
        return False


def is_alive(server: DiscoveredServer, patience: float) -> bool:
    """Whether the server answers anything at all within so many seconds. One that is gone does not hang: True."""
    try:
        with closing(open_connection(server, patience)) as connection:
            connection.request("GET", "/health", {})
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def open_connection(server: DiscoveredServer, timeout: float) -> ClientConnection:
    """A connection to it. ``timeout`` is in seconds. Raises OSError."""
    return ClientConnection(server.url, timeout, lambda: trust(server.certificate))


def why_silent(server: DiscoveredServer) -> str:
    """What to tell about a server that accepts connections and says nothing."""
    who = f"the server at {server.url}" + (f" (process {server.pid})" if server.pid else "")
    if server.pid is None:
        return f"{who} does not answer: it hangs"
    if _state(server.pid) == "T":
        return f"{who} does not answer: a signal has stopped it; `kill -CONT {server.pid}` lets it go on"
    return f"{who} does not answer: it hangs; `kgserve stop --force` ends it, and the next call starts another"


def _state(process: int) -> str:
    """The letter that the system has for what a process does; empty where it says nothing."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    return ""


def _is_ready(server: DiscoveredServer, patience: float) -> bool:
    """As `answers`, but raises TimeoutError when it says nothing."""
    try:
        with closing(open_connection(server, min(patience, _ANSWER_TIMEOUT_SECONDS))) as connection:
            return connection.request("GET", "/ready", {}).status != _UNAVAILABLE
    except TimeoutError:
        raise
    except OSError:
        return False


def _answers_or_hangs(server: DiscoveredServer, patience: float) -> bool:
    """As `answers`. Raises LaunchFailed for one that hangs: nobody else can have the folder while it does."""
    try:
        return _is_ready(server, patience)
    except TimeoutError:
        raise LaunchFailed(why_silent(server)) from None


def trust(certificate: str | None) -> ssl.SSLContext:
    """Whom a client believes: the server with this very certificate, whatever names are in it; or as usual.

    An empty text is nobody's certificate.
    """
    import ssl  # noqa: PLC0415 - it is large, and the bridge mostly does without

    if certificate is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Otherwise only a certificate that signed itself could be believed on its own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate:
        context.load_verify_locations(cadata=certificate)
    return context


def reachable(url: str) -> str:
    """``url`` without a trailing slash, and with a host to connect to where the server listens on every address."""
    parts = urlsplit(url.rstrip("/"))
    host, colon, port = parts.netloc.rpartition(":")
    return parts._replace(netloc=f"{_WILDCARD_ADDRESSES.get(host, host)}{colon}{port}").geturl()


def _host_and_port(url: str) -> tuple[str | None, int]:
    parts = urlsplit(reachable(url))
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def encode(server: DiscoveredServer) -> bytes:
    """The content of server.json."""
    names = ("pid", "version", "url", "token", "certificate")
    given = {name: getattr(server, name) for name in names}
    return json.dumps(
        {name: value for name, value in given.items() if value is not None}, separators=(",", ":")
    ).encode()


def read(data_dir: Path) -> DiscoveredServer | None:
    """What server.json says, whether or not the process that wrote it is still there; None when it cannot be read."""
    try:
        given: object = json.loads((data_dir / SERVER_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    match fields.get("url"), fields.get("token"), fields.get("pid"):
        case str(url), str(token), int(pid):
            certificate, version = (
                value if isinstance(value := fields.get(name), str) else None for name in ("certificate", "version")
            )
            return DiscoveredServer(url, token, certificate, pid, version)
        case _:
            return None


def holder(data_dir: Path) -> int | None:
    """The process that has the data folder, UNNAMED when it has not said which it is; None when nobody has it."""
    try:
        descriptor = os.open(data_dir / SERVER_LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return named_in(descriptor) or UNKNOWN_PID
    finally:
        os.close(descriptor)
    return None


def named_in(descriptor: int) -> int | None:
    """The process id that stands in the lock file."""
    text = os.read(descriptor, 32).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


class _Launch:
    """One attempt to have a server, by the process that holds the launch lock."""

    def __init__(self, data_dir: Path, deadline: float) -> None:
        self._data_dir = data_dir
        self._deadline = deadline
        self._child: subprocess.Popen[bytes] | None = None
        self._any_port = _port_is_taken()
        self._killed = 0

    def run(self) -> DiscoveredServer:
        delay = _FIRST_POLL_SECONDS
        while (left := self._deadline - time.monotonic()) > 0:
            found = find(self._data_dir)
            # One that was started just now may be slow; any other that says nothing hangs.
            answering = answers if self._child is not None else _answers_or_hangs
            if found is not None and answering(found, left):
                return found
            self._start_or_look()
            time.sleep(delay)
            delay = min(delay * 1.3, _MAX_POLL_SECONDS)
        raise LaunchFailed(self._out_of_patience())

    def _start_or_look(self) -> None:
        if self._child is not None and self._child.returncode is not None:
            self._check_exit(self._child.returncode)
        if self._child is None and holder(self._data_dir) is None:
            self._child = _start(self._data_dir, any_port=self._any_port)

    def _check_exit(self, code: int) -> None:
        """The server that was started has ended: another one was quicker, its port is gone, or it cannot start."""
        self._child = None
        if holder(self._data_dir) is not None:
            return
        if code < 0 and self._killed < _MAX_KILLS:  # by a signal, which says nothing of the next one
            self._killed += 1
            return
        if self._any_port or not _port_is_taken():
            raise LaunchFailed(f"`kgserve serve` ended with exit code {code}; {_log_end(self._data_dir)}")
        self._any_port = True

    def _out_of_patience(self) -> str:
        who = self._child.pid if self._child is not None else holder(self._data_dir)
        if self._child is None and find(self._data_dir) is None:
            return f"process {who or 'unknown'} holds {self._data_dir}, but it serves nothing: wait for it, or stop it"
        return f"the server (process {who}) does not answer; {_log_end(self._data_dir)}"


def _start(data_dir: Path, *, any_port: bool) -> subprocess.Popen[bytes]:
    """Start ``kgserve serve`` in a session of its own, in the data folder, with what it needs of the environment."""
    import subprocess  # noqa: PLC0415 - most bridges find a server

    if told := refusal():
        raise LaunchFailed(told)
    variables = launch_environment(os.environ)
    command = [sys.executable, "-m", "kgserve", "serve", "--data", str(data_dir)]
    command += ["--port", "0"] if any_port else []
    # A line per request would fill the disk: nobody rotates this log while the server runs.
    command += ["--log-level", "warning"] if "KGSERVE_LOG_LEVEL" not in variables else []
    command += ["--idle-exit", str(LAUNCHED_IDLE_SECONDS)] if "KGSERVE_IDLE_EXIT" not in variables else []
    log = _open_log(data_dir)
    try:
        child = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=data_dir,
            env=variables,
        )
    finally:
        os.close(log)
    (data_dir / LAUNCH_LOCK_FILE).write_text(f"{child.pid}\n", encoding="ascii")
    # Waited for, so that a server that is killed does not stay behind as a zombie of this process.
    threading.Thread(target=child.wait, name="kgserve-launched", daemon=True).start()
    return child


PATH_VARIABLES = ("KGSERVE_MODELS_DIR", "KGSERVE_BACKUP_DIR", "KGSERVE_TLS_CERT", "KGSERVE_TLS_KEY")
"""Variables that name a place on the disk, counted from where they were given."""

_CLIENT_VARIABLES = {*("KGSERVE_KEY", "KGSERVE_DATA_DIR", "KGSERVE_CALL_TIMEOUT", "KGSERVE_TOOLS", "KGSERVE_ANSWERS")}
_INHERITED_VARIABLES_PATTERN = re.compile(
    r"KGSERVE_.+|OTEL_.+|LC_.+|SSL_CERT_.+|COVERAGE_.+|(?i:https?|all|no)_(?i:proxy)"
    r"|PATH|HOME|USER|LOGNAME|LANG|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH|OMP_NUM_THREADS"
)


def launch_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Of an editor's variables those that a server has a use for, with places that hold wherever it works."""
    kept = {
        name: value
        for name, value in given.items()
        if _INHERITED_VARIABLES_PATTERN.fullmatch(name) and name not in _CLIENT_VARIABLES
    }
    kept |= {name: str(Path(kept[name]).expanduser().absolute()) for name in PATH_VARIABLES if kept.get(name)}
    ours = Path(__file__).parents[2]
    found = [ours] if ours.name not in {"site-packages", "dist-packages"} else []
    found += [Path(each).absolute() for each in kept.pop("PYTHONPATH", "").split(os.pathsep) if each]
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, found))} if found else kept


class StopFailed(Exception):
    """A server did not end. ``str(error)`` is for the person who asked."""


def stop(data_dir: Path, *, force: bool = False, patience: float = STOP_TIMEOUT_SECONDS) -> DiscoveredServer | None:
    """End the server of a data folder and wait until it has; which one that was, None when there is none.

    ``force``: without letting it finish anything. What was acknowledged is in the journals either way. Raises
    StopFailed when it does not end, and when what has the folder is no server.
    """
    found, process = find(data_dir), holder(data_dir)
    if process is None:
        return None
    if found is None:
        raise StopFailed(f"process {process or 'unknown'} has {data_dir}, but serves nothing; end it yourself")
    try:
        os.kill(process, signal.SIGKILL if force else signal.SIGTERM)
    except PermissionError:
        raise StopFailed(f"process {process} belongs to another user, who can stop it") from None
    except ProcessLookupError:
        return found
    deadline = time.monotonic() + patience
    while holder(data_dir) == process:
        if time.monotonic() > deadline:
            raise StopFailed(f"process {process} has not ended within {patience:g} s; `kgserve stop --force` kills it")
        time.sleep(_FIRST_POLL_SECONDS)
    return found


def replace_older(data_dir: Path, found: DiscoveredServer) -> str | None:
    """Have an older server end, so that one of this version is started; what was done, or why not, as a sentence.

    None when it is not older. Only one that was started here, and that nobody has used for a minute, is ended.
    """
    if _numbers(found.version) >= _numbers(__version__):
        return None
    older = f"the server at {found.url} (process {found.pid}) is version {found.version or 'unknown'}"
    if found.pid != _launched(data_dir):
        return f"{older}, this is {__version__}; whoever has started it can start it anew"
    if _idle_seconds(data_dir) < REPLACEABLE_IDLE_SECONDS:
        return f"{older} and in use, this is {__version__}; it is replaced once it is idle, or after `kgserve stop`"
    try:
        stop(data_dir)
    except StopFailed as error:
        return f"{older}, this is {__version__}; {error}"
    return f"{older} and was idle; one of version {__version__} takes its place"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version or ""))


def _launched(data_dir: Path) -> int | None:
    """The process of the server that was last started here."""
    with suppress(OSError, ValueError):
        return int((data_dir / LAUNCH_LOCK_FILE).read_text(encoding="ascii"))
    return None


def _idle_seconds(data_dir: Path) -> float:
    with suppress(OSError):
        return time.time() - (data_dir / SERVER_FILE).stat().st_mtime
    return 0.0


def _open_log(data_dir: Path) -> int:
    """A descriptor of server.log, for appending; a long one is put aside."""
    path = data_dir / LOG_FILE
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(f"{LOG_FILE}.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _log_end(data_dir: Path) -> str:
    """The last lines of the log, as the end of a sentence."""
    path = data_dir / LOG_FILE
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return f"{path} cannot be read"
    shown = [line for line in lines if line.strip()][-_MAX_LOG_LINES:]
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
def _launch_lock(data_dir: Path, deadline: float) -> Generator[None]:
    """Hold the launch lock. Raises LaunchFailed when the folder cannot be used or another start takes too long."""
    try:
        private_folder(data_dir)
        make_way(data_dir / LAUNCH_LOCK_FILE)
        descriptor = os.open(data_dir / LAUNCH_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LaunchFailed(
            f"{data_dir} cannot be a data folder: {(error.strerror or str(error)).lower()}; name another with --data"
        ) from error
    try:
        _acquire(descriptor, data_dir, deadline)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, data_dir: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LaunchFailed(f"another process has been starting a server; {_log_end(data_dir)}") from None
            time.sleep(_FIRST_POLL_SECONDS)
        else:
            return
