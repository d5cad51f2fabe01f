"""Routes of the REST interface, and the handlers of metrics, the explorer and browser keys."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath

from kgserve.admin import metrics as ops
from kgserve.api import examples
from kgserve.api.operation import COMMON_ERRORS, ApiBodyExample, ApiOperation, build_litestar_opt
from kgserve.api.operation_table import USE_CASES
from kgserve.errors import NotFound
from kgserve.graph.answers import BrowserApiKey, BrowserApiKeyRequest
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.server.http import (
    bare_array_answer_endpoints,
    cypher_endpoint,
    import_export_endpoints,
    openapi,
    sse_change_feed,
)
from kgserve.server.http.gateway import RouteTable
from kgserve.server.http.gzip_and_etags import compute_etag
from kgserve.server.http.operation_endpoints import build_response_from_encoded_json
from kgserve.server.http.request_decoding import (
    RequestHandlerDependencies,
    decode_json_body,
    get_authenticated_caller,
    get_request_dependencies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from kgserve.platform.access.authentication import RequestContext
    from kgserve.server.http.connection import ConnectionRegistry
    from kgserve.server.http.tls_certificate import ServerCertificate

_PROMETHEUS = "text/plain"
_OPENMETRICS = "application/openmetrics-text"
_CHARSET = "; charset=utf-8"
_METRICS = ApiOperation(
    id="metrics",
    role="read",
    tag="service",
    summary="Return metrics for Prometheus",
    note="Covers the stores that the key may access.",
    answer=ApiBodyExample(None, examples.METRICS_EXAMPLE, _PROMETHEUS),
    others=(ApiBodyExample(None, examples.OPENMETRICS_EXAMPLE, _OPENMETRICS),),
    errors=COMMON_ERRORS,
)


@get("/metrics", media_type=_PROMETHEUS, opt=build_litestar_opt(_METRICS))
async def serve_prometheus_metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return metrics in Prometheus' text format, or in OpenMetrics' if the client accepts it. Opens no store.

    A key for some stores gets the metrics of those that are open. A key for all stores also gets those of the server.
    """
    service = get_request_dependencies(request)
    moment = _transport_state(request, service)
    # Outside the threads for reads: metrics must be available when those are all busy.
    body, media_type = await asyncio.to_thread(
        ops.render_metrics,
        service.graphs,
        get_authenticated_caller(request),
        moment,
        request.headers.get("accept", ""),
    )
    # Litestar adds the charset to text media types.
    return Response(body, media_type=media_type.replace(_CHARSET, "") if media_type.startswith("text/") else media_type)


def _transport_state(request: Request[Any, Any, Any], service: RequestHandlerDependencies) -> ops.HttpTransportMetrics:
    state = request.app.state
    connections = cast("ConnectionRegistry | None", state.get("connections"))
    certificate = cast("ServerCertificate | None", state.get("certificate"))
    ends = None if certificate is None else certificate.ends.timestamp() if certificate.ends else 0.0
    streams, readers = service.streams, state.get("readers")
    moment = ops.HttpTransportMetrics(
        state["edge"].running,
        streams.count,
        streams.most,
        readers=0 if readers is None else readers.running_count,
        certificate_ends=ends,
        quotas=(*service.admission.quotas, streams.quota),
    )
    if connections is None:  # the application runs without its server
        return moment
    return msgspec.structs.replace(moment, connections=len(connections), refused=connections.refused.counts())


_FOLDER = files("kgserve.server.http") / "static" / "explorer"
_PAGE = "index.html"
_MEDIA = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "json": "application/json",
    "txt": "text/plain",
}
_HASHED = re.compile(r"\.[0-9a-f]{10}\.js")
_EXPLORER_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; worker-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"


class StaticFile(NamedTuple):
    """Static file of the explorer, with its response headers."""

    body: bytes
    media: str
    headers: dict[str, str]

    @classmethod
    def read(cls, source: Traversable) -> StaticFile:
        """Read a file. Browsers cache files with a hash in their name forever, and revalidate all others."""
        body = source.read_bytes()
        cache = _CACHE_FOREVER if _HASHED.search(source.name) else _REVALIDATE
        headers = {**_EXPLORER_POLICY, "etag": compute_etag(body), "cache-control": cache}
        return cls(body, _MEDIA[source.name.rpartition(".")[2]], headers)

    def answer(self) -> Response[bytes]:
        """Return the file as a response. The gateway answers 304 if the browser's ETag matches."""
        return Response(self.body, headers=self.headers, media_type=self.media)


def _walk_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, StaticFile]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk_files(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", StaticFile.read(entry)


EXPLORER_FILES = dict(_walk_files(_FOLDER))
"""Files of the explorer by path below ``/explorer/``."""


@get("/")
async def serve_graph_explorer_page() -> Response[bytes]:
    """Return the explorer's page."""
    return EXPLORER_FILES[_PAGE].answer()


@get("/explorer/{name:path}")
async def serve_graph_explorer_file(name: FromPath[str]) -> Response[bytes]:
    """Return a script or style sheet of the explorer. Raises NotFound."""
    found = EXPLORER_FILES.get(name.removeprefix("/"))
    if found is None:
        raise NotFound("the explorer has no such file")
    return found.answer()


_BROWSER_KEY = ApiOperation(
    id="browserKey",
    role="admin",
    tag="service",
    summary="Create an API key for a page in a browser",
    note="Valid for 12 hours, `read` or `write`, in memory only. Requires the role admin.",
    request=ApiBodyExample(BrowserApiKeyRequest, {"role": "read"}, optional=True),
    answer=ApiBodyExample(BrowserApiKey, examples.BROWSER_KEY_EXAMPLE),
    errors=(*COMMON_ERRORS, "too_large", "unsupported"),
)


@post("/api/browser-key", status_code=200, opt=build_litestar_opt(_BROWSER_KEY))
async def create_browser_api_key(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Create an API key for the same stores. It expires after 12 hours, with the calling key, or with the server.

    The key is kept in memory only. `kgserve open` passes it after the `#` of a URL, which browsers do not send.
    """
    scope = request.scope
    asked = await decode_json_body(
        scope["headers"], request.receive, get_request_dependencies(request), BrowserApiKeyRequest, optional=True
    )
    caller, text = cast("RequestContext", scope["state"]["request_context"]).browser_key(asked.role)
    made = BrowserApiKey(
        key=text, role=asked.role, stores=[*caller.stores], expires=format_rfc3339_timestamp(caller.expires_at or 0)
    )
    return build_response_from_encoded_json(msgspec.json.encode(made))


ROUTES = RouteTable(
    USE_CASES,
    (
        bare_array_answer_endpoints.get_entity_versions,
        bare_array_answer_endpoints.search_memories,
        bare_array_answer_endpoints.recall_memories_by_get,
        bare_array_answer_endpoints.recall_memories_by_post,
        bare_array_answer_endpoints.get_child_memories,
        bare_array_answer_endpoints.get_descendant_memories,
        bare_array_answer_endpoints.get_memory_parent_chain,
        cypher_endpoint.run_cypher_statement,
        import_export_endpoints.import_nodes_and_edges_into_store,
        import_export_endpoints.export_store,
        sse_change_feed.stream_store_change_events,
        sse_change_feed.stream_multi_store_change_events,
        serve_prometheus_metrics,
        create_browser_api_key,
        openapi.serve_openapi_31_document,
        openapi.serve_openapi_30_document,
        openapi.serve_docs_page,
        *openapi.DOCS_FILES,
        serve_graph_explorer_page,
        serve_graph_explorer_file,
    ),
)
