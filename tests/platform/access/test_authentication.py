from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kgserve.errors import Conflict, InvalidInput, Unauthenticated
from kgserve.platform.access.authentication import (
    ANONYMOUS_CALLER,
    KEY_FILE,
    LOCAL_CALLER,
    OWNER_CALLER,
    ApiKeyFileCache,
    AuthenticatedCaller,
    Authenticator,
    add_api_key,
    create_api_key,
    read_api_keys,
    require_api_key_if_exposed,
    revoke_api_key,
)
from kgserve.platform.settings import Settings
from tests.platform.access.keys import given, now

ELSEWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound here
TOKEN = "t" * 43


def authenticator(data: Path, host: str = "127.0.0.1", *, insecure: bool = False) -> Authenticator:
    return Authenticator(Settings(data_dir=data, host=host, insecure_no_auth=insecure), ApiKeyFileCache(data), TOKEN)


def enter(at: Authenticator, text: str | None = None, path: str = "/api/memory") -> AuthenticatedCaller:
    headers = [(b"authorization", f"Bearer {text}".encode())] if text is not None else []
    return at.authenticate(path, b"", headers)


def refuses(at: Authenticator, text: str | None = None, path: str = "/api/memory") -> bool:
    try:
        enter(at, text, path)
    except Unauthenticated:
        return True
    return False


def test_a_loopback_server_needs_no_key_until_one_exists(tmp_path: Path) -> None:
    at = authenticator(tmp_path)
    assert enter(at) is enter(at, "nonsense") is LOCAL_CALLER
    text = given(tmp_path, "read", name="k")
    assert refuses(at)
    assert enter(at, text).name == "k"
    assert enter(at, TOKEN) is OWNER_CALLER
    assert not at.still_valid(LOCAL_CALLER)
    assert at.still_valid(OWNER_CALLER)


def test_a_browser_key_ends_with_the_key_that_created_it(tmp_path: Path) -> None:
    at, ends = authenticator(tmp_path), now() + 3_600_000_000
    maker = enter(at, given(tmp_path, "admin", expires_at=ends))
    caller, text = at.browser_key(maker, "read")
    assert caller.expires_at == enter(at, text).expires_at == ends


@pytest.mark.abuse(27)
def test_other_addresses_always_need_a_key(tmp_path: Path) -> None:
    """ABUSE 27: neither initially, nor when the last key is removed while the server runs."""
    at = authenticator(tmp_path, ELSEWHERE)
    assert refuses(at)
    text = given(tmp_path, "read")
    assert enter(at, text).role == "read"
    (tmp_path / KEY_FILE).unlink()
    assert refuses(at)
    assert refuses(at, text)
    assert enter(at, TOKEN) is OWNER_CALLER


def test_insecure_no_auth_needs_no_key(tmp_path: Path) -> None:
    at = authenticator(tmp_path, ELSEWHERE, insecure=True)
    assert enter(at) is LOCAL_CALLER
    given(tmp_path, "read")
    assert refuses(at), "who makes a key wants it asked for"


def test_health_checks_need_no_key(tmp_path: Path) -> None:
    at = authenticator(tmp_path, ELSEWHERE)
    assert enter(at, path="/health") is enter(at, "nonsense", path="/ready") is ANONYMOUS_CALLER
    assert not ANONYMOUS_CALLER.can_access("a")
    for path in ("/healthy", "/health/", "//health", "/HEALTH", "/ready/x"):
        assert refuses(at, path=path), path


@pytest.mark.parametrize("header", [b"bearer %s", b"BEARER  %s ", b"Bearer %s"])
def test_the_authorization_scheme_ignores_case(header: bytes, tmp_path: Path) -> None:
    text = given(tmp_path, "read")
    at = authenticator(tmp_path)
    assert at.authenticate("/", b"", [(b"authorization", header % text.encode())]).role == "read"


def test_an_exposed_server_without_keys_does_not_start(tmp_path: Path) -> None:
    require_api_key_if_exposed(Settings(data_dir=tmp_path), tmp_path)
    require_api_key_if_exposed(Settings(data_dir=tmp_path, host=ELSEWHERE, insecure_no_auth=True), tmp_path)
    elsewhere = Settings(data_dir=tmp_path, host=ELSEWHERE)
    given(tmp_path, "read", expires_at=now() - 1)
    with pytest.raises(InvalidInput, match="kgserve keys create"):
        require_api_key_if_exposed(elsewhere, tmp_path)
    given(tmp_path, "read")
    require_api_key_if_exposed(elsewhere, tmp_path)
    (tmp_path / KEY_FILE).write_text("{")
    with pytest.raises(InvalidInput):
        require_api_key_if_exposed(elsewhere, tmp_path)


PROXIED = [{"trusted_proxies": "127.0.0.1"}, {"allowed_hosts": "localhost, graph.example"}]


@pytest.mark.parametrize("options", PROXIED)
def test_a_server_behind_a_proxy_counts_as_exposed(tmp_path: Path, options: dict[str, Any]) -> None:
    """It listens on this machine only, but the proxy forwards other machines' requests."""
    proxied = Settings(data_dir=tmp_path, **options)
    with pytest.raises(InvalidInput, match=r"other machines .*kgserve keys create"):
        require_api_key_if_exposed(proxied, tmp_path)
    assert refuses(Authenticator(proxied, ApiKeyFileCache(tmp_path)))
    insecure = Settings(data_dir=tmp_path, insecure_no_auth=True, **options)
    require_api_key_if_exposed(insecure, tmp_path)
    assert enter(Authenticator(insecure, ApiKeyFileCache(tmp_path))) is LOCAL_CALLER
    text = given(tmp_path, "read")
    require_api_key_if_exposed(proxied, tmp_path)
    at = Authenticator(proxied, ApiKeyFileCache(tmp_path))
    assert enter(at, text).role == "read"
    (tmp_path / KEY_FILE).unlink()
    assert refuses(at), "it does not open when the keys go"


def test_loopback_host_names_do_not_expose_a_server(tmp_path: Path) -> None:
    named = Settings(data_dir=tmp_path, allowed_hosts="localhost, kgserve.localhost, 127.0.0.2,", trusted_proxies=" ,")
    require_api_key_if_exposed(named, tmp_path)
    assert enter(Authenticator(named, ApiKeyFileCache(tmp_path))) is LOCAL_CALLER


def test_a_broken_link_to_the_key_file_rejects_every_key(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "secrets"
    text = given(data, "read")
    (data / KEY_FILE).rename(elsewhere)
    (data / KEY_FILE).symlink_to(elsewhere)
    at = authenticator(data)
    assert enter(at, text).role == "read"
    elsewhere.rename(tmp_path / "away")
    assert refuses(at)
    assert refuses(at, text)
    (tmp_path / "away").rename(elsewhere)
    assert enter(at, text).role == "read"


def test_every_change_of_the_key_file_is_noticed(tmp_path: Path) -> None:
    ring = ApiKeyFileCache(tmp_path)
    assert ring.empty
    for number in range(50):
        text = given(tmp_path, "read", name=f"k{number}")
        assert ring.caller(text) is not None
        revoke_api_key(tmp_path, f"k{number}", now())
        assert ring.caller(text) is None
        assert not ring.is_active(text[4:12])
    assert not ring.empty
    assert not ring.has_active_key


def test_a_key_file_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    text = given(tmp_path, "read")
    ring = ApiKeyFileCache(tmp_path)
    assert ring.caller(text) is not None
    path = tmp_path / KEY_FILE
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"read"', b'"xxxx"'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ring.caller(text) is None
    assert not ring.empty


def test_concurrent_key_creation_loses_no_key(tmp_path: Path) -> None:
    def make(number: int) -> None:
        key, _ = create_api_key(f"k{number}", "read", ["*"], now())
        add_api_key(tmp_path, key)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in read_api_keys(tmp_path)} == {f"k{number}" for number in range(12)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.json", "keys.lock"]


def test_two_active_keys_with_one_name_conflict(tmp_path: Path) -> None:
    given(tmp_path, "read", name="k", expires_at=now() + 3_600_000_000)
    with pytest.raises(Conflict, match="active key named 'k'"):
        given(tmp_path, "admin", name="k")
