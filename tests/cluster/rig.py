"""Interface between the conformance suite and an implementation: nodes and fault injection."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kgserve.cluster.backend import BlobStorage, ClusterEntryRegistry, ReplicatedLog


class Fault(Protocol):
    """Fault injection between a node and the servers."""

    def lose_answers(self) -> None:
        """Drop all responses from now on; requests still arrive."""
        ...

    def double_requests(self) -> None:
        """Duplicate every request from now on."""
        ...

    def heal(self) -> None: ...


class Node(msgspec.Struct, frozen=True):
    """One node's connection to the cluster."""

    log: ReplicatedLog
    registry: ClusterEntryRegistry
    blobs: BlobStorage


class Rig(Protocol):
    """One implementation under test, with data shared by all of its nodes."""

    def node(self) -> Node: ...

    def faulty_node(self, patience: float) -> tuple[Node, Fault]:
        """Return a node with short timeouts, and its fault injection."""
        ...

    def lose_record(self, store: str, position: int) -> None:
        """Delete a record from all replicas without the knowledge of any node."""
        ...

    def wait_until_gone(self, store: str, position: int) -> None:
        """Block until no replica has a deleted record."""
        ...
