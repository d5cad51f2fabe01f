from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.running import CommandResult, ServerProcessHandle, kgserve, serving
from tests.cli.test_stores import on_a_terminal
from tests.embedding.embedding_service import KEY, MODEL
from tests.embedding.embedding_service import running as embedding_service
from tests.stores.writing import until

WORDS = ("--embedding-provider", "hashing")
TEXTS = {"tea": "A pot of green tea", "rain": "Rain falls on the roof", "silent": ""}


def load(server: ServerProcessHandle, store: str, *options: str) -> CommandResult:
    lines = "".join(f'{{"kind":"node","id":"{key}","type":"note","content":"{text}"}}\n' for key, text in TEXTS.items())
    return kgserve("import", store, "-", *options, "--server", server.url, stdin=lines)


def found(server: ServerProcessHandle, store: str, query: str) -> list[str]:
    answer = httpx.post(f"{server.url}/api/memory/{store}/search", json={"query": query}).raise_for_status()
    return [hit["node"]["id"] for hit in answer.json()["hits"]]


def indexes(server: ServerProcessHandle, store: str) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/api/memory/{store}/stats").raise_for_status().json()
    return {index["name"]: index for index in answer["indexes"]}


def test_an_import_that_waits_is_searchable_immediately(server: ServerProcessHandle) -> None:
    loaded = load(server, "waited", "--wait-index")
    assert loaded.code == 0, loaded
    assert loaded.err == ""
    assert found(server, "waited", "green tea")[0] == "tea"


def test_reindex_rebuilds_both_indexes(server: ServerProcessHandle) -> None:
    assert load(server, "anew").code == 0
    made = kgserve("reindex", "anew", "--server", server.url)
    assert made.code == 0, made
    assert made.err == ""
    names = [line.split(":")[0] for line in made.out.splitlines()]
    assert names == ["keyword", "vector"]
    assert all("2 entities" in line for line in made.out.splitlines())
    assert found(server, "anew", "rain")[0] == "rain"


def test_indexes_of_past_states_are_shown_but_not_waited_for(server: ServerProcessHandle) -> None:
    assert load(server, "past", "--wait-index").code == 0
    assert httpx.delete(f"{server.url}/api/memory/past/nodes/tea").is_success
    until(lambda: indexes(server, "past")["past-vector"]["entities"] >= 1)
    found = indexes(server, "past")
    assert [*found] == ["keyword", "vector", "past-keyword", "past-vector"]
    assert found["past-vector"]["bytes"] > 0
    assert found["past-vector"]["model"] == found["vector"]["model"]
    assert (found["past-keyword"]["model"], found["past-keyword"]["error"]) == ("tantivy", None)
    off = httpx.patch(f"{server.url}/api/memory/past", json={"history": "none"})
    assert off.is_success, off.text
    assert [*indexes(server, "past")] == ["keyword", "vector"]


def test_a_terminal_shows_the_progress_of_the_indexes(server: ServerProcessHandle) -> None:
    assert load(server, "seen").code == 0
    shown = on_a_terminal("reindex", "seen", "--server", server.url)
    assert "Keyword index" in shown
    assert "2 of 2 entities" in shown


def test_stores_can_show_the_lag_of_the_indexes(server: ServerProcessHandle) -> None:
    assert load(server, "indexed", "--wait-index").code == 0
    head, *rows = kgserve("stores", "--indexes", "--server", server.url).lines()
    assert head[-4:] == ["keyword_lag", "vector_lag", "pending", "index_error"]
    (row,) = [row for row in rows if row[0] == "indexed"]
    assert row[-4:] == ["0", "0", "0", ""]
    assert kgserve("stores", "--indexes", "--json", "--server", server.url).code == 2


def test_reindex_of_a_missing_store_fails(server: ServerProcessHandle) -> None:
    refused = kgserve("reindex", "no-such-store", "--server", server.url)
    assert refused.code == 1
    assert "no-such-store" in refused.err


def test_disabled_indexes_are_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--indexes", "none") as server:
        loaded = load(server, "off", "--wait-index")
        assert loaded.code == 1
        assert "3 created" in loaded.out
        assert "turned off" in loaded.err
        refused = kgserve("reindex", "off", "--server", server.url)
        assert refused.code == 1
        assert "turned off" in refused.err


def test_another_model_is_rejected_until_reindexing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.cli.stores.INDEX_ERROR_TIMEOUT_SECONDS", 0.2)
    data = tmp_path / "data"
    with serving(data, *WORDS) as server:
        assert load(server, "moved", "--wait-index").code == 0
        old = indexes(server, "moved")["vector"]["model"]
    with embedding_service() as service:
        options = ("--embedding-provider", "openai", "--embedding-url", service.url, "--embedding-model", MODEL)
        with serving(data, *options, variables={"KGSERVE_EMBEDDING_KEY": KEY}) as server:
            waited = load(server, "moved", "--wait-index")
            assert waited.code == 1
            assert "run `kgserve reindex moved`" in waited.err
            assert kgserve("stores", "--indexes", "--server", server.url).lines()[1][-1].startswith("vector: ")
            made = kgserve("reindex", "moved", "--server", server.url)
            assert made.code == 0, made
            vector = indexes(server, "moved")["vector"]
            assert vector["model"] != old
            assert (vector["entities"], vector["lag"], vector["error"]) == (2, 0, None)
