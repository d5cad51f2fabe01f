"""What the list of tools costs a model, in tokens (cl100k): `python -m bench.mcp_tokens [--save FILE] [--before FILE]`.

`tokens` counts for other benches, too. The tokenizer is js-tiktoken, which `npm ci` puts beside the clients of
tests/mcp_clients; another folder is named with --modules.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from mcp import Client

from bench.server import Server

TOP = Path(__file__).resolve().parents[1]
PACKAGE = "js-tiktoken"
INSTALL = f"npm install --ignore-scripts --no-save --prefix build/tokens {PACKAGE}"
PROGRAM = """
const { getEncoding } = require(process.argv[1]);
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
const encoding = getEncoding("cl100k_base");
process.stdout.write(JSON.stringify(texts.map((text) => encoding.encode(text, "all").length)));
"""


class Unavailable(Exception):
    """There is no tokenizer here; the message says how to get it."""


def tokens(texts: Sequence[str], modules: Path | None = None) -> list[int]:
    """Tokens of each text, counted by one process of Node.js. Raises Unavailable."""
    node = shutil.which("node")
    if node is None:
        raise Unavailable("there is no node here, which counts tokens")
    program = [node, "-e", PROGRAM, str(_package(modules))]
    counted = subprocess.run(program, input=msgspec.json.encode(list(texts)), capture_output=True, check=True)
    return msgspec.json.decode(counted.stdout, type=list[int])


def _package(modules: Path | None) -> Path:
    """The folder of the tokenizer: where it was said to be, or else where tests or people install it."""
    folders = [modules] if modules else sorted((TOP / "build").glob("*/node_modules"))
    folders += sorted((TOP / "build" / "mcp-clients").glob("*/node_modules"))
    for folder in folders:
        if (folder / PACKAGE).is_dir():
            return (folder / PACKAGE).resolve()
    raise Unavailable(f"there is no {PACKAGE} here; install it with `{INSTALL}`")


def listed(tools: str) -> list[dict[str, Any]]:
    """Sets of tools as a server lists them, in the wire's form."""
    quick = {"embedding_provider": "hashing"}
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder, Server(Path(folder), quick) as server:
        return asyncio.run(_list(f"http://127.0.0.1:{server.port}/mcp?tools={tools}"))


async def _list(url: str) -> list[dict[str, Any]]:
    async with Client(url) as client:
        found = await client.list_tools()
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in found.tools]


def shown_to_models(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What of a tool hosts put before their model."""
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]}


def costs(tools: Sequence[Mapping[str, Any]], modules: Path | None = None) -> dict[str, tuple[int, int]]:
    """By the name of a tool: tokens of what a model sees of it, and of all that is listed."""
    texts = [msgspec.json.encode(form).decode() for tool in tools for form in (shown_to_models(tool), tool)]
    counts = iter(tokens(texts, modules))
    return {tool["name"]: (next(counts), next(counts)) for tool in tools}


def main() -> int:
    """Print what each tool costs, beside what it did in a list that was saved before."""
    parser = argparse.ArgumentParser(prog="python -m bench.mcp_tokens", description=__doc__)
    parser.add_argument("--tools", default="all", help="sets and names of tools, with commas between")
    parser.add_argument("--save", type=Path, help="write the list to this file, for --before")
    parser.add_argument("--before", type=Path, help="a list to compare with")
    parser.add_argument("--modules", type=Path, help=f"the node_modules folder that holds {PACKAGE}")
    asked = parser.parse_args()
    now = listed(asked.tools)
    if asked.save:
        asked.save.write_bytes(msgspec.json.encode(now))
    before = msgspec.json.decode(asked.before.read_bytes()) if asked.before else []
    try:
        show(costs(before, asked.modules), costs(now, asked.modules))
    except Unavailable as reason:
        print(f"skipped: {reason}")
    return 0


def show(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> None:
    """A line for each tool, and one for all."""
    print(f"{'tool':26}{'model sees':>12}{'before':>8}{'listed':>8}{'before':>8}")
    names = list(dict.fromkeys([*before, *now]))
    for name in names:
        _line(name, now.get(name), before.get(name))
    _line(f"{len(now)} tools", _sum(now), _sum(before) if before else None)


def _sum(found: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(seen for seen, _ in found.values()), sum(whole for _, whole in found.values())


def _line(name: str, now: tuple[int, int] | None, before: tuple[int, int] | None) -> None:
    (seen, whole), (was_seen, was_whole) = (now or ("-", "-")), (before or ("-", "-"))
    print(f"{name:26}{seen:>12}{was_seen:>8}{whole:>8}{was_whole:>8}")


if __name__ == "__main__":
    raise SystemExit(main())
