"""``kgserve retain``, ``recall``, ``reflect`` and ``forget``, and hooks of editors."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kgserve.client import Client
from tests.cli.running import ServerProcessHandle, environment, kgserve
from tests.embedding.prepared import model_settings
from tests.server.http.serving import serving

EVENT = {"session_id": "s", "cwd": "/", "hook_event_name": "UserPromptSubmit"}
HOOK_TIMEOUT_SECONDS = 30
PATIENT = ("--within", str(HOOK_TIMEOUT_SECONDS))
"""Options of hooks that must be answered on a busy machine."""


def said(server: ServerProcessHandle, *command: str, stdin: str = "") -> str:
    done = kgserve(*command, "--server", server.url, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def test_the_four_memory_commands(server: ServerProcessHandle) -> None:
    store = "four-verbs"
    retained = said(
        server, "retain", store, "-", "--type", "decision", "--about", "Alice", stdin="We ship Postgres 16.\n"
    )
    assert retained.startswith("create [")
    with Client(server.url) as client:
        there = client.store(store)
        there.recall("Postgres", at_least=there.settings().sequence)
    [line] = said(server, "recall", store, "Postgres").splitlines()
    memory = line[1 : line.index("]")]
    assert line == f"[{memory}] (decision, just now) We ship Postgres 16. — about Alice"
    changed = json.loads(said(server, "retain", store, "We ship Postgres 17.", "--supersedes", memory, "--json"))
    assert changed["operations"][0]["type"] == "update"
    assert "2 memories would be forgotten" in said(server, "forget", store, memory, "--dry-run")
    assert "2 memories forgotten" in said(server, "forget", store, memory, "--reason", "asked to")
    assert "2 memories restored" in said(server, "forget", store, memory, "--undo")
    assert "2 memories would be erased" in said(server, "forget", store, memory, "--erase", "--dry-run")
    told = said(server, "forget", store, memory, "--erase")
    assert "2 memories erased" in told
    assert "may still contain them: unknown copies outside of this server" in told
    assert "0 memories erased" in said(server, "forget", store, memory, "--erase")
    assert "examined" in said(server, "reflect", store, "--dry-run")
    assert json.loads(said(server, "reflect", store, "--dry-run", "--json"))["dry_run"] is True
    assert kgserve("reflect", store, "--accept", "1;2", "--server", server.url).code == 2
    assert kgserve("reflect", store, "--accept", "1,3", "--server", server.url).code == 1
    assert kgserve("recall", store, "--server", server.url).code == 2


def test_lines_of_a_file_are_retained_in_batches(server: ServerProcessHandle, tmp_path: Path) -> None:
    facts = tmp_path / "facts.jsonl"
    turns = [{"content": f"Turn {each}"} for each in range(600)]
    rows: list[dict[str, Any]] = [
        {"content": "Ann lives in Rome.", "entity_id": "home", "valid_from": "2020-01-01T00:00:00Z"},
        {"content": "Ann lives in Oslo.", "entity_id": "home", "valid_from": "2024-01-01T00:00:00Z"},
        {"content": turns, "source": "one"},
        {"content": turns, "source": "two"},
    ]
    facts.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    assert said(server, "retain", "lines", "--file", str(facts)) == "4 lines: 1,201 create, 1 update\n"
    assert "4 lines: 1,202 noop" in said(server, "retain", "lines", "--file", "-", stdin=facts.read_text())
    refused = kgserve(
        "retain", "lines", "--file", "-", "--server", server.url, stdin='\n{"content": "x"}\n\n{"content": ""}'
    )
    assert refused.code == 1
    assert "lines 2 to 4 were not stored" in refused.err
    wrong = kgserve("retain", "lines", "--file", "-", "--server", server.url, stdin="[]")
    assert "line 1 is not a JSON object" in wrong.err
    assert kgserve("retain", "lines", "--server", server.url).code == 2
    assert kgserve("retain", "lines", "--file", str(facts), "--about", "x", "--server", server.url).code == 2


def test_a_hook_prints_an_answer_or_nothing(server: ServerProcessHandle, tmp_path: Path) -> None:
    store = "hooked"
    said(server, "retain", store, "Trams stop at the harbour.")
    with Client(server.url) as client:
        there = client.store(store)
        there.recall("trams", at_least=there.settings().sequence, touch=False)
    printed = kgserve("mcp", "hooks", "--client", "claude-code", "--store", store, "--url", server.url)
    assert "settings.json" in printed.err
    hooks = json.loads(printed.out)["hooks"]
    assert set(hooks) == {"SessionStart", "UserPromptSubmit"}

    def told(event: dict[str, Any], command: str = hooks["UserPromptSubmit"][0]["hooks"][0]["command"]) -> str:
        done = subprocess.run(
            [*shlex.split(command), *PATIENT],
            input=json.dumps(event),
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=environment(),
        )
        assert done.stderr == ""
        return done.stdout

    answer = json.loads(told(EVENT | {"prompt": "where do trams stop?"}))["hookSpecificOutput"]
    assert answer["hookEventName"] == "UserPromptSubmit"
    assert "Trams stop at the harbour." in answer["additionalContext"]
    begun = json.loads(told({"hook_event_name": "SessionStart", "source": "startup"}))["hookSpecificOutput"]
    assert "Trams stop" in begun["additionalContext"]
    with Client(server.url) as client:
        [memory] = client.store(store).memories().memories
        assert memory.access_count == 0, "recalls by hooks are not accesses"

    assert told(EVENT | {"prompt": " "}) == ""
    other = json.loads(told({"hookEventName": "SessionStart", "source": "new"}))["hookSpecificOutput"]
    assert other == begun
    started = json.loads(told({"hook_event_name": "sessionStart", "cursor_version": "3.0"}))
    assert "Trams stop" in started["additional_context"]
    before = json.loads(told({"hook_event_name": "BeforeAgent", "prompt": "where do trams stop?"}))
    assert before["hookSpecificOutput"]["hookEventName"] == "BeforeAgent"
    for stdin in ("", "no JSON", "[]", json.dumps(EVENT | {"prompt": 1})):
        assert said(server, "recall", store, "--hook", stdin=stdin) == ""
    assert said(server, "recall", "no-such-store", "--hook", stdin=json.dumps(EVENT | {"prompt": "x"})) == ""


@pytest.mark.parametrize(
    ("client", "events", "seconds"),
    [
        ("claude-code", ["SessionStart", "UserPromptSubmit"], 5),
        ("codex", ["SessionStart", "UserPromptSubmit"], 5),
        ("gemini", ["SessionStart", "BeforeAgent"], 5_000),
        ("cursor", ["sessionStart"], 5),
        ("vscode", ["SessionStart"], 5),
    ],
)
def test_hooks_have_each_editors_format(client: str, events: list[str], seconds: int) -> None:
    printed = kgserve("mcp", "hooks", "--client", client, "--store", "s", "--url", "http://127.0.0.1:1")
    assert printed.code == 0
    file = json.loads(printed.out)
    assert list(file["hooks"]) == events
    assert (file.get("version") == 1) is (client == "cursor")
    for [entry] in file["hooks"].values():
        [hook] = entry.get("hooks", [entry])
        assert ("hooks" in entry) is (client not in {"cursor", "vscode"})
        assert hook["timeout"] == seconds
        assert shlex.split(hook["command"])[1:] == ["recall", "s", "--hook", "--server", "http://127.0.0.1:1"]
    unknown = kgserve("mcp", "hooks", "--client", "emacs")
    assert unknown.code == 2
    assert f"{client!r}" in unknown.err


def test_an_unrelated_prompt_gets_nothing(tmp_path: Path) -> None:
    store, models = "shop", model_settings().models_dir
    options = {"embedding_provider": "local", "models_dir": models}
    with serving(tmp_path / "data", **options) as served, Client(served.url) as client:
        there = client.store(store)
        there.retain("The web shop ships with Postgres 17.")
        there.recall("x", at_least=there.settings().sequence, touch=False)

        def told(prompt: str) -> str:
            command = ("recall", store, "--hook", *PATIENT, "--server", served.url)
            return kgserve(*command, stdin=json.dumps(EVENT | {"prompt": prompt})).out

        assert "Postgres 17" in told("which database does the web shop use?")
        assert told("sort these imports") == told("make the button blue") == ""


def test_a_hook_does_not_wait_for_an_endless_answer() -> None:
    """The time limit covers the whole answer, even if single bytes keep arriving."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        slow.settimeout(HOOK_TIMEOUT_SECONDS)
        done = threading.Event()

        def drip() -> None:
            connection, _ = slow.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not done.wait(0.1):
                    connection.sendall(b"X-More: 1\r\n")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            url = f"http://127.0.0.1:{slow.getsockname()[1]}"
            found = kgserve(
                "recall", "any", "--hook", "--server", url, stdin=json.dumps(EVENT | {"prompt": "anything"})
            )
        finally:
            done.set()
            dripping.join()
    assert (found.code, found.out, found.err) == (0, "", "")


def test_a_hook_does_not_wait_for_a_silent_server(tmp_path: Path) -> None:
    event = json.dumps(EVENT | {"prompt": "anything"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        wheres = (("--server", url), ("--server", "http://127.0.0.1:1"), ("--data", str(tmp_path)))
        for where in (*wheres, ("--data", str(tmp_path / "none"))):
            done = kgserve("recall", "any", "--hook", *where, stdin=event)
            assert (done.code, done.out, done.err) == (0, "", "")
