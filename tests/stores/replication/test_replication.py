"""Replication to a folder and to object storage: restore, follow, promote, fencing, damage, erasure."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from moto.server import ThreadedMotoServer

import kgserve as library
from kgserve.errors import Conflict, Fenced, KgserveError, Unavailable
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.stores.backup.folder_layout import BackupChain
from kgserve.stores.pool import StorePool
from kgserve.stores.replication.follower import promote_follower
from kgserve.stores.replication.journal_shipper import JournalShipper
from kgserve.stores.replication.store_base import build_store_base
from kgserve.stores.replication.target_address import open_target_storage
from kgserve.stores.replication.target_log import LOG_PREFIX, list_object_keys, open_target_log
from kgserve.stores.replication.target_storage import FolderTargetStorage
from kgserve.stores.scoped_stores import StoreCreateIfMissingRequest
from tests.cli.running import environment, kgserve, serving, start_command
from tests.stores.replication.replicas import following, ship_all, shipping
from tests.stores.writing import batch, layout, opened, settings, write

PATIENCE_SECONDS = 60.0
BUCKET = "kgserve"


@pytest.fixture(scope="module")
def object_storage() -> Generator[str]:
    """Run an S3 server in a thread; yield its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.put(f"{url}/{BUCKET}").raise_for_status()
    yield url
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a new target: a folder, and a prefix of a bucket."""
    if request.param == "folder":
        return str(tmp_path / "target")
    address = request.getfixturevalue("object_storage")
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def node_ids(pool: StorePool, name: str) -> list[str]:
    with pool.lease(name) as store, store.reading() as rows:
        return sorted(rows.ids_after(""))


def test_restore_to_any_shipped_commit_and_verify(tmp_path: Path, target: str) -> None:
    data = tmp_path / "data"
    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("n0"))
        ship_all(shipper)
        moments = [time.time_ns()]
        for number in range(1, 5):
            write(store, batch(f"n{number}"))
            assert shipper.ship() == 1
            moments.append(time.time_ns())
        assert shipper.ship() == 0
    assert kgserve("verify", target).code == 0
    assert kgserve("restore", target, "--data", tmp_path / "newest").code == 0
    done = kgserve("restore", target, "--store", "s", "--as", "third", "--until", "3", "--data", tmp_path / "newest")
    assert done.code == 0, done.err
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moments[1] // 10**9)) + f".{moments[1] // 1000 % 10**6:06d}Z"
    done = kgserve("restore", target, "--until", at, "--data", tmp_path / "second")
    assert done.code == 0, done.err
    with StorePool(settings(tmp_path / "newest")) as pool:
        assert node_ids(pool, "s") == ["n0", "n1", "n2", "n3", "n4"]
        assert node_ids(pool, "third") == ["n0", "n1", "n2"]
    with StorePool(settings(tmp_path / "second")) as pool:
        assert node_ids(pool, "s") == ["n0", "n1"]


def test_follower_gets_commits_settings_new_and_dropped_stores(tmp_path: Path, target: str) -> None:
    data = tmp_path / "data"
    with (
        StorePool(settings(data)) as leader,
        shipping(data, target) as shipper,
        leader.lease("s", create=True) as store,
    ):
        write(store, batch("a", "b", edges=[("a", "b", "knows")]))
        ship_all(shipper)
        with following(tmp_path / "copy", target) as (pool, placement):
            write(store, batch("c"))
            store.change_settings(lambda kept: change_settings(kept, name="Renamed"))
            with leader.lease("other", create=True) as other:
                write(other, batch("o"))
            ship_all(shipper)
            placement.follow_now()
            assert (node_ids(pool, "s"), node_ids(pool, "other")) == (["a", "b", "c"], ["o"])
            with pool.lease("s") as copy:
                assert (copy.description.name, copy.state) == ("Renamed", store.state)
                with pytest.raises(Conflict, match="read-only copy"):
                    write(copy, batch("z"))
            with pytest.raises(Conflict, match="read-only copy"), pool.lease("new", create=True):
                pass
            for change in (lambda: pool.drop("s"), lambda: pool.placement.describe(copy.layout, copy.description)):
                with pytest.raises(Conflict, match="read-only copy"):
                    change()
            assert placement.age is not None
            leader.drop("other")
            shipper.ship()
            placement.follow_now()
            assert pool.names() == ["s"]
    with pytest.raises(Conflict, match="kgserve promote"), StorePool(settings(tmp_path / "copy")):
        pass


def change_settings(kept: StoreSettings, **changes: str) -> StoreSettings:
    return msgspec.structs.replace(kept, **changes)


def test_restarted_shipper_and_follower_continue(tmp_path: Path, target: str) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    for number in range(3):
        with opened(data) as store, shipping(data, target) as shipper:
            write(store, batch(f"n{number}"))
            ship_all(shipper)
            with following(copy, target) as (pool, _):
                assert node_ids(pool, "s") == [f"n{each}" for each in range(number + 1)]
    found = open_target_log(open_target_storage(target)).catalog.stores["s"]
    assert (len(found.manifest.bases), found.lineage_bases) == (1, 1)


def test_leader_restored_to_older_state_starts_new_lineage(tmp_path: Path) -> None:
    data, copy, target = tmp_path / "data", tmp_path / "copy", str(tmp_path / "target")
    with StorePool(settings(data)) as leader, shipping(data, target) as shipper:
        with leader.lease("s", create=True) as store:
            write(store, batch("a"), batch("b"))
        ship_all(shipper)
        with following(copy, target) as (pool, placement):
            assert node_ids(pool, "s") == ["a", "b"]
            leader.drop("s")
            with leader.lease("s", create=True) as store:
                write(store, batch("x"), batch("y"), batch("z"))
            ship_all(shipper)
            placement.follow_now()
            assert node_ids(pool, "s") == ["x", "y", "z"]
    assert len(open_target_log(open_target_storage(target)).catalog.stores["s"].manifest.bases) == 2


def test_retention_deletes_old_bases_dropped_stores_and_log(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    with StorePool(settings(data)) as leader, shipping(data, str(target)) as shipper:
        for name in ("s", "dropped", "s"):
            if leader.placement.exists(name):
                leader.drop(name)
            with leader.lease(name, create=True) as store:
                write(store, batch("a"), batch("b"))
            ship_all(shipper)
        leader.drop("dropped")
        shipper.ship()
    (target / "stores" / "s" / "run-9000001").mkdir()
    orphan = target / "stores" / "s" / "run-9000001" / "unannounced.log"
    orphan.touch()
    with shipping(data, str(target)):
        assert not orphan.parent.exists()
    kept = open_target_log(open_target_storage(str(target))).catalog
    assert {name: len(store.manifest.bases) for name, store in kept.stores.items()} == {"s": 2, "dropped": 1}
    for _ in range(3):
        with shipping(data, str(target), keep_hours=0):
            pass
    kept = open_target_log(open_target_storage(str(target))).catalog
    assert {name: len(store.manifest.bases) for name, store in kept.stores.items()} == {"s": 1}
    objects = {str(path.relative_to(target)) for path in (target / "stores").rglob("*") if path.is_file()}
    assert objects == set(list_object_keys("s", kept.stores["s"].manifest.bases))
    assert len(list((target / "log").iterdir())) == len(list((target / "checkpoints").iterdir())) - 1 == 1
    assert kgserve("verify", target).code == 0


@pytest.mark.parametrize("harm", ["none", "dropped", "trimmed"])
def test_times_at_which_nothing_was_shipped_are_not_restored(tmp_path: Path, harm: str) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")
    with StorePool(settings(data)) as leader:
        wanted = StoreCreateIfMissingRequest(StoreSettings(history="none"))
        with leader.lease("s", create=wanted) as store:
            write(store, batch("shipped"))
            with shipping(data, target) as shipper:
                ship_all(shipper)
            write(store, batch("not shipped"))
            at = format_rfc3339_timestamp(time.time_ns() // 1000)
            write(store, batch("later"))
            if harm == "trimmed":
                store.erase(store.end_segment(), [])
        if harm == "dropped":
            leader.drop("s")
        with shipping(data, target) as shipper:
            if harm != "none":
                ship_all(shipper)
    refused = kgserve("restore", target, "--store", "s", "--until", at, "--data", tmp_path / "restored")
    assert (refused.code, "is not covered" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("harm", ["base", "object"])
def test_age_grows_while_a_store_lacks_commits(tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", tmp_path / "target"

    def refuse(*_: Any) -> BackupChain:
        raise Unavailable("the files keep being replaced")

    with opened(data) as store, shipping(data, str(target)) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        with following(tmp_path / "copy", str(target)) as (pool, placement):
            shipped, objects = time.time(), {*(target / "stores").rglob("*.log")}
            write(store, batch("b"))
            if harm == "base":
                monkeypatch.setattr(f"{JournalShipper.__module__}.build_store_base", refuse)
                store.erase(store.end_segment(), [])
            shipper.ship()
            if harm == "object":
                [shipped_object] = {*(target / "stores").rglob("*.log")} - objects
                shipped_object.unlink()
            placement.follow_now()
            assert node_ids(pool, "s") == ["a"]
            least = time.time() - shipped
            assert (placement.age or 0) >= least
            if harm == "base":
                assert shipper.status.covered <= shipped * 10**6


def test_restore_to_a_time_has_the_settings_of_then(tmp_path: Path) -> None:
    data, target, moments = tmp_path / "data", str(tmp_path / "target"), list[int]()
    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        for name in ("", "first", "second"):
            store.change_settings(lambda kept, name=name: change_settings(kept, name=name))
            shipper.ship()
            moments.append(time.time_ns() // 1000)
        write(store, batch("b"))
        shipper.ship()
    for number, name in enumerate(("", "first", "second")):
        at = format_rfc3339_timestamp(moments[number])
        restored = ["--store", "s", "--as", f"s{number}", "--until", at, "--data", tmp_path / "restored"]
        done = kgserve("restore", target, *restored)
        assert (done.code, layout(tmp_path / "restored", f"s{number}").read_description_or_default().name) == (0, name)


def test_follower_that_was_away_longer_than_commits_are_kept_fetches_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target, copy = tmp_path / "data", str(tmp_path / "target"), tmp_path / "copy"
    wanted = StoreCreateIfMissingRequest(StoreSettings(history="none"))
    with StorePool(settings(data)) as leader, leader.lease("s", create=wanted) as store:

        def trim_and_build(*args: Any) -> BackupChain:
            store.erase(store.end_segment(), [])
            return build_store_base(*args)

        with shipping(data, target) as shipper:
            write(store, batch("a"))
            ship_all(shipper)
            with following(copy, target) as (pool, _):
                assert node_ids(pool, "s") == ["a"]
            write(store, batch("b"))
            module = JournalShipper.__module__
            monkeypatch.setattr(f"{module}.build_store_base", trim_and_build)
            with monkeypatch.context() as patch:
                patch.setattr(f"{module}.is_base_outgrown", lambda _: True)
                shipper.ship()
            shipper.wait_for_bases()
            shipper.ship()
        with shipping(data, target, keep_hours=0), following(copy, target) as (pool, _):
            assert node_ids(pool, "s") == ["a", "b"]


def test_second_shipper_fences_the_first(tmp_path: Path, target: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with opened(data) as store, shipping(data, target) as first:
        write(store, batch("a"))
        ship_all(first)
        with opened(other) as theirs:
            write(theirs, batch("foreign"))
            with pytest.raises(Conflict, match="another data folder"), shipping(other, target):
                pass
            with shipping(other, target, take_over=True) as second:
                ship_all(second)
        write(store, batch("b"))
        with pytest.raises(Fenced, match="another process"):
            first.ship()
    with following(tmp_path / "copy", target) as (pool, _):
        assert node_ids(pool, "s") == ["foreign"]


def test_lost_answer_of_an_append_neither_fences_nor_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")
    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        create = FolderTargetStorage.create

        def lose_answer(storage: FolderTargetStorage, key: str, content: bytes) -> None:
            create(storage, key, content)
            if key.startswith(LOG_PREFIX):
                raise Unavailable("the connection was lost")

        with monkeypatch.context() as patch:
            patch.setattr(FolderTargetStorage, "create", lose_answer)
            write(store, batch("b"))
            with pytest.raises(Unavailable, match="connection was lost"):
                shipper.ship()
        write(store, batch("c"))
        with pytest.raises(Unavailable, match="had been written"):
            shipper.ship()
        assert shipper.ship() == 1
    with following(tmp_path / "copy", target) as (pool, _):
        assert node_ids(pool, "s") == ["a", "b", "c"]


def test_repeated_upload_of_commits_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")
    create = FolderTargetStorage.create

    def create_twice(storage: FolderTargetStorage, key: str, content: bytes) -> None:
        create(storage, key, content)
        create(storage, key, content)

    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        monkeypatch.setattr(FolderTargetStorage, "create", create_twice)
        write(store, batch("b"))
        assert shipper.ship() == 1
    with following(tmp_path / "copy", target) as (pool, _):
        assert node_ids(pool, "s") == ["a", "b"]


def test_pass_that_fails_while_a_base_is_made_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")
    built, announce = threading.Event(), threading.Event()

    def build_and_wait(*args: Any) -> BackupChain:
        base = build_store_base(*args)
        built.set()
        announce.wait()
        return base

    def refuse(_storage: FolderTargetStorage, _key: str, _content: bytes) -> None:
        raise Unavailable("the connection was lost")

    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        module = JournalShipper.__module__
        monkeypatch.setattr(f"{module}.build_store_base", build_and_wait)
        write(store, batch("b"))
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.is_base_outgrown", lambda _: True)
            shipper.ship()
        built.wait()
        write(store, batch("c"))
        with monkeypatch.context() as patch:
            patch.setattr(FolderTargetStorage, "create", refuse)
            with pytest.raises(Unavailable, match="connection was lost"):
                shipper.ship()
        shipper.ship()
        announce.set()
        ship_all(shipper)
    with following(tmp_path / "copy", target) as (pool, _):
        assert node_ids(pool, "s") == ["a", "b", "c"]
    assert kgserve("verify", target).code == 0


def test_commits_are_shipped_while_no_base_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")

    def refuse(*_: Any) -> BackupChain:
        raise Unavailable("the files keep being replaced")

    with opened(data) as store, shipping(data, target) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        monkeypatch.setattr(f"{JournalShipper.__module__}.build_store_base", refuse)
        monkeypatch.setattr(f"{JournalShipper.__module__}.is_base_outgrown", lambda _: True)
        for name in "bcd":
            write(store, batch(name))
            assert shipper.ship() == 1
            shipper.wait_for_bases()
    with following(tmp_path / "copy", target) as (pool, _):
        assert node_ids(pool, "s") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("kind", ["log/", "stores/", "missing"])
@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_damaged_object_is_found(tmp_path: Path, kind: str, harm: str) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    with opened(data) as store, shipping(data, str(target)) as shipper:
        write(store, batch("a"))
        ship_all(shipper)
        for each in "bcd":
            write(store, batch(each))
            shipper.ship()
    folder = target / (LOG_PREFIX if kind == "missing" else kind)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[len(files) // 2]
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    done = kgserve("verify", target)
    assert (done.code, path.name in done.err) == (1, True), done.err
    done = kgserve("restore", target, "--data", tmp_path / "again")
    assert (done.code, path.name in done.err) == (1, True), done.err


def test_damaged_checkpoint_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    with opened(data) as store:
        for each in "abc":
            with shipping(data, str(target)) as shipper:
                write(store, batch(each))
                ship_all(shipper)
    newest = max((target / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-3])
    with following(tmp_path / "copy", str(target)) as (pool, _):
        assert node_ids(pool, "s") == ["a", "b", "c"]


def test_erased_memory_leaves_target_and_follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, copy, target = tmp_path / "data", tmp_path / "copy", tmp_path / "target"
    secret = "Rosalind lives in Wexford"
    create = FolderTargetStorage.create

    def refuse_entries(storage: FolderTargetStorage, key: str, content: bytes) -> None:
        if key.startswith(LOG_PREFIX):
            raise Unavailable("the connection was lost")
        create(storage, key, content)

    unfinished = target / "staging" / "left-by-a-killed-process"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text(secret)
    with library.open(data) as stores:
        store = stores.store("team")
        store.retain(secret, entity_id="m")
        store.inject([{"id": "kept", "type": "note", "content": "stays"}])
        with shipping(data, str(target)) as shipper:
            ship_all(shipper)
            with following(copy, str(target)) as (pool, placement):
                assert mentions(target, secret)
                assert mentions(copy, secret)
                with monkeypatch.context() as patch:
                    patch.setattr(FolderTargetStorage, "create", refuse_entries)
                    store.retain(secret, entity_id="again")
                    with pytest.raises(Unavailable):
                        shipper.ship()
                store.forget(ids=["again"], erase=True)
                assert store.forget(ids=["m"], erase=True).memories_removed == 1
                ship_all(shipper)
                placement.follow_now()
                assert node_ids(pool, "team") == ["kept"]
    assert not mentions(target, secret)
    assert not mentions(copy, secret)
    assert promote_follower(settings(copy), offline=False) == str(target)
    with shipping(copy, str(target)) as shipper:
        ship_all(shipper)
        # The store has other purges than the one that was shipped before, but nothing was erased since.
        assert len(open_target_log(open_target_storage(str(target))).catalog.stores["team"].manifest.bases) == 2


def mentions(folder: Path, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_killed_leader_is_replaced_by_promoted_follower(tmp_path: Path) -> None:
    data, copy, target = tmp_path / "leader", tmp_path / "copy", tmp_path / "target"
    acknowledged: list[int] = []
    with serving(data, "--indexes", "none") as leader, (tmp_path / "ship.log").open("w") as log:
        inject(leader.url, 0)
        shipper = start_command((), ["replicate", "--all", str(target), "--data", str(data)], environment(None), log)
        try:
            wait_until(lambda: bool(open_target_log(open_target_storage(str(target))).catalog.stores))
            with serving(copy, "--indexes", "none", "--follow", str(target)) as follower:
                writer = threading.Thread(target=write_until_refused, args=(leader.url, acknowledged))
                writer.start()
                wait_until(lambda: count_nodes(follower.url) > 100)
                refused = httpx.post(f"{follower.url}/api/memory/team/inject", json={"nodes": [node(-1)]})
                assert (refused.status_code, "read-only copy" in refused.text) == (409, True)
                forgotten = {"ids": ["n0"], "erase": True}
                refused = httpx.post(f"{follower.url}/api/v1/forget?store=team", json=forgotten)
                assert (refused.status_code, "read-only copy" in refused.text) == (409, True)
                assert float(refused.headers["kgserve-age"]) >= 0
                assert "kgserve_follower_age_seconds" in httpx.get(f"{follower.url}/metrics").text
                assert "kgserve_replication_age_seconds" in httpx.get(f"{leader.url}/metrics").text
                leader.process.send_signal(signal.SIGKILL)
                writer.join(PATIENCE_SECONDS)
        finally:
            shipper.send_signal(signal.SIGKILL)
            shipper.wait(PATIENCE_SECONDS)
            shipper.close()
    shipped = open_target_log(open_target_storage(str(target))).catalog.stores["team"].base.last
    assert kgserve("promote", "--data", copy).code == 0
    with serving(copy, "--indexes", "none") as promoted:
        assert count_nodes(promoted.url) == shipped.sequence == shipped.nodes
        assert shipped.sequence <= len(acknowledged) + 2
        inject(promoted.url, -1)
        wrong = kgserve("replicate", "teem", target, "--once", "--data", copy)
        assert (wrong.code, "there is no store 'teem'" in wrong.err) == (1, True)
        late = kgserve("replicate", "--all", target, "--once", "--data", data)
        assert (late.code, "another data folder" in late.err) == (1, True)
        assert kgserve("replicate", "--all", target, "--once", "--data", copy).code == 0
    assert open_target_log(open_target_storage(str(target))).catalog.stores["team"].base.last.nodes == shipped.nodes + 1


def node(number: int) -> dict[str, str]:
    return {"id": f"n{number}", "type": "t", "content": "some words"}


def inject(url: str, number: int) -> None:
    httpx.post(f"{url}/api/memory/team/inject", json={"nodes": [node(number)]}).raise_for_status()


def count_nodes(url: str) -> int:
    found = httpx.get(f"{url}/api/memory").json()["stores"]
    return found[0]["nodes"] if found else 0


def write_until_refused(url: str, acknowledged: list[int]) -> None:
    with httpx.Client() as client:
        for number in range(1, 1_000_000):
            try:
                client.post(f"{url}/api/memory/team/inject", json={"nodes": [node(number)]}).raise_for_status()
            except httpx.TransportError:
                return
            acknowledged.append(number)


def wait_until(holds: object) -> None:
    """Wait until a condition holds."""
    assert callable(holds)
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            if holds():
                return
        except (KgserveError, httpx.HTTPError):
            pass
        time.sleep(0.05)
    raise AssertionError("the condition never held")
