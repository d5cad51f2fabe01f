"""Who a request comes from, whether its caller may do what it asks for, and the record of refusals.

`Authenticator` is the policy of one server: its address, its keys, and what a request brings along. `RequestContext`
goes with each request. `Audit` writes audit.log of a data folder, one JSON object per line: who was refused what, and
every act of administration.

An attacker must be able neither to fill the disk with refusals nor to drown one's own among others': of each address
(of IPv6, each network of 64 bits) and key the first ten in a minute are written, then only their number when the minute
is over. So it is with acts of administration that fail; those that are done are all written.
"""

from __future__ import annotations

import hmac
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import msgspec
import structlog

from kgserve.access.caller import CALLER_HEADER, LOCAL, NOBODY, Caller, Role
from kgserve.access.keys import KEY_FILE, MARK, NO_KEY, Key, KeysDamaged, mint, parse, read_keys
from kgserve.decoding import convert, decode_json
from kgserve.errors import InvalidInput, Unauthenticated
from kgserve.model.audit import AuditRecord
from kgserve.model.hosts import is_loopback, network_of
from kgserve.model.times import format_time
from kgserve.settings import Settings

log = structlog.get_logger()

PUBLIC = frozenset({"/", "/health", "/ready", "/docs", "/docs/docs.css", "/docs/docs.js"})
"""Paths that need no key: whoever watches over the process has none, and a browser sends none for a page.

A page is the same for everybody; what it shows comes from the API, for which it asks for a key.
"""
PAGE_FILES = "/explorer/"
"""Below it are the files of the page at ``/``, which need none either."""

REFUSAL = (
    "a valid key is needed, sent as `Authorization: Bearer kgs_…`; kgserve's commands and clients take it as --key, "
    "key=… or KGSERVE_KEY, and `kgserve keys create` makes one on the server's machine"
)
IN_QUERY = "a key does not belong in the query, where logs and histories keep it: send `Authorization: Bearer kgs_…`"

ASKED_EVERY_SECONDS = 2.0
"""What lasts, and says nothing meanwhile, asks so often whether its key is still valid."""

_NAMES = rb"(?:api[_-]?)?key|(?:access[_-]?)?token|authorization"
_IN_QUERY = re.compile(rb"(?i)(?:^|[&;])(?:" + _NAMES + rb")(?:=|%3d)|kgs_[a-z0-9]{8}_")

BROWSER = "browser"
"""The name of keys that are made for pages."""
BROWSER_HOURS = 12
MAX_BROWSER_KEYS = 100

AUDIT_FILE = "audit.log"
MAX_BYTES = 10 << 20
KEPT = 5
"""Older files, audit.log.1 to audit.log.5."""

WINDOW = 60.0
EACH = 10
EVERYBODY = 600
"""Refusals written within a window: of one address and key, and of all of them together."""
_SOURCES = 1_024
_LONGEST = 200

_FileState = tuple[int, int, int] | None
_UNREAD: _FileState = (-1, -1, -1)
_network = lru_cache(maxsize=1024)(network_of)
_SHOWN = re.compile(r"(kgs_[a-z0-9]{8})_[A-Za-z0-9_-]+")
_DENIALS = frozenset({401, 403, 421})
_FAILED = 400
_SENT_ON = 307
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
            return LOCAL
        if path in PUBLIC or path.startswith(PAGE_FILES):
            return NOBODY
        if query and _IN_QUERY.search(query):
            raise Unauthenticated(IN_QUERY)
        if not given:
            raise Unauthenticated(REFUSAL)
        found = self._known(given[0]) if len(given) == 1 else None
        if found is None:
            raise WrongKey(REFUSAL)
        asked_for = next((value for name, value in headers if name == CALLER_HEADER.encode()), None)
        return found if asked_for is None or found is not OWNER else _in_the_name_of(asked_for)

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
            return OWNER
        text = given.decode("latin-1")
        return self._keyring.caller(text) or self._browsers.caller(text)


def _in_the_name_of(told: bytes) -> Caller:
    """For whom another node asks, which has let that one in. Raises WrongKey for what is no caller."""
    try:
        return msgspec.structs.replace(decode_json(told, Caller), key_id=None, trusted=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WrongKey(REFUSAL) from error


OWNER = Caller("local", "admin", trusted=True)
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
        self._read_state = _UNREAD
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
        key, text = mint(BROWSER, role, maker.stores, now, now + BROWSER_HOURS * 3_600_000_000)
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
        self.caller: Caller = NOBODY
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
        if status in _DENIALS or self.hidden is not None:
            self.denied(str(status), store=self.hidden)
        elif self.administers and status != _SENT_ON:
            if status is not None and status >= _FAILED:
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


class _Source:
    """The refusals of one address and key within the present window."""

    def __init__(self, last: AuditRecord) -> None:
        self.seen = 0
        self.left_out = 0
        self.last = last


class Audit:
    """Writes the log. For any thread. What cannot be written is an error in the server's log, and holds nothing up.

    Only who holds the data folder's lock may turn the file over (``rotating``): two could turn it over at once.
    """

    def __init__(self, data_dir: Path, *, rotating: bool = True) -> None:
        self._path = data_dir / AUDIT_FILE
        self._rotating = rotating
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, str | None], _Source] = OrderedDict()
        self._window_ends = 0.0
        self._written = 0

    def administered(self, act: str, outcome: str, **details: str | None) -> None:
        """An act of administration, with its outcome. ``details`` are fields of `AuditRecord`."""
        with self._lock:
            self._write([_record("admin", act, outcome, details)])

    def denied(self, act: str, outcome: str, **details: str | None) -> None:
        """A refusal. Bounded, see above."""
        self._bounded(_record("denied", act, outcome, details))

    def failed(self, act: str, outcome: str, **details: str | None) -> None:
        """An act of administration that came to nothing: bounded like a refusal, or it would be as good for a flood."""
        self._bounded(_record("admin", act, outcome, details))

    def _bounded(self, record: AuditRecord) -> None:
        with self._lock:
            lines = self._summaries() if time.monotonic() >= self._window_ends else []
            source = self._source(record, lines)
            source.seen, source.last = source.seen + 1, record
            if source.seen <= EACH and self._written < EVERYBODY:
                self._written += 1
                lines.append(record)
            else:
                source.left_out += 1
            self._write(lines)

    def close(self) -> None:
        """Write down the numbers of the present window."""
        with self._lock:
            self._write(self._summaries())

    def _source(self, record: AuditRecord, lines: list[AuditRecord]) -> _Source:
        name = (network_of(record.address), record.key)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _Source(record)
            if len(self._sources) > _SOURCES:
                _, oldest = self._sources.popitem(last=False)
                if self._written < EVERYBODY:
                    self._written += 1
                    lines += _summary(oldest)
        return source

    def _summaries(self) -> list[AuditRecord]:
        lines = [line for source in self._sources.values() for line in _summary(source)]
        self._sources.clear()
        self._written, self._window_ends = 0, time.monotonic() + WINDOW
        return lines

    def _write(self, records: list[AuditRecord]) -> None:
        if not records:
            return
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            if self._rotating:
                self._turn_over(len(text))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.exception("audit_not_written", error=str(error), lines=len(records))

    def _turn_over(self, coming: int) -> None:
        try:
            if self._path.stat().st_size + coming <= MAX_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(KEPT, 0, -1):
            older = self._path.with_name(f"{AUDIT_FILE}.{number - 1}") if number > 1 else self._path
            if older.exists():
                older.replace(self._path.with_name(f"{AUDIT_FILE}.{number}"))


def _record(kind: str, act: str, outcome: str, details: dict[str, str | None]) -> AuditRecord:
    given = {"act": act, "outcome": outcome, **details}
    clean = {name: masked(text)[:_LONGEST] for name, text in given.items() if text is not None}
    return convert({"time": format_time(time.time_ns() // 1000), "kind": kind, **clean}, AuditRecord)


def _summary(source: _Source) -> list[AuditRecord]:
    if not source.left_out:
        return []
    return [msgspec.structs.replace(source.last, act="more of the same", store=None, request="", times=source.left_out)]


def masked(text: str) -> str:
    """A text in which of every key only the prefix is left, fit for a log."""
    return _SHOWN.sub(r"\1_…", text) if MARK in text else text
