"""What Cypher must not be able to do, over real HTTP. Numbers are rows of the abuse list."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec
import pytest
import structlog

from tests.http.serving import Served, accepted, exchange, read_reply, refusal, serving
from tests.store.writing import until

NODES = 2_000
ENDLESS = "MATCH (a), (b), (c) WHERE a.content < b.content AND b.content < c.content RETURN count(*)"
ENDLESS_WRITE = ENDLESS.replace(
    "RETURN count(*)", "WITH count(*) AS n MATCH (m {id: 'n1'}) SET m.content = cast(n AS STRING)"
)
MILLISECONDS_53 = 50
SECRET = "only for the owner's eyes"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one reading connection per store, and a store in which a cross product has no end."""
    with serving(tmp_path_factory.mktemp("crowded") / "data", read_connections=1) as served:
        nodes = [{"id": f"n{i}", "type": "t", "content": f"{i * 7919 % NODES}"} for i in range(NODES)]
        with httpx.Client(base_url=served.url, timeout=30) as http:
            accepted(http.post("/api/memory/crowd/inject", json={"nodes": nodes}))
        yield served


@pytest.fixture
def crowd(crowded: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{crowded.url}/api/memory/crowd", timeout=30) as http:
        yield http


@pytest.fixture(scope="module")
def guarded(http: httpx.Client) -> str:
    """The path of a store with three nodes and an edge."""
    api = "/api/memory/guarded"
    nodes = [{"id": node_id, "type": "t", "content": node_id} for node_id in "abc"]
    edges = [{"from": "a", "to": "b", "relation_type": "R"}]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    return api


@pytest.fixture
def store_api(http: httpx.Client, guarded: str) -> Iterator[str]:
    """That path; the store must be as it was in the end, and the server alive."""
    before = http.get(f"{guarded}/export").content
    yield guarded
    assert http.get(f"{guarded}/export").content == before
    assert accepted(http.get(f"{guarded}/stats"))["sequence"] == 1
    assert accepted(ask(http, guarded, "MATCH (n) RETURN count(*)"))["rows"] == [[3]]


def ask(http: httpx.Client, api: str, query: str, **options: Any) -> httpx.Response:
    return http.post(f"{api}/cypher", json={"query": query, **options})


def in_both_modes(http: httpx.Client, api: str, query: str, status: int, **options: Any) -> None:
    for mode in ("read", "write"):
        refusal(ask(http, api, query, mode=mode, **options), status)


FILES = (
    "LOAD FROM '{secret}' (header=false) RETURN *",
    "LOAD WITH HEADERS (x STRING) FROM '{secret}' RETURN x",
    "COPY (MATCH (n:Entity) RETURN n.id) TO '{target}.csv'",
    "COPY Entity FROM '{secret}'",
    "COPY Entity FROM (LOAD FROM '{secret}' RETURN *)",
    "EXPORT DATABASE '{target}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{target}.db' AS other (dbtype kuzu)",
    "DETACH other",
    "USE other",
    "INSTALL httpfs",
    "LOAD EXTENSION httpfs",
    "LOAD httpfs",
    "UNINSTALL httpfs",
)
DISGUISES = {
    "plain": "{text}",
    "lower": "{lower}",
    "comments": "/* {{ */ {commented} // }}",
    "lines": "// RETURN 1\n\t{lines};",
    "explain": "EXPLAIN {text}",
    "profile": "profile {text}",
    "explain comments": "ExPlAiN/**/LOGICAL /*'*/ {commented}",
    "union": "RETURN 'a' AS x UNION ALL {text}",
    "after match": "MATCH (n:Entity) WITH n {text}",
    "subquery": "MATCH (n:Entity) WHERE EXISTS {{ {text} }} RETURN n",
    "string before": "RETURN '\\' /*' AS x UNION {text}",
    "named as": "UNWIND [1] AS AS {text}",
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_abuse_47_files_and_other_databases(http: httpx.Client, store_api: str, tmp_path: Path, disguise: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text(SECRET)
    places = {"secret": secret, "target": tmp_path / "out", "folder": tmp_path}
    for pattern in FILES:
        plain = pattern.format(**places)
        word, _, rest = plain.partition(" ")
        forms = {
            "text": plain,
            "lower": f"{word.lower()} {rest}",
            "commented": f"{word}/* x */{rest}",
            "lines": f"{word}\r\n{rest}",
        }
        text = DISGUISES[disguise].format(**forms)
        for mode in ("read", "write"):
            answer = ask(http, store_api, text, mode=mode)
            assert SECRET not in answer.text
            refusal(answer, 403)
    assert os.listdir(tmp_path) == ["secret.csv"]  # noqa: PTH208 - names are enough


@pytest.mark.parametrize("call", ["READ_CSV_SERIAL", "READ_PARQUET", "READ_CSV_PARALLEL", "`read_csv_serial`"])
def test_abuse_47_files_through_a_call(http: httpx.Client, store_api: str, tmp_path: Path, call: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text(SECRET)
    in_both_modes(http, store_api, f"CALL {call}('{secret}') RETURN *", 403)


def test_abuse_48_the_words_in_strings_and_names(http: httpx.Client, store_api: str) -> None:
    words = "LOAD FROM COPY TO EXPORT DATABASE ATTACH USE INSTALL EXTENSION CALL COMMIT BEGIN DROP ALTER CREATE /* // ;"
    answer = accepted(ask(http, store_api, f"RETURN '{words}' AS `{words}`, \"it's; DROP\" AS `COPY`"))
    assert answer["columns"] == [words, "COPY"]
    assert answer["rows"] == [[words, "it's; DROP"]]
    answer = accepted(ask(http, store_api, "MATCH (`DROP`:Entity {id: 'a'}) RETURN `DROP`.id // LOAD FROM 'x'"))
    assert answer["rows"] == [["a"]]
    answer = accepted(ask(http, store_api, "MATCH (n) WHERE n.content CONTAINS 'DELETE' RETURN count(*)"))
    assert answer["rows"] == [[0]]


@pytest.mark.parametrize(
    "text",
    [
        "CALL threads=8",
        "CALL timeout = 0",
        "call TIMEOUT=1",
        "CALL/**/auto_checkpoint=true",
        "CALL `checkpoint_threshold`=0",
        "CALL spill_to_disk=false RETURN 1",
        "CALL progress_bar=true",
        "CALL var_length_extend_max_depth=100",
        "EXPLAIN CALL threads=8",
    ],
)
def test_abuse_49_settings(http: httpx.Client, store_api: str, text: str) -> None:
    in_both_modes(http, store_api, text, 403)


@pytest.mark.parametrize(
    "text",
    [
        "BEGIN TRANSACTION",
        "BEGIN TRANSACTION READ ONLY",
        "COMMIT",
        "ROLLBACK",
        "CHECKPOINT",
        "begin/**/transaction",
        "commit;",
        "EXPLAIN COMMIT",
        "RETURN 1 AS x UNION COMMIT",
    ],
)
def test_abuse_50_transactions(http: httpx.Client, store_api: str, text: str) -> None:
    in_both_modes(http, store_api, text, 403)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE (n:Entity {id: 'x', type: 't'})",
        "create (n:Entity {id: 'x', type: 't'}) RETURN n",
        "MERGE (n:Entity {id: 'x'}) ON CREATE SET n.type = 't'",
        "MATCH (n) SET n.content = 'x'",
        "MATCH (n)/**/sEt/**/n.content = 'x' RETURN n",
        "MATCH ()-[r]->() DELETE r",
        "MATCH (n) DETACH DELETE n",
        "MATCH (n) WITH n LIMIT 1 DETACH/**/DELETE n",
        "EXPLAIN CREATE (n:Entity {id: 'x', type: 't'})",
        "PROFILE MATCH (n) DETACH DELETE n",
        "UNWIND [1] AS AS CREATE (n:Entity {id: 'x', type: 't'})",
    ],
)
def test_abuse_51_writes_in_read_mode(http: httpx.Client, store_api: str, text: str) -> None:
    refusal(ask(http, store_api, text), 403)
    refusal(ask(http, store_api, text, mode="read"), 403)
    headers = {"accept": "application/x-ndjson"}
    refusal(http.post(f"{store_api}/cypher", json={"query": text}, headers=headers), 403)


@pytest.mark.parametrize(
    "text",
    [
        "RETURN 1; RETURN 2",
        "RETURN 1;;RETURN 2;",
        "MATCH (n) RETURN n; MATCH (m) RETURN m",
        "RETURN ';'; RETURN 1",
        "RETURN 1 /* ; */ ; /* ; */ RETURN 2",
    ],
)
def test_abuse_52_two_statements(http: httpx.Client, store_api: str, text: str) -> None:
    in_both_modes(http, store_api, text, 400)


def test_abuse_52_the_second_is_not_run_either(http: httpx.Client, store_api: str) -> None:
    refusal(ask(http, store_api, "MATCH (n) RETURN n; MATCH (n) DETACH DELETE n", mode="write"), 400)


@pytest.mark.parametrize("text", ["RETURN " + "(" * 3_000 + "1" + ")" * 3_000, "RETURN " + "[" * 5_000 + "]" * 5_000])
def test_abuse_53_brackets(http: httpx.Client, store_api: str, text: str) -> None:
    took: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        answer = ask(http, store_api, text)
        took.append((time.perf_counter() - start) * 1000)
        assert "line 1, column " in refusal(answer, 400)["errors"][0]["message"]
    assert median(took) < MILLISECONDS_53


def test_abuse_54_operators(http: httpx.Client, store_api: str) -> None:
    refusal(ask(http, store_api, "RETURN 1" + "+1" * 10_000), 400)
    refusal(ask(http, store_api, "RETURN 1" + " + 1" * 10_000), 400)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("RETURN range(1, 100000000)", {}),
        ("RETURN RANGE/**/(1, 100000000)", {}),
        ("RETURN `range`(1, 100000000)", {}),
        ("UNWIND range(1, 100000000) AS i RETURN count(i)", {}),
        ("RETURN range(1, $n)", {"n": 100_000_000}),
        ("RETURN range($a, $b, $c)", {"a": 100_000_000, "b": 1, "c": -1}),
        ("WITH 100000000 AS n RETURN range(1, n)", {}),
        ("RETURN range(1, 1e8)", {}),
        ("RETURN range(1, 10000 * 10000)", {}),
        ("RETURN repeat('x', 1000000000)", {}),
    ],
)
def test_abuse_55_ranges(http: httpx.Client, store_api: str, text: str, params: dict[str, Any]) -> None:
    answer = ask(http, store_api, text, params=params)
    refusal(answer, answer.status_code if answer.status_code in {400, 507} else 400)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/csv"])
def test_abuse_56_a_cross_product(crowd: httpx.Client, accept: str) -> None:
    start = time.perf_counter()
    answer = crowd.post("/cypher", json={"query": ENDLESS, "timeout_ms": 300}, headers={"accept": accept})
    took = time.perf_counter() - start
    refusal(answer, 408)
    assert 0.2 < took < 1.3
    assert accepted(ask(crowd, "", "MATCH (n) RETURN count(*)"))["rows"] == [[NODES]]


def test_abuse_56_a_cross_product_that_writes(crowd: httpx.Client) -> None:
    refusal(ask(crowd, "", ENDLESS_WRITE, mode="write", timeout_ms=300), 408)
    assert accepted(crowd.get("/stats"))["sequence"] == 1


@pytest.mark.parametrize(
    ("query", "mode", "accept"),
    [
        (ENDLESS, "read", "application/json"),
        (ENDLESS, "read", "application/x-ndjson"),
        (ENDLESS_WRITE, "write", "application/json"),
    ],
)
def test_abuse_57_the_client_goes_away(
    crowded: Served, crowd: httpx.Client, query: str, mode: str, accept: str
) -> None:
    accepted(ask(crowd, "", "RETURN 1"))
    body = msgspec.json.encode({"query": query, "mode": mode})
    head = f"POST /api/memory/crowd/cypher HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nX-Request-Id: left-{mode}"
    head += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        with socket.create_connection(("127.0.0.1", crowded.port), 10) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.5)
        gone = time.perf_counter()
        # The only reading connection, or the writer, is free again.
        if mode == "read":
            accepted(ask(crowd, "", "RETURN 1"))
        else:
            accepted(crowd.post("/inject", json={"nodes": []}))
        assert time.perf_counter() - gone < 1
        until(lambda: [line["status"] for line in lines if line.get("request_id") == f"left-{mode}"] == [499])
    assert accepted(crowd.get("/stats"))["sequence"] == 1


def test_abuse_58_more_rows_than_allowed(crowd: httpx.Client) -> None:
    answer = accepted(ask(crowd, "", "MATCH (n) RETURN n.id", max_rows=10))
    assert (answer["row_count"], len(answer["rows"]), answer["truncated"]) == (10, 10, True)
    answer = accepted(ask(crowd, "", "MATCH (n) RETURN n.id"))
    assert (answer["row_count"], answer["truncated"]) == (1_000, True)
    refusal(ask(crowd, "", "MATCH (n) RETURN n.id", max_rows=100_001), 400)
    refusal(ask(crowd, "", "MATCH (n) RETURN n.id", max_rows=-1), 400)


@pytest.mark.parametrize("value", [2**70, -(2**63) - 1, 2**63, [1, 2**70], {"a": {"b": 2**64}}])
def test_abuse_59_integers_beyond_64_bits(http: httpx.Client, store_api: str, value: Any) -> None:
    document = refusal(ask(http, store_api, "RETURN $p", params={"p": value}), 400)
    assert document["errors"][0]["path"].startswith("params.p")


def test_abuse_60_a_parameter_without_a_value(http: httpx.Client, store_api: str) -> None:
    document = refusal(ask(http, store_api, "RETURN $here,\n  $gone", params={"here": 1, "other": 2}), 400)
    assert document["errors"] == [
        {"path": "params.gone", "message": "no value is given for $gone, used at line 2, column 3"}
    ]


@pytest.mark.parametrize(
    "text", ["RETURN 'abc", 'RETURN "abc', "RETURN 1 /* abc", "RETURN `abc", "RETURN 'abc\\'", "/*", "'", "/*/"]
)
def test_abuse_61_unterminated(http: httpx.Client, store_api: str, text: str) -> None:
    document = refusal(ask(http, store_api, text), 400)
    assert "line 1, column " in document["detail"]


def test_abuse_62_ten_timeouts_then_an_ordinary_query(crowd: httpx.Client) -> None:
    for _ in range(10):
        refusal(ask(crowd, "", ENDLESS, timeout_ms=50), 408)
    assert accepted(ask(crowd, "", "MATCH (n {id: 'n7'}) RETURN n.id"))["rows"] == [["n7"]]


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE Entity",
        "DROP TABLE IF EXISTS RELATES_TO",
        "drop/**/table StoreCommit",
        "ALTER TABLE Entity ADD x STRING",
        "ALTER TABLE Entity DROP content",
        "ALTER TABLE StoreCommit RENAME TO y",
        "CREATE NODE TABLE Other (id STRING, PRIMARY KEY (id))",
        "CREATE REL TABLE Others (FROM Entity TO Entity)",
        "CREATE SEQUENCE s",
        "CREATE MACRO f(x) AS x + 1",
        "COMMENT ON TABLE Entity IS 'x'",
        "MATCH (c:StoreCommit) DELETE c",
        "MATCH (c:`StoreCommit`) SET c.digest = ''",
        "CREATE (c:storecommit {sequence: 99})",
    ],
)
def test_abuse_63_data_definition_and_own_tables(http: httpx.Client, store_api: str, text: str) -> None:
    in_both_modes(http, store_api, text, 403)


def test_abuse_63_a_write_without_labels_does_not_reach_own_tables(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    accepted(ask(http, api, "MATCH (n) DETACH DELETE n", mode="write"))
    answer = accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "b", "type": "t"}]}))
    assert answer["sequence"] == 3
    assert accepted(ask(http, api, "MATCH (c:StoreCommit) RETURN max(c.sequence)"))["rows"] == [[3]]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "query"),
        ({"query": ""}, "query"),
        ({"query": 1}, "query"),
        ({"query": "RETURN 1", "mode": "admin"}, "mode"),
        ({"query": "RETURN 1", "timeout_ms": 0}, "timeout_ms"),
        ({"query": "RETURN 1", "params": []}, "params"),
        ({"query": "RETURN 1", "limit": 3}, "limit"),
        ({"query": "RETURN '\0'"}, "query"),
        ({"query": "RETURN '" + "x" * 70_000 + "'"}, "query"),
        ({"query": "   "}, "query"),
    ],
)
def test_requests_that_are_none(http: httpx.Client, store_api: str, body: dict[str, Any], path: str) -> None:
    document = refusal(http.post(f"{store_api}/cypher", json=body), 400)
    assert path in str(document["errors"])


def test_only_one_answer_to_a_request_in_pieces(served: Served, store_api: str) -> None:
    body = b'{"query": "RETURN 1"}'
    head = f"POST {store_api}/cypher HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    assert exchange(served.port, head.encode() + body).status == 200
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.05)
        connection.sendall(body[5:])
        assert read_reply(connection).status == 200
