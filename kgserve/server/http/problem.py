"""Errors on their way out: one table from code to status and title, and the RFC 9457 bodies.

`render` takes any exception. What kgserve did not raise on purpose, and what it raised as ``internal``, is answered
with "internal error" and the request id alone; the traceback goes to the log under that id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from kgserve.errors import (
    ConflictManual,
    Gone,
    Internal,
    InvalidInput,
    KgserveError,
    Limited,
    NotFound,
    ServedElsewhere,
    Unauthenticated,
    Unavailable,
)
from kgserve.graph.answers import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import HTTPScope

Header = tuple[bytes, bytes]

log = structlog.get_logger()

PROBLEM_JSON = "application/problem+json"
CLIENT_LEFT = 499  # never sent: what the access line shows, as nginx does
REFUSED = "refused"
"""The key of the scope's state under which an error's code is left for the count of refusals."""

RENAMED = "renamed"
"""The key of the scope's state for that fields of answers are to have the names of versioned writes."""


class ProblemKind(NamedTuple):
    """What one error code looks like over HTTP."""

    status: int
    title: str


PROBLEM_KINDS: dict[str, ProblemKind] = {
    "invalid": ProblemKind(400, "Invalid input"),
    "kind_not_allowed": ProblemKind(400, "Kind not taken by this store"),
    "unauthenticated": ProblemKind(401, "Not authenticated"),
    "forbidden": ProblemKind(403, "Not allowed"),
    "not_found": ProblemKind(404, "Not found"),
    "elsewhere": ProblemKind(307, "Served by another node"),
    "method_not_allowed": ProblemKind(405, "Method not allowed"),
    "timeout": ProblemKind(408, "Time limit reached"),
    "conflict": ProblemKind(409, "Conflict with the present state"),
    "conflict_manual": ProblemKind(409, "Written beside another head"),
    "gone": ProblemKind(410, "No longer there"),
    "too_large": ProblemKind(413, "Too large"),
    "url_too_long": ProblemKind(414, "Address too long"),
    "unsupported": ProblemKind(415, "Unsupported media type"),
    "misdirected": ProblemKind(421, "Not the host you asked for"),
    "limited": ProblemKind(429, "Too many requests"),
    "head_too_large": ProblemKind(431, "Head too large"),
    "internal": ProblemKind(500, "Internal error"),
    "unavailable": ProblemKind(503, "Not available at the moment"),
    "storage_full": ProblemKind(507, "Storage full"),
}


class MethodNotAllowed(KgserveError):
    """The path exists, with other methods; ``allow`` is the header that names them."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class Misdirected(KgserveError):
    """The Host header names a machine that this server does not answer for."""

    code = "misdirected"


class UrlTooLong(KgserveError):
    """The address of the request is longer than a server takes."""

    code = "url_too_long"

    @classmethod
    def over(cls, limit: int) -> Self:
        """Over so many bytes."""
        return cls(f"the address of the request is over {limit} bytes; send what is long in a body")


class HeadTooLarge(KgserveError):
    """The head of the request is larger than a server takes, or has too many lines."""

    code = "head_too_large"

    @classmethod
    def over(cls, limit: int) -> Self:
        """Over so many bytes, or lines."""
        return cls(f"the head of the request is over {limit} bytes, or has too many lines; send fewer headers")


class ClientLeft(Exception):
    """The connection is gone; there is nobody to answer."""


class HttpAnswer(NamedTuple):
    """A whole answer."""

    status: int
    headers: list[Header]
    body: bytes

    @classmethod
    def of(cls, status: int, body: bytes, media: str, **headers: str) -> Self:
        """Return an answer of a media type, with its length; in names of further headers ``_`` stands for ``-``."""
        given = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        own = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body))]
        return cls(status, [*given, *own], body)


def render(error: Exception, request_id: str, target: str = "") -> HttpAnswer:
    """The answer for ``error`` to a request for a ``target``, path and query; logs it when it is a defect of ours."""
    known = _translated(error)
    kind = PROBLEM_KINDS[known.code]
    detail = str(known)
    if isinstance(known, Internal):
        log.error("internal_error", exc_info=error)
        detail = "internal error; the server's log holds the details under this request id"
    problem = Problem(
        type=f"urn:kgserve:error:{known.code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=f"urn:kgserve:request:{request_id}",
        errors=_places(known),
        oldest=known.oldest if isinstance(known, Gone) else msgspec.UNSET,
        node=known.node if isinstance(known, ConflictManual) else msgspec.UNSET,
    )
    return HttpAnswer.of(kind.status, msgspec.json.encode(problem), PROBLEM_JSON, **_headers(known, target))


def reraise(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Leave an error to the gateway, as Litestar's exception handler: there all errors become answers."""
    raise error


def is_passed_on(headers: Mapping[bytes, bytes]) -> bool:
    """Whether who asks would not go to another node: a page in a browser, whose key is for here, or who says so."""
    return b"sec-fetch-mode" in headers or b"kgserve-no-redirect" in headers


def target_of(scope: HTTPScope) -> str:
    """Path and query of a request, as they were sent."""
    path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def code_of(error: Exception) -> str:
    """The stable code of an error."""
    return _translated(error).code


def _translated(error: Exception) -> KgserveError:
    match error:
        case KgserveError():
            return error
        case HTTPException(status_code=404):
            return NotFound("there is nothing at this path; /docs lists every operation")
        case HTTPException(status_code=405):
            methods = {*dict(error.headers or {}).get("allow", "").split(", ")}
            allow = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
            return MethodNotAllowed(f"this path takes {allow}", allow)
        case HTTPException(status_code=400):
            return InvalidInput(error.detail)
        case _:
            return Internal(f"{type(error).__name__}: {error}")


def _places(error: KgserveError) -> list[dict[str, str]] | msgspec.UnsetType:
    if isinstance(error, InvalidInput) and error.errors:
        return [{"path": place.path, "message": place.message} for place in error.errors]
    return msgspec.UNSET


def _headers(error: KgserveError, target: str) -> dict[str, str]:
    match error:
        case ServedElsewhere():
            return {"location": error.url.rstrip("/") + target, "kgserve_owner": error.node}
        case Limited() | Unavailable():
            return {"retry_after": str(error.retry_after)}
        case Unauthenticated():
            return {"www_authenticate": "Bearer"}
        case MethodNotAllowed():
            return {"allow": error.allow}
        case _:
            return {}
