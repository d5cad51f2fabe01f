"""Backups over HTTP, restricted to the server's backup folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from bench.listener import EventListener
from tests.platform.access.keys import bearer, given
from tests.server.http.serving import RunningServer, accepted, refusal, serving
from tests.server.http.versions import node, prune, put, tear


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    root = tmp_path_factory.mktemp("kept")
    (root / "kept").mkdir()
    (root / "outside").mkdir()
    (root / "kept" / "link").symlink_to(root / "outside")
    with serving(root / "data", indexes=False, backup_dir=root / "kept") as server:
        yield server


@pytest.fixture
def client(served: RunningServer) -> Generator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as opened:
        yield opened


def inject(client: httpx.Client, store: str, *ids: str) -> None:
    accepted(client.post(f"/api/memory/{store}/inject", json={"nodes": [{"id": each, "type": "t"} for each in ids]}))


def test_backup_and_restore_of_a_store(client: httpx.Client) -> None:
    client.put("/api/memory/a", json={"name": "For people", "metadata": {"k": [1]}})
    inject(client, "a", "one")
    inject(client, "a", "two")
    assert accepted(client.get("/api/whoami"))["backups"]
    made = accepted(client.post("/api/memory/a/backup", json={"to": "first"}))
    assert (made["sequence"], made["first"], made["new_base"]) == (2, 0, "it is the first backup")
    inject(client, "a", "three")
    more = accepted(client.post("/api/memory/a/backup", json={"to": "first", "keep": 3}))
    assert (more["sequence"], more["new_base"]) == (3, "")
    assert 0 < more["bytes_copied"] < made["bytes_copied"]
    digest = client.get("/api/memory/a/stats").json()["digest"]
    found = accepted(client.post("/api/restore", json={"from": "first", "store": "a", "as": "a2"}))["stores"][0]
    assert (found["store"], found["source"], found["sequence"], found["digest"]) == ("a2", "a", 3, digest)
    settings = {key: client.get("/api/memory/a2").json()[key] for key in ("name", "metadata", "created_at")}
    assert settings == {key: client.get("/api/memory/a").json()[key] for key in settings}
    accepted(client.post("/api/restore", json={"from": "first", "store": "a", "as": "a1", "until": more["since"]}))
    assert client.get("/api/memory/a1/nodes").json()["nodes"] == []
    refused = refusal(client.post("/api/restore", json={"from": "first", "store": "a", "as": "a1"}), 409)
    assert "'a1' exists already" in refused["detail"]


def test_positions_after_a_restored_commit_are_gone(served: RunningServer, client: httpx.Client) -> None:
    for name in ("one", "two"):
        inject(client, "undone", name)
        accepted(client.post("/api/memory/undone/backup", json={"to": "undone"}))
    inject(client, "undone", "lost")
    accepted(client.delete("/api/memory/undone?confirm=undone"))
    accepted(client.post("/api/restore", json={"from": "undone"}))
    inject(client, "undone", "three")
    api = "/api/memory/undone/events"
    assert "restored" in refusal(client.get(api, params={"last_event_id": "3-0"}), 410)["detail"]
    with EventListener(served.port, api, "2-0") as listener:
        found = next(listener.events())
    assert (found.data["id"], found.id.partition("~")[0]) == ("three", "3-0")


def test_backup_keeps_conflicts(client: httpx.Client) -> None:
    tear(client, "/api/memory/torn-one")
    accepted(client.post("/api/memory/torn-one/backup", json={"to": "torn-one"}))
    prune(client, "/api/memory/torn-one")
    for full in (False, True):
        asked = {"to": "torn-one", "full": full}
        accepted(client.post("/api/memory/torn-one/backup", json=asked))
        copy = f"/api/memory/torn-{full}"
        accepted(client.post("/api/restore", json={"from": "torn-one", "store": "torn-one", "as": f"torn-{full}"}))
        assert (node(client, copy)["conflicts"], node(client, copy, version=2)["content"]) == ([2], "two")
        assert "conflicts" not in put(client, copy, id="a", content="both", based_on_version=2)["node"]


def test_several(client: httpx.Client) -> None:
    inject(client, "b", "one")
    inject(client, "c", "one")
    made = accepted(client.post("/api/backup", json={"to": "some", "stores": ["b", "nothing", "c"]}))
    assert [each["store"] for each in made["stores"]] == ["b", "c"]
    assert made["failed"] == [{"store": "nothing", "error": "there is no store 'nothing'"}]
    everything = accepted(client.post("/api/backup", json={"to": "all"}))
    assert {each["store"] for each in everything["stores"]} >= {"b", "c"}
    for name in ("b", "c"):
        client.delete(f"/api/memory/{name}", params={"confirm": name})
    back = accepted(client.post("/api/restore", json={"from": "some"}))
    assert [each["store"] for each in back["stores"]] == ["b", "c"]
    assert client.get("/api/memory/b/nodes/one").status_code == 200


@pytest.mark.parametrize("path", ["..", "../outside", "/etc", "link", "link/deeper", "first/../../outside"])
def test_backup_paths_stay_in_the_folder(client: httpx.Client, served: RunningServer, path: str) -> None:
    inject(client, "d", "one")
    outside = served.data.parent / "outside"
    for method, body in (("memory/d/backup", {"to": path}), ("backup", {"to": path}), ("restore", {"from": path})):
        answer = client.post(f"/api/{method}", json=body)
        assert "backup folder" in refusal(answer, 403)["detail"]
    assert list(outside.iterdir()) == []


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_backup_answers_use_relative_paths(client: httpx.Client, served: RunningServer) -> None:
    inject(client, "torn", *(str(number) for number in range(50)))
    told, lost = (client.post("/api/backup", json={"to": to, "stores": ["torn"]}) for to in ("told", "lost"))
    assert (accepted(told)["folder"], accepted(lost)["folder"]) == ("told", "lost")
    flip(next((served.data / "torn_memory" / "journal").glob("*.log")))
    refusals = [
        refusal(client.post("/api/memory/torn/backup", json={"to": "new"}), 503),
        refusal(client.post("/api/restore", json={"from": "nowhere"}), 404),
        refusal(client.post("/api/restore", json={"from": "told", "store": "other"}), 404),
    ]
    several = client.post("/api/backup", json={"to": "new", "stores": ["torn"]})
    flip(next((served.data.parent / "kept" / "lost" / "stores" / "torn").rglob("*.log")))
    refusals.append(refusal(client.post("/api/restore", json={"from": "lost", "as": "back"}), 409))
    texts = [each["detail"] for each in refusals] + [accepted(several)["failed"][0]["error"]]
    beginnings = ("journal/0", "nowhere is not a kgserve backup", "told holds", "lost/stores/torn/", "journal/0")
    assert [text for text, begins in zip(texts, beginnings, strict=True) if not text.startswith(begins)] == []
    assert [text for text in texts if str(served.data.parent) in text] == []


def test_bad_requests(client: httpx.Client) -> None:
    refusal(client.post("/api/memory/d/backup", json={"to": "a\0b"}), 400)
    refusal(client.post("/api/memory/d/backup", json={"to": "x" * 500}), 400)
    refusal(client.post("/api/memory/d/backup", json={"keep": 0}), 400)
    refusal(client.post("/api/memory/nothing/backup", json={}), 404)
    refusal(client.post("/api/restore", json={"from": "not there"}), 404)
    refusal(client.post("/api/restore", json={"from": "first", "store": "a", "as": "../a"}), 400)


@pytest.mark.parametrize("folder", ["a_memory", ".dropped-x-1", "../kept", ".dropped-x-1/../a_memory", "."])
def test_only_prepared_backup_folders_are_accepted(client: httpx.Client, folder: str) -> None:
    prepared = {"folder": folder, "store": "taken", "sequence": 0, "digest": "0" * 32}
    refusal(client.post("/api/restore", json={"prepared": prepared}), 404)
    assert client.get("/api/memory/taken").status_code == 404


@pytest.mark.parametrize("path", ["whole/stores", "whole/stores/e", "whole/stores/new", "whole/stores/new/deeper"])
def test_backups_of_inaccessible_stores_are_refused(client: httpx.Client, served: RunningServer, path: str) -> None:
    inject(client, "e", "one")
    accepted(client.post("/api/memory/e/backup", json={"to": "whole"}))
    for method, body in (("memory/e/backup", {"to": path}), ("backup", {"to": path}), ("restore", {"from": path})):
        assert "within a backup" in refusal(client.post(f"/api/{method}", json=body), 400)["detail"]
    assert [each.name for each in (served.data.parent / "kept" / "whole" / "stores").iterdir()] == ["e"]


def test_backup_with_an_admin_key_for_some_stores(tmp_path: Path) -> None:
    data = tmp_path / "data"
    everybody, team = (bearer(given(data, "admin", stores)) for stores in (["*"], ["team-*"]))
    with (
        serving(data, indexes=False, backup_dir=tmp_path / "kept") as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for store in ("payroll", "team-a"):
            batch = {"nodes": [{"id": "n", "type": "t"}]}
            accepted(http.post(f"/api/memory/{store}/inject", json=batch, headers=everybody))
        accepted(http.post("/api/backup", json={"to": "nightly"}, headers=everybody))
        for name in ("payroll", "team-none"):
            asked = {"from": "nightly", "store": name}
            told = refusal(http.post("/api/restore", json=asked, headers=team), 404)["detail"]
            assert "payroll" not in told.replace("no store 'payroll'", "")
        (data / "payroll_memory").rename(data / ".dropped-payroll-1")
        prepared = {"folder": ".dropped-payroll-1", "store": "team-taken", "sequence": 1, "digest": "0" * 32}
        refusal(http.post("/api/restore", json={"prepared": prepared}, headers=team), 403)
        assert (data / ".dropped-payroll-1").is_dir()
        accepted(http.post("/api/restore", json={"from": "nightly", "as": "team-b"}, headers=team))


def test_backup_without_a_folder_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", indexes=False) as server, httpx.Client(base_url=server.url) as client:
        inject(client, "a", "one")
        for path in ("memory/a/backup", "backup", "restore"):
            assert "--backup-dir" in refusal(client.post(f"/api/{path}", json={}), 403)["detail"]
