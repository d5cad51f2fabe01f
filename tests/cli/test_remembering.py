"""``kgserve retain``, ``recall``, ``reflect`` and ``forget``, and what hooks of editors get."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

from kgserve.client import Client
from tests.cli.running import Running, environment, kgserve

EVENT = {"session_id": "s", "cwd": "/", "hook_event_name": "UserPromptSubmit"}


def said(server: Running, *command: str, stdin: str = "") -> str:
    done = kgserve(*command, "--server", server.url, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def test_a_memory_by_the_four_verbs(server: Running) -> None:
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
    assert line == f"[{memory}] (decision, conf 1.00, just now) We ship Postgres 16. — about Alice"
    changed = json.loads(said(server, "retain", store, "We ship Postgres 17.", "--supersedes", memory, "--json"))
    assert changed["operations"][0]["type"] == "update"
    assert "2 memories would be withdrawn" in said(server, "forget", store, memory, "--dry-run")
    assert "2 memories withdrawn" in said(server, "forget", store, memory, "--reason", "asked to")
    assert "2 memories brought back" in said(server, "forget", store, memory, "--undo")
    assert "looked at" in said(server, "reflect", store, "--dry-run")
    assert json.loads(said(server, "reflect", store, "--dry-run", "--json"))["dry_run"] is True
    assert kgserve("reflect", store, "--accept", "1;2", "--server", server.url).code == 2
    assert kgserve("reflect", store, "--accept", "1,3", "--server", server.url).code == 1
    assert kgserve("recall", store, "--server", server.url).code == 2


def test_a_hook_is_answered_or_nothing_is_said(server: Running, tmp_path: Path) -> None:
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
            shlex.split(command),
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
        assert memory.access_count == 0, "what nobody has asked for is no use"

    assert told(EVENT | {"prompt": " "}) == ""
    for stdin in ("", "no JSON", "[]", json.dumps(EVENT | {"prompt": 1})):
        assert said(server, "recall", store, "--hook", stdin=stdin) == ""
    assert said(server, "recall", "no-such-store", "--hook", stdin=json.dumps(EVENT | {"prompt": "x"})) == ""


def test_a_hook_does_not_wait_for_a_server_that_says_nothing(tmp_path: Path) -> None:
    event = json.dumps(EVENT | {"prompt": "anything"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        wheres = (("--server", url), ("--server", "http://127.0.0.1:1"), ("--data", str(tmp_path)))
        for where in (*wheres, ("--data", str(tmp_path / "none"))):
            done = kgserve("recall", "any", "--hook", *where, stdin=event)
            assert (done.code, done.out, done.err) == (0, "", "")
