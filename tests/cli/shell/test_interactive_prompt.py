"""The shell on a real pseudo-terminal with a real server."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kgserve.platform.server_discovery import find_data_folder_lock_holder
from tests.cli.running import ServerProcessHandle
from tests.cli.shell.typist import CTRL_C, CTRL_D, ENDLESS, ENTER, TAB, UP, Terminal
from tests.stores.writing import until


@pytest.fixture
def terminal(server: ServerProcessHandle, store: str, tmp_path: Path) -> Iterator[Terminal]:
    """Yield a shell at its prompt, with its own store."""
    with Terminal(tmp_path, store, "--url", server.url) as shell:
        shell.see(rf"{store}> ?$")
        yield shell


def test_a_statement_over_several_lines(terminal: Terminal) -> None:
    terminal.type("MATCH (n:Entity)", ENTER)
    terminal.see(r"^ +… ?$")
    terminal.type("RETURN n.id AS id, n", ENTER, "ORDER BY id;", ENTER)
    terminal.see(r"^ ?a +\(a :letter\)$")
    terminal.see(r"^ ?c +\(c :rare letter\)$")
    terminal.see(r"^3 rows$")


def test_completion(terminal: Terminal, store: str) -> None:
    for typed, completed in (
        ("MATCH (n:Ent", r"MATCH \(n:Entity$"),
        ("UNW", r"> UNWIND$"),
        ("RETURN list_conc", r"RETURN list_concat\($"),
        ("MATCH (n:Entity) WHERE n.upd", r"n\.updated_at$"),
        ("MATCH ()-[:REL", r"\[:RELATES_TO$"),
        ("MATCH (n {type: 'ra", r"type: 'rare letter$"),
        ("MATCH ()-[r]->() WHERE r.relation_type = 'BE", r"relation_type = 'BEFORE$"),
        (":sch", r":schema$"),
        (f":use {store[:-4]}", rf":use {store}$"),
        (":mode jsonl", r":mode jsonl$"),
    ):
        terminal.type(typed, TAB)
        terminal.see(completed)
        terminal.wipe()


def test_completion_of_names_in_use(server: ServerProcessHandle, tmp_path: Path) -> None:
    nodes = [
        {"id": "t", "type": "task", "attributes": {"state": "open", "due date": "May"}},
        {"id": "p", "type": "person of note", "attributes": {"stature": 2}},
    ]
    edges = [{"from": "p", "to": "t", "relation_type": "OWNS", "attributes": {"since": 2020}}]
    inject = f"{server.url}/api/memory/names-in-use/inject"
    assert httpx.post(inject, json={"nodes": nodes, "edges": edges}).is_success
    with Terminal(tmp_path, "names-in-use", "--url", server.url) as terminal:
        terminal.see(r"names-in-use> ?$")
        for typed, completed in (
            ("MATCH (n:ta", r"\(n:task$"),
            ("MATCH (n:task|per", r"\(n:task\|`person of note`$"),
            ("MATCH (n:`pers", r"\(n:`person of note`$"),
            ("MATCH (n) WHERE n:ta", r"n:task$"),
            ("MATCH ()-[:OW", r"\[:OWNS$"),
            ("MATCH ()-[:OWNS {si", r"\{since$"),
            ("MATCH (n:task {st", r"\{state$"),
            ("MATCH (t:task) RETURN t.du", r"t\.`due date`$"),
            ("CALL db.la", r"CALL db\.labels\($"),
            ("MATCH (n) REMO", r"REMOVE$"),
            ("RETURN toLow", r"toLower\($"),
        ):
            terminal.type(typed, TAB)
            terminal.see(completed)
            terminal.wipe()


def test_several_completions_are_offered(terminal: Terminal) -> None:
    terminal.type("MATCH (n:Entity) RETURN n.", TAB)
    for name in ("content", "attributes", "version", "created_at"):
        terminal.see(rf"\b{name}\b.*property")


def test_an_error_has_a_caret_below_its_position(terminal: Terminal) -> None:
    terminal.type("MATCH (n:Entity)", ENTER, "RETURNS n;", ENTER)
    found = terminal.see(r"^( *)RETURNS n\n( *)\^$")
    assert found[1] == found[2]
    terminal.type("RETURN 41 + 1 AS sum;", ENTER)
    terminal.see(r"^ *42$")


def test_an_interrupt_cancels_the_query_but_not_the_shell(
    server: ServerProcessHandle, crowd: str, tmp_path: Path
) -> None:
    with Terminal(tmp_path, crowd, "--url", server.url) as terminal:
        terminal.see(r"crowd> ?$")
        terminal.type(f"{ENDLESS};", ENTER)
        time.sleep(0.5)
        terminal.type(CTRL_C)
        terminal.see(r"^interrupted$")
        terminal.type("MATCH (n:Entity) RETURN count(*) AS number;", ENTER)
        terminal.see(r"^ *1500$")


def test_an_interrupt_at_the_prompt_clears_the_line(terminal: Terminal) -> None:
    terminal.type("RETURN 'half", CTRL_C)
    terminal.type("RETURN 'whole' AS text;", ENTER)
    terminal.see(r"^ *whole$")
    terminal.type("MATCH (n)", ENTER, "RETURN", CTRL_C, "RETURN 'again' AS text;", ENTER)
    terminal.see(r"^ *again$")


def test_the_history_file_is_private(server: ServerProcessHandle, store: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, store, "--url", server.url) as first:
        first.type("RETURN 'kept' AS", ENTER, "text;", ENTER)
        first.see(r"^ *kept$(\n.*)+> ?$")  # before the prompt, the terminal would take the key and lose it
        first.type(CTRL_D)
        assert first.end() == 0
    with Terminal(tmp_path, store, "--url", server.url) as second:
        second.see(r"> ?$")
        second.type(UP)
        second.see(r"> RETURN 'kept' AS\n +… text;$")
    (file,) = (tmp_path / "state").rglob("history")
    assert file == tmp_path / "state" / "kgserve" / "history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_use_selects_a_store(terminal: Terminal, crowd: str) -> None:
    terminal.type(f":use {crowd}", ENTER)
    terminal.see(r"^crowd> ?$")
    terminal.type("MATCH (n:Entity {id: 'n0000'}) RETURN n.type AS kind;", ENTER)
    terminal.see(r"^ *thing$")


def test_write_mode_and_changes_are_shown(terminal: Terminal) -> None:
    terminal.type(":write on", ENTER)
    terminal.see(r"^write is on$")
    terminal.see(r" write> ?$")
    terminal.type("CREATE (:Entity {id: 'd', type: 'fresh'});", ENTER)
    terminal.see(r"created 1 node; sequence 2$")
    terminal.type("MATCH (n {type: 'fr", TAB)
    terminal.see(r"type: 'fresh$")


def test_modes_and_times(terminal: Terminal) -> None:
    terminal.type(":mode json", ENTER, ":timing on", ENTER, "RETURN 1 AS one;", ENTER)
    terminal.see(r'^\{"one":1\}$')
    terminal.see(r"ms, .* ms of it in the server$")


def test_long_values_are_shortened(terminal: Terminal) -> None:
    terminal.type("RETURN repeat('long ', 1000) AS text, 7 AS seven;", ENTER)
    terminal.see(r"^ (long )+\S* +7$")
    terminal.see(r"^1 row$")
    assert terminal.shown.count("long") < 40


def end_server(data: Path, how: signal.Signals) -> None:
    """Send a signal to the process that serves a data folder, if any."""
    if pid := find_data_folder_lock_holder(data):
        os.kill(pid, how)


def test_a_server_is_started_on_demand_and_restarted_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    variables = {"KGSERVE_INDEXES": "false", "KGSERVE_PORT": "0"}
    try:
        with Terminal(tmp_path, "new", "--write", "--data", str(data), variables=variables) as terminal:
            terminal.see(r"^starting a server for ")
            terminal.see(r"^new write> ?$")
            terminal.type("CREATE (:Entity {id: 'a', type: 'letter'});", ENTER)
            terminal.see(r"created 1 node; sequence 1$")
            end_server(data, signal.SIGKILL)
            until(lambda: find_data_folder_lock_holder(data) is None)
            terminal.type("MATCH (n:Entity) RETURN 'still there: ' + n.id AS text;", ENTER)
            terminal.see(r"^ *still there: a$")
    finally:
        end_server(data, signal.SIGTERM)


def test_invalid_commands_are_reported(terminal: Terminal) -> None:
    for typed, said in (
        (":nonsense", "unknown command :nonsense"),
        (":set x {", "not a JSON value"),
        (":set 1x 1", "not a parameter name"),
        (":mode xml", "table, json, csv, jsonl"),
        (":write maybe", "on or off"),
        (":stores please", "takes no arguments"),
        (":source", "requires a file name"),
        (":source /no/such/file", "cannot be read"),
        (":export rows.csv;", "requires a file name and a statement"),
    ):
        terminal.type(typed, ENTER)
        terminal.see(said)
        terminal.wipe()


@pytest.mark.parametrize("keys", [CTRL_D, f":quit{ENTER}", f"exit;{ENTER}"])
def test_leaving(terminal: Terminal, keys: str) -> None:
    terminal.type(keys)
    assert terminal.end() == 0


def test_the_prompt_appears_immediately(server: ServerProcessHandle, store: str, tmp_path: Path) -> None:
    times: list[float] = []
    for _ in range(3):
        begun = time.monotonic()
        with Terminal(tmp_path, store, "--data", str(server.data)) as shell:
            shell.see(rf"{store}> ?$")
            times.append(time.monotonic() - begun)
    assert min(times) < 5, times
