"""Who serves a store. The registry says it; who is to take over from a node that is gone follows from names alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec
import xxhash

from kgserve.cluster.membership import Membership
from kgserve.cluster.protocols import Claim, Owner, Registry
from kgserve.errors import Unavailable


class Mine(msgspec.Struct, frozen=True):
    """The store is owned by this node, as the owner of this epoch. Whether that still holds is for the log to say."""

    epoch: int


class Elsewhere(msgspec.Struct, frozen=True):
    """Another node owns the store, or is to take it over."""

    node: str
    url: str


class Free(msgspec.Struct, frozen=True):
    """The store may be claimed by this node as the owner of this epoch, in the place of the claim of a revision."""

    epoch: int
    revision: int


def ranked(store: str, nodes: Iterable[str]) -> list[str]:
    """Nodes in the order in which they are to take a store over. Who joins or leaves changes it for few stores."""
    return sorted(nodes, key=lambda node: (xxhash.xxh3_64_intdigest(f"{node}\0{store}".encode()), node), reverse=True)


class Ownership:
    """What this node owns, and how it comes to own more: when somebody asks for it."""

    def __init__(self, registry: Registry, membership: Membership) -> None:
        self._registry = registry
        self._membership = membership
        self._lock = threading.Lock()
        # What this process claimed: an older claim of the same node was another process's.
        self._epochs: dict[str, int] = {}

    def seek(self, store: str) -> Mine | Elsewhere:
        """Who owns a store; this node claims it if nobody does who is alive. Raises Unavailable and Unconfirmed.

        Who claims a store has to take its log over before it is served.
        """
        claim = self._registry.owner(store)
        found = self.decided(store, claim)
        if not isinstance(found, Free):
            return found
        if self._membership.is_silent:
            raise Unavailable("this node is cut off from its cluster, and takes no store over", retry_after=5)
        me = self._membership.beat
        if self._registry.claim(store, Owner(me.node, found.epoch, me.url), found.revision) is None:
            raise Unavailable(f"store {store!r} is being taken over by another node", retry_after=1)
        with self._lock:
            self._epochs[store] = found.epoch
        return Mine(found.epoch)

    def decided(self, store: str, claim: Claim | None) -> Mine | Elsewhere | Free:
        """What a claim comes to, by what this node knows of itself and of others."""
        me = self._membership.beat.node
        if claim is None:
            return Free(1, 0)
        owner, free = claim.owner, Free(claim.owner.epoch + 1, claim.revision)
        if owner.node == me:
            with self._lock:
                mine = self._epochs.get(store) == owner.epoch
            return Mine(owner.epoch) if mine else free
        if not self._membership.is_gone(owner.node):
            return Elsewhere(owner.node, owner.url)
        alive = self._membership.alive()
        first = ranked(store, alive)[0]
        return free if first == me else Elsewhere(first, alive[first].url)

    def give_up(self, store: str) -> None:
        """Own a store no longer: its log was taken over, or cannot be written to. To be sought anew."""
        with self._lock:
            self._epochs.pop(store, None)
