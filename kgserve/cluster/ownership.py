"""Who serves a store. The registry says it; who is to take over from a node that is gone follows from names alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from kgserve.cluster.membership import Membership
from kgserve.cluster.protocols import Claim, Heartbeat, Owner, Registry
from kgserve.cluster.records import Position
from kgserve.errors import Fenced, NoStore, Unavailable


class OwnedHere(msgspec.Struct, frozen=True):
    """The store is owned by this node, by this claim. Whether that still holds is for the log to say."""

    claim: Claim
    made: bool = False

    @property
    def epoch(self) -> int:
        """The how-manieth owner this is."""
        return self.claim.owner.epoch


class OwnedBy(msgspec.Struct, frozen=True):
    """Another node owns the store, or is to take it over. One that is ``quiet`` may be gone, and answer nothing."""

    node: str
    url: str
    quiet: bool = False


class NoOwner(msgspec.Struct, frozen=True):
    """The store may be claimed by this node as the owner of this epoch, in the place of the claim of a revision."""

    epoch: int
    revision: int


def ranked(store: str, nodes: Iterable[str]) -> list[str]:
    """Nodes in the order in which they are to take a store over. Who joins or leaves changes it for few stores."""
    return sorted(nodes, key=lambda node: (xxhash.xxh3_64_intdigest(f"{node}\0{store}".encode()), node), reverse=True)


class Ownership:
    """Which stores there are, what this node owns of them, and how it comes to own more: when somebody asks for it."""

    def __init__(self, registry: Registry, membership: Membership) -> None:
        self._registry = registry
        self._membership = membership
        self._lock = threading.Lock()
        # What this process claimed: an older claim of the same node was another process's.
        self._epochs: dict[str, int] = {}
        # Claims as of a revision, and those that this process has met since.
        self._claims: dict[str, Claim] = {}
        self._seen = 0
        # Called with the name of a store of which older copies are to be kept no more: for waking, not for work.
        self.outdated: list[Callable[[str], object]] = []

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._membership.beat.node

    def look(self) -> None:
        """See what has been claimed since the last look. Raises Unavailable."""
        found = self._registry.owners(self._seen)
        for store, claim in found.items():
            self._met(store, claim)
        self._seen = max([self._seen, *(claim.revision for claim in found.values())])

    def stores(self) -> dict[str, Owner]:
        """The stores that there are and who claims them, as of the last look, or newer."""
        with self._lock:
            return {store: each.owner for store, each in self._claims.items() if not each.owner.dropped}

    def known(self, store: str) -> Owner | None:
        """Who claims a store, as `stores` says it."""
        with self._lock:
            claim = self._claims.get(store)
        return None if claim is None or claim.owner.dropped else claim.owner

    def exists(self, store: str) -> bool:
        """Whether there is such a store. Raises Unavailable."""
        if self.known(store) is not None:
            return True
        # Others may have made it since the last look.
        found = self._found(store)
        return found is not None and not found.owner.dropped

    def owns(self, store: str) -> bool:
        """Whether this process owns a store, as far as it knows."""
        with self._lock:
            return store in self._epochs

    def seek(self, store: str, made: bytes | None = None, *, coming: bool = False) -> OwnedHere | OwnedBy:
        """Who owns a store; this node claims it if nobody does who is alive. Raises Unavailable and Unconfirmed.

        One that is not there is ``made`` with this description, or NoStore raised; with ``coming`` this node has its
        files. Who claims a store has to take its log over before it is served.
        """
        claim = self._found(store)
        is_new = claim is None or claim.owner.dropped
        if is_new and made is None:
            raise NoStore(store)
        found = self.decided(store, claim)
        if not isinstance(found, NoOwner):
            return found
        if self._membership.is_silent:
            raise Unavailable("this node is cut off from its cluster, and takes no store over", retry_after=5)
        me = self._membership.beat
        if claim is None:
            owner = Owner(me.node, found.epoch, me.url, made or b"", coming=coming)
        elif is_new:
            before = claim.owner
            owner = Owner(me.node, found.epoch, me.url, made or b"", before.begins, coming=coming)
        else:
            _require_arrived(store, claim.owner, me.node)
            owner = msgspec.structs.replace(claim.owner, node=me.node, epoch=found.epoch, url=me.url)
        revision = self._registry.claim(store, owner, found.revision)
        if revision is None:
            raise Unavailable(f"store {store!r} is being taken over by another node", retry_after=1)
        with self._lock:
            self._epochs[store] = found.epoch
        return OwnedHere(self._met(store, Claim(owner, revision)), is_new)

    def decided(self, store: str, claim: Claim | None) -> OwnedHere | OwnedBy | NoOwner:
        """What a claim comes to, by what this node knows of itself and of others."""
        me = self._membership.beat.node
        if claim is None or claim.owner.dropped:
            # Who is asked makes it.
            taker = self.taker(store) if self._membership.beat.draining else self._membership.beat
            if taker.node != me:
                return OwnedBy(taker.node, taker.url)
            return NoOwner(1, 0) if claim is None else NoOwner(claim.owner.epoch + 1, claim.revision)
        owner, free = claim.owner, NoOwner(claim.owner.epoch + 1, claim.revision)
        if owner.node == me:
            with self._lock:
                mine = self._epochs.get(store) == owner.epoch
            return OwnedHere(claim) if mine else free
        alive = self._membership.alive()
        if not self._membership.is_gone(owner.node):
            # One that was started again may be reached elsewhere than when it claimed the store.
            url = alive[owner.node].url if owner.node in alive else owner.url
            return OwnedBy(owner.node, url, self._membership.is_quiet(owner.node))
        first = self.taker(store)
        return free if first.node == me else OwnedBy(first.node, first.url)

    def keeps_copy(self, store: str, copies: int) -> bool:
        """Whether this node is one of so many that are to have a copy of a store: who take it over before others."""
        owner = self.known(store)
        if owner is None or owner.coming or owner.node == self.node:
            return False
        others = self._membership.alive().keys() - {owner.node}
        return self.node in ranked(store, others)[:copies]

    def taker(self, store: str, *others_than: str) -> Heartbeat:
        """Who is to take a store over that nobody serves: who is draining only if all are. Raises Unavailable."""
        alive = {name: beat for name, beat in self._membership.alive().items() if name not in others_than}
        if not alive:
            raise Unavailable("no other node of the cluster is alive", retry_after=10)
        ready = [name for name, beat in alive.items() if not beat.draining]
        return alive[ranked(store, ready or alive)[0]]

    def claimed(self, store: str) -> Claim:
        """The present claim to a store. Raises NoStore and Unavailable."""
        claim = self._found(store)
        if claim is None or claim.owner.dropped:
            raise NoStore(store)
        return claim

    def arrived(self, store: str) -> Claim:
        """The present claim to a store whose log has all of it. Raises NoStore and Unavailable."""
        claim = self.claimed(store)
        _require_arrived(store, claim.owner, "")
        return claim

    def seize(self, store: str, begins: Position) -> None:
        """Have this process own a store whose files it alone has, and whose log begins anew after a position.

        Whoever owned it does so no longer. Raises NoStore, Unconfirmed and Unavailable.
        """
        claim = self.claimed(store)
        before, me = claim.owner, self._membership.beat
        owner = Owner(me.node, before.epoch + 1, me.url, before.description, begins, coming=True)
        if self._registry.claim(store, owner, claim.revision) is None:
            raise Unavailable(f"store {store!r} is being taken over by another node", retry_after=1)
        with self._lock:
            self._epochs[store] = owner.epoch
        self._met(store, self._registry.owner(store) or claim)

    def still_mine(self, store: str) -> Claim:
        """The claim by which this process owns a store. Raises Fenced when it does no longer, and Unavailable."""
        claim = self._found(store)
        if claim is None or not isinstance(self.decided(store, claim), OwnedHere):
            raise Fenced(f"store {store!r} is no longer served by node {self.node!r}")
        return claim

    def describe(self, store: str, description: bytes) -> None:
        """Put down what a store that this process owns is. Raises Fenced, Unconfirmed and Unavailable."""
        self._replace(store, lambda owner: msgspec.structs.replace(owner, description=description))

    def keep(self, store: str, change: Callable[[Owner], Owner]) -> Owner:
        """Put down what there is to take a store of this process over from; as it is then. Raises as `describe`."""
        return self._replace(store, change)

    def drop(self, store: str, begins: int) -> None:
        """Have a store of this process be no more; its log up to ``begins`` is of no use. Raises as `describe`."""
        self._replace(store, lambda owner: Owner(owner.node, owner.epoch, owner.url, begins=begins, dropped=True))
        self.give_up(store)

    def hand_over(self, store: str, node: str, url: str) -> None:
        """Have another node own a store of this process from now on. Raises as `describe`."""
        self._replace(store, lambda owner: msgspec.structs.replace(owner, node=node, url=url, epoch=owner.epoch + 1))
        self.give_up(store)

    def give_up(self, store: str) -> None:
        """Own a store no longer: its log was taken over, or cannot be written to. To be sought anew."""
        with self._lock:
            self._epochs.pop(store, None)

    def _replace(self, store: str, change: Callable[[Owner], Owner]) -> Owner:
        claim = self.still_mine(store)
        owner = change(claim.owner)
        revision = self._registry.claim(store, owner, claim.revision)
        if revision is None:
            raise Fenced(f"store {store!r} was claimed by another node meanwhile")
        self._met(store, Claim(owner, revision))
        return owner

    def _found(self, store: str) -> Claim | None:
        claim = self._registry.owner(store)
        return claim and self._met(store, claim)

    def _met(self, store: str, claim: Claim) -> Claim:
        outdated = False
        with self._lock:
            known = self._claims.get(store)
            if known is None or known.revision < claim.revision:
                self._claims[store] = claim
                owner = claim.owner
                outdated = owner.dropped or (known is not None and _lets_go(known.owner, owner))
                if owner.dropped or owner.node != self.node or owner.epoch != self._epochs.get(store):
                    self._epochs.pop(store, None)
        if outdated:
            for wake in self.outdated:
                wake(store)
        return claim


def _lets_go(before: Owner, after: Owner) -> bool:
    return before.oldest < after.oldest or before.erasures < after.erasures


def _require_arrived(store: str, owner: Owner, node: str) -> None:
    """Raise Unavailable for a store whose files another node has alone."""
    if owner.coming and owner.node != node:
        raise Unavailable(
            f"store {store!r} is being brought into the cluster by node {owner.node!r}, which alone has its files: "
            "start that node",
            retry_after=10,
        )
