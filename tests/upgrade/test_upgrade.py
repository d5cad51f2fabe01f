"""Data folders of earlier versions, without extras or without memories, opened by the current code."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from kgserve.platform.file_permissions import restrict_data_folder_permissions
from tests.cli.running import kgserve, serving
from tests.server.http.serving import accepted

# Names from `make_store.py`.
STORE, TOLD = "garden", "told.json"
ARCHIVES = Path(__file__).parent / "data"
LEFT = ("closed", "killed", "extended")
HASHING = {"KGSERVE_EMBEDDING_PROVIDER": "hashing", "KGSERVE_BUFFER_POOL_MB": "64"}


class UpgradedServer(msgspec.Struct, frozen=True):
    """An old data folder opened by a running server, and the answers recorded by the old version."""

    client: httpx.Client
    told: dict[str, Any]

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        return accepted(self.client.get(f"/api/memory/{STORE}{path}", params=parameters))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return accepted(self.client.post(f"/api/memory/{STORE}{path}", json=body))

    def lines(self, **parameters: Any) -> list[dict[str, Any]]:
        reply = self.client.get(f"/api/memory/{STORE}/export", params=parameters)
        assert reply.status_code == 200, reply.text
        return sorted(map(msgspec.json.decode, reply.content.splitlines()), key=repr)


def unpacked(left: str, folder: Path) -> Path:
    """Unpack a copy of an old data folder with its original modification times."""
    with tarfile.open(ARCHIVES / f"{left}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # early releases of Python 3.11
            archive.extractall(folder)  # noqa: S202 - a file of this repository
    data = folder / "data"
    root = data / f"{STORE}_memory"
    if (root / "closed.json").exists():
        mark = msgspec.json.decode((root / "closed.json").read_bytes())
        for name, file in (("engine", "graph.kuzu"), ("engine_log", "graph.kuzu.wal")):
            # Archives store times less precisely than a clean close requires; engines that were not open have none.
            if name not in mark:
                continue
            os.utime(root / file, ns=(mark[name]["changed"], mark[name]["changed"]))
    restrict_data_folder_permissions(data, whole=True)
    return data


@contextmanager
def under_a_server(data: Path) -> Generator[UpgradedServer]:
    told = msgspec.json.decode((data / TOLD).read_bytes())
    with serving(data, variables=HASHING) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield UpgradedServer(client, told)


@pytest.fixture(params=LEFT, scope="module")
def upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradedServer]:
    """Yield a server of this version on an old folder, for reading."""
    with under_a_server(unpacked(request.param, tmp_path_factory.mktemp(request.param))) as opened:
        yield opened


def holds(found: Any, told: Any) -> bool:
    """Return True if all recorded values are found; there may be more fields."""
    match told:
        case dict():
            fields: dict[str, Any] = told
            return isinstance(found, dict) and all(holds(found.get(key), value) for key, value in fields.items())
        case list():
            items: list[Any] = told
            return isinstance(found, list) and len(found) == len(items) and all(map(holds, found, items))
        case _:
            return found == told


def test_all_rows_exist(upgraded: UpgradedServer) -> None:
    told = upgraded.told
    stats = upgraded.get("/stats")
    assert holds(stats, {"sequence": told["sequence"], "digest": told["digest"], **told["stats"]})
    assert upgraded.lines() == told["export"]
    listed = upgraded.get("/nodes", limit=1000)["nodes"]
    assert {node["id"]: node for node in listed} == {key: each["node"] for key, each in told["nodes"].items()}
    for node_id in ("plant-2", "it's", "two\nlines", "a/b", "sage"):
        found = upgraded.post("/traverse", {"start_id": node_id, "depth": 1})
        around = {edge["to"] for edge in told["nodes"][node_id]["outgoing"]}
        assert around <= {node["id"] for node in found["nodes"]}


def test_edges_are_unchanged(upgraded: UpgradedServer) -> None:
    for node_id, told in upgraded.told["nodes"].items():
        if node_id.startswith("plant"):
            found = upgraded.get(f"/nodes/{node_id}")
            for direction in ("outgoing", "incoming"):
                assert holds(sorted(found[direction], key=_key), sorted(told[direction], key=_key))


def test_the_history_is_unchanged(upgraded: UpgradedServer) -> None:
    told = upgraded.told
    for at, lines in told["then"].items():
        assert upgraded.lines(as_of=at) == lines, f"as of {at}"
    for node_id, states in told["history"].items():
        found = upgraded.get(f"/nodes/{quote(node_id, safe='')}/history", limit=50)
        assert holds(found, states), node_id
    assert holds(upgraded.get("/changes", since=0, limit=200), told["changes"])


def test_keyword_and_semantic_search_work(upgraded: UpgradedServer) -> None:
    for mode in ("keyword", "semantic", "hybrid"):
        wanted = {"query": "planted anew", "mode": mode, "at_least": upgraded.told["sequence"]}
        assert upgraded.post("/search", wanted)["hits"][0]["node"]["id"] == "plant-3", mode


def test_current_and_past_attributes_can_be_queried(upgraded: UpgradedServer) -> None:
    told = upgraded.told
    moments = [(told["sequence"], told["export"]), *((int(at), lines) for at, lines in told["then"].items())]
    for at, lines in moments:
        own = {line["id"]: line["attributes"] for line in lines if line["kind"] == "node"}
        for key, value in {(key, value) for each in own.values() for key, value in each.items() if _is_plain(value)}:
            having = sorted(node_id for node_id, each in own.items() if key in each and each[key] == value)
            asked = msgspec.json.encode({key: value}).decode()
            listed = upgraded.get("/nodes", attributes=asked, as_of=at, limit=1000)["nodes"]
            assert [node["id"] for node in listed] == having
            if at == told["sequence"]:
                assert upgraded.post("/count", {"attributes": {key: value}})["count"] == len(having)
                assert len(upgraded.get("/nodes", attributes=asked, limit=1000)["nodes"]) == len(having)


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list)


@pytest.mark.parametrize("left", LEFT)
def test_doctor_finds_no_faults(left: str, tmp_path: Path) -> None:
    sound(unpacked(left, tmp_path))


@pytest.mark.parametrize("left", LEFT)
def test_new_features_work_on_old_folders(left: str, tmp_path: Path) -> None:
    data = unpacked(left, tmp_path)
    with under_a_server(data) as upgraded:
        use_new_features(upgraded)
    sound(data)


def use_new_features(upgraded: UpgradedServer) -> None:
    sequence = upgraded.told["sequence"]
    extras = {"summary": "short", "tags": ["green"], "created_by": "ada"}
    validity = {"valid_from": "2020-01-01T00:00:00Z", "valid_to": "2021-01-01T00:00:00Z"}
    node = {"id": "plant-2", **extras, **validity}
    edge = {"from": "plant-2", "to": "plant-13", "relation_type": "beside", "ordinal": 3, **validity}
    assert upgraded.post("/inject", {"nodes": [node], "edges": [edge]})["sequence"] == sequence + 1
    found = upgraded.get("/nodes/plant-2")
    assert holds(found["node"], extras)
    assert found["node"]["version"] == upgraded.told["nodes"]["plant-2"]["node"]["version"] + 1
    assert [each["ordinal"] for each in found["outgoing"] if each["to"] == "plant-13"] == [3]
    for moment, there in (("2020-06-01T00:00:00Z", True), ("2021-01-01T00:00:00Z", False)):
        shown = upgraded.get("/nodes", valid_at=moment, limit=1000)["nodes"]
        assert ("plant-2" in {each["id"] for each in shown}) is there
    assert [each["id"] for each in upgraded.get("/nodes", tag="green", valid_at="any")["nodes"]] == ["plant-2"]
    assert upgraded.lines(as_of=sequence) == upgraded.told["export"]
    assert upgraded.lines() != upgraded.told["export"]


@pytest.mark.parametrize("left", LEFT)
def test_columns_for_memories_are_added_with_the_first_memory_or_name(left: str, tmp_path: Path) -> None:
    data = unpacked(left, tmp_path)
    with under_a_server(data) as upgraded:
        cypher = f"/api/memory/{STORE}/cypher"
        asked = {"query": "MATCH (n:Entity {id: 'plant-1'}) RETURN n.name"}
        assert upgraded.client.post(cypher, json=asked).json()["rows"] == [[None]]
        upgraded.post("/inject", {"nodes": [{"id": "plant-1", "content": "no memory", "summary": "short"}]})
        assert upgraded.client.post(cypher, json=asked).json()["rows"] == [[None]]
        assert not (data / f"{STORE}_memory" / "views" / "memories.sqlite").exists()
        upgraded.post("/inject", {"nodes": [{"id": "plant-1", "name": "the first"}]})
        assert upgraded.post("/cypher", asked)["rows"] == [["the first"]]
        remembered = upgraded.client.post(f"/api/memories?store={STORE}", json={"content": "roses need sun"})
        assert remembered.status_code == 201, remembered.text
        assert upgraded.lines(as_of=upgraded.told["sequence"]) == upgraded.told["export"]
    sound(data)


def sound(data: Path) -> None:
    examined = kgserve("doctor", "--data", data, variables=HASHING)
    assert examined.code == 0, examined
    assert {row[2] for row in examined.lines()[1:]} == {"ok"}


def _key(edge: dict[str, Any]) -> tuple[str, str, str]:
    return edge["from"], edge["to"], edge["relation_type"]
