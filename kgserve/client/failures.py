"""What can go wrong between a client and its server, added to the tree of `kgserve.errors`.

KgserveError
 +-- Unreachable           unreachable       no server answers; a ConnectionError as well
 |    +-- Interrupted      interrupted       the connection broke; what was asked may have been done
 +-- Refused               refused           an answer that says no, in words that kgserve has no class for
 +-- Unintelligible        unintelligible    an answer that is none of kgserve's

What the server refuses comes as the class that its code names: NotFound, InvalidInput with its FieldErrors, Gone …

When to ask again: connections that nobody took and refusals with 429 are repeated for every call, for nothing was done.
Broken connections and 503 are repeated for what comes to the same when it is done twice: all reads, injects, deletes of
nodes and edges, creating a store, reindexing. Not repeated then: Cypher in write mode, dropping a store (the second
answer would be "not found"), and an import from which a byte was taken. Time limits are never repeated: the work would
only grow.
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
    Internal,
    InvalidInput,
    KgserveError,
    KindNotAllowed,
    Limited,
    NotFound,
    ServedElsewhere,
    StorageFull,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from kgserve.graph.answers import Problem
from kgserve.platform.codecs import decode_json

_ERROR_TYPE_PREFIX = "urn:kgserve:error:"
_UNAVAILABLE_STATUSES = {502, 503, 504}
_TOO_MANY_REQUESTS = 429
_MAX_QUOTED_BODY_BYTES = 200


class Unreachable(KgserveError, ConnectionError):
    """No server answers."""

    code = "unreachable"


class Interrupted(Unreachable):
    """The connection broke before the answer was whole; what was asked may have been done."""

    code = "interrupted"


class Refused(KgserveError):
    """The answer says no in a way that has no class of its own; ``status`` is HTTP's."""

    code = "refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unintelligible(KgserveError):
    """What answered does not speak as kgserve does."""

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
        Unsupported,
        Internal,
        ServedElsewhere,
        StorageFull,
    )
}
"""Errors that are made of a message alone, by code."""


@contextmanager
def translated(url: str) -> Generator[None]:
    """What httpx raises inside becomes Unreachable, Interrupted, TimedOut or InvalidInput; ``url`` is the server's."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidInput(f"{url!r} is no address of a server: {error}") from None
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        # What the transport met on its way is forty lines that say no more than this.
        message = f"no server answers at {url} ({error}); start one with `kgserve serve`, or name one by its url"
        raise Unreachable(message) from None
    except httpx.TimeoutException:
        raise TimedOut(f"{url} did not answer in time; give the client a longer timeout") from None
    except httpx.TransportError as error:
        raise Interrupted(f"the connection to {url} broke: {str(error) or type(error).__name__}") from None


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> KgserveError:
    """The error that an answer without success stands for."""
    try:
        problem = decode_json(body, Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _of_status(status, body, _retry_after(headers))
    error = of_problem(problem, _retry_after(headers))
    error.add_note(f"request: {problem.instance.rpartition(':')[2]}")
    return error


def of_problem(problem: Problem, retry_after: int = 1) -> KgserveError:
    """The error that a problem document stands for; ``retry_after`` is in seconds."""
    code, detail = problem.type.removeprefix(_ERROR_TYPE_PREFIX), problem.detail or problem.title
    match code:
        case InvalidInput.code | KindNotAllowed.code:
            refused = InvalidInput if code == InvalidInput.code else KindNotAllowed
            return refused(detail, _places(problem))
        case ConflictManual.code:
            return ConflictManual(detail, problem.node)
        case Gone.code:
            return Gone(detail, problem.oldest if isinstance(problem.oldest, int) else 0)
        case Limited.code:
            return Limited(detail, retry_after)
        case Unavailable.code:
            return Unavailable(detail, retry_after)
        case _:
            known = ERRORS_BY_CODE.get(code)
            return known(detail) if known else Refused(detail, problem.status)


def decoded(body: bytes, kind: Any) -> Any:
    """JSON of an answer as ``kind``. Raises Unintelligible."""
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unintelligible(f"the answer is not one of kgserve's: {error}") from error


def _places(problem: Problem) -> tuple[FieldError, ...]:
    return tuple(FieldError(each.get("path", ""), each.get("message", "")) for each in problem.errors or [])


def _of_status(status: int, body: bytes, retry_after: int) -> KgserveError:
    """What a proxy in between says, who knows no problem documents."""
    said = body[:_MAX_QUOTED_BODY_BYTES].decode("utf-8", "replace").strip()
    message = f"status {status}: {said}" if said else f"status {status}"
    if status == _TOO_MANY_REQUESTS:
        return Limited(message, retry_after)
    return Unavailable(message, retry_after) if status in _UNAVAILABLE_STATUSES else Refused(message, status)


def _retry_after(headers: Mapping[str, str]) -> int:
    """Seconds; HTTP allows a number or a date."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return int(text[:9])
    try:
        return max(1, round(parsedate_to_datetime(text).timestamp() - time.time()))
    except ValueError:
        return 1


DEFAULT_RETRIES = 4


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a client is. Pauses are in seconds and double; each is cut by chance, down to a half at most."""

    times: int | None = None
    """Repetitions of one call at most; 0 turns them off. Unless it is chosen 4, and of several nodes no limit."""
    first: float = 0.2
    """The first pause."""
    longest: float = 8.0
    """The longest pause, unless the server asks for more with Retry-After."""
    patience: float = 30.0
    """Within so many seconds of a call's beginning it is repeated. A Retry-After beyond is not waited for."""

    def allows(self, number: int, addresses: int = 1) -> bool:
        """Whether there may be a repetition ``number``, counted from 0."""
        most = math.inf if addresses > 1 else DEFAULT_RETRIES
        return number < (most if self.times is None else self.times)

    def pause(self, number: int, at_least: float = 0.0) -> float:
        """The pause before repetition ``number``, counted from 0."""
        whole = min(self.longest, self.first * 2 ** min(number, 30))
        return max(at_least, whole * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads clients and hides nothing


class Attempts:
    """The attempts at one call, at one of several ``addresses`` after the other: a pause is longer after each round."""

    def __init__(self, retries: Retries, addresses: int = 1) -> None:
        self._retries = retries
        self._addresses = addresses
        self._number = 0
        self._give_up = time.monotonic() + retries.patience

    def pause_after(self, error: KgserveError, *, idempotent: bool) -> float:
        """Seconds to wait before the call is made again. Raises ``error`` when it is not to be."""
        passing = isinstance(error, Unreachable | Limited | Unavailable)
        harmless = isinstance(error, Limited) or (isinstance(error, Unreachable) and not isinstance(error, Interrupted))
        if not (passing and (idempotent or harmless)) or not self._retries.allows(self._number, self._addresses):
            raise _shown(error)
        pause = self._retries.pause(self._number // self._addresses, asked_for(error))
        if time.monotonic() + pause > self._give_up:
            raise _shown(error)
        self._number += 1
        return pause


def _shown(error: KgserveError) -> KgserveError:
    """The error as a caller is to see it: where in here a server was not reached tells nobody anything."""
    return error.with_traceback(None) if isinstance(error, Unreachable) else error


def asked_for(error: KgserveError | None) -> float:
    """Seconds that the server asks to wait."""
    return float(error.retry_after) if isinstance(error, Limited | Unavailable) else 0.0
