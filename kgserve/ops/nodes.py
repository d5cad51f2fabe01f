"""The nodes of a cluster, moving stores between them, and what they put on record."""

from __future__ import annotations

from kgserve.model.audit import AuditAnswer, AuditQuery
from kgserve.model.cluster import (
    ClusterStatus,
    DrainAnswer,
    DrainRequest,
    MoveAnswer,
    MoveRequest,
    RepairAnswer,
    UpgradeAnswer,
)
from kgserve.ops.graph import Graph, Graphs


def cluster(graphs: Graphs) -> ClusterStatus:
    """The nodes, whether they are alive, and how many stores each claims. Raises Conflict where there is no cluster."""
    return graphs.pool.placement.status()


def move(graph: Graph, request: MoveRequest) -> MoveAnswer:
    """Has another node serve a store. What is asked meanwhile waits, and goes there.

    Any node may be asked. Raises Conflict for a node that is not alive, and where there is no cluster.
    """
    return graph.pool.move(graph.name, request.to)


def drain(graphs: Graphs, request: DrainRequest) -> DrainAnswer:
    """Has other nodes serve the stores of the node that is asked, which takes none over until `undo` or its next start.

    Stores go one after the other; what is asked meanwhile waits, and goes there. One that cannot be handed over stays,
    and is told. Raises Conflict where there is no cluster.
    """
    return graphs.pool.drain(undo=request.undo)


def repair(graph: Graph) -> RepairAnswer:
    """Makes a store's log anew from the files of the node that is asked, when the log has lost something.

    What is left of the log must be in those files, too, as it is there, and nothing beyond them. Raises Conflict when
    it is not, or nothing is wrong with the log, or there is no cluster.
    """
    return graph.pool.repair(graph.name)


def audit(graphs: Graphs, request: AuditQuery) -> AuditAnswer:
    """What was refused and administered, the newest of it, oldest first; in a cluster, at all nodes or one.

    Raises NotFound for a node that there never was, and Conflict for one where there is no cluster.
    """
    graphs.caller.require_every_store("reading the audit log")
    return AuditAnswer(records=graphs.pool.placement.recorded(request.node, request.limit))


def finish_upgrade(graphs: Graphs) -> UpgradeAnswer:
    """Has all nodes write in the newest format that all of them know; older versions cannot join from then on.

    Raises Conflict while a node that is alive knows none as new as the one that is asked, and where there is no
    cluster.
    """
    graphs.caller.require_every_store("finishing an upgrade")
    return graphs.pool.placement.finish_upgrade()
