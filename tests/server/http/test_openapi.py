from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute
from schemathesis.specs.openapi.definitions import OPENAPI_30
from typing_extensions import override

import kgserve.cli.mcp_stdio
from kgserve.api import examples
from kgserve.api.operation import ALIAS_OPT_KEY
from kgserve.graph.request_bodies import EdgeKeyRequest, EdgeNdjsonLine, InjectRequest, NodeNdjsonLine, TraverseRequest
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.settings import Settings
from kgserve.server.app import create_app
from kgserve.server.http.openapi import convert_to_openapi_30
from kgserve.stores.pool import StorePool
from tests.server.http.serving import accepted

OURS = {f"/docs/{name}" for name in ("docs.css", "docs.js", "swagger-ui.css", "swagger-ui.js")} | {
    "/",
    "/explorer/{name}",
}
"""Pages and their parts, not operations."""


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    return accepted(http.get("/openapi.json"))


@pytest.fixture
def app(tmp_path: Any) -> Iterator[Litestar]:
    with StorePool(Settings(data_dir=tmp_path)) as pool:
        yield create_app(CallerStoreHandles(pool))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def test_openapi_lists_every_route(app: Litestar, document: dict[str, Any]) -> None:
    served = {
        f"{method} {route.path_format}"
        for route in app.routes
        if isinstance(route, HTTPRoute) and route.path_format not in OURS
        for method, (handler, _) in route.route_handler_map.items()
        if method != "OPTIONS" and not handler.opt.get(ALIAS_OPT_KEY)
    }
    assert {name for name, _ in operations(document)} == served


def test_every_operation_is_described_with_examples(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        assert len(operation["description"]) > 40, name
        assert operation["tags"], name
        bodies = [operation["responses"][status] for status in operation["responses"] if status < "300"]
        if "requestBody" in operation:
            bodies.append(operation["requestBody"])
        assert bodies, name
        for body in bodies:
            assert all(content["example"] for content in body["content"].values()), name
        for parameter in operation["parameters"]:
            assert parameter["description"], name


def test_descriptions_omit_the_exceptions_of_python_callers(document: dict[str, Any]) -> None:
    assert [name for name, operation in operations(document) if "Raises" in operation["description"]] == []
    known = Path(kgserve.cli.mcp_stdio.__path__[0]) / "known_answers.jsonl"
    assert "Raises" not in known.read_text(encoding="utf-8")


def test_every_tag_is_declared(document: dict[str, Any]) -> None:
    declared = {tag["name"] for tag in document["tags"]}
    assert {tag for _, operation in operations(document) for tag in operation["tags"]} == declared


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_errors_are_problem_documents(document: dict[str, Any]) -> None:
    for code, response in document["components"]["responses"].items():
        assert list(response["content"]) == ["application/problem+json"], code
    for name, operation in operations(document):
        references = [answer["$ref"] for status, answer in operation["responses"].items() if status >= "400"]
        assert "#/components/responses/internal" in references, name


def test_requests_allow_no_other_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in ("InjectRequest", "NodeInput", "EdgeInput", "EdgeKeyRequest", "TraverseRequest"):
        assert schemas[name]["additionalProperties"] is False


def test_every_schema_reference_resolves(document: dict[str, Any]) -> None:
    def references(item: Any) -> Iterator[str]:
        if isinstance(item, dict):
            for key, value in item.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(item, list):
            for value in item:
                yield from references(value)

    for reference in set(references(document)):
        place: Any = document
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]
        assert place


def test_request_examples_are_valid() -> None:
    msgspec.convert(examples.INJECT_REQUEST_EXAMPLE, InjectRequest)
    msgspec.convert(examples.EDGE_KEY_EXAMPLE, EdgeKeyRequest)
    msgspec.convert(examples.TRAVERSE_REQUEST_EXAMPLE, TraverseRequest)
    for line in examples.NDJSON_LINES_EXAMPLE.splitlines():
        msgspec.json.decode(line, type=NodeNdjsonLine | EdgeNdjsonLine)


class Links(HTMLParser):
    """Parser that collects everything a page would load or link to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in {"src", "href", "action"}]


def test_operations_are_in_the_order_of_use(document: dict[str, Any]) -> None:
    assert [tag["name"] for tag in document["tags"]][:3] == ["graph", "search", "memories"]
    first: dict[str, list[str]] = {}
    for item in document["paths"].values():
        for operation in item.values():
            first.setdefault(operation["tags"][0], []).append(operation["operationId"])
    assert first["graph"][:2] == ["inject", "traverse"]
    assert first["search"][0] == "search"


@pytest.mark.parametrize("path", ["/docs", "/docs/docs.css", "/docs/docs.js"])
def test_the_docs_load_nothing_from_elsewhere(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for trace in ("http:", "https:", 'src="//', "@import", " url("):
        assert trace not in answer.text, trace


def test_the_docs_page_links_to_what_exists(http: httpx.Client) -> None:
    page = Links()
    page.feed(http.get("/docs").text)
    assert len(page.found) >= 5
    for link in page.found:
        if link.startswith("/"):
            assert http.get(link).status_code == 200
        else:
            assert link.startswith(("#", "data:,"))


@pytest.fixture(scope="module")
def older(http: httpx.Client) -> dict[str, Any]:
    return accepted(http.get("/openapi-3.0.json"))


def test_openapi_30_lists_every_operation(document: dict[str, Any], older: dict[str, Any]) -> None:
    assert [*jsonschema_rs.validator_for(OPENAPI_30).iter_errors(older)] == []
    assert older["openapi"].startswith("3.0.")
    assert dict(operations(older)).keys() == dict(operations(document)).keys()
    assert older["components"]["schemas"].keys() == document["components"]["schemas"].keys()


def test_examples_match_both_openapi_versions(document: dict[str, Any], older: dict[str, Any]) -> None:
    """3.0 drops unknown keywords, so everything that 3.1 accepts it accepts, too."""
    for described, read in ((document, lambda schema: schema), (older, of_openapi_30)):
        components = {"components": {"schemas": read(described["components"]["schemas"])}}
        for _, operation in operations(described):
            bodies = [operation["responses"][status] for status in operation["responses"] if status < "300"]
            bodies += [operation["requestBody"]] if "requestBody" in operation else []
            for media, content in ((media, each) for body in bodies for media, each in body["content"].items()):
                if "json" in media and "$ref" in str(content["schema"]):
                    jsonschema_rs.validate(read(content["schema"]) | components, content["example"])


def of_openapi_30(part: Any) -> Any:
    """Convert schemas of 3.0 to JSON Schema, by the rules of that specification."""
    if isinstance(part, list):
        return [of_openapi_30(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {name: value if name == "default" else of_openapi_30(value) for name, value in part.items()}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if made.pop(exclusive, False) is True:
            made[exclusive] = made.pop(bound)
    if made.pop("nullable", False) is True:
        return {"anyOf": [made, {"type": "null"}]}
    return made


@pytest.mark.parametrize(
    ("newer", "expected"),
    [
        ({"type": ["string", "null"], "maxLength": 3}, {"type": "string", "maxLength": 3, "nullable": True}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        (
            {"anyOf": [{"$ref": "#/a"}, {"type": "null"}], "default": None},
            {"allOf": [{"$ref": "#/a"}], "nullable": True, "default": None},
        ),
        ({"$ref": "#/a", "description": "d"}, {"allOf": [{"$ref": "#/a"}], "description": "d"}),
        (
            {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "integer", "nullable": True}, {"type": "string", "nullable": True}]},
        ),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, None]}, {"type": "integer", "enum": [1, None], "nullable": True}),
        ({"examples": [{"const": 1}, 2]}, {"example": {"const": 1}}),
        ({"exclusiveMinimum": 0, "type": "number"}, {"minimum": 0, "exclusiveMinimum": True, "type": "number"}),
        ({"type": "object", "propertyNames": {"maxLength": 3}, "required": []}, {"type": "object"}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        (
            {"properties": {"const": {"const": True}}, "additionalProperties": {"type": ["null", "number"]}},
            {
                "properties": {"const": {"type": "boolean", "enum": [True]}},
                "additionalProperties": {"type": "number", "nullable": True},
            },
        ),
    ],
)
def test_schema_conversion_rules(newer: dict[str, Any], expected: dict[str, Any]) -> None:
    document = {
        "paths": {"/a": {"schema": newer, "example": {"schema": newer}}},
        "components": {"schemas": {"A": newer}},
    }
    made = convert_to_openapi_30(document)
    assert made["components"]["schemas"]["A"] == expected
    assert made["paths"]["/a"] == {"schema": expected, "example": {"schema": newer}}
