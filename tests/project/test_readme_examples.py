"""The examples of README.md, run as they stand against a server on another port."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.cli.running import Running, environment
from tests.project.reading import TOP, assert_within, blocks, whole_values

EXAMPLE, REST, CYPHER, SEARCH, PAST, VALIDITY, VERSIONS = blocks("run", "bash")
(ANSWERS,) = blocks("answers", "json")
(FOUND,) = blocks("found", "json")


def in_order_of_ids(answer: Any) -> list[Any]:
    """The nodes of a search."""
    return sorted((hit["node"] for hit in answer["hits"]), key=lambda node: node["id"])


def send_as_curl_would(command: list[str]) -> Any:
    """Send what a curl command line says; -d without a content type is sent as a form, as curl does."""
    arguments = iter(command[1:])
    method, url, body, headers = "GET", "", None, {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}
    for argument in arguments:
        match argument:
            case "-X":
                method = next(arguments)
            case "-d":
                body = next(arguments).replace("\n", "")
            case "-H":
                name, _, value = next(arguments).partition(": ")
                headers[name] = value
            case _:
                url = argument
    return httpx.request(method, f"http://{url}", content=body, headers=headers).raise_for_status().json()


def here(block: str, server: Running) -> str:
    return block.replace("localhost:8080", server.url.removeprefix("http://")).replace("\\\n", " ")


def test_the_traceability_example_is_the_specs(empty_server: Running) -> None:
    commands = (shlex.split(part, comments=True) for part in here(EXAMPLE, empty_server).split("\n\n"))
    given = [send_as_curl_would(command) for command in commands if command]
    shown = whole_values(ANSWERS)
    assert len(shown) == len(given) == 2
    assert_within(shown, given)


def test_all_examples_run_in_a_shell(empty_server: Running, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), environment()["PATH"]])
    variables = environment({"PATH": path, "KGSERVE_DATA_DIR": str(empty_server.data)})
    outputs = [
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", here(block, empty_server)],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for block in (EXAMPLE, REST, CYPHER, SEARCH, PAST, VALIDITY, VERSIONS)
    ]
    assert_within(whole_values(ANSWERS), whole_values(outputs[0]))
    needs, deleted = whole_values(outputs[1].partition("nodes:")[0])
    assert [node["id"] for node in needs["nodes"]] == ["sym-user", "req-login", "req-signup"]
    assert deleted["deleted_id"] == "req-signup"
    listed = [line.split("\t") for line in outputs[1].splitlines() if "\t" in line]
    counts = {row[0]: row[2:4] for row in listed}
    assert counts["myproject"] == counts["copy"] == ["3", "2"]
    read, written = whole_values(outputs[2])
    assert read["rows"] == [["req-login", "IMPLEMENTED_BY", "sym-oauth"], ["req-login", "IMPLEMENTED_BY", "sym-user"]]
    assert written["changes"]["edges_updated"] == 2
    then, past, reverted, restored = whole_values(outputs[4])[2:]
    assert then["node"]["content"] == "in May"
    assert past["states"][0]["diff"] == [{"path": "content", "before": "in May", "after": "in June"}]
    assert (reverted["nodes_updated"], restored["nodes"]) == (1, 1)
    _, ended, employed, moved_on = whole_values(outputs[5])
    assert (ended["changed"], employed["count"], moved_on["count"]) == (True, 2, 1)
    _, first, second, beside, both, reasons = whole_values(outputs[6])
    assert (first["created"], second["node"]["version"]) == (True, 2)
    assert (beside["status"], beside["node"]["conflicts"]) == (409, [2])
    assert [edge["id"] for edge in reasons["edges"]] == [result["edge_id"] for result in both["edges"]]
    (shown,), (found,) = whole_values(FOUND), whole_values(outputs[3])
    # Without the model the scores are others, and so may be the order behind the first.
    assert_within(shown["hits"][0]["node"], found["hits"][0]["node"])
    assert_within(in_order_of_ids(shown), in_order_of_ids(found))


def test_the_exchange_format_is_taken_as_shown(server: Running) -> None:
    readme = (TOP / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith('{"kind"')]
    assert [msgspec.json.decode(line)["kind"] for line in shown] == ["node", "edge"]
    answer = httpx.post(
        f"{server.url}/api/memory/shown/import",
        content="\n".join(shown),
        headers={"Content-Type": "application/x-ndjson"},
    ).json()
    assert answer["ok"]
    assert (answer["nodes_created"], answer["edges_skipped_count"]) == (1, 1)


def test_the_librarys_example_runs(tmp_path: Path) -> None:
    (block,) = blocks("library", "python")
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environment(), check=True)


def test_the_clients_examples_run(empty_server: Running, tmp_path: Path) -> None:
    for block in blocks("client", "python"):
        variables = environment({"KGSERVE_DATA_DIR": str(empty_server.data)})
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=variables, check=True)
