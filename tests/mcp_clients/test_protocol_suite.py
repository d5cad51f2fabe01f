"""The protocol's own conformance suite, whole, in both eras: nothing fails but what asks for things made for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.cli.running import PATIENCE
from tests.mcp_clients.packages import INSTALL_SECONDS
from tests.mcp_clients.suite import Run

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 6 * PATIENCE)

NO_TOOL = "unknown tool 'test_|[Tt]ool '(test_|json_schema_)|exposes no tool with x-mcp-header"
NO_PROMPT = "unknown prompt 'test_"
NO_RESOURCE = "'test://.*' is not a resource of this server"
ELSE = "Expected InputRequired|JSON-RPC error instead of|Prerequisite failed|did not send tool response"
NEVER_CHANGES = "Mutated the (tool|prompt) list"

FIXTURES = {
    # Tools that only a server made for the suite has: of all kinds of content, and that ask the client in their turn.
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
    # The same tools, in other words.
    "sep-2322-multi-round-r1": ELSE,
    "sep-2322-missing-response-rerequests": ELSE,
    "sep-2322-reject-tampered-state": ELSE,
    "server-sse-disconnect-resume": ELSE,
    # A tool whose arguments are to be repeated in headers, which none of ours are.
    "sep-2243-server-no-xmcp-tool": NO_TOOL,
    "sep-2243-server-decode-base64": NO_TOOL,
    "sep-2243-server-validate-param-match": NO_TOOL,
    "sep-2243-server-reject-invalid-param-chars": NO_TOOL,
    "sep-2243-server-reject-param-mismatch": NO_TOOL,
    # Its prompts.
    "completion-complete": NO_PROMPT,
    "prompts-get-simple": NO_PROMPT,
    "prompts-get-with-args": NO_PROMPT,
    "prompts-get-embedded-resource": NO_PROMPT,
    "prompts-get-with-image": NO_PROMPT,
    "sep-2322-non-tool-incomplete": NO_PROMPT,
    # Its resources.
    "resources-read-text": NO_RESOURCE,
    "resources-read-binary": NO_RESOURCE,
    "resources-templates-read": NO_RESOURCE,
    "resources-subscribe": NO_RESOURCE,
    "resources-unsubscribe": NO_RESOURCE,
    # A way to change the lists of tools and prompts, which never change here.
    "sep-2575-server-sends-prompts-list-changed-on-subscription": NEVER_CHANGES,
    "sep-2575-server-sends-tools-list-changed-on-subscription": NEVER_CHANGES,
}
"""What each check misses that fails: the words of its failure."""

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
"""Scenarios that have to be there, and in which nothing fails."""


class Check(msgspec.Struct):
    """One thing that a scenario looked at."""

    id: str
    status: str
    error: str = msgspec.field(name="errorMessage", default="")


Checks = dict[str, list[Check]]
"""What each scenario looked at."""


@pytest.fixture(scope="module")
def suite(runs: Mapping[str, Run]) -> dict[str, Checks]:
    """What came of the suite in each version of the protocol."""
    return {version: _checks(run.reports()) for version, run in runs.items()}


def test_nothing_fails_but_what_asks_for_what_is_made_for_the_suite(suite: dict[str, Checks]) -> None:
    failed = [
        check
        for scenarios in suite.values()
        for checks in scenarios.values()
        for check in checks
        if check.status in {"FAILURE", "WARNING"}
    ]
    assert [check for check in failed if not re.search(FIXTURES.get(check.id, "$^"), check.error)] == []
    assert {check.id for check in failed} == FIXTURES.keys(), "what no longer fails need not be listed"


@pytest.mark.parametrize("version", PASSING)
def test_what_needs_nothing_made_for_it_passes(suite: dict[str, Checks], version: str) -> None:
    for name in PASSING[version]:
        assert {check.status for check in suite[version][name]} in ({"SUCCESS"}, {"SUCCESS", "INFO"}), name


def test_what_needs_some_passes_as_far_as_it_can(suite: dict[str, Checks]) -> None:
    def passed(version: str, name: str) -> list[str]:
        return [check.id for check in suite[version][name] if check.status == "SUCCESS"]

    assert {"server-sse-priming-event", "server-sse-retry-field"} <= set(passed("2025-11-25", "server-sse-polling"))
    assert len(passed("2026-07-28", "server-stateless")) >= 20


def _checks(reports: list[Path]) -> Checks:
    return {_scenario(each.parent.name): msgspec.json.decode(each.read_bytes(), type=list[Check]) for each in reports}


def _scenario(folder: str) -> str:
    """Its name out of that of its folder, which ends with a time."""
    found = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.+", folder)
    assert found is not None, folder
    return found[1]
