from __future__ import annotations

import io
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.graph.transfer.formats.mcp_memory_server_file import (
    is_mcp_memory_server_line,
    write_mcp_memory_server_file,
)
from tests.graph.transfer.formats.conversion_helpers import FIXTURES, blocks
from tests.server.http.serving import accepted

NDJSON = {"content-type": "application/x-ndjson"}
LINES = (FIXTURES / "memory-server.jsonl").read_bytes()


def imported(http: httpx.Client, api: str, body: bytes) -> dict[str, Any]:
    return accepted(http.post(f"{api}/import", content=body, headers=NDJSON))


def exported(http: httpx.Client, api: str) -> list[Any]:
    text = http.get(f"{api}/export", params={"format": "memory-server"}).text
    return sorted(map(msgspec.json.decode, text.splitlines()), key=str)


def test_memory_server_file_round_trip(http: httpx.Client, api: str) -> None:
    answer = imported(http, api, LINES)
    assert (answer["nodes_sent"], answer["edges_created"], answer["edges_skipped_count"]) == (3, 3, 0)
    node = http.get(f"{api}/nodes/John_Smith").json()["node"]
    assert (node["type"], node["attributes"]) == ("person", {})
    assert node["content"] == 'Speaks fluent Spanish\nPrefers "morning" meetings\nGraduated in 2019'
    again = imported(http, api, LINES)
    assert (again["sequence"], again["nodes_unchanged"], again["edges_unchanged"]) == (answer["sequence"], 3, 3)
    assert exported(http, api) == sorted(map(msgspec.json.decode, LINES.splitlines()), key=str)


def test_import_of_ten_thousand_observations(http: httpx.Client, api: str) -> None:
    observations = [
        f"observation {number}, which is as long as they often are: one sentence" for number in range(10_000)
    ]
    line = {"type": "entity", "name": "a name with blanks", "entityType": "much", "observations": observations}
    answer = imported(http, api, msgspec.json.encode(line))
    assert (answer["nodes_created"], answer["error_count"]) == (1, 0)
    assert exported(http, api) == [line]
    [text] = http.get(f"{api}/export").text.splitlines()
    assert text.count("observation 9999,") == 1


def test_placeholder_becomes_entity_on_import(http: httpx.Client, api: str) -> None:
    relation = {"type": "relation", "from": "a", "to": "b", "relationType": "R"}
    entity = {"type": "entity", "name": "a", "entityType": "t", "observations": ["x"]}
    imported(http, api, msgspec.json.encode(relation))
    assert exported(http, api) == [relation]
    imported(http, api, msgspec.json.encode(entity))
    assert exported(http, api) == [entity, relation]
    nodes = http.get(f"{api}/nodes").json()["nodes"]
    assert [(node["id"], node["attributes"]) for node in nodes] == [("a", {}), ("b", {"placeholder": True})]


def entity(name: str, *observations: str, kind: str = "person") -> bytes:
    line = {"type": "entity", "name": name, "entityType": kind, "observations": observations}
    return msgspec.json.encode(line) + b"\n"


def content(http: httpx.Client, api: str, name: str) -> str:
    return http.get(f"{api}/nodes/{name}").json()["node"]["content"]


def test_repeated_entity_lines_merge_observations(http: httpx.Client, api: str) -> None:
    answer = imported(http, api, entity("Ann", "one") + entity("Bob", "x") + entity("Ann", "two", "one", kind=""))
    assert content(http, api, "Ann") == "one\ntwo"
    assert http.get(f"{api}/nodes/Ann").json()["node"]["type"] == "person"
    assert (answer["error_count"], answer["merged_count"]) == (0, 1)
    [merged] = answer["merged"]
    assert (merged["line"], merged["earlier_line"]) == (3, 1)
    assert merged["message"].startswith('entity "Ann": the observations of both are kept')


def test_import_keeps_earlier_observations(http: httpx.Client, api: str) -> None:
    imported(http, api, entity("Ann", "one", "three"))
    answer = imported(http, api, entity("Ann", "two", "three", kind="scientist"))
    assert content(http, api, "Ann") == "one\nthree\ntwo"
    assert (answer["nodes_updated"], answer["merged_count"]) == (1, 0)
    again = imported(http, api, entity("Ann", "two", "three", kind="scientist"))
    assert (again["nodes_unchanged"], again["sequence"]) == (1, answer["sequence"])


def test_observations_over_limit_are_reported(http: httpx.Client, api: str) -> None:
    most = "x" * ((1 << 20) - 10)
    answer = imported(http, api, entity("Ann", most) + entity("Ann", "0123456789") + entity("Ann", "012345678"))
    assert [fault["line"] for fault in answer["errors"]] == [2]
    assert "exceed 1,048,576 bytes" in answer["errors"][0]["message"]
    assert content(http, api, "Ann").endswith("\n012345678")


def test_mixed_line_kinds_keep_their_order(http: httpx.Client, api: str) -> None:
    ours = b'{"kind":"node","id":"Ann","type":"t","content":"ours"}\n'
    answer = imported(http, api, entity("Ann", "one") + ours + entity("Ann", "two"))
    assert content(http, api, "Ann") == "ours\ntwo"
    assert [(each["line"], each["earlier_line"]) for each in answer["merged"]] == [(2, 1), (3, 1)]


def test_faulty_memory_server_lines_are_reported(http: httpx.Client, api: str) -> None:
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
def test_memory_server_lines_are_detected(line: str, is_theirs: bool) -> None:
    assert is_mcp_memory_server_line(line.encode()) == is_theirs


def test_foreign_content_exports_lines_as_observations() -> None:
    rows = [
        {"kind": "node", "id": "a", "type": "t", "content": "one\n\ntwo", "attributes": {"n": 1}, "tags": ["x"]},
        {"kind": "edge", "from": "a", "to": "a", "relation_type": "R", "weight": 2},
    ]
    file = io.BytesIO()
    assert write_mcp_memory_server_file(blocks(rows), file) == 2
    assert list(map(msgspec.json.decode, file.getvalue().splitlines())) == [
        {"type": "entity", "name": "a", "entityType": "t", "observations": ["one", "two"]},
        {"type": "relation", "from": "a", "to": "a", "relationType": "R"},
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[{"type":"entity","name":"a","entityType":"t","observations":[]}]', "jq -c '.[]'"),
        ('{"entities":[{"name":"a","entityType":"t","observations":[]}],"relations":[]}', ".entities[]"),
        ('{\n"type":"entity"}', "an object must be on a single line"),
        ('{"kind":"node","id":"a","type":"t","content":"x\\ud800"}', "an unpaired surrogate, \\ud800 at byte"),
    ],
)
def test_error_hints_at_conversion_of_other_json(http: httpx.Client, api: str, text: str, hint: str) -> None:
    answer = imported(http, api, text.encode())
    assert hint in answer["errors"][0]["message"]
    assert http.get(f"{api}/nodes").status_code == 404


def test_byte_order_mark_is_ignored(http: httpx.Client, api: str) -> None:
    answer = imported(
        http, api, '\ufeff{"kind":"node","id":"a","type":"t"}\n{"kind":"node","id":"b","type":"t"}'.encode()
    )
    assert (answer["nodes_created"], answer["errors"]) == (2, [])
    body = '\ufeff{"nodes":[{"id":"c","type":"t"}]}'.encode()
    sent = accepted(http.post(f"{api}/inject", content=body, headers={"content-type": "application/json"}))
    assert sent["nodes_created"] == 1


def test_lone_surrogate_is_reported(http: httpx.Client, api: str) -> None:
    body = rb'{"nodes":[{"id":"\ud83d\ude00","type":"\\\\ud800\udc00"}]}'
    refused = http.post(f"{api}/inject", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert "the body contains an unpaired surrogate, \\udc00 at byte" in refused.json()["detail"]
