"""Read replicas of stores that another node serves, and their files."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from kgserve.client import Client
from kgserve.cluster.journal_replicated_log_sync import read_replicated_log_copy_position
from kgserve.platform.metrics.exposition import MetricsScrape
from kgserve.storage.journal.snapshot import list_journal_snapshots
from kgserve.storage.store_folder_layout import StoreLayout
from tests.cluster.nodes import ServingNode, serving_nodes
from tests.cluster.servers import NatsServers, nats_servers
from tests.server.http.serving import accepted

PATIENCE = 60.0
COPY = {"Kgserve-Read": "copy"}
SECRET = "quicksilver-4711"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(scope="module")
def nodes(servers: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServingNode]]:
    with serving_nodes(servers, tmp_path_factory.mktemp("copies"), 2) as running:
        yield running


@pytest.fixture
def owner(nodes: list[ServingNode]) -> Iterator[Client]:
    """Return a client of the node that creates the stores."""
    with nodes[0].client() as client:
        yield client


@pytest.fixture
def copy(nodes: list[ServingNode]) -> Iterator[httpx.Client]:
    """Return a client of the other node."""
    with httpx.Client(base_url=nodes[1].url, timeout=PATIENCE) as http:
        yield http


def read(copy: httpx.Client, path: str, at_least: int = 0, **body: Any) -> httpx.Response:
    headers = COPY | ({"Kgserve-At-Least": str(at_least)} if at_least else {})
    if body:
        return copy.post(f"/api/memory/{path}", json=body, headers=headers)
    return copy.get(f"/api/memory/{path}", headers=headers)


def awaited(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def add(owner: Client, store: str, node: str, content: str = "red wine") -> int:
    """Add a node, and return its sequence."""
    return owner.store(store).inject(nodes=[{"id": node, "type": "t", "content": content}]).sequence


def lines(copy: httpx.Client, store: str, at_least: int) -> list[str]:
    return sorted(read(copy, f"{store}/export", at_least).text.splitlines()[1:])


def test_a_read_replica_follows_its_store(owner: Client, copy: httpx.Client) -> None:
    add(owner, "read", "a")
    assert copy.get("/api/memory/read/nodes/a").status_code == 307
    found = read(copy, "read/nodes/a")
    assert (found.status_code, found.headers["kgserve-sequence"], found.json()["node"]["id"]) == (200, "1", "a")
    assert copy.get("/api/memory/read/nodes/a").status_code == 307
    for at in range(20):
        sequence = add(owner, "read", f"b{at}")
        found = read(copy, f"read/nodes/b{at}", sequence)
        assert (found.status_code, found.headers["kgserve-sequence"]) == (200, str(sequence))
    add(owner, "read", "c")
    awaited(lambda: read(copy, "read/nodes/c").status_code == 200)


def test_all_read_operations_accept_replicas(nodes: list[ServingNode], owner: Client, copy: httpx.Client) -> None:
    store = owner.store("all")
    store.inject(nodes=[{"id": f"n{at}", "type": "t", "content": f"wine {at}"} for at in range(50)])
    edges = [{"from": "n0", "to": f"n{at}", "relation_type": "k"} for at in range(1, 50)]
    store.inject(edges=edges)
    store.delete_node("n7")
    sequence = add(owner, "all", "n8", "altered")
    walked = read(copy, "all/traverse", sequence, start_id="n0").json()
    assert {each["id"] for each in walked["nodes"]} == {f"n{at}" for at in range(50) if at != 7}
    later = add(owner, "all", "n9", "altered twice")
    asked = {"query": "twice", "at_least": later}
    found = accepted(copy.post("/api/memory/all/search", json=asked, headers=COPY))
    assert (found["hits"][0]["node"]["id"], found["index_sequence"]) == ("n9", later)
    sequence = later
    counted = copy.post("/api/memory/all/cypher", json={"query": "MATCH (n:Entity) RETURN count(*)"}, headers=COPY)
    assert counted.json()["rows"] == [[49]]
    states = read(copy, "all/nodes/n8/history").json()["states"]
    assert [each["node"]["content"] for each in states] == ["altered", "wine 8"]
    with httpx.Client(base_url=nodes[0].url, timeout=PATIENCE) as http:
        assert lines(copy, "all", sequence) == lines(http, "all", sequence)


def test_requests_a_replica_cannot_answer_go_to_the_owner(owner: Client, copy: httpx.Client) -> None:
    sequence = add(owner, "beyond", "a")
    there = read(copy, "beyond/nodes/a", sequence + 1)
    assert (there.status_code, there.headers["kgserve-owner"]) == (307, "k0")
    assert copy.post("/api/memory/beyond/inject", json={"nodes": [], "edges": []}, headers=COPY).status_code == 307
    assert read(copy, "absent/nodes/a").status_code == 404
    assert copy.get("/api/memory/beyond/nodes/a", headers={"Kgserve-Read": "owner"}).status_code == 400
    for wrong in ({"Kgserve-At-Least": "x"}, {"Kgserve-Max-Staleness": "-1"}, {"Kgserve-Max-Staleness": "soon"}):
        assert copy.get("/api/memory/beyond/nodes/a", headers=COPY | wrong).status_code == 400


def test_a_replica_answers_with_its_age_and_none_older_than_allowed(
    nodes: list[ServingNode], owner: Client, copy: httpx.Client
) -> None:
    add(owner, "aged", "a")
    found = read(copy, "aged/nodes/a")
    assert 0 < float(found.headers["kgserve-age"]) <= 10
    # No replica is younger than the last heartbeat, so this request is for the owner, whose answers have no age.
    strict = COPY | {"Kgserve-Max-Staleness": "0"}
    there = copy.get("/api/memory/aged/nodes/a", headers=strict)
    assert (there.status_code, there.headers["kgserve-owner"]) == (307, "k0")
    forwarded = copy.get("/api/memory/aged/nodes/a", headers=strict | {"Kgserve-No-Redirect": "1"})
    assert (forwarded.status_code, forwarded.headers["kgserve-age"]) == (200, "0.000")
    with Client(nodes[1].url, copies=True, max_staleness=0.0) as client:
        before = elsewhere(nodes[1])
        assert client.store("aged").node("a").node.id == "a"
        assert elsewhere(nodes[1]) - before == 1


def test_settings_changes_and_drops_reach_replicas(owner: Client, copy: httpx.Client) -> None:
    add(owner, "changing", "a")
    assert read(copy, "changing/nodes/a").status_code == 200
    owner.store("changing").update_settings(metadata={"colour": "red"})
    awaited(lambda: read(copy, "changing").json()["metadata"] == {"colour": "red"})
    owner.drop("changing", confirm="changing")
    awaited(lambda: read(copy, "changing/nodes/a").status_code == 404)
    add(owner, "changing", "b")
    awaited(lambda: read(copy, "changing/nodes/b").status_code == 200)
    assert read(copy, "changing/nodes/a").status_code == 404


def test_a_replica_becomes_the_store_on_a_move(nodes: list[ServingNode], owner: Client, copy: httpx.Client) -> None:
    sequence = add(owner, "moving", "a")
    assert read(copy, "moving/nodes/a", sequence).status_code == 200
    owner.store("moving").move("k1")
    assert copy.get("/api/memory/moving/nodes/a").status_code == 200
    add(owner, "moving", "b")
    with httpx.Client(base_url=nodes[0].url, timeout=PATIENCE) as http:
        assert read(http, "moving/nodes/b", sequence + 1).status_code == 200
    assert copy.get("/api/memory/moving/nodes/b").status_code == 200


def test_files_of_an_unread_replica_are_kept_up_to_date(
    nodes: list[ServingNode], owner: Client, copy: httpx.Client
) -> None:
    files = StoreLayout(nodes[1].data_dir, "kept")
    # Commits made before a node first reads the logs arrive with the next write.
    numbers = count()
    awaited(lambda: add(owner, "kept", f"n{next(numbers)}", "large " * 20) > 0 and files.exists)

    def has(text: str) -> Callable[[], bool]:
        return lambda: any(text.encode() in each.read_bytes() for each in files.journal.glob("*.log"))

    owner.store("kept").retain(f"the word is {SECRET}", entity_id="last")
    awaited(has(SECRET))
    assert read_replicated_log_copy_position(files.root) is not None, "files of an interrupted copy have no position"
    sequence = add(owner, "kept", "later")
    assert read(copy, "kept/nodes/later", sequence).status_code == 200
    owner.store("kept").forget(ids=["last"], erase=True)
    awaited(lambda: not files.exists or not has(SECRET)())
    add(owner, "kept", "after")
    awaited(has("after"))
    assert not has(SECRET)()
    assert list_journal_snapshots(files.journal)


def test_a_client_reads_its_own_writes_from_replicas(nodes: list[ServingNode], owner: Client) -> None:
    add(owner, "mine", "a")
    with Client(nodes[1].url, copies=True) as client:
        client.store("mine").stats()  # where the replica is created
        before = elsewhere(nodes[1])
        for number in range(5):
            add(client, "mine", f"n{number}")
            assert client.store("mine").node(f"n{number}").node.content == "red wine"
            assert client.store("mine").node("a").node.content == "red wine"
        assert elsewhere(nodes[1]) - before == 1  # the first write; the others went to the owner at once
        client.drop("mine", confirm="mine")
        add(client, "mine", "b", "white wine")
        awaited(lambda: {node.id for node in client.store("mine").nodes()} == {"b"})


def test_a_node_without_its_log_is_not_ready_and_refuses_reads_from_old_replicas(
    servers: NatsServers, nodes: list[ServingNode], owner: Client, copy: httpx.Client
) -> None:
    add(owner, "cut", "a")
    assert read(copy, "cut/nodes/a").status_code == 200
    awaited(lambda: copy.get("/ready").status_code == 200)
    for each in servers.servers:
        each.send(signal.SIGSTOP)
    try:
        awaited(lambda: copy.get("/ready").status_code == 503)
        assert "is cut off from the cluster's log" in copy.get("/ready").json()["detail"]
        answer = read(copy, "cut/nodes/a")
        while answer.status_code == 200:
            answer = read(copy, "cut/nodes/a")
        assert answer.status_code == 307, answer.text
        old = copy.get("/api/memory/cut/nodes/a", headers=COPY | {"Kgserve-Max-Staleness": "3600"})
        assert (old.status_code, float(old.headers["kgserve-age"]) > 10) == (200, True)
    finally:
        for each in servers.servers:
            each.send(signal.SIGCONT)
    awaited(lambda: copy.get("/ready").status_code == 200)
    awaited(lambda: read(copy, "cut/nodes/a").status_code == 200)
    assert float(read(copy, "cut/nodes/a").headers["kgserve-age"]) <= 10


def elsewhere(node: ServingNode) -> float:
    return (
        MetricsScrape.read(httpx.get(f"{node.url}/metrics").text).value("kgserve_cluster_elsewhere_total", how="sent")
        or 0
    )
