"""A real server as a child process, and a plain client."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

LISTENING = re.compile(r'"url": "http://127\.0\.0\.1:(\d+)"')
START_SECONDS = 60.0
IDLE_SECONDS = 2.0
KEPT_EVENTS = 2_000
INDEX_SECONDS = 3_600.0
HASHING: dict[str, object] = {"embedding_provider": "hashing", "shutdown_grace": 60}
"""Settings with hashed vectors, whose indexes follow at negligible cost."""


class ServerFailed(Exception):
    """The server did not start, or gave an unexpected answer."""


class HttpReply(NamedTuple):
    """Status and raw body of an answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return msgspec.json.decode(self.body)


class BenchClient:
    """One persistent connection to a server on 127.0.0.1. Not thread-safe."""

    def __init__(self, port: int, timeout: float = 600.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._used = time.monotonic()

    def send(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, media: str = "json"
    ) -> HttpReply:
        """Send an encoded body, or stream one from blocks.

        Raises OSError or HTTPException when the server is unreachable.
        """
        headers = {} if body is None else {"Content-Type": f"application/{media}"}
        if time.monotonic() - self._used > IDLE_SECONDS:
            # The server has closed its end or is about to; the next request opens a new connection.
            self._connection.close()
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            reply = HttpReply(answer.status, answer.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        self._used = time.monotonic()
        return reply

    def call(self, method: str, path: str, value: object = None) -> Any:
        """Send `value` as JSON and return the decoded answer. Raises ServerFailed on any status but 2xx."""
        reply = self.send(method, path, None if value is None else msgspec.json.encode(value))
        return self._require_success(method, path, reply).json()

    def upload(self, store: str, blocks: Iterable[bytes]) -> Any:
        """Stream NDJSON into a store. Return the import's answer."""
        path = f"/api/memory/{store}/import"
        return self._require_success("POST", path, self.send("POST", path, blocks, "x-ndjson")).json()

    def export(self, store: str, question: str = "") -> list[Any]:
        """Return all decoded lines of a store; `question` is the query of the URL, such as `?as_of=7`."""
        path = f"/api/memory/{store}/export{question}"
        reply = self._require_success("GET", path, self.send("GET", path))
        decode = msgspec.json.Decoder().decode
        return [decode(line) for line in reply.body.splitlines()]

    def settle(self, store: str) -> None:
        """Wait until the history and all indexes of a store have applied its last commit."""
        end = time.monotonic() + INDEX_SECONDS
        while behind := {name: lag for name, lag in self._lags(store).items() if lag}:
            if time.monotonic() > end:
                raise ServerFailed(f"{store} still lags after {INDEX_SECONDS:.0f} s: {behind}")
            time.sleep(0.1)

    def _lags(self, store: str) -> dict[str, int]:
        """Return the lag of each projection in commits or texts; the engine follows only on request."""
        stats = self.call("GET", f"/api/memory/{store}/stats")
        own = {name: value for name, value in stats.items() if name.endswith("_lag") and name != "engine_lag"}
        return own | {index["name"]: max(index["lag"], index["pending"]) for index in stats["indexes"]}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @staticmethod
    def _require_success(method: str, path: str, reply: HttpReply) -> HttpReply:
        if not 200 <= reply.status < 300:
            raise ServerFailed(f"{method} {path}: {reply.status} {reply.body[:500].decode(errors='replace')}")
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ServerProcess:
    """`kgserve serve` on a free port. Reads its log lines (JSON, standard error) as they arrive.

    ``module`` is run instead of `kgserve`; ``environment`` is added to that of this process.
    """

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, object] | None = None,
        *,
        module: str = "kgserve",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self._events: list[dict[str, Any]] = []
        self._seen = 0
        self._news = threading.Condition()
        place = ["--host", "127.0.0.1", "--port", "0", "--data", str(data)]
        chosen = {"readers": 0, **(settings or {})}  # figures are of one process unless a benchmark asks for more
        given = {f"KGSERVE_{name.upper()}": str(value) for name, value in chosen.items()}
        self._process = launch(module, ["serve", *place, "--log-format", "json"], given | dict(environment or {}))
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.pid = self._process.pid
        self.port = self._wait_for_port()

    def client(self, timeout: float = 600.0) -> BenchClient:
        """Return a new connection."""
        return BenchClient(self.port, timeout)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return once /ready answers 200. Raises ServerFailed after `seconds`."""
        end = time.monotonic() + seconds
        with self.client() as client:
            while (reply := client.send("GET", "/ready")).status != 200:
                if time.monotonic() > end:
                    raise ServerFailed(f"not ready after {seconds:.0f} s: {reply.body[:300]!r}")
                time.sleep(0.05)

    def mark(self) -> int:
        """Return the current position in the log, for `wait_event`."""
        with self._news:
            return self._seen

    def wait_event(self, name: str, since: int, seconds: float) -> dict[str, Any] | None:
        """Return the first log line with event `name` after position `since`; None when none arrives in time."""
        end = time.monotonic() + seconds
        with self._news:
            while True:
                fresh = self._events[max(0, len(self._events) - (self._seen - since)) :] if self._seen > since else []
                for event in fresh:
                    if event.get("event") == name:
                        return event
                if not self._news.wait(end - time.monotonic()):
                    return None

    def is_within(self, first: str, last: str) -> bool:
        """Return True if the newest log line of the two events is that of the first."""
        with self._news:
            names = [event.get("event") for event in self._events if event.get("event") in (first, last)]
        return names[-1:] == [first]

    def log_tail(self, count: int = 20) -> list[dict[str, Any]]:
        """Return the newest log lines."""
        with self._news:
            return self._events[-count:]

    def process_status(self) -> dict[str, str]:
        """Return the fields of /proc/PID/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def mebibytes(self, field: str) -> float:
        """Return a memory field of the process in MiB: VmRSS is the current, VmHWM the maximum value."""
        return int(self.process_status()[field].split()[0]) / 1024

    def processor_seconds(self) -> float:
        """Return the CPU seconds of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> int:
        """Return the number of threads of the process."""
        return int(self.process_status()["Threads"])

    def descriptors(self) -> int:
        """Return the number of open file descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - names are enough

    @property
    def running(self) -> bool:
        """True if the process is alive."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, as a power cut would. Raises ServerFailed when it had already exited."""
        ended = self._process.poll()
        self._wait_for_exit()
        if ended is not None:
            raise ServerFailed(f"the server had already exited with code {ended}; log: {self.log_tail()}")

    def _wait_for_exit(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def stop(self, seconds: float = 60.0) -> None:
        """Stop the process with SIGTERM. Raises ServerFailed unless it exits in time with code 0."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"still running {seconds:.0f} s after SIGTERM") from None
        self._close_pipes()
        if code not in (0, -signal.SIGTERM):
            raise ServerFailed(f"exit code {code} after SIGTERM; log: {self.log_tail()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.running:
            return
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _close_pipes(self) -> None:
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _wait_for_port(self) -> int:
        assert self._process.stdout is not None
        guard = threading.Timer(START_SECONDS, self._process.kill)
        guard.start()
        try:
            for line in self._process.stdout:
                if found := LISTENING.search(line):
                    return int(found[1])
        finally:
            guard.cancel()
        self._wait_for_exit()
        raise ServerFailed(f"the server did not start; log: {self.log_tail()}")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            event: Any = {"event": line.rstrip()}
            with suppress(msgspec.DecodeError):
                event = msgspec.json.decode(line)
            with self._news:
                self._events.append(event if isinstance(event, dict) else {"event": line.rstrip()})
                self._seen += 1
                del self._events[:-KEPT_EVENTS]
                self._news.notify_all()


@contextmanager
def scratch_folder() -> Generator[Path]:
    """Yield a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def serving(settings: Mapping[str, object], data: Path | None = None) -> Generator[tuple[ServerProcess, BenchClient]]:
    """Yield a server and its client, on a data folder or a temporary one."""
    with scratch_folder() as folder, ServerProcess(data or folder, settings) as server, server.client() as client:
        yield server, client


@contextmanager
def background_work(work: Callable[[threading.Event], None]) -> Generator[None]:
    """Run `work` in a thread during a block. The work must end when its event is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def unwind_on_sigterm() -> None:
    """Make SIGTERM unwind this process, so that the servers it has started end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def launch(module: str, arguments: list[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process that runs a module, with ``more`` in its environment."""
    command, environment = [sys.executable, "-m", module, *arguments], {**os.environ, **more}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `kgserve` with these arguments to its end."""
    command = [sys.executable, "-m", "kgserve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def doctor(data: Path, store: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kgserve doctor STORE` on the folder of a stopped server; the caller checks exit code and output."""
    return run(["doctor", "--data", str(data), store, *arguments])
