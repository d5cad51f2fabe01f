"""The protocol's own conformance scenarios, in both eras: all that need nothing made for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.cli.running import PATIENCE, Running, environment
from tests.mcp_clients.packages import INSTALL_SECONDS, NEWEST, node

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + PATIENCE)

PROGRAM = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
IN_BOTH = ("tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams", "dns-rebinding-protection")
SCENARIOS = {
    HANDSHAKE: ("server-initialize", "server-session-lifecycle", "ping", *IN_BOTH),
    STATELESS: (
        "caching",
        "sep-2164-resource-not-found",
        "http-header-validation",
        "input-required-result-unsupported-methods",
        *IN_BOTH,
    ),
}

FOR_TEST_TOOLS = {
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
}
"""Checks that call tools which only a server made for this suite has."""

LISTS_NEVER_CHANGE = {
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
    "sep-2575-server-sends-tools-list-changed-on-subscription",
}


class Check(msgspec.Struct):
    """One thing that a scenario looked at."""

    id: str
    status: str
    error: str = msgspec.field(name="errorMessage", default="")


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in SCENARIOS for name in SCENARIOS[version]])
def test_a_scenario_passes(packages: Path, server: Running, version: str, name: str, tmp_path: Path) -> None:
    code, said = _run(packages, server, version, name, tmp_path)
    assert code == 0, said
    counted = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", said)
    assert counted is not None, said
    assert counted[1] == counted[2] != "0", said


def test_the_stateless_scenario_passes_as_far_as_it_can(packages: Path, server: Running, tmp_path: Path) -> None:
    _, said = _run(packages, server, STATELESS, "server-stateless", tmp_path)
    [report] = tmp_path.rglob("checks.json")
    checks = msgspec.json.decode(report.read_bytes(), type=list[Check])
    failed = [check for check in checks if check.status == "FAILURE"]
    assert {check.id for check in failed} == FOR_TEST_TOOLS, said
    assert all(check.error.startswith("Not testable") for check in failed), said
    assert {check.id for check in checks if check.status == "WARNING"} == LISTS_NEVER_CHANGE, said
    assert sum(check.status == "SUCCESS" for check in checks) == len(checks) - 6 >= 20


def _run(packages: Path, server: Running, version: str, name: str, folder: Path) -> tuple[int, str]:
    """The exit code of one scenario, and what it wrote; its report is left in ``folder``."""
    command = [node(packages, NEWEST), str(packages / PROGRAM), "server", "--url", f"{server.url}/mcp"]
    done = subprocess.run(
        [*command, "--scenario", name, "--spec-version", version, "--output-dir", str(folder)],
        cwd=folder,
        env=environment({"HOME": str(folder)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout + done.stderr
