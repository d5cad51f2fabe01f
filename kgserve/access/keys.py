"""Keys: what is shown of one once, what is kept of it, and the file that keeps them.

keys.json of a data folder is read by the server and changed by the command line, whether or not a server runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import string
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from kgserve.access.caller import EVERY_STORE, Caller, Role
from kgserve.decoding import decode_json
from kgserve.errors import Conflict, InvalidInput, KgserveError, NotFound

KEY_FILE = "keys.json"
LOCK_FILE = "keys.lock"
FORMAT = 1
MAX_KEYS = 10_000

MARK = "kgs_"
ID_LENGTH = 8
SECRET_BYTES = 32
MAX_NAME = 64
MAX_PATTERNS = 64
SECOND = 1_000_000

_ID_SIGNS = string.ascii_lowercase + string.digits
_TEXT = re.compile(r"kgs_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_PATTERN = re.compile(r"(?=.{1,64}\*?$)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*(?:\.?\*)?|\*")
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
        return Caller(self.name, self.role, self.stores, self.id, expires_at=self.expires_at)


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


NO_KEY = Key("00000000", "nobody", "read", (), 0, "00" * 16, "00" * 32, "")
"""Compared with when there is no such key, so that it takes as long. No secret is known that has this hash."""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    keys: list[Key]


class KeysDamaged(KgserveError):
    """keys.json is there and cannot be read. Nobody is let in by it, and it is not written over."""

    code = "conflict"


def read_keys(data_dir: Path) -> list[Key]:
    """The keys of a data folder, oldest first; none when it has no file. Raises KeysDamaged."""
    path = data_dir / KEY_FILE
    try:
        return _decoded(path.read_bytes())
    except FileNotFoundError as error:
        if not path.is_symlink():
            return []
        raise KeysDamaged(f"{path} is a link to what is not there: put it back, or make new keys") from error
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise KeysDamaged(
            f"{path} cannot be read ({error}): put back a whole one, or remove it and make new keys"
        ) from error


def add_key(data_dir: Path, key: Key) -> None:
    """Keep a new key. Raises Conflict for the name of one that is active, KeysDamaged."""
    with _changing(data_dir) as keys:
        for other in keys:
            if other.name == key.name and other.state(key.created_at) == "active":
                raise Conflict(f"there is an active key named {key.name!r}: revoke it first, or choose another name")
        if len(keys) >= MAX_KEYS:
            raise Conflict(f"there are {MAX_KEYS:,} keys already, revoked ones included")
        keys.append(key)


def revoke_key(data_dir: Path, id_or_name: str, now: int) -> Key:
    """Have a key open nothing any more; the key as it is kept from now on.

    Raises NotFound, Conflict when it was revoked before or the name stands for several, KeysDamaged.
    """
    with _changing(data_dir) as keys:
        place = _place_of(keys, id_or_name, now)
        keys[place] = msgspec.structs.replace(keys[place], revoked_at=now)
        return keys[place]


def merge_keys(data_dir: Path, others: Iterable[Key]) -> list[Key]:
    """Keep what others know of keys beside what is known here, where one that was revoked is; all of them.

    Raises KeysDamaged.
    """
    with _changing(data_dir) as keys:
        known = {key.id: key for key in keys}
        for other in others:
            mine = known.get(other.id, other)
            revoked = [each.revoked_at for each in (mine, other) if each.revoked_at is not None]
            known[other.id] = msgspec.structs.replace(mine, revoked_at=min(revoked, default=None))
        keys[:] = sorted(known.values(), key=lambda key: key.created_at)
        return keys


def _place_of(keys: list[Key], wanted: str, now: int) -> int:
    found = [place for place, key in enumerate(keys) if wanted in {key.id, key.prefix, key.name}]
    if not found:
        raise NotFound(f"there is no key {wanted[:80]!r}; `kgserve keys list` shows all")
    usable = [place for place in found if keys[place].revoked_at is None]
    if not usable:
        raise Conflict(f"the key {wanted!r} was revoked before")
    active = [place for place in usable if keys[place].state(now) == "active"]
    if len(active or usable) > 1:
        ids = ", ".join(keys[place].id for place in usable)
        raise Conflict(f"several keys are named {wanted!r}: name one by its id, {ids}")
    return (active or usable)[0]


@contextmanager
def _changing(data_dir: Path) -> Generator[list[Key]]:
    """The keys, to be changed in place and written when the block ends well; one process at a time."""
    if not data_dir.is_dir():
        raise InvalidInput(f"{data_dir} is no data folder; `kgserve serve --data {data_dir}` makes one")
    descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        keys = read_keys(data_dir)
        yield keys
        _write(data_dir, keys)
    finally:
        os.close(descriptor)


def _write(data_dir: Path, keys: list[Key]) -> None:
    """Replace the file as a whole, so that a reader sees all keys of before or all of now."""
    fresh = data_dir / f".keys-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_Content(FORMAT, keys))) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(data_dir / KEY_FILE)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _decoded(text: bytes) -> list[Key]:
    content = decode_json(text, _Content)
    if content.format != FORMAT:
        raise ValueError(f"its format is {content.format}, and this kgserve knows {FORMAT}")
    return content.keys
