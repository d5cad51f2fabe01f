from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal, serving


def inject(http: httpx.Client, api: str, *nodes: dict[str, Any], edges: list[dict[str, Any]] | None = None) -> int:
    """Write nodes and edges; return the commit sequence."""
    return accepted(http.post(f"{api}/inject", json={"nodes": list(nodes), "edges": edges or []}))["sequence"]


def ids(http: httpx.Client, url: str, **fields: Any) -> list[str]:
    return sorted(hit["node"]["id"] for hit in accepted(http.post(url, json=fields))["hits"])


@pytest.fixture
def changed(http: httpx.Client, api: str) -> str:
    """Store whose mill burnt down, and whose fox moved."""
    mill = {"id": "mill", "type": "place", "content": "an old mill by the river"}
    edge = {"from": "fox", "to": "mill", "relation_type": "LIVES_IN"}
    inject(http, api, {"id": "fox", "type": "animal", "content": "a fox in the mill"}, mill, edges=[edge])
    inject(http, api, {"id": "fox", "type": "animal", "content": "a fox in the wood"})
    assert http.delete(f"{api}/nodes/mill").status_code == 200
    return api


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid", "graph"])
def test_every_search_mode_supports_as_of(http: httpx.Client, changed: str, mode: str) -> None:
    url = f"{changed}/search"
    asked = {"query": "mill", "mode": mode, "as_of": "1"}
    answer = accepted(http.post(url, json=asked))
    assert sorted(hit["node"]["id"] for hit in answer["hits"]) == ["fox", "mill"]
    assert {hit["node"]["version"] for hit in answer["hits"]} == {1}
    assert answer["index_sequence"] == 1
    assert "mill" in ids(http, url, query="mill", mode=mode, as_of=2)
    assert "mill" not in ids(http, url, query="mill", mode=mode, as_of="3")
    assert "mill" not in ids(http, url, query="mill", mode=mode, at_least=3)


def test_batches_and_contexts_support_as_of(http: httpx.Client, changed: str) -> None:
    variants = [{"query": "mill", "mode": "keyword"}, {"query": "wood", "mode": "keyword"}]
    assert ids(http, f"{changed}/search/batch", queries=variants, as_of="1") == ["fox", "mill"]
    assert ids(http, f"{changed}/search/batch", queries=variants, as_of=3) == ["fox"]
    text = accepted(http.post(f"{changed}/context", json={"query": "mill", "as_of": 1}))["text"]
    assert "LIVES_IN" in text
    assert "an old mill" in text


def test_search_by_valid_at(http: httpx.Client, api: str) -> None:
    at = [f"20{year}-01-01T00:00:00Z" for year in range(10, 15)]
    job = {"id": "job", "type": "fact", "content": "Ada works at the mill", "valid_from": at[1], "valid_to": at[3]}
    first = inject(http, api, job)
    last = inject(http, api, {"id": "job", "valid_to": at[2]})
    url = f"{api}/search"
    for mode in ("keyword", "semantic", "hybrid"):
        asked: dict[str, Any] = {"query": "mill", "mode": mode, "at_least": last}
        assert [len(ids(http, url, valid_at=when, **asked)) for when in at] == [0, 1, 0, 0, 0]
        assert [len(ids(http, url, valid_at=when, as_of=str(first), **asked)) for when in at] == [0, 1, 1, 0, 0]
    assert "valid_at" in refusal(http.post(url, json={"query": "x", "valid_at": "then"}), 400)["detail"]


def test_tags_and_freshness_narrow_a_search(http: httpx.Client, api: str) -> None:
    inject(
        http,
        api,
        {"id": "a", "type": "t", "content": "mill", "tags": ["old", "by the river"]},
        {"id": "b", "type": "t", "content": "mill", "tags": ["old"], "freshness_at": "2020-01-01T00:00:00Z"},
        {"id": "c", "type": "t", "summary": "a mill", "freshness_at": "2220-01-01T00:00:00Z"},
    )
    asked: dict[str, Any] = {"query": "mill", "mode": "keyword", "at_least": 1}
    url = f"{api}/search"
    assert ids(http, url, **asked) == ["a", "b", "c"]
    assert ids(http, url, tags=["old"], **asked) == ["a", "b"]
    assert ids(http, url, tags=["old", "by the river"], **asked) == ["a"]
    assert ids(http, url, tags=["river"], **asked) == []
    assert ids(http, url, fresh_only=True, **asked) == ["a", "c"]
    assert ids(http, url, **{**asked, "query": "river"}) == ["a"]
    variant = {"query": "mill", "mode": "semantic", "tags": ["old"], "fresh_only": True}
    assert ids(http, f"{api}/search/batch", queries=[variant], at_least=1) == ["a"]


def test_search_as_of_requires_history(tmp_path: Path) -> None:
    with serving(tmp_path) as served, httpx.Client(base_url=served.url) as http:
        api = "/api/memory/plain"
        inject(http, api, {"id": "a", "type": "t", "content": "mill"})
        accepted(http.patch(api, json={"history": "none"}))
        assert ids(http, f"{api}/search", query="mill", at_least=1) == ["a"]
        problem = refusal(http.post(f"{api}/search", json={"query": "mill", "as_of": "1"}), 409)
        assert "turned off" in problem["detail"]
