"""Error responses: the table from error codes to statuses and titles, and RFC 9457 problem documents.

`build_error_response` accepts any exception. Unexpected exceptions and `Internal` produce "internal error" and the
request id only; the traceback is logged under that id.
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
    NotFound,
    RateLimited,
    ServedElsewhere,
    Unauthenticated,
    Unavailable,
)
from kgserve.graph.answers import ProblemDetails

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import HTTPScope

Header = tuple[bytes, bytes]

log = structlog.get_logger()

PROBLEM_JSON = "application/problem+json"
CLIENT_DISCONNECTED_STATUS = 499  # never sent; shown in the access log, as nginx does
ERROR_CODE_STATE_KEY = "refused"
"""Key of the scope's state for the error code that the metrics of refusals count."""

VERSIONED_NAMES_STATE_KEY = "renamed"
"""Key of the scope's state; set if the response uses the field names of versioned writes."""


class ErrorStatusAndTitle(NamedTuple):
    """HTTP status and title of an error code."""

    status: int
    title: str


ERROR_RESPONSE_KINDS: dict[str, ErrorStatusAndTitle] = {
    "invalid": ErrorStatusAndTitle(400, "Invalid input"),
    "kind_not_allowed": ErrorStatusAndTitle(400, "Kind not allowed in this store"),
    "unauthenticated": ErrorStatusAndTitle(401, "Not authenticated"),
    "forbidden": ErrorStatusAndTitle(403, "Not allowed"),
    "not_found": ErrorStatusAndTitle(404, "Not found"),
    "elsewhere": ErrorStatusAndTitle(307, "Served by another node"),
    "method_not_allowed": ErrorStatusAndTitle(405, "Method not allowed"),
    "timeout": ErrorStatusAndTitle(408, "Time limit reached"),
    "conflict": ErrorStatusAndTitle(409, "Conflict with the current state"),
    "conflict_manual": ErrorStatusAndTitle(409, "Written as a conflicting head"),
    "gone": ErrorStatusAndTitle(410, "No longer available"),
    "too_large": ErrorStatusAndTitle(413, "Too large"),
    "url_too_long": ErrorStatusAndTitle(414, "URL too long"),
    "unsupported": ErrorStatusAndTitle(415, "Unsupported media type"),
    "misdirected": ErrorStatusAndTitle(421, "Misdirected request"),
    "idempotency_key_reused": ErrorStatusAndTitle(422, "Idempotency key used for another request"),
    "limited": ErrorStatusAndTitle(429, "Too many requests"),
    "head_too_large": ErrorStatusAndTitle(431, "Request headers too large"),
    "internal": ErrorStatusAndTitle(500, "Internal error"),
    "unavailable": ErrorStatusAndTitle(503, "Temporarily unavailable"),
    "storage_full": ErrorStatusAndTitle(507, "Storage full"),
}


class MethodNotAllowed(KgserveError):
    """The path exists, but not with this method; ``allow`` is the value of the Allow header."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class HostNotAllowed(KgserveError):
    """The Host header names a host that this server does not serve."""

    code = "misdirected"


class UrlTooLong(KgserveError):
    """The URL of the request exceeds the limit."""

    code = "url_too_long"

    @classmethod
    def over(cls, limit: int) -> Self:
        """Return the error for a URL of more than ``limit`` bytes."""
        return cls(f"the URL of the request exceeds {limit} bytes; send long values in a body")


class HeadersTooLarge(KgserveError):
    """The headers of the request exceed the limit of bytes or lines."""

    code = "head_too_large"

    @classmethod
    def over(cls, limit: int) -> Self:
        """Return the error for headers of more than ``limit`` bytes, or of too many lines."""
        return cls(f"the request headers exceed {limit} bytes, or have too many lines; send fewer headers")


class ClientDisconnected(Exception):
    """The client disconnected before the response."""


class ServerHttpResponse(NamedTuple):
    """Complete response: status, headers and body."""

    status: int
    headers: list[Header]
    body: bytes

    @classmethod
    def of(cls, status: int, body: bytes, media: str, **headers: str) -> Self:
        """Return a response with its content type and length; ``_`` in the names of further headers becomes ``-``."""
        given = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        own = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body))]
        return cls(status, [*given, *own], body)


def build_error_response(error: Exception, request_id: str, target: str = "") -> ServerHttpResponse:
    """Return the response for ``error`` to a request for ``target`` (path and query). Logs internal errors."""
    known = _translated(error)
    kind = ERROR_RESPONSE_KINDS[known.code]
    detail = str(known)
    if isinstance(known, Internal):
        log.error("internal_error", exc_info=error)
        detail = "internal error; the server log has the details under this request id"
    problem = ProblemDetails(
        type=f"urn:kgserve:error:{known.code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=f"urn:kgserve:request:{request_id}",
        errors=_field_errors(known),
        oldest=known.oldest if isinstance(known, Gone) else msgspec.UNSET,
        node=known.node if isinstance(known, ConflictManual) else msgspec.UNSET,
    )
    return ServerHttpResponse.of(kind.status, msgspec.json.encode(problem), PROBLEM_JSON, **_headers(known, target))


def reraise_error_through_litestar(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Re-raise any error as Litestar's exception handler, so that the gateway renders it."""
    raise error


def must_forward_not_redirect(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether requests are forwarded rather than redirected to another node.

    True for pages in a browser, whose key is valid at this node only, and for clients that send Kgserve-No-Redirect.
    """
    return b"sec-fetch-mode" in headers or b"kgserve-no-redirect" in headers


def request_target(scope: HTTPScope) -> str:
    """Return path and query of a request as they were sent."""
    path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def error_code_of(error: Exception) -> str:
    """Return the stable code of an error."""
    return _translated(error).code


def _translated(error: Exception) -> KgserveError:
    match error:
        case KgserveError():
            return error
        case HTTPException(status_code=404):
            return NotFound("no operation exists at this path; /docs lists every operation")
        case HTTPException(status_code=405):
            methods = {*dict(error.headers or {}).get("allow", "").split(", ")}
            allow = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
            return MethodNotAllowed(f"this path accepts {allow}", allow)
        case HTTPException(status_code=400):
            return InvalidInput(error.detail)
        case _:
            return Internal(f"{type(error).__name__}: {error}")


def _field_errors(error: KgserveError) -> list[dict[str, str]] | msgspec.UnsetType:
    if isinstance(error, InvalidInput) and error.errors:
        return [{"path": place.path, "message": place.message} for place in error.errors]
    return msgspec.UNSET


def _headers(error: KgserveError, target: str) -> dict[str, str]:
    match error:
        case ServedElsewhere():
            return {"location": error.url.rstrip("/") + target, "kgserve_owner": error.node}
        case RateLimited() | Unavailable():
            return {"retry_after": str(error.retry_after)}
        case Unauthenticated():
            return {"www_authenticate": "Bearer"}
        case MethodNotAllowed():
            return {"allow": error.allow}
        case _:
            return {}
