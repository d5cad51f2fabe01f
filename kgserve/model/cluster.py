"""What is said of the nodes of a cluster, and of moving stores between them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class ClusterNode(msgspec.Struct, kw_only=True):
    """A node as the one that was asked sees it. ``stores`` are those that it claims, open or not."""

    name: str
    url: str
    state: Literal["alive", "gone"]
    stores: int


class ClusterStatus(msgspec.Struct, kw_only=True):
    """The nodes of a cluster, by name; ``node`` is the one that was asked.

    One that is ``silent`` was cut off from the servers of the cluster for so long that others may have taken its stores
    over: it serves none until it is heard again.
    """

    node: str
    silent: bool
    nodes: list[ClusterNode]


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a store is to go."""

    to: Annotated[str, msgspec.Meta(min_length=1, max_length=64, description="Name of a node that is alive")]


class MoveAnswer(msgspec.Struct, kw_only=True):
    """A store, and the node that serves it from now on."""

    store: str
    node: str
    url: str
