"""Keys that change while a server runs, and access to stores by key."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kgserve.platform.access.authentication import KEY_FILE, Role, revoke_api_key
from kgserve.platform.timestamps import format_rfc3339_timestamp
from tests.platform.access.keys import audited, bearer, client, given, now
from tests.server.http.serving import PATIENCE, RunningServer, accepted, exchange, refusal, serving

BATCH = {"nodes": [{"id": "n", "type": "t", "content": "words"}], "edges": []}
SECOND = 1_000_000


def unauthenticated(response: httpx.Response) -> str:
    """Return the message of a 401 with a WWW-Authenticate header."""
    assert response.headers["www-authenticate"] == "Bearer"
    return refusal(response, 401)["detail"]


@pytest.mark.abuse(20)
def test_invalid_keys_get_the_same_refusal(keyed: RunningServer) -> None:
    """ABUSE 20."""
    revoked, expired = given(keyed.data, "read", name="gone"), given(keyed.data, "read", expires_at=now() - SECOND)
    revoke_api_key(keyed.data, "gone", now())
    unknown = f"kgs_abcdefgh_{'A' * 43}"
    wrong = given(keyed.data, "read")[:-4] + "AAAA"
    answers: list[tuple[int, str, dict[str, str]]] = []
    with client(keyed.url) as http:
        for header in (
            {},
            bearer(revoked),
            bearer(expired),
            bearer(unknown),
            bearer(wrong),
            bearer("kgs_"),
            bearer("ü" * 9),
            {"authorization": "Basic a2dzOg=="},
            {"authorization": unknown},
        ):
            answer = http.get(
                "/api/memory", headers=[(name.encode(), value.encode()) for name, value in header.items()]
            )
            told = {name: value for name, value in answer.headers.items() if name not in {"x-request-id", "date"}}
            answers.append((answer.status_code, unauthenticated(answer), told))
    assert len({(status, sentence) for status, sentence, _ in answers}) == 1
    assert all(told == answers[0][2] for *_, told in answers)


def test_two_authorization_headers_are_refused(keyed: RunningServer) -> None:
    line = f"Authorization: Bearer {given(keyed.data, 'read')}\r\n"
    head = "GET /api/memory HTTP/1.1\r\nHost: localhost\r\n"
    assert exchange(keyed.port, f"{head}{line}\r\n".encode()).status == 200
    assert exchange(keyed.port, f"{head}{line}{line}\r\n".encode()).status == 401


def test_key_creation_and_revocation_take_effect_immediately(keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "read", name="short")) as http:
        assert http.get("/api/memory").status_code == 200
        revoke_api_key(keyed.data, "short", now())
        unauthenticated(http.get("/api/memory"))


def test_key_describes_itself(keyed: RunningServer) -> None:
    ends = now() + 3_600 * SECOND
    told_of: tuple[tuple[str, Role, list[str], int | None], ...] = (
        ("reads some", "read", ["team-*", "notes"], ends),
        ("may all", "admin", ["*"], None),
    )
    for name, role, stores, expires in told_of:
        with client(keyed.url, given(keyed.data, role, stores, name=name, expires_at=expires)) as http:
            told = accepted(http.get("/api/whoami"))
        text = None if expires is None else format_rfc3339_timestamp(expires)
        rest = {"open": False, "backups": False}
        assert told == {"name": name, "role": role, "stores": stores, "expires": text} | rest
    with client(keyed.url) as http:
        unauthenticated(http.get("/api/whoami"))


def test_import_ends_when_its_key_is_revoked(keyed: RunningServer, admin: httpx.Client) -> None:
    text = given(keyed.data, "write", name="importing")

    def lines() -> Iterator[bytes]:
        for number in range(200):
            line = {"kind": "node", "id": f"i{number}", "type": "t", "content": "x" * 65_536}
            yield json.dumps(line).encode() + b"\n"
            # More than the sockets buffer: the server has started to read, and has checked the key.
            if number == 120:
                revoke_api_key(keyed.data, "importing", now())

    headers = {"content-type": "application/x-ndjson"}
    with client(keyed.url, text) as http:
        answer = http.post("/api/memory/cut-short/import", content=lines(), headers=headers)
    assert "no longer valid" in unauthenticated(answer)
    assert admin.get("/api/memory/cut-short/nodes/i199").status_code == 404


def test_export_ends_when_its_key_is_revoked(keyed: RunningServer, admin: httpx.Client) -> None:
    text = given(keyed.data, "read", name="exporting")
    for begin in range(0, 40_000, 10_000):
        nodes = [{"id": f"e{each}", "type": "t", "content": "x" * 400} for each in range(begin, begin + 10_000)]
        accepted(admin.post("/api/memory/long/inject", json={"nodes": nodes}))
    whole = len(admin.get("/api/memory/long/export").content)
    narrow = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)])
    with (
        httpx.Client(base_url=keyed.url, headers=bearer(text), transport=narrow, timeout=PATIENCE) as http,
        http.stream("GET", "/api/memory/long/export") as answer,
    ):
        blocks = answer.iter_raw()
        got = len(next(blocks))
        revoke_api_key(keyed.data, "exporting", now())
        with pytest.raises(httpx.RemoteProtocolError):
            got += sum(map(len, blocks))
    assert got < whole


def test_a_key_expires_while_the_server_runs(keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "read", expires_at=now() + SECOND // 2)) as http:
        assert http.get("/api/memory").status_code in {
            200,
            401,
        }  # 401 on a machine that took half a second to get here.
        while http.get("/api/memory").status_code in {
            200,
            429,
        }:  # 429 on a machine that sends more requests than allowed.
            pass
        unauthenticated(http.get("/api/memory"))


@pytest.mark.abuse(22, 23)
def test_key_accesses_its_stores_only(keyed: RunningServer, admin: httpx.Client) -> None:
    """ABUSE 22 and 23: in lists, by name, as the target of a restore, and among events."""
    for store in ("mine", "team-1", "team-2", "others", "Mine-2"):
        accepted(admin.post(f"/api/memory/{store}/inject", json=BATCH))
    with client(keyed.url, given(keyed.data, "admin", ["mine", "team-*"])) as http:
        assert [store["name"] for store in accepted(http.get("/api/memory"))["stores"]] == ["mine", "team-1", "team-2"]
        assert refusal(http.get("/api/memory/others/stats"), 404)["detail"] == "there is no store 'others'"
        refusal(http.post("/api/memory/mine/restore", json={"into": "others-2", "as_of": "1"}), 404)
        refusal(http.get("/api/events", params={"store": "mine,others"}), 404)
        with http.stream("GET", "/api/events", headers={"last-event-id": "*:0-0"}) as stream:
            events = stream.iter_lines()
            seen: set[str] = set()
            while len(seen) < 3:
                if (line := next(events)).startswith("data:") and line != "data:":
                    seen.add(json.loads(line[5:])["store"])
                assert "others" not in line
            accepted(admin.post("/api/memory/others/inject", json={**BATCH, "nodes": [{"id": "m", "type": "t"}]}))
            accepted(admin.put("/api/memory/others-3"), 201)
            accepted(http.post("/api/memory/team-9/inject", json=BATCH))
            while "team-9" not in (line := next(events)):
                assert "others" not in line
        assert seen == {"mine", "team-1", "team-2"}


def test_key_creates_stores_that_match_its_patterns(keyed: RunningServer, admin: httpx.Client) -> None:
    with client(keyed.url, given(keyed.data, "write", ["a*"])) as http:
        accepted(http.post("/api/memory/a1/inject", json=BATCH))
        accepted(http.put("/api/memory/a2"), 201)
        refusal(http.post("/api/memory/b/inject", json=BATCH), 404)
        refusal(http.put("/api/memory/b"), 404)
        refusal(http.post("/api/memory/b/import", content=b""), 404)
    assert {"a1", "a2"} <= {store["name"] for store in accepted(admin.get("/api/memory"))["stores"]}
    assert "b" not in {store["name"] for store in accepted(admin.get("/api/memory"))["stores"]}


def test_name_that_differs_in_case_leaks_nothing(keyed: RunningServer, admin: httpx.Client) -> None:
    accepted(admin.post("/api/memory/Xavier/inject", json=BATCH))
    with client(keyed.url, given(keyed.data, "write", ["x*"])) as http:
        assert "Xavier" not in refusal(http.post("/api/memory/xavier/inject", json=BATCH), 409)["detail"]
    assert "Xavier" in refusal(admin.post("/api/memory/xavier/inject", json=BATCH), 409)["detail"]


@pytest.mark.abuse(21)
def test_a_key_that_reads_does_not_write_in_cypher(keyed: RunningServer, admin: httpx.Client) -> None:
    """ABUSE 21: the same path reads and writes, so the mode of the statement counts."""
    accepted(admin.post("/api/memory/asked/inject", json=BATCH))
    before = admin.get("/api/memory/asked/export").content
    with client(keyed.url, given(keyed.data, "read")) as http:
        write = {"query": "CREATE (n:Entity {id: 'x', type: 't'})", "mode": "write"}
        for accept in ("application/json", "text/csv", "application/x-ndjson"):
            refusal(http.post("/api/memory/asked/cypher", json=write, headers={"accept": accept}), 403)
        accepted(http.post("/api/memory/asked/cypher", json={"query": "MATCH (n) RETURN n.id"}))
    assert admin.get("/api/memory/asked/export").content == before


@pytest.mark.abuse(24)
def test_key_in_the_query_is_refused(keyed: RunningServer) -> None:
    """ABUSE 24: refused although valid, even together with the header. tests/cli/test_keys.py checks the logs."""
    text = given(keyed.data, "admin")
    for name in ("key", "KEY", "token", "access_token", "api_key", "apikey", "authorization", "q"):
        for path in ("/api/memory", "/mcp", "/api/memory/x/stats"):
            for headers in ({}, bearer(text)):
                answer = httpx.get(f"{keyed.url}{path}", params={name: text}, headers=headers)
                assert "query" in unauthenticated(answer)


def test_damaged_key_file_refuses_all_keys(tmp_path: Path) -> None:
    text = given(tmp_path, "admin")
    with serving(tmp_path) as served, client(served.url, text) as http:
        assert http.get("/api/memory").status_code == 200
        whole = (tmp_path / KEY_FILE).read_bytes()
        for damaged in (whole[:-9], b"", b"[]", b'{"format": 2, "keys": []}', whole.replace(b'"admin"', b'"root"')):
            (tmp_path / KEY_FILE).write_bytes(damaged)
            unauthenticated(http.get("/api/memory"))
            unauthenticated(httpx.get(f"{served.url}/api/memory"))
        (tmp_path / KEY_FILE).write_bytes(whole)
        assert http.get("/api/memory").status_code == 200


def test_loopback_requires_a_key_once_one_exists(tmp_path: Path) -> None:
    with serving(tmp_path) as served, client(served.url) as http:
        assert http.get("/api/memory").status_code == 200
        assert http.get("/api/memory", headers=bearer("nonsense")).status_code == 200
        given(tmp_path, "read", name="only")
        unauthenticated(http.get("/api/memory"))
        revoke_api_key(tmp_path, "only", now())
        unauthenticated(http.get("/api/memory"))


def test_event_stream_ends_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.server.http.sse_change_feed.KEY_RECHECK_SECONDS", 0.1)
    text = given(tmp_path, "read", name="listener")
    with serving(tmp_path, event_heartbeat=600) as served, client(served.url, text) as http:
        with http.stream("GET", "/api/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            revoke_api_key(tmp_path, "listener", now())
            rest = list(lines)
        assert "event: dropped" in rest
        assert any("no longer valid" in line for line in rest)


def test_denials_and_admin_actions_are_audited(tmp_path: Path) -> None:
    admin, reader = given(tmp_path, "admin", name="boss"), given(tmp_path, "read", ["mine"], name="reader")
    with serving(tmp_path) as served, client(served.url, admin) as http, client(served.url, reader) as other:
        accepted(http.post("/api/memory/mine/inject", json=BATCH))
        refusal(other.post("/api/memory/mine/inject", json=BATCH), 403)
        refusal(other.get("/api/memory/yours/stats"), 404)
        refusal(other.get("/api/events", params={"store": "yours"}), 404)
        refusal(httpx.get(f"{served.url}/api/memory"), 401)
        refusal(http.get("/api/memory", headers={"host": "evil.example"}), 421)
        refusal(http.get("/api/memory", headers={"origin": "http://evil.example"}), 403)
        refusal(http.delete("/api/memory/mine", headers={"x-request-id": "r-9"}), 400)
        accepted(http.delete("/api/memory/mine", params={"confirm": "mine"}))
        assert httpx.get(f"{served.url}/api/nothing", headers=bearer(reader)).status_code == 404
    lines = audited(tmp_path)
    seen = [(line["kind"], line["act"], line["outcome"], line.get("store"), line["caller"]) for line in lines]
    assert seen == [
        ("denied", "inject", "403", "mine", "reader"),
        ("denied", "storeStats", "404", "yours", "reader"),
        ("denied", "events", "404", "yours", "reader"),
        ("denied", "GET /api/memory", "401", None, "nobody"),
        ("denied", "GET /api/memory", "421", None, "nobody"),
        ("denied", "GET /api/memory", "403", None, "nobody"),
        ("admin", "dropStore", "failed: 400", "mine", "boss"),
        ("admin", "dropStore", "done", "mine", "boss"),
    ]
    assert lines[6]["request"] == "r-9"
    assert all(line["address"] == "127.0.0.1" for line in lines)
    assert lines[0]["key"] == reader[4:12]
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


def test_erase_requires_admin_and_is_audited(keyed: RunningServer, admin: httpx.Client) -> None:
    asked = {"ids": ["told"], "erase": True}
    sentence = "An albatross nests in the attic."
    admin.post("/api/v1/retain?store=erased", json={"content": sentence, "entity_id": "told"}).raise_for_status()
    with client(keyed.url, given(keyed.data, "write", name="writer")) as http:
        for sent in (asked, asked | {"dry_run": True}):
            told = refusal(http.post("/api/v1/forget?store=erased", json=sent), 403)
            assert "role admin" in told["detail"]
        assert http.get("/api/memories/told?store=erased").json()["content"] == sentence
    done = admin.post("/api/v1/forget?store=erased", json=asked).json()
    assert (done["memories_removed"], [each["kind"] for each in done["remains"]]) == (1, ["unknown"])
    assert admin.get("/api/memories/told?store=erased").status_code == 404
    replayed = admin.get("/api/memory/erased/events?since=0", headers={"last-event-id": "0"})
    assert replayed.status_code == 410
    lines = [line for line in audited(keyed.data) if line["act"] == "forget" and line.get("store") == "erased"]
    assert {(line["kind"], line["outcome"]) for line in lines} == {("denied", "403"), ("admin", "done")}
    assert all("albatross" not in path.read_text() for path in keyed.data.glob("*.log*"))
