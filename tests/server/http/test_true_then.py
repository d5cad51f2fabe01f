"""Valid time over HTTP: superseded, late and corrected memories, by every way of reading."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from kgserve.platform.timestamps import parse_rfc3339_timestamp
from tests.server.http.serving import accepted, refusal
from tests.stores.writing import until

Json = dict[str, Any]
Ways = dict[str, list[str]]
ALICE = [{"name": "Alice", "entity_type": "person"}]
STEPS: list[Json] = [
    {"content": "Alice lives in Berlin.", "entity_id": "home", "valid_from": "2022-01-01T00:00:00Z", "entities": ALICE},
    {"content": "Alice lives in London.", "supersedes": "home", "valid_from": "2025-01-01T00:00:00Z"},
    {
        "content": "Alice lives in Madrid.",
        "entity_id": "home",
        "valid_from": "2019-01-01T00:00:00Z",
        "valid_to": "2021-01-01T00:00:00Z",
    },
    {"content": "Alice lives in London, England.", "entity_id": "home", "update": "correct"},
]
CYPHER = (
    "MATCH (a:Entity {id: 'Alice'})<-[r:RELATES_TO {relation_type: 'is_about'}]-(m:Entity) "
    "WHERE (m.valid_from IS NULL OR m.valid_from <= timestamp($at)) "
    "AND (m.valid_to IS NULL OR m.valid_to > timestamp($at)) RETURN m.content"
)
NOW = "2026-06-01T00:00:00Z"


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client whose header names the test's store."""
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=30) as client:
        yield client


def retained(of: httpx.Client, content: str, **wanted: Any) -> Json:
    answer = accepted(of.post("/api/v1/retain", json={"content": content, **wanted}))
    return next(each for each in answer["operations"] if each["type"] != "link") | {"sequence": answer["sequence"]}


def versions(of: httpx.Client, memory: str) -> list[Json]:
    return of.get(f"/api/v1/entities/{memory}/history").json()


def told(of: httpx.Client, memory: str) -> list[tuple[str, str | None, str | None]]:
    """Return the content of each version, and the years of its bounds."""
    return [
        (each["content"], each["valid_from"] and each["valid_from"][:4], each["valid_to"] and each["valid_to"][:4])
        for each in versions(of, memory)
    ]


def said(of: httpx.Client, memory: str, moment: str | None = None) -> list[str]:
    """Return the content of a memory at a time, from lists."""
    page = accepted(of.get("/api/memories", params={"limit": 1000} | ({"valid_at": moment} if moment else {})))
    return [each["content"] for each in page["memories"] if each["id"].partition("@")[0] == memory]


def moments(**asked: str | int | None) -> Json:
    return {name: value for name, value in asked.items() if value is not None}


def homes(of: httpx.Client, store: str, at_least: int, valid_at: str | None, as_of: int | None = None) -> Ways:
    """Return where Alice lives, by every way of reading."""
    when = moments(valid_at=valid_at, as_of=as_of)
    query: Json = {"query": "where does Alice live", "limit": 20, "at_least": at_least, **when}
    api = f"/api/memory/{store}"
    # Indexes of a store wait while those of a large one are built.
    until(lambda: of.post(f"{api}/search", json=query).status_code == HTTPStatus.OK)
    ways = {
        "recall": of.post("/api/v1/recall", json={**query, "touch": False}).json(),
        "memories": accepted(of.post("/api/memories/search", json={**query, "touch": False}))["hits"],
        "search": accepted(of.post(f"{api}/search", json=query))["hits"],
        "traverse": accepted(of.post(f"{api}/traverse", json={"start_id": "Alice", "direction": "both", **when}))[
            "nodes"
        ],
    }
    if as_of is None:
        ways["list"] = accepted(of.get("/api/memories", params={"entity": "Alice", **when}))["memories"]
        asked = {"query": CYPHER, "params": {"at": (valid_at or NOW).replace("T", " ").removesuffix("Z")}}
        rows = accepted(of.post(f"{api}/cypher", json=asked))["rows"]
        ways["cypher"] = [{"content": row[0]} for row in rows]
    contents = {name: [each.get("node", each)["content"] for each in found] for name, found in ways.items()}
    return {name: [each for each in found if each.startswith("Alice lives")] for name, found in contents.items()}


@pytest.mark.parametrize("history", ["all", "none"])
def test_valid_time_is_consistent_in_every_read(of: httpx.Client, store: str, history: str) -> None:
    accepted(of.put(f"/api/memory/{store}", json={"history": history}), 201)
    known = [retained(of, **step)["sequence"] for step in STEPS]
    found = versions(of, "home")
    assert [(each["content"].split()[3][:6], each["valid_from"][:4], each["valid_to"]) for each in found] == [
        ("Madrid", "2019", "2021-01-01T00:00:00.000000Z"),
        ("Berlin", "2022", "2025-01-01T00:00:00.000000Z"),
        ("London", "2025", None),
    ]
    assert {each["entity_id"] for each in found} == {"home"}
    for moment, expected in (
        ("2020-06-01T00:00:00Z", ["Alice lives in Madrid."]),
        ("2021-06-01T00:00:00Z", []),
        ("2023-06-01T00:00:00Z", ["Alice lives in Berlin."]),
        (None, ["Alice lives in London, England."]),
    ):
        ways = homes(of, store, known[-1], moment)
        assert ways == dict.fromkeys(ways, expected), moment
    # As recorded before each step.
    if history == "none":
        refusal(of.post("/api/v1/recall", json={"query": "Alice", "as_of": known[0]}), 409)
        return
    for at, now, in_2020 in (
        (known[0] - 1, [], []),
        (known[0], ["Alice lives in Berlin."], []),
        (known[1], ["Alice lives in London."], []),
        (known[2], ["Alice lives in London."], ["Alice lives in Madrid."]),
        (known[3], ["Alice lives in London, England."], ["Alice lives in Madrid."]),
    ):
        if at == 0:
            continue
        for moment, expected in ((None, now), ("2020-06-01T00:00:00Z", in_2020)):
            ways = homes(of, store, known[-1], moment, as_of=at)
            assert ways == dict.fromkeys(ways, expected), (at, moment)


def test_future_memory_keeps_the_current_one_until_then(of: httpx.Client) -> None:
    retained(of, "The rate is 3 %.", entity_id="rate", valid_from="2020-01-01T00:00:00Z")
    retained(of, "The rate is 4 %.", entity_id="rate", valid_from="2090-01-01T00:00:00Z")
    assert said(of, "rate") == ["The rate is 3 %."]
    assert said(of, "rate", "2091-01-01T00:00:00Z") == ["The rate is 4 %."]
    # A future end, and a start before it.
    retained(of, "The fee is 1 %.", entity_id="fee", valid_from="2020-01-01T00:00:00Z", valid_to="2090-01-01T00:00:00Z")
    retained(of, "The fee is 2 %.", entity_id="fee", valid_from="2024-01-01T00:00:00Z")
    assert said(of, "fee") == ["The fee is 2 %."]
    assert told(of, "fee") == [("The fee is 1 %.", "2020", "2024"), ("The fee is 2 %.", "2024", None)]
    # An open end in the middle ends where the next version begins.
    retained(of, "The fee is 0 %.", entity_id="fee", valid_from="2022-01-01T00:00:00Z")
    assert [each[0] for each in told(of, "fee")] == ["The fee is 1 %.", "The fee is 0 %.", "The fee is 2 %."]
    assert said(of, "fee", "2023-01-01T00:00:00Z") == ["The fee is 0 %."]
    assert said(of, "fee") == ["The fee is 2 %."]


def test_later_write_wins_for_the_same_start(of: httpx.Client) -> None:
    for content in ("one", "two", "three"):
        retained(of, content, entity_id="m", valid_from="2020-01-01T00:00:00Z")
    assert said(of, "m") == said(of, "m", "2021-06-01T00:00:00Z") == ["three"]
    for content, year in (("four", 2021), ("five", 2020), ("six", 2021)):
        retained(of, content, entity_id="m", valid_from=f"{year}-01-01T00:00:00Z")
    assert told(of, "m") == [("five", "2020", "2021"), ("six", "2021", None)]


def test_old_versions_are_not_superseded_deduplicated_or_counted(of: httpx.Client) -> None:
    retained(of, "Tea is at four.", entity_id="tea", valid_from="2020-01-01T00:00:00Z")
    retained(of, "Tea is at five.", entity_id="tea", valid_from="2021-01-01T00:00:00Z")
    [former] = [each["id"] for each in versions(of, "tea") if each["id"] != "tea" and each["valid_to"]]
    for asked in ({"supersedes": former}, {"supersedes": former, "update": "correct"}):
        refused = refusal(of.post("/api/v1/retain", json={"content": "Tea is at six.", **asked}), 409)
        assert "'tea'" in refused["detail"]
    refusal(of.patch(f"/api/memories/{former}", json={"content": "x"}), 404)
    assert accepted(of.get("/api/analytics/overview"))["total_memories"] == 1
    again = of.post("/api/memories", json={"content": "Tea is at four."})
    assert (again.status_code, again.json()["outcome"]) == (201, "created")
    for unknown in ("nobody", "tea@99999"):
        refusal(of.get(f"/api/v1/entities/{unknown}/history"), 404)


@pytest.mark.parametrize("at_once", [1, 5])
def test_concurrent_supersessions_form_one_chain(
    of: httpx.Client, http: httpx.Client, store: str, at_once: int
) -> None:
    retained(of, "state", entity_id="m", valid_from="2000-01-01T00:00:00Z")

    def supersede(number: int) -> None:
        with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=30) as own:
            items = [
                {
                    "content": f"state {number} {at}",
                    "supersedes": "m",
                    "valid_from": f"20{10 + (7 * number + at) % 80}-01-01T00:00:00Z",
                }
                for at in range(at_once)
            ]
            accepted(own.post("/api/v1/retain/batch", json={"items": items}))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(supersede, range(8)))
    chain = versions(of, "m")
    starts = [parse_rfc3339_timestamp(each["valid_from"]) for each in chain]
    assert starts == sorted({*starts})
    assert len({each["id"] for each in chain}) == len(chain)
    assert [each["valid_to"] for each in chain] == [*(each["valid_from"] for each in chain[1:]), None]
    assert chain[0]["content"] == "state"
    assert len(chain) == 1 + len({(7 * number + at) % 80 for number in range(8) for at in range(at_once)})
