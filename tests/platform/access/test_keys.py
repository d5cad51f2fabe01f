from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import Forbidden, InvalidInput
from kgserve.platform.access.authentication import (
    KEY_FILE,
    MAX_STORE_PATTERNS,
    AuthenticatedCaller,
    HiddenStore,
    KeyFileDamaged,
    add_api_key,
    create_api_key,
    parse_api_key,
    parse_api_key_lifetime,
    read_api_keys,
    validate_store_patterns,
)
from kgserve.platform.structured_log import mask_api_keys

DAY = 86_400_000_000


def test_a_key_matches_only_its_own_secret() -> None:
    key, text = create_api_key("n", "read", ["*"], 0)
    other, _ = create_api_key("n", "read", ["*"], 0)
    given = parse_api_key(text)
    assert given is not None
    assert (given.id, key.matches(given.secret), other.matches(given.secret)) == (key.id, True, False)
    assert not key.matches(given.secret[:-1] + ("A" if given.secret[-1] != "A" else "B"))
    assert key.salt != other.salt


def test_the_secret_has_256_bits_and_is_not_stored() -> None:
    key, text = create_api_key("n", "read", ["*"], 0)
    assert re.fullmatch(r"kgs_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert text[13:] not in str(key)


@pytest.mark.parametrize(
    "text", ["", "kgs_", "kgs_abcdefgh_", f"kgs_abcdefgh_{'A' * 42}", f"kgs_abcdefgh_{'A' * 43}\n"]
)
def test_malformed_keys_are_rejected(text: str) -> None:
    assert parse_api_key(text) is None


@pytest.mark.parametrize(
    "patterns",
    [[], [""], ["a/b"], ["a*b"], ["**"], ["-a"], ["é"], ["a\n"], ["x" * 65], ["a."], ["a..b"], [".a"], ["a..*"]],
)
def test_invalid_store_patterns_are_rejected(patterns: list[str]) -> None:
    with pytest.raises(InvalidInput):
        validate_store_patterns(patterns)


def test_no_altered_byte_of_the_key_file_changes_a_key(tmp_path: Path) -> None:
    key, _ = create_api_key("n", "read", ["team-a", "team-b*"], 0, 1_700_000_000_000_000)
    add_api_key(tmp_path, key)
    path = tmp_path / KEY_FILE
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x10):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with suppress(KeyFileDamaged):
                assert read_api_keys(tmp_path) == [key]


def test_a_key_file_without_a_checksum_is_read_and_gets_one(tmp_path: Path) -> None:
    key, _ = create_api_key("n", "read", ["*"], 0)
    (tmp_path / KEY_FILE).write_bytes(msgspec.json.encode({"format": 1, "keys": [key]}))
    assert read_api_keys(tmp_path) == [key]
    other, _ = create_api_key("m", "read", ["*"], 1)
    add_api_key(tmp_path, other)
    assert read_api_keys(tmp_path) == [key, other]
    assert b'"checksum"' in (tmp_path / KEY_FILE).read_bytes()


def test_store_patterns_are_deduplicated() -> None:
    assert validate_store_patterns(["a", "b-*", "a"]) == ("a", "b-*")
    assert validate_store_patterns(["a", "*"]) == ("*",)
    assert validate_store_patterns(["my.project", "my.*", "x" * 64 + "*"]) == ("my.project", "my.*", "x" * 64 + "*")
    with pytest.raises(InvalidInput):
        validate_store_patterns(f"s{number}" for number in range(MAX_STORE_PATTERNS + 1))


@pytest.mark.parametrize("name", ["", " x", "x ", "\x1b[31m", "x" * 65, "a\nb", "ü"])
def test_invalid_key_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidInput):
        create_api_key(name, "read", ["*"], 0)


def test_durations_are_parsed() -> None:
    assert [parse_api_key_lifetime(text) for text in ("24h", "1d", "1W", " 1y ")] == [DAY, DAY, 7 * DAY, 365 * DAY]


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1", "d", "1.5d", "30 d", "101y", "99999d", "1d\n1d"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_api_key_lifetime(text)


def test_key_states() -> None:
    key, _ = create_api_key("n", "read", ["*"], 0, expires_at=10)
    assert [key.state(now) for now in (0, 9, 10, 11)] == ["active", "active", "expired", "expired"]


def test_store_visibility_of_a_caller() -> None:
    caller = AuthenticatedCaller("n", "read", ("a", "team-*"))
    assert [caller.can_access(store) for store in ("a", "A", "ab", "team-", "team-1", "team", "*")] == [
        *(True, False, False, True, True, False, False)
    ]
    assert not caller.can_access_all
    with pytest.raises(HiddenStore, match="there is no store 'b'"):
        caller.require_store("b")


def test_roles_include_lower_roles() -> None:
    roles = ("read", "write", "admin")
    assert [[AuthenticatedCaller("n", has).has_role(needs) for needs in roles] for has in roles] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    with pytest.raises(Forbidden, match="needs the role write; the key 'n' has the role read"):
        AuthenticatedCaller("n", "read").require("write")


def test_logs_show_only_key_prefixes() -> None:
    _, text = create_api_key("n", "read", ["*"], 0)
    assert mask_api_keys(f"GET /x/{text}/y") == f"GET /x/{text[:12]}_…/y"
    assert mask_api_keys("nothing") == "nothing"
