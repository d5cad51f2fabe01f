"""Changes posted to an address, signed: JSON, one batch a request, and any status from 200 to 299 takes it.

The signature is HMAC-SHA256, in hexadecimal digits, by the secret, of the time of the request, a full stop, and the
body as it is. Nothing that the receiver says is read further than its status, or told or logged.
"""

from __future__ import annotations

import hmac
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from kgserve.errors import InvalidInput, Unavailable
from kgserve.http_client import Answer, Connection
from kgserve.syncing.protocol import SyncBatch
from kgserve.version import __version__

TIMESTAMP = "Kgserve-Timestamp"
SIGNATURE = "Kgserve-Signature"
VERSION = "v1"
CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_READ_BYTES = 1 << 16
"""A longer answer is not read, and its connection not used again."""

_encode = msgspec.json.Encoder().encode


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """What the header `Kgserve-Signature` says."""
    digest = hmac.digest(secret.encode(), b"%d." % timestamp + body, "sha256")
    return f"{VERSION}={digest.hex()}"


class Webhook:
    """Posts to one address, over one connection. For one thread."""

    def __init__(self, url: str, secret: str, seconds: float) -> None:
        """A request may take so many ``seconds`` in all. Raises InvalidInput for an address that is none."""
        self._origin, self._path, self.host = _address(url)
        self._secret = secret
        self._seconds = seconds
        self._connection: Connection | None = None

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        """Post a batch. Raises Unavailable where it was not taken, and InterruptedError once it is unwanted."""
        body, now = _encode(batch), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"kgserve/{__version__}",
            TIMESTAMP: str(now),
            SIGNATURE: signature(self._secret, now, body),
        }
        deadline = time.monotonic() + self._seconds

        def patience() -> float:
            if unwanted():
                raise InterruptedError
            if (left := deadline - time.monotonic()) <= 0:
                raise Unavailable(f"the webhook at {self.host} did not answer within {self._seconds:g} s", 5)
            return min(left, _LOOK_SECONDS)

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

    def _open(self) -> Connection:
        if self._connection is not None and not self._connection.is_idle:
            self.close()
        if self._connection is None:
            timeout = min(CONNECT_SECONDS, self._seconds)
            self._connection = Connection(self._origin, timeout, ssl.create_default_context)
        return self._connection


def _is_short(answer: Answer) -> bool:
    length = answer.headers.get("content-length", "")
    return answer.status == 204 or (length.isdecimal() and int(length) <= _READ_BYTES)  # noqa: PLR2004


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
