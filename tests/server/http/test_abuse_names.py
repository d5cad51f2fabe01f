"""Names and paths: rows 29 to 34 of the abuse list."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from kgserve.storage.store_folder_layout import STORE_FOLDER_SUFFIX
from tests.captured_log import capture_log
from tests.server.http.serving import RunningServer, accepted, exchange, refusal

NDJSON = {"content-type": "application/x-ndjson"}
DROPPED = ".dropped-"
"""Names of folders of stores that are being dropped, possibly by other tests."""
NODE = {"nodes": [{"id": "a", "type": "t"}]}


def everything_under(folder: Path) -> set[Path]:
    """Return all files except those that other tests create and the audit log."""
    found: set[Path] = set()
    for place, folders, files in os.walk(folder):
        found.update(Path(place, name) for name in (*folders, *files) if name != "audit.log")
        folders[:] = [
            name for name in folders if not name.endswith(STORE_FOLDER_SUFFIX) and not name.startswith(DROPPED)
        ]
    return {path for path in found if not path.name.startswith(DROPPED)}


def refused_without_a_trace(served: RunningServer, http: httpx.Client, encoded: str) -> None:
    """Assert that reads and writes of a store of this name answer 400 or 404 and create nothing."""
    before = everything_under(served.data.parent)
    for method, action in (("PUT", ""), ("POST", "/inject"), ("GET", "/stats"), ("POST", "/import"), ("DELETE", "")):
        body = b'{"nodes":[]}' if action == "/inject" else b""
        head = (
            f"{method} /api/memory/{encoded}{action} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        answer = exchange(served.port, head.encode("ascii") + body)
        assert answer.status in {400, 404}, (method, action)
        assert answer.problem
    assert everything_under(served.data.parent) <= before
    assert accepted(http.get("/health"))["status"] == "ok"


@pytest.mark.abuse(29)
@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "%2e%2e", "%2e", "..%2fx", "%2e%2e%2fx", "a%2fb", "%2fetc", "..%5cx", "%5c"]
)
def test_abuse_29_paths_as_names(served: RunningServer, http: httpx.Client, name: str) -> None:
    refused_without_a_trace(served, http, name)


@pytest.mark.abuse(30)
@pytest.mark.parametrize("name", ["demo%0a", "demo%0d%0a", "%0ademo", "de%0amo"])
def test_abuse_30_newlines(served: RunningServer, http: httpx.Client, name: str) -> None:
    refused_without_a_trace(served, http, name)


@pytest.mark.abuse(31)
@pytest.mark.parametrize("name", ["a\0", "\0", "a\u202eb", "\u200fa", "dеmo", "ａ", "a\u200b", "é", "٣"])
def test_abuse_31_look_alikes_and_invisible_marks(served: RunningServer, http: httpx.Client, name: str) -> None:
    refused_without_a_trace(served, http, quote(name, safe=""))


@pytest.mark.abuse(32)
def test_abuse_32_over_64_characters(served: RunningServer, http: httpx.Client) -> None:
    refused_without_a_trace(served, http, "a" * 65)
    accepted(http.put(f"/api/memory/{'a' * 64}"), 201)


@pytest.mark.abuse(33)
@pytest.mark.parametrize(
    "name",
    [
        ".hidden",
        "CON",
        "con",
        "NUL",
        "LPT1",
        "con.txt",
        "Aux.a",
        "-x",
        "_x",
        "a.",
        "a..b",
        "..a",
        "a./b",
        "a b",
        "a:b",
        "~",
    ],
)
def test_abuse_33_names_with_a_meaning_elsewhere(served: RunningServer, http: httpx.Client, name: str) -> None:
    refused_without_a_trace(served, http, quote(name, safe=""))


@pytest.mark.parametrize("name", ["my.project", "a.b.c", "a.-b_", "v1.0", "x.con", "keys.json", "a." + "b" * 62])
def test_dots_within_names_are_accepted(http: httpx.Client, name: str) -> None:
    wrote = accepted(http.post(f"/api/memory/{name}/inject", json=NODE))
    assert accepted(http.get(f"/api/memory/{name}/nodes/a"))["node"]["id"] == "a"
    assert accepted(http.get("/api/memories", params={"store": name}))["memories"] == []
    assert name in [one["name"] for one in accepted(http.get("/api/memory"))["stores"]]
    since = {"last_event_id": f"{name}:{wrote['sequence'] - 1}", "store": name}
    with http.stream("GET", "/api/events", params=since) as stream:
        assert "a" in next(line for line in stream.iter_lines() if line.startswith("data:"))
    link = {"from": "a", "to": "b", "relation_type": "SEES", "to_graph": name}
    accepted(http.post(f"/api/memory/{name}/inject", json={"edges": [link]}))
    accepted(http.delete(f"/api/memory/{name}", params={"confirm": name}))


@pytest.mark.abuse(33)
def test_abuse_33_names_that_differ_only_in_case(http: httpx.Client) -> None:
    accepted(http.put("/api/memory/Cased"), 201)
    refusal(http.put("/api/memory/cased"), 409)
    refusal(http.post("/api/memory/CASED/inject", json=NODE), 409)
    refusal(http.get("/api/memory/cased/stats"), 404)
    refusal(http.delete("/api/memory/cased?confirm=cased"), 404)
    assert accepted(http.get("/api/memory/Cased/stats"))["nodes"] == 0


@pytest.mark.abuse(34)
def test_abuse_34_a_link_in_the_data_folder(served: RunningServer, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    link = served.data / "linked_memory"
    link.symlink_to(tmp_path, target_is_directory=True)
    api = "/api/memory/linked"
    with capture_log(event="symlink_refused", store="linked") as lines:
        for answer in (
            *(
                http.post(f"{api}/inject", json=NODE),
                http.get(f"{api}/stats"),
                http.put(api),
                http.get(f"{api}/export"),
            ),
            *(http.delete(f"{api}?confirm=linked"), http.post(f"{api}/import", content=b"", headers=NDJSON)),
        ):
            refusal(answer, 404)
    assert lines
    assert link.is_symlink()
    assert [path.name for path in tmp_path.rglob("*")] == ["journal"]
    assert "linked" not in [one["name"] for one in accepted(http.get("/api/memory"))["stores"]]
