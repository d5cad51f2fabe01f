"""A key: what is shown once, and what is kept of it. Pure: no files, no clock."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kgserve.access.caller import EVERY_STORE, Caller, Role
from kgserve.errors import InvalidInput

MARK = "kgs_"
ID_LENGTH = 8
SECRET_BYTES = 32
MAX_NAME = 64
MAX_PATTERNS = 64
SECOND = 1_000_000

_ID_SIGNS = string.ascii_lowercase + string.digits
_TEXT = re.compile(r"kgs_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_SHOWN = re.compile(r"(kgs_[a-z0-9]{8})_[A-Za-z0-9_-]+")
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\*?|\*")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._@-]{0,62}[A-Za-z0-9])?")
_SPAN = re.compile(r"([1-9][0-9]{0,4})([hdwy])")
_SPANS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a key. Times are microseconds since 1970; ``salt`` and ``hash`` are in hexadecimal digits."""

    id: str
    name: str
    role: Role
    stores: tuple[str, ...]
    created_at: int
    salt: str
    hash: str
    prefix: str
    expires_at: int | None = None
    revoked_at: int | None = None

    def state(self, now: int) -> str:
        """Whether it opens anything: active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at is None or now < self.expires_at else "expired"

    def matches(self, secret: str) -> bool:
        """Whether this is its secret, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)

    @property
    def caller(self) -> Caller:
        """Who comes with it."""
        return Caller(self.name, self.role, self.stores, self.id)


class Secret(NamedTuple):
    """The two parts of a key as it is sent."""

    id: str
    secret: str


def mint(name: str, role: Role, stores: Iterable[str], now: int, expires_at: int | None = None) -> tuple[Key, str]:
    """A new key, and its text, which is nowhere else. Raises InvalidInput for what cannot be a name or a pattern."""
    identity = "".join(secrets.choice(_ID_SIGNS) for _ in range(ID_LENGTH))
    secret, salt, prefix = secrets.token_urlsafe(SECRET_BYTES), secrets.token_hex(16), f"{MARK}{identity}"
    patterns = checked_patterns(stores)
    key = Key(
        id=identity,
        name=checked_name(name),
        role=role,
        stores=patterns,
        created_at=now,
        salt=salt,
        hash=_hash(salt, secret),
        prefix=prefix,
        expires_at=expires_at,
    )
    return key, f"{prefix}_{secret}"


def parse(text: str) -> Secret | None:
    """The parts of what was sent as a key; None for what cannot be one."""
    found = _TEXT.fullmatch(text)
    return Secret(found[1], found[2]) if found else None


def masked(text: str) -> str:
    """A text in which of every key only the prefix is left, fit for a log."""
    return _SHOWN.sub(r"\1_…", text) if MARK in text else text


def checked_name(name: str) -> str:
    """Raises InvalidInput for what is no name of a key."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is no name for a key: up to {MAX_NAME} letters, digits, blanks and . _ @ -, "
            "with a letter or digit at both ends"
        )
    return name


def checked_patterns(stores: Iterable[str]) -> tuple[str, ...]:
    """The patterns without repetitions. Raises InvalidInput naming one that can match no store."""
    patterns = tuple(dict.fromkeys(stores))
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise InvalidInput(
                f"{pattern[:80]!r} names no stores: write names, beginnings such as team-*, or * for all of them"
            )
    if not 1 <= len(patterns) <= MAX_PATTERNS:
        raise InvalidInput(f"a key is for 1 to {MAX_PATTERNS} names or beginnings of stores, not {len(patterns)}")
    return (EVERY_STORE,) if EVERY_STORE in patterns else patterns


def parse_span(text: str) -> int:
    """Microseconds of a text such as 12h, 30d, 6w or 1y. Raises InvalidInput."""
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _SPANS[found[2]] if found else 0
    if not 0 < seconds <= 100 * _SPANS["y"]:
        raise InvalidInput(f"{text[:80]!r} is no length of time up to 100 years: write 12h, 30d, 6w or 1y")
    return seconds * SECOND


def _hash(salt: str, secret: str) -> str:
    """A fast hash on purpose: slow ones make guessing a password dear, but 256 random bits cannot be guessed at all.

    It is taken of every request, where a slow one would be a way to keep the server busy.
    """
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()


NOBODYS = Key("00000000", "nobody", "read", (), 0, "00" * 16, "00" * 32, "")
"""Compared with when there is no such key, so that it takes as long. No secret is known that has this hash."""
