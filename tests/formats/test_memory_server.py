from __future__ import annotations

import io
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.formats.memory_server import is_memory_line, write_memory_server
from tests.formats.converting import FIXTURES, blocks
from tests.http.serving import accepted

NDJSON = {"content-type": "application/x-ndjson"}
LINES = (FIXTURES / "memory-server.jsonl").read_bytes()


def imported(http: httpx.Client, api: str, body: bytes) -> dict[str, Any]:
    return accepted(http.post(f"{api}/import", content=body, headers=NDJSON))


def exported(http: httpx.Client, api: str) -> list[Any]:
    text = http.get(f"{api}/export", params={"format": "memory-server"}).text
    return sorted(map(msgspec.json.decode, text.splitlines()), key=str)


def test_the_servers_own_file_and_back(http: httpx.Client, api: str) -> None:
    answer = imported(http, api, LINES)
    assert (answer["nodes_sent"], answer["edges_created"], answer["edges_skipped_count"]) == (3, 3, 0)
    node = http.get(f"{api}/nodes/John_Smith").json()["node"]
    assert (node["type"], node["attributes"]) == ("person", {})
    assert node["content"] == 'Speaks fluent Spanish\nPrefers "morning" meetings\nGraduated in 2019'
    again = imported(http, api, LINES)
    assert (again["sequence"], again["nodes_unchanged"], again["edges_unchanged"]) == (answer["sequence"], 3, 3)
    assert exported(http, api) == sorted(map(msgspec.json.decode, LINES.splitlines()), key=str)


def test_ten_thousand_observations_fit(http: httpx.Client, api: str) -> None:
    observations = [
        f"observation {number}, which is as long as they often are: one sentence" for number in range(10_000)
    ]
    line = {"type": "entity", "name": "a name with blanks", "entityType": "much", "observations": observations}
    answer = imported(http, api, msgspec.json.encode(line))
    assert (answer["nodes_created"], answer["error_count"]) == (1, 0)
    assert exported(http, api) == [line]
    [text] = http.get(f"{api}/export").text.splitlines()
    assert text.count("observation 9999,") == 1


def test_a_placeholder_becomes_an_entity(http: httpx.Client, api: str) -> None:
    relation = {"type": "relation", "from": "a", "to": "b", "relationType": "R"}
    entity = {"type": "entity", "name": "a", "entityType": "t", "observations": ["x"]}
    imported(http, api, msgspec.json.encode(relation))
    assert exported(http, api) == [relation]
    imported(http, api, msgspec.json.encode(entity))
    assert exported(http, api) == [entity, relation]
    nodes = http.get(f"{api}/nodes").json()["nodes"]
    assert [(node["id"], node["attributes"]) for node in nodes] == [("a", {}), ("b", {"placeholder": True})]


def test_wrong_lines_are_named(http: httpx.Client, api: str) -> None:
    text = (
        '\ufeff{"type":"relation","from":"a","to":"b","relationType":"R"}\n\n'
        '{"type":"entity","name":"a","entityType":"","observations":["x"],"later":1}\r\n'
        'nonsense\n{"type":"entity","name":"b","entityType":"t","observations":[1]}\n'
        '{"type":"entity","name":"\\ud800","entityType":"t"}\n{"type":"entity","name":"","entityType":"t"}\n'
        '{"type":"entity","name":"b"}\n{"kind":"node","id":"c","type":"entity"}'
    )
    answer = imported(http, api, text.encode())
    assert [fault["line"] for fault in answer["errors"]] == [4, 5, 6, 7]
    assert "observations[0]" in answer["errors"][1]["message"]
    nodes = http.get(f"{api}/nodes").json()["nodes"]
    assert [(node["id"], node["type"]) for node in nodes] == [("a", "entity"), ("b", "entity"), ("c", "entity")]


@pytest.mark.parametrize(
    ("line", "is_theirs"),
    [
        ('{"type":"entity","name":"a"}', True),
        ('{ "name" : "\\"kind\\": x", "type" : "entity" }', True),
        ('{"from":"a","to":"b","relationType":"R","type":"relation"}', True),
        ('{"kind":"node","id":"a","type":"entity","attributes":{"name":"x"}}', False),
        ('{"type":"entity","id":"a"}', False),
        ("", False),
    ],
)
def test_lines_are_told_apart(line: str, is_theirs: bool) -> None:
    assert is_memory_line(line.encode()) == is_theirs


def test_what_others_wrote_has_lines_for_observations() -> None:
    rows = [
        {"kind": "node", "id": "a", "type": "t", "content": "one\n\ntwo", "attributes": {"n": 1}, "tags": ["x"]},
        {"kind": "edge", "from": "a", "to": "a", "relation_type": "R", "weight": 2},
    ]
    file = io.BytesIO()
    assert write_memory_server(blocks(rows), file) == 2
    assert list(map(msgspec.json.decode, file.getvalue().splitlines())) == [
        {"type": "entity", "name": "a", "entityType": "t", "observations": ["one", "two"]},
        {"type": "relation", "from": "a", "to": "a", "relationType": "R"},
    ]
