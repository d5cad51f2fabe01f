"""GET /health and GET /ready."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get

from kgserve import __version__
from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import ALWAYS, Body, Operation, described
from kgserve.http.service import Answer, service_of
from kgserve.model.answers import Health, Ready
from kgserve.ops import health as ops

_HEALTH = Operation(
    id="health",
    role="read",
    tag="service",
    summary="The process answers",
    answer=Body(Health, examples.HEALTHY),
)
_READY = Operation(
    id="ready",
    role="read",
    tag="service",
    summary="Stores can be opened and written",
    answer=Body(Ready, examples.READY),
    errors=(*ALWAYS, "storage_full"),
)
_ALIVE = msgspec.json.encode(Health(version=__version__))


@direct(get("/health", opt=described(_HEALTH)))
def health(_call: Call[None]) -> Answer:
    """Touches neither disk nor stores: it says that the process is alive, and which version it is."""
    return _ALIVE


@get("/ready", opt=described(_READY))
async def ready(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers 503 or 507 with the reason when a write would not be taken now."""
    service = service_of(request)
    return await service.read(ops.ready, service.pool)
