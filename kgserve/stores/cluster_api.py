"""What is said of the nodes of a cluster, and of moving stores between them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

READ_FROM_HEADER = "Kgserve-Read"
MIN_SEQUENCE_HEADER = "Kgserve-At-Least"

NodeState: TypeAlias = Literal["alive", "draining", "gone"]


class ClusterNode(msgspec.Struct, kw_only=True):
    """A node as the one that was asked sees it. ``stores`` are those that it claims, open or not."""

    name: str
    url: str
    state: NodeState
    stores: int


class ClusterStatus(msgspec.Struct, kw_only=True):
    """The nodes of a cluster, by name; ``node`` is the one that was asked, ``format`` that of what all write.

    One that is ``silent`` was cut off from the servers of the cluster for so long that others may have taken its stores
    over: it serves none until it is heard again.
    """

    node: str
    silent: bool
    format: int
    nodes: list[ClusterNode]


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a store is to go."""

    to: Annotated[str, Meta(min_length=1, max_length=64, description="Name of a node that is alive")]


class MoveAnswer(msgspec.Struct, kw_only=True):
    """A store, and the node that serves it from now on."""

    store: str
    node: str
    url: str
    opened: Annotated[bool, Meta(description="The node has opened the store; if not, `reason` says why")] = True
    reason: str = ""


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether a node is to serve no stores, or with ``undo`` to take some over again."""

    undo: bool = False


class DrainAnswer(msgspec.Struct, kw_only=True):
    """A node, how many stores others serve now in its place, and those that could not be handed over, with reasons."""

    node: str
    draining: bool
    moved: int
    failed: dict[str, str]
    unopened: Annotated[
        dict[str, str], Meta(description="Stores that moved, but were not opened by their new node yet, with reasons")
    ] = {}


class RepairAnswer(msgspec.Struct, kw_only=True):
    """A store whose log was made anew from the files of a node, up to a ``sequence``.

    ``found`` is how many of the log's frames were still there, each of which was compared.
    """

    store: str
    node: str
    sequence: int
    found: int


class UpgradeAnswer(msgspec.Struct, kw_only=True):
    """The format in which all nodes write from now on."""

    format: int
