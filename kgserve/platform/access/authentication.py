"""Who a request comes from, and whether its caller may do what it asks for.

`Caller` is somebody who was let in. A key is shown once; what is kept of it, a `Key`, is in keys.json of a data folder,
read by the server and changed by the command line, whether or not a server runs. `Authenticator` is the policy of one
server: its address, its keys, and what a request brings along. `RequestContext` goes with each request.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import string
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

import msgspec
import structlog

from kgserve.errors import Conflict, Forbidden, InvalidInput, KgserveError, NoStore, NotFound, Unauthenticated
from kgserve.platform.access.audit import Audit
from kgserve.platform.codecs import decode_json
from kgserve.platform.hosts import is_loopback, network_of
from kgserve.platform.settings import Settings

Role = Literal["read", "write", "admin"]

_SCOPE_RANKS: dict[Role, int] = {"read": 0, "write": 1, "admin": 2}
EVERY_STORE = "*"
CALLER_HEADER = "kgserve-caller"
"""Where one node of a cluster tells another for whom it asks, which is believed with the token of that other one."""


class Caller(msgspec.Struct, frozen=True):
    """Somebody who was let in. ``stores`` are names, or beginnings of names that end with ``*``.

    ``key_id`` is None for who needs no key: local clients, and everybody on a loopback address without keys.
    ``trusted``: it has shown the token of server.json. ``expires_at`` is when its key ends, in microseconds.
    """

    name: str
    role: Role
    stores: tuple[str, ...] = (EVERY_STORE,)
    key_id: str | None = None
    trusted: bool = False
    expires_at: int | None = None

    @property
    def sees_all(self) -> bool:
        """Whether no store is hidden from the caller."""
        return EVERY_STORE in self.stores

    def may(self, role: Role) -> bool:
        """Whether the caller's role includes another; admin includes write, write includes read."""
        return _SCOPE_RANKS[self.role] >= _SCOPE_RANKS[role]

    def sees(self, store: str) -> bool:
        """Whether a store of this name is, or would be, one of the caller's."""
        return self.sees_all or any(
            store.startswith(pattern[:-1]) if pattern.endswith("*") else store == pattern for pattern in self.stores
        )

    def require(self, role: Role) -> None:
        """Raises Forbidden when the caller's role does not include ``role``."""
        if not self.may(role):
            raise Forbidden(f"this needs the role {role}; the key {self.name!r} has the role {self.role}")

    def require_every_store(self, act: str) -> None:
        """Raises Forbidden for an act that may touch any store, when some are hidden from the caller."""
        if not self.sees_all:
            raise Forbidden(f"{act} needs a key for all stores; the key {self.name!r} is for some")

    def require_store(self, store: str) -> None:
        """Raises Hidden, a NoStore, for a store that is not the caller's, in the words for one that does not exist."""
        if not self.sees(store):
            raise Hidden(store)


class Hidden(NoStore):
    """A store that is none of the caller's: to the caller as if there were none, and on record as a denial."""


LOCAL_CALLER = Caller("local", "admin")
"""Whoever reaches a server that asks for no keys."""

ANONYMOUS_CALLER = Caller("nobody", "read", ())
"""Who asks for what needs no key, where others do."""


KEY_FILE = "keys.json"
KEYS_LOCK_FILE = "keys.lock"
KEYS_FORMAT = 1
MAX_API_KEYS = 10_000

API_KEY_PREFIX = "kgs_"
KEY_ID_CHARS = 8
SECRET_BYTES = 32
MAX_KEY_NAME_CHARS = 64
MAX_STORE_PATTERNS = 64
SECOND_MICROSECONDS = 1_000_000

_KEY_ID_ALPHABET = string.ascii_lowercase + string.digits
_API_KEY_PATTERN = re.compile(r"kgs_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_STORE_PATTERN_PATTERN = re.compile(r"(?=.{1,64}\*?$)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*(?:\.?\*)?|\*")
_KEY_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._@-]{0,62}[A-Za-z0-9])?")
_VALIDITY_PATTERN = re.compile(r"([1-9][0-9]{0,4})([hdwy])")
_VALIDITY_UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


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
    identity = "".join(secrets.choice(_KEY_ID_ALPHABET) for _ in range(KEY_ID_CHARS))
    secret, salt, prefix = secrets.token_urlsafe(SECRET_BYTES), secrets.token_hex(16), f"{API_KEY_PREFIX}{identity}"
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
    found = _API_KEY_PATTERN.fullmatch(text)
    return Secret(found[1], found[2]) if found else None


def checked_name(name: str) -> str:
    """Raises InvalidInput for what is no name of a key."""
    if not _KEY_NAME_PATTERN.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is no name for a key: up to {MAX_KEY_NAME_CHARS} letters, digits, blanks and . _ @ -, "
            "with a letter or digit at both ends"
        )
    return name


def checked_patterns(stores: Iterable[str]) -> tuple[str, ...]:
    """The patterns without repetitions. Raises InvalidInput naming one that can match no store."""
    patterns = tuple(dict.fromkeys(stores))
    for pattern in patterns:
        if not _STORE_PATTERN_PATTERN.fullmatch(pattern):
            raise InvalidInput(
                f"{pattern[:80]!r} names no stores: write names, beginnings such as team-*, or * for all of them"
            )
    if not 1 <= len(patterns) <= MAX_STORE_PATTERNS:
        raise InvalidInput(f"a key is for 1 to {MAX_STORE_PATTERNS} names or beginnings of stores, not {len(patterns)}")
    return (EVERY_STORE,) if EVERY_STORE in patterns else patterns


def parse_span(text: str) -> int:
    """Microseconds of a text such as 12h, 30d, 6w or 1y. Raises InvalidInput."""
    found = _VALIDITY_PATTERN.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _VALIDITY_UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= 100 * _VALIDITY_UNIT_SECONDS["y"]:
        raise InvalidInput(f"{text[:80]!r} is no length of time up to 100 years: write 12h, 30d, 6w or 1y")
    return seconds * SECOND_MICROSECONDS


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
        if len(keys) >= MAX_API_KEYS:
            raise Conflict(f"there are {MAX_API_KEYS:,} keys already, revoked ones included")
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
    descriptor = os.open(data_dir / KEYS_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
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
            file.write(msgspec.json.format(msgspec.json.encode(_Content(KEYS_FORMAT, keys))) + b"\n")
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
    if content.format != KEYS_FORMAT:
        raise ValueError(f"its format is {content.format}, and this kgserve knows {KEYS_FORMAT}")
    return content.keys


log = structlog.get_logger()

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/docs", "/docs/docs.css", "/docs/docs.js"})
"""Paths that need no key: whoever watches over the process has none, and a browser sends none for a page.

A page is the same for everybody; what it shows comes from the API, for which it asks for a key.
"""
PAGE_FILES_PATH = "/explorer/"
"""Below it are the files of the page at ``/``, which need none either."""

KEY_NEEDED_MESSAGE = (
    "a valid key is needed, sent as `Authorization: Bearer kgs_…`; kgserve's commands and clients take it as --key, "
    "key=… or KGSERVE_KEY, and `kgserve keys create` makes one on the server's machine"
)
KEY_IN_QUERY_MESSAGE = (
    "a key does not belong in the query, where logs and histories keep it: send `Authorization: Bearer kgs_…`"
)

KEY_RECHECK_SECONDS = 2.0
"""What lasts, and says nothing meanwhile, asks so often whether its key is still valid."""

_KEY_PARAMETERS_PATTERN = rb"(?:api[_-]?)?key|(?:access[_-]?)?token|authorization"
_KEY_IN_QUERY_PATTERN = re.compile(rb"(?i)(?:^|[&;])(?:" + _KEY_PARAMETERS_PATTERN + rb")(?:=|%3d)|kgs_[a-z0-9]{8}_")

BROWSER_KEY_NAME = "browser"
"""The name of keys that are made for pages."""
BROWSER_KEY_HOURS = 12
MAX_BROWSER_KEYS = 100

_FileState = tuple[int, int, int] | None
_UNREAD_FILE_STATE: _FileState = (-1, -1, -1)
_network = lru_cache(maxsize=1024)(network_of)
_DENIAL_STATUSES = frozenset({401, 403, 421})
_MIN_FAILURE_STATUS = 400
_NODE_REDIRECT_STATUS = 307
"""Another node of the cluster is asked to do it, and puts it on record."""


class WrongKey(Unauthenticated):
    """What was sent as a key opens nothing; to the caller the same as none. Who sends many is made to wait."""


class Authenticator:
    """Lets callers in, or not. ``token`` is what server.json tells local clients: who can read it may do anything."""

    def __init__(self, settings: Settings, keyring: Keyring, token: str | None = None) -> None:
        self._keyring = keyring
        self._open_at_first = not exposure(settings) or settings.insecure_no_auth
        self._token = token.encode() if token else None
        self._browsers = BrowserKeys(self.still_valid)

    @property
    def required(self) -> bool:
        """Whether a key is needed. One that exists is asked for; without any, only this machine is let in."""
        return not self._open_at_first or not self._keyring.empty

    def authenticate(self, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Who comes. Raises Unauthenticated, in the same words for every key that opens nothing."""
        given = [value for name, value in headers if name == b"authorization"]
        if not self.required:
            return LOCAL_CALLER
        if path in PUBLIC_PATHS or path.startswith(PAGE_FILES_PATH):
            return ANONYMOUS_CALLER
        if query and _KEY_IN_QUERY_PATTERN.search(query):
            raise Unauthenticated(KEY_IN_QUERY_MESSAGE)
        if not given:
            raise Unauthenticated(KEY_NEEDED_MESSAGE)
        found = self._known(given[0]) if len(given) == 1 else None
        if found is None:
            raise WrongKey(KEY_NEEDED_MESSAGE)
        asked_for = next((value for name, value in headers if name == CALLER_HEADER.encode()), None)
        return found if asked_for is None or found is not OWNER_CALLER else _in_the_name_of(asked_for)

    def still_valid(self, caller: Caller) -> bool:
        """Whether somebody who was let in would be let in still; streams ask, because they last."""
        if caller.key_id is not None:
            return self._keyring.is_active(caller.key_id) or self._browsers.is_active(caller.key_id)
        return caller.trusted or not self.required

    def browser_key(self, maker: Caller, role: Role) -> tuple[Caller, str]:
        """A key for a page in a browser, and who comes with it. Raises Forbidden for more than its maker may."""
        maker.require(role)
        return self._browsers.make(maker, role)

    def _known(self, header: bytes) -> Caller | None:
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer":
            return None
        if self._token is not None and hmac.compare_digest(given, self._token):
            return OWNER_CALLER
        text = given.decode("latin-1")
        return self._keyring.caller(text) or self._browsers.caller(text)


def _in_the_name_of(told: bytes) -> Caller:
    """For whom another node asks, which has let that one in. Raises WrongKey for what is no caller."""
    try:
        return msgspec.structs.replace(decode_json(told, Caller), key_id=None, trusted=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WrongKey(KEY_NEEDED_MESSAGE) from error


OWNER_CALLER = Caller("local", "admin", trusted=True)
"""A client that could read server.json, as only the server's own user can."""


def check_may_start(settings: Settings, data_dir: Path) -> None:
    """Raises InvalidInput when others could reach a server that nobody would need a key for."""
    way = exposure(settings)
    if way is None or settings.insecure_no_auth or Keyring(data_dir).usable:
        return
    raise InvalidInput(
        f"{way}, and there is no valid key to ask them for; make one with "
        f"`kgserve keys create --role admin --name NAME --data {data_dir}`, "
        "or let in everybody who reaches it with --insecure-no-auth"
    )


def exposure(settings: Settings) -> str | None:
    """How other machines reach this server, as the beginning of a sentence; None when they do not.

    A proxy on this machine is a local client: that there is one is told by settings that make no sense without.
    """
    if not is_loopback(settings.host):
        return f"{settings.host} can be reached from other machines"
    if settings.trusted_proxies.strip(" ,"):
        return f"{settings.host} can be reached from other machines through the proxies of --trusted-proxies"
    names = (name.strip() for name in settings.allowed_hosts.split(","))
    if elsewhere := [name for name in names if name and not is_loopback(name)]:
        return f"{settings.host} can be reached from other machines as {elsewhere[0]}, which --allowed-hosts names"
    return None


class Keyring:
    """The keys of a data folder, read anew whenever their file changes: one `stat` for each question (2 µs) tells."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = str(data_dir / KEY_FILE)
        self._read_state = _UNREAD_FILE_STATE
        self._keys: dict[str, Key] = {}
        self._callers: dict[str, Caller] = {}
        self.damaged = False

    @property
    def empty(self) -> bool:
        """Whether there has never been a key: revoked and expired ones count, a file that cannot be read counts."""
        self._refresh()
        return not (self._keys or self.damaged)

    @property
    def usable(self) -> bool:
        """Whether some key opens something now."""
        self._refresh()
        now = time.time_ns() // 1000
        return any(key.state(now) == "active" for key in self._keys.values())

    def caller(self, text: str) -> Caller | None:
        """Who comes with this key. None for what is none, and for unknown, revoked and expired ones, all alike."""
        self._refresh()
        given = parse(text)
        if given is None:
            return None
        key = self._keys.get(given.id, NO_KEY)
        right = key.matches(given.secret)
        return self._callers[key.id] if right and self._opens(key) else None

    def is_active(self, key_id: str) -> bool:
        """Whether the key of this id opens anything now."""
        self._refresh()
        key = self._keys.get(key_id)
        return key is not None and self._opens(key)

    @staticmethod
    def _opens(key: Key) -> bool:
        return key.state(time.time_ns() // 1000) == "active"

    def _refresh(self) -> None:
        state = self._file_state()
        if state != self._read_state:
            self._read_state = state
            self._read()

    def _file_state(self) -> _FileState:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a Path takes three times as long
        except FileNotFoundError:
            return None
        except OSError:
            return (0, 0, 0)
        # Of its times the one that cannot be set; it moves with the content, and with the permissions.
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _read(self) -> None:
        try:
            keys, self.damaged = read_keys(self._data_dir), False
        except KeysDamaged as error:
            keys, self.damaged = [], True
            log.error("keys_damaged", error=str(error), consequence="every key is refused")
        if keys or self._keys:
            log.info("keys_read", keys=len(keys))
        self._keys = {key.id: key for key in keys}
        self._callers = {key.id: key.caller for key in keys}


class BrowserKeys:
    """Keys that a server has made for pages, in memory alone: each ends after 12 hours, or with the key of its maker.

    There are 100 at most; one more ends the oldest.
    """

    def __init__(self, still_valid: Callable[[Caller], bool]) -> None:
        """``still_valid`` tells of a maker."""
        self._still_valid = still_valid
        self._keys: OrderedDict[str, tuple[Key, Caller]] = OrderedDict()

    def make(self, maker: Caller, role: Role) -> tuple[Caller, str]:
        """A key for the maker's stores; its text is nowhere else."""
        now = time.time_ns() // 1000
        key, text = mint(BROWSER_KEY_NAME, role, maker.stores, now, now + BROWSER_KEY_HOURS * 3_600_000_000)
        self._keys[key.id] = key, maker
        if len(self._keys) > MAX_BROWSER_KEYS:
            self._keys.popitem(last=False)
        return key.caller, text

    def caller(self, text: str) -> Caller | None:
        """Who comes with such a key; None for what is none, or none any more."""
        given = parse(text)
        if given is None or not self.is_active(given.id):
            return None
        key, _ = self._keys[given.id]
        return key.caller if key.matches(given.secret) else None

    def is_active(self, key_id: str) -> bool:
        """Whether the key of this id opens anything now."""
        found = self._keys.get(key_id)
        return found is not None and found[0].state(time.time_ns() // 1000) == "active" and self._still_valid(found[1])


class RequestContext:
    """One request: its id, who asks, from where, for what; and its entry in the audit log.

    Filled in on the way: the caller by the edge, act and store by `authorize`. ``hidden`` is the store that it named
    and that is none of the caller's. ``administers``: what it does is put on record.
    """

    def __init__(self, authenticator: Authenticator, audit: Audit, request_id: str, act: str, address: str) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self.request_id = request_id
        self.address = address
        self.caller: Caller = ANONYMOUS_CALLER
        self.act = act
        self.store: str | None = None
        self.hidden: str | None = None
        self.administers = False

    @property
    def asker(self) -> str:
        """A name that tells callers apart where they share something: the key, or else the address or network."""
        return self.caller.key_id or _network(self.address)

    @property
    def still_valid(self) -> bool:
        """Whether the caller would be let in still. What lasts asks now and then: a key may be revoked meanwhile."""
        return self._authenticator.still_valid(self.caller)

    def authorize(self, store: str | None, act: str | None = None, role: Role = "read") -> None:
        """Let the caller do ``act``, to the store that the path names, percent-encoded, if it names one.

        Raises Forbidden, and NotFound for a store that is not the caller's.
        """
        self.act, self.administers = act or self.act, role == "admin"
        self.store = None if store is None else unquote(store)
        self.caller.require(role)
        if self.store is not None:
            self.caller.require_store(self.store)

    def administer(self) -> None:
        """Let the caller do what only an administrator may, whatever else the act comes to. Raises Forbidden."""
        self.administers = True
        self.caller.require("admin")

    def browser_key(self, role: Role) -> tuple[Caller, str]:
        """A key for a page, and who comes with it. Raises Forbidden."""
        return self._authenticator.browser_key(self.caller, role)

    def denied(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Put a refusal on record."""
        self._audit.denied(act or self.act, outcome, **self._details(store))

    def administered(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Put an act of administration on record."""
        self._audit.administered(act or self.act, outcome, **self._details(store))

    def ended(self, status: int | None) -> None:
        """It was answered so, or not at all: put on record what belongs there."""
        if status in _DENIAL_STATUSES or self.hidden is not None:
            self.denied(str(status), store=self.hidden)
        elif self.administers and status != _NODE_REDIRECT_STATUS:
            if status is not None and status >= _MIN_FAILURE_STATUS:
                self._audit.failed(self.act, f"failed: {status}", **self._details(None))
            else:
                self.administered("cut off" if status is None else "done")

    def _details(self, store: str | None) -> dict[str, str | None]:
        return {
            "request": self.request_id,
            "caller": self.caller.name,
            "key": self.caller.key_id,
            "address": self.address,
            "store": store or self.store,
        }
