"""Who is to be told: the webhook of the settings, entry points that they name, and objects of a library's user."""

from __future__ import annotations

import hmac
import re
import ssl
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog

from kgserve.errors import InvalidInput, Unavailable
from kgserve.platform.http_client import Answer, ClientConnection
from kgserve.platform.settings import Settings
from kgserve.platform.version import __version__
from kgserve.syncing import BatchSyncer, OneByOne, SyncBatch, VectorSyncer

log = structlog.get_logger()

SINK_ENTRY_POINT_GROUP = "kgserve.vector_syncers"
WEBHOOK = "webhook"
_SINK_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

Syncer = VectorSyncer | BatchSyncer


def _nothing() -> None:
    """What closes those who have nothing to close, and those who are their owner's to close."""


class Plug(NamedTuple):
    """Who is told, by the ``name`` that its place in each journal is kept under; another ``target`` begins anew."""

    name: str
    syncer: BatchSyncer
    target: str = ""
    close: Callable[[], object] = _nothing


def plugs(settings: Settings, given: Mapping[str, Syncer] | None = None) -> list[Plug]:
    """All who are to be told. Raises InvalidInput for what cannot be."""
    named = dict.fromkeys(each.strip() for each in settings.syncers.split(",") if each.strip())
    for name in (*named, *(given or ())):
        if name == WEBHOOK or not _SINK_NAME_PATTERN.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot name a syncer: lower case, digits, _ and -, and not {WEBHOOK!r}")
    made = {name: _installed(name) for name in named}
    installed = [
        Plug(name, _batching(name, each), close=getattr(each, "close", _nothing)) for name, each in made.items()
    ]
    others = [Plug(name, _batching(name, each)) for name, each in (given or {}).items() if name not in made]
    return [*_webhook(settings), *installed, *others]


def _webhook(settings: Settings) -> list[Plug]:
    if not settings.webhook_url:
        return []
    if not settings.webhook_secret:
        raise InvalidInput("webhook_url asks for a secret to sign with: set KGSERVE_WEBHOOK_SECRET")
    webhook = Webhook(settings.webhook_url, settings.webhook_secret, settings.webhook_timeout)
    # Of the address, which may hold what is nobody else's business, only this is put down.
    return [Plug(WEBHOOK, webhook, sha256(settings.webhook_url.encode()).hexdigest()[:16], webhook.close)]


def _installed(name: str) -> Syncer:
    """What an installed package offers under a name: a class or a function that needs no arguments."""
    offered: dict[str, EntryPoint] = {each.name: each for each in entry_points(group=SINK_ENTRY_POINT_GROUP)}
    if name not in offered:
        there = ", ".join(sorted(offered)) or "none"
        raise InvalidInput(
            f"no installed package offers the syncer {name!r} as an entry point of {SINK_ENTRY_POINT_GROUP} ({there})"
        )
    try:
        return offered[name].load()()
    except Exception as error:
        log.exception("syncer_not_made", syncer=name)
        raise InvalidInput(f"the syncer {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _batching(name: str, syncer: Syncer) -> BatchSyncer:
    if isinstance(syncer, BatchSyncer):
        return syncer
    if isinstance(syncer, VectorSyncer):  # pyright: ignore[reportUnnecessaryIsInstance] - others give it
        return OneByOne(syncer)
    raise InvalidInput(f"the syncer {name!r} has neither `sync` nor `add_content` and `delete_content`")


TIMESTAMP_HEADER = "Kgserve-Timestamp"
SIGNATURE_HEADER = "Kgserve-Signature"
SIGNATURE_VERSION = "v1"
WEBHOOK_CONNECT_TIMEOUT_SECONDS = 5.0
_WEBHOOK_STOP_POLL_SECONDS = 0.1
_MAX_WEBHOOK_RESPONSE_BYTES = 1 << 16
"""A longer answer is not read, and its connection not used again."""

_encode = msgspec.json.Encoder().encode


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """What the header `Kgserve-Signature` says."""
    digest = hmac.digest(secret.encode(), b"%d." % timestamp + body, "sha256")
    return f"{SIGNATURE_VERSION}={digest.hex()}"


class Webhook:
    """Posts to one address, over one connection, one batch a request; any status from 200 to 299 takes it.

    For one thread. Nothing that the receiver says is read further than its status, or told or logged.
    """

    def __init__(self, url: str, secret: str, seconds: float) -> None:
        """A request may take so many ``seconds`` in all. Raises InvalidInput for an address that is none."""
        self._origin, self._path, self.host = _address(url)
        self._secret = secret
        self._seconds = seconds
        self._connection: ClientConnection | None = None

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """Post a batch. Raises Unavailable where it was not taken, and InterruptedError once it is unwanted."""
        body, now = _encode(batch), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"kgserve/{__version__}",
            TIMESTAMP_HEADER: str(now),
            SIGNATURE_HEADER: signature(self._secret, now, body),
        }
        deadline = time.monotonic() + self._seconds

        def patience() -> float:
            if unwanted():
                raise InterruptedError
            if (left := deadline - time.monotonic()) <= 0:
                raise Unavailable(f"the webhook at {self.host} did not answer within {self._seconds:g} s", 5)
            return min(left, _WEBHOOK_STOP_POLL_SECONDS)

        status = self._posted(headers, body, patience)
        if not 200 <= status < 300:  # noqa: PLR2004
            raise Unavailable(f"the webhook at {self.host} answers with status {status}", 5)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _posted(self, headers: dict[str, str], body: bytes, patience: Callable[[], float]) -> int:
        """The status that a post is answered with."""
        whole = False
        try:
            connection = self._open()
            connection.on_silence = patience
            answer = connection.request("POST", self._path, headers, body)
            if _is_short(answer):
                connection.body()
                whole = connection.ends()
            return answer.status
        except InterruptedError:
            raise
        except OSError as error:
            told = error.strerror or str(error) or type(error).__name__
            raise Unavailable(f"the webhook at {self.host} cannot be reached: {told}", 5) from error
        finally:
            if not whole:
                self.close()

    def _open(self) -> ClientConnection:
        if self._connection is not None and not self._connection.is_idle:
            self.close()
        if self._connection is None:
            timeout = min(WEBHOOK_CONNECT_TIMEOUT_SECONDS, self._seconds)
            self._connection = ClientConnection(self._origin, timeout, ssl.create_default_context)
        return self._connection


def _is_short(answer: Answer) -> bool:
    length = answer.headers.get("content-length", "")
    return answer.status == 204 or (length.isdecimal() and int(length) <= _MAX_WEBHOOK_RESPONSE_BYTES)  # noqa: PLR2004


def _address(url: str) -> tuple[str, str, str]:
    """Origin, path with query, and host of an address. Raises InvalidInput."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise InvalidInput(f"webhook_url is not an address: {error}") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain:
        raise InvalidInput("webhook_url must be an address, such as https://host/path")
    if "@" in parts.netloc:
        raise InvalidInput("webhook_url holds a name or password; who posts is told by the signature")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", path, f"{parts.hostname}{port}"
