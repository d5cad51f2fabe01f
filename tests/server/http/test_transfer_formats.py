"""Exports and imports over REST in foreign formats."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import httpx
import msgspec
import networkx as nx
import pytest

from tests.graph.transfer.formats.conversion_helpers import FIXTURES, read
from tests.server.http.serving import RunningServer, accepted, refusal

BATCH = {
    "nodes": [
        {"id": "a", "type": "t", "content": "=1\n\x00", "attributes": {"n": 1}, "tags": ["x"], "summary": "s"},
        {"id": "b", "type": "t", "valid_to": "2020-01-01T00:00:00Z"},
    ],
    "edges": [{"from": "a", "to": "b", "relation_type": "R", "weight": 0.1, "attributes": {"k": "v"}}],
}
KINDS = {"graphml": "application/xml", "csv": "application/zip", "parquet": "application/zip"}


@pytest.fixture
def written(http: httpx.Client, api: str) -> str:
    accepted(http.post(f"{api}/inject", json=BATCH))
    return api


def assert_nothing_left(served: RunningServer, api: str) -> None:
    """Assert that temporary files are removed; the response may arrive before that."""
    folder = served.data / f"{api.rpartition('/')[2]}_memory" / "scratch"
    deadline = time.monotonic() + 30
    while folder.exists() and list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_import_round_trip_in_each_format(
    kind: str, served: RunningServer, http: httpx.Client, written: str
) -> None:
    exported = http.get(f"{written}/export", params={"format": kind})
    assert (exported.status_code, exported.headers["content-type"]) == (200, KINDS[kind])
    assert exported.headers["kgserve-sequence"] == "1"
    ending = kind if kind == "graphml" else f"{kind}.zip"
    assert exported.headers["content-disposition"].endswith(f'.{ending}"')
    headers = {"content-type": KINDS[kind]}
    answer = accepted(http.post(f"{written}-{kind}/import", content=exported.content, headers=headers))
    assert (answer["ok"], answer["nodes_created"], answer["edges_created"], answer["lines"]) == (True, 2, 1, 3)
    lines = (http.get(f"{api}/export").content.splitlines() for api in (written, f"{written}-{kind}"))
    first, second = map(sorted, lines)
    assert first == second
    assert_nothing_left(served, written)
    assert_nothing_left(served, f"{written}-{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_links_round_trip_in_each_format(kind: str, http: httpx.Client, written: str) -> None:
    link = {"from": "a", "to": "b", "relation_type": "R", "to_graph": "elsewhere", "weight": 0.5, "ordinal": 2}
    more = [link, {**link, "from": "b", "attributes": {"to_graph": 1, "k": "v"}}, {**link, "to_graph": "third"}]
    accepted(http.post(f"{written}/inject", json={"edges": more}))
    exported = http.get(f"{written}/export", params={"format": kind}).content
    copy = f"{written}-{kind}"
    answer = accepted(http.post(f"{copy}/import", content=exported, headers={"content-type": KINDS[kind]}))
    assert (answer["ok"], answer["nodes_created"], answer["edges_created"], answer["edges_skipped"]) == (True, 2, 4, [])
    first, second = (sorted(http.get(f"{api}/export").content.splitlines()) for api in (written, copy))
    assert first == second
    if kind == "graphml":
        # In other formats each end is a node.
        found = nx.parse_graphml(exported.decode())
        assert {"elsewhere/b", "third/b"} < set(found.nodes)
        assert found.nodes["third/b"] == {"to_graph": "third"}
        assert exported.count(b'id="elsewhere/b"') == 1


def test_memory_server_export_has_no_links(http: httpx.Client, written: str) -> None:
    before = http.get(f"{written}/export", params={"format": "memory-server"}).content
    link = {"from": "a", "to": "b", "relation_type": "R2", "to_graph": "elsewhere"}
    accepted(http.post(f"{written}/inject", json={"edges": [link]}))
    assert http.get(f"{written}/export", params={"format": "memory-server"}).content == before


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("application/xml", "application/xml"),
        ("application/zip;q=1, */*", "application/zip"),
        ("*/*", "application/x-ndjson"),
        ("text/html, application/json", "application/x-ndjson"),
    ],
)
def test_accept_header_selects_the_export_format(accept: str, media: str, http: httpx.Client, written: str) -> None:
    assert http.get(f"{written}/export", headers={"accept": accept}).headers["content-type"] == media


def test_valid_at_and_as_of_apply_to_formats(http: httpx.Client, written: str, tmp_path: Path) -> None:
    accepted(http.delete(f"{written}/nodes/b"))
    for number, query in enumerate(({"as_of": "1"}, {"as_of": "1", "valid_at": "2024-01-01T00:00:00Z"}, {})):
        file = tmp_path / f"{number}.graphml"
        file.write_bytes(http.get(f"{written}/export", params={"format": "graphml", **query}).content)
    found = [[row.get("id", "edge") for row in read(tmp_path / f"{number}.graphml")[0]] for number in range(3)]
    assert found == [["a", "b", "edge"], ["a"], ["a"]]


def test_the_memory_servers_file(http: httpx.Client, api: str) -> None:
    body = (FIXTURES / "memory-server.jsonl").read_bytes()
    for media in ("application/octet-stream", "application/jsonl"):
        query, headers = {"format": "memory-server"}, {"content-type": media}
        answer = accepted(http.post(f"{api}/import", params=query, content=body, headers=headers))
    assert (answer["nodes_unchanged"], answer["edges_unchanged"], answer["edges_skipped_count"]) == (3, 3, 0)
    back = http.get(f"{api}/export", params={"format": "memory-server"})
    assert back.headers["content-disposition"].endswith('.jsonl"')
    assert sorted(back.content.splitlines()) == sorted(body.splitlines())


def test_invalid_rows_are_reported_by_file_and_row(http: httpx.Client, api: str) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("some/edges.csv", "from,to,relation_type\na,b,R\na,nobody,R\n")
        file.writestr("some/nodes.csv", 'id,type,attributes\n"","",{}\na,t,{}\nb,t,[1]\nb,t,\n')
    answer = accepted(
        http.post(f"{api}/import", content=archive.getvalue(), headers={"content-type": "application/zip"})
    )
    assert (answer["ok"], answer["nodes_created"], answer["edges_created"], answer["error_count"]) == (False, 2, 1, 2)
    assert {(error["line"], error["message"].partition(": ")[0]) for error in answer["errors"]} == {
        (2, "nodes.csv row 2"),
        (4, "nodes.csv row 4"),
    }
    assert answer["edges_skipped"][0]["message"].startswith("edges.csv row 3: ")


def bomb() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("nodes.csv", "id,type\n")
    return archive.getvalue()


def twins() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for folder in "ab":
            file.writestr(f"{folder}/nodes.csv", f"id,type\n{folder},t\n")
    return archive.getvalue()


def crowd() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for number in range(3_000):
            file.writestr(f"{number}.csv", b"")
    return archive.getvalue()


@pytest.mark.parametrize(
    ("media", "body", "reason"),
    [
        ("application/zip", b"PK", "not a zip archive"),
        ("application/zip", b"PK\x05\x06" + bytes(18), "must contain nodes.csv"),
        ("application/zip", bomb(), "use deflate"),
        ("application/zip", crowd(), "too many files"),
        ("application/zip", twins(), "several files named nodes.csv"),
        ("application/xml", b"<html/>", "the body is not GraphML"),
        ("application/xml", b'<!DOCTYPE g [<!ENTITY a "x">]><graphml>&a;</graphml>', "refused"),
        ("application/xml", b"", "the body is not GraphML"),
    ],
)
def test_invalid_transfers_are_refused(
    media: str, body: bytes, reason: str, served: RunningServer, http: httpx.Client, api: str
) -> None:
    answer = refusal(http.post(f"{api}/import", content=body, headers={"content-type": media}), 400)
    assert reason in answer["detail"]
    assert_nothing_left(served, api)


def test_conflicting_format_and_media_type_is_refused(http: httpx.Client, api: str) -> None:
    headers = {"content-type": "application/zip"}
    refusal(http.post(f"{api}/import", params={"format": "graphml"}, content=b"", headers=headers), 415)
    refusal(http.post(f"{api}/import", params={"format": "graphiti"}, content=b""), 400)
    refusal(http.get(f"{api}/export", params={"format": "xlsx"}), 400)
    refusal(http.get(f"{api}/export", params={"format": "csv"}), 404)


def test_formats_are_described(http: httpx.Client) -> None:
    paths = accepted(http.get("/openapi.json"))["paths"]
    exported = paths["/api/memory/{store}/export"]["get"]
    assert set(exported["responses"]["200"]["content"]) == {
        "application/x-ndjson",
        "application/xml",
        "application/zip",
    }
    for operation in (exported, paths["/api/memory/{store}/import"]["post"]):
        assert "format" in {parameter["name"] for parameter in operation["parameters"]}
    assert msgspec.json.decode(http.get("/openapi.json").content)
