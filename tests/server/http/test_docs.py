"""The documentation page on a server with keys: the page is public, its content is not."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.platform.access.keys import bearer, given
from tests.server.http.serving import RunningServer, accepted, refusal, serving


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("docs") / "data"
    given(data, "admin")
    with serving(data, indexes=False) as running:
        accepted(httpx.put(f"{running.url}/api/memory/payroll", headers=bearer(given(data, "write"))), 201)
        yield running


@pytest.mark.parametrize("path", ["/docs", "/docs/docs.css", "/docs/docs.js", "/docs/swagger-ui.js"])
def test_docs_page_is_public_without_data(keyed: RunningServer, path: str) -> None:
    answer = httpx.get(f"{keyed.url}{path}")
    assert answer.status_code == 200
    assert "payroll" not in answer.text
    assert answer.content == httpx.get(f"{keyed.url}{path}", headers=bearer(given(keyed.data, "read"))).content
    assert "'unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/docs/", "/docs/other", "/docs/docs.js/", "/docs/..%2fopenapi.json", "/DOCS"])
def test_paths_below_docs_require_a_key(keyed: RunningServer, path: str) -> None:
    refusal(httpx.get(f"{keyed.url}{path}"), 401)


def test_openapi_requires_a_key(keyed: RunningServer) -> None:
    refusal(httpx.get(f"{keyed.url}/openapi.json"), 401)
    described = accepted(httpx.get(f"{keyed.url}/openapi.json", headers=bearer(given(keyed.data, "read"))))
    assert described["paths"]["/docs"]["get"]["security"] == []


def test_the_script_sends_a_key_as_a_header_and_forgets_it_with_the_tab(keyed: RunningServer) -> None:
    script = httpx.get(f"{keyed.url}/docs/docs.js").text
    assert "Authorization: `Bearer ${key()}`" in script
    assert 'fetch("/openapi.json", { headers: authorization() })' in script
    assert "sessionStorage" in script
    assert "requestInterceptor: prepare" in script
    for lasting in ("localStorage", "document.cookie", "innerHTML"):
        assert lasting not in script
    page = httpx.get(f"{keyed.url}/docs").text
    assert '<input id="key" type="password" autocomplete="off"' in page
