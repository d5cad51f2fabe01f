"""Errors between a client and its server, added to the tree of `kgserve.errors`, and the retry policy.

    KgserveError
     +-- Unreachable           unreachable       no server answers; also a ConnectionError
     |    +-- Interrupted      interrupted       the connection broke; the request may have been executed
     +-- Refused               refused           an error answer that kgserve has no class for
     +-- Unintelligible        unintelligible    an answer that is not from kgserve

Other errors of the server are raised as the class of their code: NotFound, InvalidInput with its FieldErrors, Gone and
so on.

Retries: refused connections and answers with 429 are retried for every call, because nothing was executed. Broken
connections and 503 are retried for idempotent calls only: reads, injects, deletes of nodes and edges, creating a store,
reindexing. Not retried then: Cypher in write mode, dropping a store (the second answer would be "not found"), and an
import of which a byte was sent. Timeouts are never retried, because that would add load.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from kgserve.errors import (
    Conflict,
    ConflictManual,
    FieldError,
    Forbidden,
    Gone,
    IdempotencyKeyReused,
    Internal,
    InvalidInput,
    KgserveError,
    KindNotAllowed,
    NotFound,
    RateLimited,
    ServedElsewhere,
    StorageFull,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from kgserve.graph.answers import ProblemDetails
from kgserve.platform.codecs import decode_json

_ERROR_TYPE_PREFIX = "urn:kgserve:error:"
_UNAVAILABLE_STATUSES = {502, 503, 504}
_TOO_MANY_REQUESTS = 429
_MAX_QUOTED_BODY_BYTES = 200


class Unreachable(KgserveError, ConnectionError):
    """No server answers at ``url``."""

    code = "unreachable"

    def __init__(self, message: str, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class Interrupted(Unreachable):
    """The connection broke before the answer was complete; the request may have been executed."""

    code = "interrupted"


class Refused(KgserveError):
    """An error answer without a class of its own. ``status`` is the HTTP status."""

    code = "refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unintelligible(KgserveError):
    """The answer is not from kgserve."""

    code = "unintelligible"


ERRORS_BY_CODE: dict[str, type[KgserveError]] = {
    error.code: error
    for error in (
        Unauthenticated,
        Forbidden,
        NotFound,
        TimedOut,
        Conflict,
        TooLarge,
        UnsupportedMediaType,
        Internal,
        ServedElsewhere,
        IdempotencyKeyReused,
        StorageFull,
    )
}
"""Errors constructed from a message alone, by code."""


@contextmanager
def translate_httpx_errors(url: str) -> Generator[None]:
    """Translate errors of httpx to Unreachable, Interrupted, TimedOut or InvalidInput; ``url`` is the server's."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidInput(f"{url!r} is not a server address: {error}") from None
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        # chained, the transport's traceback would add forty lines without information
        message = f"no server answers at {url} ({error}); start one with `kgserve serve`, or specify its url"
        raise Unreachable(message, url) from None
    except httpx.TimeoutException:
        raise TimedOut(f"{url} did not answer in time; increase the client's timeout") from None
    except httpx.TransportError as error:
        raise Interrupted(f"the connection to {url} broke: {str(error) or type(error).__name__}") from None


def build_error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> KgserveError:
    """Return the error of an unsuccessful answer."""
    try:
        problem = decode_json(body, ProblemDetails)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _error_from_status(status, body, _retry_after(headers))
    error = build_error_from_problem_document(problem, _retry_after(headers))
    error.add_note(f"request: {problem.instance.rpartition(':')[2]}")
    return error


def build_error_from_problem_document(problem: ProblemDetails, retry_after: int = 1) -> KgserveError:
    """Return the error of a problem document; ``retry_after`` is in seconds."""
    code, detail = problem.type.removeprefix(_ERROR_TYPE_PREFIX), problem.detail or problem.title
    match code:
        case InvalidInput.code | KindNotAllowed.code:
            refused = InvalidInput if code == InvalidInput.code else KindNotAllowed
            return refused(detail, _field_errors(problem))
        case ConflictManual.code:
            return ConflictManual(detail, problem.node)
        case Gone.code:
            return Gone(detail, problem.oldest if isinstance(problem.oldest, int) else 0)
        case RateLimited.code:
            return RateLimited(detail, retry_after)
        case Unavailable.code:
            return Unavailable(detail, retry_after)
        case _:
            known = ERRORS_BY_CODE.get(code)
            return known(detail) if known else Refused(detail, problem.status)


def decode_json_answer(body: bytes, kind: Any) -> Any:
    """Decode the JSON of an answer to ``kind``. Raises Unintelligible."""
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unintelligible(f"the answer is not from kgserve: {error}") from error


def _field_errors(problem: ProblemDetails) -> tuple[FieldError, ...]:
    return tuple(FieldError(each.get("path", ""), each.get("message", "")) for each in problem.errors or [])


def _error_from_status(status: int, body: bytes, retry_after: int) -> KgserveError:
    """Return the error of an answer without a problem document, as from a proxy."""
    text = body[:_MAX_QUOTED_BODY_BYTES].decode("utf-8", "replace").strip()
    message = f"status {status}: {text}" if text else f"status {status}"
    if status == _TOO_MANY_REQUESTS:
        return RateLimited(message, retry_after)
    return Unavailable(message, retry_after) if status in _UNAVAILABLE_STATUSES else Refused(message, status)


def _retry_after(headers: Mapping[str, str]) -> int:
    """Return the seconds of a Retry-After header, which holds a number or a date."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return int(text[:9])
    try:
        return max(1, round(parsedate_to_datetime(text).timestamp() - time.time()))
    except ValueError:
        return 1


DEFAULT_RETRIES = 4


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Retry policy. Pauses are in seconds and double; jitter shortens each by up to a half."""

    times: int | None = None
    """Maximum number of retries of one call; 0 disables them. Default: 4, or unlimited with several nodes."""
    first: float = 0.2
    """First pause in seconds."""
    longest: float = 8.0
    """Longest pause in seconds, unless the server requests more with Retry-After."""
    patience: float = 30.0
    """Seconds after the start of a call within which it is retried. A later Retry-After is not waited for."""

    def allows(self, number: int, nodes: int = 1) -> bool:
        """Return True if retry ``number``, counted from 0, is allowed."""
        limit = math.inf if nodes > 1 else DEFAULT_RETRIES
        return number < (limit if self.times is None else self.times)

    def pause(self, number: int, at_least: float = 0.0) -> float:
        """Return the pause in seconds before retry ``number``, counted from 0."""
        whole = min(self.longest, self.first * 2 ** min(number, 30))
        return max(at_least, whole * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


class RetryState:
    """Retry state of one call. Pauses grow after each round of the nodes that can serve it."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._number = 0
        self._deadline = time.monotonic() + retries.patience

    def pause_after(self, error: KgserveError, *, idempotent: bool, nodes: int = 1) -> float:
        """Return the seconds to wait before a retry. Raises ``error`` when the call must not be retried."""
        temporary = isinstance(error, Unreachable | RateLimited | Unavailable)
        harmless = isinstance(error, RateLimited) or (
            isinstance(error, Unreachable) and not isinstance(error, Interrupted)
        )
        if not (temporary and (idempotent or harmless)) or not self._retries.allows(self._number, nodes):
            raise _without_traceback(error)
        pause = self._retries.pause(self._number // nodes, retry_after_seconds(error))
        if time.monotonic() + pause > self._deadline:
            raise _without_traceback(error)
        self._number += 1
        return pause


def _without_traceback(error: KgserveError) -> KgserveError:
    """Return the error for the caller; the client's internal traceback of an unreachable server is dropped."""
    return error.with_traceback(None) if isinstance(error, Unreachable) else error


def retry_after_seconds(error: KgserveError | None) -> float:
    """Return the seconds that the server asks the client to wait."""
    return float(error.retry_after) if isinstance(error, RateLimited | Unavailable) else 0.0
