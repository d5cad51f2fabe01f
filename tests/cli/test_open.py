"""`kgserve open`: an address, with a key for the page if keys are required."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kgserve.platform.access.authentication import revoke_api_key
from tests.cli.running import ServerProcessHandle, kgserve, kgserve_process, serving
from tests.platform.access.keys import audited, bearer, given, now
from tests.server.http.serving import accepted

BATCH = {"nodes": [{"id": "n", "type": "t"}]}


def opened(data: Path, *options: str, **variables: str) -> str:
    done = kgserve("open", "--print", "--data", data, *options, variables=variables)
    assert done.code == 0, done.err
    return done.out.strip()


def test_the_address_contains_a_key_if_keys_are_required(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as running:
        assert opened(data) == f"{running.url}/"
        accepted(httpx.post(f"{running.url}/api/memory/my.notes/inject", json=BATCH))
        assert opened(data, "my.notes") == f"{running.url}/#/my.notes"
        missing = kgserve("open", "--print", "--data", data, "elsewhere")
        assert missing.code == 1
        assert "elsewhere" in missing.err

        admin = given(data, "admin", stores=["my*"], name="maker")
        address, more = opened(data, "my.notes"), opened(data, "my.notes", "--write", KGSERVE_KEY=admin)
        head, _, key = address.partition("?key=")
        assert head == f"{running.url}/#/my.notes"
        assert "key=" not in urlsplit(address).query
        api = f"{running.url}/api"
        told = accepted(httpx.get(f"{api}/whoami", headers=bearer(key)))
        assert (told["name"], told["role"], told["stores"], told["open"]) == ("browser", "read", ["*"], False)
        assert httpx.post(f"{api}/memory/my.notes/inject", json=BATCH, headers=bearer(key)).status_code == 403
        writing = more.partition("?key=")[2]
        accepted(httpx.post(f"{api}/memory/my.notes/inject", json=BATCH, headers=bearer(writing)))
        assert httpx.get(f"{api}/memory/others", headers=bearer(writing)).status_code == 404
        assert httpx.post(f"{api}/browser-key", headers=bearer(writing)).status_code == 403
        assert httpx.get(f"{api}/whoami", headers=bearer(key[:-4] + "AAAA")).status_code == 401

        revoke_api_key(data, "maker", now())
        assert httpx.get(f"{api}/whoami", headers=bearer(writing)).status_code == 401
        assert httpx.get(f"{api}/whoami", headers=bearer(key)).status_code == 200
        reader = kgserve("open", "--print", "--data", data, variables={"KGSERVE_KEY": given(data, "read")})
        assert (reader.code, reader.out) == (0, f"{running.url}/\n")
        assert "admin" in reader.err
    kept = "".join(file.read_text(errors="replace") for file in data.rglob("*") if file.is_file())
    assert key[13:] not in kept
    assert writing[13:] not in kept
    assert [line["act"] for line in audited(data) if line["kind"] == "admin"].count("browserKey") == 2


def test_it_opens_a_browser(tmp_path: Path) -> None:
    data, seen = tmp_path / "data", tmp_path / "seen"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    program.chmod(0o755)
    with serving(data) as running:
        done = kgserve_process("open", "--data", data, variables={"BROWSER": f"{program} %s"})
        assert (done.code, done.out, done.err) == (0, f"{running.url}/\n", "")
        assert seen.read_text() == f"{running.url}/\n"


def test_the_page_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--explorer", "false") as running:
        for path in ("/", "/explorer/main.js"):
            answer = httpx.get(running.url + path)
            assert answer.status_code == 404
            assert "--explorer" in answer.json()["detail"]
        assert httpx.get(f"{running.url}/docs").status_code == 200


@pytest.mark.parametrize("role", ["admin", "", 7])
def test_a_page_gets_at_most_the_write_role(server: ServerProcessHandle, role: object) -> None:
    assert httpx.post(f"{server.url}/api/browser-key", json={"role": role}).status_code == 400
