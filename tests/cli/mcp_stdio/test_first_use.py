"""First use: from an empty folder and the output of `mcp config`, two editors share a memory in few calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kgserve.client import Client
from tests.cli.mcp_stdio.editor import Editor, editing, ending
from tests.cli.running import kgserve

MAX_CALLS = 8
MAX_TOOL_LIST_BYTES = 8_100


def test_another_editor_recalls_what_one_retained(tmp_path: Path) -> None:
    data = tmp_path / "data"
    printed = kgserve("mcp", "config", "--client", "generic", "--data", data, "--store", "web-shop")
    arguments: list[str] = msgspec.json.decode(printed.out)["mcpServers"]["kgserve"]["args"]
    options = arguments[arguments.index("mcp") + 1 :]
    calls: list[str] = []

    def call(editor: Editor, tool: str, **given: Any) -> dict[str, Any]:
        calls.append(tool)
        return editor.call(tool, **given)

    def known(editor: Editor) -> list[str]:
        # Indexes follow other editors' writes slightly later; people do not notice.
        with Client(data=data) as client:
            store = client.store("web-shop")
            store.recall("x", at_least=store.settings().sequence, touch=False)
        return [each["content"] for each in call(editor, "recall", query="which Postgres do we use?")["memories"]]

    with (
        ending(data),
        editing(*options, "--answers", "both") as one,
        editing(*options, "--answers", "both", era="stateless") as other,
    ):
        one.open()
        other.open()
        tools = one.ask("tools/list")["tools"]
        assert {tool["name"] for tool in tools} == {"retain", "recall", "reflect", "forget", "get_memory"}
        assert len(msgspec.json.encode(tools)) <= MAX_TOOL_LIST_BYTES
        alice = {"name": "Alice", "entity_type": "person"}
        first = "The web shop ships with Postgres 16."
        made = call(one, "retain", content=first, entities=[alice], valid_from="2026-11-16T00:00:00Z")
        memory = made["operations"][0]["memory_id"]
        assert first in known(other)
        second = "The web shop ships with Postgres 17."
        assert call(other, "retain", content=second, supersedes=memory)["operations"][0]["type"] == "update"
        assert known(one) == [second]
        assert call(one, "forget", ids=[memory])["memories_removed"] == 2
        assert known(other) == []
        assert call(other, "forget", ids=[memory], undo=True)["memories_restored"] == 2
        assert known(one) == [second]
    assert len(calls) <= MAX_CALLS
