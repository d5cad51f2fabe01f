"""keys.json of a data folder: read by the server, changed by the command line, whether or not a server runs."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kgserve.access.key import Key
from kgserve.decoding import decode_json
from kgserve.errors import Conflict, InvalidInput, KgserveError, NotFound

KEY_FILE = "keys.json"
LOCK_FILE = "keys.lock"
FORMAT = 1
MAX_KEYS = 10_000


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
