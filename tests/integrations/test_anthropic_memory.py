"""AnthropicMemoryTool compared with the file system tool that Anthropic ships."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from anthropic.lib.tools import ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool

from kgserve.client import Store
from kgserve.integrations.anthropic_memory import AnthropicAsyncMemoryTool, AnthropicMemoryTool

NOTES = "/memories/notes.md"
COMMANDS: list[dict[str, Any]] = [
    {"command": "view", "path": "/memories/none"},
    {"command": "create", "path": NOTES, "file_text": "one\ntwo\nthree two\nfour\nfive\nsix"},
    {"command": "create", "path": NOTES, "file_text": "again"},
    {"command": "create", "path": "/memories/empty", "file_text": ""},
    {"command": "create", "path": "/memories/deep/er/file.txt", "file_text": "text\n"},
    {"command": "create", "path": "/elsewhere/x", "file_text": ""},
    {"command": "create", "path": "/memories/../etc/x", "file_text": ""},
    {"command": "view", "path": NOTES},
    {"command": "view", "path": NOTES, "view_range": [2, 3]},
    {"command": "view", "path": NOTES, "view_range": [5, -1]},
    {"command": "view", "path": NOTES, "view_range": [0, 1]},
    {"command": "view", "path": "/memories/empty"},
    {"command": "str_replace", "path": NOTES, "old_str": "three", "new_str": "3\n3b"},
    {"command": "str_replace", "path": NOTES, "old_str": "two", "new_str": "2"},
    {"command": "str_replace", "path": NOTES, "old_str": "absent", "new_str": "2"},
    {"command": "str_replace", "path": "/memories/absent", "old_str": "a", "new_str": "b"},
    {"command": "str_replace", "path": "/memories/deep", "old_str": "a", "new_str": "b"},
    {"command": "insert", "path": NOTES, "insert_line": 0, "insert_text": "zero\n"},
    {"command": "insert", "path": NOTES, "insert_line": 8, "insert_text": "end"},
    {"command": "insert", "path": NOTES, "insert_line": 99, "insert_text": "x"},
    {"command": "insert", "path": NOTES, "insert_line": -1, "insert_text": "x"},
    {"command": "insert", "path": "/memories/empty", "insert_line": 0, "insert_text": "first"},
    {"command": "insert", "path": "/memories/absent", "insert_line": 0, "insert_text": "first"},
    {"command": "view", "path": NOTES},
    {"command": "rename", "old_path": NOTES, "new_path": "/memories/empty"},
    {"command": "rename", "old_path": NOTES, "new_path": "/memories/moved/notes.md"},
    {"command": "rename", "old_path": "/memories/absent", "new_path": "/memories/x"},
    {"command": "rename", "old_path": "/memories/deep", "new_path": "/memories/deeper"},
    {"command": "rename", "old_path": "/memories", "new_path": "/memories/x"},
    {"command": "view", "path": "/memories/moved/notes.md"},
    {"command": "view", "path": "/memories/deeper/er/file.txt"},
    {"command": "view", "path": "/memories/deep"},
    {"command": "delete", "path": "/memories/moved"},
    {"command": "delete", "path": "/memories/moved"},
    {"command": "delete", "path": "/memories"},
    {"command": "delete", "path": "/memories/deeper/er/file.txt"},
    {"command": "view", "path": "/memories/deeper/er/file.txt"},
]


def outcome(tool: Any, command: dict[str, Any]) -> tuple[str, str]:
    try:
        return "ok", str(tool.call(command))
    except ToolError as error:
        return "error", str(error.content)


def test_commands_answer_as_those_of_the_file_system(graph: Store, tmp_path: Path) -> None:
    files, nodes = BetaLocalFilesystemMemoryTool(str(tmp_path)), AnthropicMemoryTool(graph)
    assert nodes.to_dict() == files.to_dict()
    for command in COMMANDS:
        assert outcome(nodes, command) == outcome(files, command), command


def test_a_directory_lists_two_levels_without_hidden_items(graph: Store) -> None:
    tool = AnthropicMemoryTool(graph)
    assert outcome(tool, {"command": "view", "path": "/memories"})[1].splitlines()[1:] == ["0B\t/memories"]
    for path in ("a.txt", "b/c.txt", "b/d/e.txt", ".hidden", "b/.secret/x"):
        tool.call({"command": "create", "path": f"/memories/{path}", "file_text": "x" * 1536})
    assert outcome(tool, {"command": "view", "path": "/memories/"})[1].splitlines()[1:] == [
        "4.5K\t/memories/",
        "1.5K\t/memories//a.txt",
        "3K\t/memories//b/",
        "1.5K\t/memories//b/c.txt",
        "1.5K\t/memories//b/d/",
    ]
    assert outcome(tool, {"command": "create", "path": "/memories/a.txt/b", "file_text": ""})[0] == "error"
    assert outcome(tool, {"command": "rename", "old_path": "/memories/b", "new_path": "/memories/b/b"})[0] == "error"
    assert outcome(tool, {"command": "create", "path": "/memories/big", "file_text": "x" * (1 << 21)})[0] == "error"
    assert tool.clear_all_memory() == "All memory cleared"
    assert graph.count().count == 0


def test_former_texts_stay_in_the_history(graph: Store) -> None:
    tool = AnthropicMemoryTool(graph)
    tool.call({"command": "create", "path": NOTES, "file_text": "tea"})
    tool.call({"command": "str_replace", "path": NOTES, "old_str": "tea", "new_str": "coffee"})
    assert [text for _, text in tool.file_history(NOTES)] == ["coffee", "tea"]
    tool.call({"command": "delete", "path": NOTES})
    assert [text for _, text in tool.file_history(NOTES)] == ["coffee", "tea"]


def test_retired_files_are_gone_and_long_paths_are_refused(graph: Store) -> None:
    tool = AnthropicMemoryTool(graph)
    tool.call({"command": "create", "path": NOTES, "file_text": "one"})
    graph.retire(NOTES)
    for path, words in ((NOTES, "does not exist"), ("/memories/" + "n" * 510, "longer than 512 bytes")):
        kind, said = outcome(tool, {"command": "view", "path": path})
        assert (kind, words in said) == ("error", True)


def test_edits_of_several_agents_are_all_kept(graph: Store) -> None:
    tool = AnthropicAsyncMemoryTool(graph)
    asyncio.run(tool.call({"command": "create", "path": NOTES, "file_text": "start\n"}))
    with ThreadPoolExecutor(4) as pool:
        edits = [{"command": "insert", "path": NOTES, "insert_line": 1, "insert_text": f"{n}"} for n in range(4)]
        list(pool.map(AnthropicMemoryTool(graph).call, edits))
        creations = [{"command": "create", "path": "/memories/one", "file_text": f"{n}"} for n in range(4)]
        results = list(pool.map(lambda each: outcome(AnthropicMemoryTool(graph), each)[0], creations))
    lines = graph.node(NOTES).node.content.splitlines()
    assert sorted(lines) == ["0", "1", "2", "3", "start"]
    assert sorted(results) == ["error", "error", "error", "ok"]


def test_the_asynchronous_tool(graph: Store) -> None:
    async def use() -> None:
        tool = AnthropicAsyncMemoryTool(graph)
        await tool.call({"command": "create", "path": NOTES, "file_text": "tea"})
        await tool.call({"command": "str_replace", "path": NOTES, "old_str": "tea", "new_str": "milk"})
        await tool.call({"command": "insert", "path": NOTES, "insert_line": 1, "insert_text": "more"})
        await tool.call({"command": "rename", "old_path": NOTES, "new_path": "/memories/x"})
        assert "milk" in str(await tool.call({"command": "view", "path": "/memories/x"}))
        await tool.call({"command": "delete", "path": "/memories/x"})
        await tool.clear_all_memory()

    asyncio.run(use())
