"""Behaviour of a cluster towards clients that send requests to any node."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

import kgserve
from kgserve.client import AsyncClient, Client
from kgserve.errors import Conflict, NotFound
from kgserve.platform.metrics.exposition import MetricsScrape
from kgserve.server.mcp.resource_handlers import RESOURCE_NOT_FOUND
from tests.cli.running import kgserve as command
from tests.cli.running import kgserve_process
from tests.cluster.nodes import PATIENCE, ServingNode, serving_nodes, settle
from tests.cluster.servers import nats_servers
from tests.project.reading import TOP
from tests.server.mcp.talking import Session, Stateless, message
from tests.server.mcp.test_keys import listening


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServingNode]]:
    folder = tmp_path_factory.mktemp("nodes")
    with nats_servers(folder / "nats") as servers, serving_nodes(servers, folder) as running:
        yield running


@pytest.fixture
def store() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


@pytest.fixture
def clients(nodes: list[ServingNode]) -> Iterator[list[Client]]:
    made = [node.client() for node in nodes]
    yield made
    for client in made:
        client.close()


def put(client: Client, store: str, node_id: str) -> int:
    return client.store(store).inject(nodes=[{"id": node_id, "type": "t", "content": f"about {node_id}"}]).sequence


def elsewhere(node: ServingNode, how: str) -> float:
    scraped = MetricsScrape.read(httpx.get(f"{node.url}/metrics").text)
    return scraped.value("kgserve_cluster_elsewhere_total", how=how) or 0


def wait_until_alive(client: Client, node: str, *, alive: bool = True) -> None:
    """Wait until a node considers another one alive, or gone."""
    until = time.monotonic() + PATIENCE
    while ((node, "alive") in {(each.name, each.state) for each in client.cluster().nodes}) != alive:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_any_node_accepts_any_request(clients: list[Client], store: str) -> None:
    assert [put(client, store, f"n{number}") for number, client in enumerate(clients * 2)] == [1, 2, 3, 4, 5, 6]
    for client in clients:
        assert {each.id for each in client.store(store).nodes()} == {f"n{number}" for number in range(6)}
        assert client.store(store).search("n1", at_least=6).hits


def test_standard_input_is_imported_at_any_node(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[2], store, "a")
    line = json.dumps({"kind": "node", "id": "b", "type": "t"})
    for node in nodes:
        done = command("import", store, "-", "--server", node.url, stdin=line)
        assert done.code == 0, done
    assert {each.id for each in clients[0].store(store).nodes()} == {"a", "b"}


def test_an_asynchronous_client_follows_redirects(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[0], store, "a")

    async def asked() -> int:
        async with AsyncClient(nodes[1].url) as client:
            return (await client.store(store).stats()).nodes

    assert asyncio.run(asked()) == 1


def test_requests_that_must_not_be_redirected_are_forwarded(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    put(clients[0], store, "a")
    with httpx.Client(base_url=nodes[1].url, timeout=PATIENCE) as http:
        sent = http.get(f"/api/memory/{store}/events?since=0")
        assert (sent.status_code, sent.headers["kgserve-owner"]) == (307, "k0")
        assert sent.headers["location"] == f"{nodes[0].url}/api/memory/{store}/events?since=0"
        assert sent.json()["type"] == "urn:kgserve:error:elsewhere"
        here = {"Kgserve-No-Redirect": "1"}
        body = {"nodes": [{"id": "b", "type": "t", "content": "x"}]}
        assert http.post(f"/api/memory/{store}/inject", json=body, headers=here).json()["sequence"] == 2
        assert http.get(f"/api/memory/{store}", headers={"Sec-Fetch-Mode": "cors"}).json()["sequence"] == 2
        with http.stream("GET", f"/api/memory/{store}/events?since=0", headers=here) as events:
            lines = events.iter_lines()
            assert events.headers["content-type"].startswith("text/event-stream")
            assert next(line for line in lines if line.startswith("event: ")) == "event: node_created"


@contextmanager
def read_events(
    node: ServingNode, store: str, last_id: str = ""
) -> Generator[Callable[[int], list[tuple[str, str, str]]]]:
    """Return the next node events of stores with a name prefix, as store, node id and event id."""
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=node.url, timeout=PATIENCE))
        query = "/api/events?kinds=store_created,store_dropped,node_created"
        response = stack.enter_context(http.stream("GET", query, headers={"Last-Event-ID": last_id}))
        blocks = iter_blocks(response.iter_lines())
        assert next(blocks).keys() == {"retry", "id"}

        def some() -> Iterator[tuple[str, str, str]]:
            for block in blocks:
                data = json.loads(block.get("data", '{"store": ""}'))
                if data["store"].startswith(store):
                    yield block["id"], data["store"], data.get("id", block["event"])

        events = some()
        yield lambda count: [next(events) for _ in range(count)]


def iter_blocks(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            yield fields
            fields = {}


def of_stores(events: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    return {store: [node for _, other, node in events if other == store] for _, store, _ in events}


def test_one_event_stream_covers_the_stores_of_all_nodes(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    first, second, later = f"{store}-1", f"{store}-2", f"{store}-3"
    put(clients[0], first, "before")
    put(clients[1], second, "before")
    with read_events(nodes[2], store) as following:
        put(clients[0], first, "a")
        put(clients[1], second, "b")
        put(clients[0], later, "c")
        begun = following(4)
        assert of_stores(begun) == {first: ["a"], second: ["b"], later: ["store_created", "c"]}
        clients[0].store(first).move("k2")
        clients[0].store(second).move("k0")
        clients[0].store(later).move("k1")
        for name in (first, second, later):
            put(clients[0], name, "moved")
        assert of_stores(following(3)) == {first: ["moved"], second: ["moved"], later: ["moved"]}
        nodes[1].end(signal.SIGKILL)
        put(clients[0], first, "alone")
        nodes[1].start()
        put(clients[1], later, "again")
        clients[0].drop(second, confirm=second)
        assert of_stores(following(3)) == {first: ["alone"], later: ["again"], second: ["store_dropped"]}
    settle(nodes)
    with read_events(nodes[0], store, begun[-1][0]) as resumed:
        put(clients[0], first, "end")
        after = of_stores(resumed(6))
    assert after[first] == ["moved", "alone", "end"]
    assert after[later][-2:] == ["moved", "again"]
    assert after[second] == ["store_dropped"]
    with read_events(nodes[1], store, "*:0") as all_there_is:
        assert of_stores(all_there_is(10)) == {
            first: ["store_created", "before", "a", "moved", "alone", "end"],
            later: ["store_created", "c", "moved", "again"],
        }


def test_tool_calls_are_forwarded_to_the_owner(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[0], store, "a")
    with httpx.Client(base_url=nodes[1].url, timeout=PATIENCE) as http:
        asked = {"name": "a", "index": store}
        assert "about a" in str(Stateless(http).call("get_entity", asked)["content"])
        assert "about a" in str(Session(http).call("get_entity", asked)["content"])


def test_resource_reads_are_forwarded_to_the_owner(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[0], store, "a")
    uri = f"kgserve://{store}/a"
    with httpx.Client(base_url=nodes[1].url, timeout=PATIENCE) as http:
        for read in (
            Stateless(http).post("resources/read", {"uri": uri}, mcp_name=uri),
            Session(http).post("resources/read", {"uri": uri}),
        ):
            assert "about a" in message(read)["result"]["contents"][0]["text"]
        like = {
            "ref": {"type": "ref/resource", "uri": "kgserve://{store}/{id}"},
            "argument": {"name": "id", "value": "a"},
        }
        known = {"context": {"arguments": {"store": store}}}
        assert message(Session(http).post("completion/complete", like | known))["result"]["completion"]["values"] == [
            "a"
        ]
        missing = message(Session(http).post("resources/read", {"uri": f"{uri}-not"}))
        assert missing["error"]["code"] == RESOURCE_NOT_FOUND
        wanted = {"notifications": {"resourceSubscriptions": [uri]}}
        with listening(Stateless(http), http, wanted) as lines:
            put(clients[0], store, "b")
            clients[0].store(store).inject(nodes=[{"id": "a", "type": "t", "content": "changed"}])
            assert any(uri in line for line in lines)
            clients[0].store(store).move("k2")
            # A moved store is announced again, since this node does not know what was written meanwhile.
            clients[2].store(store).inject(nodes=[{"id": "a", "type": "t", "content": "changed again"}])
            assert any(uri in line for line in lines)


def test_traversals_follow_links_into_stores_of_other_nodes(clients: list[Client], store: str) -> None:
    there = f"{store}-there"
    put(clients[1], there, "x")
    put(clients[0], store, "a")
    link = {"from": "a", "to": "x", "relation_type": "cites", "to_graph": there}
    clients[0].store(store).inject([], [link])
    for client in clients:
        walk = client.store(store).traverse("a", follow_symlinks=True)
        assert [(each.id, each.content) for each in walk.nodes] == [("a", "about a"), ("x", "about x")]


def test_settings_and_drops_apply_to_the_cluster(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    first, second, third = clients
    put(first, store, "a")
    second.store(store).update_settings(name="Renamed", metadata={"a": 1})
    assert {each.state: each.node for each in third.stores().stores if each.name == store} == {"elsewhere": "k0"}
    third.drop(store, confirm=store)
    for client in clients:
        with pytest.raises(NotFound):
            client.store(store).settings()
    until = time.monotonic() + PATIENCE
    while any([*node.data_dir.glob(f"{store}*")] for node in nodes):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert put(second, store, "b") == 1
    assert [each.id for each in first.store(store).nodes()] == ["b"]
    assert first.store(store).settings().name == ""


def test_audit_records_are_visible_on_all_nodes(clients: list[Client], store: str) -> None:
    put(clients[0], store, "a")
    clients[1].drop(store, confirm=store)
    end = time.monotonic() + PATIENCE
    for client in clients:
        while not (found := [each for each in client.audit(limit=1000).records if each.store == store]):
            assert time.monotonic() < end
            time.sleep(0.05)
        [drop] = found
        assert (drop.act, drop.outcome) == ("dropStore", "done")
        assert drop in client.audit(node=drop.node).records
        assert {each.node for each in client.audit(node=drop.node).records} == {drop.node}
    with pytest.raises(NotFound, match="nobody"):
        clients[0].audit(node="nobody")


def test_metrics_named_in_dashboard_and_alerts_exist(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    put(clients[0], store, "a")
    files = (TOP / "deploy/grafana/kgserve.json", TOP / "deploy/prometheus/alerts.yml")
    named = {name for file in files for name in re.findall(r"kgserve_cluster_\w+", file.read_text())}
    before = [elsewhere(nodes[0], how) for how in ("sent", "asked")]
    put(clients[1], f"{store}-away", "a")
    for headers in ({}, {"Kgserve-No-Redirect": "1"}):
        httpx.get(f"{nodes[0].url}/api/memory/{store}-away", headers=headers)
    assert [elsewhere(nodes[0], how) for how in ("sent", "asked")] == [each + 1 for each in before]
    scraped = httpx.get(f"{nodes[0].url}/metrics").text
    assert named <= {*re.findall(r"^(\w+)", scraped, re.MULTILINE)}
    families = {*re.findall(r"^# TYPE (kgserve_cluster_\w+)", scraped, re.MULTILINE)}
    assert families == {*re.findall(r"`(kgserve_cluster_\w+)`", (TOP / "docs/observation.md").read_text())}
    assert 'kgserve_cluster_nodes{state="alive"} 3.0' in scraped
    assert "kgserve_cluster_append_seconds_count 0.0" not in scraped


def test_a_stopped_node_hands_over_at_once(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[2], store, "a")
    clients[2].store(store).update_settings(name="Kept")
    nodes[2].end()
    try:
        with closing(Client(f"{nodes[2].url},{nodes[1].url}")) as either:
            assert put(either, store, "b") == 2
        assert clients[0].store(store).settings().name == "Kept"
        with pytest.raises(Conflict, match="belongs to a cluster node"), kgserve.open(nodes[2].data_dir):
            pass
        journal = sorted((nodes[2].data_dir / f"{store}_memory" / "journal").glob("*.log"))
        before = [each.read_bytes() for each in journal]
        examined = command("doctor", store, "--rebuild", "--data", nodes[2].data_dir)
        assert (examined.code, examined.err) == (0, "")
        assert "up to sequence 1 certainly" in examined.out
        assert [each.read_bytes() for each in journal] == before
        refused = command("doctor", store, "--salvage", "--data", nodes[2].data_dir)
        assert refused.code == 1
        assert "it fetches the store from the cluster" in refused.err
    finally:
        wait_until_alive(clients[0], "k2", alive=False)
        with ThreadPoolExecutor(1) as thread:
            starting = thread.submit(nodes[2].start)
            wait_until_alive(clients[0], "k2")
            # Callers are redirected there from now on; they may have to wait but are not rejected.
            assert httpx.get(f"{nodes[2].url}/health", timeout=PATIENCE).is_success
            starting.result()
        settle(nodes)
    assert put(clients[2], store, "c") == 3


def test_callers_are_not_redirected_to_a_silent_node(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    put(clients[0], store, "a")
    path, process = f"/api/memory/{store}/nodes/a", nodes[0].process
    assert process is not None
    with httpx.Client(base_url=nodes[1].url, timeout=PATIENCE) as http:

        def refused(status: int) -> httpx.Response:
            until = time.monotonic() + PATIENCE
            while (answer := http.get(path)).status_code != status:
                assert time.monotonic() < until
                time.sleep(0.05)
            return answer

        refused(307)
        process.send_signal(signal.SIGSTOP)
        try:
            answer = refused(503)
            copy = http.get(path, headers={"Kgserve-Read": "copy"})
        finally:
            process.send_signal(signal.SIGCONT)
        assert answer.headers["retry-after"] == "1"
        assert "which has not sent heartbeats for seconds" in answer.json()["detail"]
        assert copy.json()["node"]["id"] == "a"
        refused(307)


def test_a_store_can_be_moved_while_it_is_written(nodes: list[ServingNode], clients: list[Client], store: str) -> None:
    put(clients[0], store, "n0")
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(lambda: [put(clients[1], store, f"n{number}") for number in range(1, 60)])
        assert clients[2].store(store).move("k1").url == nodes[1].url
        assert clients[0].store(store).move("k2").node == "k2"
        assert writing.result(60) == [*range(2, 61)]
    found = {node.name: node for node in clients[0].cluster().nodes}
    assert {node.state for node in found.values()} == {"alive"}
    assert found["k2"].stores >= 1
    path, stays = f"/api/memory/{store}/nodes/n1", {"Kgserve-No-Redirect": "1"}
    for to in ("k1", "k0", "k2", "k1"):
        # A node that forwards a read to the former owner looks up the current one.
        clients[0].store(store).move(to)
        assert [httpx.get(node.url + path, headers=stays, timeout=PATIENCE).status_code for node in nodes] == [200] * 3
    with pytest.raises(Conflict, match="node 'k9' is not alive; live nodes: k0, k1, k2"):
        clients[0].store(store).move("k9")
    also = f"{store}-also"
    put(clients[0], also, "a")
    with pytest.raises(Conflict, match="served by different nodes"):
        clients[0].store(store).context("n1", also=[also])


def test_a_standalone_store_is_imported(
    nodes: list[ServingNode], clients: list[Client], store: str, tmp_path: Path
) -> None:
    with kgserve.open(tmp_path / "alone", embedding_provider="hashing") as alone:
        alone.store(store).inject(nodes=[{"id": "old", "type": "t", "content": "from before"}])
        alone.store(store).update_settings(name="Old")
    (tmp_path / "alone" / f"{store}_memory").rename(nodes[1].data_dir / f"{store}_memory")
    assert put(clients[1], store, "new") == 2
    assert clients[0].store(store).settings().name == "Old"
    nodes[1].end()
    try:
        assert {each.id for each in clients[0].store(store).nodes()} == {"old", "new"}
    finally:
        nodes[1].start()
        settle(nodes)


def test_unknown_files_on_the_target_of_a_move_are_set_aside(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    put(clients[0], store, "a")
    clients[0].store(store).move("k0")
    clients[0].store(store).move("k1")
    put(clients[0], store, "b")
    clients[0].store(store).move("k0")
    nodes[1].end()
    (nodes[1].data_dir / f"{store}_memory" / "log.json").unlink()
    nodes[1].start()
    settle(nodes)
    wait_until_alive(clients[0], "k1")
    moved = kgserve_process("cluster", "move", store, "k1", "--server", nodes[0].url)
    assert (moved.code, "is served by k1" in moved.out) == (0, True), moved
    assert put(clients[0], store, "c") == 3
    assert {each.id for each in clients[1].store(store).nodes()} == {"a", "b", "c"}
    [aside] = nodes[1].data_dir.glob(f".aside-{store}-*")
    clients[1].store(store).retain("Rosalind lives in Wexford", entity_id="m")
    remains = clients[1].store(store).forget(ids=["m"], erase=True).remains
    assert ("file", aside.name) in [(each.kind, each.name) for each in remains]


def test_moves_and_drains_wait_until_the_new_node_has_opened_the_store(
    nodes: list[ServingNode], clients: list[Client], store: str
) -> None:
    put(clients[0], store, "a")
    clients[0].store(store).move("k0")
    moved = clients[1].store(store).move("k1")
    assert (moved.node, moved.opened, moved.reason) == ("k1", True, "")
    assert opened_at(nodes[1], store)
    clients[0].store(store).move("k0")
    drained = clients[0].drain()
    clients[0].drain(undo=True)
    assert (drained.failed, drained.unopened) == ({}, {})
    taker = next(node for node in nodes if node.name == owner_of(clients[0], store))
    assert taker.name != "k0"
    assert opened_at(taker, store)
    clients[0].store(store).move("k0")
    shutil.rmtree(nodes[1].data_dir / f"{store}_memory")
    (nodes[1].data_dir / f"{store}_memory").symlink_to(nodes[1].data_dir)
    refused = clients[0].store(store).move("k1")
    assert (refused.node, refused.opened) == ("k1", False)
    assert f"node 'k1' has not opened store '{store}' yet" in refused.reason
    read_events = kgserve_process("cluster", "move", store, "k1", "--server", nodes[0].url)
    assert read_events.code == 1, read_events
    (nodes[1].data_dir / f"{store}_memory").unlink()
    assert put(clients[0], store, "b") == 2


def opened_at(node: ServingNode, store: str) -> bool:
    """Return whether the last log event of a node about a store is that it was opened."""
    events = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    read_events = [each["event"] for each in events if each.get("store") == store]
    return [each for each in read_events if each in {"store_opened", "store_closed"}][-1:] == ["store_opened"]


def owner_of(client: Client, store: str) -> str | None:
    return next(each.node for each in client.stores().stores if each.name == store)


def test_a_node_backs_up_other_nodes_stores_from_current_replicas(
    nodes: list[ServingNode], clients: list[Client], store: str, tmp_path: Path
) -> None:
    put(clients[0], store, "a")
    clients[0].store(store).move("k0")
    put(clients[0], store, "b")
    clients[1].store(store).move("k2")
    for number, served in ((3, nodes[0]), (4, nodes[1]), (5, nodes[2])):
        assert put(clients[0], store, f"n{number}") == number
        made = command("backup", store, "--to", tmp_path / served.name, "--data", served.data_dir, "--json")
        assert made.code == 0, made
        assert json.loads(made.out)["stores"][0]["sequence"] == number
    others = command("backup", "--to", tmp_path / "all", "--data", nodes[0].data_dir, "--json")
    assert others.code == 0, others
    assert store in {each["store"] for each in json.loads(others.out)["stores"]}
    for folder in tmp_path.iterdir():
        assert command("verify", folder).code == 0
    # Over REST, the owner backs up a single store, and any node backs up several.
    assert clients[1].store(store).backup(store).sequence == 5
    assert command("verify", nodes[2].backup_dir / store).code == 0
    several = clients[1].backup_stores(f"{store}-several", stores=[store])
    assert [(each.store, each.sequence) for each in several.stores] == [(store, 5)]
    assert command("verify", nodes[1].backup_dir / f"{store}-several").code == 0
    restored = command("restore", tmp_path / "k1", "--store", store, "--data", tmp_path / "alone")
    assert restored.code == 0, restored
    with kgserve.open(tmp_path / "alone", embedding_provider="hashing") as alone:
        assert {each.id for each in alone.store(store).nodes()} == {"a", "b", "n3", "n4"}
    # This is how a store returns after its times were repaired outside of the cluster.
    refused = command("doctor", store, "--repair-times", "--data", nodes[1].data_dir)
    assert (refused.code, "restore it into a separate data folder" in refused.out + refused.err) == (1, True), refused
    assert command("doctor", store, "--repair-times", "--data", tmp_path / "alone").code == 0
    clients[0].drop(store, confirm=store)
    place, until = nodes[1].data_dir / f"{store}_memory", time.monotonic() + PATIENCE
    while place.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    (tmp_path / "alone" / f"{store}_memory").rename(place)
    assert httpx.get(f"{nodes[1].url}/api/memory/{store}/stats", timeout=PATIENCE).json()["sequence"] == 4
    assert put(clients[0], store, "n5") == 5
