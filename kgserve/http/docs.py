"""GET /openapi.json and GET /docs: the API description, for programs and for people, with no network needed."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from litestar import Request, Response, get

from kgserve.http.service import answer
from kgserve.operations.operation import Body, Operation, described

_OPENAPI = Operation(
    id="openapi",
    role="read",
    tag="service",
    summary="This description",
    answer=Body(None, {"openapi": "3.1.0", "info": {"title": "kgserve"}}),
)
_DOCS = Operation(
    id="docs",
    role="read",
    tag="service",
    summary="This description, to read and to try out",
    answer=Body(None, "<!doctype html>", "text/html; charset=utf-8"),
)
_STATIC = files("kgserve.http") / "static"
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@get("/openapi.json", opt=described(_OPENAPI))
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """An OpenAPI 3.1 document of every operation, with schemas and examples."""
    return answer(request.app.state["openapi"])


def _page(name: str, media: str) -> Response[bytes]:
    return Response((_STATIC / name).read_bytes(), headers=_POLICY, media_type=media)


_HTML, _CSS, _SCRIPT = (
    _page("docs.html", "text/html; charset=utf-8"),
    _page("docs.css", "text/css; charset=utf-8"),
    _page("docs.js", "text/javascript; charset=utf-8"),
)


@get("/docs", opt=described(_DOCS))
async def docs() -> Response[bytes]:
    """A page that renders this description in the browser. It loads nothing from elsewhere."""
    return _HTML


@get("/docs/docs.css")
async def docs_style() -> Response[bytes]:
    """The page's style sheet."""
    return _CSS


@get("/docs/docs.js")
async def docs_script() -> Response[bytes]:
    """The page's script."""
    return _SCRIPT
