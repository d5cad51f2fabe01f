"""Lists by type, tag and validity, now and as of a commit, against the written states."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import httpx
import pytest

from tests.server.http.serving import RunningServer, accepted, refusal

Json = dict[str, Any]

TAGS = ["red", "a,b", "status:open", "é"]
TIMES = ["2025-01-01T00:00:00Z", "2025-06-01T00:00:00Z", "2026-01-01T00:00:00Z"]
FULL: Json = {
    "id": "full",
    "type": "t",
    "content": "all of it",
    "attributes": {"a": 1},
    "summary": "short",
    "tags": ["red", "é"],
    "freshness_at": "2020-01-01T00:00:00Z",
    "created_by": "somebody",
    "valid_from": "2025-01-01T00:00:00Z",
}


def listed(http: httpx.Client, api: str, **params: Any) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    cursor: str | None = None
    # A comma within an item is escaped with a backslash.
    lists = {
        name: [each.replace(",", r"\,") for each in value] for name, value in params.items() if isinstance(value, list)
    }
    params |= lists
    while True:
        page = accepted(http.get(f"{api}/nodes", params={**params, **({"cursor": cursor} if cursor else {})}))
        found += [node["id"] for node in page["nodes"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
        params.pop("offset", None)


def fitting(present: dict[str, Json], params: Json) -> list[str]:
    """Return the expected list; RFC 3339 times of the same form are ordered as texts."""
    at = params.get("valid_at")

    def fits(node: Json) -> bool:
        return (
            node["type"] in (params.get("type") or [node["type"]])
            and set(params.get("tag", [])) <= set(node["tags"])
            and (at is None or (node["valid_from"] or at) <= at)
            and (at is None or not node["valid_to"] or at < node["valid_to"])
        )

    return sorted(node_id for node_id, node in present.items() if fits(node))


def test_lists_match_the_rows_now_and_as_of_commits(http: httpx.Client, api: str) -> None:
    chance = random.Random(4)
    present: dict[str, Json] = {}
    states: dict[int, dict[str, Json]] = {}
    for _ in range(12):
        nodes = [
            {
                "id": f"n{number}",
                "type": chance.choice(["t", "u", "a,b"]),
                "tags": chance.sample(TAGS, chance.randint(0, 3)),
                "valid_from": chance.choice(["", *TIMES[:2]]),
                "valid_to": chance.choice(["", *TIMES[1:]]),
            }
            for number in chance.sample(range(12), 4)
        ]
        sequence = accepted(http.post(f"{api}/inject", json={"nodes": nodes}))["sequence"]
        present = {**present, **{str(node["id"]): node for node in nodes}}
        states[sequence] = present
        doomed = f"n{chance.randrange(12)}"
        sequence = accepted(http.delete(f"{api}/nodes/{doomed}"))["sequence"]
        present = {node_id: node for node_id, node in present.items() if node_id != doomed}
        states[sequence] = present
    for _ in range(120):
        params: Json = {"type": chance.sample(["t", "u", "a,b", "none"], chance.randint(0, 2))}
        params["tag"] = chance.sample(TAGS, chance.choice([0, 0, 1, 2]))
        if chance.random() < 0.5:
            params["valid_at"] = chance.choice(TIMES)
        limit, offset = chance.randint(1, 5), chance.choice([0, 0, 1, 3])
        how = {"valid_at": "any", **params, "limit": limit, **({"offset": offset} if offset else {})}
        assert listed(http, api, **how) == fitting(present, params)[offset:]
        sequence = chance.choice(sorted(states))
        assert listed(http, api, as_of=sequence, **how) == fitting(states[sequence], params)[offset:]


def test_kind_is_an_alias_of_type(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": each, "type": each} for each in "abc"]}))
    assert listed(http, api, kind=["a", "c"]) == ["a", "c"]
    assert listed(http, api, kind="a", type="b") == ["a", "b"]
    assert listed(http, api, kind="", type="", tag="") == ["a", "b", "c"]


def test_compact_nodes_omit_content_and_attributes(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [FULL, {"id": "plain", "type": "t", "content": "x"}]}))
    for params in ({}, {"as_of": 1}):
        whole = accepted(http.get(f"{api}/nodes", params=params))["nodes"]
        compact = accepted(http.get(f"{api}/nodes", params={"compact": "true", **params}))["nodes"]
        left_out = {"content", "attributes", "freshness_at", "created_by"}
        assert [{k: v for k, v in node.items() if k not in left_out} for node in whole] == compact
        assert (whole[0]["summary"], whole[0]["stale"], whole[0]["content"]) == ("short", True, "all of it")
        assert set(compact[1]) == {"id", "type", "version", "sequence", "created_at", "updated_at"}


def test_offset_and_cursor_exclude_each_other(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": each, "type": "t"} for each in "abc"]}))
    page = accepted(http.get(f"{api}/nodes", params={"limit": 1, "offset": 1}))
    assert [node["id"] for node in page["nodes"]] == ["b"]
    problem = refusal(http.get(f"{api}/nodes", params={"offset": 1, "cursor": page["next_cursor"]}), 400)
    assert "first page" in problem["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=10001",
        "compact=maybe",
        "compact=true&compact=true",
        "valid_at=yesterday",
        "valid_at=7",
        "valid_at=2025-01-01T00:00:00Z&valid_at=2025-01-01T00:00:00Z",
        "tag=" + "x" * 513,
        "&".join(["tag=x"] * 101),
        "&".join(["type=x"] * 101),
        "tag=%ff",
        "cursor=YQ.0",
        "cursor=YQ.10001",
        "cursor=YQ.",
        "cursor=.1",
        "cursor=YQ.%EF%BC%91",
    ],
)
def test_invalid_list_requests_are_refused(http: httpx.Client, api: str, query: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    refusal(http.get(f"{api}/nodes?{query}"), 400)


def test_damaged_catalog_is_rebuilt(http: httpx.Client, served: RunningServer, store: str, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [FULL, {"id": "plain", "type": "t"}]}))
    assert listed(http, api, tag="red") == ["full"]
    [path] = served.data.glob(f"{store}_memory/**/catalog.sqlite")
    with sqlite3.connect(path) as damaging:
        damaging.execute("UPDATE tagged SET id = 'plain'")
    damaging.close()
    assert listed(http, api, tag="red") == ["full"]
    assert accepted(http.get(f"{api}/tags"))["tags"] == [{"tag": "red", "count": 1}, {"tag": "é", "count": 1}]
