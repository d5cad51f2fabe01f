"""`kgserve backup`, `restore` and `verify`, with a server and without."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec

from kgserve.stores.backup.api import BackupAnswer, BackupVerification, RestoreBackupAnswer
from tests.cli.running import kgserve, serving
from tests.stores.writing import batch, forget_close, opened, write


def inject(url: str, store: str, *ids: str) -> None:
    nodes = [{"id": each, "type": "t", "content": "some words"} for each in ids]
    httpx.post(f"{url}/api/memory/{store}/inject", json={"nodes": nodes}).raise_for_status()


def listed(url: str, store: str) -> list[str]:
    return [node["id"] for node in httpx.get(f"{url}/api/memory/{store}/nodes").json()["nodes"]]


def backed_up(*arguments: object) -> BackupAnswer:
    done = kgserve("backup", *arguments, "--json")
    assert done.code == 0, done.err
    return msgspec.json.decode(done.out, type=BackupAnswer)


def test_backup_with_a_running_server(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with serving(tmp_path / "data", "--indexes", "none") as server:
        inject(server.url, "a", "one")
        inject(server.url, "b", "other")
        first = backed_up("--to", folder, "--data", server.data)
        assert [each.store for each in first.stores] == ["a", "b"]
        inject(server.url, "a", "two")
        second = backed_up("a", "--to", folder, "--data", server.data)
        assert [(each.store, each.sequence, each.new_base) for each in second.stores] == [("a", 2, "")]
        assert 0 < second.bytes_copied < first.bytes_copied
        with httpx.stream("GET", f"{server.url}/api/events") as news:
            told = news.iter_lines()
            done = kgserve("restore", folder, "--data", server.data, "--store", "a", "--as", "old", "--until", "1")
            assert done.code == 0, done.err
            assert next(line for line in told if line.startswith("event:")) == "event: store_created"
        assert listed(server.url, "old") == ["one"]
        inject(server.url, "old", "goes on")
        assert listed(server.url, "old") == ["goes on", "one"]
        again = kgserve("restore", folder, "--data", server.data)
        assert (again.code, "'a' exists already" in again.err) == (1, True)
        assert not [path for path in server.data.iterdir() if path.name.startswith(".dropped")]


def test_backup_without_a_server(tmp_path: Path) -> None:
    folder, data = tmp_path / "backup", tmp_path / "data"
    with opened(data, "a") as store:
        write(store, batch("one"), batch("two"))
    forget_close(data, "a")
    assert backed_up("--to", folder, "--data", data).stores[0].sequence == 2
    done = kgserve("restore", folder, "--data", data, "--as", "again", "--until", "1", "--json")
    assert done.code == 0, done.err
    made = msgspec.json.decode(done.out, type=RestoreBackupAnswer).stores[0]
    assert (made.store, made.source, made.sequence, made.nodes) == ("again", "a", 1, 1)
    kgserve("restore", folder, "--data", tmp_path / "elsewhere")
    with opened(tmp_path / "elsewhere", "a") as store:
        assert store.state.sequence == 2
    outside = kgserve("restore", folder, "--data", data, "--as", "x", "--until", "7")
    assert (outside.code, "covers sequences 0 to 2" in outside.err) == (2, True)


def test_verify(tmp_path: Path) -> None:
    folder, data = tmp_path / "backup", tmp_path / "data"
    with opened(data, "a") as store:
        write(store, batch("one"))
    backed_up("--to", folder, "--data", data)
    whole = kgserve("verify", folder, "--json")
    assert whole.code == 0
    found = msgspec.json.decode(whole.out, type=list[BackupVerification])[0]
    assert (found.store, found.ok, found.bases[0].first, found.bases[0].last) == ("a", True, 0, 1)
    piece = next(folder.rglob("*.log"))
    piece.write_bytes(piece.read_bytes()[:-3])
    damaged = kgserve("verify", folder)
    assert damaged.code == 1
    assert str(piece) in damaged.err
    assert "a frame longer than the file at offset 0" in damaged.err
    refused = kgserve("restore", folder, "--data", data, "--as", "again")
    assert (refused.code, str(piece) in refused.err) == (1, True)
    assert [path.name for path in data.iterdir() if path.name.endswith("_memory")] == ["a_memory"]


def test_verify_reports_the_damaged_base(tmp_path: Path) -> None:
    folder, data = tmp_path / "backup", tmp_path / "data"
    with opened(data, "a") as store:
        write(store, batch("one"))
    for _ in range(2):
        backed_up("--to", folder, "--data", data, "--full")
    piece = min(folder.rglob("*.log"))
    piece.write_bytes(piece.read_bytes()[:-3])
    found = kgserve("verify", folder)
    assert [line.split("\t")[1] for line in found.out.splitlines()[1:]] == ["BAD", "ok"]
    assert (found.code, str(piece) in found.err) == (1, True)


def test_missing_stores_and_folders_are_reported(tmp_path: Path) -> None:
    nothing = kgserve("backup", "--to", tmp_path / "backup", "--data", tmp_path / "data")
    assert (nothing.code, "does not exist" in nothing.err) == (1, True)
    with opened(tmp_path / "data", "a"):
        pass
    unknown = kgserve("backup", "b", "--to", tmp_path / "backup", "--data", tmp_path / "data")
    assert (unknown.code, unknown.err) == (1, "kgserve: there is no store 'b'\n")
    for command in ("restore", "verify"):
        none = kgserve(command, tmp_path / "nowhere")
        assert (none.code, "is not a kgserve backup" in none.err) == (1, True)


def test_through_another_server(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--indexes", "none", "--backup-dir", str(tmp_path / "kept")) as server:
        inject(server.url, "a", "one")
        made = backed_up("--to", "nightly", "--server", server.url)
        assert made.folder == "nightly"
        assert kgserve("restore", "nightly", "--as", "b", "--server", server.url).code == 0
        assert listed(server.url, "b") == ["one"]
        outside = kgserve("backup", "--to", tmp_path / "elsewhere", "--server", server.url)
        assert (outside.code, "outside of the server's backup folder" in outside.err) == (1, True)
        assert not (tmp_path / "elsewhere").exists()
