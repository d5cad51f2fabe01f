"""Store ownership, recorded in the registry; rendezvous hashing decides who replaces a node that is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from kgserve.cluster.backend import (
    ClusterEntryRegistry,
    ClusterNodeHeartbeat,
    StoreOwnerEntry,
    VersionedStoreOwnerEntry,
)
from kgserve.cluster.membership import ClusterHeartbeatExchange
from kgserve.cluster.replicated_log_records import LogPosition
from kgserve.errors import Fenced, NoStore, Unavailable


class LocalStoreOwnership(msgspec.Struct, frozen=True):
    """Ownership of a store by this node. Only the log can confirm that the claim is still valid."""

    claim: VersionedStoreOwnerEntry
    made: bool = False

    @property
    def epoch(self) -> int:
        """Fencing epoch; incremented on every change of ownership."""
        return self.claim.owner.epoch


class RemoteStoreOwnership(msgspec.Struct, frozen=True):
    """Ownership of a store by another node, or its coming takeover. A ``quiet`` node may be gone."""

    node: str
    url: str
    quiet: bool = False


class StoreClaimPermission(msgspec.Struct, frozen=True):
    """Permission to claim a store with an epoch, replacing the claim of a revision."""

    epoch: int
    revision: int


def rank_store_takeover_nodes(store: str, nodes: Iterable[str]) -> list[str]:
    """Return the nodes in the order in which they should take over a store (rendezvous hashing).

    A node that joins or leaves changes the order for few stores.
    """
    return sorted(nodes, key=lambda node: (xxhash.xxh3_64_intdigest(f"{node}\0{store}".encode()), node), reverse=True)


class StoreOwnership:
    """The cluster's stores and their owners. This node claims stores lazily, when a caller asks for them."""

    def __init__(self, registry: ClusterEntryRegistry, membership: ClusterHeartbeatExchange) -> None:
        self._registry = registry
        self._membership = membership
        self._lock = threading.Lock()
        # Epochs claimed by this process. Older claims of the same node belong to an earlier process.
        self._epochs: dict[str, int] = {}
        # Claims up to revision `_seen`, and newer ones that this process has read.
        self._claims: dict[str, VersionedStoreOwnerEntry] = {}
        self._seen = 0
        # Called with the name of a store whose older replicas are obsolete. Callbacks must not block.
        self.outdated: list[Callable[[str], object]] = []

    @property
    def node(self) -> str:
        """Name of this node."""
        return self._membership.beat.node

    def look(self) -> None:
        """Read the claims that changed since the last call. Raises Unavailable."""
        found = self._registry.owners(self._seen)
        for store, claim in found.items():
            self._record_claim(store, claim)
        self._seen = max([self._seen, *(claim.revision for claim in found.values())])

    def stores(self) -> dict[str, StoreOwnerEntry]:
        """Return the existing stores and their owners, as of the last `look` or newer."""
        with self._lock:
            return {store: each.owner for store, each in self._claims.items() if not each.owner.dropped}

    def find_cached_owner(self, store: str) -> StoreOwnerEntry | None:
        """Return the cached owner of a store, or None."""
        with self._lock:
            claim = self._claims.get(store)
        return None if claim is None or claim.owner.dropped else claim.owner

    @property
    def last_contact(self) -> float:
        """Time of the last accepted heartbeat; see `ClusterHeartbeatExchange.accepted_at`."""
        return self._membership.accepted_at

    def find_cached_remote_owner(self, store: str) -> RemoteStoreOwnership | None:
        """Return the other node that serves a store, without asking the registry; None if it may be gone."""
        owner, alive = self.find_cached_owner(store), self._membership.alive()
        if owner is None or owner.node == self.node or owner.node not in alive:
            return None
        return (
            None
            if self._membership.is_possibly_gone(owner.node)
            else RemoteStoreOwnership(owner.node, alive[owner.node].url)
        )

    def exists(self, store: str) -> bool:
        """Return whether a store exists. Raises Unavailable."""
        if self.find_cached_owner(store) is not None:
            return True
        # Another node may have created it since the last look.
        found = self._read_claim(store)
        return found is not None and not found.owner.dropped

    def was_dropped(self, store: str) -> bool:
        """Return whether a store was dropped, and not created again. Raises Unavailable."""
        found = self._read_claim(store)
        return found is not None and found.owner.dropped

    def owns(self, store: str) -> bool:
        """Return whether this process owns a store, as far as it knows."""
        with self._lock:
            return store in self._epochs

    def get_or_claim_owner(
        self, store: str, made: bytes | None = None, *, coming: bool = False
    ) -> LocalStoreOwnership | RemoteStoreOwnership:
        """Return the owner of a store; this node claims it if no live node owns it.

        Raises Unavailable and OutcomeUnknown.

        A missing store is created with the description ``made``, or NoStore is raised; with ``coming`` this node has
        its files. After a claim, the store's log must be taken over before the store is served.
        """
        claim = self._read_claim(store)
        is_new = claim is None or claim.owner.dropped
        if is_new and made is None:
            raise NoStore(store)
        found = self.evaluate_claim(store, claim)
        if not isinstance(found, StoreClaimPermission):
            return found
        if self._membership.is_silent:
            raise Unavailable("this node has lost contact with its cluster and cannot take over stores", retry_after=5)
        own_beat = self._membership.beat
        if claim is None:
            owner = StoreOwnerEntry(own_beat.node, found.epoch, own_beat.url, made or b"", coming=coming)
        elif is_new:
            before = claim.owner
            owner = StoreOwnerEntry(own_beat.node, found.epoch, own_beat.url, made or b"", before.begins, coming=coming)
        else:
            _require_arrived(store, claim.owner, own_beat.node)
            owner = msgspec.structs.replace(claim.owner, node=own_beat.node, epoch=found.epoch, url=own_beat.url)
        revision = self._registry.claim(store, owner, found.revision)
        if revision is None:
            raise Unavailable(f"store {store!r} is being taken over by another node", retry_after=1)
        with self._lock:
            self._epochs[store] = found.epoch
        return LocalStoreOwnership(self._record_claim(store, VersionedStoreOwnerEntry(owner, revision)), is_new)

    def evaluate_claim(
        self, store: str, claim: VersionedStoreOwnerEntry | None
    ) -> LocalStoreOwnership | RemoteStoreOwnership | StoreClaimPermission:
        """Return what a claim means, given what this node knows of itself and of the others."""
        own_name = self._membership.beat.node
        if claim is None or claim.owner.dropped:
            # The node that is asked creates the store, unless it is draining.
            taker = self.choose_takeover_node(store) if self._membership.beat.draining else self._membership.beat
            if taker.node != own_name:
                return RemoteStoreOwnership(taker.node, taker.url)
            return (
                StoreClaimPermission(1, 0)
                if claim is None
                else StoreClaimPermission(claim.owner.epoch + 1, claim.revision)
            )
        owner, free = claim.owner, StoreClaimPermission(claim.owner.epoch + 1, claim.revision)
        if owner.node == own_name:
            with self._lock:
                is_owned = self._epochs.get(store) == owner.epoch
            return LocalStoreOwnership(claim) if is_owned else free
        alive = self._membership.alive()
        if not self._membership.is_gone(owner.node):
            # A restarted node may have another URL than when it claimed the store.
            url = alive[owner.node].url if owner.node in alive else owner.url
            return RemoteStoreOwnership(owner.node, url, self._membership.is_possibly_gone(owner.node))
        first = self.choose_takeover_node(store)
        return free if first.node == own_name else RemoteStoreOwnership(first.node, first.url)

    def keeps_copy(self, store: str, copies: int) -> bool:
        """Return whether this node is one of the ``copies`` nodes that keep a replica of a store for failover."""
        owner = self.find_cached_owner(store)
        if owner is None or owner.coming or owner.node == self.node:
            return False
        others = self._membership.alive().keys() - {owner.node}
        return self.node in rank_store_takeover_nodes(store, others)[:copies]

    def choose_takeover_node(self, store: str, *others_than: str) -> ClusterNodeHeartbeat:
        """Return the node that should take over a store without owner. Raises Unavailable.

        Draining nodes are chosen only if all are draining.
        """
        alive = {name: beat for name, beat in self._membership.alive().items() if name not in others_than}
        if not alive:
            raise Unavailable("no other node of the cluster is alive", retry_after=10)
        ready = [name for name, beat in alive.items() if not beat.draining]
        return alive[rank_store_takeover_nodes(store, ready or alive)[0]]

    def claimed(self, store: str) -> VersionedStoreOwnerEntry:
        """Return the current claim to a store. Raises NoStore and Unavailable."""
        claim = self._read_claim(store)
        if claim is None or claim.owner.dropped:
            raise NoStore(store)
        return claim

    def require_complete_owner(self, store: str) -> VersionedStoreOwnerEntry:
        """Return the current claim to a store whose log is complete. Raises NoStore and Unavailable."""
        claim = self.claimed(store)
        _require_arrived(store, claim.owner, "")
        return claim

    def claim_forcibly(self, store: str, begins: LogPosition) -> None:
        """Claim a store whose files only this process has; its log starts again after position ``begins``.

        The previous owner loses the store. Raises NoStore, OutcomeUnknown and Unavailable.
        """
        claim = self.claimed(store)
        before, own_beat = claim.owner, self._membership.beat
        owner = StoreOwnerEntry(own_beat.node, before.epoch + 1, own_beat.url, before.description, begins, coming=True)
        if self._registry.claim(store, owner, claim.revision) is None:
            raise Unavailable(f"store {store!r} is being taken over by another node", retry_after=1)
        with self._lock:
            self._epochs[store] = owner.epoch
        self._record_claim(store, self._registry.owner(store) or claim)

    def require_owned(self, store: str) -> VersionedStoreOwnerEntry:
        """Return the claim by which this process owns a store. Raises Unavailable, and Fenced if it no longer does."""
        claim = self._read_claim(store)
        if claim is None or not isinstance(self.evaluate_claim(store, claim), LocalStoreOwnership):
            raise Fenced(f"store {store!r} is no longer served by node {self.node!r}")
        return claim

    def describe(self, store: str, description: bytes) -> None:
        """Store the description of an owned store in the registry. Raises Fenced, OutcomeUnknown and Unavailable."""
        self._replace(store, lambda owner: msgspec.structs.replace(owner, description=description))

    def update_registry_entry(
        self, store: str, change: Callable[[StoreOwnerEntry], StoreOwnerEntry]
    ) -> StoreOwnerEntry:
        """Update the registry entry of an owned store, and return it. Raises the errors of `describe`."""
        return self._replace(store, change)

    def drop(self, store: str, begins: int) -> None:
        """Mark an owned store as dropped; its log up to ``begins`` is obsolete. Raises the errors of `describe`."""
        self._replace(
            store, lambda owner: StoreOwnerEntry(owner.node, owner.epoch, owner.url, begins=begins, dropped=True)
        )
        self.release_claim(store)

    def hand_over(self, store: str, node: str, url: str) -> None:
        """Transfer an owned store to another node. Raises the errors of `describe`."""
        self._replace(store, lambda owner: msgspec.structs.replace(owner, node=node, url=url, epoch=owner.epoch + 1))
        self.release_claim(store)

    def release_claim(self, store: str) -> None:
        """Forget that this process owns a store, because its log was taken over or cannot be written."""
        with self._lock:
            self._epochs.pop(store, None)

    def _replace(self, store: str, change: Callable[[StoreOwnerEntry], StoreOwnerEntry]) -> StoreOwnerEntry:
        while True:
            claim = self.require_owned(store)
            owner = change(claim.owner)
            if (revision := self._registry.claim(store, owner, claim.revision)) is not None:
                self._record_claim(store, VersionedStoreOwnerEntry(owner, revision))
                return owner
            # Another thread of this node has changed the entry, unless `require_owned` raises.

    def _read_claim(self, store: str) -> VersionedStoreOwnerEntry | None:
        claim = self._registry.owner(store)
        return claim and self._record_claim(store, claim)

    def _record_claim(self, store: str, claim: VersionedStoreOwnerEntry) -> VersionedStoreOwnerEntry:
        outdated = False
        with self._lock:
            known = self._claims.get(store)
            if known is None or known.revision < claim.revision:
                self._claims[store] = claim
                owner = claim.owner
                outdated = owner.dropped or (known is not None and _is_obsoleted(known.owner, owner))
                if owner.dropped or owner.node != self.node or owner.epoch != self._epochs.get(store):
                    self._epochs.pop(store, None)
        if outdated:
            for wake in self.outdated:
                wake(store)
        return claim


def _is_obsoleted(before: StoreOwnerEntry, after: StoreOwnerEntry) -> bool:
    return before.oldest < after.oldest or before.erasures < after.erasures


def _require_arrived(store: str, owner: StoreOwnerEntry, node: str) -> None:
    """Raise Unavailable if only another node has the files of a store."""
    if owner.coming and owner.node != node:
        raise Unavailable(
            f"store {store!r} is being imported into the cluster by node {owner.node!r}, which alone has its files; "
            "start that node",
            retry_after=10,
        )
