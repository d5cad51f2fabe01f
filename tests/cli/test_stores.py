from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import httpx
import msgspec

from tests.cli.running import COMMAND, ServerProcessHandle, environment, kgserve


def inject(server: ServerProcessHandle, store: str) -> None:
    nodes = [{"id": name, "type": "letter"} for name in "abc"]
    edges = [{"from": "a", "to": "b", "relation_type": "BEFORE"}]
    httpx.post(f"{server.url}/api/memory/{store}/inject", json={"nodes": nodes, "edges": edges}).raise_for_status()


def test_a_pipe_gets_plain_lines(server: ServerProcessHandle) -> None:
    inject(server, "listed")
    listed = kgserve("stores", "--server", server.url)
    assert listed.code == 0
    head, *rows = listed.lines()
    assert head == ["name", "state", "nodes", "edges", "sequence", "journal", "engine", "lag", "last_check"]
    row = next(row for row in rows if row[0] == "listed")
    assert row[1:5] == ["open", "3", "1", "1"]
    assert int(row[5]) > 0
    assert int(row[6]) == 0, "no Cypher query was made"
    assert int(row[7]) >= 0


def test_json_prints_the_servers_answer(server: ServerProcessHandle) -> None:
    inject(server, "as-json")
    answer = msgspec.json.decode(kgserve("stores", "--json", "--data", server.data).out)
    assert "as-json" in {store["name"] for store in answer["stores"]}
    assert answer["count"] == len(answer["stores"])


def test_store_lists_have_filters_and_pages(server: ServerProcessHandle) -> None:
    for name in ("paged-a", "paged-b", "paged-c"):
        httpx.put(f"{server.url}/api/memory/{name}", json={"kind_whitelist": [name[-1]]}).raise_for_status()
    listed = ("stores", "--server", server.url, "--prefix", "paged-")
    assert [row[0] for row in kgserve(*listed).lines()[1:]] == ["paged-a", "paged-b", "paged-c"]
    assert [row[0] for row in kgserve(*listed, "--kind", "b", "--state", "open").lines()[1:]] == ["paged-b"]
    first = kgserve(*listed, "--limit", "2")
    assert ([row[0] for row in first.lines()[1:]], "--after paged-b" in first.err) == (["paged-a", "paged-b"], True)
    last = kgserve(*listed, "--limit", "2", "--after", "paged-b")
    assert ([row[0] for row in last.lines()[1:]], last.err) == (["paged-c"], "")
    page = httpx.get(f"{server.url}/api/memory?prefix=paged-&limit=1&after=paged-a").json()
    assert ([each["name"] for each in page["stores"]], page["count"], page["next_after"]) == (["paged-b"], 3, "paged-b")
    for query in ("limit=0", "limit=1001", "state=shut", "first=1"):
        assert httpx.get(f"{server.url}/api/memory?{query}").status_code == 400


def test_a_terminal_gets_a_table(server: ServerProcessHandle) -> None:
    inject(server, "drawn")
    shown = on_a_terminal("stores", "--server", server.url)
    assert "Sequence" in shown
    assert " B " in shown or "KiB" in shown
    assert "─" in shown


def test_a_terminal_shows_the_progress_of_an_import(server: ServerProcessHandle, tmp_path: Path) -> None:
    file = tmp_path / "graph.ndjson"
    file.write_text("".join(f'{{"kind":"node","id":"n{number}","type":"x"}}\n' for number in range(3000)))
    shown = on_a_terminal("import", "watched", str(file), "--server", server.url)
    assert "100%" in shown
    assert "lines/s" in shown
    assert "nodes: 3,000 sent, 3,000 created" in shown


def on_a_terminal(*arguments: str) -> str:
    """Run a command on a pseudo-terminal. Return the displayed text."""
    ours, theirs = pty.openpty()
    variables = {"COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(variables)
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 65536):
                shown += block
        except OSError:  # Linux reports EIO when the other side has closed
            pass
        finally:
            os.close(ours)
        assert process.wait() == 0, shown
    return shown.decode()
