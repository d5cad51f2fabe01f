"""The API description, OpenAPI 3.1, built from what the handlers say about themselves; and the pages that show it.

Litestar's own generator loses ``additionalProperties: false`` and describes numbers so that integers match twice;
msgspec's schemas of the same Structs are exact, so the document is made from those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
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
    Body,
    Operation,
    described,
)
from kgserve.graph.answers import Problem
from kgserve.graph.compat.versioned_api import EdgeSpec, NodeSpec
from kgserve.graph.compat.versioned_names import FIELD_NAMES_PARAMETER, VERSIONED_FIELD_NAMES, VERSIONED_JSON_MEDIA_TYPE
from kgserve.platform.access.authentication import PUBLIC_PATHS
from kgserve.platform.codecs import decode_json
from kgserve.server.http.compression import etag_of
from kgserve.server.http.endpoints import json_answer
from kgserve.server.http.problem import PROBLEM_JSON, PROBLEM_KINDS
from kgserve.storage.model.store_names import MAX_STORE_NAME_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar import Litestar
    from litestar.handlers import HTTPRouteHandler

Json = dict[str, Any]

_SCHEMA_REFERENCE = "#/components/schemas/{name}"
TAG_DESCRIPTIONS = {
    "graph": "Write to the graph and walk it",
    "nodes": "Read, count and delete nodes, and list the types and tags in use",
    "stores": "Create, configure and delete stores: each is an isolated graph with its own journal",
    "cypher": "Query and change the graph in Cypher",
    "search": "Find nodes, and rebuild the indexes",
    "versions": "Write based on the version that was read, and merge or retire nodes",
    "history": "Read former states and writes, and go back to them",
    "memories": "Store and recall memories, whose confidence fades",
    "entities": "Name the entities that memories are about, and relate them",
    "analytics": "Count what a store remembers",
    "events": "Follow changes as they happen",
    "transfer": "Import and export whole stores",
    "backup": "Back up stores, and create stores from backups",
    "service": "Observe and manage the server",
}
# 3.0 has schemas of its own: null is no type but a property of others, an exclusive bound is a truth beside the bound,
# and nothing stands beside a reference. What it has no word for (names of properties) is left out, so that a schema may
# let through what the operation refuses, but never the other way round.
_VERSION_30 = "3.0.3"
_UNKNOWN_KEYWORDS = frozenset({"propertyNames", "patternProperties", "unevaluatedProperties", "$comment"})
_NONE_REQUIRED = ("required", [])
"""There it may not be empty."""
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
        (STORE_PARAMETER, "query", "Name of the store; left out: that of the header, or else the default store"),
        (STORE_HEADER, "header", "Name of the store, where the query has none"),
    )
)
_FIELD_NAMES: Json = {
    "name": FIELD_NAMES_PARAMETER,
    "in": "query",
    "required": False,
    "description": "Fields of the answer as versioned writes name them: `lineage_id`, `kind`, `metadata`",
    "schema": {"enum": [VERSIONED_FIELD_NAMES]},
}
_SECURITY_SCHEMES: dict[str, Json] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "kgs_…",
        "description": "A key of `kgserve keys create`; a server on a loopback address that has none asks for none.",
    }
}


def describe(app: Litestar) -> bytes:
    """The document for all routes of ``app`` whose handlers carry an Operation, as JSON."""
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
            "responses": {code: _problem(code) for code in PROBLEM_KINDS},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }
    return msgspec.json.encode(document)


def _operations(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler, Operation]]:
    for route in sorted(app.routes, key=lambda route: route.path_format):
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in sorted(route.route_handler_map.items()):
                if (operation := handler.opt.get(OPERATION_OPT_KEY)) and not handler.opt.get(ALIAS_OPT_KEY):
                    yield route.path_format, method, handler, operation


def _operation(path: str, handler: HTTPRouteHandler, operation: Operation) -> Json:
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


def _text(path: str, handler: HTTPRouteHandler, operation: Operation) -> str:
    need = "Needs no key." if path in PUBLIC_PATHS else f"Where keys are needed: one with the role {operation.role}."
    return f"{cleandoc(handler.fn.__doc__ or '')}\n\n{need}"


def _responses(operation: Operation) -> Json:
    answers: Json = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "headers": {name: _header(text) for name, text in operation.headers} | _REQUEST_ID,
            "content": _contents(operation.answer, *operation.others),
        }
        for status in operation.statuses
    }
    problems = {
        str(PROBLEM_KINDS[code].status): {"$ref": f"#/components/responses/{code}"} for code in operation.errors
    }
    return answers | dict(sorted(problems.items()))


def _header(text: str) -> Json:
    return {"description": text, "schema": {"type": "string"}}


_REQUEST_ID = {"X-Request-Id": _header("The request's id: the one sent along, or a new one")}


def _contents(*bodies: Body) -> Json:
    return {media: content for body in bodies for media, content in _content(body).items()}


def _content(body: Body) -> Json:
    example = msgspec.to_builtins(body.example)
    return {body.media: {"schema": _schema(body, example), "example": example}}


def _schema(body: Body, example: Any) -> Json:
    if body.struct is not None:
        reference: Json = {"$ref": _SCHEMA_REFERENCE.format(name=body.struct.__name__)}
        return {"type": "array", "items": reference} if body.many else reference
    return {"type": "string" if isinstance(example, str) else "object"}


def _path_parameters(path: str) -> Iterator[Json]:
    for name, description in _PARAMETERS.items():
        if f"{{{name}}}" in path:
            yield {"name": name, "in": "path", "required": True, **description}


def _query_parameters(operation: Operation) -> Iterator[Json]:
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
    """A query knows no null: what may be left out is left out."""
    match schema:
        case {"anyOf": [one, {"type": "null"}], "default": None, **more}:
            return more | one
        case _:
            return schema


def _schemas(operations: Iterable[Operation]) -> Json:
    structs: set[type[msgspec.Struct]] = {Problem, NodeSpec, EdgeSpec}
    for operation in operations:
        bodies = (operation.request, operation.answer, *operation.others)
        structs |= {body.struct for body in bodies if body and body.struct}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_SCHEMA_REFERENCE)
    return dict(components)


def _problem(code: str) -> Json:
    kind = PROBLEM_KINDS[code]
    example = {
        "type": f"urn:kgserve:error:{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": "a sentence about what happened",
        "instance": "urn:kgserve:request:5f0c9a3e1b7d2486",
    }
    schema = {"$ref": _SCHEMA_REFERENCE.format(name="Problem")}
    return {"description": kind.title, "content": {PROBLEM_JSON: {"schema": schema, "example": example}}}


_OPENAPI = Operation(
    id="openapi",
    role="read",
    tag="service",
    summary="Describe this interface in OpenAPI 3.1",
    note="For programs, with examples.",
    answer=Body(None, {"openapi": "3.1.0", "info": {"title": "kgserve"}}),
)
_OPENAPI_30 = Operation(
    id="openapi30",
    role="read",
    tag="service",
    summary="Describe this interface in OpenAPI 3.0",
    note="For client generators that know no later version; `make openapi` generates a client and uses it.",
    answer=Body(None, {"openapi": _VERSION_30, "info": {"title": "kgserve"}}),
)
_DOCS = Operation(
    id="docs",
    role="read",
    tag="service",
    summary="Show this description to read and to try out",
    note="For people, in a browser.",
    answer=Body(None, "<!doctype html>", "text/html; charset=utf-8"),
)
_STATIC = files("kgserve.server.http") / "static"
_DOCS_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""What the page may do. ``no-cache``: it is asked each time whether it has changed, which its tag tells."""


@get("/openapi.json", opt=described(_OPENAPI))
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """An OpenAPI 3.1 document of every operation, with schemas and examples."""
    return _document(await _described(request.app))


@get("/openapi-3.0.json", opt=described(_OPENAPI_30))
async def openapi_30(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The same in OpenAPI 3.0, for generators of clients that know no later version. It lets through a little more."""
    state = request.app.state
    if "openapi_30" not in state:
        state["openapi_30"] = msgspec.json.encode(as_openapi_30(decode_json(await _described(request.app))))
    return _document(state["openapi_30"])


async def _described(app: Litestar) -> bytes:
    """Made when somebody asks: it takes half of what making the application does, and most servers are never asked."""
    if "openapi" not in app.state:
        app.state["openapi"] = await asyncio.to_thread(describe, app)
    return app.state["openapi"]


def _document(text: bytes) -> Response[bytes]:
    response = json_answer(text)
    response.headers |= {"cache-control": "no-cache", "etag": etag_of(text)}
    return response


def _page(name: str, media: str) -> Response[bytes]:
    text = (_STATIC / name).read_bytes()
    return Response(text, headers={**_DOCS_POLICY, "etag": etag_of(text)}, media_type=media)


_HTML, _CSS, _SCRIPT = (
    _page("docs.html", "text/html"),
    _page("docs.css", "text/css"),
    _page("docs.js", "text/javascript"),
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


def as_openapi_30(document: Json) -> Json:
    """A document of 3.1 as one of 3.0. What is given stays as it is."""
    made = _with_schemas(document)
    schemas = {name: _schema_30(each) for name, each in document["components"]["schemas"].items()}
    return made | {"openapi": _VERSION_30, "components": made["components"] | {"schemas": schemas}}


def _with_schemas(part: Any) -> Any:
    """A part of a document with every schema in it as 3.0 has them; examples are no part of it."""
    if isinstance(part, list):
        return [_with_schemas(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _schema_30(value) if name == "schema" else value if name in _LITERAL else _with_schemas(value)
        for name, value in part.items()
    }


def _schema_30(schema: Json) -> Json:
    """A schema of JSON Schema as 3.0 has it."""
    found = dict(_words(schema))
    if schema.get("anyOf") or isinstance(schema.get("type"), list):
        found |= _alternatives(found)
    if "enum" in found:
        found |= _choices(found["enum"])
    if "$ref" in found and len(found) > 1:
        found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found


def _words(schema: Json) -> Iterator[tuple[str, Any]]:
    """The words of a schema, those in schemas below it included."""
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


def _alternatives(schema: Json) -> Json:
    """What takes the place of alternatives, or of several types, of which null may be one."""
    several = schema.pop("type", None)
    choices: list[Json] = schema.pop("anyOf", None) or [{"type": each} for each in several]
    kept = [each for each in choices if not _is_null(each)]
    nullable = {"nullable": True} if len(kept) < len(choices) else {}
    if len(kept) > 1:
        # Beside a type alone it says that null is taken, too; an empty schema takes it anyway.
        return {"anyOf": [each | nullable if "type" in each else each for each in kept]}
    [one] = kept
    if "$ref" in one:
        return {"allOf": [one], **nullable}
    return {**one, **schema, **nullable}


def _is_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null"


def _choices(values: list[Any]) -> Json:
    """The type of some values, if all have one: 3.0's generators look for it."""
    types = {_TYPE_NAMES.get(type(each)) for each in values if each is not None}
    found: Json = {"type": types.pop()} if len(types) == 1 and None not in types else {}
    return found | ({"nullable": True} if None in values else {})
