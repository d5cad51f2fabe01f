"""GET /metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar import Request, Response, get

from kgserve.http.service import Service, caller_of, service_of
from kgserve.operations import examples
from kgserve.operations.operation import ALWAYS, Body, Operation, described
from kgserve.ops import metrics as ops

if TYPE_CHECKING:
    from kgserve.http.connection import Connections
    from kgserve.http.tls import Certificate

_PROMETHEUS = "text/plain"
_OPENMETRICS = "application/openmetrics-text"
_CHARSET = "; charset=utf-8"
_METRICS = Operation(
    id="metrics",
    role="read",
    tag="service",
    summary="Numbers for Prometheus",
    answer=Body(None, examples.METRICS, _PROMETHEUS),
    others=(Body(None, examples.OPENMETRICS, _OPENMETRICS),),
    errors=ALWAYS,
)


@get("/metrics", media_type=_PROMETHEUS, opt=described(_METRICS))
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """In Prometheus' text format, or in OpenMetrics' for who accepts that. No store is opened, and nothing waited for.

    A key that holds for some stores is shown the numbers of those that are open; one that holds for all of them, those
    of the server as well.
    """
    service = service_of(request)
    moment = _moment(request, service)
    # Not one of the threads for reads: when those are all busy is when somebody looks.
    body, media_type = await asyncio.to_thread(
        ops.metrics,
        service.graphs,
        caller_of(request),
        moment,
        request.headers.get("accept", ""),
    )
    # To what is text, Litestar adds the charset itself.
    return Response(body, media_type=media_type.replace(_CHARSET, "") if media_type.startswith("text/") else media_type)


def _moment(request: Request[Any, Any, Any], service: Service) -> ops.Moment:
    state = request.app.state
    connections = cast("Connections | None", state.get("connections"))
    certificate = cast("Certificate | None", state.get("certificate"))
    ends = None if certificate is None else certificate.ends.timestamp() if certificate.ends else 0.0
    streams = service.streams
    moment = ops.Moment(
        state["edge"].running, streams.count, streams.most, certificate_ends=ends, places=service.places
    )
    if connections is None:  # the application without its server
        return moment
    return msgspec.structs.replace(moment, connections=len(connections), refused=connections.refused.counts())
