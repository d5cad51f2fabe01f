"""Authentication and authorization of requests.

`Caller` is an authenticated client. API keys are shown once; a `ApiKey` is the part that is stored in keys.json of a
data folder. The server reads that file and the command line changes it, whether or not a server runs. `Authenticator`
is the policy of one server. `RequestContext` accompanies each request.
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
import xxhash

from kgserve.errors import Conflict, Forbidden, InvalidInput, KgserveError, NoStore, NotFound, Unauthenticated
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import sync_descriptor
from kgserve.platform.network_addresses import is_loopback, network_counted_as_one_client
from kgserve.platform.settings import Settings

Role = Literal["read", "write", "admin"]

_SCOPE_RANKS: dict[Role, int] = {"read": 0, "write": 1, "admin": 2}
ALL_STORES_PATTERN = "*"
CALLER_HEADER = "kgserve-caller"
"""Header in which a cluster node names the caller it forwards for; only trusted with the receiving node's token."""


class AuthenticatedCaller(msgspec.Struct, frozen=True):
    """An authenticated client. ``stores`` are names, or name prefixes that end with ``*``.

    ``key_id`` is None for callers without a key: local clients, and all clients of a loopback address without keys.
    ``trusted`` means that it sent the token of server.json. ``expires_at`` is the end of its key, in microseconds.
    """

    name: str
    role: Role
    stores: tuple[str, ...] = (ALL_STORES_PATTERN,)
    key_id: str | None = None
    trusted: bool = False
    expires_at: int | None = None

    @property
    def can_access_all(self) -> bool:
        """True if the caller may access every store."""
        return ALL_STORES_PATTERN in self.stores

    def has_role(self, role: Role) -> bool:
        """Return whether the caller's role includes ``role``; admin includes write, write includes read."""
        return _SCOPE_RANKS[self.role] >= _SCOPE_RANKS[role]

    def can_access(self, store: str) -> bool:
        """Return whether the caller may access a store of this name, existing or not."""
        return self.can_access_all or any(
            store.startswith(pattern[:-1]) if pattern.endswith("*") else store == pattern for pattern in self.stores
        )

    def require(self, role: Role) -> None:
        """Raise Forbidden unless the caller's role includes ``role``."""
        if not self.has_role(role):
            raise Forbidden(f"this needs the role {role}; the key {self.name!r} has the role {self.role}")

    def require_every_store(self, act: str) -> None:
        """Raise Forbidden unless the caller may access every store. ``act`` begins the message."""
        if not self.can_access_all:
            raise Forbidden(f"{act} needs a key for all stores; the key {self.name!r} is limited to some stores")

    def require_store(self, store: str) -> None:
        """Raise HiddenStore, a NoStore, if the caller may not access a store.

        The message is the same as for a missing store.
        """
        if not self.can_access(store):
            raise HiddenStore(store)


class HiddenStore(NoStore):
    """A store that the caller may not access. It looks missing to the caller and is recorded as a denial."""


LOCAL_CALLER = AuthenticatedCaller("local", "admin")
"""Caller of a server that requires no keys."""

ANONYMOUS_CALLER = AuthenticatedCaller("nobody", "read", ())
"""Caller of public paths without a key."""


KEY_FILE = "keys.json"
KEYS_LOCK_FILE = "keys.lock"
KEYS_FORMAT = 2
_UNCHECKED_KEYS_FORMAT = 1
"""Format of files without a checksum."""
MAX_API_KEYS = 10_000

API_KEY_PREFIX = "kgs_"
KEY_ID_CHARS = 8
API_KEY_SECRET_BYTES = 32
MAX_KEY_NAME_CHARS = 64
MAX_STORE_PATTERNS = 64
SECOND_MICROSECONDS = 1_000_000

_KEY_ID_ALPHABET = string.ascii_lowercase + string.digits
_API_KEY_PATTERN = re.compile(r"kgs_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_STORE_PATTERN_PATTERN = re.compile(r"(?=.{1,64}\*?$)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*(?:\.?\*)?|\*")
_KEY_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._@-]{0,62}[A-Za-z0-9])?")
_VALIDITY_PATTERN = re.compile(r"([1-9][0-9]{0,4})([hdwy])")
_VALIDITY_UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored part of an API key. Times are in microseconds since 1970; ``salt`` and ``hash`` are hexadecimal."""

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
        """Return "active", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at is None or now < self.expires_at else "expired"

    def matches(self, secret: str) -> bool:
        """Return whether this is the key's secret, in constant time."""
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)

    @property
    def caller(self) -> AuthenticatedCaller:
        """Caller that the key authenticates."""
        return AuthenticatedCaller(self.name, self.role, self.stores, self.id, expires_at=self.expires_at)


class ApiKeyParts(NamedTuple):
    """The two parts of an API key as sent by a client."""

    id: str
    secret: str


def create_api_key(
    name: str, role: Role, stores: Iterable[str], now: int, expires_at: int | None = None
) -> tuple[ApiKey, str]:
    """Create a key, and return it with its text, which is not stored.

    Raises InvalidInput for an invalid name or pattern.
    """
    identity = "".join(secrets.choice(_KEY_ID_ALPHABET) for _ in range(KEY_ID_CHARS))
    secret, salt, prefix = (
        secrets.token_urlsafe(API_KEY_SECRET_BYTES),
        secrets.token_hex(16),
        f"{API_KEY_PREFIX}{identity}",
    )
    patterns = validate_store_patterns(stores)
    key = ApiKey(
        id=identity,
        name=validate_api_key_name(name),
        role=role,
        stores=patterns,
        created_at=now,
        salt=salt,
        hash=_hash(salt, secret),
        prefix=prefix,
        expires_at=expires_at,
    )
    return key, f"{prefix}_{secret}"


def parse_api_key(text: str) -> ApiKeyParts | None:
    """Return the parts of an API key, or None if the text is not one."""
    found = _API_KEY_PATTERN.fullmatch(text)
    return ApiKeyParts(found[1], found[2]) if found else None


def validate_api_key_name(name: str) -> str:
    """Return a key name. Raises InvalidInput if it is not valid."""
    if not _KEY_NAME_PATTERN.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a valid key name; use up to {MAX_KEY_NAME_CHARS} letters, digits, spaces "
            "and . _ @ -, with a letter or digit at both ends"
        )
    return name


def validate_store_patterns(stores: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns without duplicates. Raises InvalidInput naming a pattern that can match no store."""
    patterns = tuple(dict.fromkeys(stores))
    for pattern in patterns:
        if not _STORE_PATTERN_PATTERN.fullmatch(pattern):
            raise InvalidInput(
                f"{pattern[:80]!r} is not a valid store pattern; use a name, a prefix such as team-*, or * for all"
            )
    if not 1 <= len(patterns) <= MAX_STORE_PATTERNS:
        raise InvalidInput(f"a key needs 1 to {MAX_STORE_PATTERNS} store names or prefixes, not {len(patterns)}")
    return (ALL_STORES_PATTERN,) if ALL_STORES_PATTERN in patterns else patterns


def parse_api_key_lifetime(text: str) -> int:
    """Return the microseconds of a duration such as 12h, 30d, 6w or 1y. Raises InvalidInput."""
    found = _VALIDITY_PATTERN.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _VALIDITY_UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= 100 * _VALIDITY_UNIT_SECONDS["y"]:
        raise InvalidInput(f"{text[:80]!r} is not a duration of up to 100 years; use a form such as 12h, 30d, 6w or 1y")
    return seconds * SECOND_MICROSECONDS


def _hash(salt: str, secret: str) -> str:
    """Hash a secret. A fast hash suffices for 256 random bits, and keeps requests with wrong keys cheap."""
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()


DUMMY_API_KEY = ApiKey("00000000", "nobody", "read", (), 0, "00" * 16, "00" * 32, "")
"""Key compared with if the id is unknown, so that this takes the same time. Its secret is not known."""


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    keys: list[ApiKey]
    checksum: str | None = None


class KeyFileDamaged(KgserveError):
    """keys.json exists but cannot be read. Every key is rejected, and the file is not overwritten."""

    code = "conflict"


def read_api_keys(data_dir: Path) -> list[ApiKey]:
    """Return the keys of a data folder, oldest first; an empty list if it has no file. Raises KeyFileDamaged."""
    path = data_dir / KEY_FILE
    try:
        return _decoded(path.read_bytes())
    except FileNotFoundError as error:
        if not path.is_symlink():
            return []
        raise KeyFileDamaged(
            f"{path} is a broken link; restore its target, or remove it and create new keys"
        ) from error
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise KeyFileDamaged(
            f"{path} cannot be read ({error}); restore an intact copy, or remove it and create new keys"
        ) from error


def add_api_key(data_dir: Path, key: ApiKey) -> None:
    """Store a new key. Raises KeyFileDamaged, and Conflict if an active key has the same name."""
    with _editing_keys(data_dir) as keys:
        for other in keys:
            if other.name == key.name and other.state(key.created_at) == "active":
                raise Conflict(f"an active key named {key.name!r} exists; revoke it first, or choose another name")
        if len(keys) >= MAX_API_KEYS:
            raise Conflict(f"the limit of {MAX_API_KEYS:,} keys is reached, including revoked ones")
        keys.append(key)


def revoke_api_key(data_dir: Path, id_or_name: str, now: int) -> ApiKey:
    """Revoke a key permanently, and return it as stored.

    Raises NotFound, KeyFileDamaged, and Conflict if it is already revoked or the name is ambiguous.
    """
    with _editing_keys(data_dir) as keys:
        place = _index_of(keys, id_or_name, now)
        keys[place] = msgspec.structs.replace(keys[place], revoked_at=now)
        return keys[place]


def merge_api_keys_of_cluster_nodes(data_dir: Path, others: Iterable[ApiKey]) -> list[ApiKey]:
    """Merge keys of other nodes into the stored ones, and return all keys. Revocations are kept.

    Raises KeyFileDamaged.
    """
    with _editing_keys(data_dir) as keys:
        known = {key.id: key for key in keys}
        for other in others:
            stored = known.get(other.id, other)
            revoked = [each.revoked_at for each in (stored, other) if each.revoked_at is not None]
            known[other.id] = msgspec.structs.replace(stored, revoked_at=min(revoked, default=None))
        keys[:] = sorted(known.values(), key=lambda key: key.created_at)
        return keys


def _index_of(keys: list[ApiKey], wanted: str, now: int) -> int:
    found = [place for place, key in enumerate(keys) if wanted in {key.id, key.prefix, key.name}]
    if not found:
        raise NotFound(f"no key {wanted[:80]!r} exists; `kgserve keys list` shows all keys")
    usable = [place for place in found if keys[place].revoked_at is None]
    if not usable:
        raise Conflict(f"the key {wanted!r} is already revoked")
    active = [place for place in usable if keys[place].state(now) == "active"]
    if len(active or usable) > 1:
        ids = ", ".join(keys[place].id for place in usable)
        raise Conflict(f"several keys are named {wanted!r}; use one of the ids {ids}")
    return (active or usable)[0]


@contextmanager
def _editing_keys(data_dir: Path) -> Generator[list[ApiKey]]:
    """Yield the keys for changes in place, and write any if the block succeeds; one process at a time."""
    if not data_dir.is_dir():
        raise InvalidInput(f"{data_dir} is not a data folder; `kgserve serve --data {data_dir}` creates one")
    descriptor = os.open(data_dir / KEYS_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        keys = read_api_keys(data_dir)
        before = [*keys]
        yield keys
        if keys != before:
            _write(data_dir, keys)
    finally:
        os.close(descriptor)


def _write(data_dir: Path, keys: list[ApiKey]) -> None:
    """Replace the file atomically, so that readers never see a partial list."""
    fresh = data_dir / f".keys-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            content = _KeyFile(KEYS_FORMAT, keys, _checksum(keys))
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
            file.flush()
            sync_descriptor(file.fileno())
        fresh.replace(data_dir / KEY_FILE)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(data_dir, os.O_RDONLY)
    try:
        sync_descriptor(folder)
    finally:
        os.close(folder)


def _decoded(text: bytes) -> list[ApiKey]:
    content = decode_json(text, _KeyFile)
    if content.format not in {KEYS_FORMAT, _UNCHECKED_KEYS_FORMAT}:
        raise ValueError(f"its format is {content.format}, but this version of kgserve supports {KEYS_FORMAT}")
    expected = _checksum(content.keys) if content.format == KEYS_FORMAT else None
    if content.checksum != expected:
        raise ValueError("its checksum does not match its keys")
    return content.keys


def _checksum(keys: list[ApiKey]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(keys))


log = structlog.get_logger()

PUBLIC_PATHS = frozenset(
    {"/", "/health", "/ready", "/docs"}
    | {f"/docs/{name}" for name in ("docs.css", "docs.js", "swagger-ui.css", "swagger-ui.js")}
)
"""Paths that need no key: health checks and pages, for which monitors and browsers send none.

Pages are the same for every caller. Their data comes from the API, which requires a key.
"""
PAGE_FILES_PATH = "/explorer/"
"""Path prefix of the explorer's static files, which are public as well."""

KEY_NEEDED_MESSAGE = (
    "a valid key is needed, sent as `Authorization: Bearer kgs_…`; kgserve's commands and clients take it as --key, "
    "key=… or KGSERVE_KEY, and `kgserve keys create` creates one on the server's machine"
)
KEY_IN_QUERY_MESSAGE = (
    "a key must not be sent in the query, where logs and browser histories keep it; send `Authorization: Bearer kgs_…`"
)

KEY_RECHECK_SECONDS = 2.0
"""Interval at which idle long-lived connections check whether their key is still valid."""

_KEY_PARAMETERS_PATTERN = rb"(?:api[_-]?)?key|(?:access[_-]?)?token|authorization"
_KEY_IN_QUERY_PATTERN = re.compile(rb"(?i)(?:^|[&;])(?:" + _KEY_PARAMETERS_PATTERN + rb")(?:=|%3d)|kgs_[a-z0-9]{8}_")

BROWSER_KEY_NAME = "browser"
"""Name of keys created for pages."""
BROWSER_KEY_HOURS = 12
MAX_BROWSER_KEYS = 100

_FileState = tuple[int, int, int] | None
_UNREAD_FILE_STATE: _FileState = (-1, -1, -1)
_network = lru_cache(maxsize=1024)(network_counted_as_one_client)
_DENIAL_STATUSES = frozenset({401, 403, 421})
_MIN_FAILURE_STATUS = 400
_NODE_REDIRECT_STATUS = 307
"""Status of requests redirected to another cluster node, which records them in its own audit log."""


class InvalidCredentials(Unauthenticated):
    """The credentials sent are not valid.

    Looks like missing credentials to the caller; repeated attempts are throttled.
    """


class Authenticator:
    """Authenticates the callers of one server. A client that sends ``token`` from server.json is trusted fully."""

    def __init__(self, settings: Settings, keyring: ApiKeyFileCache, token: str | None = None) -> None:
        self._keyring = keyring
        self._open_at_first = not describe_network_exposure(settings) or settings.insecure_no_auth
        self._token = token.encode() if token else None
        self._browsers = BrowserSessionKeys(self.still_valid)

    @property
    def required(self) -> bool:
        """True if a key is required: when any key exists, or other machines can reach the server."""
        return not self._open_at_first or not self._keyring.empty

    def authenticate(self, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> AuthenticatedCaller:
        """Return the caller. Raises Unauthenticated, with the same message for every invalid key."""
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
            raise InvalidCredentials(KEY_NEEDED_MESSAGE)
        asked_for = next((value for name, value in headers if name == CALLER_HEADER.encode()), None)
        return found if asked_for is None or found is not OWNER_CALLER else _forwarded_caller(asked_for)

    def still_valid(self, caller: AuthenticatedCaller) -> bool:
        """Return whether a caller would still be admitted; long-lived streams check this repeatedly."""
        if caller.key_id is not None:
            return self._keyring.is_active(caller.key_id) or self._browsers.is_active(caller.key_id)
        return caller.trusted or not self.required

    def browser_key(self, maker: AuthenticatedCaller, role: Role) -> tuple[AuthenticatedCaller, str]:
        """Create a key for a page, and return its caller and text. Raises Forbidden if the role exceeds the maker's."""
        maker.require(role)
        return self._browsers.make(maker, role)

    def _known(self, header: bytes) -> AuthenticatedCaller | None:
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer":
            return None
        if self._token is not None and hmac.compare_digest(given, self._token):
            return OWNER_CALLER
        text = given.decode("latin-1")
        return self._keyring.caller(text) or self._browsers.caller(text)


def _forwarded_caller(header: bytes) -> AuthenticatedCaller:
    """Return the caller for whom another node forwards a request. Raises InvalidCredentials."""
    try:
        return msgspec.structs.replace(decode_json(header, AuthenticatedCaller), key_id=None, trusted=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidCredentials(KEY_NEEDED_MESSAGE) from error


OWNER_CALLER = AuthenticatedCaller("local", "admin", trusted=True)
"""Client that has read server.json, which only the server's own user can."""


def require_api_key_if_exposed(settings: Settings, data_dir: Path) -> None:
    """Raise InvalidInput if other machines could use the server without a key."""
    way = describe_network_exposure(settings)
    if way is None or settings.insecure_no_auth or ApiKeyFileCache(data_dir).has_active_key:
        return
    raise InvalidInput(
        f"{way}, but no valid key exists; create one with "
        f"`kgserve keys create --role admin --name NAME --data {data_dir}`, "
        "or allow access without a key with --insecure-no-auth"
    )


def describe_network_exposure(settings: Settings) -> str | None:
    """Return how other machines can reach this server, as the beginning of a sentence; None if they cannot.

    A proxy on this machine is a local client, so it is detected by the settings that only make sense with one.
    """
    if not is_loopback(settings.host):
        return f"{settings.host} can be reached from other machines"
    if settings.trusted_proxies.strip(" ,"):
        return f"{settings.host} can be reached from other machines through the proxies of --trusted-proxies"
    names = (name.strip() for name in settings.allowed_hosts.split(","))
    if elsewhere := [name for name in names if name and not is_loopback(name)]:
        return f"{settings.host} can be reached from other machines as {elsewhere[0]}, which --allowed-hosts names"
    return None


class ApiKeyFileCache:
    """The keys of a data folder, reloaded when their file changes. Each lookup costs one `stat`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = str(data_dir / KEY_FILE)
        self._read_state = _UNREAD_FILE_STATE
        self._keys: dict[str, ApiKey] = {}
        self._callers: dict[str, AuthenticatedCaller] = {}
        self.damaged = False

    @property
    def empty(self) -> bool:
        """True if no key was ever created. Revoked and expired keys count as keys, and so does an unreadable file."""
        self._refresh()
        return not (self._keys or self.damaged)

    @property
    def has_active_key(self) -> bool:
        """True if any key is active."""
        self._refresh()
        now = time.time_ns() // 1000
        return any(key.state(now) == "active" for key in self._keys.values())

    def caller(self, text: str) -> AuthenticatedCaller | None:
        """Return the caller of this key, or None if it is malformed, unknown, revoked or expired."""
        self._refresh()
        given = parse_api_key(text)
        if given is None:
            return None
        key = self._keys.get(given.id, DUMMY_API_KEY)
        right = key.matches(given.secret)
        return self._callers[key.id] if right and self._opens(key) else None

    def is_active(self, key_id: str) -> bool:
        """Return whether the key with this id is active."""
        self._refresh()
        key = self._keys.get(key_id)
        return key is not None and self._opens(key)

    @staticmethod
    def _opens(key: ApiKey) -> bool:
        return key.state(time.time_ns() // 1000) == "active"

    def _refresh(self) -> None:
        state = self._file_state()
        if state != self._read_state:
            self._read_state = state
            self._read()

    def _file_state(self) -> _FileState:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - three times as fast as Path.stat
        except FileNotFoundError:
            return None
        except OSError:
            return (0, 0, 0)
        # The change time cannot be set by programs, and changes with content and permissions.
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _read(self) -> None:
        try:
            keys, self.damaged = read_api_keys(self._data_dir), False
        except KeyFileDamaged as error:
            keys, self.damaged = [], True
            log.error("keys_damaged", error=str(error), consequence="every key is refused")
        if keys or self._keys:
            log.info("keys_read", keys=len(keys))
        self._keys = {key.id: key for key in keys}
        self._callers = {key.id: key.caller for key in keys}


class BrowserSessionKeys:
    """In-memory keys that the server creates for pages. Each expires after 12 hours, or with its maker's key.

    At most 100 exist; a new one replaces the oldest.
    """

    def __init__(self, still_valid: Callable[[AuthenticatedCaller], bool]) -> None:
        """Create an empty set. ``still_valid`` returns whether the maker of a key would still be admitted."""
        self._still_valid = still_valid
        self._keys: OrderedDict[str, tuple[ApiKey, AuthenticatedCaller]] = OrderedDict()

    def make(self, maker: AuthenticatedCaller, role: Role) -> tuple[AuthenticatedCaller, str]:
        """Create a key for the maker's stores, and return its caller and text, which is not stored."""
        now = time.time_ns() // 1000
        ends = now + BROWSER_KEY_HOURS * 3_600_000_000
        if maker.expires_at is not None:
            ends = min(ends, maker.expires_at)
        key, text = create_api_key(BROWSER_KEY_NAME, role, maker.stores, now, ends)
        self._keys[key.id] = key, maker
        if len(self._keys) > MAX_BROWSER_KEYS:
            self._keys.popitem(last=False)
        return key.caller, text

    def caller(self, text: str) -> AuthenticatedCaller | None:
        """Return the caller of such a key, or None if it is unknown or no longer active."""
        given = parse_api_key(text)
        if given is None or not self.is_active(given.id):
            return None
        key, _ = self._keys[given.id]
        return key.caller if key.matches(given.secret) else None

    def is_active(self, key_id: str) -> bool:
        """Return whether the key with this id is active."""
        found = self._keys.get(key_id)
        return found is not None and found[0].state(time.time_ns() // 1000) == "active" and self._still_valid(found[1])


class RequestContext:
    """One request: its id, caller, address, action and store, and its entry in the audit log.

    The caller is set during authentication, action and store by `authorize`. ``hidden`` is a named store that the
    caller may not access. ``administers`` is True if the request is recorded in the audit log. ``is_use`` is True if it
    keeps the server from being idle.
    """

    def __init__(self, authenticator: Authenticator, audit: AuditLog, request_id: str, act: str, address: str) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self.request_id = request_id
        self.address = address
        self.caller: AuthenticatedCaller = ANONYMOUS_CALLER
        self.act = act
        self.store: str | None = None
        self.hidden: str | None = None
        self.administers = False
        self.is_use = False

    @property
    def accounting_name(self) -> str:
        """Name by which shared resources are accounted: the key id, or else the address or network."""
        return self.caller.key_id or _network(self.address)

    @property
    def still_valid(self) -> bool:
        """True if the caller would still be admitted; long-lived requests check this, since keys may be revoked."""
        return self._authenticator.still_valid(self.caller)

    def authorize(self, store: str | None, act: str | None = None, role: Role = "read") -> None:
        """Check that the caller may do ``act`` to a store, given as percent-encoded path segment, if any.

        Raises Forbidden, and NotFound for a store that the caller may not access.
        """
        self.act, self.administers = act or self.act, role == "admin"
        self.store = unquote(store) if store is not None and "%" in store else store
        self.caller.require(role)
        if self.store is not None:
            self.caller.require_store(self.store)

    def require_admin(self) -> None:
        """Require the admin role, whatever else the action involves. Raises Forbidden."""
        self.administers = True
        self.caller.require("admin")

    def browser_key(self, role: Role) -> tuple[AuthenticatedCaller, str]:
        """Create a key for a page, and return its caller and text. Raises Forbidden."""
        return self._authenticator.browser_key(self.caller, role)

    def record_refusal(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Record a refusal in the audit log."""
        self._audit.record_refusal(act or self.act, outcome, **self._details(store))

    def record_admin_action(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Record an administrative action in the audit log."""
        self._audit.record_admin_action(act or self.act, outcome, **self._details(store))

    def ended(self, status: int | None) -> None:
        """Record the outcome of the request where required. ``status`` is None if no response was sent."""
        if status in _DENIAL_STATUSES or self.hidden is not None:
            self.record_refusal(str(status), store=self.hidden)
        elif self.administers and status != _NODE_REDIRECT_STATUS:
            if status is not None and status >= _MIN_FAILURE_STATUS:
                self._audit.record_failed_action(self.act, f"failed: {status}", **self._details(None))
            else:
                self.record_admin_action("cut off" if status is None else "done")

    def _details(self, store: str | None) -> dict[str, str | None]:
        return {
            "request": self.request_id,
            "caller": self.caller.name,
            "key": self.caller.key_id,
            "address": self.address,
            "store": store or self.store,
        }
