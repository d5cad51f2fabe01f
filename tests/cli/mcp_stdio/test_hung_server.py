"""Hung and slow servers: the editor is notified in time."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

from tests.cli.mcp_stdio.editor import SMALL, editing
from tests.cli.mcp_stdio.test_bridge import ERAS, entities
from tests.cli.running import SERVER_TIMEOUT_SECONDS, serving


def test_a_hung_server_is_reported_and_used_again_after_it_resumes(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    with serving(data, variables=SMALL) as server, ExitStack() as stack:
        options = ("--data", data, "--answers", "both")
        editors = [stack.enter_context(editing(*options, "--store", era, era=era, log=log)) for era in ERAS]
        later = [stack.enter_context(editing("--data", data, era=era)) for era in ERAS]
        for editor in editors:
            editor.open()
            editor.call("inject_knowledge_graph", nodes=entities("a"), edges=[])
        server.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            put = {"name": "put_node", "arguments": {"kind": "letter"}}
            asked = [(editor, editor.send("tools/call", put)) for editor in editors]
            asked += [(editor, editor.send("tools/call", {"name": "list_stores"})) for editor in later]
            answers = [editor.answer(request) for editor, request in asked]
            assert time.monotonic() - started < SERVER_TIMEOUT_SECONDS
            for answer in answers:
                assert f"kill -CONT {server.process.pid}" in answer["error"]["message"]
            for answer in answers[: len(editors)]:
                assert "search_knowledge" in answer["error"]["message"]
            assert log.read_text().count("kill -CONT") >= len(editors)
        finally:
            server.process.send_signal(signal.SIGCONT)
        for editor in editors:
            assert [node["id"] for node in editor.call("traverse_knowledge_graph", start_id="a")["nodes"]] == ["a"]


def test_a_call_has_a_timeout_that_progress_extends(slow: Path) -> None:
    with editing("--data", slow, variables={"KGSERVE_CALL_TIMEOUT": "1"}) as editor:
        editor.open()
        silent = editor.send("tools/call", {"name": "wait", "arguments": {"seconds": 30}})
        moving = editor.send(
            "tools/call", {"name": "wait", "arguments": {"seconds": 2}, "_meta": {"progressToken": "p"}}
        )
        assert "KGSERVE_CALL_TIMEOUT" in editor.answer(silent)["error"]["message"]
        assert editor.answer(moving)["result"]["content"][0]["text"] == "waited"
