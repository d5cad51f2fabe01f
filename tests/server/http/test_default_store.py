"""Store selection for paths without a store: query, then header, then default store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.platform.access.keys import client, given
from tests.server.http.serving import RunningServer, accepted, refusal, serving

HISTORY = "/api/v1/entities/a/history"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with three stores, each with a node that names it, and keys."""
    data = tmp_path_factory.mktemp("stores") / "data"
    admin = given(data, "admin")
    with serving(data, rate_limit=0, default_store="usual") as running:
        with client(running.url, admin) as http:
            for name in ("usual", "asked", "headed"):
                node = {"id": "a", "type": "t", "content": name}
                accepted(http.post(f"/api/memory/{name}/inject", json={"nodes": [node]}))
        yield running


@pytest.fixture(scope="module")
def http(served: RunningServer) -> Iterator[httpx.Client]:
    with client(served.url, given(served.data, "read")) as http:
        yield http


def of_store(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()[0]["content"]


def test_store_selection_order(http: httpx.Client) -> None:
    header = {"Kgserve-Store": "headed"}
    assert of_store(http.get(HISTORY, params={"store": "asked"}, headers=header)) == "asked"
    assert of_store(http.get(HISTORY, headers=header)) == "headed"
    assert of_store(http.get(HISTORY)) == "usual"


def test_invalid_store_names_are_refused(http: httpx.Client) -> None:
    refusal(http.get(HISTORY, params={"store": "not-there"}), 404)
    refusal(http.get(HISTORY, headers={"Kgserve-Store": "not-there"}), 404)
    refusal(http.get(HISTORY, params={"store": ""}), 400)
    refusal(http.get(HISTORY, params={"store": "%61sked"}), 400)
    assert "more than once" in refusal(http.get(HISTORY, params={"store": ["asked", "usual"]}), 400)["detail"]


def test_inaccessible_store_is_not_found(served: RunningServer) -> None:
    with client(served.url, given(served.data, "write", stores=("asked",))) as http:
        assert of_store(http.get(HISTORY, params={"store": "asked"})) == "asked"
        for wanted in ({}, {"store": "usual"}, {"store": "headed"}):
            assert "there is no store" in refusal(http.get(HISTORY, params=wanted), 404)["detail"]
    assert '"store":"usual"' in (Path(served.data) / "audit.log").read_text()
