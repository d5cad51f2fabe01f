"""Cypher queries over HTTP: JSON answers, streams, parameters and positions of errors."""

from __future__ import annotations

import csv
import io
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bench.server import ServerProcess
from kgserve.platform.metrics.exposition import MetricsScrape
from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # pytest finds it here
from tests.server.http.asking import CSV, ENDLESS, MANY, MANY_ROWS, NDJSON, ask, post, values
from tests.server.http.serving import RunningServer, accepted, refusal
from tests.stores.writing import until
from tests.timeouts import REQUEST_SECONDS

ENTITY_FIELDS = ["_label", "id", "type", "content", "attributes", "version", "sequence", "created_at", "updated_at"]


RELATION_FIELDS = ["_label", "_from", "_to", "relation_type", "weight", "attributes", "version", "sequence"]


@pytest.fixture(scope="module")
def graph(http: httpx.Client) -> str:
    """Path of a store with a ring of ten nodes."""
    api = "/api/memory/ring"
    nodes = [{"id": f"n{i}", "type": "t", "content": str(i), "attributes": {"i": i}} for i in range(10)]
    edges = [{"from": f"n{i}", "to": f"n{(i + 1) % 10}", "relation_type": "R", "weight": 0.5} for i in range(10)]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    return api


def test_nodes_relations_and_paths(http: httpx.Client, graph: str) -> None:
    answer = ask(http, graph, "MATCH p = (a {id: 'n8'})-[r]->(b)-[]->(c) RETURN a, r, p, 1 AS one")
    assert answer["columns"] == ["a", "r", "p", "one"]
    assert answer["types"] == ["NODE", "REL", "RECURSIVE_REL", "INT64"]
    assert (answer["row_count"], answer["truncated"], answer["changes"]) == (1, False, None)
    assert answer["took_ms"] > 0
    [[node, relation, path, _]] = answer["rows"]
    assert list(node) == ENTITY_FIELDS
    assert (node["_label"], node["id"], node["content"], node["attributes"]) == ("Entity", "n8", "8", '{"i":8}')
    assert node["created_at"] == accepted(http.get(f"{graph}/nodes/n8"))["node"]["created_at"]
    assert list(relation) == RELATION_FIELDS
    assert (relation["_label"], relation["_from"], relation["_to"]) == ("RELATES_TO", "n8", "n9")
    assert [each["id"] for each in path["nodes"]] == ["n8", "n9", "n0"]
    assert [(each["_from"], each["_to"]) for each in path["relations"]] == [("n8", "n9"), ("n9", "n0")]


def test_relations_without_their_ends_have_names_for_both(http: httpx.Client, graph: str) -> None:
    found = ask(http, graph, "MATCH ()-[r]->() RETURN r, [r], {r: r}")["rows"]
    expected = {(f"n{i}", f"n{(i + 1) % 10}") for i in range(10)}
    for relations in (
        [row[0] for row in found],
        [row[1][0] for row in found],
        [row[2]["r"] for row in found],
    ):
        assert {(r["_from"], r["_to"]) for r in relations} == expected


def test_ends_of_many_relations_have_names(http: httpx.Client, unindexed: str) -> None:
    ends = {f"n{i}": f"n{(i * 7 + 1) % 4000}" for i in range(4000)}
    edges = [{"from": source, "to": target, "relation_type": "R"} for source, target in ends.items()]
    nodes = [{"id": source, "type": "t"} for source in ends]
    accepted(http.post(f"{unindexed}/inject", json={"nodes": nodes, "edges": edges}))
    lines = post(http, unindexed, "MATCH ()-[r]->() RETURN r", NDJSON).content.splitlines()
    found = [msgspec.json.decode(line)[0] for line in lines[1:-1]]
    assert {relation["_from"]: relation["_to"] for relation in found} == ends


def test_recursive_patterns(http: httpx.Client, graph: str) -> None:
    [path] = values(http, graph, "MATCH p = (a {id: 'n0'})-[e:RELATES_TO* 1..3]->(b {id: 'n3'}) RETURN p")
    assert [node["id"] for node in path["nodes"]] == ["n0", "n1", "n2", "n3"]
    assert [list(node) for node in path["nodes"]] == [ENTITY_FIELDS] * 4
    text = "MATCH (a {id: 'n0'})-[e:RELATES_TO* SHORTEST 1..5]->(b) RETURN b.id, length(e) ORDER BY length(e)"
    assert ask(http, graph, text)["rows"] == [[f"n{i}", i] for i in range(1, 6)]


PLAIN = {
    "true": True,
    "CAST(NULL AS STRING)": None,
    "'ü\"'": 'ü"',
    "9223372036854775807": 2**63 - 1,
    "1.5": 1.5,
    "[1, 2, CAST(NULL AS INT64)]": [1, 2, None],
    "[]": [],
    "{a: 1, b: {c: 'x'}}": {"a": 1, "b": {"c": "x"}},
    "map(['a', 'b'], [1, 2])": {"a": 1, "b": 2},
    "map([1, 2], ['a', 'b'])": {"1": "a", "2": "b"},
    "date('2020-02-29')": "2020-02-29",
    "timestamp('2020-01-02 03:04:05.5')": "2020-01-02T03:04:05.500000Z",
    "[date('0044-03-15')]": ["0044-03-15"],
    "cast('1.25' AS DECIMAL(5, 2))": "1.25",
    "uuid('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "cast('NaN' AS DOUBLE)": "NaN",
    "1 / 0.0": "Infinity",
    "[cast('inf' AS DOUBLE), -cast('inf' AS DOUBLE)]": ["Infinity", "-Infinity"],
    "{`a``b`: 1}": {"a`b": 1},
    "cast('170141183460469231731687303715884105727' AS INT128)": str(2**127 - 1),
    "sum(1)": 1,
}


@pytest.mark.parametrize("expression", PLAIN)
def test_cypher_values_are_plain_json(http: httpx.Client, graph: str, expression: str) -> None:
    assert values(http, graph, f"RETURN {expression}") == [PLAIN[expression]]


@pytest.mark.parametrize(
    "value",
    [{"_nodes": 1, "_rels": 2}, {"_label": "x", "_src": 1}, {"_id": 1, "_nodes": [1]}, {"_dst": {"_id": 2}}],
)
def test_maps_with_special_keys_stay_maps(http: httpx.Client, graph: str, value: dict[str, Any]) -> None:
    written = "{" + ", ".join(f"{key}: $p.{key}" for key in value) + "}"
    assert values(http, graph, f"RETURN $p, {written}, [$p]", params={"p": value}) == [value, value, [value]]


@pytest.mark.parametrize(
    "expression",
    [
        "date('10000-01-01')",
        "timestamp('20000-01-01 00:00:00')",
        "[timestamp('20000-01-01 00:00:00')]",
        "{t: date('-0100-01-01')}",
        "date('9999-12-31') + interval('400 days')",
        "interval('1 year 2 days')",
    ],
)
def test_times_beyond_python_limits(http: httpx.Client, graph: str, expression: str) -> None:
    answer = post(http, graph, f"RETURN {expression}, 1")
    if answer.status_code != 200:
        refusal(answer, 400)
    assert values(http, graph, "RETURN 1") == [1]


PARAMETERS: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 1.5, 1e300, "", "it's \"q\" \\ \n ü 😀", [], [1, 2], ["a", None],
    [1, 2.5], [[1], [0.5]], [{"a": 1}, {"a": 0.5, "b": 2}],
    [[1], [2, 3]], {"a": 1, "b": [True, None]}, {"a": {"b": "c"}}, [{"a": 1}, {"a": 2}],
]  # fmt: skip


@pytest.mark.parametrize("value", PARAMETERS, ids=str)
def test_parameters_of_every_json_type(http: httpx.Client, graph: str, value: Any) -> None:
    text = "RETURN $p" if value is not None else "RETURN $p IS NULL"
    assert repr(values(http, graph, text, params={"p": value})) == repr([True if value is None else value])


def test_parameters_in_use(http: httpx.Client, graph: str) -> None:
    text = "MATCH (n) WHERE n.id IN $ids AND n.content <> $other RETURN n.id ORDER BY n.id SKIP $skip LIMIT $most"
    params = {"ids": ["n3", "n1", "n2", "x"], "other": "2", "skip": 1, "most": 5, "unused": {"x": 1}}
    assert ask(http, graph, text, params=params)["rows"] == [["n3"]]
    text = "UNWIND $rows AS row MATCH (n {id: row.id}) RETURN n.content, row.x ORDER BY row.x"
    rows = [{"id": "n4", "x": 2}, {"id": "n5", "x": 1}]
    assert ask(http, graph, text, params={"rows": rows})["rows"] == [["5", 1], ["4", 2]]


def test_row_counts(http: httpx.Client, graph: str) -> None:
    text = "MATCH (n) RETURN n.id"
    for most, count, truncated in ((0, 0, True), (1, 1, True), (9, 9, True), (10, 10, False), (100_000, 10, False)):
        answer = ask(http, graph, text, max_rows=most)
        assert (len(answer["rows"]), answer["row_count"], answer["truncated"]) == (count, count, truncated)
    assert ask(http, graph, "MATCH (n {id: 'none'}) RETURN n", max_rows=0)["truncated"] is False
    answer = ask(http, graph, MANY_ROWS)
    assert (answer["row_count"], answer["truncated"]) == (1_000, True)
    answer = ask(http, graph, MANY_ROWS, max_rows=MANY)
    assert (answer["row_count"], answer["truncated"]) == (MANY, False)
    assert answer["rows"][-1][2] == "x"


def test_open_patterns_hide_internal_tables(http: httpx.Client, graph: str) -> None:
    assert values(http, graph, "MATCH (n) RETURN count(*)") == [10]
    assert ask(http, graph, "MATCH (n) RETURN DISTINCT label(n)")["rows"] == [["Entity"]]
    for text in ("MATCH (n) RETURN n", "OPTIONAL MATCH (n) RETURN n", "MATCH (n {type: 't'}) RETURN n"):
        assert [list(row[0]) for row in ask(http, graph, text)["rows"]] == [ENTITY_FIELDS] * 10
    assert values(http, graph, "MATCH (n {id: 'n0'}) RETURN keys(n)") == [["id", "i", "content"]]
    assert values(http, graph, "MATCH () RETURN count(*)") == [10]
    text = "MATCH (n) WHERE EXISTS { MATCH (n)-[]->(m) WHERE m.id = 'n1' } RETURN n.id"
    assert ask(http, graph, text)["rows"] == [["n0"]]
    text = "MATCH (n {id: 'n0'}) RETURN COUNT { MATCH (x) }"
    assert values(http, graph, text) == [10]
    assert values(http, graph, "MATCH (n {id: 'n0'}) RETURN n.digest") == [None]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("MATCH (n) RETURN m.nope", "line 1, column 18"),
        ("MATCH (a)-[]->(b) RETURN a.id, nope", "line 1, column 32"),
        ("MATCH (a)-->(b)\nWHERE a.id = 'x'\n  RETURN a.id b.id", "line 3, column 15"),
        ("MATCH (ab) RETUR ab", "line 1, column 12"),
        ("MATCH (ab),\n (cd), (ef) RETUR ab", "line 2, column 13"),
        ("MATCH (n:Entity) RETURN nope(n)", "line 1, column 25"),
        ("/* é */ MATCH (n) RETURN n.id AS AS AS", "line 1, column "),
        ("RETURN $p.x.y +", "line 1, column "),
        ("MATCH (n)\r\nRETURN m", "line 2, column 8"),
    ],
)
def test_cypher_errors_have_positions(http: httpx.Client, graph: str, text: str, place: str) -> None:
    document = refusal(post(http, graph, text, params={"p": 1}), 400)
    [error] = document["errors"]
    assert error["path"] == "query"
    assert place in error["message"], error["message"]
    assert "Entity" not in error["message"]


def test_cypher_runtime_errors(http: httpx.Client, graph: str) -> None:
    for text in ("RETURN 1 / 0", "RETURN cast('x' AS INT64)", "RETURN 9223372036854775807 + 1"):
        assert refusal(post(http, graph, text), 400)["errors"][0]["path"] == "query"
    refusal(post(http, "/api/memory/nowhere", "RETURN 1"), 404)
    refusal(http.get("/api/memory/nowhere/stats"), 404)


def test_ndjson(http: httpx.Client, graph: str) -> None:
    answer = post(http, graph, "MATCH (n) RETURN n.id, n.version, n ORDER BY n.id", headers=NDJSON)
    assert answer.headers["content-type"] == "application/x-ndjson"
    head, *rows, tail = (msgspec.json.decode(line) for line in answer.content.splitlines())
    assert head == {"columns": ["n.id", "n.version", "n"], "types": ["STRING", "INT64", "NODE"]}
    assert [row[:2] for row in rows] == [[f"n{i}", 1] for i in range(10)]
    assert rows[0][2]["_label"] == "Entity"
    assert tail.pop("took_ms") > 0
    assert tail == {"row_count": 10, "truncated": False}


def test_csv(http: httpx.Client, graph: str) -> None:
    text = "RETURN 'a,\"b\"\nc' AS t, 1 AS i, CAST(NULL AS STRING) AS n, [1, 2] AS l, {a: 1} AS m, true AS b, 1.5 AS f"
    answer = post(http, graph, text, headers=CSV)
    assert answer.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(answer.text, newline=""))) == [
        ["t", "i", "n", "l", "m", "b", "f"],
        ['a,"b"\nc', "1", "", "[1,2]", '{"a":1}', "true", "1.5"],
    ]


@pytest.mark.parametrize(("most", "rows"), [(0, 0), (7, 7), (None, 10), (50, 10)])
def test_streams_of_many_rows(http: httpx.Client, graph: str, most: int | None, rows: int) -> None:
    lines = post(http, graph, "MATCH (n) RETURN n.id", NDJSON, max_rows=most).content.splitlines()
    assert len(lines) == rows + 2
    tail = msgspec.json.decode(lines[-1])
    assert (tail["row_count"], tail["truncated"]) == (rows, rows < 10)
    assert len(post(http, graph, "MATCH (n) RETURN n.id", CSV, max_rows=most).text.splitlines()) == rows + 1


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("text/csv", "text/csv"),
        ("application/x-ndjson;q=0.9, */*", "application/x-ndjson"),
        ("application/json, text/csv;q=0.5", "application/json"),
        ("*/*", "application/json"),
        ("Application/X-NDJSON", "application/x-ndjson"),
        ("text/html", "application/json"),
    ],
)
def test_cypher_content_negotiation(http: httpx.Client, graph: str, accept: str, media: str) -> None:
    answer = post(http, graph, "RETURN 1", {"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == media


def test_errors_of_streams_are_problems(http: httpx.Client, graph: str) -> None:
    for headers in (NDJSON, CSV):
        refusal(post(http, graph, "MATCH (n) RETURN m", headers), 400)
        refusal(post(http, graph, "MATCH (n) DELETE n", headers, mode="write"), 400)
        refusal(post(http, "/api/memory/nowhere", "RETURN 1", headers), 404)


def test_long_stream_is_complete(http: httpx.Client, graph: str) -> None:
    lines = post(http, graph, MANY_ROWS, NDJSON).content.splitlines()
    assert len(lines) == MANY + 2
    assert msgspec.json.decode(lines[-1])["row_count"] == MANY
    assert sum(1 for _ in csv.reader(post(http, graph, MANY_ROWS, CSV).text.splitlines())) == MANY + 1


@pytest.mark.timeout(300)
def test_streams_use_constant_memory_and_do_not_block(tmp_path: Path) -> None:
    wide = MANY_ROWS.replace("'x'", "lpad('x', 500, 'y')")
    options = {"embedding_provider": "hashing", "read_connections": 1, "query_timeout": REQUEST_SECONDS}
    with ServerProcess(tmp_path / "data", options) as server, httpx.Client(timeout=REQUEST_SECONDS) as http:
        api = f"http://127.0.0.1:{server.port}/api/memory/demo"
        accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        sizes = [_length(http, api, wide)]
        before = server.mebibytes("VmRSS")
        sizes.append(_length(http, api, wide))
        assert max(sizes) - min(sizes) < 10  # The digits of took_ms.
        assert sizes[0] > 500 * MANY
        assert server.mebibytes("VmRSS") < before + 60
        descriptors = server.descriptors()
        for _ in range(6):  # Closed early, more often than there are connections.
            with http.stream("POST", f"{api}/cypher", json={"query": wide}, headers=NDJSON) as answer:
                assert answer.status_code == 200
                next(answer.iter_raw())
                assert ask(http, api, "MATCH (n) RETURN count(*)")["rows"] == [[1]]
        until(lambda: server.descriptors() <= descriptors)


def _length(http: httpx.Client, api: str, query: str) -> int:
    with http.stream("POST", f"{api}/cypher", json={"query": query}, headers=NDJSON) as answer:
        return sum(map(len, answer.iter_raw()))


def test_time_limits(http: httpx.Client, graph: str, served: RunningServer) -> None:
    start = time.perf_counter()
    refusal(post(http, graph, ENDLESS, timeout_ms=100), 408)
    assert time.perf_counter() - start < served.settings.query_timeout
    assert values(http, graph, "RETURN 1", timeout_ms=2**40) == [1]


REPEATED: list[tuple[str, dict[str, Any]]] = [
    ("MATCH (n) WHERE n.id = $id RETURN n, upper(n.content), $id", {"params": {"id": "n8"}}),
    ("MATCH (n) WHERE n.id = $id RETURN n, upper(n.content), $id", {"params": {"id": 5}}),
    ("MATCH (a)-[r]->(b) RETURN a.id, r, b.content ORDER BY a.id", {"max_rows": 3}),
    ("MATCH (n) RETURN n.id ORDER BY n.id", {"max_rows": 0}),
    ("UNWIND range(1, $most) AS i RETURN i, repeat('x', 100) AS text", {"params": {"most": 3}}),
    ("UNWIND range(1, $most) AS i RETURN i, repeat('x', 100) AS text", {"params": {"most": 5_000}}),
    ("UNWIND range(1, $most) AS i RETURN i, repeat('x', 100) AS text", {"params": {"most": 5_000}, "max_rows": 5_000}),
    ("UNWIND range(1, 3) AS i RETURN repeat('x', $size) AS text", {"params": {"size": 10}}),
    ("UNWIND range(1, 3) AS i RETURN repeat('x', $size) AS text", {"params": {"size": 200_000}}),
    ("UNWIND $values AS i RETURN cast(i AS INT64) AS number", {"params": {"values": ["1"]}}),
    ("RETURN cast($value AS INT64) AS number", {"params": {"value": "1"}}),
    ("RETURN cast($value AS INT64) AS number", {"params": {"value": "x"}}),
]


def test_repeated_statements_answer_on_the_event_loop_as_in_threads(http: httpx.Client, graph: str) -> None:
    """The text of a statement is known once a thread has answered it; a comment makes it another text."""
    for place, (query, more) in enumerate(REPEATED):
        first = post(http, graph, f"{query} /* {place} */", **more)
        for known in (query, query):
            again = post(http, graph, known, **more)
            assert (again.status_code, _lasting(again)) == (first.status_code, _lasting(first)), (query, more)


def _lasting(answer: httpx.Response) -> dict[str, Any]:
    varying = {"took_ms", "instance", "detail", "errors"}
    return {name: value for name, value in answer.json().items() if name not in varying}


ADJUSTABLE = ENDLESS.replace("3000", "$n")


def test_known_statements_have_time_limits(http: httpx.Client, graph: str) -> None:
    for n, status in ((2, 200), (2, 200), (3_000, 408), (2, 200)):
        answer = post(http, graph, ADJUSTABLE, params={"n": n}, timeout_ms=100 if n > 2 else 10_000)
        assert answer.status_code == status


def test_known_statements_end_when_the_client_disconnects(http: httpx.Client, graph: str) -> None:
    assert values(http, graph, ADJUSTABLE, params={"n": 2}) == [8]
    with pytest.raises(httpx.ReadTimeout):
        post_with_timeout(http, graph, {"query": ADJUSTABLE, "params": {"n": 3_000}})
    until(lambda: MetricsScrape.read(http.get("/metrics").text).value("kgserve_requests_in_progress") == 1)
    assert values(http, graph, ADJUSTABLE, params={"n": 2}) == [8]


def post_with_timeout(http: httpx.Client, api: str, body: dict[str, Any]) -> httpx.Response:
    with httpx.Client(base_url=http.base_url, timeout=0.1) as hasty:
        return hasty.post(f"{api}/cypher", json=body)


@pytest.fixture
def quiet_reader(served: RunningServer, graph: str) -> Iterator[socket.socket]:
    """Client that requests a long stream and does not read it."""
    body = msgspec.json.encode({"query": MANY_ROWS.replace("'x'", "lpad('x', 200, 'y')")})
    head = f"POST {graph}/cypher HTTP/1.1\r\nHost: localhost\r\nAccept: text/csv\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), REQUEST_SECONDS) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def test_store_can_be_dropped_during_a_stalled_read(http: httpx.Client, quiet_reader: socket.socket) -> None:
    assert quiet_reader.recv(100).startswith(b"HTTP/1.1 200")
    accepted(http.post("/api/memory/brief/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    stalled = httpx.Client(base_url=http.base_url, timeout=REQUEST_SECONDS)
    with stalled.stream("POST", "/api/memory/brief/cypher", json={"query": MANY_ROWS}, headers=NDJSON) as answer:
        assert answer.status_code == 200
        assert http.delete("/api/memory/brief", params={"confirm": "brief"}).status_code == 200
        assert sum(map(len, answer.iter_raw())) > MANY
    stalled.close()


def test_columns_named_like_answer_fields(http: httpx.Client, graph: str) -> None:
    text = '"rows":[]'
    answer = ask(http, graph, f"RETURN '{text}' AS `{text}`, [] AS `rows`")
    assert (answer["columns"], answer["rows"]) == ([text, "rows"], [[text, []]])


def test_streamed_json_answer_is_one_document(http: httpx.Client, graph: str) -> None:
    answer = post(http, graph, "UNWIND range(1, 9000) AS i RETURN i, repeat('x', 1000) AS t, '\n' AS n", max_rows=9000)
    found = accepted(answer)
    assert len(answer.content) > 9_000_000
    assert found["rows"] == [[i, "x" * 1000, "\n"] for i in range(1, 9001)]
    assert (found["row_count"], found["truncated"]) == (9000, False)


@pytest.mark.parametrize(("most", "truncated"), [(0, True), (1, True), (9, True), (10, False), (11, False)])
def test_max_rows_limits_rows(http: httpx.Client, graph: str, most: int, *, truncated: bool) -> None:
    answer = ask(http, graph, "MATCH (n) RETURN n.id ORDER BY n.id", max_rows=most)
    assert answer["rows"] == [[f"n{i}"] for i in range(min(most, 10))]
    assert (answer["row_count"], answer["truncated"]) == (min(most, 10), truncated)


LONG = "é\n" * 475_000


def long_rows(http: httpx.Client, graph: str, query: str, count: int, **headers: str) -> httpx.Response:
    """Rows whose ``x`` is a text of 1.9 MB in JSON."""
    asked = {"query": f"WITH repeat($t, 950) AS x UNWIND range(1, $n) AS i {query}"}
    return http.post(f"{graph}/cypher", json=asked | {"params": {"t": LONG[:1000], "n": count}}, headers=headers)


def test_rows_larger_than_a_stream_block(http: httpx.Client, graph: str) -> None:
    """All formats return them completely; if JSON exceeds its limit, it contains the complete rows before."""
    query, expected = "RETURN i, x", [[1, LONG], [2, LONG]]
    assert accepted(long_rows(http, graph, query, 2))["rows"] == expected
    _, *lines, _ = long_rows(http, graph, query, 2, **NDJSON).content.splitlines()
    assert [msgspec.json.decode(line) for line in lines] == expected
    _, *found = csv.reader(io.StringIO(long_rows(http, graph, query, 2, **CSV).text, newline=""))
    assert [[int(number), text] for number, text in found] == expected
    cut = accepted(long_rows(http, graph, query, 50))
    assert cut["truncated"]
    assert 30 < cut["row_count"] == len(cut["rows"]) < 50
    assert all(row == [at, LONG] for at, row in enumerate(cut["rows"], 1))


def test_markdown_fences_are_removed(http: httpx.Client, graph: str) -> None:
    fenced = "```cypher\nMATCH (n {id: 'n1'})\nRETURN n.content\n```"
    assert ask(http, graph, fenced)["rows"] == [["1"]]
    assert post(http, graph, fenced, headers=CSV).text.split() == ["n.content", "1"]
    changed = ask(http, graph, "```cypher\nMATCH (n {id: 'n1'}) SET n.content = '1'\n```", mode="write")
    assert changed["changes"]["nodes_updated"] == 0
    wrong = refusal(post(http, graph, "```cypher\nMATCH (n)\nRETURN 'x\n```"), 400)
    assert "line 3, column 8" in wrong["detail"]
