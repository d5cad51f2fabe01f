"""The client covers the REST API, and its synchronous and asynchronous classes are equal."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kgserve import errors
from kgserve.client import AsyncClient, AsyncStore, Client, Store, custom_request_builders, operations
from kgserve.client.custom_request_builders import PagedNodes
from kgserve.client.errors import ERRORS_BY_CODE, build_error_from_response
from kgserve.client.event_stream import ResumableSseListenerState
from kgserve.client.wire import ClientRequest, ClientRoute, StreamedAnswerRequest
from kgserve.graph.request_bodies import (
    CypherRequest,
    InjectRequest,
    LlmContextRequest,
    MultiQuerySearchRequest,
    SearchRequest,
    TraverseRequest,
)
from kgserve.server.http.error_responses import ERROR_RESPONSE_KINDS
from tests.client.scripted import problem

# For browsers, Prometheus, client generators and callers limited to GET; the clients recall by POST.
NOT_FOR_CLIENTS = {
    *(("GET", "/docs"), ("GET", "/metrics"), ("GET", "/api/memories/search"), ("GET", "/openapi-3.0.json")),
    *(("GET", "/api/v1/recall"), ("POST", "/api/v1/recall")),
}
SAMPLES: dict[str, tuple[Any, ...]] = {
    "get_nodes": (["a"],),
    "revert": ("a", 1),
    "put_node": ({"kind": "t"},),
    "search_batch": (["words"],),
    "import_": ([],),
    "store_memories": ([{"content": "words"}],),
    "retain_batch": ([{"content": "words"}],),
    "create_entities": ([{"name": "Ann", "entity_type": "person"}],),
    "delete_entities": (["Ann"],),
    "create_relations": ([{"source": "Ann", "target": "Bob", "relation_type": "knows"}],),
    "delete_relations": ([{"source": "Ann", "target": "Bob", "relation_type": "knows"}],),
}
"""Required arguments that are not all strings."""


def shown(kind: type) -> dict[str, Any]:
    """Return the public methods of a class."""
    own = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return {name: each for name, each in own.items() if not name.startswith("_") and callable(each)}


def requests_of(kind: type, name: str) -> Iterator[tuple[str, str]]:
    """Yield method and path of a client method's requests."""
    build = getattr(shown(kind)[name], "build", None)
    if build is None:
        return
    first = () if kind is Client and name not in {"create", "drop"} else ("s",)
    required = [each for each in inspect.signature(build).parameters.values() if each.default is each.empty]
    named = {each.name: "s" for each in required if each.kind is each.KEYWORD_ONLY}
    texts = ["a"] * (len(required) - len(named) - len(first))
    match build(*first, *SAMPLES.get(name, texts), **named):
        case ClientRequest() as call:
            yield call.route.method, call.route.path
        case StreamedAnswerRequest() as streamed:
            yield streamed.call.route.method, streamed.call.route.path
        case PagedNodes() as paged:
            yield paged.page().route.method, paged.page().route.path
        case ResumableSseListenerState() as following:
            yield following.call().route.method, following.call().route.path
        case other:
            raise AssertionError(f"{name} makes {other!r}")


def offered() -> set[tuple[str, str]]:
    return {request for kind in (Client, Store) for name in shown(kind) for request in requests_of(kind, name)}


def test_every_documented_operation_has_a_method(client: Client) -> None:
    documented = {
        (method.upper(), path) for path, each in client.openapi()["paths"].items() for method in each
    } - NOT_FOR_CLIENTS
    assert offered() == documented


def test_every_described_route_is_used() -> None:
    modules = (operations, custom_request_builders)
    routes = {
        (each.method, each.path)
        for each in (each for module in modules for each in vars(module).values())
        if isinstance(each, ClientRoute)
    }
    assert offered() == routes


@pytest.mark.parametrize(("kind", "other"), [(Client, AsyncClient), (Store, AsyncStore)])
def test_synchronous_and_asynchronous_classes_have_the_same_methods(kind: type, other: type) -> None:
    one, two = shown(kind), shown(other)
    assert list(one) == list(two)
    for name in one:
        assert getattr(one[name], "build", None) is getattr(two[name], "build", None), name
        given, taken = (list(inspect.signature(each).parameters.values()) for each in (one[name], two[name]))
        assert given == taken, name
        assert one[name].__doc__, name
        assert one[name].__doc__ == two[name].__doc__, name
    assert list(inspect.signature(kind).parameters) == list(inspect.signature(other).parameters)


@pytest.mark.parametrize(
    ("build", "struct"),
    [
        (operations.inject, InjectRequest),
        (operations.traverse, TraverseRequest),
        (operations.search, SearchRequest),
        (custom_request_builders.search_batch, MultiQuerySearchRequest),
        (operations.context, LlmContextRequest),
        (custom_request_builders.cypher, CypherRequest),
    ],
)
def test_parameters_are_the_fields_of_the_request(build: Any, struct: type[msgspec.Struct]) -> None:
    parameters = list(inspect.signature(build).parameters.values())[1:]
    fields = {field.name: field.default for field in msgspec.structs.fields(struct)}
    assert [each.name for each in parameters] == list(fields)
    for each in parameters:
        empty = each.default in (inspect.Parameter.empty, None, ())
        assert empty or each.default == fields[each.name], each.name


def tree(kind: type[errors.KgserveError]) -> Iterator[type[errors.KgserveError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from tree(each)


def test_every_error_is_raised_as_its_class() -> None:
    first = {each.code: each for each in reversed(list(tree(errors.KgserveError)))}
    first |= {"internal": errors.Internal, "unavailable": errors.Unavailable}
    assert first.keys() - ERRORS_BY_CODE.keys() == {
        "invalid", "kind_not_allowed", "conflict_manual", "gone", "limited", "unavailable",
    }  # fmt: skip
    for code, kind in first.items():
        known = build_error_from_response(
            ERROR_RESPONSE_KINDS[code].status, {}, problem(ERROR_RESPONSE_KINDS[code].status, code)
        )
        assert type(known) is kind
        assert str(known) == "not now"


def test_importing_the_client_skips_heavy_modules() -> None:
    heavy = "pyarrow", "networkx", "numpy", "litestar", "kuzu", "uvicorn", "mcp", "tantivy", "rich", "pygments", "click"
    heavy += "kgserve.server", "kgserve.platform.text.language_detection", "kgserve.platform.text.text_equality"
    program = f"import sys, kgserve.client; print([each for each in {heavy!r} if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"
