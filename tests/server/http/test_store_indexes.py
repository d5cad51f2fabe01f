"""Each store can choose what is indexed: nothing, words, or words and meaning; default: the server's choice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.projections.text_index_worker import TextIndexWorker
from tests.cli.running import kgserve
from tests.cli.running import serving as serving_process
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving
from tests.stores.writing import until

FOLDERS = {"keyword", "vector", "past-keyword", "past-vector"}
NODES = [
    {"id": "hen", "type": "bird", "content": "A brown hen"},
    {"id": "fox", "type": "beast", "content": "A red fox"},
]


@pytest.fixture
def words(http: httpx.Client, api: str) -> str:
    """Path of a store that indexes words only."""
    accepted(http.put(api, json={"indexes": "words"}), 201)
    accepted(http.post(f"{api}/inject", json={"nodes": NODES}))
    return api


def search(http: httpx.Client, api: str, query: str = "hen", **more: Any) -> dict[str, Any]:
    last = accepted(http.get(f"{api}/stats"))["sequence"]
    return accepted(http.post(f"{api}/search", json={"query": query, "at_least": last, **more}))


def of(api: str) -> dict[str, str]:
    """Store for paths of memories."""
    return {"store": api.rpartition("/")[2]}


def hits(found: dict[str, Any]) -> list[str]:
    return [hit["node"]["id"] for hit in found["hits"]]


def indexes(http: httpx.Client, api: str) -> list[str]:
    return [each["name"] for each in accepted(http.get(f"{api}/stats"))["indexes"]]


def folders(served: RunningServer, store: str) -> set[str]:
    views = served.data / f"{store}_memory" / "views"
    return {path.name for path in views.iterdir() if path.is_dir()} & {
        "keyword",
        "vector",
        "past-keyword",
        "past-vector",
    }


def test_keyword_only_store_is_not_degraded(http: httpx.Client, words: str) -> None:
    for mode in ("hybrid", "keyword"):
        found = search(http, words, mode=mode)
        assert hits(found) == ["hen"]
        assert found["degraded"] is False
    batch = accepted(http.post(f"{words}/search/batch", json={"queries": [{"query": "hen"}, {"query": "fox"}]}))
    assert {hit["node"]["id"] for hit in batch["hits"]} == {"hen", "fox"}
    assert batch["degraded"] is False
    told = accepted(http.post(f"{words}/context", json={"query": "hen"}))
    assert "brown hen" in told["text"]
    assert told["degraded"] is False
    graph = search(http, words, mode="graph")
    assert "hen" in hits(graph)


def test_semantic_search_requires_a_vector_index(http: httpx.Client, words: str, store: str) -> None:
    refused = http.post(f"{words}/search", json={"query": "hen", "mode": "semantic"})
    assert refused.status_code == 409
    assert f"kgserve settings {store} indexes=words+meaning" in refusal(refused, 409)["detail"]
    recalled = http.post("/api/memories/search", params=of(words), json={"query": "hen", "mode": "semantic"})
    assert recalled.status_code == 409


def test_memories_are_recalled_by_words(http: httpx.Client, words: str) -> None:
    outcomes = [
        http.post("/api/memories", params=of(words), json={"content": content}).raise_for_status().json()["outcome"]
        for content in ("The gate is closed at night", "The gate is closed at night.")
    ]
    assert outcomes[0] == "created"
    sequence = accepted(http.get(f"{words}/stats"))["sequence"]
    asked = {"query": "gate", "at_least": sequence}
    for more in ({}, {"mode": "keyword"}, {"mode": "graph"}, {"expand": True}):
        found = accepted(http.post("/api/memories/search", params=of(words), json={**asked, **more}))
        assert found["degraded"] is False
        if more.get("mode") != "graph":
            assert len(found["hits"]) == 1
    accepted(http.post("/api/memories/consolidate", params=of(words), json={}))
    accepted(http.post("/api/v1/reflect", params=of(words), json={"query": "gate"}))


def test_only_selected_indexes_have_files(http: httpx.Client, words: str, store: str, served: RunningServer) -> None:
    search(http, words)
    until(lambda: indexes(http, words) == ["keyword", "past-keyword"])
    until(lambda: folders(served, store) == {"keyword", "past-keyword"})
    assert {each["degraded"] for each in accepted(http.get(f"{words}/stats"))["indexes"]} == {False}
    accepted(http.post(f"{words}/reindex"), 202)
    assert hits(search(http, words)) == ["hen"]
    assert folders(served, store) <= {"keyword", "past-keyword"}
    # The history thread rebuilds its index later, in a folder that it removes first.
    until(lambda: folders(served, store) == {"keyword", "past-keyword"})


def test_at_least_waits_for_a_rebuilt_index(
    http: httpx.Client, api: str, store: str, served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": NODES}))
    search(http, api)
    [indexer] = [each for each in served.pool.companions if isinstance(each, TextIndexWorker)]
    with served.pool.lease(store) as opened:
        vector = indexer.of(opened).vector
    look_up, clear, waiting = vector.search, vector._opened().clear, set(vector._watchers)

    def refilled_behind_it(*args: Any, **more: Any) -> Any:
        found = look_up(*args, **more)
        monkeypatch.setattr(vector, "search", look_up)
        vector.rebuild_wanted = True
        vector.wake()
        until(lambda: vector.sequence == 0)
        return found

    def cleared_once_it_waits(made_of: str) -> None:
        until(lambda: vector._watchers - waiting)
        clear(made_of)

    monkeypatch.setattr(vector, "search", refilled_behind_it)
    monkeypatch.setattr(vector._opened(), "clear", cleared_once_it_waits)
    assert hits(search(http, api, mode="semantic"))[0] == "hen"
    assert vector.search == look_up


def test_index_selection_can_change(http: httpx.Client, words: str, store: str, served: RunningServer) -> None:
    def choose(what: str) -> None:
        assert accepted(http.patch(words, json={"indexes": what}))["indexes"] == what

    accepted(http.post(f"{words}/inject", json={"nodes": [{**NODES[0], "content": "A white hen"}]}))
    assert hits(search(http, words, as_of=1)) == ["hen"]
    choose("words+meaning")
    assert "hen" in hits(search(http, words, mode="semantic"))
    assert hits(search(http, words, query="brown", as_of=1, mode="semantic"))[0] == "hen"
    assert set(indexes(http, words)) == FOLDERS
    choose("none")
    detail = refusal(http.post(f"{words}/search", json={"query": "hen"}), 409)["detail"]
    assert "`indexes`: none" in detail
    assert refusal(http.post("/api/memories/search", params=of(words), json={"query": "hen"}), 409)
    assert refusal(http.post(f"{words}/reindex"), 409)
    assert indexes(http, words) == []
    until(lambda: folders(served, store) == set())
    accepted(http.post(f"{words}/inject", json={"nodes": [{"id": "owl", "type": "bird", "content": "An owl"}]}))
    accepted(http.post("/api/memories", params=of(words), json={"content": "The gate is closed"}), 201)
    choose("words")
    assert hits(search(http, words, query="owl")) == ["owl"]
    choose("default")
    assert "owl" in hits(search(http, words, query="owl", mode="semantic"))
    assert search(http, words)["degraded"] is True  # The server of these tests has no model.


@pytest.mark.parametrize("kept", ["none", "words"])
def test_erased_memories_are_in_no_rebuilt_index(http: httpx.Client, words: str, kept: str) -> None:
    told = accepted(http.post("/api/memories", params=of(words), json={"content": "The gate is closed"}), 201)
    search(http, words, "gate")
    accepted(http.patch(words, json={"indexes": kept}))
    accepted(http.post("/api/v1/forget", params=of(words), json={"ids": [told["id"]], "erase": True}))
    accepted(http.patch(words, json={"indexes": "words+meaning"}))
    assert told["id"] not in hits(search(http, words, "gate"))


def test_invalid_index_selection_is_refused(http: httpx.Client, api: str) -> None:
    assert refusal(http.put(api, json={"indexes": "meaning"}), 400)


@pytest.fixture(scope="module")
def by_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Server that indexes words unless a store chooses otherwise."""
    with (
        serving(tmp_path_factory.mktemp("words") / "data", indexes="words") as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE) as client,
    ):
        yield client


def test_server_option_is_the_default_index_selection(by_words: httpx.Client) -> None:
    usual, own = "/api/memory/usual", "/api/memory/own"
    accepted(by_words.put(own, json={"indexes": "words+meaning"}), 201)
    for api in (usual, own):
        accepted(by_words.post(f"{api}/inject", json={"nodes": NODES}))
    assert accepted(by_words.get(usual))["indexes"] == "default"
    assert hits(search(by_words, usual)) == ["hen"]
    assert by_words.post(f"{usual}/search", json={"query": "hen", "mode": "semantic"}).status_code == 409
    assert "hen" in hits(search(by_words, own, mode="semantic"))
    accepted(by_words.patch(own, json={"indexes": "default"}))
    assert by_words.post(f"{own}/search", json={"query": "hen", "mode": "semantic"}).status_code == 409


def test_index_selection_is_exported_and_backed_up(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    with serving_process(data, "--indexes", "words") as server:
        at = ["--data", data]
        assert kgserve("create", "own", "indexes=none", *at).code == 0
        assert kgserve("settings", "own", *at).lines()
        assert ["indexes", "none"] in kgserve("settings", "own", *at).lines()
        exported = kgserve("export", "own", *at)
        assert '"indexes":"none"' in exported.out
        assert kgserve("import", "copy", "-", *at, stdin=exported.out).code == 0
        assert ["indexes", "none"] in kgserve("settings", "copy", *at).lines()
        assert kgserve("backup", "--to", kept, *at).code == 0
        assert kgserve("restore", kept, "--store", "own", "--as", "again", *at).code == 0
        assert ["indexes", "none"] in kgserve("settings", "again", *at).lines()
        assert httpx.post(f"{server.url}/api/memory/again/search", json={"query": "x"}).status_code == 409
