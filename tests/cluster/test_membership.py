from __future__ import annotations

import threading
import time
from functools import partial

import msgspec
import pytest

from kgserve.cluster import membership
from kgserve.cluster.backend import ClusterNodeHeartbeat, StoreOwnerEntry, VersionedHeartbeat
from kgserve.cluster.membership import (
    LEASE_SECONDS,
    MIN_HEARTBEAT_ROUNDS,
    READ_FENCE_SECONDS,
    REDIRECT_CUTOFF_SECONDS,
    ClusterHeartbeatExchange,
    ClusterRecordFormat,
)
from kgserve.cluster.ownership import (
    LocalStoreOwnership,
    RemoteStoreOwnership,
    StoreClaimPermission,
    StoreOwnership,
    rank_store_takeover_nodes,
)
from kgserve.cluster.peer_reachability import PeerReachability
from kgserve.errors import Conflict, Fenced, NoStore, OutcomeUnknown, Unavailable
from tests.cluster.in_memory import MemoryRegistry, SharedMessageLog, Wire

NODES = ("n1", "n2", "n3")


class Clock:
    """Clock that only advances when set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Three nodes that only send heartbeats when instructed."""

    def __init__(self) -> None:
        shared = SharedMessageLog()
        self.clock = Clock()
        self.wires = {name: Wire(shared, 0) for name in NODES}
        self.nodes = {name: self.node(name) for name in NODES}
        self.owned = {name: StoreOwnership(MemoryRegistry(self.wires[name]), node) for name, node in self.nodes.items()}

    def node(self, name: str, run: str = "first") -> ClusterHeartbeatExchange:
        return ClusterHeartbeatExchange(
            MemoryRegistry(self.wires[name]), ClusterNodeHeartbeat(name, run, f"http://{name}"), self.clock
        )

    def run(self, seconds: int, *beating: str) -> None:
        """Advance the clock, with a heartbeat of each of these nodes every second."""
        for _ in range(seconds):
            self.clock.now += 1
            for name in beating:
                self.nodes[name].send_heartbeat()

    def silence(self, seconds: int, *listening: str) -> None:
        """Advance the clock without accepting heartbeats; these nodes listen every second."""
        for _ in range(seconds):
            self.clock.now += 1
            for name in listening:
                self.nodes[name].read_heartbeats()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_nodes_with_heartbeats_are_alive(cluster: Cluster) -> None:
    cluster.run(60, *NODES)
    for node in cluster.nodes.values():
        assert node.alive().keys() == {*NODES}
        assert not node.is_silent


def test_a_stopped_node_is_silent_before_it_is_gone(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    told: list[tuple[bool, bool]] = []
    for _ in range(int(LEASE_SECONDS) + 2):
        cluster.run(1, "n2", "n3")
        told.append((cluster.nodes["n1"].is_silent, cluster.nodes["n2"].is_gone("n1")))
    assert told.index((True, False)) + 1 > READ_FENCE_SECONDS
    assert told.index((True, True)) + 1 == LEASE_SECONDS
    assert cluster.nodes["n3"].alive().keys() == {"n2", "n3"}
    cluster.run(1, *NODES)
    assert not cluster.nodes["n2"].is_gone("n1")


def test_a_node_without_accepted_heartbeats_takes_no_node_for_gone(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    # All nodes are paused or wait for an election, and one resumes slightly earlier.
    cluster.run(60)
    cluster.run(MIN_HEARTBEAT_ROUNDS - 1, "n1")
    assert not cluster.nodes["n1"].is_gone("n2")
    assert not cluster.nodes["n1"].is_gone("n3")
    cluster.run(int(LEASE_SECONDS), "n2", "n1")
    assert not cluster.nodes["n1"].is_gone("n2")
    assert cluster.nodes["n1"].is_gone("n3")


def test_a_lease_observed_by_one_node_counts_for_all(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.run(1, "n1")
    cluster.run(5, "n2")
    # Only now does the third node see the first node's last heartbeat.
    while not cluster.nodes["n2"].is_gone("n1"):
        cluster.run(1, "n3", "n2")
        assert not cluster.nodes["n3"].is_gone("n1")
    cluster.run(2, "n2", "n3")
    assert cluster.nodes["n3"].alive().keys() == {"n2", "n3"}
    assert not cluster.nodes["n3"]._watch.gone(cluster.clock.now)
    cluster.run(1, "n1", "n3", "n2")
    assert not cluster.nodes["n3"].is_gone("n1")


def test_a_node_that_reaches_no_beating_peer_knows_it(cluster: Cluster) -> None:
    reached = {"http://n3"}
    peers = PeerReachability(cluster.nodes["n1"], reached.__contains__, cluster.clock)

    def unreached(seconds: int, *beating: str) -> dict[str, str]:
        for _ in range(seconds):
            cluster.run(1, "n1", *beating)
            peers.look()
        return dict(peers.unreached())

    assert unreached(20, "n2", "n3") == {}, "one peer is enough"
    reached.clear()
    assert unreached(int(READ_FENCE_SECONDS), "n2", "n3") == {}
    assert unreached(1, "n2", "n3") == {"n2": "http://n2", "n3": "http://n3"}
    reached.add("http://n2")
    assert unreached(1, "n2", "n3") == {}
    reached.clear()
    assert unreached(30) == {}, "peers that send no heartbeats may be down"


def test_a_deleted_heartbeat_affects_only_its_node(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    del cluster.wires["n2"].shared.messages["beat n1"]
    cluster.run(int(LEASE_SECONDS) + 1, "n2", "n3")
    assert cluster.nodes["n2"].alive().keys() == cluster.nodes["n3"].alive().keys() == {"n2", "n3"}


def test_an_election_does_not_prolong_the_lease_of_a_lost_node(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    # Its last heartbeat, which no node has seen in a round of its own when the stream's leader fails with it.
    cluster.run(1, "n1")
    cluster.silence(int(LEASE_SECONDS) - MIN_HEARTBEAT_ROUNDS + 1, "n2")
    cluster.run(MIN_HEARTBEAT_ROUNDS - 1, "n2")
    assert not cluster.nodes["n2"].is_gone("n1")
    cluster.run(1, "n2")
    assert cluster.nodes["n2"].is_gone("n1")


def test_callers_are_not_redirected_to_a_node_that_may_be_gone(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.owned["n1"].get_or_claim_owner("s", b"")
    for _ in range(int(REDIRECT_CUTOFF_SECONDS)):
        assert cluster.owned["n2"].get_or_claim_owner("s") == RemoteStoreOwnership("n1", "http://n1")
        cluster.run(1, "n2", "n3")
    assert cluster.owned["n2"].get_or_claim_owner("s") == RemoteStoreOwnership("n1", "http://n1", quiet=True)
    assert not cluster.nodes["n2"].is_gone("n1")
    cluster.run(1, *NODES)
    # An election, in which no heartbeat is accepted, does not count against any node.
    cluster.run(60)
    cluster.run(MIN_HEARTBEAT_ROUNDS - 1, "n2")
    assert cluster.owned["n2"].get_or_claim_owner("s") == RemoteStoreOwnership("n1", "http://n1")


def test_a_lagging_server_revives_no_node(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    watching = cluster.nodes["n2"]
    old = MemoryRegistry(cluster.wires["n2"]).beats()
    cluster.run(1, "n1")
    cluster.run(int(LEASE_SECONDS) + 1, "n2")
    assert watching.is_gone("n1")
    watching._watch.look(old, cluster.clock.now)
    assert watching.is_gone("n1")


def test_a_node_that_never_sent_a_heartbeat_is_gone_after_the_lease(cluster: Cluster) -> None:
    cluster.run(int(LEASE_SECONDS), "n1")
    assert not cluster.nodes["n1"].is_gone("nobody")
    cluster.run(1, "n1")
    assert cluster.nodes["n1"].is_gone("nobody")


def test_two_processes_with_one_node_name_do_not_both_continue(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    with cluster.node("n1", run="second"):
        cluster.nodes["n1"].send_heartbeat()
        assert cluster.nodes["n1"].is_silent
        assert not cluster.nodes["n2"].is_gone("n1")


def test_a_node_name_taken_concurrently_is_reported(cluster: Cluster) -> None:
    late = cluster.node("n1", run="second")
    before = late._last_revision
    late._last_revision = lambda: (before(), cluster.nodes["n1"].send_heartbeat())[0]
    with pytest.raises(Conflict, match="running as node 'n1'; node names must be unique"):
        late.start()


def test_a_heartbeat_without_response_is_found_again(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.wires["n1"].lose_answers()
    with pytest.raises(OutcomeUnknown):
        cluster.run(1, "n1")
    cluster.wires["n1"].heal()
    cluster.run(2, "n1")
    assert not cluster.nodes["n1"].is_silent


# Ownership


def epoch(found: LocalStoreOwnership | RemoteStoreOwnership) -> int:
    assert isinstance(found, LocalStoreOwnership)
    return found.epoch


def test_a_leaving_node_does_not_change_the_rank_of_others() -> None:
    for number in range(50):
        order = rank_store_takeover_nodes(f"s{number}", ["n1", "n2", "n3", "n4"])
        assert rank_store_takeover_nodes(f"s{number}", ["n4", "n2", "n3"]) == [name for name in order if name != "n1"]
    firsts = [rank_store_takeover_nodes(f"s{number}", NODES)[0] for number in range(3000)]
    assert all(800 < firsts.count(name) < 1200 for name in NODES)


def test_a_store_stays_with_a_live_owner(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 1
    cluster.run(60, *NODES)
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 1
    assert cluster.owned["n2"].get_or_claim_owner("s", b"") == RemoteStoreOwnership("n1", "http://n1")


def test_every_store_of_a_gone_node_gets_one_owner(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    stores = [f"s{number}" for number in range(30)]
    assert all(epoch(cluster.owned["n1"].get_or_claim_owner(store, b"")) == 1 for store in stores)
    cluster.run(int(LEASE_SECONDS) + 1, "n2", "n3")
    for store in stores:
        found = {name: cluster.owned[name].get_or_claim_owner(store, b"") for name in ("n2", "n3")}
        again = {name: cluster.owned[name].get_or_claim_owner(store, b"") for name in ("n2", "n3")}
        owner = rank_store_takeover_nodes(store, ["n2", "n3"])[0]
        assert epoch(found[owner]) == epoch(again[owner]) == 2
        (other,) = {"n2", "n3"} - {owner}
        assert again[other] == RemoteStoreOwnership(owner, f"http://{owner}")
    # The returning node notices, and takes nothing back.
    cluster.run(1, *NODES)
    assert all(isinstance(cluster.owned["n1"].get_or_claim_owner(store, b""), RemoteStoreOwnership) for store in stores)


def test_a_restarted_node_has_to_take_over_its_stores(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 1
    with cluster.node("n1", run="second") as started_again:
        again = StoreOwnership(MemoryRegistry(cluster.wires["n1"]), started_again)
        assert epoch(again.get_or_claim_owner("s", b"")) == 2


def test_a_lost_claim_is_reported(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    registry = MemoryRegistry(cluster.wires["n3"])
    decided = cluster.owned["n1"].evaluate_claim
    assert decided("s", None) == StoreClaimPermission(1, 0)
    cluster.owned["n1"].evaluate_claim = lambda store, claim: (
        registry.claim(store, StoreOwnerEntry("n3", 1, "u"), 0),
        StoreClaimPermission(1, 0),
    )[1]
    with pytest.raises(Unavailable, match="'s' is being taken over by another node"):
        cluster.owned["n1"].get_or_claim_owner("s", b"")
    cluster.owned["n1"].evaluate_claim = decided
    assert cluster.owned["n1"].get_or_claim_owner("s", b"") == RemoteStoreOwnership("n3", "http://n3")


def test_an_unconfirmed_claim_is_claimed_again(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.wires["n1"].lose_answers()
    with pytest.raises(OutcomeUnknown):
        cluster.owned["n1"].get_or_claim_owner("s", b"")
    cluster.wires["n1"].heal()
    # The claim is in effect but unconfirmed, and others may have read the log since.
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 2


def test_concurrent_changes_of_an_owner_entry_are_both_kept(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    owned = cluster.owned["n1"]
    assert epoch(owned.get_or_claim_owner("s", b"before")) == 1

    def describe_meanwhile(owner: StoreOwnerEntry) -> StoreOwnerEntry:
        if owner.description == b"before":
            owned.describe("s", b"after")
        return msgspec.structs.replace(owner, erasures=1)

    owned.update_registry_entry("s", describe_meanwhile)
    found = owned.claimed("s").owner
    assert (found.description, found.erasures, found.epoch) == (b"after", 1, 1)


def test_a_leaving_node_is_replaced_at_once(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"what it is")) == 1
    with cluster.nodes["n1"]:
        pass
    assert isinstance(cluster.owned["n2"].get_or_claim_owner("s"), RemoteStoreOwnership)
    cluster.run(1, "n2", "n3")
    found = [
        each
        for each in (cluster.owned[name].get_or_claim_owner("s") for name in ("n2", "n3"))
        if isinstance(each, LocalStoreOwnership)
    ]
    assert [each.claim.owner.description for each in found] == [b"what it is"]


def test_a_node_leaves_after_a_heartbeat_without_response(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    node = cluster.nodes["n1"]
    with node:
        cluster.wires["n1"].lose_answers()
        with pytest.raises(OutcomeUnknown):
            node.send_heartbeat()
        cluster.wires["n1"].heal()
    cluster.run(1, "n2", "n3")
    assert cluster.nodes["n2"].is_gone("n1")


def test_heartbeats_continue_while_a_callback_hangs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "HEARTBEAT_INTERVAL_SECONDS", 0.01)
    registry, heal, looked = MemoryRegistry(cluster.wires["n2"]), threading.Event(), threading.Event()
    node = cluster.nodes["n1"]

    def hang() -> None:
        heal.wait(10)

    node.after_each_round(hang)
    node.after_each_round(looked.set)
    with node:
        assert looked.wait(10)
        begun, until = registry.beats()["n1"].revision, time.monotonic() + 10
        while registry.beats()["n1"].revision < begun + 5:
            assert time.monotonic() < until
            time.sleep(0.01)
    heal.set()


def test_a_silent_node_has_to_confirm_its_ownership(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.clock.now += READ_FENCE_SECONDS - 1
    cluster.run(1, "n1")
    assert cluster.nodes["n1"].silences == 0
    cluster.clock.now += READ_FENCE_SECONDS
    cluster.run(1, "n1")
    assert cluster.nodes["n1"].silences == 1


def test_a_node_silent_during_a_delayed_heartbeat_has_to_confirm_its_ownership(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    node, beats = cluster.nodes["n1"], MemoryRegistry.beats

    def late(registry: MemoryRegistry) -> dict[str, VersionedHeartbeat]:
        cluster.clock.now += READ_FENCE_SECONDS - 1
        return beats(registry)

    cluster.clock.now += 2
    node._registry.beats = partial(late, MemoryRegistry(cluster.wires["n1"]))
    node.send_heartbeat()
    assert (node.is_silent, node.silences) == (False, 1)


def test_a_dropped_store_is_missing_everywhere_until_created_again(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    first, second = cluster.owned["n1"], cluster.owned["n2"]
    dropped: list[str] = []
    second.outdated.append(dropped.append)
    first.get_or_claim_owner("s", b"one")
    second.look()
    assert second.exists("s")
    first.drop("s", 7)
    second.look()
    assert dropped == ["s"]
    assert (first.exists("s"), second.exists("s"), second.stores()) == (False, False, {})
    with pytest.raises(NoStore):
        second.get_or_claim_owner("s")
    again = second.get_or_claim_owner("s", b"another")
    assert isinstance(again, LocalStoreOwnership)
    assert (again.epoch, again.claim.owner.begins, again.made) == (2, 7, True)


def test_a_store_is_handed_over_to_the_named_node(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.owned["n1"].get_or_claim_owner("s", b"")
    cluster.owned["n1"].hand_over("s", "n2", "http://n2")
    assert not cluster.owned["n1"].owns("s")
    assert cluster.owned["n1"].get_or_claim_owner("s") == RemoteStoreOwnership("n2", "http://n2")
    assert epoch(cluster.owned["n2"].get_or_claim_owner("s")) == 3
    with pytest.raises(Fenced):
        cluster.owned["n1"].describe("s", b"late")


def test_a_partitioned_node_takes_over_nothing(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.clock.now += READ_FENCE_SECONDS + 1
    with pytest.raises(Unavailable, match="lost contact with its cluster"):
        cluster.owned["n1"].get_or_claim_owner("s", b"")


def test_a_released_store_is_claimed_again(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 1
    cluster.owned["n1"].release_claim("s")
    assert epoch(cluster.owned["n1"].get_or_claim_owner("s", b"")) == 2


def test_the_owner_entry_has_a_stable_encoding() -> None:
    assert msgspec.json.decode(msgspec.json.encode(StoreOwnerEntry("n1", 2, "http://n1"))) == {
        "node": "n1",
        "epoch": 2,
        "url": "http://n1",
    }


def test_a_node_without_the_current_format_is_refused() -> None:
    registry = MemoryRegistry(Wire(SharedMessageLog(), 0))
    old, new = (
        ClusterNodeHeartbeat("n1", "first", "http://n1", format=1),
        ClusterNodeHeartbeat("n2", "first", "http://n2", format=2),
    )
    assert ClusterRecordFormat(registry, 2).current == 1
    with pytest.raises(Conflict, match="upgrade these nodes first: n1; they do not support format 2"):
        ClusterRecordFormat(registry, 2).finish({"n1": old, "n2": new})
    assert ClusterRecordFormat(registry, 2).finish({"n2": new}) == ClusterRecordFormat(registry, 2).finish({}) == 2
    with pytest.raises(Conflict, match="uses format 2, but this version of kgserve supports only 1"):
        ClusterRecordFormat(registry, 1)


def test_a_draining_node_takes_over_nothing(cluster: Cluster) -> None:
    cluster.run(5, *NODES)
    cluster.nodes["n1"]._closing.set()
    cluster.nodes["n1"].drain()
    cluster.run(2, *NODES)
    for number in range(10):
        assert cluster.owned["n2"].choose_takeover_node(f"s{number}").node != "n1"
    for name in ("n2", "n3"):
        cluster.nodes[name]._closing.set()
        cluster.nodes[name].drain()
    cluster.run(2, *NODES)
    assert {cluster.owned["n2"].choose_takeover_node(f"s{number}").node for number in range(30)} == {*NODES}
