"""Forbidden Cypher over HTTP: rows 47 to 55, 59 to 61 and 63 of the abuse list."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.http.asking import post
from tests.server.http.serving import RunningServer, accepted, exchange, read_reply, refusal
from tests.stores.writing import until

SECONDS_53 = 0.05
SECRET = "only for the owner's eyes"


@pytest.fixture(scope="session")
def guarded(http: httpx.Client) -> str:
    """Path of a store with three nodes and an edge."""
    api = "/api/memory/guarded"
    nodes = [{"id": node_id, "type": "t", "content": node_id} for node_id in "abc"]
    edges = [{"from": "a", "to": "b", "relation_type": "R"}]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    return api


@pytest.fixture
def store_api(http: httpx.Client, guarded: str) -> Iterator[str]:
    """Path of that store, which must be unchanged at the end, with the server still running."""
    before = http.get(f"{guarded}/export").content
    yield guarded
    assert http.get(f"{guarded}/export").content == before
    assert accepted(http.get(f"{guarded}/stats"))["sequence"] == 1
    assert accepted(post(http, guarded, "MATCH (n) RETURN count(*)"))["rows"] == [[3]]


def in_both_modes(http: httpx.Client, api: str, query: str, status: int, **options: Any) -> None:
    for mode in ("read", "write"):
        refusal(post(http, api, query, mode=mode, **options), status)


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


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """File that must not be read, and must stay the only one in its folder."""
    path = tmp_path / "secret.csv"
    path.write_text(SECRET)
    os.utime(path, (1, path.stat().st_mtime))  # An access time before the modification time, because of relatime.
    yield path
    assert path.stat().st_atime == 1
    assert path.read_text() == SECRET
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.abuse(47)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_abuse_47_files_and_other_databases_are_forbidden(
    http: httpx.Client, store_api: str, secret: Path, tmp_path: Path, disguise: str
) -> None:
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
            answer = post(http, store_api, text, mode=mode)
            assert SECRET not in answer.text
            refusal(answer, 403)


@pytest.mark.abuse(47)
@pytest.mark.parametrize("call", ["READ_CSV_SERIAL", "READ_PARQUET", "READ_CSV_PARALLEL", "`read_csv_serial`"])
def test_abuse_47_files_through_a_call(http: httpx.Client, store_api: str, secret: Path, call: str) -> None:
    in_both_modes(http, store_api, f"CALL {call}('{secret}') RETURN *", 403)


@pytest.mark.abuse(48)
def test_abuse_48_the_words_in_strings_and_names(http: httpx.Client, store_api: str) -> None:
    words = "LOAD FROM COPY TO EXPORT DATABASE ATTACH USE INSTALL EXTENSION CALL COMMIT BEGIN DROP ALTER CREATE /* // ;"
    answer = accepted(post(http, store_api, f"RETURN '{words}' AS `{words}`, \"it's; DROP\" AS `COPY`"))
    assert answer["columns"] == [words, "COPY"]
    assert answer["rows"] == [[words, "it's; DROP"]]
    answer = accepted(post(http, store_api, "MATCH (`DROP`:Entity {id: 'a'}) RETURN `DROP`.id // LOAD FROM 'x'"))
    assert answer["rows"] == [["a"]]
    answer = accepted(post(http, store_api, "MATCH (n) WHERE n.content CONTAINS 'DELETE' RETURN count(*)"))
    assert answer["rows"] == [[0]]


@pytest.mark.abuse(49)
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


@pytest.mark.abuse(50)
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


@pytest.mark.abuse(51)
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
    refusal(post(http, store_api, text), 403)
    refusal(post(http, store_api, text, mode="read"), 403)
    headers = {"accept": "application/x-ndjson"}
    refusal(http.post(f"{store_api}/cypher", json={"query": text}, headers=headers), 403)


@pytest.mark.abuse(52)
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


@pytest.mark.abuse(52)
def test_abuse_52_second_statement_is_not_executed(http: httpx.Client, store_api: str) -> None:
    refusal(post(http, store_api, "MATCH (n) RETURN n; MATCH (n) DETACH DELETE n", mode="write"), 400)


@pytest.mark.abuse(53)
@pytest.mark.parametrize("text", ["RETURN " + "(" * 3_000 + "1" + ")" * 3_000, "RETURN " + "[" * 5_000 + "]" * 5_000])
def test_abuse_53_brackets(http: httpx.Client, store_api: str, text: str) -> None:
    assert "line 1, column " in refusal(post(http, store_api, text), 400)["errors"][0]["message"]

    def quick() -> bool:
        start = time.perf_counter()
        refusal(post(http, store_api, text), 400)
        return time.perf_counter() - start < SECONDS_53

    until(quick)  # A busy machine may take longer, but not every time.


@pytest.mark.abuse(54)
def test_abuse_54_operators(http: httpx.Client, store_api: str) -> None:
    refusal(post(http, store_api, "RETURN 1" + "+1" * 10_000), 400)
    refusal(post(http, store_api, "RETURN 1" + " + 1" * 10_000), 400)


@pytest.mark.abuse(55)
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
    answer = post(http, store_api, text, params=params)
    refusal(answer, answer.status_code if answer.status_code in {400, 507} else 400)


@pytest.mark.abuse(59)
@pytest.mark.parametrize("value", [2**70, -(2**63) - 1, 2**63, [1, 2**70], {"a": {"b": 2**64}}])
def test_abuse_59_integers_beyond_64_bits(http: httpx.Client, store_api: str, value: Any) -> None:
    document = refusal(post(http, store_api, "RETURN $p", params={"p": value}), 400)
    assert document["errors"][0]["path"].startswith("params.p")


@pytest.mark.abuse(60)
def test_abuse_60_a_parameter_without_a_value(http: httpx.Client, store_api: str) -> None:
    document = refusal(post(http, store_api, "RETURN $here,\n  $gone", params={"here": 1, "other": 2}), 400)
    assert document["errors"] == [
        {"path": "params.gone", "message": "no value is given for $gone, used at line 2, column 3"}
    ]


@pytest.mark.abuse(61)
@pytest.mark.parametrize(
    "text", ["RETURN 'abc", 'RETURN "abc', "RETURN 1 /* abc", "RETURN `abc", "RETURN 'abc\\'", "/*", "'", "/*/"]
)
def test_abuse_61_unterminated(http: httpx.Client, store_api: str, text: str) -> None:
    document = refusal(post(http, store_api, text), 400)
    assert "line 1, column " in document["detail"]


@pytest.mark.abuse(63)
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


@pytest.mark.abuse(63)
def test_abuse_63_a_write_without_labels_does_not_reach_own_tables(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    accepted(post(http, api, "MATCH (n) DETACH DELETE n", mode="write"))
    answer = accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "b", "type": "t"}]}))
    assert answer["sequence"] == 3
    assert accepted(post(http, api, "MATCH (c:StoreCommit) RETURN max(c.sequence)"))["rows"] == [[None]]


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
def test_invalid_cypher_requests_are_refused(
    http: httpx.Client, store_api: str, body: dict[str, Any], path: str
) -> None:
    document = refusal(http.post(f"{store_api}/cypher", json=body), 400)
    assert path in str(document["errors"])


def test_chunked_request_gets_one_response(served: RunningServer, store_api: str) -> None:
    body = b'{"query": "RETURN 1"}'
    head = f"POST {store_api}/cypher HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    assert exchange(served.port, head.encode() + body).status == 200
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.05)
        connection.sendall(body[5:])
        assert read_reply(connection).status == 200
