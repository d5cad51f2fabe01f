"""Requests and answers about cluster nodes and about moving stores between them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

READ_SOURCE_HEADER = "Kgserve-Read"
MIN_SEQUENCE_HEADER = "Kgserve-At-Least"
MAX_STALENESS_HEADER = "Kgserve-Max-Staleness"
REPLICA_AGE_HEADER = "Kgserve-Age"

NodeState: TypeAlias = Literal["alive", "draining", "gone"]


class ClusterNode(msgspec.Struct, kw_only=True):
    """A cluster node as seen by the node that answers. ``stores`` counts the stores it owns, open or not."""

    name: str
    url: str
    state: NodeState
    stores: int


class ClusterStatus(msgspec.Struct, kw_only=True):
    """The nodes of a cluster, by name.

    ``node`` is the node that answers, ``format`` the format in which all nodes write. A ``silent`` node has lost
    contact with the cluster's servers for long enough that other nodes may have taken over its stores. It serves none
    until it is heard again.
    """

    node: str
    silent: bool
    format: int
    nodes: list[ClusterNode]


class StoreMoveRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Target node of a store move."""

    to: Annotated[str, Meta(min_length=1, max_length=64, description="Name of a node that is alive")]


class StoreMoveAnswer(msgspec.Struct, kw_only=True):
    """Result of moving a store: the store and the node that serves it now."""

    store: str
    node: str
    url: str
    opened: Annotated[bool, Meta(description="The node has opened the store; if not, `reason` says why")] = True
    reason: str = ""


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request to drain a node; with ``undo``, the node may take over stores again."""

    undo: bool = False


class DrainAnswer(msgspec.Struct, kw_only=True):
    """Result of a drain: how many stores moved, and the reasons for those that could not be handed over."""

    node: str
    draining: bool
    moved: int
    failed: dict[str, str]
    unopened: Annotated[
        dict[str, str], Meta(description="Stores that moved but that their new node has not opened yet, with reasons")
    ] = {}


class StoreLogRepairAnswer(msgspec.Struct, kw_only=True):
    """Result of repairing a store's log from the files of a node, up to commit ``sequence``.

    ``found`` counts the frames that the damaged log still had. Each was compared with the files.
    """

    store: str
    node: str
    sequence: int
    found: int


class ClusterFormatUpgradeAnswer(msgspec.Struct, kw_only=True):
    """Result of upgrading the cluster's format: the format in which all nodes now write."""

    format: int
