"""Invalid input to every route of memories, entities, relations and statistics: refused without effect."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from kgserve.api.memory_operation_table import MEMORY_CASES
from kgserve.api.operation import ApiUseCase
from tests.platform.access.keys import client, given
from tests.server.http.serving import RunningServer, accepted, problem, refusal
from tests.server.http.test_abuse_json import JSON, ODD

BODIES = [case for case in MEMORY_CASES if case.in_body]
LISTS = [case for case in MEMORY_CASES if case.method == "GET" and "{id}" not in case.path]
WRONG: dict[type, tuple[Any, ...]] = {
    str: (7, True, [], {}, 1.5),
    bool: ("yes", 2, [], {}),
    int: ("many", True, 1.5, [], {}, -(2**63) - 1, 2**63, 10**400),
    float: ("much", True, [], {}, -0.001, 1.001, 10**400),
    list: ("one", 7, {}, [7], [{}], [None], [[]]),
    dict: ("one", 7, [], [{}]),
}
TIMES = ("2025-01-01T00:00:00", "2025-01-01", "yesterday", "9999999-01-01T00:00:00Z", "2025-13-01T00:00:00Z", "\0")


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client of a store with a memory about an entity; both must be unchanged at the end."""
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=60) as client:
        body = {"content": "Tea at four", "id": "m", "entity_names": ["Ann"]}
        accepted(client.post("/api/memories", json=body), 201)
        before = client.get(f"/api/memory/{store}/export").content
        yield client
        assert client.get(f"/api/memory/{store}/export").content == before


def path_of(case: ApiUseCase) -> str:
    return case.path.replace("{id}", "Ann" if "/entities" in case.path else "m")


def example_of(case: ApiUseCase) -> dict[str, Any]:
    return msgspec.to_builtins(case.operation.request.example) if case.operation.request else {}


def send(of: httpx.Client, case: ApiUseCase, body: bytes | str) -> httpx.Response:
    return of.request(case.method, path_of(case), content=body, headers=JSON)


def refused(answer: httpx.Response, case: ApiUseCase, sent: object) -> None:
    said = f"{case.method} {case.path} {str(sent)[:300]}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code in {400, 413}, said
    problem(answer.status_code, answer.headers, answer.content)


def spoilt(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield copies of an example with one invalid value each."""
    for wrong in WRONG.get(type(value), ()):
        if not (type(value) is float and type(wrong) is int and 0 <= wrong <= 1):
            yield path, wrong
    if isinstance(value, dict) and path[-1:] != ("metadata",):
        for key, inner in value.items():
            yield from spoilt(inner, (*path, key))
    if isinstance(value, list) and value:
        yield from spoilt(value[0], (*path, 0))


def put_in(example: dict[str, Any], path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(example)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.abuse(38, 40)
def test_abuse_38_40_wrong_values_and_unknown_fields(of: httpx.Client) -> None:
    for case in BODIES:
        example = example_of(case)
        for path, wrong in spoilt(example):
            body = put_in(example, path, wrong)
            refused(send(of, case, json.dumps(body)), case, body)
        answer = send(of, case, json.dumps(example | {"unknown_field": 1}))
        refused(answer, case, "unknown_field")
        assert "unknown_field" in answer.json()["detail"], case.name


@pytest.mark.abuse(35, 36, 37)
def test_abuse_35_36_37_invalid_json(of: httpx.Client) -> None:
    for case in BODIES:
        name = next(iter(example_of(case)))
        for bad in (
            *(f'{{"{name}":{start * 50_000}' for start in ("[", '{"a":')),
            f'{{"metadata":{"[" * 50_000}',
            *(f'{{"{name}":{number}}}' for number in ("NaN", "Infinity", "-Infinity", "1e400")),
            *(f'{{"metadata":{{"x":{number}}},"{name}":"x"}}' for number in ("NaN", "1e400", "10" * 200)),
            f'{{"{name}":"\\ud800"}}',
            b'{"\xff":1}',
            f'{{"{name}":"'.encode() + b'\xed\xa0\x80"}',
            *("null", "[]", "{", "{}}", "\ufeff[]", '"x"'),
        ):
            refused(send(of, case, bad), case, bad)


def test_invalid_times_numbers_and_cursors_in_queries(of: httpx.Client) -> None:
    fields = {"before_date": TIMES[2:], "after_date": TIMES[2:], "valid_at": TIMES, "cursor": ("x", "é" * 9, "AAAA")}
    fields |= {"limit": ("0", "1001", "-1", "many", str(2**63)), "offset": ("-1", "1.5", str(10**30))}
    fields |= {"min_confidence": ("2", "-0.1", "nan", "inf", "x"), "layer": ("4", "-1", "x"), "buckets": ("0", "1001")}
    fields |= {"min_strength": ("2", "nan"), "metadata": ("x", "[]", "{", '{"a":NaN}'), "by": ("hour", "")}
    fields |= {"sort": ("oldest",), "ended": ("so",), "unknown_field": ("1",), "mode": ("magic",), "depth": ("11", "0")}
    asked = [case.path for case in LISTS] + ["/api/memories/search?q=tea", "/api/entities/Ann/graph"]
    taken = 0
    for path in asked:
        for name, values in fields.items():
            for value in values:
                answer = of.get(f"{path}{'&' if '?' in path else '?'}{name}={quote(value)}")
                said = f"{path} {name}={value}: {answer.status_code} {answer.text[:200]}"
                assert answer.status_code == 400, said
                assert name in problem(answer.status_code, answer.headers, answer.content)["detail"], said
                taken += 1
    assert taken > 300


@pytest.mark.abuse(43)
def test_abuse_43_odd_text_is_stored_exactly_or_refused(http: httpx.Client, store: str) -> None:
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}) as of:
        for odd in [*ODD, "a/b", "..", "%2F", "search/x", " ", "é" * 256]:
            at = quote(odd, safe="").replace(".", "%2E")
            body = {"content": odd + "!", "id": odd, "memory_type": odd, "tags": [odd], "source": odd, "context": odd}
            body |= {"metadata": {odd: odd}, "entity_names": [f"of {odd}"]}
            answer = of.post("/api/memories", json=body)
            if answer.status_code == 400:
                refusal(answer, 400)
                continue
            made = accepted(answer, 201)
            assert (made["id"], made["content"], made["memory_type"], made["tags"]) == (odd, odd + "!", odd, [odd])
            assert (made["metadata"], made["entities"][0]["name"]) == ({odd: odd}, f"of {odd}")
            assert accepted(of.get(f"/api/memories/{at}"))["context"] == odd
            assert accepted(of.get(f"/api/entities/of%20{at}"))["memories"] == 1
            found = accepted(of.get("/api/memories", params={"types": odd, "tags": odd, "source": odd}))["memories"]
            assert [each["id"] for each in found] == [odd]
            relation = {"source": f"of {odd}", "target": f"to {odd}", "relation_type": odd}
            made = accepted(of.post("/api/relations", json=relation), 201)
            listed = accepted(of.get("/api/relations", params={"type": odd}))["relations"]
            assert [(each["source"], each["relation_type"]) for each in listed] == [(f"of {odd}", odd)]
            accepted(of.delete(f"/api/relations/{quote(made['id'], safe='')}"))
            assert accepted(of.delete(f"/api/memories/{at}"))["existed"]


@pytest.mark.abuse(44)
def test_abuse_44_oversized_input(of: httpx.Client) -> None:
    huge = "x" * 10_000_000
    for method, path, body, status in (
        ("POST", "/api/memories", {"content": huge}, 413),
        ("PATCH", "/api/memories/m", {"content": huge}, 413),
        ("POST", "/api/memories/batch", {"memories": [{"content": "ok"}, {"content": huge}]}, 413),
        ("POST", "/api/memories/batch", {"memories": [{"content": "ok"}] * 1_001}, 400),
        ("POST", "/api/memories", {"content": "x", "context": huge}, 400),
        ("POST", "/api/memories", {"content": "x", "metadata": {"a": huge}}, 400),
        ("POST", "/api/memories", {"content": "x", "tags": [str(each) for each in range(101)]}, 400),
        ("POST", "/api/memories", {"content": "x", "entity_names": [str(each) for each in range(101)]}, 400),
        ("POST", "/api/memories/search", {"query": huge}, 400),
        ("POST", "/api/memories/delete", {"memory_ids": ["x" * 600]}, 400),
        ("POST", "/api/memories/delete", {"memory_ids": [str(each) for each in range(1_001)]}, 400),
        ("POST", "/api/entities", {"name": "x" * 600, "entity_type": "t"}, 400),
        ("POST", "/api/entities", {"name": "x", "entity_type": "t", "description": huge}, 413),
        ("POST", "/api/entities", {"name": "x", "entity_type": "t", "aliases": ["a" * 600]}, 400),
        ("POST", "/api/relations", {"source": "a", "target": "b", "relation_type": "x" * 600}, 400),
        ("POST", "/api/relations", {"source": "a", "target": "b", "relation_type": "r", "context": huge}, 400),
    ):
        answer = of.request(method, path, json=body)
        said = f"{method} {path} {str(body)[:80]}: {answer.status_code} {answer.text[:200]}"
        assert answer.status_code == status, said
        refusal(answer, status)


def test_errors_use_the_field_names_of_the_request(of: httpx.Client) -> None:
    long, deep = "é" * 300, {"n": 2**70}
    entity, relation = {"name": "x", "entity_type": "t"}, {"source": "a", "target": "b", "relation_type": "r"}
    for path, body, names in (
        ("/api/memories", {"content": "x", "memory_type": long, "metadata": deep}, ("memory_type", "metadata.n")),
        ("/api/entities", entity | {"entity_type": long, "metadata": deep}, ("entity_type", "metadata.n")),
        ("/api/relations", relation | {"source": long, "target": long}, ("source", "target")),
        ("/api/memories/batch", {"memories": [{"content": "x", "metadata": deep}]}, ("memories[0].metadata.n",)),
    ):
        errors = refusal(of.post(path, json=body), 400)["errors"]
        assert (
            tuple(each["path"].removeprefix("entities[0].").removeprefix("relations[0].") for each in errors) == names
        )


@pytest.mark.abuse(22)
def test_abuse_22_the_key_of_another_store(keyed: RunningServer, admin: httpx.Client) -> None:
    body = {"content": "Tea at four", "id": "m", "entity_names": ["Ann"]}
    accepted(admin.post("/api/memories?store=mine", json=body), 201)
    with client(keyed.url, given(keyed.data, "admin", ["other"], name="other")) as stranger:
        for case in MEMORY_CASES:
            body = json.dumps(example_of(case)) if case.in_body else None
            answer = stranger.request(case.method, f"{path_of(case)}?store=mine", content=body, headers=JSON)
            assert answer.status_code == 404, (case.name, answer.text)
            assert "Tea" not in answer.text
    assert accepted(admin.get("/api/memories/m?store=mine&touch=false"))["version"] == 1
