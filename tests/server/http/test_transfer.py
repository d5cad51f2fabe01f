from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal

NDJSON = {"content-type": "application/x-ndjson"}


def lines(nodes: int) -> bytes:
    rows: list[dict[str, Any]] = [
        {"kind": "node", "id": f"n{number}", "type": "t", "content": "x" * 200, "attributes": {"n": number}}
        for number in range(nodes)
    ]
    rows += [
        {"kind": "edge", "from": f"n{number}", "to": f"n{number // 2}", "relation_type": "R", "weight": number / 7}
        for number in range(nodes)
    ]
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def pieces(whole: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def test_export_and_import_give_an_equal_store(http: httpx.Client, api: str) -> None:
    batch = {
        "nodes": [{"id": "a/b\n", "type": "ü", "content": '"', "attributes": {"x": [1, 2.5, None, {"y": True}]}}],
        "edges": [{"from": "a/b\n", "to": "a/b\n", "relation_type": "R", "attributes": {"z": 1}}],
    }
    accepted(http.post(f"{api}/inject", json=batch))
    answer = accepted(http.post(f"{api}/import", content=lines(300), headers=NDJSON))
    assert (answer["ok"], answer["nodes_created"], answer["edges_created"]) == (True, 300, 300)
    exported = http.get(f"{api}/export")
    copied = accepted(http.post(f"{api}-copy/import", content=exported.content, headers=NDJSON))
    assert (copied["ok"], copied["error_count"]) == (True, 0)
    again = http.get(f"{api}-copy/export")
    assert sorted(again.content.splitlines()) == sorted(exported.content.splitlines())
    assert accepted(http.get(f"{api}-copy/stats"))["nodes"] == 301


def test_export_headers(http: httpx.Client, api: str, store: str) -> None:
    written = accepted(http.post(f"{api}/import", content=lines(3), headers=NDJSON))
    answer = http.get(f"{api}/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == f'attachment; filename="{store}.ndjson"'
    assert answer.headers["kgserve-sequence"] == str(written["sequence"])
    assert len(answer.content.splitlines()) == 6


def test_import_accepts_any_length_and_chunking(served: RunningServer, http: httpx.Client, unindexed: str) -> None:
    body = lines(20_000)
    for size in (9_973, len(body)):
        answer = accepted(http.post(f"{unindexed}/import", content=pieces(body, size), headers=NDJSON))
        assert answer["lines"] == 40_000
    assert answer["nodes_unchanged"] == answer["edges_unchanged"] == 20_000
    assert answer["nodes_created"] == answer["edges_created"] == 0


@pytest.mark.parametrize("media", ["application/json", "text/plain", "text/csv"])
def test_import_of_something_else_is_refused(http: httpx.Client, api: str, media: str) -> None:
    refusal(http.post(f"{api}/import", content=b"{}", headers={"content-type": media}), 415)


def test_interrupted_import_leaves_the_store_usable(served: RunningServer, http: httpx.Client, api: str) -> None:
    head = f"POST {api}/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(head.encode() + lines(50))
    answer = accepted(http.post(f"{api}/import", content=lines(50), headers=NDJSON))
    assert answer["ok"] is True
    assert accepted(http.get(f"{api}/stats"))["nodes"] == 50


def test_abandoned_exports_are_closed(http: httpx.Client, unindexed: str) -> None:
    accepted(http.post(f"{unindexed}/import", content=lines(20_000), headers=NDJSON))
    for _ in range(12):  # More than the number of read connections.
        with http.stream("GET", f"{unindexed}/export") as answer:
            assert answer.status_code == 200
            next(answer.iter_raw())
    deadline = time.monotonic() + PATIENCE
    while (answer := http.get(f"{unindexed}/stats")).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert accepted(answer)["nodes"] == 20_000


def test_reads_continue_during_exports(http: httpx.Client, unindexed: str) -> None:
    accepted(http.post(f"{unindexed}/import", content=lines(20_000), headers=NDJSON))
    with http.stream("GET", f"{unindexed}/export") as first, http.stream("GET", f"{unindexed}/export") as second:
        assert first.status_code == second.status_code == 200
        assert accepted(http.get(f"{unindexed}/nodes/n7"))["node"]["id"] == "n7"


def test_other_requests_are_answered_during_an_import(http: httpx.Client, unindexed: str) -> None:
    seen: list[int] = []

    def body() -> Iterator[bytes]:
        for piece in pieces(lines(5_000), 200_000):
            yield piece
            accepted(http.get("/health"))
            seen.append(http.get(f"{unindexed}/nodes/n0").status_code)

    assert accepted(http.post(f"{unindexed}/import", content=body(), headers=NDJSON))["nodes_created"] == 5_000
    assert len(seen) > 5
    assert set(seen) <= {200, 404}  # 404 until the first batch is committed.
