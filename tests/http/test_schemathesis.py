"""Requests made up from the API description: none may be answered with a 5xx or with what is not described."""

from __future__ import annotations

from typing import Any

import msgspec
import schemathesis
from hypothesis import HealthCheck, settings
from litestar import Litestar
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from kgserve.http.openapi import describe
from kgserve.http.routes import ROUTES
from tests.http.serving import Served


@schemathesis.serializer("application/x-ndjson")
def ndjson(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


description = msgspec.json.decode(describe(Litestar(ROUTES, openapi_config=None)))
schema = schemathesis.openapi.from_dict(description).exclude(path_regex="/events$")  # an event stream has no end
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@schema.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=SLOW)
def test_every_operation_keeps_its_description(case: schemathesis.Case[Any], served: Served) -> None:
    # What no schema says may be refused: a new node without a type, a cursor that no page gave, 513 bytes of UTF-8.
    excluded = [positive_data_acceptance]
    if case.path.endswith("/import"):  # any text is taken: wrong lines are listed in the answer
        excluded.append(negative_data_rejection)
    case.call_and_validate(base_url=served.url, excluded_checks=excluded)
