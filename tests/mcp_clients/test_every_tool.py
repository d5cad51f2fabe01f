"""The official clients and the inspector's command line list and call every tool, directly and through the bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.running import SERVER_TIMEOUT_SECONDS
from tests.fuzzing import is_thorough
from tests.mcp_clients.conftest import ServerAccess
from tests.mcp_clients.conversation import check, check_result, steps
from tests.mcp_clients.official_clients import TOP, VERSIONS, Era, in_python, in_typescript, run
from tests.mcp_clients.packages import INSTALL_SECONDS, NEWEST, node

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS + SERVER_TIMEOUT_SECONDS)

INSPECTED = {
    "legacy": ("inject_knowledge_graph", "list_stores", "drop_store"),
    "modern": ("inject_knowledge_graph", "query_cypher", "search_batch"),
}
"""Tools whose arguments are a list of objects, none, a text, an object, a number. Each call is a separate process."""
INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.mark.parametrize("era", ["legacy", "auto"])
def test_the_python_client(way: ServerAccess, store: str, era: Era) -> None:
    plan = steps(store)
    check(in_python(way, plan, era), plan, VERSIONS[era])


@pytest.mark.parametrize(("client", "era"), [("sdk", "legacy"), ("client", "legacy"), ("client", "auto")])
def test_the_typescript_clients(packages: Path, way: ServerAccess, store: str, client: str, era: str) -> None:
    plan = steps(store)
    check(in_typescript(packages, way, plan, client, era), plan, VERSIONS[era])


# One protocol revision per kind of access.
@pytest.mark.parametrize(("way", "era"), [("http", "legacy"), ("bridge", "modern")], indirect=["way"])
def test_the_inspector(packages: Path, way: ServerAccess, store: str, era: str, tmp_path: Path) -> None:
    plan = steps(store)
    target = ["--server-url", way.url, "--transport", "http"] if way.url else [*(way.command or ()), "--cwd", str(TOP)]
    command = [node(packages, NEWEST), str(packages / INSPECTOR), "--cli", *target, "--protocol-era", era]
    # With --strict it rejects schemas that only some clients understand.
    listed = _inspect([*command, "--method", "tools/list", "--strict"], tmp_path)
    assert sorted(tool["name"] for tool in listed["tools"]) == sorted(step.tool for step in plan)
    for step in [step for step in plan if is_thorough() or step.tool in INSPECTED[era]]:
        given = [part for name, value in step.arguments.items() for part in ("--tool-arg", f"{name}={_typed(value)}")]
        result = _inspect([*command, "--method", "tools/call", "--tool-name", step.tool, *given], tmp_path)
        check_result(step, result)
        # Only the stateless protocol identifies the server in every result.
        assert ("_meta" in result) == (era == "modern")


def _typed(value: object) -> str:
    """Return an argument as typed on a command line: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _inspect(command: list[str], home: Path) -> dict[str, Any]:
    answer = msgspec.json.decode(run([*command, "--format", "json"], TOP, home), type=dict[str, Any])
    return answer["result"]
