"""Stores that are created, configured, searched and dropped from the command line."""

from __future__ import annotations

import os
import pty
import subprocess

import httpx
import msgspec
import pytest

from tests.cli.running import COMMAND, ServerProcessHandle, environment, kgserve


def shown(server: ServerProcessHandle, store: str, *chosen: str) -> dict[str, str]:
    done = kgserve("settings", store, *chosen, "--server", server.url)
    assert done.code == 0, done.err
    head, *rows = done.lines()
    assert head == ["setting", "value"]
    return dict(rows)


def test_a_store_is_created_once_with_settings(server: ServerProcessHandle) -> None:
    made = kgserve("create", "chosen", "name=The 1st", "history=90", "memory.dedup=off", "--server", server.url)
    assert (made.code, made.out) == (0, "chosen: created\n"), made.err
    found = shown(server, "chosen")
    assert (found["name"], found["history"], found["memory.dedup"]) == ("The 1st", "90", "off")
    again = kgserve("create", "chosen", "history=30", "--server", server.url)
    assert again.code == 1
    assert "its settings are unchanged" in again.err
    assert shown(server, "chosen")["history"] == "90"


def test_settings_are_changed_one_by_one(server: ServerProcessHandle) -> None:
    kgserve("create", "changed", "--server", server.url)
    found = shown(
        server, "changed", "kind_whitelist=note, person", 'metadata={"a": 1}', "name=7", "memory.half_life_days=null"
    )
    assert found["kind_whitelist"] == '["note","person"]'
    assert found["metadata"] == '{"a":1}'
    assert found["name"] == "7"
    assert found["memory.half_life_days"] == "null"
    assert shown(server, "changed", "kind_whitelist=", "name=") == found | {"kind_whitelist": "[]", "name": ""}
    told = kgserve("settings", "changed", "--json", "--server", server.url)
    assert msgspec.json.decode(told.out)["metadata"] == {"a": 1}


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ("history", 2, "SETTING=VALUE"),
        ("colour=red", 2, "unknown setting 'colour'"),
        ("memory.alpha=2", 1, "memory.alpha"),
        ("history=abc", 1, "history: Invalid enum value 'abc': it is one of all, none, or a whole number"),
    ],
)
def test_invalid_settings_are_rejected_by_name(server: ServerProcessHandle, wrong: str, code: int, said: str) -> None:
    kgserve("create", "refused", "--server", server.url)
    done = kgserve("settings", "refused", wrong, "--server", server.url)
    assert done.code == code
    assert said in done.err


def test_a_store_is_dropped_after_confirmation(server: ServerProcessHandle) -> None:
    kgserve("create", "doomed", "--server", server.url)
    asked = kgserve("drop", "doomed", "--server", server.url)
    assert asked.code == 2
    assert "--yes" in asked.err
    assert "the name does not match" in answered("other", "drop", "doomed", "--server", server.url)
    assert "doomed: dropped" in answered("doomed", "drop", "doomed", "--server", server.url)
    assert kgserve("settings", "doomed", "--server", server.url).code == 1
    kgserve("create", "doomed", "--server", server.url)
    edge = {"from": "a", "to": "b", "relation_type": "r", "to_graph": "doomed"}
    body = {"nodes": [{"id": "a", "type": "t"}], "edges": [edge]}
    httpx.post(f"{server.url}/api/memory/beside/inject", json=body).raise_for_status()
    gone = kgserve("drop", "doomed", "--yes", "--server", server.url)
    assert gone.out == "doomed: dropped; 1 edges of other stores still lead to it\n"
    assert "no store" in kgserve("drop", "doomed", "--yes", "--server", server.url).err


def test_search_lists_the_best_hits_first(server: ServerProcessHandle) -> None:
    texts = {"moby": "A whale that is white\nand large", "emma": "A matchmaker", "long": "whale " * 200}
    nodes = [{"id": name, "type": "book", "content": text} for name, text in texts.items()]
    body = {"nodes": nodes}
    httpx.post(f"{server.url}/api/memory/read/inject", json=body).raise_for_status()
    assert kgserve("settings", "read", "--server", server.url).code == 0
    wait = {"query": "whale", "at_least": 1}
    httpx.post(f"{server.url}/api/memory/read/search", json=wait, timeout=60).raise_for_status()
    found = kgserve("search", "read", "white whale", "--mode", "keyword", "--server", server.url)
    head, first, second = found.lines()
    assert head == ["score", "type", "id", "content"]
    assert first[1:] == ["book", "moby", "A whale that is white and large"]
    assert len(second[3]) == 200
    assert second[3].endswith("…")
    told = kgserve("search", "read", "whale", "--limit", "1", "--json", "--server", server.url)
    assert len(msgspec.json.decode(told.out)["hits"]) == 1
    assert kgserve("search", "read", "whale", "--type", "film", "--server", server.url).lines()[1:] == []
    assert kgserve("search", "read", "whale", "--as-of", "0", "--server", server.url).lines()[1:] == []


def answered(answer: str, *arguments: str) -> str:
    """Run a command on a pseudo-terminal and type an answer. Return the displayed text."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    return out.decode()
