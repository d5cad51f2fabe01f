"""Reader processes behind a real server: the same answers, no lag, limits of keys, and deaths."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from kgserve.platform.access.authentication import add_api_key, create_api_key, revoke_api_key
from kgserve.server.readers.reader_channel import count_missing_request_bytes
from tests.cli.running import ServerProcessHandle, serving
from tests.stores.writing import until

OPTIONS = ("--indexes", "none", "--history", "false", "--rate-limit", "0")


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
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def reader_processes(server: ServerProcessHandle) -> list[int]:
    return [reader for child in children(server.process.pid) for reader in children(child)]


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


def connected(server: ServerProcessHandle, path: str, key: str = "") -> tuple[Client, int]:
    """Return a client whose connection a reader process serves, and that process."""
    client, found = Client(server.url, key), list[int]()

    def is_served() -> bool:
        client.get(path)
        found[:] = [reader for reader in reader_processes(server) if has_connection(reader, client)]
        return bool(found)

    until(is_served)
    return client, found[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcessHandle]:
    with serving(tmp_path_factory.mktemp("readers") / "data", *OPTIONS, "--readers", "2") as started:
        until(lambda: len(reader_processes(started)) == 2)
        yield started


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
            answered += [path] if has_connection(reader, client) else []
            assert found.stable == expected.stable, (path, headers)
            if not has_connection(reader, client):
                client.close()
                client, reader = connected(server, f"{nodes}/n1")
        client.close()
        assert answered == [path for _, path, *_ in cases[:6]]
        metrics = direct.get("/metrics").body
        assert b'/api/memory/{store}/traverse",status="400"} 2.0' in metrics


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


def test_killed_reader_process_is_replaced(server: ServerProcessHandle) -> None:
    with closing(Client(server.url)) as writer:
        writer.write("kill", "n")
        client, reader = connected(server, "/api/memory/kill/nodes/n")
        os.kill(reader, signal.SIGKILL)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client.get("/api/memory/kill/nodes/n")
        assert writer.get("/api/memory/kill/nodes/n").status == 200
        until(lambda: len(reader_processes(server)) == 2 and reader not in reader_processes(server))
        client, _ = connected(server, "/api/memory/kill/nodes/n")
        client.close()


def test_purge_waits_until_reader_processes_release_former_bases(server: ServerProcessHandle) -> None:
    def maps_removed_base(reader: int) -> bool:
        lines = Path(f"/proc/{reader}/maps").read_text().splitlines()
        return any("purge_memory" in line and line.endswith("(deleted)") for line in lines)

    with closing(Client(server.url)) as writer:
        made = writer.ask("POST", "/api/v1/retain?store=purge", {"content": "a secret"})
        memory = json.loads(made.body)["operations"][0]["memory_id"]
        clients = [connected(server, f"/api/memory/purge/nodes/{memory}") for _ in range(4)]
        done = writer.ask("POST", "/api/v1/forget?store=purge", {"ids": [memory], "erase": True})
        assert done.status == 200, done
        assert not any(map(maps_removed_base, reader_processes(server)))
        for client, _ in clients:
            assert client.get(f"/api/memory/purge/nodes/{memory}").status == 404
            client.close()


def test_revoked_keys_are_refused_and_recorded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    made = {role: create_api_key(role, role, ["*"], time.time_ns() // 1000) for role in ("read", "admin")}
    for key, _ in made.values():
        add_api_key(data, key)
    with serving(data, *OPTIONS, "--readers", "1") as server:
        with closing(Client(server.url, made["admin"][1])) as admin:
            admin.write("s", "n")
            client, reader = connected(server, "/api/memory/s/nodes/n", made["read"][1])
            assert client.ask("POST", "/api/memory/s/inject", {"nodes": []}).status == 403
            client.close()
            client, reader = connected(server, "/api/memory/s/nodes/n", made["read"][1])
            revoke_api_key(data, made["read"][0].id, time.time_ns() // 1000)
            assert client.get("/api/memory/s/nodes/n").status == 401
            client.close()
            acts = [(row["act"], row["outcome"]) for row in json.loads(admin.get("/api/audit").body)["records"]]
            assert {("getNode", "401"), ("inject", "403")} <= {*acts} or ("inject", "403") in acts, acts
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{reader}").exists())


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
