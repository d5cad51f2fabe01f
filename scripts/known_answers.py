"""Writes what bridges know without a server: its first answers to editors, and which tools take long or act twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.editors import HANDSHAKE, STATELESS, Editor, bridge
from bench.server import Server
from kgserve.cli.mcp_stdio import tool_hints
from kgserve.cli.mcp_stdio.forwarder import FILE, METHODS, TOOLS, TOOLSETS, named
from kgserve.server.mcp import toolsets

VERSIONS = ("2025-03-26", "2025-06-18", HANDSHAKE, STATELESS)
"""Those of the protocol that editors speak. Who speaks another waits for the server."""


def known(data: Path) -> str:
    """The file's text, of what the server of a data folder, which must run, answers: each result once."""
    results: list[Any] = []
    answers: dict[str, dict[str, int]] = {}
    for version in VERSIONS:
        answers[version] = {}
        for tools in TOOLSETS:
            # With a wish of its own it asks the server, whatever is known.
            wishes = ("--answers", "both", *(("--tools", tools) if tools else ()))
            with Editor(bridge(data, *wishes), version=version) as editor:
                opened = editor.open()
                for method in (TOOLS,) if tools else METHODS:
                    if (result := opened if method == editor.beginning else _asked(editor, method)) is None:
                        continue
                    if result not in results:
                        results.append(result)
                    answers[version][named(method, tools)] = results.index(result)
    encode = msgspec.json.Encoder(order="sorted").encode
    return "".join(encode(line).decode() + "\n" for line in (answers, *results))


def _asked(editor: Editor, method: str) -> Any:
    return None if method in {"initialize", "server/discover"} else editor.ask(method).get("result")


def hints() -> str:
    """Return the text of the file with what a bridge knows of single tools."""
    tools = sorted(toolsets.TOOLS.items())
    known_of_tools = {
        "long": [name for name, tool in tools if tool.is_long],
        "retry": {name: tool.retry_hint for name, tool in tools if tool.retry_hint},
    }
    return msgspec.json.format(msgspec.json.encode(known_of_tools)).decode() + "\n"


def main() -> None:
    """Write both files."""
    tool_hints.FILE.write_text(hints(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder, "data"), {"embedding_provider": "hashing"}):
        FILE.write_text(known(Path(folder, "data")), encoding="utf-8")


if __name__ == "__main__":
    main()
