"""Servers that hang or take their time: the editor is told, and in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.bridge.editor import SMALL, Era, editing
from tests.bridge.test_bridge import ERAS, entities
from tests.cli.running import serving

both_eras = pytest.mark.parametrize("era", ERAS)


@both_eras
def test_a_server_that_hangs_is_told_of_and_used_again_when_it_goes_on(tmp_path: Path, era: Era) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    with (
        serving(data, variables=SMALL) as server,
        editing("--data", data, "--store", "s", era=era, log=log) as editor,
        editing("--data", data, era=era) as later,
    ):
        editor.open()
        editor.call("inject_knowledge_graph", nodes=entities("a"), edges=[])
        server.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            answers = [
                editor.answer(editor.send("tools/call", {"name": "put_node", "arguments": {"kind": "letter"}})),
                later.answer(later.send("tools/call", {"name": "list_stores"})),
            ]
            assert time.monotonic() - started < 20
            for answer in answers:
                assert f"kill -CONT {server.process.pid}" in answer["error"]["message"]
            assert "search_knowledge" in answers[0]["error"]["message"]
            assert "kill -CONT" in log.read_text()
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert [node["id"] for node in editor.call("traverse_knowledge_graph", start_id="a")["nodes"]] == ["a"]


def test_a_call_has_a_limit_and_progress_counts_as_life(slow: Path) -> None:
    with editing("--data", slow, variables={"KGSERVE_CALL_TIMEOUT": "1"}) as editor:
        editor.open()
        silent = editor.send("tools/call", {"name": "wait", "arguments": {"seconds": 30}})
        moving = editor.send(
            "tools/call", {"name": "wait", "arguments": {"seconds": 2}, "_meta": {"progressToken": "p"}}
        )
        assert "KGSERVE_CALL_TIMEOUT" in editor.answer(silent)["error"]["message"]
        assert editor.answer(moving)["result"]["content"][0]["text"] == "waited"
