"""`kgserve keys`, and every command, client and bridge that sends a key, with real processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import msgspec
import pytest

from kgserve.client import AsyncClient, Client
from kgserve.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from kgserve.platform.access.authentication import require_api_key_if_exposed, revoke_api_key
from kgserve.platform.settings import Settings
from tests.cli.running import ServerProcessHandle, kgserve, kgserve_process, serving
from tests.platform.access.keys import audited, bearer, given, now
from tests.server.http.serving import accepted

NEARBY = "127.1"
"""Spelling of 127.0.0.1 that kgserve does not recognize as local; other machines cannot reach the tests."""
BATCH = {"nodes": [{"id": "n", "type": "t", "content": "words"}], "edges": []}


def created(data: Path, *options: str) -> str:
    done = kgserve("keys", "create", "--data", data, *options)
    assert done.code == 0, done.err
    assert "cannot be shown again" in done.err
    return done.out.strip()


@pytest.mark.abuse(25)
def test_only_a_hash_and_the_prefix_are_kept(tmp_path: Path) -> None:
    """ABUSE 25: no file of the data folder contains the key, and key files are private."""
    data = tmp_path / "data"
    text = created(data, "--role", "write", "--stores", "a,team-*", "--expires", "30d", "--name", "ci")
    assert text.startswith("kgs_")
    secret = text[13:]
    for file in data.iterdir():
        assert secret not in file.read_text(), file
        assert file.stat().st_mode & 0o777 == 0o600, file
    [kept] = msgspec.json.decode((data / "keys.json").read_bytes())["keys"]
    assert set(kept) == {
        *("id", "name", "role", "stores", "created_at", "expires_at", "revoked_at", "salt", "hash", "prefix")
    }
    assert (kept["prefix"], kept["stores"], len(kept["hash"])) == (text[:12], ["a", "team-*"], 64)
    shown = kgserve("keys", "list", "--data", data)
    assert secret not in shown.out + shown.err
    [row] = shown.lines()[1:]
    assert row[:5] == [text[:12], "ci", "write", "a,team-*", "active"]
    [listed] = json.loads(kgserve("keys", "list", "--json", "--data", data).out)
    assert set(listed) == {
        *("id", "prefix", "name", "role", "stores", "state", "created_at", "expires_at", "revoked_at")
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--role", "owner"), "owner"), (("--role", "read", "--expires", "soon"), "is not a duration")],
)
def test_invalid_keys_are_rejected(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = kgserve("keys", "create", "--data", tmp_path, "--name", "x", *options)
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "keys.json").exists()


def test_names_and_ids(tmp_path: Path) -> None:
    first = created(tmp_path, "--role", "read", "--name", "one")
    again = kgserve("keys", "create", "--data", tmp_path, "--role", "read", "--name", "one")
    assert (again.code, "active key named 'one'" in again.err) == (1, True)
    assert kgserve("keys", "revoke", "nobody", "--data", tmp_path).code == 1
    assert kgserve("keys", "revoke", first[4:12], "--data", tmp_path).code == 0
    twice = kgserve("keys", "revoke", "one", "--data", tmp_path)
    assert (twice.code, "already revoked" in twice.err) == (1, True)
    given(tmp_path, "read", name="one")
    assert kgserve("keys", "revoke", "one", "--data", tmp_path).code == 0
    assert [row[4] for row in kgserve("keys", "list", "--data", tmp_path).lines()[1:]] == ["revoked", "revoked"]
    acts = [(line["act"], line["outcome"]) for line in audited(tmp_path)]
    assert acts == [("keys create", "done"), ("keys revoke", "done"), ("keys revoke", "done")]


def test_a_missing_folder_is_reported_or_created(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    for command in (("list",), ("revoke", "one")):
        done = kgserve("keys", *command, "--data", folder)
        assert (done.code, f"data folder {folder} does not exist" in done.err) == (1, True)
    assert not folder.exists()
    made = kgserve("keys", "create", "--data", folder, "--role", "read", "--name", "one")
    assert (made.code, f"created the data folder {folder}" in made.err) == (0, True)


def test_damaged_keys_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    done = kgserve("keys", "create", "--data", tmp_path, "--role", "read", "--name", "one")
    assert (done.code, "cannot be read" in done.err) == (1, True)
    assert (tmp_path / "keys.json").read_text() == "{"


@pytest.mark.abuse(27)
def test_remote_callers_are_not_served_without_keys(tmp_path: Path) -> None:
    """ABUSE 27: nor with invalid keys."""
    given(tmp_path, "read", name="revoked")
    revoke_api_key(tmp_path, "revoked", now())
    given(tmp_path, "read", expires_at=now())
    everywhere = "0.0.0.0"  # noqa: S104 - must be rejected
    for host in (everywhere, "192.0.2.1", "::"):
        with pytest.raises(InvalidInput, match="can be reached from other machines"):
            require_api_key_if_exposed(Settings(host=host), tmp_path)
    done = kgserve("serve", "--data", tmp_path, "--host", everywhere, "--port", "0")
    assert done.code == 1
    assert "kgserve keys create" in done.err
    assert "--insecure-no-auth" in done.err
    assert "listening" not in done.out


@pytest.mark.abuse(24)
def test_every_client_of_a_server_that_requires_keys(tmp_path: Path) -> None:
    """ABUSE 24: after requests of all kinds, no log contains a key."""
    data = tmp_path / "data"
    admin = created(data, "--role", "admin", "--name", "boss")
    with serving(data, "--embedding-provider", "hashing") as server:
        reader = created(data, "--role", "read", "--stores", "mine", "--name", "reader")
        accepted(httpx.post(f"{server.url}/api/memory/mine/inject", json=BATCH, headers=bearer(admin)))
        accepted(httpx.post(f"{server.url}/api/memory/other/inject", json=BATCH, headers=bearer(admin)))
        for query in (f"key={reader}", f"x={reader}", f"ACCESS_TOKEN={reader}"):
            assert httpx.get(f"{server.url}/api/memory?{query}", headers=bearer(reader)).status_code == 401
        assert httpx.get(f"{server.url}/{reader}").status_code == 401
        _commands(server, reader)
        _clients(server, reader)
        asyncio.run(_asynchronous(server, reader))
        _bridge(server, reader)
        revoked = kgserve("keys", "revoke", "reader", "--data", data)
        assert revoked.code == 0
        assert httpx.get(f"{server.url}/api/memory", headers=bearer(reader)).status_code == 401
    logs = (tmp_path / "data.log").read_text() + (data / "audit.log").read_text()
    assert reader[:12] in logs, "the path that contained a key is logged without its secret"
    assert reader[13:] not in logs
    assert admin[13:] not in logs


def _commands(server: ServerProcessHandle, reader: str) -> None:
    """Run all commands: the folder's user needs no key locally, but one at another address."""
    listed = kgserve("stores", "--data", server.data)
    assert [row[0] for row in listed.lines()[1:]] == ["mine", "other"]
    away = ("--server", server.url.replace("127.0.0.1", "localhost"), "--data", server.data)
    refused = kgserve("stores", *away)
    assert refused.code == 1
    assert "KGSERVE_KEY" in refused.err
    assert [row[0] for row in kgserve("stores", *away, "--key", reader).lines()[1:]] == ["mine"]
    variables = {"KGSERVE_KEY": reader}
    assert [row[0] for row in kgserve("stores", *away, variables=variables).lines()[1:]] == ["mine"]
    asked = kgserve("shell", "mine", "-c", "MATCH (n) RETURN n.id;", "--url", server.url, "--key", reader)
    assert "n" in asked.out
    assert kgserve("shell", "other", "-c", "MATCH (n) RETURN n.id;", "--url", server.url, "--key", reader).code == 1
    assert "KGSERVE_KEY" in kgserve("stores", *away, "--key", "kgs_nonsense").err


def _clients(server: ServerProcessHandle, reader: str) -> None:
    with Client(data=server.data) as own:
        assert [store.name for store in own.stores().stores] == ["mine", "other"]
    with Client(server.url, key=reader) as client:
        assert [store.name for store in client.stores().stores] == ["mine"]
        with pytest.raises(Forbidden, match="role write"):
            client.store("mine").inject(nodes=BATCH["nodes"])
        with pytest.raises(NotFound):
            client.store("other").stats()
    with Client(server.url) as client, pytest.raises(Unauthenticated, match="KGSERVE_KEY"):
        client.stores()


async def _asynchronous(server: ServerProcessHandle, reader: str) -> None:
    async with AsyncClient(server.url, key=reader) as client:
        assert [store.name for store in (await client.stores()).stores] == ["mine"]
    async with AsyncClient(server.url) as client:
        with pytest.raises(Unauthenticated, match="KGSERVE_KEY"):
            await client.stores()


def _bridge(server: ServerProcessHandle, reader: str) -> None:
    """Call a tool with the folder's token, with a key, and without either."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    }
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "list_stores", "arguments": {}, "_meta": meta},
    }
    line = json.dumps(call) + "\n"
    assert "other" in kgserve_process("mcp", "--data", server.data, stdin=line).out
    away = server.url.replace("127.0.0.1", "localhost")
    seen = kgserve_process(
        "mcp", "--data", server.data, "--url", away, stdin=line, variables={"KGSERVE_KEY": reader}
    ).out
    assert "mine" in seen
    assert "other" not in seen
    assert seen == kgserve_process("mcp", "--data", server.data, "--url", away, "--key", reader, stdin=line).out
    assert "KGSERVE_KEY" in kgserve_process("mcp", "--data", server.data, "--url", away, stdin=line).out


def test_an_editor_passes_the_key_in_the_environment() -> None:
    text = f"kgs_abcdefgh_{'A' * 43}"
    done = kgserve("mcp", "config", "--client", "cursor", "--url", "http://kg.example:1", "--key", text)
    [entry] = json.loads(done.out)["mcpServers"].values()
    assert entry["env"] == {"KGSERVE_KEY": text}
    assert text not in " ".join(entry["args"])
    assert kgserve("mcp", "config", "--client", "cursor", "--key", "with blank").code == 2


@pytest.mark.abuse(27, 28)
def test_remote_access_without_keys_on_request(tmp_path: Path) -> None:
    """ABUSE 27 and 28: it is printed and audited; the first key ends it permanently."""
    data = tmp_path / "data"
    with serving(data, "--host", NEARBY, "--insecure-no-auth") as server:
        assert httpx.get(f"{server.url}/api/memory").status_code == 200
        text = given(data, "read")
        assert httpx.get(f"{server.url}/openapi.json").status_code == 401
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        assert httpx.get(f"{server.url}/openapi.json", headers=bearer(text)).status_code == 200
    assert f'"reason": "{NEARBY} can be reached' in (tmp_path / "data.log").read_text()
    assert audited(data)[0]["act"] == "serve --insecure-no-auth"
    with serving(data, "--host", NEARBY) as server:
        assert httpx.get(f"{server.url}/api/memory", headers=bearer(text)).status_code == 200
        (data / "keys.json").unlink()
        assert httpx.get(f"{server.url}/api/memory", headers=bearer(text)).status_code == 401
        assert httpx.get(f"{server.url}/api/memory").status_code == 401
        assert httpx.get(f"{server.url}/health").status_code == 200
