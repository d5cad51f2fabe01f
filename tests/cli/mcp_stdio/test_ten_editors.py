"""Many editors with one server."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.platform.server_discovery import find_running_server_of_data_folder
from tests.cli.mcp_stdio.editor import Editor, Era, editing, end, ending

EDITORS = 10
ENTITIES = 100
BATCH = 10


def era(number: int) -> Era:
    return "stateless" if number % 2 else "handshake"


def call(editor: Editor, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, which must succeed at the first attempt."""
    result = editor.ask("tools/call", {"name": tool, "arguments": arguments})
    assert not result.get("isError"), result
    return result


def write(number: int, editor: Editor) -> None:
    """Write all nodes of one editor in batches."""
    editor.open()
    for start in range(0, ENTITIES, BATCH):
        nodes = [
            {"id": f"editor-{number}-{each}", "type": "note", "content": f"note {each} of {number}"}
            for each in range(start, start + BATCH)
        ]
        call(editor, "inject_knowledge_graph", {"index": "shared", "nodes": nodes, "edges": []})


def last_note(number: int, editor: Editor) -> str:
    name = f"editor-{number}-{ENTITIES - 1}"
    return call(editor, "get_entity", {"index": "shared", "id": name})["content"][0]["text"]


@pytest.mark.slow
@pytest.mark.abuse(75)
def test_ten_concurrent_bridges_start_one_server_and_lose_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ending(data), ExitStack() as stack, ThreadPoolExecutor(EDITORS) as threads:
        editors = [
            stack.enter_context(editing("--data", data, era=era(number), log=tmp_path / "bridges.log"))
            for number in range(EDITORS)
        ]
        list(threads.map(write, range(EDITORS), editors))
        server = find_running_server_of_data_folder(data)
        assert server is not None
        assert (data / "server.log").read_text().count("listening on") == 1
        assert httpx.get(f"{server.url}/api/memory/shared/stats").json()["nodes"] == EDITORS * ENTITIES

        end(data, signal.SIGKILL)
        for number, text in enumerate(threads.map(last_note, range(EDITORS), editors)):
            assert f"note {ENTITIES - 1} of {number}" in text
        assert (data / "server.log").read_text().count("listening on") == 2
        assert [editor.leave() for editor in editors] == [0] * EDITORS
