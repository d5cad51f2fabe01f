"""Reader processes behind a real server: the same answers, no lag, limits of keys, and deaths."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from kgserve.platform.access.authentication import add_api_key, create_api_key, revoke_api_key
from kgserve.server.readers import reader_count_controller
from kgserve.server.readers.reader_channel import count_missing_request_bytes
from tests.cli.running import ServerProcessHandle, serving
from tests.server.http.serving import serving as serving_here
from tests.stores.writing import until

RATE = 40
"""Requests per second of a key in the test of rate limits; twice as many at once."""
OPTIONS = ("--indexes", "none", "--history", "false", "--rate-limit", "0", "--keep-alive", "120")


class Got(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def stable(self) -> tuple[int, bytes, dict[str, str]]:
        """All that two answers to the same request have in common."""
        return self.status, self.body, {name: value for name, value in self.headers.items() if name != "date"}


class Client:
    """One connection that is kept open. ``key`` is sent with each request."""

    def __init__(self, url: str, key: str = "") -> None:
        address = urlsplit(url)
        self.connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Got:
        sent = None if body is None else json.dumps(body)
        kind = {} if sent is None else {"Content-Type": "application/json"}
        self.connection.request(method, path, sent, self._headers | kind | headers)
        response = self.connection.getresponse()
        return Got(response.status, response.read(), {name.lower(): value for name, value in response.headers.items()})

    def get(self, path: str, **headers: str) -> Got:
        return self.ask("GET", path, **headers)

    def write(self, store: str, *nodes: str, content: str = "", edges: Any = ()) -> int:
        """Write nodes, and return the sequence of the commit."""
        rows = [{"id": node, "type": "t", "content": content} for node in nodes]
        found = self.ask("POST", f"/api/memory/{store}/inject", {"nodes": rows, "edges": [*edges]})
        assert found.status == 200, found
        return json.loads(found.body)["sequence"]

    def close(self) -> None:
        self.connection.close()

    @property
    def port(self) -> int:
        """Own port of the connection; 0 while it is closed."""
        return 0 if self.connection.sock is None else self.connection.sock.getsockname()[1]


def children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread may have ended
            found += map(int, path.read_text().split())
    return found


def command_line(process: int) -> bytes:
    """Return the arguments of a process; empty once it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def reader_processes(server: ServerProcessHandle) -> list[int]:
    return [
        reader
        for child in children(server.process.pid)
        if b"kgserve.server.readers" in command_line(child)
        for reader in children(child)
    ]


def has_connection(process: int, client: Client) -> bool:
    """Return whether a process serves a client's connection."""
    server = client.connection.port
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = f":{server:04X}", f":{client.port:04X}"
    sockets = {f"socket:[{row[9]}]" for row in table if (row[1][-5:], row[2][-5:]) == ends}
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(path) in sockets:  # noqa: PTH115 - its result is no path
                return True
    return False


def is_served(client: Client, reader: int, server: ServerProcessHandle) -> bool:
    """Return whether a reader process serves a connection, and not the server."""
    processes = reader, server.process.pid
    # The one that has sent the connection away closes its own descriptor a little later.
    until(lambda: client.port == 0 or sum(has_connection(each, client) for each in processes) == 1)
    return has_connection(reader, client)


def connected(server: ServerProcessHandle, path: str, key: str = "") -> tuple[Client, int]:
    """Return a client whose connection a reader process serves, and that process."""
    client, found = Client(server.url, key), list[int]()

    def is_handed_over() -> bool:
        client.get(path)
        found[:] = [reader for reader in reader_processes(server) if has_connection(reader, client)]
        return bool(found)

    until(is_handed_over)
    return client, found[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcessHandle]:
    options = (*OPTIONS, "--readers", "2", "--body-timeout", "2")
    with serving(tmp_path_factory.mktemp("readers") / "data", *options) as started:
        until(lambda: len(reader_processes(started)) == 2)
        yield started
        started.process.terminate()
        until(lambda: not children(started.process.pid))


def test_answers_and_refusals_equal_those_of_the_server(server: ServerProcessHandle) -> None:
    edges = [{"from": "a b/ü", "to": f"n{number}", "relation_type": "r"} for number in range(40)]
    names = ["a b/ü", *(f"n{number}" for number in range(40))]
    with closing(Client(server.url)) as direct:
        direct.write("same", *names, content="x" * 700, edges=edges)
        client, reader = connected(server, "/api/memory/same/nodes/n1")
        nodes = "/api/memory/same/nodes"
        cases: list[tuple[str, str, Any, dict[str, str]]] = [
            ("GET", f"{nodes}/a%20b%2F%C3%BC", None, {}),
            ("GET", f"{nodes}/a%20b%2F%C3%BC", None, {"Accept-Encoding": "gzip"}),
            ("GET", f"{nodes}/a%20b%2F%C3%BC/outgoing?limit=3&offset=2", None, {"Origin": server.url}),
            ("GET", f"{nodes}/n3/incoming", None, {}),
            ("POST", "/api/memory/same/get", {"ids": ["n1", "nope"]}, {}),
            ("POST", "/api/memory/same/traverse", {"start_id": "n1", "direction": "both", "depth": 2}, {}),
            ("GET", f"{nodes}/nope", None, {}),
            ("GET", f"{nodes}/n1?limit=3", None, {}),
            ("GET", f"{nodes}/n1?field_names=versioned", None, {}),
            ("GET", f"{nodes}/n1?as_of=1", None, {}),
            ("GET", f"{nodes}/n1", None, {"Host": "evil.example"}),
            ("GET", f"{nodes}/n1", None, {"Origin": "https://evil.example"}),
            ("GET", "/api/memory/other/nodes/n1", None, {}),
            ("POST", "/api/memory/same/traverse", {"start_id": 3}, {}),
            ("GET", "/api/memory/same/stats", None, {}),
        ]
        answered = list[str]()
        for method, path, body, headers in cases:
            direct.get("/health")  # so that the server answers the next request itself
            headers["X-Request-Id"] = "the-same"
            expected, found = direct.ask(method, path, body, **headers), client.ask(method, path, body, **headers)
            assert found.stable == expected.stable, (path, headers)
            if is_served(client, reader, server):
                answered.append(path)
            else:
                client.close()
                client, reader = connected(server, f"{nodes}/n1")
        client.close()
        assert answered == [path for _, path, *_ in cases[:6]]
        metrics = direct.get("/metrics").body
        assert b"kgserve_reader_processes 2.0" in metrics
        assert b'/api/memory/{store}/traverse",status="400"} 2.0' in metrics


def test_bodies_that_stop_arriving_are_no_errors(server: ServerProcessHandle) -> None:
    with closing(Client(server.url)) as direct:
        direct.write("late", "n")
    client, _ = connected(server, "/api/memory/late/nodes/n")
    connection = client.connection.sock
    head = b"POST /api/memory/late/get HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(head + b"Content-Length: 9\r\n\r\n{")
    assert connection.recv(12) == b"HTTP/1.1 408"
    client.close()
    log = server.data.parent / f"{server.data.name}.log"
    until(lambda: '"status": 408' in log.read_text())
    assert "answer_broken_off" not in log.read_text()


def test_large_requests_that_arrive_before_earlier_answers_were_read_are_not_lost(server: ServerProcessHandle) -> None:
    with closing(Client(server.url)) as direct:
        direct.write("unread", "n", content="x" * 400_000)
    client, _ = connected(server, "/api/memory/unread/nodes/n")
    connection = client.connection.sock
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # most answers wait in the reader process
    for _ in range(20):
        connection.sendall(b"GET /api/memory/unread/nodes/n HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(0.02)  # so that they are no pipelined requests, which only the server answers
    body = json.dumps({"nodes": [{"id": "late", "type": "t", "content": "y" * 900_000}]}).encode()
    head = b"POST /api/memory/unread/inject HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with ThreadPoolExecutor(1) as threads:
        sending, received = threads.submit(connection.sendall, head + body), b""
        while b'"nodes_created":1' not in received[-1000:]:
            received += (block := connection.recv(1 << 20))
            assert block
        sending.result()
    assert received.count(b"HTTP/1.1 200") == 21
    client.close()


def test_writes_are_visible_in_all_processes_at_once(server: ServerProcessHandle) -> None:
    with closing(Client(server.url)) as writer:
        writer.write("lag", "n", content="0")
        clients = [connected(server, "/api/memory/lag/nodes/n")[0] for _ in range(4)]
        acknowledged, is_done = [0], threading.Event()

        def read(client: Client) -> int:
            newest = count = 0
            while not is_done.is_set():
                expected = max(newest, acknowledged[0])
                found = client.get("/api/memory/lag/nodes/n")
                newest = int(json.loads(found.body)["node"]["content"])
                assert newest >= expected
                count += 1
            return count

        with ThreadPoolExecutor(len(clients)) as threads:
            running = [threads.submit(read, client) for client in clients]
            for number in range(1, 120):
                writer.write("lag", "n", content=str(number))
                acknowledged[0] = number
            is_done.set()
            assert min(each.result() for each in running) > 0
        for client in clients:
            client.close()


def test_dropped_and_recreated_stores_are_never_mixed_up(server: ServerProcessHandle) -> None:
    with closing(Client(server.url)) as writer:
        writer.write("again", "n", content="0")
        client, reader = connected(server, "/api/memory/again/nodes/n")
        for number in range(1, 12):
            assert writer.ask("DELETE", "/api/memory/again?confirm=again").status == 200
            assert client.get("/api/memory/again/nodes/n").status == 404
            writer.write("again", "n", *(f"m{each}" for each in range(number)), content=str(number))
            for _ in range(3):
                found = client.get("/api/memory/again/nodes/n")
                assert json.loads(found.body)["node"]["content"] == str(number)
        client.close()
        assert reader in reader_processes(server)


class SteadyReader:
    """A client that reads a node until it is stopped, and connects again when its connection is closed."""

    def __init__(self, url: str, path: str, content: str) -> None:
        self._path, self._content = path, content
        self.client = Client(url)
        self.answers = self.closed = 0
        self.is_done = threading.Event()

    def run(self) -> None:
        with closing(self.client) as client:
            while not self.is_done.is_set():
                try:
                    found = client.get(self._path)
                except (ConnectionError, http.client.HTTPException):
                    self.closed += 1
                    client.close()
                    continue
                assert found.status == 200, found
                assert json.loads(found.body)["node"]["content"] == self._content
                self.answers += 1


@contextmanager
def steady_readers(url: str, path: str, content: str, count: int = 4) -> Generator[list[SteadyReader]]:
    """Read a node with several clients for the time of a block; their failures are raised at the end."""
    clients = [SteadyReader(url, path, content) for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(each.run) for each in clients]
        try:
            yield clients
        finally:
            for each in clients:
                each.is_done.set()
        for each in running:
            each.result()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_reader_processes_that_die_or_hang_are_replaced(server: ServerProcessHandle, number: signal.Signals) -> None:
    with closing(Client(server.url)) as writer:
        writer.write("kill", "n", content="right")
    with steady_readers(server.url, "/api/memory/kill/nodes/n", "right") as clients:
        reader = reader_processes(server)[0]
        until(lambda: any(has_connection(reader, each.client) for each in clients))
        os.kill(reader, number)
        until(lambda: len({*reader_processes(server)} - {reader}) == 2)
        answered = [each.answers for each in clients]
        until(lambda: all(each.answers > before + 50 for each, before in zip(clients, answered, strict=True)))
    assert 1 <= sum(each.closed for each in clients) < len(clients), "connections break with their own reader only"


def test_purge_waits_until_reader_processes_release_former_bases(server: ServerProcessHandle) -> None:
    def maps_removed_base(reader: int) -> bool:
        lines = Path(f"/proc/{reader}/maps").read_text().splitlines()
        return any("purge_memory" in line and line.endswith("(deleted)") for line in lines)

    with closing(Client(server.url)) as writer:
        writer.write("purge", "n", content="kept")
        made = writer.ask("POST", "/api/v1/retain?store=purge", {"content": "a secret"})
        memory = json.loads(made.body)["operations"][0]["memory_id"]
        clients = [connected(server, f"/api/memory/purge/nodes/{memory}") for _ in range(4)]
        with steady_readers(server.url, "/api/memory/purge/nodes/n", "kept", 2) as others:
            changed = writer.ask("PATCH", "/api/memory/purge", {"history": 7})
            assert changed.status == 200, changed
            done = writer.ask("POST", "/api/v1/forget?store=purge", {"ids": [memory], "erase": True})
            assert done.status == 200, done
            assert not any(map(maps_removed_base, reader_processes(server)))
        assert not any(each.closed for each in others)
        for client, _ in clients:
            assert client.get(f"/api/memory/purge/nodes/{memory}").status == 404
            client.close()


def test_revoked_keys_are_refused_and_readers_end_with_their_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    made = {role: create_api_key(role, role, ["*"], time.time_ns() // 1000) for role in ("read", "admin")}
    for key, _ in made.values():
        add_api_key(data, key)
    with serving(data, *OPTIONS, "--readers", "1") as server:
        with closing(Client(server.url, made["admin"][1])) as admin:
            admin.write("s", "n")
        client, _ = connected(server, "/api/memory/s/nodes/n", made["read"][1])
        assert client.ask("POST", "/api/memory/s/inject", {"nodes": []}).status == 403
        client.close()
        client, reader = connected(server, "/api/memory/s/nodes/n", made["read"][1])
        revoke_api_key(data, made["read"][0].id, time.time_ns() // 1000)
        assert client.get("/api/memory/s/nodes/n").status == 401
        client.close()
        with closing(Client(server.url, made["admin"][1])) as admin:
            records = json.loads(admin.get("/api/audit").body)["records"]
        acts = [(row["act"], row["outcome"]) for row in records]
        assert {("GET /api/memory/s/nodes/n", "401"), ("inject", "403")} <= {*acts}, acts
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{reader}").exists())


def test_a_killed_server_with_readers_is_replaced_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acknowledged: list[str] = []
    with serving(data, *OPTIONS, "--readers", "2") as server:
        until(lambda: len(reader_processes(server)) == 2)
        with closing(Client(server.url)) as first:
            first.write("s", "first")
        client, _ = connected(server, "/api/memory/s/nodes/first")
        readers = reader_processes(server)

        def write() -> None:
            with closing(Client(server.url)) as writer, suppress(OSError, http.client.HTTPException):
                for number in count():
                    writer.write("s", f"n{number}")
                    acknowledged.append(f"n{number}")

        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: len(acknowledged) > 20)
        os.kill(server.process.pid, signal.SIGKILL)
        thread.join()
        client.close()
    with serving(data, *OPTIONS, "--readers", "2") as server:
        until(lambda: not any(Path(f"/proc/{reader}").exists() for reader in readers))
        with closing(Client(server.url)) as client:
            for node in acknowledged:
                assert client.get(f"/api/memory/s/nodes/{node}").status == 200
            client.write("s", "later")
        client, _ = connected(server, "/api/memory/s/nodes/later")
        client.close()


def test_automatic_readers_start_under_load_keep_rate_limits_and_return_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MIN_BUSY_SHARE", 0), ("MIN_BUSY_READS_PER_SECOND", 20), ("BUSY_SECONDS_BEFORE_START", 1)):
        monkeypatch.setattr(reader_count_controller, name, value)
    monkeypatch.setattr(reader_count_controller, "IDLE_SECONDS_BEFORE_END", 2)
    monkeypatch.setattr(reader_count_controller, "IDLE_READS_PER_SECOND", 15)
    key, text = create_api_key("reader", "admin", ["*"], time.time_ns() // 1000)
    (tmp_path / "data").mkdir(mode=0o700)
    add_api_key(tmp_path / "data", key)
    with serving_here(tmp_path / "data", readers="auto", rate_limit=RATE, keep_alive=120) as server:
        readers = server.server.readers
        assert readers is not None
        with closing(Client(server.url, text)) as client:
            client.write("s", "n")
            port, served = client.port, 0

            def is_serving(expected: bool) -> bool:
                nonlocal served
                time.sleep(0.03 if expected else 0.15)
                found = client.get("/api/memory/s/nodes/n")
                assert (found.status, client.port) == (200, port), found
                return bool(readers.running_count) is expected and bool(readers.count_connections()) is expected

            until(lambda: is_serving(expected=True))
            admitted, began = 0, time.monotonic()
            while client.get("/api/memory/s/nodes/n").status == 200:
                admitted += 1
            assert admitted <= RATE * (2 + time.monotonic() - began) + 1
            until(lambda: client.get("/api/memory/s/nodes/n").status == 200)
            until(lambda: is_serving(expected=False))


WELL_FRAMED = b"GET /api/memory/s/nodes/a?valid_at=any HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"
WITH_BODY = b"POST /api/memory/s/get HTTP/1.1\r\ncontent-LENGTH:  2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (WELL_FRAMED, 0),
        (WITH_BODY, 0),
        (WITH_BODY[:-1], 1),
        (WITH_BODY[:-2], 2),
        (WELL_FRAMED[:-1], None),
        (WELL_FRAMED * 2, None),
        (WITH_BODY + b"}", None),
        (WITH_BODY.replace(b"2", b"+2"), None),
        (WITH_BODY.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n"), None),
        (WITH_BODY.replace(b"content-LENGTH:  2", b"Transfer-Encoding: chunked"), None),
        (WITH_BODY.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), None),
        (WELL_FRAMED.replace(b"valid_at", b"as_of"), None),
        (WELL_FRAMED.replace(b"/nodes/a", b"/stats"), None),
        (WELL_FRAMED.replace(b"GET", b"HEAD"), None),
        (WELL_FRAMED.replace(b"1.1", b"1.0"), None),
        (WELL_FRAMED.replace(b"nodes", b"no\xffdes"), None),
        (WELL_FRAMED.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"), None),
        (b"\r\n\r\n", None),
        (b"\x16\x03\x01", None),
    ],
)
def test_only_single_well_framed_reads_are_handed_over(data: bytes, expected: int | None) -> None:
    assert count_missing_request_bytes(data) == expected
