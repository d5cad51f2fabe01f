"""The official clients and the inspector's command line list and call every tool, directly and through the bridge."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from mcp import Client, StdioServerParameters

from tests.cli.running import PATIENCE, environment
from tests.fuzzing import is_thorough
from tests.mcp_clients.conftest import Way
from tests.mcp_clients.conversation import Outcome, Step, check, check_result, steps
from tests.mcp_clients.packages import HERE, INSTALL_SECONDS, NEWEST, PROGRAM, TYPESCRIPT, node

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS + PATIENCE)

TOP = HERE.parents[1]
VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "modern": "2026-07-28"}
INSPECTED = ("inject_knowledge_graph", "list_stores", "query_cypher", "search_batch", "drop_store")
"""Tools whose arguments are a list of objects, none, an object, a number, a text: each call is a process of its own."""
INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.mark.parametrize("era", ["legacy", "auto"])
def test_the_python_client(way: Way, store: str, era: Literal["legacy", "auto"]) -> None:
    plan = steps(store)
    check(asyncio.run(_in_python(way, plan, era)), plan, VERSIONS[era])


@pytest.mark.parametrize(("client", "era"), [("sdk", "legacy"), ("client", "legacy"), ("client", "auto")])
def test_the_typescript_clients(packages: Path, way: Way, store: str, client: str, era: str) -> None:
    plan = steps(store)
    calls = [{"tool": step.tool, "arguments": step.arguments} for step in plan]
    told = {"client": client, "era": era, "url": way.url, "command": way.command, "folder": str(TOP), "steps": calls}
    program = [node(packages, TYPESCRIPT), PROGRAM, msgspec.json.encode(told).decode()]
    outcome = msgspec.json.decode(_run(program, packages, packages), type=Outcome)
    check(outcome, plan, VERSIONS[era])


# One era on each way.
@pytest.mark.parametrize(("way", "era"), [("http", "legacy"), ("bridge", "modern")], indirect=["way"])
def test_the_inspector(packages: Path, way: Way, store: str, era: str, tmp_path: Path) -> None:
    plan = steps(store)
    target = ["--server-url", way.url, "--transport", "http"] if way.url else [*(way.command or ()), "--cwd", str(TOP)]
    command = [node(packages, NEWEST), str(packages / INSPECTOR), "--cli", *target, "--protocol-era", era]
    # With --strict it refuses schemas that only some clients understand.
    listed = _inspect([*command, "--method", "tools/list", "--strict"], tmp_path)
    assert sorted(tool["name"] for tool in listed["tools"]) == sorted(step.tool for step in plan)
    for step in [step for step in plan if is_thorough() or step.tool in INSPECTED]:
        given = [part for name, value in step.arguments.items() for part in ("--tool-arg", f"{name}={_typed(value)}")]
        result = _inspect([*command, "--method", "tools/call", "--tool-name", step.tool, *given], tmp_path)
        check_result(step, result)
        # Only the stateless era tells with every result who answers.
        assert ("_meta" in result) == (era == "modern")


async def _in_python(way: Way, plan: list[Step], era: Literal["legacy", "auto"]) -> Outcome:
    program, *options = way.command or [""]
    target = way.url or StdioServerParameters(command=program, args=options, cwd=TOP)
    async with Client(target, mode=era) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(step.tool, step.arguments) for step in plan]
        wire = [result.model_dump(mode="json", by_alias=True, exclude_none=True) for result in results]
        return Outcome(client.protocol_version or "", tools, wire)


def _typed(value: object) -> str:
    """An argument as one types it: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _inspect(command: list[str], home: Path) -> dict[str, Any]:
    answer = msgspec.json.decode(_run([*command, "--format", "json"], TOP, home), type=dict[str, Any])
    return answer["result"]


def _run(command: list[str], folder: Path, home: Path) -> str:
    """What a program writes, which must succeed; what it keeps for itself goes into ``home``."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment({"HOME": str(home)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr} {done.stdout}"
    return done.stdout
