"""Bootstrap snapshots, from which a store is taken over after its log was trimmed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

import kgserve
from kgserve.client import Client
from kgserve.cluster.backend import StoreOwnerEntry
from kgserve.cluster.replicated_log_records import RECORD_FORMAT
from kgserve.errors import Conflict, ReplicatedLogCorrupt, Unavailable
from tests.cluster.conftest import JetStreamRig
from tests.cluster.nodes import ServingNode, serving_nodes, settle
from tests.cluster.rig import Node, Rig
from tests.cluster.servers import NatsServers, nats_servers

PATIENCE = 60.0
SECRET = "xylophone-7731"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[NatsServers]:
    with nats_servers(folder / "nats") as running:
        yield running


@pytest.fixture(scope="module")
def nodes(servers: NatsServers, folder: Path) -> Iterator[list[ServingNode]]:
    # A replica would have what the log lost, and bypass the code under test.
    with serving_nodes(servers, folder, 2, copies=0) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(rigged: Rig) -> Node:
    """Return a node's connection to the cluster."""
    return rigged.node()


@pytest.fixture(scope="module")
def rigged(servers: NatsServers) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield JetStreamRig(servers, stack)


@pytest.fixture
def clients(nodes: list[ServingNode]) -> Iterator[list[Client]]:
    made = [node.client() for node in nodes]
    yield made
    for client in made:
        client.close()


def owner(cluster: Node, store: str) -> StoreOwnerEntry:
    found = cluster.registry.owner(store)
    assert found is not None
    return found.owner


def written(client: Client, store: str, batch: int) -> None:
    """Write more than the compaction threshold."""
    nodes = [{"id": f"n{at}", "type": "t", "content": f"batch {batch} of {at} {'x' * 3_000}"} for at in range(700)]
    client.store(store).inject(nodes=nodes)


def awaited(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


def compacted(client: Client, cluster: Node, store: str, batches: range) -> None:
    """Write until two snapshots exist and the log begins after the first."""
    for batch in batches:
        before = [base.sequence for base in owner(cluster, store).bases]
        written(client, store, batch)
        awaited(lambda before=before: [base.sequence for base in owner(cluster, store).bases] != before)


def test_a_store_is_taken_over_from_a_snapshot(nodes: list[ServingNode], clients: list[Client], cluster: Node) -> None:
    store = "snapped"
    clients[0].store(store).inject(nodes=[{"id": "n0", "type": "t", "content": "the first that was said"}])
    compacted(clients[0], cluster, store, range(3))
    clients[0].store(store).inject(nodes=[{"id": "last", "type": "t", "content": "after the snapshots"}])
    found = owner(cluster, store)
    assert len(found.bases) == 2
    awaited(lambda: _is_trimmed(cluster, store))
    names = {name for base in found.bases for name in base.files.values()}
    awaited(lambda: {*cluster.blobs.names(f"base/{store}/")} == names)
    nodes[0].end()
    try:
        assert clients[1].store(store).node("last").node.content == "after the snapshots"
        assert len(clients[1].store(store).history("n0").states) == 4
        assert clients[1].store(store).stats().nodes == 701
        assert clients[1].store(store).search("first said", at_least=5).hits
    finally:
        nodes[0].start()
        settle(nodes)
    clients[1].store(store).inject(nodes=[{"id": "later", "type": "t", "content": "by the other"}])
    assert clients[1].store(store).move("k0").node == "k0"
    assert clients[0].store(store).node("later").node.version == 1


def test_purged_data_is_on_no_node_and_in_no_log(
    nodes: list[ServingNode], clients: list[Client], cluster: Node, folder: Path, tmp_path: Path
) -> None:
    store = "secretive"
    for number in range(2):
        clients[number].store(store).retain(f"the word is {SECRET} {number}", entity_id=f"secret-{number}")
        clients[0].store(store).move(f"k{1 - number}")
    # Each node has a replica by now.
    assert all(_held(node.data_dir / f"{store}_memory", SECRET) for node in nodes)
    forgotten = clients[0].store(store).forget(ids=["secret-0", "secret-1"], erase=True)
    assert forgotten.memories_removed == 2
    assert [each.kind for each in forgotten.remains] == ["node", "log", "unknown"]
    awaited(lambda: not any(_held(node.data_dir / f"{store}_memory", SECRET) for node in nodes))
    found = owner(cluster, store)
    assert not any(
        SECRET.encode() in each.record.data for each in cluster.log.read(store, found.oldest, cluster.log.end(store))
    )
    assert _is_trimmed(cluster, store)
    for number, name in enumerate(cluster.blobs.names(f"base/{store}/")):
        cluster.blobs.get(name, tmp_path / str(number))
    assert not _held(tmp_path, SECRET)
    await_erasure_from_streams(folder)
    clients[1].store(store).move("k1")
    assert clients[0].store(store).stats().nodes == 0


def await_erasure_from_streams(folder: Path) -> None:
    """Wait until the files of all streams lack the secret.

    The servers' own replication logs are excluded; they keep data for some minutes.
    """
    streams = [*(folder / "nats").glob("*/jetstream/KGSERVE/streams")]
    assert len(streams) == 3
    awaited(lambda: not any(_held(each, SECRET) for each in streams))


def test_purged_person_is_on_no_node_and_in_no_log(
    nodes: list[ServingNode], clients: list[Client], cluster: Node, folder: Path, tmp_path: Path
) -> None:
    store = "impersonal"
    clients[0].store(store).retain(f"{SECRET} likes tea", entities=[{"name": SECRET}])
    clients[0].store(store).move("k1")
    clients[0].store(store).retain("likes sushi", entities=[{"name": SECRET}])
    assert all(_held(node.data_dir / f"{store}_memory", SECRET) for node in nodes)
    # Ids of entities are names, so the deletion itself must not stay in any log.
    assert clients[0].store(store).forget(entity=SECRET, erase=True, confirm=SECRET).memories_removed == 2
    awaited(lambda: not any(_held(node.data_dir / f"{store}_memory", SECRET) for node in nodes))
    found = owner(cluster, store)
    assert not any(
        SECRET.encode() in each.record.data for each in cluster.log.read(store, found.oldest, cluster.log.end(store))
    )
    for number, name in enumerate(cluster.blobs.names(f"base/{store}/")):
        cluster.blobs.get(name, tmp_path / str(number))
    assert not _held(tmp_path, SECRET)
    await_erasure_from_streams(folder)
    assert clients[0].store(store).stats().nodes == 0


def test_a_damaged_bootstrap_snapshot_is_skipped(
    nodes: list[ServingNode], clients: list[Client], cluster: Node
) -> None:
    store = "damaged"
    clients[0].store(store).inject(nodes=[{"id": "n0", "type": "t", "content": "the first"}])
    compacted(clients[0], cluster, store, range(2))
    newest = owner(cluster, store).bases[-1]
    cluster.blobs.drop(next(name for key, name in newest.files.items() if key.endswith("nodes.parquet")))
    assert clients[1].store(store).move("k1").node == "k1"
    assert clients[1].store(store).stats().nodes == 700
    assert len(clients[1].store(store).history("n0").states) == 3


def test_a_standalone_store_is_imported_with_its_snapshots(
    nodes: list[ServingNode], clients: list[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = "older"
    for name, value in {"COMPACT_WAL_MB": "1", "JOURNAL_SEGMENT_MB": "1", "JOURNAL_RETENTION_MB": "0"}.items():
        monkeypatch.setenv(f"KGSERVE_{name}", value)
    with kgserve.open(tmp_path / "alone", embedding_provider="hashing") as alone:
        for batch in range(3):
            # All different: the journal packs similar texts, and its segments would never become full.
            texts = [random.Random(f"{batch} {at}").randbytes(1_500).hex() for at in range(700)]
            rows = [{"id": f"n{at}", "type": "t", "content": text} for at, text in enumerate(texts)]
            alone.store(store).inject(nodes=rows)
            awaited(lambda batch=batch: alone.store(store).stats().compactions > batch)
    journal = tmp_path / "alone" / f"{store}_memory" / "journal"
    assert min(int(path.stem) for path in journal.glob("*.log")) > 1
    (tmp_path / "alone" / f"{store}_memory").rename(nodes[0].data_dir / f"{store}_memory")
    clients[0].store(store).inject(nodes=[{"id": "new", "type": "t", "content": "in the cluster"}])
    assert clients[0].store(store).move("k1").node == "k1"
    assert clients[1].store(store).stats().nodes == 701
    assert len(clients[1].store(store).history("n1").states) == 3


def _held(folder: Path, word: str) -> bool:
    """Return whether any file below a folder contains a word, or files were replaced meanwhile."""
    try:
        return any(word.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:
        return folder.exists()


def test_a_drained_node_serves_no_stores(nodes: list[ServingNode], clients: list[Client]) -> None:
    clients[0].store("drained").inject(nodes=[{"id": "a", "type": "t", "content": "x"}])
    done = clients[0].drain()
    assert (done.node, done.draining, done.failed) == ("k0", True, {})
    assert done.moved >= 1
    assert [each.state for each in clients[1].cluster().nodes] == ["draining", "alive"]
    clients[0].store("drained-later").inject(nodes=[{"id": "a", "type": "t", "content": "x"}])
    assert {node.name: node.stores for node in clients[0].cluster().nodes}["k0"] == 0
    assert not clients[0].drain(undo=True).draining
    awaited(lambda: [each.state for each in clients[1].cluster().nodes] == ["alive", "alive"])
    assert clients[1].store("drained").move("k0").node == "k0"


@pytest.mark.parametrize("lost", [{6, 7, 8}, {4}])
def test_a_log_that_lost_records_is_repaired(
    nodes: list[ServingNode], clients: list[Client], rigged: Rig, cluster: Node, lost: set[int]
) -> None:
    store = f"torn-{len(lost)}"
    for number in range(8):
        clients[0].store(store).inject(nodes=[{"id": f"n{number}", "type": "t", "content": "x"}])
    with pytest.raises(Conflict, match="no repair is needed"):
        clients[0].store(store).repair()
    nodes[0].end(signal.SIGKILL)
    for each in list(cluster.log.read(store, 0, cluster.log.end(store))):
        if each.record.first in lost:
            rigged.lose_record(store, each.position)
    nodes[0].start()
    settle(nodes)
    with closing(Client(nodes[0].url, retries=0)) as hasty, pytest.raises(Unavailable, match="log of store"):
        hasty.store(store).stats()
    with closing(httpx.Client(base_url=nodes[1].url, headers={"Kgserve-No-Redirect": "1"})) as http:
        assert "has no files of store" in http.post(f"/api/memory/{store}/repair").text
    done = clients[0].store(store).repair()
    assert (done.node, done.sequence, done.found) == ("k0", 8, 8 - len(lost))
    assert clients[0].store(store).inject(nodes=[{"id": "n8", "type": "t", "content": "x"}]).sequence == 9
    assert clients[0].store(store).move("k1").node == "k1"
    assert len([*clients[0].store(store).nodes()]) == 9


def test_any_node_can_finish_an_upgrade(clients: list[Client]) -> None:
    assert clients[0].finish_upgrade().format == clients[1].cluster().format == RECORD_FORMAT


def _is_trimmed(cluster: Node, store: str) -> bool:
    try:
        next(iter(cluster.log.read(store, 0, cluster.log.end(store))))
    except ReplicatedLogCorrupt:
        return True
    return False
