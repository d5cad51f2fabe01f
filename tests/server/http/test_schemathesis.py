"""Requests generated from the API description: none may give a 5xx or an undocumented response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from litestar import Litestar
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from kgserve.api.operation import OPERATION_OPT_KEY, ApiOperation
from kgserve.server.http.openapi import build_openapi_document
from kgserve.server.http.routes import ROUTES
from tests.fuzzing import examples, is_thorough
from tests.leak_checks import assert_no_internals
from tests.platform.access.keys import bearer, given
from tests.server.http.serving import RunningServer, serving


@schemathesis.serializer("application/x-ndjson")
def ndjson(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


description = msgspec.json.decode(build_openapi_document(Litestar(ROUTES.routes, openapi_config=None)))
# An oversized request may be refused for its size before other errors are found.
REJECTED = ["400", "401", "403", "404", "405", "409", "410", "413", "414", "415", "429", "431", "503"]
# Each worker process generates the covering cases before its first test: 2,800 of them, in 10 s.
CONFIG = {
    "checks": {"negative_data_rejection": {"expected-statuses": REJECTED}},
    "phases": {"coverage": {"enabled": is_thorough()}},
}
# The documented examples are tested elsewhere; permissions do not depend on them.
ROLES = {"phases": {"coverage": {"enabled": False}, "examples": {"enabled": is_thorough()}}}
schema = schemathesis.openapi.from_dict(description, config=SchemathesisConfig.from_dict(CONFIG)).exclude(
    path_regex="/events$"  # An event stream has no end.
)
made_up = schemathesis.openapi.from_dict(description, config=SchemathesisConfig.from_dict(ROLES)).exclude(
    path_regex="/events$"
)
PUBLIC = {"health", "ready", "docs"}
ABOUT_ITSELF = {"openapi", "openapi30", "docs"}  # They may describe the software.
CALLERS = {"nobody": "", "reader": "read", "writer": "write", "administrator": "admin", "stranger": "admin"}
ALLOWED = {
    "read": {"reader", "writer", "administrator"},
    "write": {"writer", "administrator"},
    "admin": {"administrator"},
}


@pytest.fixture(scope="module")
def connection() -> Iterator[requests.Session]:
    """One connection for all requests; a new one for each costs more than most requests."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


@schema.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@examples(2, times=150)
def test_every_operation_matches_its_openapi_description(
    case: schemathesis.Case[Any], served: RunningServer, connection: requests.Session
) -> None:
    # Schemas cannot express some refusals: a new node without a type, an invalid cursor, 513 bytes of UTF-8.
    excluded = [positive_data_acceptance]
    if case.path.endswith("/import"):  # Any text is accepted: the answer lists wrong lines.
        excluded.append(negative_data_rejection)
    case.call_and_validate(base_url=served.url, excluded_checks=excluded, session=connection)


@pytest.fixture(scope="module")
def operations() -> dict[str, ApiOperation]:
    """All operations by id."""
    app = Litestar(ROUTES.routes, openapi_config=None)
    handlers = [handler for route in app.routes for handler in getattr(route, "route_handlers", ())]
    found: list[ApiOperation] = [
        handler.opt[OPERATION_OPT_KEY] for handler in handlers if OPERATION_OPT_KEY in handler.opt
    ]
    return {operation.id: operation for operation in found}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with keys."""
    with serving(tmp_path_factory.mktemp("keyed") / "data", rate_limit=0) as running:
        yield running


@pytest.fixture(scope="module")
def keys(keyed: RunningServer) -> dict[str, dict[str, str]]:
    """Headers of each caller."""
    stores = {"stranger": ["elsewhere-*"]}
    return {
        name: bearer(given(keyed.data, role, stores.get(name, ["*"]), name)) if role else {}  # pyright: ignore[reportArgumentType]
        for name, role in CALLERS.items()
    }


# Hypothesis warns when a failing or rejected request is long to print; long requests are wanted here.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@made_up.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@examples(1, times=40)
def test_every_operation_enforces_roles(
    case: schemathesis.Case[Any],
    keyed: RunningServer,
    keys: dict[str, dict[str, str]],
    operations: dict[str, ApiOperation],
    connection: requests.Session,
) -> None:
    operation = operations[case.operation.definition.raw["operationId"]]
    for name, headers in keys.items():
        answer = case.call(base_url=keyed.url, headers=headers, session=connection)
        asked = f"{name}: {case.method} {case.formatted_path}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, asked
        assert_role(name, operation, answer.status_code, asked, of_store="{store}" in case.path)
        if operation.id not in ABOUT_ITSELF:
            assert_no_internals(answer.content.decode(errors="replace"), keyed.data)


def assert_role(caller: str, operation: ApiOperation, status: int, asked: str, *, of_store: bool) -> None:
    """Assert 401 without a key, 403 for a lesser role, and 404 for inaccessible stores."""
    if status in {405, 414}:  # Another method than the operation's, or a long URL: refused before authorization.
        return
    if operation.id in PUBLIC:
        assert status not in {401, 403}, asked
    elif caller == "nobody":
        assert status == 401, asked
    elif status == 400 and "Kgserve-Store: a store's name is" in asked:
        return  # An invalid store name belongs to no caller.
    elif caller == "stranger":
        assert status in {400, 404, 405} or not of_store, asked
    elif caller not in ALLOWED[operation.role]:
        assert status == 403, asked
    else:
        assert status != 401, asked
