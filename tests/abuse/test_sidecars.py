"""Damaged or deleted sidecar files: row 76 of the abuse list."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.agreement import find_inconsistencies
from bench.server import BenchClient, ServerProcess
from tests.cli.running import kgserve

STORE = "damaged"
QUICK: dict[str, object] = {"embedding_provider": "hashing", "buffer_pool_mb": 64}


def sidecars(root: Path) -> Iterator[Path]:
    """Return all files of a store except its journal."""
    return (path for path in sorted(root.rglob("*")) if path.is_file() and "journal" not in path.parts)


def deleted(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbled(path: Path) -> None:
    """Change every byte except the first few, so that the file keeps its type."""
    content = path.read_bytes()
    path.write_bytes(content[:16] + bytes(byte ^ 0x5A for byte in content[16:]))


DAMAGES: tuple[Callable[[Path], None], ...] = (deleted, cut, garbled)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Data folder of a stopped server, and the export of its store."""
    data = tmp_path_factory.mktemp("whole") / "data"
    with ServerProcess(data, QUICK) as server, server.client() as client:
        for turn in range(3):
            nodes = [
                {"id": f"n{number}", "type": "t", "content": f"text {number} of turn {turn}", "tags": ["x"]}
                for number in range(200)
            ]
            edges = [{"from": f"n{n}", "to": f"n{n * 7 % 200}", "relation_type": "r"} for n in range(200)]
            client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes, "edges": edges})
        client.call("DELETE", f"/api/memory/{STORE}/nodes/n7")
        assert find_inconsistencies(client, STORE) == []
        exported = sorted(map(repr, client.export(STORE)))
    names = {path.name for path in sidecars(data / f"{STORE}_memory")}
    assert {"graph.kuzu", "catalog.sqlite", "embeddings.sqlite", "history.sqlite", "store.json", "meta.json"} <= names
    return data, exported


@pytest.mark.abuse(76)
@pytest.mark.timeout(300)
def test_all_sidecar_files_at_once(filled: tuple[Path, list[str]], tmp_path: Path) -> None:
    source, exported = filled
    data = tmp_path / "data"
    stores = {f"{STORE}-{damage.__name__}": damage for damage in DAMAGES}
    for store, damage in stores.items():
        shutil.copytree(source / f"{STORE}_memory", data / f"{store}_memory")
        for path in sidecars(data / f"{store}_memory"):
            damage(path)
    with ServerProcess(data, QUICK) as server, server.client() as client:
        assert {store["name"] for store in client.call("GET", "/api/memory")["stores"]} == stores.keys()
        for store in stores:
            assert_whole(client, store, exported)
    for store in stores:
        looked = kgserve("doctor", "--data", data, store)
        assert looked.code == 0, looked.out


def assert_whole(client: BenchClient, store: str, exported: list[str]) -> None:
    """Assert that all data and former states are found, and that the store accepts writes."""
    assert sorted(map(repr, client.export(store))) == exported
    search = {"query": "text 8 of turn 2", "at_least": 4}
    assert client.call("POST", f"/api/memory/{store}/search", search)["hits"][0]["node"]["id"] == "n8"
    assert len(client.call("GET", f"/api/memory/{store}/nodes/n8/history")["states"]) == 3
    client.call("POST", f"/api/memory/{store}/inject", {"nodes": [{"id": "after", "type": "t", "content": "new"}]})
    assert find_inconsistencies(client, store) == []
