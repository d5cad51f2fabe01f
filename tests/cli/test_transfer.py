from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from kgserve.platform.metrics.exposition import MetricsScrape
from tests.cli.running import (
    COMMAND,
    SERVER_TIMEOUT_SECONDS,
    CommandResult,
    ServerProcessHandle,
    environment,
    kgserve,
    serving,
)
from tests.stores.writing import until

NDJSON = {"content-type": "application/x-ndjson"}
NODES = [
    {
        "kind": "node",
        "id": "req-login",
        "type": "requirement",
        "content": "Login\nwith \t OAuth",
        "attributes": {"p": 1},
    },
    {"kind": "node", "id": "sym/oauth", "type": "code", "content": "", "attributes": {}},
]
EDGE = {"kind": "edge", "from": "req-login", "to": "sym/oauth", "relation_type": "IMPLEMENTED_BY", "weight": 0.5}


def lines(*objects: object) -> str:
    return "".join(msgspec.json.encode(each).decode() + "\n" for each in objects)


def load(server: ServerProcessHandle, store: str, text: str) -> CommandResult:
    return kgserve("import", store, "-", "--server", server.url, stdin=text)


def test_import_and_export_round_trip(server: ServerProcessHandle, tmp_path: Path) -> None:
    file = tmp_path / "graph.ndjson"
    file.write_text(lines(*NODES, EDGE))
    loaded = kgserve("import", "round", file, "--data", server.data)
    assert loaded.code == 0, loaded
    assert "nodes: 2 sent, 2 created" in loaded.out
    assert "edges: 1 sent, 1 created" in loaded.out

    exported = kgserve("export", "round", "--data", server.data)
    assert exported.code == 0
    rows = [msgspec.json.decode(line) for line in exported.out.splitlines()]
    assert {row["id"]: row["content"] for row in rows if row["kind"] == "node"} == {
        "req-login": "Login\nwith \t OAuth",
        "sym/oauth": "",
    }
    assert [(row["from"], row["to"], row["weight"]) for row in rows if row["kind"] == "edge"] == [
        ("req-login", "sym/oauth", 0.5)
    ]

    target = tmp_path / "out.ndjson"
    assert kgserve("export", "round", "-o", target, "--data", server.data).code == 0
    assert target.read_text() == exported.out
    assert kgserve("import", "copy", target, "--data", server.data).code == 0
    assert sorted(kgserve("export", "copy", "--data", server.data).out.splitlines()) == sorted(
        exported.out.splitlines()
    )


def test_a_second_import_changes_nothing(server: ServerProcessHandle) -> None:
    assert load(server, "twice", lines(*NODES, EDGE)).code == 0
    again = load(server, "twice", lines(*NODES, EDGE))
    assert again.code == 0
    assert "0 created, 0 updated, 2 unchanged" in again.out


def test_invalid_lines_are_named_and_the_rest_is_imported(server: ServerProcessHandle) -> None:
    loaded = load(server, "wrong", lines(NODES[0]) + "{nonsense\n" + lines({"kind": "node"}, NODES[1]))
    assert loaded.code == 1
    assert "nodes: 2 sent, 2 created" in loaded.out
    assert "2 lines wrong" in loaded.err
    assert "line 2: " in loaded.err
    assert "line 3: " in loaded.err


def test_an_edge_without_its_node_is_reported(server: ServerProcessHandle) -> None:
    loaded = load(server, "loose", lines(NODES[0], EDGE))
    assert loaded.code == 1
    assert "1 line skipped" in loaded.err
    assert "line 2: " in loaded.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("import", "no such name", "-"), "a store's name is"), (("export", "no-such-store"), "no-such-store")],
    ids=["import", "export"],
)
def test_the_servers_error_messages_are_shown(
    server: ServerProcessHandle, arguments: tuple[str, ...], reason: str
) -> None:
    refused = kgserve(*arguments, "--server", server.url)
    assert refused.code == 1
    assert reason in refused.err
    assert refused.out == ""


@pytest.mark.parametrize(
    "arguments", [("import", "x", "-"), ("export", "x"), ("stores",)], ids=lambda each: str(each[0])
)
def test_a_missing_server_has_its_own_exit_code(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    missing = tmp_path / "none"
    for place, reason in (
        (("--server", f"127.0.0.1:{port}"), f"no server answers at http://127.0.0.1:{port}"),
        (("--data", str(missing)), f"data folder {missing} does not exist"),
        ((), f"no server answers at http://127.0.0.1:{port}"),
    ):
        lost = kgserve(*arguments, *place, variables={"KGSERVE_PORT": str(port), "KGSERVE_DATA_DIR": str(missing)})
        assert lost.code == 3, lost
        assert reason in lost.err


def test_a_data_folder_without_a_server_does_not_select_another_server(
    server: ServerProcessHandle, tmp_path: Path
) -> None:
    elsewhere = {"KGSERVE_PORT": server.url.rpartition(":")[2]}
    for command in (("stores",), ("export", "x"), ("import", "x", "-"), ("reindex", "x")):
        lost = kgserve(*command, "--data", tmp_path / "typo", variables=elsewhere)
        assert (lost.code, lost.err) == (3, f"kgserve: data folder {tmp_path / 'typo'} does not exist\n")
    lost = kgserve("stores", "--data", tmp_path, variables=elsewhere)
    assert lost.code == 3
    assert f"no server has opened {tmp_path}" in lost.err


def test_an_invalid_url_is_wrong_usage() -> None:
    assert kgserve("stores", "--server", "ftp://127.0.0.1").code == 2


def test_a_missing_file_is_wrong_usage() -> None:
    missing = kgserve("import", "x", "/no/such/file")
    assert missing.code == 2
    assert "/no/such/file" in missing.err


@contextmanager
def breaking_off(sent: bytes) -> Generator[str]:
    """Yield a server that takes one request, sends ``sent`` and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(SERVER_TIMEOUT_SECONDS)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_an_interrupted_export_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.ndjson"
    target.write_text("before")
    with breaking_off(HEAD + b"5\r\n{...}\r\n") as url:
        broken = kgserve("export", "x", "-o", target, "--server", url)
    assert broken.code == 1
    assert "broke" in broken.err
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupted_export_to_a_pipe_fails() -> None:
    with breaking_off(HEAD + b"5\r\n{...}\r\n") as url:
        broken = kgserve("export", "x", "--server", url)
    assert (broken.code, broken.out) == (1, "{...}")


def test_an_answer_of_another_server_is_reported() -> None:
    with breaking_off(b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>") as url:
        refused = kgserve("stores", "--server", url)
    assert refused.code == 1
    assert "404" in refused.err
    with breaking_off(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>") as url:
        refused = kgserve("stores", "--server", url)
    assert refused.code == 1
    assert "is not from kgserve" in refused.err


def test_a_reader_that_exits_early_is_not_an_error(server: ServerProcessHandle) -> None:
    many = [{"kind": "node", "id": f"n{number}", "type": "x", "content": "y" * 1000} for number in range(500)]
    assert load(server, "early", lines(*many)).code == 0
    with subprocess.Popen(
        [*COMMAND, "export", "early", "--server", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SERVER_TIMEOUT_SECONDS) == 1


def test_an_interrupted_import_is_reported(server: ServerProcessHandle) -> None:
    with subprocess.Popen(
        [*COMMAND, "import", "interrupted", "-", "--server", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(lines(*NODES).encode())
        process.stdin.flush()
        metrics = f"{server.url}/metrics"
        until(
            lambda: MetricsScrape.read(httpx.get(metrics).text).value("kgserve_requests_in_progress") == 2
        )  # and this one
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(SERVER_TIMEOUT_SECONDS) == 130
        assert process.stderr.read().strip() == b"kgserve: interrupted"
    assert kgserve("stores", "--server", server.url).code == 0


def test_a_killed_first_import_leaves_no_empty_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        httpx.put(f"{server.url}/api/memory/kept", json={}).raise_for_status()
        httpx.post(f"{server.url}/api/memory/empty/import", content=b"", headers=NDJSON).raise_for_status()
        connection = http.client.HTTPConnection(httpx.URL(server.url).host, httpx.URL(server.url).port)
        with closing(connection):
            connection.putrequest("POST", "/api/memory/new/import")
            for name, value in {**NDJSON, "content-length": "1000000"}.items():
                connection.putheader(name, value)
            connection.endheaders(lines(*NODES).encode())
            until((data / "new_memory" / "journal").exists)
            until(lambda: "new" in {each["name"] for each in httpx.get(f"{server.url}/api/memory").json()["stores"]})
            server.process.kill()
            server.process.wait(SERVER_TIMEOUT_SECONDS)
    with serving(data) as server:
        found = {each["name"] for each in httpx.get(f"{server.url}/api/memory").json()["stores"]}
        assert found == {"kept", "empty"}
        assert '"event": "empty_store_removed"' in (tmp_path / "data.log").read_text()
        imported = httpx.post(f"{server.url}/api/memory/new/import", content=lines(*NODES), headers=NDJSON)
        assert imported.json()["nodes_created"] == len(NODES)
