"""The bridge between a simulated editor and a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.cli.mcp_stdio import tool_hints
from kgserve.cli.mcp_stdio.forwarder import CACHED_ANSWER_METHODS, CACHED_ANSWERS_FILE
from kgserve.cli.mcp_stdio.json_rpc_messages import encode_mcp_header
from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.server_discovery import find_running_server_of_data_folder
from scripts.cached_answers import build_cached_answers, build_tool_hints
from tests.cli.mcp_stdio.cutting import cutting
from tests.cli.mcp_stdio.editor import HANDSHAKE, SMALL, STATELESS, Era, editing, end, ending
from tests.cli.running import COMMAND, SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, serving
from tests.stores.writing import until

ERAS: tuple[Era, ...] = ("handshake", "stateless")
both_eras = pytest.mark.parametrize("era", ERAS)

OWN = {
    "kgserve",
    "kgserve.__main__",
    "kgserve.api",
    "kgserve.cli",
    "kgserve.platform",
    "kgserve.platform.http_client",
    "kgserve.platform.file_permissions",
    "kgserve.platform.supported_platforms",
    "kgserve.platform.server_discovery",
    "kgserve.cli.exit_codes",
    "kgserve.platform.version",
}


def entities(*ids: str) -> list[dict[str, Any]]:
    return [{"id": name, "type": "letter", "content": f"the letter {name}"} for name in ids]


def counts(url: str, store: str) -> tuple[int, int]:
    stats = httpx.get(f"{url}/api/memory/{store}/stats").raise_for_status().json()
    return stats["nodes"], stats["sequence"]


@both_eras
def test_an_editor_writes_and_reads_through_it(server: ServerProcessHandle, era: Era) -> None:
    with editing("--data", server.data, "--answers", "both", era=era) as editor:
        editor.open()
        tools = {tool["name"] for tool in editor.ask("tools/list")["tools"]}
        assert {"inject_knowledge_graph", "delete_graph_entity", "traverse_knowledge_graph"} <= tools
        stored = editor.call("inject_knowledge_graph", index=f"read-{era}", nodes=entities("a"), edges=[])
        assert stored["nodes_created"] == 1
        found = editor.call("traverse_knowledge_graph", index=f"read-{era}", start_id="a")
        assert [node["id"] for node in found["nodes"]] == ["a"]
        assert editor.leave() == 0
    assert counts(server.url, f"read-{era}")[0] == 1


@both_eras
def test_tools_use_the_given_store(server: ServerProcessHandle, era: Era) -> None:
    with editing("--data", server.data, "--store", f"default-{era}", era=era) as editor:
        editor.open()
        editor.call("inject_knowledge_graph", nodes=entities("a"), edges=[])
    assert counts(server.url, f"default-{era}")[0] == 1


def test_a_server_is_used_by_its_url(server: ServerProcessHandle, tmp_path: Path) -> None:
    with editing("--url", f"{server.url}/", "--data", tmp_path / "none") as editor:
        editor.open()
        assert editor.ask("ping") == {}
    assert not (tmp_path / "none").exists()


def test_an_invalid_message_gets_an_error_and_the_next_one_an_answer(server: ServerProcessHandle) -> None:
    with editing("--data", server.data) as editor:
        for line, code in [(b"{", -32700), (b"[]", -32600), (b"\xff", -32700), (b'{"id": 1}', -32600)]:
            editor.write(line)
            assert editor.answer(None)["error"]["code"] == code
        editor.write(b"[" * 100_000)
        assert editor.answer(None)["error"]["code"] == -32700
        editor.write(b"\r")
        editor.open()
        assert editor.ask("ping") == {}


@both_eras
def test_an_error_has_the_id_of_its_request(server: ServerProcessHandle, era: Era) -> None:
    with editing("--data", server.data, era=era) as editor:
        editor.open()
        assert editor.answer(editor.send("no/such/method"))["error"]["code"] == -32601
        assert "error" in editor.answer(editor.send("tools/call", {"name": "ünknown\n"}))


def test_a_message_over_the_servers_size_limit_is_rejected_with_its_message(tmp_path: Path) -> None:
    variables = SMALL | {"KGSERVE_MAX_BODY_MB": "1"}
    with serving(tmp_path / "data", variables=variables) as server, editing("--data", server.data) as editor:
        editor.open()
        arguments = {"index": "big", "nodes": entities("a" * (5 << 20)), "edges": []}
        refused = editor.answer(editor.send("tools/call", {"name": "inject_knowledge_graph", "arguments": arguments}))
        assert re.search("exceeds 1 MiB.*several calls.*kgserve import", refused["error"]["message"])
        assert editor.ask("ping") == {}


def test_the_first_tool_answers_within_half_a_second(server: ServerProcessHandle) -> None:
    with editing("--data", server.data) as editor:  # the first call of a server imports its dependencies
        editor.open()
        editor.call("list_stores")

    def soon(era: Era) -> bool:
        bare, started = interpreter_start(), time.perf_counter()
        with editing("--data", server.data, era=era) as editor:
            editor.open()
            editor.call("list_stores")
            return time.perf_counter() - started < max(0.5, 6 * bare)

    for era in ERAS:
        until(partial(soon, era))  # a busy machine may be slow sometimes, but not always


def interpreter_start() -> float:
    """Return the startup time of a Python process in seconds; about 0.02 on an idle machine."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import json, http.client"], check=True)
    return time.perf_counter() - started


def test_the_bridge_imports_only_the_standard_library(server: ServerProcessHandle) -> None:
    program = (
        "import sys\n"
        "from kgserve.__main__ import main\n"
        "sys.argv = ['kgserve', 'mcp', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print(*(f'{n}={getattr(m, \"__file__\", None)}' for n, m in sys.modules.items()), file=sys.stderr)\n"
    )
    meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, "--data", str(server.data)],
        input=msgspec.json.encode(request),
        capture_output=True,
        check=True,
        env=environment({"PYTHONPATH": str(Path(__file__).parents[3])}),
    )
    assert "result" in msgspec.json.decode(done.stdout, type=dict[str, Any])
    loaded = dict(word.split("=", 1) for word in done.stderr.decode().split())
    assert "kgserve.cli.mcp_stdio.forwarder" in loaded
    own = {name for name in loaded if name.partition(".")[0] == "kgserve"}
    assert {name for name in own if not name.startswith("kgserve.cli.mcp_stdio")} <= OWN
    assert not [name for name, path in loaded.items() if "site-packages" in path]
    # More expensive than all other imports together, and easily imported indirectly.
    assert {"asyncio", "logging", "inspect", "dataclasses", "ssl", "email", "subprocess", "argparse"}.isdisjoint(loaded)


@both_eras
def test_requests_run_concurrently_and_progress_is_passed_on(slow: Path, era: Era) -> None:
    with editing("--data", slow, era=era) as editor:
        editor.open()
        meeting = {"place": era, "calls": 5, "steps": 40}
        call = {"name": "meet", "arguments": meeting, "_meta": {"progressToken": "p"}}
        requests = [editor.send("tools/call", call) for _ in range(4)]
        assert "result" in editor.answer(editor.send("tools/list"))
        if era == "handshake":  # a stateless request would have to name its token in the same object
            while len(editor.heard) < 4 * 40:
                editor.heard.append(editor.read())
        requests.append(editor.send("tools/call", call))
        for request in requests:
            assert editor.answer(request)["result"]["content"][0]["text"] == "met"
        if era == "handshake":
            assert {message["method"] for message in editor.heard} == {"notifications/progress"}
            assert len(editor.heard) == 5 * 40


@both_eras
def test_requests_carry_routing_headers(slow: Path, era: Era) -> None:
    with editing("--data", slow, "--store", "project", era=era) as editor:
        editor.open()
        headers = editor.call("received")
    assert headers["authorization"] == "Bearer the-token"
    assert headers["kgserve-store"] == "project"
    assert set(headers["accept"].split(", ")) == {"application/json", "text/event-stream"}
    if era == "stateless":
        assert (headers["mcp-protocol-version"], headers["mcp-method"]) == (STATELESS, "tools/call")
        assert headers["mcp-name"] == "received"
        assert "mcp-session-id" not in headers
    else:
        assert headers["mcp-protocol-version"] == HANDSHAKE
        assert headers["mcp-session-id"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain name", "plain name"),
        ("kgserve://a/b", "kgserve://a/b"),
        ("grün", "=?base64?Z3LDvG4=?="),
        (" a", "=?base64?IGE=?="),
        ("a\r\nb", "=?base64?YQ0KYg==?="),
        ("", "=?base64??="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ],
)
def test_names_are_encoded_in_headers(text: str, value: str) -> None:
    assert encode_mcp_header(text) == value


@both_eras
def test_a_cancelled_request_ends_on_the_server(slow: Path, era: Era) -> None:
    log = slow.with_suffix(".log")
    begun, cancelled = (log.read_text().count(word) for word in ("begun", "cancelled"))
    with editing("--data", slow, era=era) as editor:
        editor.open()
        request = editor.send("tools/call", {"name": "wait", "arguments": {"seconds": 20}})
        until(lambda: log.read_text().count("begun") > begun)
        editor.notify("notifications/cancelled", {"requestId": request})
        until(lambda: log.read_text().count("cancelled") > cancelled)
        assert editor.leave() == 0


def test_outstanding_answers_arrive_after_standard_input_closes(slow: Path) -> None:
    with editing("--data", slow) as editor:
        editor.open()
        request = editor.send("tools/call", {"name": "wait", "arguments": {"seconds": 0.5}})
        assert editor.leave() == 0
        assert editor.answer(request)["result"]["content"][0]["text"] == "waited"


def test_a_signal_ends_the_bridge_immediately(slow: Path) -> None:
    with editing("--data", slow) as editor:
        editor.open()
        editor.send("tools/call", {"name": "wait", "arguments": {"seconds": 10 * SERVER_TIMEOUT_SECONDS}})
        editor.process.terminate()
        assert editor.process.wait(SERVER_TIMEOUT_SECONDS) == 0


def test_the_bridge_ends_with_its_parent_even_if_pipes_stay_open(server: ServerProcessHandle, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    script = f'"$@" & echo $! > {tmp_path}/pid; wait'
    command = ["/bin/sh", "-c", f"exec 3<&0; {script.replace('&', '<&3 &', 1)}", "sh", *COMMAND, "mcp"]
    with subprocess.Popen(
        [*command, "--data", str(server.data)], stdin=reading, stdout=subprocess.DEVNULL, env=environment()
    ) as shell:
        os.close(reading)
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
        bridge = int((tmp_path / "pid").read_text())
        # Once its thread that watches the parent has started.
        until(lambda: len([*Path(f"/proc/{bridge}/task").iterdir()]) > 1)
        shell.kill()
        until(lambda: not is_running(bridge))
    os.close(writing)


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_bridge_ends_when_its_output_is_closed(server: ServerProcessHandle) -> None:
    with editing("--data", server.data) as editor:
        assert editor.process.stdout is not None
        editor.process.stdout.close()
        editor.send("ping")
        assert editor.process.wait(SERVER_TIMEOUT_SECONDS) == 0


def test_first_answers_are_cached_without_a_server(server: ServerProcessHandle, tmp_path: Path) -> None:
    assert build_tool_hints() == tool_hints.TOOL_HINTS_FILE.read_text(encoding="utf-8"), "run `make docs`"
    assert build_cached_answers(server.data) == CACHED_ANSWERS_FILE.read_text(encoding="utf-8"), "run `make docs`"
    for era in ERAS:
        with (
            ending(tmp_path / era),
            editing("--data", server.data, era=era) as one,
            editing("--data", tmp_path / era, era=era) as other,
        ):
            assert one.open() == other.open()
            for method in CACHED_ANSWER_METHODS[3:]:
                assert one.ask(method) == other.ask(method)
            other.call("list_stores")  # answered by the server that was started meanwhile


@both_eras
def test_the_first_answers_do_not_wait_for_the_server(tmp_path: Path, era: Era) -> None:
    """The folder's lock is held by a process that is not a server, so that no server starts before its release."""
    data = tmp_path / "data"
    with ending(data), editing("--data", data, "--store", "s", era=era) as editor:
        with DataFolderLock(data):
            editor.open()
            assert editor.ask("tools/list")["tools"]
            assert find_running_server_of_data_folder(data) is None
        assert "1 node new" in editor.call("inject_knowledge_graph", nodes=entities("a"), edges=[])["text"]
        assert editor.ask("tools/list")["tools"]


def test_without_a_server_each_call_reports_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with editing("--data", tmp_path / "file") as editor:
        for _ in range(2):
            error = editor.answer(editor.send("tools/call", {"name": "list_stores"}))["error"]
            assert str(tmp_path / "file") in error["message"]
            assert "--data" in error["message"]


def test_a_server_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    with editing("--data", tmp_path / "data", variables={"KGSERVE_PORT": "eighty"}) as editor:
        editor.open()
        error = editor.answer(editor.send("tools/call", {"name": "list_stores"}))["error"]
    assert "KGSERVE_PORT" in error["message"]
    assert "exit code 2" in error["message"]


def test_a_url_without_a_server_is_named(tmp_path: Path) -> None:
    with editing("--url", "http://127.0.0.1:9", "--data", tmp_path) as editor:
        error = editor.answer(editor.send("initialize", {}))["error"]
    assert "http://127.0.0.1:9" in error["message"]


@both_eras
def test_the_next_call_works_after_the_server_was_killed(tmp_path: Path, era: Era) -> None:
    data = tmp_path / "data"
    with ending(data), editing("--data", data, "--store", "kept", era=era, log=tmp_path / "log") as editor:
        editor.open()
        editor.call("inject_knowledge_graph", nodes=entities("a"), edges=[])
        first = find_running_server_of_data_folder(data)
        end(data, signal.SIGKILL)
        assert '[*] id="a"' in editor.call("traverse_knowledge_graph", start_id="a")["text"]
        second = find_running_server_of_data_folder(data)
        assert first is not None
        assert second is not None
        assert first.pid != second.pid
        assert not [message for message in editor.heard if message.get("id")]


@both_eras
def test_a_call_with_a_lost_answer_is_retried_and_executed_once(
    server: ServerProcessHandle, era: Era, tmp_path: Path
) -> None:
    store = f"cut-{era}"
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("put_node", {"kind": "letter", "content": "only one"}),
        ("put_subgraph", {"nodes": [{"ref": "a", "kind": "letter"}, {"kind": "letter"}]}),
        ("inject_knowledge_graph", {"nodes": entities("a"), "edges": []}),
        ("drop_store", {"confirm": store}),
    )
    wishes = ("--data", tmp_path / "no", "--answers", "both")
    with cutting(server.url) as wire, editing("--url", wire.url, *wishes, era=era) as editor:
        editor.open()
        for tool, arguments in calls:
            if tool == "drop_store":
                assert counts(server.url, store) == (4, 4)
            wire.cut_at(tool)
            answer = editor.call(tool, index=store, **arguments)
            assert (wire.cuts, wire.calls) == (1, 2)
            assert answer.get("created", True) is True
        assert editor.call("put_node", index=store, **calls[0][1])["created"] is True
        assert editor.call("put_node", index=store, **calls[0][1])["created"] is True
    assert counts(server.url, store) == (2, 2), "the same content in another call is another node"


@both_eras
def test_notifications_continue_from_the_next_server(tmp_path: Path, era: Era) -> None:
    data, numbers = tmp_path / "data", count()

    def news() -> bool:
        editor.call("inject_knowledge_graph", index=f"store-{next(numbers)}", nodes=entities("a"), edges=[])
        time.sleep(0.3)
        editor.ask("tools/list")
        return "notifications/resources/list_changed" in [message["method"] for message in editor.heard]

    with ending(data), editing("--data", data, era=era, log=tmp_path / "log") as editor:
        editor.open()
        wanted = {"notifications": {"resourcesListChanged": True}}
        listening = editor.send("subscriptions/listen", wanted) if era == "stateless" else 0
        until(news)
        end(data, signal.SIGTERM)
        until(lambda: find_running_server_of_data_folder(data) is None)
        editor.heard.clear()
        until(news)
        assert {message["method"] for message in editor.heard} == {"notifications/resources/list_changed"}
        if era == "stateless":
            editor.notify("notifications/cancelled", {"requestId": listening})
        assert editor.leave() == 0


def test_listening_does_not_restart_a_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, variables=SMALL) as server, editing("--data", data) as editor:
        editor.open()
        editor.ask("ping")
        server.process.terminate()
        server.process.wait(SERVER_TIMEOUT_SECONDS)
        time.sleep(2.5)
        assert find_running_server_of_data_folder(data) is None
        assert not (data / "launch.lock").exists()
