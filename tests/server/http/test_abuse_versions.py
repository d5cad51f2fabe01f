"""Invalid input to the routes of versions, validity and single edges: each refusal is a readable message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.leak_checks import assert_no_internals
from tests.server.http.serving import accepted, problem

JSON = {"content-type": "application/json"}
BAD = [
    *(r'"\ud800"', r'"\u0000"', "-1", "1.5", "1e400", "NaN", "true", "null", "[]", "{}", '""', '"soon"'),
    *(str(1 << 53), str(1 << 63), str(10**400), '"' + "ü" * 257 + '"', r'["\ud800"]', '[""]', "[null]"),
    *('{"a":NaN}', '{"a":9223372036854775808}', r'{"\ud800":1}', '"0001-01-01T00:00:00+23:59"'),
    *(
        '"9999-12-31T23:59:59-23:59"',
        '"2020-01-01T00:00:60Z"',
        '"２０２０-01-01T00:00:00Z"',
        '{"a":' * 70 + "1" + "}" * 70,
    ),
]
OF_NODE = [
    *("lineage_id", "kind", "content", "summary", "tags", "metadata", "freshness_at", "created_by"),
    *("valid_from", "valid_to", "based_on_version", "unknown"),
]
OF_EDGE = [
    *("from_ref", "from_lineage", "to_ref", "to_lineage", "to_graph", "kind", "metadata", "ordinal", "weight"),
    *("created_by", "valid_from", "valid_to", "unknown"),
]
NODE = {"lineage_id": "x", "kind": "k"}
KEY = {"from": "x", "to": "x", "relation_type": "k"}
PATHS = [
    *("%00", "%ff", "%ED%A0%80", "x" * 513, "a~b", "~~", "a~b~c~d", "%2500~b~c", "%25ED%25A0%2580~b~c", "a%257Eb~c~d"),
    *("%2E%2E", "a~b~" + "c" * 600, "%25FF~b~c", "+~b~c", "%20", "%25"),
]


@pytest.fixture(scope="module")
def api(http: httpx.Client) -> str:
    """Store with a node and an edge."""
    return fill(http, "/api/memory/abused-versions")


@pytest.fixture(scope="module")
def untouched(http: httpx.Client) -> str:
    """The same store, for requests that must be refused."""
    return fill(http, "/api/memory/refusing-versions")


def fill(http: httpx.Client, api: str) -> str:
    rows = {"nodes": [{"id": "x", "type": "k", "tags": ["q"]}], "edges": [KEY]}
    accepted(http.post(f"{api}/inject", json=rows))
    return api


def check(response: httpx.Response) -> httpx.Response:
    """Assert that a response is a valid answer or a readable problem."""
    asked = f"{response.request.method} {response.request.url} {response.request.content[:200]!r}"
    assert response.status_code < 500, f"{asked}: {response.text}"
    if response.status_code >= 400:
        check_words(problem(response.status_code, response.headers, response.content)["detail"], asked)
    return response


def check_words(text: str, asked: str) -> None:
    assert " " in text, asked
    assert len(text) < 2000, asked
    assert_no_internals(text)


def post(http: httpx.Client, url: str, body: str) -> httpx.Response:
    return check(http.post(url, content=body, headers=JSON))


def with_each(base: Mapping[str, str], field: str) -> Iterator[str]:
    """Yield the object with each invalid value."""
    rest = "".join(f"{json.dumps(name)}:{json.dumps(value)}," for name, value in base.items() if name != field)
    return (f'{{{rest}"{field}":{value}}}' for value in BAD)


@pytest.mark.parametrize("field", OF_NODE)
def test_nodes(http: httpx.Client, api: str, field: str) -> None:
    for body in with_each(NODE, field):
        post(http, f"{api}/nodes", body)


@pytest.mark.parametrize(("rows", "field"), [("nodes", "ref"), *(("edges", field) for field in OF_EDGE)])
def test_subgraphs(http: httpx.Client, api: str, rows: str, field: str) -> None:
    base = NODE if rows == "nodes" else {"from_lineage": "x", "to_lineage": "x", "kind": "k"}
    base = {name: value for name, value in base.items() if name != field.replace("_ref", "_lineage")}
    for body in with_each(base, field):
        answer = post(http, f"{api}/subgraph", f'{{"{rows}":[{body}]}}')
        if answer.status_code == 200:
            [result] = answer.json()[rows]
            assert ("error" in result) != bool(result.get("edge_id") or result.get("lineage_id")), body
            check_words(result.get("error", "no error"), body)


@pytest.mark.parametrize("rows", ["nodes", "edges", "unknown"])
def test_invalid_subgraphs_are_refused(http: httpx.Client, api: str, rows: str) -> None:
    for body in with_each({}, rows):
        answer = post(http, f"{api}/subgraph", body)
        if answer.status_code != 400:
            [result] = answer.json()[rows]
            check_words(result["error"], body)


@pytest.mark.parametrize("field", ["valid_to", "created_by", "unknown"])
def test_retiring(http: httpx.Client, api: str, field: str) -> None:
    for body in with_each({}, field):
        post(http, f"{api}/nodes/x/retire", body)
    for body in with_each(KEY, field):
        post(http, f"{api}/edges/retire", body)


@pytest.mark.parametrize("field", KEY)
def test_retiring_invalid_edges_is_refused(http: httpx.Client, untouched: str, field: str) -> None:
    for body in with_each(KEY, field):
        assert post(http, f"{untouched}/edges/retire", body).status_code in {400, 404}


@pytest.mark.parametrize("path", PATHS)
def test_paths(http: httpx.Client, untouched: str, path: str) -> None:
    for method, rest in (
        *(("GET", f"edges/{path}"), ("DELETE", f"edges/{path}"), ("POST", f"nodes/{path}/retire")),
        *(("GET", f"nodes/{path}/outgoing"), ("GET", f"nodes/{path}/incoming")),
    ):
        answer = check(http.request(method, f"{untouched}/{rest}"))
        if method == "DELETE" and answer.status_code == 200:
            assert not answer.json()["existed"]
        else:
            assert answer.status_code in {400, 404}


def test_invalid_bodies_are_refused(http: httpx.Client, untouched: str) -> None:
    for url in ("nodes", "subgraph", "nodes/x/retire", "edges/retire"):
        for body in ("[]", "null", "3", "{", '{"a":1,"a":2}', "\ufeff[]", '{"kind":"\\ud800"}', "{}{}"):
            assert post(http, f"{untouched}/{url}", body).status_code == 400
        plain: dict[str, Any] = {"content": "{}", "headers": {"content-type": "text/plain"}}
        assert check(http.post(f"{untouched}/{url}", **plain)).status_code == 415
