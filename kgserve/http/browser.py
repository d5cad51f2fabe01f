"""Keys for pages in browsers, which whoever administers the server hands over to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar import Request, Response, post

from kgserve.http.body import json_of
from kgserve.http.service import answer, service_of
from kgserve.model.answers import BrowserKey, BrowserKeyRequest
from kgserve.model.times import format_time
from kgserve.operations import examples
from kgserve.operations.operation import ALWAYS, Body, Operation, described

if TYPE_CHECKING:
    from kgserve.access.authentication import RequestContext

_BROWSER_KEY = Operation(
    id="browserKey",
    role="admin",
    tag="service",
    summary="Make a key for a page in a browser",
    request=Body(BrowserKeyRequest, {"role": "read"}, optional=True),
    answer=Body(BrowserKey, examples.BROWSER_KEY),
    errors=(*ALWAYS, "too_large", "unsupported"),
)


@post("/api/browser-key", status_code=200, opt=described(_BROWSER_KEY))
async def browser_key(request: Request[Any, Any, Any]) -> Response[bytes]:
    """It is for the stores of the key that asks, and ends after 12 hours, with that key, or with the server.

    It is kept in memory alone. `kgserve open` hands it over behind the `#` of an address, which no server sees.
    """
    scope = request.scope
    asked = await json_of(scope["headers"], request.receive, service_of(request), BrowserKeyRequest, optional=True)
    caller, text = cast("RequestContext", scope["state"]["request_context"]).browser_key(asked.role)
    made = BrowserKey(key=text, role=asked.role, stores=[*caller.stores], expires=format_time(caller.expires_at or 0))
    return answer(msgspec.json.encode(made))
