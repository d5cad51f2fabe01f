from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from kgserve.errors import FieldError, Internal, InvalidInput, KgserveError, RateLimited, Unavailable
from kgserve.server.http import error_responses
from kgserve.server.http.error_responses import (
    ERROR_RESPONSE_KINDS,
    HeadersTooLarge,
    HostNotAllowed,
    MethodNotAllowed,
    UrlTooLong,
    build_error_response,
)
from tests.captured_log import capture_log
from tests.server.http.serving import accepted

CLIENT_SIDE = ("kgserve.client", "kgserve.cli.shell")


def codes(root: type[KgserveError]) -> set[str]:
    children = (each for each in root.__subclasses__() if not each.__module__.startswith(CLIENT_SIDE))
    return {root.code}.union(*map(codes, children))


def body_of(error: Exception) -> dict[str, Any]:
    return msgspec.json.decode(build_error_response(error, "id-1").body)


def test_every_error_code_has_a_status() -> None:
    assert codes(KgserveError) == set(ERROR_RESPONSE_KINDS)


def test_error_statuses() -> None:
    designed = {
        "invalid": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404, "timeout": 408, "conflict": 409,
        "gone": 410, "too_large": 413, "unsupported": 415, "limited": 429, "internal": 500, "unavailable": 503,
        "storage_full": 507, "conflict_manual": 409, "kind_not_allowed": 400, "elsewhere": 307,
        "idempotency_key_reused": 422,
    }  # fmt: skip
    own = {MethodNotAllowed.code: 405, HostNotAllowed.code: 421, UrlTooLong.code: 414, HeadersTooLarge.code: 431}
    assert {code: kind.status for code, kind in ERROR_RESPONSE_KINDS.items()} == designed | own


def test_problem_document_names_request_and_fields() -> None:
    error = InvalidInput("two faults", (FieldError("nodes[0].id", "empty"), FieldError("edges", "too many")))
    assert body_of(error) == {
        "type": "urn:kgserve:error:invalid",
        "title": "Invalid input",
        "status": 400,
        "detail": "two faults",
        "instance": "urn:kgserve:request:id-1",
        "errors": [{"path": "nodes[0].id", "message": "empty"}, {"path": "edges", "message": "too many"}],
    }


@pytest.mark.parametrize("error", [RateLimited("slow down", 7), Unavailable("queue full", 7)])
def test_temporary_errors_have_retry_after(error: KgserveError) -> None:
    assert dict(build_error_response(error, "x").headers)[b"retry-after"] == b"7"


@pytest.mark.parametrize("error", [Internal("secret path /etc"), RuntimeError("secret"), HTTPException("secret")])
def test_internal_errors_are_logged_without_leaking(error: Exception) -> None:
    with capture_log() as lines:
        answer = build_error_response(error, "id-1")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert b"internal error" in answer.body
    assert [(line["event"], line["exc_info"]) for line in lines] == [("internal_error", error)]


def test_framework_errors_become_problem_documents() -> None:
    assert body_of(NotFoundException())["type"] == "urn:kgserve:error:not_found"
    refused = build_error_response(MethodNotAllowedException(headers={"allow": "GET"}), "x")
    assert (refused.status, dict(refused.headers)[b"allow"]) == (405, b"GET, HEAD")
    assert body_of(HTTPException("bad host", status_code=400))["detail"] == "bad host"


def test_an_error_answer_has_the_id_of_its_log_line(http: httpx.Client) -> None:
    with capture_log(request_id="find-me") as lines:
        http.get("/nowhere", headers={"x-request-id": "find-me"})
        accepted(http.get("/health"))
    [line] = lines
    assert line["event"] == "request"
    assert (line["method"], line["path"], line["status"]) == ("GET", "/nowhere", 404)
    assert line["ms"] > 0
    assert line["bytes"] > 0


def test_media_type() -> None:
    assert error_responses.PROBLEM_JSON == "application/problem+json"
