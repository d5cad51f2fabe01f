"""Conversations of the official Python and TypeScript clients."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import BaseModel

from tests.cli.running import SERVER_TIMEOUT_SECONDS, environment
from tests.mcp_clients.conftest import ServerAccess
from tests.mcp_clients.conversation import Outcome, Step
from tests.mcp_clients.packages import HERE, PROGRAM, TYPESCRIPT, node

TOP = HERE.parents[1]
VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "modern": "2026-07-28"}
Era = Literal["legacy", "auto"]


def in_python(way: ServerAccess, plan: Sequence[Step], era: Era) -> Outcome:
    """Run a conversation with the official Python client."""
    return asyncio.run(_in_python(way, plan, era))


async def _in_python(way: ServerAccess, plan: Sequence[Step], era: Era) -> Outcome:
    program, *options = way.command or [""]
    target = StdioServerParameters(command=program, args=options, cwd=TOP)
    async with create_mcp_http_client(headers=way.headers) as http:
        to = streamable_http_client(way.url, http_client=http) if way.url else target
        async with Client(to, mode=era) as client:
            tools = [_wire(tool) for tool in (await client.list_tools()).tools]
            results = [_wire(await client.call_tool(step.tool, step.arguments)) for step in plan]
            return Outcome(client.protocol_version or "", tools, results)


def _wire(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def in_typescript(packages: Path, way: ServerAccess, plan: Sequence[Step], client: str, era: str) -> Outcome:
    """Run a conversation with an official TypeScript client: "sdk" is version 1, "client" version 2."""
    calls = [{"tool": step.tool, "arguments": step.arguments} for step in plan]
    told = msgspec.structs.asdict(way) | {"client": client, "era": era, "folder": str(TOP), "steps": calls}
    program = [node(packages, TYPESCRIPT), PROGRAM, msgspec.json.encode(told).decode()]
    return msgspec.json.decode(run(program, packages, packages), type=Outcome)


def run(command: list[str], folder: Path, home: Path) -> str:
    """Run a program, which must succeed, and return its output; its private files go into ``home``."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment({"HOME": str(home)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SERVER_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr} {done.stdout}"
    return done.stdout
