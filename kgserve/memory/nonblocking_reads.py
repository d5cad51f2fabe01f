"""Non-blocking reads of one memory or entity on the event loop: the bound of their cost."""

from __future__ import annotations

from kgserve.graph.graph_reader import MAX_NONBLOCKING_READ_BYTES
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_NONBLOCKING_RELATIONS = 30
"""Edges per direction that a non-blocking read decodes, which takes about half a millisecond."""


def require_small_neighbourhood(rows: RowsSnapshot, node_id: str, *, incoming: bool) -> None:
    """Raise WouldBlock if a node has many outgoing or, with ``incoming``, incoming edges, or much text around it."""
    number = rows.number(node_id)
    if number < 0:
        return
    read = [number]
    for outgoing in (True, False) if incoming else (True,):
        if rows.max_degree(number, outgoing=outgoing) > MAX_NONBLOCKING_RELATIONS:
            raise WouldBlock
        edges = rows.edges_of(number, outgoing=outgoing)
        read += [*edges.ends, *(end for _, end, _ in edges.changed)]
    if rows.node_bytes(read) > MAX_NONBLOCKING_READ_BYTES:
        raise WouldBlock
