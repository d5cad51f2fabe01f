"""The protocol's conformance suite in both revisions: only checks that need special fixtures fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.cli.running import SERVER_TIMEOUT_SECONDS
from tests.mcp_clients.packages import INSTALL_SECONDS
from tests.mcp_clients.suite import Run

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 6 * SERVER_TIMEOUT_SECONDS)

NO_TOOL = "unknown tool 'test_|[Tt]ool '(test_|json_schema_)|exposes no tool with x-mcp-header"
NO_PROMPT = "unknown prompt 'test_"
NO_RESOURCE = "'test://.*' is not a resource of this server"
ELSE = "Expected InputRequired|JSON-RPC error instead of|Prerequisite failed|did not send tool response"
NEVER_CHANGES = "Mutated the (tool|prompt) list"

FIXTURES = {
    # Tools that only a server made for the suite has: all kinds of content, and requests to the client.
    "tools-call-simple-text": NO_TOOL,
    "tools-call-image": NO_TOOL,
    "tools-call-audio": NO_TOOL,
    "tools-call-embedded-resource": NO_TOOL,
    "tools-call-mixed-content": NO_TOOL,
    "tools-call-error": NO_TOOL,
    "tools-call-with-progress": NO_TOOL,
    "tools-call-with-logging": NO_TOOL,
    "tools-call-sampling": NO_TOOL,
    "tools-call-elicitation": NO_TOOL,
    "elicitation-sep1034-general": NO_TOOL,
    "elicitation-sep1330-general": NO_TOOL,
    "json-schema-2020-12-tool-found": NO_TOOL,
    "sep-2575-server-rejects-undeclared-capability": NO_TOOL,
    "sep-2575-missing-capability-http-400": NO_TOOL,
    "sep-2575-http-server-no-independent-requests-on-stream": NO_TOOL,
    "sep-2575-server-no-log-without-loglevel": NO_TOOL,
    "sep-2322-elicitation-incomplete": NO_TOOL,
    "sep-2322-list-roots-incomplete": NO_TOOL,
    "sep-2322-sampling-incomplete": NO_TOOL,
    "sep-2322-respect-client-capabilities": NO_TOOL,
    "sep-2322-ignore-unexpected-params": NO_TOOL,
    "sep-2322-multiple-inputs-incomplete": NO_TOOL,
    "sep-2322-request-state-incomplete": NO_TOOL,
    "sep-2322-result-type-included": NO_TOOL,
    # The same tools with other messages.
    "sep-2322-multi-round-r1": ELSE,
    "sep-2322-missing-response-rerequests": ELSE,
    "sep-2322-reject-tampered-state": ELSE,
    "server-sse-disconnect-resume": ELSE,
    # A tool with arguments that are repeated in headers, which kgserve has none of.
    "sep-2243-server-no-xmcp-tool": NO_TOOL,
    "sep-2243-server-decode-base64": NO_TOOL,
    "sep-2243-server-validate-param-match": NO_TOOL,
    "sep-2243-server-reject-invalid-param-chars": NO_TOOL,
    "sep-2243-server-reject-param-mismatch": NO_TOOL,
    # The suite's prompts.
    "completion-complete": NO_PROMPT,
    "prompts-get-simple": NO_PROMPT,
    "prompts-get-with-args": NO_PROMPT,
    "prompts-get-embedded-resource": NO_PROMPT,
    "prompts-get-with-image": NO_PROMPT,
    "sep-2322-non-tool-incomplete": NO_PROMPT,
    # The suite's resources.
    "resources-read-text": NO_RESOURCE,
    "resources-read-binary": NO_RESOURCE,
    "resources-templates-read": NO_RESOURCE,
    "resources-subscribe": NO_RESOURCE,
    "resources-unsubscribe": NO_RESOURCE,
    # A way to change the lists of tools and prompts, which are constant in kgserve.
    "sep-2575-server-sends-prompts-list-changed-on-subscription": NEVER_CHANGES,
    "sep-2575-server-sends-tools-list-changed-on-subscription": NEVER_CHANGES,
}
"""Failing checks with a pattern of their message."""

PASSING = {
    "2025-11-25": {
        *("server-initialize", "server-session-lifecycle", "logging-set-level", "ping", "tools-list"),
        *("server-sse-multiple-streams", "resources-list", "prompts-list", "dns-rebinding-protection"),
    },
    "2026-07-28": {
        *("tools-list", "server-sse-multiple-streams", "resources-list", "sep-2164-resource-not-found", "prompts-list"),
        *("dns-rebinding-protection", "caching", "http-header-validation"),
        "input-required-result-unsupported-methods",
    },
}
"""Scenarios that must exist and pass completely."""


class Check(msgspec.Struct):
    """One check of a scenario."""

    id: str
    status: str
    error: str = msgspec.field(name="errorMessage", default="")


Checks = dict[str, list[Check]]
"""Checks by scenario."""


@pytest.fixture(scope="module")
def suite(runs: Mapping[str, Run]) -> dict[str, Checks]:
    """Return the checks of the suite by protocol version."""
    return {version: _checks(run.reports()) for version, run in runs.items()}


def test_only_checks_of_missing_fixtures_fail(suite: dict[str, Checks]) -> None:
    failed = [
        check
        for scenarios in suite.values()
        for checks in scenarios.values()
        for check in checks
        if check.status in {"FAILURE", "WARNING"}
    ]
    assert [check for check in failed if not re.search(FIXTURES.get(check.id, "$^"), check.error)] == []
    assert {check.id for check in failed} == FIXTURES.keys(), "remove checks that no longer fail from the list"


@pytest.mark.parametrize("version", PASSING)
def test_scenarios_without_fixtures_pass(suite: dict[str, Checks], version: str) -> None:
    for name in PASSING[version]:
        assert {check.status for check in suite[version][name]} in ({"SUCCESS"}, {"SUCCESS", "INFO"}), name


def test_scenarios_with_some_fixtures_pass_partially(suite: dict[str, Checks]) -> None:
    def passed(version: str, name: str) -> list[str]:
        return [check.id for check in suite[version][name] if check.status == "SUCCESS"]

    assert {"server-sse-priming-event", "server-sse-retry-field"} <= set(passed("2025-11-25", "server-sse-polling"))
    assert len(passed("2026-07-28", "server-stateless")) >= 20


def _checks(reports: list[Path]) -> Checks:
    return {_scenario(each.parent.name): msgspec.json.decode(each.read_bytes(), type=list[Check]) for each in reports}


def _scenario(folder: str) -> str:
    """Return a scenario's name from its folder's name, which ends with a time."""
    found = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.+", folder)
    assert found is not None, folder
    return found[1]
