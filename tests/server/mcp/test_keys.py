"""Permissions over MCP in both protocol revisions: tools, resources, sessions and notifications."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.platform.access.authentication import revoke_api_key
from kgserve.server.mcp.notifications import MAX_LISTENERS_PER_KEY
from kgserve.server.mcp.server import MAX_SESSIONS_PER_KEY
from tests.platform.access.keys import audited, client, given, now
from tests.server.http.serving import RunningServer, accepted, serving
from tests.server.http.sockets import eventually
from tests.server.mcp.talking import Session, Stateless, message

READS = {
    "traverse_knowledge_graph": {"start_id": "n"},
    "get_entity": {"id": "n"},
    "list_entities": {},
    "list_relations": {"id": "n"},
    "entity_history": {"id": "n"},
    "search_knowledge": {"query": "words"},
    "search_batch": {"queries": [{"query": "words"}]},
    "get_context": {"query": "words"},
    "list_stores": {},
    "describe_store": {},
    "describe_schema": {},
    "list_tags": {},
    "query_cypher": {"query": "MATCH (n) RETURN count(*)"},
}
WRITES = {
    "inject_knowledge_graph": {"nodes": [{"id": "n", "type": "t", "content": "words"}]},
    "put_node": {"kind": "t", "lineage_id": "p"},
    "put_subgraph": {"nodes": [{"kind": "t", "lineage_id": "p"}]},
    "merge_entities": {"id": "n", "into": "p"},
    "retire": {"id": "n"},
    "retire_entity": {"id": "n"},
    "retire_relation": {"from": "n", "to": "p", "relation_type": "R"},
    "revert_entity": {"id": "n", "version": 1},
    "delete_graph_relation": {"from": "n", "to": "p", "relation_type": "R"},
    "delete_graph_entity": {"id": "n"},
}
ADMINISTERS = {"configure_store": {"description": "d"}, "drop_store": {"confirm": ""}}
ALL: dict[str, dict[str, Any]] = READS | WRITES | ADMINISTERS
HIDDEN = "there is no store 'hidden'; there are \"seen-1\""
BATCH = {"nodes": [{"id": "n", "type": "t", "content": "words"}], "edges": []}
LISTEN = {"notifications": {"resourcesListChanged": True}}
Era = type[Stateless] | type[Session]


@pytest.fixture(params=[Stateless, Session])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


def begun(era: Era, http: httpx.Client) -> Stateless | Session:
    talking = era(http)
    if isinstance(talking, Session):
        talking.begin()
    return talking


def arguments(tool: str, store: str) -> dict[str, Any]:
    more = {"confirm": store} if tool == "drop_store" else {}
    return ALL[tool] | more | ({} if tool == "list_stores" else {"index": store})


def refused(result: dict[str, Any]) -> str:
    assert result["isError"]
    [content] = result["content"]
    return content["text"]


def read(talking: Stateless | Session, uri: str) -> str:
    if isinstance(talking, Session):
        return talking.post("resources/read", {"uri": uri}).text
    return talking.post("resources/read", {"uri": uri}, mcp_name=uri).text


@pytest.mark.abuse(19)
def test_without_a_key(keyed: RunningServer) -> None:
    """ABUSE 19, also over MCP, before any protocol message."""
    with client(keyed.url) as nobody:
        assert Stateless(nobody).post("tools/list", {}).status_code == 401
        assert Session(nobody).opening.status_code == 401
        assert nobody.get("/mcp").headers["www-authenticate"] == "Bearer"


@pytest.mark.abuse(21)
@pytest.mark.parametrize("role", ["read", "write", "admin"])
def test_every_tool_requires_its_role(role: Any, era: Era, keyed: RunningServer, admin: httpx.Client) -> None:
    """ABUSE 21."""
    store = f"{era.__name__}-{role}"
    accepted(admin.post(f"/api/memory/{store}/inject", json=BATCH))
    before = admin.get(f"/api/memory/{store}/export").content
    allowed = READS if role == "read" else READS | WRITES if role == "write" else ALL
    with client(keyed.url, given(keyed.data, role)) as http:
        talking = begun(era, http)
        listed = talking.post("tools/list", {}, kgserve_tools="all")
        names = {tool["name"] for tool in (message(listed) if era is Session else listed.json())["result"]["tools"]}
        assert names >= set(ALL)
        # The number of audited denials per key is limited, so the expected one comes first.
        for tool in ALL if role == "admin" else sorted(ALL, key=lambda each: each not in ADMINISTERS):
            result = talking.call(tool, arguments(tool, store))
            if tool in allowed:
                assert "role" not in ("" if not result["isError"] else refused(result)), tool
            else:
                assert f"the role {'admin' if tool in ADMINISTERS else 'write'}" in refused(result), tool
        reverted = talking.call("entity_history", {"index": store, "id": "p", "revert_to": 1})
        assert ("the role write" in reverted["content"][0]["text"]) == (role == "read")
        for name in ("revertTo", "Revert_To"):
            hidden = talking.call("entity_history", {"index": store, "id": "n", name: 1})
            assert "under exactly this name" in refused(hidden)
    if role == "read":
        assert admin.get(f"/api/memory/{store}/export").content == before
    with client(keyed.url, given(keyed.data, role)) as http:
        made = begun(era, http).call("configure_store", {"index": f"{store}-made", "create": True, "description": "d"})
        assert ("role" in refused(made)) if role == "read" else made["structuredContent"]["created"]
    drops = [line for line in audited(keyed.data) if line["act"] == "tool drop_store" and line.get("store") == store]
    assert [line["outcome"] for line in drops] == ["done" if role == "admin" else "403"]


@pytest.mark.abuse(22, 23)
def test_every_tool_hides_inaccessible_stores(era: Era, keyed: RunningServer, admin: httpx.Client) -> None:
    """ABUSE 22 and 23: by argument, by header, in lists and as resources."""
    accepted(admin.post("/api/memory/hidden/inject", json=BATCH))
    before = admin.get("/api/memory/hidden/export").content
    with client(keyed.url, given(keyed.data, "admin", ["seen-*"])) as http:
        talking = begun(era, http)
        assert not talking.call("inject_knowledge_graph", arguments("inject_knowledge_graph", "seen-1"))["isError"]
        for tool in ALL.keys() - {"list_stores"}:
            assert refused(talking.call(tool, arguments(tool, "hidden"))) == HIDDEN, tool
            by_header = {name: value for name, value in arguments(tool, "hidden").items() if name != "index"}
            if tool != "drop_store":
                hidden, absent = (talking.call(tool, by_header, kgserve_store=name) for name in ("hidden", "absent"))
                texts = [each["content"][0]["text"] for each in (hidden, absent)]
                # To readers the store seems not to exist yet; only its owners can create it.
                assert (texts[0], hidden["isError"]) == (texts[1].replace("absent", "hidden"), absent["isError"]), tool
                assert hidden["isError"] or "no store" in texts[0], tool
        assert [each["name"] for each in talking.call("list_stores", {})["structuredContent"]["stores"]] == ["seen-1"]
        for text in (talking.post("resources/list", {}).text, read(talking, "kgserve://stores")):
            assert "seen-1" in text
            assert "hidden" not in text
        for uri in ("kgserve://hidden", "kgserve://hidden/n", "kgserve://absent"):
            assert "there is no store" in read(talking, uri)
    assert admin.get("/api/memory/hidden/export").content == before


@pytest.mark.abuse(26)
def test_session_of_another_key_is_refused(keyed: RunningServer) -> None:
    """ABUSE 26: answered like an unknown session; with its own key it continues."""
    with (
        client(keyed.url, given(keyed.data, "read")) as owner,
        client(keyed.url, given(keyed.data, "admin")) as other,
    ):
        mine, theirs = Session(owner), Session(other)
        mine.begin()
        theirs.begin()
        own = dict(theirs.headers)
        theirs.headers["mcp-session-id"] = mine.headers["mcp-session-id"]
        foreign = theirs.post("tools/list", {})
        stream = other.get("/mcp", headers=theirs.headers)
        deletion = other.delete("/mcp", headers=theirs.headers)
        theirs.headers["mcp-session-id"] = "0" * 32
        unknown = theirs.post("tools/list", {})
        assert [foreign.status_code, stream.status_code, deletion.status_code, unknown.status_code] == [404] * 4
        assert foreign.json()["error"] == unknown.json()["error"]
        assert mine.post("tools/list", {}).status_code == 200
        theirs.headers = own
        assert theirs.post("tools/list", {}).status_code == 200


def test_session_limit_per_key(keyed: RunningServer) -> None:
    with (
        client(keyed.url, given(keyed.data, "read")) as greedy,
        client(keyed.url, given(keyed.data, "read")) as modest,
    ):
        sessions = [Session(greedy) for _ in range(MAX_SESSIONS_PER_KEY)]
        assert {each.opening.status_code for each in sessions} == {200}
        other = Session(modest)
        sessions.append(Session(greedy))
        assert sessions.pop(0).post("tools/list", {}).status_code == 404
        assert {each.post("tools/list", {}).status_code for each in (*sessions, other)} == {200}
        with ExitStack() as stack:
            for each in sessions:
                stack.enter_context(listening(each, greedy))
            assert Session(greedy).opening.status_code == 503
            assert Session(modest).opening.status_code == 200
            assert Stateless(greedy).post("tools/list", {}).status_code == 200


def test_subscription_limit_per_key(keyed: RunningServer) -> None:
    with (
        client(keyed.url, given(keyed.data, "read")) as greedy,
        client(keyed.url, given(keyed.data, "read")) as modest,
        ExitStack() as stack,
    ):
        for _ in range(MAX_LISTENERS_PER_KEY):
            stack.enter_context(listening(Stateless(greedy), greedy))
        refused = message(Stateless(greedy).post("subscriptions/listen", LISTEN))
        assert "end another first" in refused["error"]["message"]
        with listening(Stateless(modest), modest):
            stack.close()
        eventually(lambda: can_listen(greedy))


def test_session_ends_when_its_key_is_revoked(keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "read", name="brief")) as http:
        session = Session(http)
        session.begin()
        revoke_api_key(keyed.data, "brief", now())
        assert session.post("tools/list", {}).status_code == 401


def test_a_stream_ends_with_its_key(keyed: RunningServer, era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.server.mcp.endpoint.KEY_RECHECK_SECONDS", 0.1)
    name = f"heard-{era.__name__}"
    with client(keyed.url, given(keyed.data, "read", name=name)) as http:
        talking = begun(era, http)
        with listening(talking, http) as lines:
            revoke_api_key(keyed.data, name, now())
            assert not any("jsonrpc" in line for line in lines), "nothing is said any more"


def test_notifications_cover_accessible_stores_only(keyed: RunningServer, admin: httpx.Client, era: Era) -> None:
    name = era.__name__.lower()
    with client(keyed.url, given(keyed.data, "read", [f"{name}-*"])) as http:
        talking = begun(era, http)
        with listening(talking, http) as lines:
            accepted(admin.put(f"/api/memory/far-from-{name}"), 201)
            talking.call("list_stores", {})
            accepted(admin.put(f"/api/memory/{name}-1"), 201)
            assert "list_changed" in next(line for line in lines if "list_changed" in line or '"id"' in line)
            if isinstance(talking, Session):
                talking.end()
                assert not any("list_changed" in line for line in lines), "something was said of another store"


def test_completion_covers_accessible_stores_only(keyed: RunningServer, admin: httpx.Client, era: Era) -> None:
    """ABUSE 23."""
    own, far = f"named-{era.__name__}-1", f"named-{era.__name__}-2"
    for store in (own, far):
        accepted(admin.post(f"/api/memory/{store}/inject", json=BATCH))
    with client(keyed.url, given(keyed.data, "read", [own])) as http:
        talking = begun(era, http)

        def completed(uri: str, name: str, start: str, store: str) -> list[str]:
            ref, argument = {"type": "ref/resource", "uri": uri}, {"name": name, "value": start}
            params = {"ref": ref, "argument": argument, "context": {"arguments": {"store": store}}}
            return message(talking.post("completion/complete", params))["result"]["completion"]["values"]

        assert completed("kgserve://{store}", "store", "named-", "") == [own]
        assert completed("kgserve://{store}/{id}", "id", "n", own) == ["n"]
        assert completed("kgserve://{store}/{id}", "id", "n", far) == []


def test_updates_require_access_and_a_valid_key(keyed: RunningServer, admin: httpx.Client, era: Era) -> None:
    own, far = f"told-{era.__name__}-1", f"told-{era.__name__}-2"
    uris = {store: f"kgserve://{store}/n" for store in (own, far)}

    def write(store: str, content: str) -> None:
        change = {"nodes": [{"id": "n", "type": "t", "content": content}], "edges": []}
        accepted(admin.post(f"/api/memory/{store}/inject", json=change))

    for store in uris:
        write(store, "first")
    with client(keyed.url, given(keyed.data, "read", [own], name=own)) as http:
        talking = begun(era, http)
        if isinstance(talking, Session):
            subscribed = [message(talking.post("resources/subscribe", {"uri": uri})) for uri in uris.values()]
            assert ["error" in answer for answer in subscribed] == [False, True]
        wanted = {"notifications": {"resourceSubscriptions": list(uris.values())}}
        with listening(talking, http, wanted) as lines:
            write(far, "second")
            write(own, "second")
            assert uris[own] in next(line for line in lines if "updated" in line)
            heard: list[str] = []
            thread = threading.Thread(target=collect, args=(lines, heard), daemon=True)
            thread.start()
            revoke_api_key(keyed.data, own, now())
            write(own, "third")
            time.sleep(1)
            assert not [line for line in heard if "updated" in line]


def collect(lines: Iterator[str], into: list[str]) -> None:
    """Collect lines until their stream ends."""
    with suppress(httpx.HTTPError, httpx.StreamError, OSError):
        into.extend(lines)


def can_listen(http: httpx.Client) -> bool:
    """Return whether another listener is allowed."""
    request = Stateless(http).request("subscriptions/listen", LISTEN)
    with closing(http.send(request, stream=True)) as stream:
        return any("acknowledged" in line for line in stream.iter_lines())


@contextmanager
def listening(
    talking: Stateless | Session, http: httpx.Client, wanted: dict[str, Any] = LISTEN
) -> Generator[Iterator[str]]:
    """Yield the lines of the notification stream of a client, once it is subscribed."""
    if isinstance(talking, Session):
        with http.stream("GET", "/mcp", headers={**talking.headers, "accept": "text/event-stream"}) as stream:
            yield stream.iter_lines()
        return
    request = talking.request("subscriptions/listen", wanted)
    with closing(http.send(request, stream=True)) as stream:
        lines = stream.iter_lines()
        assert any("acknowledged" in line for line in lines)
        yield lines


def test_server_without_authentication(tmp_path: Path, era: Era) -> None:
    with serving(tmp_path) as served, client(served.url) as http:
        assert "confirm" in refused(begun(era, http).call("drop_store", {"index": "x", "confirm": "y"}))
