"""The official MCP memory server beside kgserve: what is left of two editors' writes, and what is found.

`python -m bench.memory_server INDEX_JS`, where that is `dist/index.js` of the npm package
@modelcontextprotocol/server-memory. Every call goes over standard input and output, by MCP's library, to the process
that its editor has started.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from mcp import Client, StdioServerParameters

from bench.measure import Report
from bench.server import Server

WRITES = 100
TEXT = "The sluice of lock 7 opens at dawn"
QUERIES = ("sluice of lock", "lock sluice", "when does the lock open?")


class Side(msgspec.Struct, frozen=True):
    """One of the two: how an editor starts it, and the tools that write, list and search."""

    name: str
    started: StdioServerParameters
    writing: str
    listing: str
    searching: str

    def entity(self, name: str) -> dict[str, Any]:
        """The arguments that write an entity of this name."""
        if self.writing == "create_entities":
            return {"entities": [{"name": name, "entityType": "lock", "observations": [TEXT]}]}
        return {"nodes": [{"id": name, "type": "lock", "content": TEXT}], "edges": []}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 when kgserve has lost a write."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory_server", description="Beside the memory server.")
    parser.add_argument("index_js", help="the memory server's dist/index.js")
    script = parser.parse_args(arguments).index_js
    report = Report("kgserve beside the official MCP memory server")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder, "data")):
        file = {"MEMORY_FILE_PATH": str(Path(folder, "memory.jsonl"))}
        theirs = StdioServerParameters(command="node", args=[script], env=file)
        bridge = ["-m", "kgserve", "mcp", "--data", str(Path(folder, "data")), "--store", "memory"]
        ours = StdioServerParameters(command=sys.executable, args=bridge)
        asyncio.run(compare(Side("memory server", theirs, "create_entities", "read_graph", "search_nodes"), report))
        kept = asyncio.run(
            compare(Side("kgserve", ours, "inject_knowledge_graph", "list_entities", "search_knowledge"), report)
        )
    report.check("kgserve has all", f"{kept}", kept == 2 * WRITES)
    report.show()
    return int(report.wrong)


async def compare(side: Side, report: Report) -> int:
    """Two editors write at once, then one of them searches: how many entities are left."""
    async with AsyncExitStack() as stack:
        editors = [await stack.enter_async_context(Client(side.started)) for _ in "ab"]
        await asyncio.gather(*(_write_all(side, editor, which) for which, editor in zip("ab", editors, strict=True)))
        kept = len(await _found(editors[0], side.listing, {"limit": 2 * WRITES} if side.name == "kgserve" else {}))
        report.fact(f"{side.name}: left of {2 * WRITES} entities of two editors", str(kept))
        for query in QUERIES:
            hits = await _found(editors[0], side.searching, {"query": query})
            report.fact(f"{side.name}: {query}", "found" if hits else "nothing")
    return kept


async def _write_all(side: Side, editor: Client, which: str) -> None:
    for number in range(WRITES):
        answer = await editor.call_tool(side.writing, side.entity(f"{which}-{number}"))
        assert not answer.is_error, answer.content


async def _found(editor: Client, tool: str, arguments: dict[str, Any]) -> list[Any]:
    """What a tool lists, in whichever field it does."""
    answer = await editor.call_tool(tool, arguments)
    assert answer.structured_content is not None, answer.content
    return next(
        answer.structured_content[each] for each in ("hits", "nodes", "entities") if each in answer.structured_content
    )


if __name__ == "__main__":
    sys.exit(main())
