"""What the conformance suite needs of an implementation: nodes, and ways to make things go wrong."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kgserve.cluster.protocols import Blobs, Log, Registry


class Fault(Protocol):
    """What stands between a node and the servers."""

    def lose_answers(self) -> None:
        """From now on requests arrive, and no answer does."""
        ...

    def double_requests(self) -> None:
        """From now on every request arrives twice."""
        ...

    def heal(self) -> None: ...


class Node(msgspec.Struct, frozen=True):
    """One node's view of the cluster."""

    log: Log
    registry: Registry
    blobs: Blobs


class Rig(Protocol):
    """One implementation, with data that all of its nodes share."""

    def node(self) -> Node: ...

    def faulty_node(self, patience: float) -> tuple[Node, Fault]:
        """A node of little patience, and what stands between it and the servers."""
        ...

    def lose_record(self, store: str, position: int) -> None:
        """Take a record away behind everybody's back."""
        ...
