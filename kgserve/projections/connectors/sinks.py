"""Configured sinks: the webhook from the settings, entry points named there, and objects passed by library users."""

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
from kgserve.platform.http_client import HttpResponseHead, OutboundHttpConnection
from kgserve.platform.settings import Settings
from kgserve.platform.version import __version__
from kgserve.syncing import BatchSyncer, SyncBatch, VectorSyncer, VectorSyncerAsBatchSyncer

log = structlog.get_logger()

SINK_ENTRY_POINT_GROUP = "kgserve.vector_syncers"
WEBHOOK_SINK_NAME = "webhook"
_SINK_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

SinkImplementation = VectorSyncer | BatchSyncer


def _no_close() -> None:
    """Do nothing: the default for sinks without `close`, and for sinks closed by their owner."""


class ConfiguredSink(NamedTuple):
    """Sink, with the ``name`` under which each store keeps its position; a changed ``target`` restarts from scratch."""

    name: str
    syncer: BatchSyncer
    target: str = ""
    close: Callable[[], object] = _no_close


def load_configured_connector_sinks(
    settings: Settings, given: Mapping[str, SinkImplementation] | None = None
) -> list[ConfiguredSink]:
    """Return the sinks: webhook, named entry points, and ``given``. Raises InvalidInput for an invalid one."""
    named = dict.fromkeys(each.strip() for each in settings.syncers.split(",") if each.strip())
    for name in (*named, *(given or ())):
        if name == WEBHOOK_SINK_NAME or not _SINK_NAME_PATTERN.fullmatch(name):
            raise InvalidInput(
                f"{name!r} is not a valid syncer name: use lower case, digits, _ and -, and not {WEBHOOK_SINK_NAME!r}"
            )
    loaded = {name: _load_entry_point(name) for name in named}
    installed = [
        ConfiguredSink(name, _as_batch_syncer(name, each), close=getattr(each, "close", _no_close))
        for name, each in loaded.items()
    ]
    others = [
        ConfiguredSink(name, _as_batch_syncer(name, each)) for name, each in (given or {}).items() if name not in loaded
    ]
    return [*_webhook(settings), *installed, *others]


def _webhook(settings: Settings) -> list[ConfiguredSink]:
    if not settings.webhook_url:
        return []
    if not settings.webhook_secret:
        raise InvalidInput("webhook_url requires a secret to sign requests: set KGSERVE_WEBHOOK_SECRET")
    webhook = WebhookSink(settings.webhook_url, settings.webhook_secret, settings.webhook_timeout)
    # The address may be confidential, so only its digest is stored.
    return [
        ConfiguredSink(
            WEBHOOK_SINK_NAME, webhook, sha256(settings.webhook_url.encode()).hexdigest()[:16], webhook.close
        )
    ]


def _load_entry_point(name: str) -> SinkImplementation:
    """Return the sink of an entry point, which is a class or function called without arguments."""
    offered: dict[str, EntryPoint] = {each.name: each for each in entry_points(group=SINK_ENTRY_POINT_GROUP)}
    if name not in offered:
        available = ", ".join(sorted(offered)) or "none"
        raise InvalidInput(
            f"no installed package provides the syncer {name!r} in the entry point group {SINK_ENTRY_POINT_GROUP}"
            f" (available: {available})"
        )
    try:
        return offered[name].load()()
    except Exception as error:
        log.exception("syncer_not_made", syncer=name)
        raise InvalidInput(f"the syncer {name!r} cannot be created: {type(error).__name__}: {error}") from error


def _as_batch_syncer(name: str, syncer: SinkImplementation) -> BatchSyncer:
    if isinstance(syncer, BatchSyncer):
        return syncer
    if isinstance(syncer, VectorSyncer):  # pyright: ignore[reportUnnecessaryIsInstance] - others give it
        return VectorSyncerAsBatchSyncer(syncer)
    raise InvalidInput(f"the syncer {name!r} must have either `sync`, or `add_content` and `delete_content`")


TIMESTAMP_HEADER = "Kgserve-Timestamp"
SIGNATURE_HEADER = "Kgserve-Signature"
SIGNATURE_VERSION = "v1"
WEBHOOK_CONNECT_TIMEOUT_SECONDS = 5.0
_WEBHOOK_STOP_POLL_SECONDS = 0.1
_MAX_WEBHOOK_RESPONSE_BYTES = 1 << 16
"""Maximum response size; the body of a longer one is not read and its connection not reused."""

_encode = msgspec.json.Encoder().encode


def sign_webhook(secret: str, timestamp: int, body: bytes) -> str:
    """Return the HMAC-SHA256 signature of a webhook body, the value of the header `Kgserve-Signature`."""
    digest = hmac.digest(secret.encode(), b"%d." % timestamp + body, "sha256")
    return f"{SIGNATURE_VERSION}={digest.hex()}"


class WebhookSink:
    """Posts batches to one address over one connection, one request each; any 2xx status acknowledges a batch.

    Not thread-safe. Responses are not logged, and only their status is used.
    """

    def __init__(self, url: str, secret: str, seconds: float) -> None:
        """Parse the address; ``seconds`` is the timeout of a whole request.

        Raises InvalidInput for an invalid address.
        """
        self._origin, self._path, self.host = _parse_url(url)
        self._secret = secret
        self._seconds = seconds
        self._connection: OutboundHttpConnection | None = None

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """Post a batch.

        Raises Unavailable if it is not acknowledged, and InterruptedError once ``unwanted`` returns true.
        """
        body, now = _encode(batch), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"kgserve/{__version__}",
            TIMESTAMP_HEADER: str(now),
            SIGNATURE_HEADER: sign_webhook(self._secret, now, body),
        }
        deadline = time.monotonic() + self._seconds

        def remaining_seconds() -> float:
            if unwanted():
                raise InterruptedError
            if (left := deadline - time.monotonic()) <= 0:
                raise Unavailable(f"the webhook at {self.host} did not answer within {self._seconds:g} s", 5)
            return min(left, _WEBHOOK_STOP_POLL_SECONDS)

        status = self._post(headers, body, remaining_seconds)
        if not 200 <= status < 300:  # noqa: PLR2004
            raise Unavailable(f"the webhook at {self.host} responded with status {status}", 5)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, headers: dict[str, str], body: bytes, remaining_seconds: Callable[[], float]) -> int:
        """Send a POST request and return the response status."""
        whole = False
        try:
            connection = self._open()
            connection.on_silence = remaining_seconds
            answer = connection.request("POST", self._path, headers, body)
            if _is_short(answer):
                connection.body()
                whole = connection.ends()
            return answer.status
        except InterruptedError:
            raise
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise Unavailable(f"the webhook at {self.host} cannot be reached: {reason}", 5) from error
        finally:
            if not whole:
                self.close()

    def _open(self) -> OutboundHttpConnection:
        if self._connection is not None and not self._connection.is_idle:
            self.close()
        if self._connection is None:
            timeout = min(WEBHOOK_CONNECT_TIMEOUT_SECONDS, self._seconds)
            self._connection = OutboundHttpConnection(self._origin, timeout, ssl.create_default_context)
        return self._connection


def _is_short(answer: HttpResponseHead) -> bool:
    length = answer.headers.get("content-length", "")
    return answer.status == 204 or (length.isdecimal() and int(length) <= _MAX_WEBHOOK_RESPONSE_BYTES)  # noqa: PLR2004


def _parse_url(url: str) -> tuple[str, str, str]:
    """Return origin, path with query, and host of an address. Raises InvalidInput."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise InvalidInput(f"webhook_url is not a valid URL: {error}") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain:
        raise InvalidInput("webhook_url must be an http or https URL, such as https://host/path")
    if "@" in parts.netloc:
        raise InvalidInput("webhook_url must not contain credentials; requests are authenticated by their signature")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", path, f"{parts.hostname}{port}"
