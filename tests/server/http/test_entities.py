from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from tests.server.http.serving import accepted, refusal

MEBIBYTE = 1 << 20


def put(http: httpx.Client, api: str, **node: Any) -> int:
    return accepted(http.post(f"{api}/inject", json={"nodes": [{"type": "memory", **node}]}))["sequence"]


def ask(http: httpx.Client, store: str, entity: str, **query: Any) -> httpx.Response:
    # Clients normalize dot segments.
    segment = quote(entity, safe="").replace(".", "%2E")
    return http.get(f"/api/v1/entities/{segment}/history", params={"store": store, **query})


def versions(http: httpx.Client, store: str, entity: str, **query: Any) -> list[dict[str, Any]]:
    answer = ask(http, store, entity, **query)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=list[dict[str, Any]])


@pytest.mark.parametrize("entity", ["alice-location", "a/b", "ü?#%2F", ".."])
def test_the_versions_of_an_entity_in_order(http: httpx.Client, store: str, api: str, entity: str) -> None:
    put(http, api, id=entity, content="in Bern", attributes={"layer": 2, "parent_id": "alice"})
    put(http, api, id="other")
    put(http, api, id=entity, content="in Rome", attributes={"mood": "good"})
    first, second = versions(http, store, entity)
    assert list(first) == [
        "id", "entity_id", "content", "layer", "parent_id", "valid_from", "valid_to", "version", "type", "attributes",
        "sequence",
    ]  # fmt: skip
    assert [(each["id"], each["entity_id"]) for each in (first, second)] == [
        (f"{entity}@1", entity),
        (f"{entity}@3", entity),
    ]
    assert [each["content"] for each in (first, second)] == ["in Bern", "in Rome"]
    assert [(each["layer"], each["parent_id"]) for each in (first, second)] == [(2, "alice"), (None, None)]
    assert [(each["version"], each["sequence"], each["type"]) for each in (first, second)] == [
        (1, 1, "memory"),
        (2, 3, "memory"),
    ]
    assert first["valid_from"] < first["valid_to"] == second["valid_from"]
    assert second["valid_to"] is None
    assert second["attributes"] == {"mood": "good"}


def test_deleted_and_recreated_entity_keeps_separate_versions(http: httpx.Client, store: str, api: str) -> None:
    put(http, api, id="a", content="one")
    accepted(http.delete(f"{api}/nodes/a"))
    (only,) = versions(http, store, "a")
    assert only["valid_to"] is not None
    put(http, api, id="a", content="again")
    found = versions(http, store, "a")
    assert [each["version"] for each in found] == [1, 2]
    assert [each["id"] for each in found] == ["a@1", "a@3"]


def test_entity_history_pagination(http: httpx.Client, store: str, api: str) -> None:
    for number in range(5):
        put(http, api, id="a b", content=f"{number}")
    path, found = f"/api/v1/entities/a%20b/history?store={store}&limit=2", list[str]()
    while path:
        answer = http.get(path)
        found += [each["content"] for each in answer.json()]
        link = re.fullmatch(r"<(.*)>; rel=next", answer.headers.get("link", ""))
        path = link[1] if link else ""
    assert found == list("01234")
    assert [each["content"] for each in versions(http, store, "a b", after_sequence=3)] == ["3", "4"]
    assert versions(http, store, "a b", after_sequence=5) == []


def test_a_page_of_large_versions_ends_early(http: httpx.Client, store: str, api: str) -> None:
    for number in range(23):
        put(http, api, id="a", content=f"{number}".ljust(MEBIBYTE, "x"))
    page = ask(http, store, "a")
    contents = [each["content"][:2].rstrip("x") for each in page.json()]
    assert contents == [f"{number}" for number in range(20)]
    assert page.headers["link"].endswith("after_sequence=20>; rel=next")
    assert len(versions(http, store, "a", after_sequence=20)) == 3


def test_invalid_entity_history_requests_are_refused(http: httpx.Client, store: str, api: str) -> None:
    put(http, api, id="a")
    refusal(ask(http, store, "never"), 404)
    refusal(ask(http, f"{store}-not-there", "a"), 404)
    assert "'default'" in refusal(http.get("/api/v1/entities/a/history"), 404)["detail"]
    for query in ({"limit": 0}, {"limit": 1001}, {"after_sequence": -1}, {"colour": "red"}):
        refusal(ask(http, store, "a", **query), 400)
