"""The shell without a terminal: exact output, and exit codes for scripts."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.cli.running import COMMAND, SERVER_TIMEOUT_SECONDS, CommandResult, ServerProcessHandle, environment, kgserve
from tests.cli.shell.typist import ENDLESS

LETTERS = (
    "MATCH (n:Entity) RETURN n.id AS id, size(n.content) AS size, n.content AS text, CAST(null AS STRING) AS nothing"
    " ORDER BY id"
)


class Shell:
    """`kgserve shell` on one store, run to its end."""

    def __init__(self, url: str, store: str) -> None:
        self.url, self.store = url, store

    def __call__(self, *arguments: object, stdin: str = "") -> CommandResult:
        return kgserve("shell", self.store, "--url", self.url, *arguments, stdin=stdin)


@pytest.fixture
def shell(server: ServerProcessHandle, store: str) -> Shell:
    return Shell(server.url, store)


def test_a_table_in_a_pipe_is_tab_separated(shell: Shell) -> None:
    done = shell("-c", LETTERS)
    assert done == CommandResult(
        0,
        'id\tsize\ttext\tnothing\na\t17\tthe "a",\\nand more\t\nb\t17\tthe "b",\\nand more\t\nc\t0\t\t\n',
        "",
    )


def test_csv(shell: Shell) -> None:
    done = shell("-c", LETTERS, "--mode", "csv")
    assert done == CommandResult(
        0,
        "id,size,text,nothing\n"
        'a,17,"the ""a"",\nand more",\n'
        'b,17,"the ""b"",\nand more",\n'
        "c,0,,\n",
        "",
    )  # fmt: skip


def test_json(shell: Shell) -> None:
    done = shell("-c", LETTERS, "--mode", "json")
    assert done == CommandResult(
        0,
        "[\n"
        '{"id":"a","size":17,"text":"the \\"a\\",\\nand more","nothing":null},\n'
        '{"id":"b","size":17,"text":"the \\"b\\",\\nand more","nothing":null},\n'
        '{"id":"c","size":0,"text":"","nothing":null}\n'
        "]\n",
        "",
    )


def test_jsonl(shell: Shell) -> None:
    done = shell("-c", LETTERS, "--mode", "jsonl")
    assert done == CommandResult(
        0,
        '{"id":"a","size":17,"text":"the \\"a\\",\\nand more","nothing":null}\n'
        '{"id":"b","size":17,"text":"the \\"b\\",\\nand more","nothing":null}\n'
        '{"id":"c","size":0,"text":"","nothing":null}\n',
        "",
    )


def test_graphs_are_compact_in_tables_and_complete_in_other_formats(shell: Shell) -> None:
    query = "MATCH p = (a:Entity)-[r:RELATES_TO]->(b:Entity) RETURN a, r, p ORDER BY a.id"
    assert shell("-c", query).lines()[1:] == [
        ["(a :letter)", "(a)-[:BEFORE]->(b)", "(a :letter)-[:BEFORE]->(b :letter)"],
        ["(c :rare letter)", "(c)-[:AFTER]->(b)", "(c :rare letter)-[:AFTER]->(b :letter)"],
    ]
    first, _ = msgspec.json.decode(shell("-c", query, "--mode", "json").out)
    assert (first["a"]["id"], first["r"]["relation_type"]) == ("a", "BEFORE")
    assert [node["id"] for node in first["p"]["nodes"]] == ["a", "b"]
    _, row, _ = csv.reader(io.StringIO(shell("-c", query, "--mode", "csv").out))
    assert msgspec.json.decode(row[0]) == first["a"]


def test_statements_and_commands_from_standard_input(shell: Shell, server: ServerProcessHandle) -> None:
    script = f':use {shell.store}\n:set wanted "b"\nMATCH (n:Entity {{id: $wanted}})\nRETURN n.id;\nRETURN 2 AS two'
    done = kgserve("shell", "--url", server.url, stdin=script)
    assert done == CommandResult(0, "n.id\nb\n\ntwo\n2\n", "")


def test_the_first_failure_ends_a_script_and_is_shown_with_its_position(shell: Shell) -> None:
    done = shell(stdin="RETURN 1 AS one;\n\nMATCH (n:Entity)\n  RETURNS n;\nRETURN 3 AS three;")
    assert (done.code, done.out) == (1, "one\n1\n")
    first, *_, line, caret = done.err.splitlines()
    assert first.startswith("standard input:3: ")
    assert line == "    RETURNS n"
    assert caret.strip() == "^"


def test_a_file(shell: Shell, tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner.cypher", tmp_path / "outer.cypher"
    inner.write_text("RETURN 'inner' AS text;\nOOPS;\nRETURN 1;")
    outer.write_text(f":mode jsonl\nRETURN 1 AS one;\n:source {inner}\nRETURN 2 AS two;")
    done = shell("-f", outer)
    assert (done.code, done.out) == (1, '{"one":1}\n{"text":"inner"}\n')
    assert done.err.startswith(f"{inner}:2: ")


def test_files_that_source_themselves_end(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "self.cypher"
    file.write_text(f":source {file}")
    done = shell("-f", file)
    assert (done.code, done.out) == (1, "")
    assert "nested more than" in done.err


def test_writes_need_the_write_option(shell: Shell) -> None:
    create = "CREATE (:Entity {id: 'new', type: 'letter'})"
    refused = shell("-c", create)
    assert (refused.code, refused.out) == (1, "")
    assert "may only read; type `:write on`, or start the shell with --write" in refused.err
    assert shell("-c", create, "--write") == CommandResult(0, "", "")
    assert shell("-c", f":write on\n{create.replace('new', 'newer')};\n:write") == CommandResult(0, "write is on\n", "")
    found = shell("-c", "MATCH (n:Entity) WHERE n.id STARTS WITH 'new' RETURN n.id ORDER BY n.id")
    assert found.out == "n.id\nnew\nnewer\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "id,two\na,2\nb,2\nc,2\n"),
        ("rows of a.jsonl", '{"id":"a","two":2}\n{"id":"b","two":2}\n{"id":"c","two":2}\n'),
        ("rows.json", '[\n{"id":"a","two":2},\n{"id":"b","two":2},\n{"id":"c","two":2}\n]\n'),
    ],
)
def test_export(shell: Shell, tmp_path: Path, name: str, content: str) -> None:
    done = shell(stdin=f':export "{tmp_path / name}" MATCH (n:Entity)\nRETURN n.id AS id, 2 AS two ORDER BY id;')
    assert done == CommandResult(0, "", "")
    assert (tmp_path / name).read_text() == content
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_export_that_fails_keeps_the_file_of_that_name(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("kept")
    assert shell("-c", f":export {file} OOPS;").code == 1
    assert file.read_text() == "kept"
    assert "unsupported extension" in shell("-c", f":export {tmp_path}/rows.xls RETURN 1;").err
    assert "cannot be written" in shell("-c", f":export {tmp_path}/no/rows.csv RETURN 1;").err


def test_commands_answer_in_every_mode(shell: Shell) -> None:
    commands = ":stores\n:schema\n:set x [1]\n:params\n:set"
    done = shell("-c", commands, "--mode", "jsonl")
    rows = [msgspec.json.decode(line) for line in done.out.splitlines()]
    assert {"name": shell.store, "state": "open", "nodes": 3, "relations": 2, "sequence": 1} in rows
    assert {"what": "node type", "name": "rare letter", "type": None, "count": 1} in rows
    assert {"what": "relation type", "name": "BEFORE", "type": None, "count": 1} in rows
    assert {"what": "property", "name": "RELATES_TO.weight", "type": "DOUBLE", "count": None} in rows
    assert {"parameter": "x", "value": [1]} in rows
    assert {"setting": "store", "value": shell.store} in rows


def test_times_go_to_standard_error(shell: Shell) -> None:
    done = shell("-c", ":timing on\nRETURN 1 AS one;")
    assert done.out == "one\n1\n"
    assert "ms of it in the server" in done.err


def test_truncated_rows_are_reported(shell: Shell) -> None:
    done = shell("-c", "UNWIND range(1, 400) AS a UNWIND range(1, 400) AS b RETURN a * b AS c", "--mode", "csv")
    assert done.code == 0
    assert done.out.count("\n") == 100_001
    assert "only the first 100,000 rows are shown" in done.err


def test_no_store(server: ServerProcessHandle) -> None:
    assert "`:use NAME` selects one" in kgserve("shell", "--url", server.url, "-c", "RETURN 1").err
    assert kgserve("shell", "nowhere", "--url", server.url, "-c", "RETURN 1").code == 1


@pytest.mark.parametrize("arguments", [("-c", "RETURN 1", "-f", "x"), ("--mode", "xml"), ("--url", "x://y")])
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert kgserve("shell", *arguments).code == 2


def test_no_server(tmp_path: Path) -> None:
    gone = kgserve("shell", "a", "--url", "http://127.0.0.1:1", "-c", "RETURN 1")
    assert (gone.code, gone.out) == (3, "")
    assert "no server answers" in gone.err
    file = tmp_path / "file"
    file.touch()
    assert kgserve("shell", "a", "--data", file, "-c", "RETURN 1").code == 3


def test_an_interrupt_ends_a_script(server: ServerProcessHandle, crowd: str) -> None:
    command = [*COMMAND, "shell", crowd, "--url", server.url, "-c", f"RETURN 1 AS one; {ENDLESS}; RETURN 2;"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as it:
        assert it.stdout is not None
        assert [it.stdout.readline() for _ in range(2)] == ["one\n", "1\n"]
        time.sleep(0.3)
        it.send_signal(signal.SIGINT)
        out, err = it.communicate(timeout=SERVER_TIMEOUT_SECONDS)
    assert (it.returncode, out) == (130, "")
    assert err.strip() == "kgserve: interrupted"
    assert httpx.get(f"{server.url}/api/memory/{crowd}/stats").is_success


def test_markdown_fences_are_removed(shell: Shell) -> None:
    assert shell("-c", "```cypher\nRETURN 1 AS one\n```").lines() == [["one"], ["1"]]
