"""Invalid JSON: rows 35 to 46 of the abuse list."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from tests.server.http.serving import RunningServer, accepted, refusal

JSON = {"content-type": "application/json"}


def inject(http: httpx.Client, api: str, body: bytes | str) -> httpx.Response:
    return http.post(f"{api}/inject", content=body, headers=JSON)


def nothing_written(http: httpx.Client, api: str) -> bool:
    answer = http.get(f"{api}/stats")
    return answer.status_code == 404 or accepted(answer)["nodes"] == 0


@pytest.mark.abuse(35)
@pytest.mark.parametrize("start", ['{"nodes":', '{"nodes":[{"id":"a","attributes":{"a":', '{"x":'])
@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_abuse_35_nested_50_000_levels(http: httpx.Client, api: str, start: str, bracket: str) -> None:
    refusal(inject(http, api, start + bracket * 50_000), 400)
    assert nothing_written(http, api)


@pytest.mark.abuse(35)
def test_abuse_35_attributes_nested_65_levels(http: httpx.Client, api: str) -> None:
    def nested(levels: int) -> str:
        return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)

    def batch(levels: int) -> str:
        return f'{{"nodes":[{{"id":"a","type":"t","attributes":{nested(levels)}}}]}}'

    assert "attributes" in refusal(inject(http, api, batch(65)), 400)["detail"]
    accepted(inject(http, api, batch(64)))


@pytest.mark.abuse(36)
@pytest.mark.parametrize("text", [b'{"nodes":[{"id":"\xff\xfe"}]}', b"\xff", b'{"nodes":[{"id":"\xed\xa0\x80"}]}'])
def test_abuse_36_invalid_utf8(http: httpx.Client, api: str, text: bytes) -> None:
    refusal(inject(http, api, text), 400)
    assert nothing_written(http, api)


@pytest.mark.abuse(36)
def test_abuse_36_lone_surrogates(http: httpx.Client, api: str) -> None:
    refusal(inject(http, api, b'{"nodes":[{"id":"\\ud800","type":"t"}]}'), 400)
    assert nothing_written(http, api)


@pytest.mark.abuse(37)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("place", ["weight", "attributes"])
def test_abuse_37_not_a_number(http: httpx.Client, api: str, number: str, place: str) -> None:
    value = number if place == "weight" else f'{{"x":{number}}}'
    batch = (
        f'{{"nodes":[{{"id":"a","type":"t"}}],"edges":[{{"from":"a","to":"a","relation_type":"R","{place}":{value}}}]}}'
    )
    refusal(inject(http, api, batch), 400)
    assert nothing_written(http, api)


@pytest.mark.abuse(38)
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**400], ids=["2^63", "-2^63-1", "2^64", "10^400"])
def test_abuse_38_integers_outside_int64(http: httpx.Client, api: str, number: int) -> None:
    batch = f'{{"nodes":[{{"id":"a","type":"t","attributes":{{"deep":[{number}]}}}}]}}'
    document = refusal(inject(http, api, batch), 400)
    assert document["errors"][0]["path"].startswith("nodes[0].attributes")
    walk = f'{{"start_id":"a","max_nodes":{number}}}'
    document = refusal(http.post(f"{api}/traverse", content=walk, headers=JSON), 400)
    assert document["errors"][0]["path"] == "max_nodes"
    assert nothing_written(http, api)


@pytest.mark.abuse(38)
def test_abuse_38_integers_at_the_edge(http: httpx.Client, api: str) -> None:
    numbers = [2**63 - 1, -(2**63)]
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t", "attributes": {"n": numbers}}]}))
    stored = msgspec.json.decode(http.get(f"{api}/nodes/a").content)
    assert stored["node"]["attributes"]["n"] == numbers


@pytest.mark.abuse(39)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"nodes":[{"id":"x","type":"t"},{"id":"a","id":"b","type":"t"}]}', "nodes[1].id"),
        ('{"nodes":[],"nodes":[{"id":"c","type":"t"}]}', "nodes"),
        ('{"nodes":[{"id":"c","type":"t","attributes":{"a" :1,"\\u0061":2}}]}', "nodes[0].attributes.a"),
    ],
)
def test_abuse_39_duplicate_keys_are_refused(http: httpx.Client, api: str, body: str, path: str) -> None:
    document = refusal(inject(http, api, body), 400)
    assert [error["path"] for error in document["errors"]] == [path]
    assert nothing_written(http, api)
    lines = '{"kind":"node","id":"a","type":"t"}\n{"kind":"node","id":"b","type":"t","type":"u"}\n'
    imported = accepted(http.post(f"{api}/import", content=lines, headers={"content-type": "application/x-ndjson"}))
    assert (imported["nodes_created"], imported["error_count"]) == (1, 1)
    assert imported["errors"] == [{"line": 2, "message": "has the key `type` twice in the same object"}]


@pytest.mark.abuse(40)
@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ({"node": []}, "node"),
        ({"nodes": [{"id": "a", "tpye": "t"}]}, "nodes[0].tpye"),
        ({"nodes": [], "edges": [{"from": "a", "to": "b", "relation_type": "R", "wieght": 1}]}, "edges[0].wieght"),
    ],
)
def test_abuse_40_unknown_fields_are_named(http: httpx.Client, api: str, batch: dict[str, Any], path: str) -> None:
    document = refusal(http.post(f"{api}/inject", json=batch), 400)
    assert [error["path"] for error in document["errors"]] == [path]
    assert path in document["detail"]
    assert nothing_written(http, api)


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ({"nodes": [{"type": "t"}]}, "nodes[0].id"),
        ({"nodes": [{"id": 7}]}, "nodes[0].id"),
        ({"nodes": {}}, "nodes"),
        ({"edges": [{"from": "a", "to": "b"}]}, "edges[0].relation_type"),
    ],
)
def test_wrong_and_missing_fields_are_named(http: httpx.Client, api: str, batch: dict[str, Any], path: str) -> None:
    document = refusal(http.post(f"{api}/inject", json=batch), 400)
    assert [error["path"] for error in document["errors"]] == [path]


@pytest.mark.parametrize("body", ["", "  ", "null", "[]", '"x"', "{", "{}}", "\ufeff[]"])
def test_bodies_must_be_objects(http: httpx.Client, api: str, body: str) -> None:
    refusal(inject(http, api, body.encode()), 400)


@pytest.mark.abuse(41)
def test_abuse_41_one_over_the_batch_limit(served: RunningServer, http: httpx.Client, api: str) -> None:
    nodes = [{"id": f"n{number}", "type": "t"} for number in range(served.settings.max_nodes + 1)]
    answer = http.post(f"{api}/inject", json={"nodes": nodes})
    assert refusal(answer, 400)["errors"][0]["path"] == "nodes"
    assert nothing_written(http, api)


@pytest.mark.abuse(41)
def test_abuse_41_one_bad_node_of_many(http: httpx.Client, api: str) -> None:
    nodes = [{"id": f"n{number}", "type": "t"} for number in range(100)] + [{"id": "x" * 513, "type": "t"}]
    document = refusal(http.post(f"{api}/inject", json={"nodes": nodes}), 400)
    assert document["errors"][0]["path"] == "nodes[100].id"
    assert nothing_written(http, api)


@pytest.mark.abuse(42)
def test_abuse_42_bad_lines_are_reported_by_number(http: httpx.Client, api: str) -> None:
    lines = [
        b'{"kind":"node","id":"a","type":"t"}',
        b"this is not JSON",
        b'{"kind":"node","id":"b","type":"t"}',
        b'{"kind":"nude","id":"c"}',
        b'{"kind":"edge","from":"a","to":"b","relation_type":"R"}',
        b"\xff\xfe",
        b'{"kind":"node","id":"d","type":"t","colour":"red"}',
        b"[" * 50_000,
    ]
    answer = accepted(
        http.post(f"{api}/import", content=b"\n".join(lines), headers={"content-type": "application/x-ndjson"})
    )
    assert answer["ok"] is False
    assert [error["line"] for error in answer["errors"]] == [2, 4, 6, 7, 8]
    assert answer["error_count"] == 5
    assert (answer["nodes_created"], answer["edges_created"]) == (2, 1)


ODD = ["a'b", 'a"b', "a`b", "a\nb", "a\\b", "a\0b", "😀", "\u202eabc", "מזהה", "x' }) DETACH DELETE n //", "$id", "{}"]


@pytest.mark.abuse(43)
@pytest.mark.parametrize("text", ODD)
def test_abuse_43_odd_text_is_stored_exactly_or_refused(http: httpx.Client, api: str, text: str) -> None:
    nodes = [{"id": text, "type": text, "content": text, "attributes": {text: text}}, {"id": "other", "type": "t"}]
    edges = [{"from": text, "to": "other", "relation_type": text}]
    answer = http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges})
    if answer.status_code == 400:
        refusal(answer, 400)
        return
    accepted(answer)
    node = accepted(http.get(f"{api}/nodes/{quote(text, safe='')}"))
    assert [node["node"][field] for field in ("id", "type", "content")] == [text] * 3
    assert node["node"]["attributes"] == {text: text}
    assert node["outgoing"][0]["relation_type"] == text
    walked = accepted(http.post(f"{api}/traverse", json={"start_id": text, "relation_types": [text]}))
    assert [one["id"] for one in walked["nodes"]] == [text, "other"]
    accepted(http.request("DELETE", f"{api}/edges", json={"from": text, "to": "other", "relation_type": text}))
    assert accepted(http.get(f"{api}/stats"))["edges"] == 0
    assert accepted(http.get(f"{api}/stats"))["nodes"] == 2


@pytest.mark.abuse(44)
def test_abuse_44_ten_megabytes_of_content(http: httpx.Client, api: str) -> None:
    batch = {"nodes": [{"id": "a", "type": "t", "content": "x" * 10_000_000}]}
    answer = http.post(f"{api}/inject", json=batch)
    assert "nodes[0].content" in refusal(answer, 413)["detail"]
    assert nothing_written(http, api)
    batch["nodes"][0]["summary"] = "x" * 5_000
    assert len(refusal(http.post(f"{api}/inject", json=batch), 400)["errors"]) == 2
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "b", "type": "t", "content": "x" * (1 << 20)}]}))
    assert len(accepted(http.get(f"{api}/nodes/b"))["node"]["content"]) == 1 << 20


@pytest.mark.abuse(45)
def test_abuse_45_an_edge_with_a_missing_endpoint(http: httpx.Client, api: str) -> None:
    edges = [{"from": "a", "to": "nobody", "relation_type": "R"}, {"from": "a", "to": "a", "relation_type": "R"}]
    answer = accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}], "edges": edges}))
    assert (answer["edges_created"], answer["edges_skipped_count"]) == (1, 1)
    [skipped] = answer["edges_skipped"]
    assert (skipped["index"], skipped["to"]) == (0, "nobody")
    assert skipped["reason"]


@pytest.mark.abuse(46)
def test_abuse_46_the_same_node_twice(http: httpx.Client, api: str) -> None:
    nodes = [{"id": "a", "type": "x", "content": "first"}, {"id": "a", "type": "y", "content": "second"}]
    answer = accepted(http.post(f"{api}/inject", json={"nodes": nodes}))
    assert (answer["nodes_sent"], answer["nodes_created"]) == (2, 1)
    [node] = accepted(http.get(f"{api}/nodes"))["nodes"]
    assert (node["type"], node["content"]) == ("y", "second")
