"""Server discovery: finding the server of a data folder, starting it, and connecting to it securely.

Standard library only, since the editors' bridge starts with this module. Two files of a data folder describe its
server. ``server.lock`` is locked while a process uses the folder, and contains its process id. ``server.json`` exists
once that process accepts connections.

Concurrent requests for a server start only one: the starting process holds ``launch.lock`` until the server responds,
and the others then find it. The server runs in its own session and outlives the process that started it.
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

from kgserve.platform.file_permissions import create_private_folder, rename_path_obstacle
from kgserve.platform.http_client import OutboundHttpConnection
from kgserve.platform.supported_platforms import describe_unsupported_platform
from kgserve.platform.version import __version__

if TYPE_CHECKING:
    import ssl
    import subprocess

SERVER_LOCK_FILE = "server.lock"
SERVER_FILE = "server.json"
LAUNCH_LOCK_FILE = "launch.lock"
SERVER_LOG_FILE = "server.log"
MAX_SERVER_LOG_BYTES = 1 << 20
"""Size above which the next start rotates server.log; the previous log is kept as server.log.1."""

UNKNOWN_PID = 0
"""Process id of a lock holder that has not written its own yet."""

LAUNCH_TIMEOUT_SECONDS = 30.0
"""Time that a server may take to respond; a server that is stopping takes up to 20 s to exit."""

DEFAULT_DATA_FOLDER = "kgserve-data"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = "8080"

TOOL_CALL_TIMEOUT_SECONDS = 60.0
"""Default time that the bridge waits for a tool."""

LAUNCHED_IDLE_SECONDS = 86_400
"""Idle time after which an automatically started server exits; one started by a person runs until stopped."""

REPLACEABLE_IDLE_SECONDS = 60.0
"""Idle time after which an older server may be replaced. The last use is the modification time of server.json."""

STOP_TIMEOUT_SECONDS = 30.0
"""Time that a server may take to exit; a regular shutdown takes at most 20 s."""

_UNAVAILABLE = 503
_MAX_KILLS = 2
_MAX_LOG_LINES = 8
_ANSWER_TIMEOUT_SECONDS = 4.0
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.25
_WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - addresses to listen on, not to connect to


class DiscoveredServer(NamedTuple):
    """Address of a server, and the token that local clients send.

    ``certificate`` is the server's certificate as PEM, if known. ``pid`` and ``version`` are those of a server found by
    its data folder.
    """

    url: str
    token: str | None = None
    certificate: str | None = None
    pid: int | None = None
    version: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers for each request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def with_key(self, key: str | None) -> DiscoveredServer:
        """Return a copy that sends ``key`` instead of its token, if a key is given."""
        return self._replace(token=key) if key else self


class ServerLaunchFailed(Exception):
    """No server could be started or reached. ``str(error)`` is a message for the user."""


def resolve_data_folder(given: str | None = None) -> Path:
    """Return the absolute data folder: ``given``, else KGSERVE_DATA_DIR, else kgserve-data in the working directory."""
    chosen = given or os.environ.get("KGSERVE_DATA_DIR") or DEFAULT_DATA_FOLDER
    return Path(chosen).expanduser().absolute()


def resolve_client_api_key(given: str | None = None) -> str | None:
    """Return the key to send: ``given``, else KGSERVE_KEY, else None."""
    return given or os.environ.get("KGSERVE_KEY") or None


def build_editor_preference_headers(store: str | None, tools: str | None, answers: str | None) -> dict[str, str]:
    """Return headers for an editor's preferences: the given values, else KGSERVE_TOOLS and KGSERVE_ANSWERS."""
    named = {
        "Kgserve-Store": store,
        "Kgserve-Tools": tools or os.environ.get("KGSERVE_TOOLS"),
        "Kgserve-Answers": answers or os.environ.get("KGSERVE_ANSWERS"),
    }
    return {name: value for name, value in named.items() if value}


def resolve_mcp_tool_call_timeout(given: float | str | None = None) -> float:
    """Return the timeout of a call in seconds: ``given``, else KGSERVE_CALL_TIMEOUT, else the default.

    Values that are not valid times are ignored.
    """
    return parse_positive_seconds(given or os.environ.get("KGSERVE_CALL_TIMEOUT", "")) or TOOL_CALL_TIMEOUT_SECONDS


def parse_positive_seconds(text: float | str) -> float | None:
    """Return a finite positive number of seconds, or None."""
    with suppress(ValueError):
        seconds = float(text)
        return seconds if 0 < seconds < float("inf") else None
    return None


def find_running_server_of_data_folder(data_dir: Path) -> DiscoveredServer | None:
    """Return the server of the data folder if it accepts connections, or None."""
    found = read_server_discovery_file(data_dir)
    if found is None or find_data_folder_lock_holder(data_dir) != found.pid:
        return None
    return found._replace(url=replace_wildcard_host_in_url(found.url))


def resolve_server_at_url(url: str, data_dir: Path) -> DiscoveredServer:
    """Return the server at ``url``; token and certificate are filled in if it serves the data folder."""
    found = find_running_server_of_data_folder(data_dir)
    if found is None or _host_and_port(found.url) != _host_and_port(url):
        return DiscoveredServer(url.rstrip("/"))
    return found._replace(url=url.rstrip("/"))


def assume_server_at_address(host: str, port: int, *, tls: bool) -> DiscoveredServer:
    """Return the server assumed to listen on an address, without connecting to it."""
    return DiscoveredServer(
        replace_wildcard_host_in_url(f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}")
    )


def ensure_server_running(data_dir: Path, patience: float = LAUNCH_TIMEOUT_SECONDS) -> DiscoveredServer:
    """Return a responding server of the data folder, started if necessary.

    Raises ServerLaunchFailed after ``patience`` seconds. Waits for a server that is starting or stopping.
    """
    found = find_running_server_of_data_folder(data_dir)
    deadline = time.monotonic() + patience
    if found is not None and _answers_or_hangs(found, patience):
        return found
    with _launch_lock(data_dir, deadline):
        return _LaunchAttempt(data_dir, deadline).run()


def is_server_ready(server: DiscoveredServer, patience: float = _ANSWER_TIMEOUT_SECONDS) -> bool:
    """Return whether the server accepts connections and is ready for work, or at least for reads.

    Takes at most 4 seconds.
    """
    try:
        return _is_ready(server, patience)
    except TimeoutError:
        return False


def is_server_responding(server: DiscoveredServer, patience: float) -> bool:
    """Return whether the server responds at all within ``patience`` seconds.

    Returns True for a server that has exited.
    """
    try:
        with closing(open_http_connection_to_server(server, patience)) as connection:
            connection.request("GET", "/health", {})
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def open_http_connection_to_server(server: DiscoveredServer, timeout: float) -> OutboundHttpConnection:
    """Open a connection to a server; ``timeout`` is in seconds. Raises OSError."""
    return OutboundHttpConnection(server.url, timeout, lambda: create_client_tls_context(server.certificate))


def describe_silent_server(server: DiscoveredServer) -> str:
    """Return a message about a server that accepts connections but does not respond."""
    subject = f"the server at {server.url}" + (f" (process {server.pid})" if server.pid else "")
    if server.pid is None:
        return f"{subject} accepts connections but does not respond"
    if _state(server.pid) == "T":
        return f"{subject} does not respond: a signal has suspended it; resume it with `kill -CONT {server.pid}`"
    return (
        f"{subject} hangs and does not respond; stop it with `kgserve stop --force`, and the next call starts another"
    )


def _state(process: int) -> str:
    """Return the state letter of a process in /proc, or ""."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    return ""


def _is_ready(server: DiscoveredServer, patience: float) -> bool:
    """Return the same as `is_server_ready`, but raise TimeoutError if the server does not respond."""
    try:
        with closing(open_http_connection_to_server(server, min(patience, _ANSWER_TIMEOUT_SECONDS))) as connection:
            return connection.request("GET", "/ready", {}).status != _UNAVAILABLE
    except TimeoutError:
        raise
    except OSError:
        return False


def _answers_or_hangs(server: DiscoveredServer, patience: float) -> bool:
    """Return the same as `is_server_ready`; raise ServerLaunchFailed for a hanging server, which blocks the folder."""
    try:
        return _is_ready(server, patience)
    except TimeoutError:
        raise ServerLaunchFailed(describe_silent_server(server)) from None


def create_client_tls_context(certificate: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts exactly this server certificate, whatever its names.

    None uses the system's defaults. An empty text trusts no certificate.
    """
    import ssl  # noqa: PLC0415 - large, and rarely needed by the bridge

    if certificate is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Otherwise only a self-signed certificate could be trusted without its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate:
        context.load_verify_locations(cadata=certificate)
    return context


def replace_wildcard_host_in_url(url: str) -> str:
    """Return ``url`` without a trailing slash, with wildcard hosts replaced by a loopback address."""
    parts = urlsplit(url.rstrip("/"))
    host, colon, port = parts.netloc.rpartition(":")
    return parts._replace(netloc=f"{_WILDCARD_ADDRESSES.get(host, host)}{colon}{port}").geturl()


def _host_and_port(url: str) -> tuple[str | None, int]:
    parts = urlsplit(replace_wildcard_host_in_url(url))
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def encode_server_discovery_file(server: DiscoveredServer) -> bytes:
    """Return the content of server.json."""
    names = ("pid", "version", "url", "token", "certificate")
    given = {name: getattr(server, name) for name in names}
    return json.dumps(
        {name: value for name, value in given.items() if value is not None}, separators=(",", ":")
    ).encode()


def read_server_discovery_file(data_dir: Path) -> DiscoveredServer | None:
    """Return the content of server.json even if its process has exited, or None if it cannot be read."""
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


def find_data_folder_lock_holder(data_dir: Path) -> int | None:
    """Return the id of the process that holds the data folder, or None.

    Returns UNKNOWN_PID while the holder has not written its id yet.
    """
    try:
        descriptor = os.open(data_dir / SERVER_LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_lock_holder_pid(descriptor) or UNKNOWN_PID
    finally:
        os.close(descriptor)
    return None


def read_lock_holder_pid(descriptor: int) -> int | None:
    """Return the process id in the lock file, or None."""
    text = os.read(descriptor, 32).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


class _LaunchAttempt:
    """Attempt to start a server, by the process that holds the launch lock."""

    def __init__(self, data_dir: Path, deadline: float) -> None:
        self._data_dir = data_dir
        self._deadline = deadline
        self._child: subprocess.Popen[bytes] | None = None
        self._any_port = _port_is_taken()
        self._killed = 0

    def run(self) -> DiscoveredServer:
        delay = _FIRST_POLL_SECONDS
        while (left := self._deadline - time.monotonic()) > 0:
            found = find_running_server_of_data_folder(self._data_dir)
            # A server started just now may be slow; any other silent server hangs.
            answering = is_server_ready if self._child is not None else _answers_or_hangs
            if found is not None and answering(found, left):
                return found
            self._start_or_look()
            time.sleep(delay)
            delay = min(delay * 1.3, _MAX_POLL_SECONDS)
        raise ServerLaunchFailed(self._timeout_message())

    def _start_or_look(self) -> None:
        if self._child is not None and self._child.returncode is not None:
            self._check_exit(self._child.returncode)
        if self._child is None and find_data_folder_lock_holder(self._data_dir) is None:
            self._child = _start(self._data_dir, any_port=self._any_port)

    def _check_exit(self, code: int) -> None:
        """Handle the exit of the started server: another was faster, its port was taken, or it cannot start."""
        self._child = None
        if find_data_folder_lock_holder(self._data_dir) is not None:
            return
        if code < 0 and self._killed < _MAX_KILLS:  # killed by a signal; try again
            self._killed += 1
            return
        if self._any_port or not _port_is_taken():
            raise ServerLaunchFailed(f"`kgserve serve` ended with exit code {code}; {_log_end(self._data_dir)}")
        self._any_port = True

    def _timeout_message(self) -> str:
        who = self._child.pid if self._child is not None else find_data_folder_lock_holder(self._data_dir)
        if self._child is None and find_running_server_of_data_folder(self._data_dir) is None:
            return f"process {who or 'unknown'} holds {self._data_dir} but is no running server; wait for it or stop it"
        return f"the server (process {who}) does not respond; {_log_end(self._data_dir)}"


def _start(data_dir: Path, *, any_port: bool) -> subprocess.Popen[bytes]:
    """Start ``kgserve serve`` in a session of its own, in the data folder, with a filtered environment."""
    import subprocess  # noqa: PLC0415 - rarely needed: most bridges find a running server

    if reason := describe_unsupported_platform():
        raise ServerLaunchFailed(reason)
    variables = build_server_launch_environment(os.environ)
    command = [sys.executable, "-m", "kgserve", "serve", "--data", str(data_dir)]
    command += ["--port", "0"] if any_port else []
    # A line per request would fill the disk: this log is not rotated while the server runs.
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
    # Reap the child, so that a killed server does not remain as a zombie.
    threading.Thread(target=child.wait, name="kgserve-launched", daemon=True).start()
    return child


PATH_VARIABLES = ("KGSERVE_MODELS_DIR", "KGSERVE_BACKUP_DIR", "KGSERVE_TLS_CERT", "KGSERVE_TLS_KEY")
"""Variables that hold paths, relative to the folder where they were set."""

_CLIENT_VARIABLES = {*("KGSERVE_KEY", "KGSERVE_DATA_DIR", "KGSERVE_CALL_TIMEOUT", "KGSERVE_TOOLS", "KGSERVE_ANSWERS")}
_INHERITED_VARIABLES_PATTERN = re.compile(
    r"KGSERVE_.+|OTEL_.+|LC_.+|SSL_CERT_.+|COVERAGE_.+|(?i:https?|all|no)_(?i:proxy)"
    r"|PATH|HOME|USER|LOGNAME|LANG|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH|OMP_NUM_THREADS"
)


def build_server_launch_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of an editor that a server needs, with absolute paths."""
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


class ServerStopFailed(Exception):
    """A server did not exit. ``str(error)`` is a message for the user."""


def stop_server(
    data_dir: Path, *, force: bool = False, patience: float = STOP_TIMEOUT_SECONDS
) -> DiscoveredServer | None:
    """Stop the server of a data folder and wait until it has exited. Return that server, or None if none runs.

    With ``force``, it is killed without finishing its work; acknowledged writes are in the journals either way. Raises
    ServerStopFailed if it does not exit, or if the process that holds the folder is not a server.
    """
    found, process = find_running_server_of_data_folder(data_dir), find_data_folder_lock_holder(data_dir)
    if process is None:
        return None
    if found is None:
        raise ServerStopFailed(
            f"process {process or 'unknown'} holds {data_dir} but is no running server; end it manually"
        )
    try:
        os.kill(process, signal.SIGKILL if force else signal.SIGTERM)
    except PermissionError:
        raise ServerStopFailed(f"process {process} belongs to another user; only that user can stop it") from None
    except ProcessLookupError:
        return found
    deadline = time.monotonic() + patience
    while find_data_folder_lock_holder(data_dir) == process:
        if time.monotonic() > deadline:
            raise ServerStopFailed(
                f"process {process} has not exited within {patience:g} s; `kgserve stop --force` kills it"
            )
        time.sleep(_FIRST_POLL_SECONDS)
    return found


def replace_older_server(data_dir: Path, found: DiscoveredServer) -> str | None:
    """Stop an older server so that the current version is started. Return a message about what was done or why not.

    Returns None if the server is not older. Only an automatically started server that was idle for a minute is stopped.
    """
    if _numbers(found.version) >= _numbers(__version__):
        return None
    older = f"the server at {found.url} (process {found.pid}) is version {found.version or 'unknown'}"
    if found.pid != _launched(data_dir):
        return f"{older}, this is {__version__}; it was started manually and has to be restarted manually"
    if _idle_seconds(data_dir) < REPLACEABLE_IDLE_SECONDS:
        return f"{older} and in use, this is {__version__}; it is replaced when idle, or after `kgserve stop`"
    try:
        stop_server(data_dir)
    except ServerStopFailed as error:
        return f"{older}, this is {__version__}; {error}"
    return f"{older} and was idle; version {__version__} replaces it"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version or ""))


def _launched(data_dir: Path) -> int | None:
    """Return the process id of the server that was last started automatically."""
    with suppress(OSError, ValueError):
        return int((data_dir / LAUNCH_LOCK_FILE).read_text(encoding="ascii"))
    return None


def _idle_seconds(data_dir: Path) -> float:
    with suppress(OSError):
        return time.time() - (data_dir / SERVER_FILE).stat().st_mtime
    return 0.0


def _open_log(data_dir: Path) -> int:
    """Open server.log for appending, after rotating a large one."""
    path = data_dir / SERVER_LOG_FILE
    if path.exists() and path.stat().st_size > MAX_SERVER_LOG_BYTES:
        path.replace(path.with_name(f"{SERVER_LOG_FILE}.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _log_end(data_dir: Path) -> str:
    """Return the last lines of the log, as the end of a message."""
    path = data_dir / SERVER_LOG_FILE
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return f"{path} cannot be read"
    shown = [line for line in lines if line.strip()][-_MAX_LOG_LINES:]
    return "\n".join([f"the end of {path}:", *shown]) if shown else f"{path} is empty"


def _port_is_taken() -> bool:
    """Return whether another process listens on the default port. Invalid ports are left for the server to reject."""
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
    """Hold the launch lock. Raises ServerLaunchFailed if the folder is unusable or another start takes too long."""
    try:
        create_private_folder(data_dir)
        rename_path_obstacle(data_dir / LAUNCH_LOCK_FILE)
        descriptor = os.open(data_dir / LAUNCH_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ServerLaunchFailed(
            f"{data_dir} cannot be a data folder: {(error.strerror or str(error)).lower()}; choose another with --data"
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
                raise ServerLaunchFailed(f"another process is still starting a server; {_log_end(data_dir)}") from None
            time.sleep(_FIRST_POLL_SECONDS)
        else:
            return
