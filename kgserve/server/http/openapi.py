"""OpenAPI documents (3.1 and 3.0), built from the handlers' Operations, and the pages that show them.

The schemas are msgspec's. Litestar's generator loses ``additionalProperties: false`` and lets integers match two types.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, get
from litestar.routes import HTTPRoute

from kgserve import __version__
from kgserve.api.operation import (
    ALIAS_OPT_KEY,
    OPERATION_OPT_KEY,
    STORE_HEADER,
    STORE_PARAMETER,
    ApiBodyExample,
    ApiOperation,
    build_litestar_opt,
)
from kgserve.api.operation_table import USE_CASES
from kgserve.graph.answers import ProblemDetails
from kgserve.graph.compat.versioned_nodes_api import SubgraphEdgeInput, SubgraphNodeInput
from kgserve.graph.compat.versioned_nodes_field_names import (
    FIELD_NAMES_PARAMETER,
    VERSIONED_FIELD_NAMES,
    VERSIONED_JSON_MEDIA_TYPE,
)
from kgserve.platform.access.authentication import PUBLIC_PATHS
from kgserve.platform.codecs import decode_json
from kgserve.server.http.error_responses import ERROR_RESPONSE_KINDS, PROBLEM_JSON
from kgserve.server.http.gzip_and_etags import compute_etag
from kgserve.server.http.idempotent_requests import IDEMPOTENCY_KEY_HEADER
from kgserve.server.http.operation_endpoints import build_response_from_encoded_json
from kgserve.storage.model.store_names import MAX_STORE_NAME_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar import Litestar
    from litestar.handlers import HTTPRouteHandler

Json = dict[str, Any]

_SCHEMA_REFERENCE = "#/components/schemas/{name}"
TAG_DESCRIPTIONS = {
    "graph": "Write to the graph and walk it",
    "search": "Find nodes, and rebuild the indexes",
    "memories": "Store and recall memories, whose confidence fades",
    "entities": "Name the entities that memories are about, and relate them",
    "nodes": "Read, count and delete nodes, and list the types and tags in use",
    "versions": "Write based on the version that was read, and merge or retire nodes",
    "history": "Read former states and writes, and go back to them",
    "cypher": "Query and change the graph in Cypher",
    "events": "Follow changes as they happen",
    "stores": "Create, configure and delete stores: each is an isolated graph with its own journal",
    "transfer": "Import and export whole stores",
    "backup": "Back up stores, and create stores from backups",
    "analytics": "Count what a store remembers",
    "service": "Observe and manage the server",
}
"""Tags in the order of use, in which the reference and the page show them."""
# OpenAPI 3.0 has its own schema dialect: null is a property of other types, exclusive bounds are booleans, and a
# reference has no siblings. Unsupported keywords are dropped: a schema may accept more than the operation, never less.
_VERSION_30 = "3.0.3"
_UNKNOWN_KEYWORDS = frozenset({"propertyNames", "patternProperties", "unevaluatedProperties", "$comment"})
_NONE_REQUIRED = ("required", [])
"""Not allowed in 3.0, where ``required`` must not be empty."""
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_TYPE_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_LITERAL = frozenset({"example", "examples", "default"})
_STORE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
_PARAMETERS: dict[str, Json] = {
    "store": {
        "description": "Name of the store",
        "schema": {"type": "string", "pattern": _STORE_PATTERN, "maxLength": MAX_STORE_NAME_CHARS},
        "example": "project",
    },
    "id": {
        "description": "Id of the node, percent-encoded as one segment: `a/b` is `a%2Fb`",
        "schema": {"type": "string", "minLength": 1, "maxLength": 512},
        "example": "req-001",
    },
}
_OF_DEFAULT: tuple[Json, ...] = tuple(
    {"name": name, "in": place, "required": False, "description": text, "schema": _PARAMETERS["store"]["schema"]}
    for name, place, text in (
        (STORE_PARAMETER, "query", "Name of the store; default: from the header, or else the default store"),
        (STORE_HEADER, "header", "Name of the store, if the query has none"),
    )
)
_IDEMPOTENCY: tuple[Json, ...] = (
    {
        "name": IDEMPOTENCY_KEY_HEADER,
        "in": "header",
        "required": False,
        "description": "Key chosen by the client: a repeated request with it gets the answer of the first",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    },
)
_FIELD_NAMES: Json = {
    "name": FIELD_NAMES_PARAMETER,
    "in": "query",
    "required": False,
    "description": "Return fields under the names of versioned writes: `lineage_id`, `kind`, `metadata`",
    "schema": {"enum": [VERSIONED_FIELD_NAMES]},
}
_SECURITY_SCHEMES: dict[str, Json] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "kgs_…",
        "description": "A key from `kgserve keys create`; a server on a loopback address without keys requires none.",
    }
}


def build_openapi_document(app: Litestar) -> bytes:
    """Return the OpenAPI 3.1 document, as JSON, for all routes of ``app`` whose handlers have an Operation."""
    operations = list(_operations(app))
    paths: dict[str, Json] = {}
    for path, method, handler, operation in operations:
        paths.setdefault(path, {})[method.lower()] = _operation(path, handler, operation)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "kgserve",
            "version": __version__,
            "description": "Many small knowledge graphs, served from one process.",
        },
        "tags": [{"name": name, "description": text} for name, text in TAG_DESCRIPTIONS.items()],
        "paths": paths,
        "components": {
            "schemas": _schemas(operation for *_, operation in operations),
            "responses": {code: _problem(code) for code in ERROR_RESPONSE_KINDS},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }
    return msgspec.json.encode(document)


def _operations(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler, ApiOperation]]:
    """Yield path, method, handler and description of each operation, in the order of the table, then by path."""
    position = {case.operation.id: number for number, case in enumerate(USE_CASES)}
    found = [
        (route.path_format, method, handler, operation)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if (operation := handler.opt.get(OPERATION_OPT_KEY)) and not handler.opt.get(ALIAS_OPT_KEY)
    ]
    yield from sorted(found, key=lambda each: (position.get(each[3].id, len(position)), each[0], each[1]))


def _operation(path: str, handler: HTTPRouteHandler, operation: ApiOperation) -> Json:
    description: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": _text(path, handler, operation),
        "x-role": None if path in PUBLIC_PATHS else operation.role,
        "security": [] if path in PUBLIC_PATHS else [{"key": []}, {}],
        "parameters": [
            *_path_parameters(path),
            *_query_parameters(operation),
            *(_OF_DEFAULT if operation.of_default else ()),
            *(_IDEMPOTENCY if "idempotency_key_reused" in operation.errors else ()),
            *(_FIELD_NAMES for other in operation.others if other.media == VERSIONED_JSON_MEDIA_TYPE),
        ],
        "responses": _responses(operation),
    }
    if operation.request is not None:
        description["requestBody"] = {
            "required": operation.request.struct is not None and not operation.request.optional,
            "content": _content(operation.request),
        }
    return description


def _text(path: str, handler: HTTPRouteHandler, operation: ApiOperation) -> str:
    need = (
        "Requires no key."
        if path in PUBLIC_PATHS
        else f"Requires a key with the role {operation.role}, if there are keys."
    )
    return f"{cleandoc(handler.fn.__doc__ or '')}\n\n{need}"


def _responses(operation: ApiOperation) -> Json:
    answers: Json = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "headers": {name: _header(text) for name, text in operation.headers} | _REQUEST_ID,
            "content": _contents(operation.answer, *operation.others),
        }
        for status in operation.statuses
    }
    problems = {
        str(ERROR_RESPONSE_KINDS[code].status): {"$ref": f"#/components/responses/{code}"} for code in operation.errors
    }
    return answers | dict(sorted(problems.items()))


def _header(text: str) -> Json:
    return {"description": text, "schema": {"type": "string"}}


_REQUEST_ID = {"X-Request-Id": _header("Id of the request: the one that the client sent, or a new one")}


def _contents(*bodies: ApiBodyExample) -> Json:
    return {media: content for body in bodies for media, content in _content(body).items()}


def _content(body: ApiBodyExample) -> Json:
    example = msgspec.to_builtins(body.example)
    return {body.media: {"schema": _schema(body, example), "example": example}}


def _schema(body: ApiBodyExample, example: Any) -> Json:
    if body.struct is not None:
        reference: Json = {"$ref": _SCHEMA_REFERENCE.format(name=body.struct.__name__)}
        return {"type": "array", "items": reference} if body.many else reference
    return {"type": "string" if isinstance(example, str) else "object"}


def _path_parameters(path: str) -> Iterator[Json]:
    for name, description in _PARAMETERS.items():
        if f"{{{name}}}" in path:
            yield {"name": name, "in": "path", "required": True, **description}


def _query_parameters(operation: ApiOperation) -> Iterator[Json]:
    if operation.query is None:
        return
    _, components = msgspec.json.schema_components([operation.query], ref_template=_SCHEMA_REFERENCE)
    described = components[operation.query.__name__]
    for name, given in described["properties"].items():
        schema = _without_null(given)
        description = schema.pop("description", "")
        required = name in described.get("required", ())
        yield {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _without_null(schema: Json) -> Json:
    """Return the schema of a query parameter, which cannot be null, only omitted."""
    match schema:
        case {"anyOf": [one, {"type": "null"}], "default": None, **more}:
            return more | one
        case _:
            return schema


def _schemas(operations: Iterable[ApiOperation]) -> Json:
    structs: set[type[msgspec.Struct]] = {ProblemDetails, SubgraphNodeInput, SubgraphEdgeInput}
    for operation in operations:
        bodies = (operation.request, operation.answer, *operation.others)
        structs |= {body.struct for body in bodies if body and body.struct}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_SCHEMA_REFERENCE)
    return dict(components)


def _problem(code: str) -> Json:
    kind = ERROR_RESPONSE_KINDS[code]
    example = {
        "type": f"urn:kgserve:error:{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": "a sentence that says what was wrong",
        "instance": "urn:kgserve:request:5f0c9a3e1b7d2486",
    }
    schema = {"$ref": _SCHEMA_REFERENCE.format(name=ProblemDetails.__name__)}
    return {"description": kind.title, "content": {PROBLEM_JSON: {"schema": schema, "example": example}}}


_OPENAPI = ApiOperation(
    id="openapi",
    role="read",
    tag="service",
    summary="Describe this API in OpenAPI 3.1",
    note="With examples.",
    answer=ApiBodyExample(None, {"openapi": "3.1.0", "info": {"title": "kgserve"}}),
)
_OPENAPI_30 = ApiOperation(
    id="openapi30",
    role="read",
    tag="service",
    summary="Describe this API in OpenAPI 3.0",
    note="For client generators without support for 3.1.",
    answer=ApiBodyExample(None, {"openapi": _VERSION_30, "info": {"title": "kgserve"}}),
)
_DOCS = ApiOperation(
    id="docs",
    role="read",
    tag="service",
    summary="Show the API reference, to read and to try out",
    answer=ApiBodyExample(None, "<!doctype html>", "text/html; charset=utf-8"),
)
_STATIC = files("kgserve.server.http") / "static"
_GZIP_SUFFIX = ".gz"
_GZIP_WINDOW_BITS = 31
_DOCS_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Response headers of the documentation pages. ``no-cache``: browsers revalidate them by ETag."""


@get("/openapi.json", opt=build_litestar_opt(_OPENAPI))
async def serve_openapi_31_document(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return an OpenAPI 3.1 document of every operation, with schemas and examples."""
    return _document(await _cached_document(request.app))


@get("/openapi-3.0.json", opt=build_litestar_opt(_OPENAPI_30))
async def serve_openapi_30_document(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the document in OpenAPI 3.0, for client generators without support for 3.1; it is more lenient."""
    state = request.app.state
    if "openapi_30" not in state:
        state["openapi_30"] = msgspec.json.encode(
            convert_to_openapi_30(decode_json(await _cached_document(request.app)))
        )
    return _document(state["openapi_30"])


async def _cached_document(app: Litestar) -> bytes:
    # Built on first use: it takes half as long as creating the application, and most servers never need it.
    if "openapi" not in app.state:
        app.state["openapi"] = await asyncio.to_thread(build_openapi_document, app)
    return app.state["openapi"]


def _document(text: bytes) -> Response[bytes]:
    response = build_response_from_encoded_json(text)
    response.headers |= {"cache-control": "no-cache", "etag": compute_etag(text)}
    return response


@cache
def _page(name: str, media: str) -> Response[bytes]:
    text = (_STATIC / name).read_bytes()
    if name.endswith(_GZIP_SUFFIX):
        text = zlib.decompress(text, _GZIP_WINDOW_BITS)
    return Response(text, headers={**_DOCS_POLICY, "etag": compute_etag(text)}, media_type=media)


@get("/docs", opt=build_litestar_opt(_DOCS))
async def serve_docs_page() -> Response[bytes]:
    """Return a page that renders the API reference in the browser. It loads nothing from other sites."""
    return _page("docs.html", "text/html")


def _build_docs_file_handler(name: str, media: str) -> HTTPRouteHandler:
    @get(f"/docs/{name.rpartition('/')[2].removesuffix(_GZIP_SUFFIX)}")
    async def serve_docs_file() -> Response[bytes]:
        """Return a script or style sheet of the documentation page."""
        return _page(name, media)

    return serve_docs_file


DOCS_FILES = tuple(
    _build_docs_file_handler(name, media)
    for name, media in (
        ("docs.css", "text/css"),
        ("docs.js", "text/javascript"),
        ("swagger/swagger-ui.css", "text/css"),
        ("swagger/swagger-ui.js.gz", "text/javascript"),
    )
)
"""Handlers of the files that the documentation page loads; ``PUBLIC_PATHS`` lists their paths."""


def convert_to_openapi_30(document: Json) -> Json:
    """Return an OpenAPI 3.1 document converted to 3.0. Does not modify ``document``."""
    made = _with_schemas(document)
    schemas = {name: _schema_30(each) for name, each in document["components"]["schemas"].items()}
    return made | {"openapi": _VERSION_30, "components": made["components"] | {"schemas": schemas}}


def _with_schemas(part: Any) -> Any:
    """Return a part of a document with all its schemas converted to 3.0; examples stay unchanged."""
    if isinstance(part, list):
        return [_with_schemas(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _schema_30(value) if name == "schema" else value if name in _LITERAL else _with_schemas(value)
        for name, value in part.items()
    }


def _schema_30(schema: Json) -> Json:
    """Return a JSON Schema converted to the dialect of 3.0."""
    found = dict(_convert_keywords(schema))
    if schema.get("anyOf") or isinstance(schema.get("type"), list):
        found |= _convert_alternatives(found)
    if "enum" in found:
        found |= _enum_type(found["enum"])
    if "$ref" in found and len(found) > 1:
        found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found


def _convert_keywords(schema: Json) -> Iterator[tuple[str, Any]]:
    """Yield the converted keywords of a schema, nested schemas included."""
    for name, value in schema.items():
        match name:
            case "properties":
                yield name, {field: _schema_30(each) for field, each in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                yield name, [each if _is_null(each) else _schema_30(each) for each in value]
            case "items" | "additionalProperties" if isinstance(value, dict):
                yield name, _schema_30(value)
            case "const":
                yield "enum", [value]
            case "examples":
                yield "example", value[0]
            case "exclusiveMinimum" | "exclusiveMaximum":
                yield from ((_BOUNDS[name], value), (name, True))
            case _ if name not in _UNKNOWN_KEYWORDS and (name, value) != _NONE_REQUIRED:
                yield name, value
            case _:
                pass
    if schema.get("type") == "array" and "items" not in schema:
        yield "items", {}


def _convert_alternatives(schema: Json) -> Json:
    """Return the keywords that replace ``anyOf`` or a list of types; null becomes ``nullable``."""
    several = schema.pop("type", None)
    choices: list[Json] = schema.pop("anyOf", None) or [{"type": each} for each in several]
    kept = [each for each in choices if not _is_null(each)]
    nullable = {"nullable": True} if len(kept) < len(choices) else {}
    if len(kept) > 1:
        # ``nullable`` needs a type; a schema without one accepts null anyway.
        return {"anyOf": [each | nullable if "type" in each else each for each in kept]}
    [one] = kept
    if "$ref" in one:
        return {"allOf": [one], **nullable}
    return {**one, **schema, **nullable}


def _is_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null"


def _enum_type(values: list[Any]) -> Json:
    """Return the common type of enum values, which generators for 3.0 expect."""
    types = {_TYPE_NAMES.get(type(each)) for each in values if each is not None}
    found: Json = {"type": types.pop()} if len(types) == 1 and None not in types else {}
    return found | ({"nullable": True} if None in values else {})
