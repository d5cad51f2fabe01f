"""Merging two entities that are one, in one commit.

Decided from the present rows in the writer's turn, so that nothing comes in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain

import msgspec
import numpy as np

from kgserve.errors import Conflict, NotFound, TooLarge
from kgserve.links.links import LinkReader
from kgserve.model.batch import EdgePut, LinkPut, NodePut, WriteBatch, edge_again, link_again
from kgserve.model.fields import EdgeExtrasPut, NodeExtrasPut
from kgserve.model.merging import (
    MAX_CHAIN,
    MAX_MOVED,
    MAX_TOLD,
    MERGED_INTO,
    MergeAnswer,
    MergeNode,
    moved_key,
    moved_link,
)
from kgserve.model.plan import Report
from kgserve.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.ops import render
from kgserve.ops.graph import Graph
from kgserve.ops.taking import Taken, taken_over
from kgserve.ops.validate import Faults, check_author, check_label
from kgserve.ops.versions import written
from kgserve.ops.writing import cost
from kgserve.rows.redirect import aliases, survivor
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store


def merge(graph: Graph, request: MergeNode) -> Future[MergeAnswer]:
    """Merges the node into another one, which takes over its edges, its tags, and what else it lacks.

    The node stays as one that is true at no moment, with one edge of the type `MERGED_INTO` to the other. Who asks for
    it is answered with the other. The same again changes nothing; `unmerge` takes it back. All of it is one commit.

    Raises NotFound, Conflict for nodes that were merged elsewhere or are not at the versions named, and TooLarge.
    """
    _check(request)
    found: list[_Merge] = []

    def batch(leased: Store) -> WriteBatch:
        with leased.reading_links() as (rows, links):
            found.append(_planned(rows, links, request, graph.name))
        return found[0].batch

    def answer(report: Report) -> MergeAnswer:
        return _answer(request.node_id, found[0], report)

    return graph.write(lambda store: store.submit_prepared(lambda: batch(store)), answer)


def _check(request: MergeNode) -> None:
    faults = Faults()
    check_label(request.node_id, "id", faults)
    check_label(request.into, "into", faults)
    check_author(request.created_by, faults)
    if request.node_id == request.into:
        faults("into", "is the node itself; name another one")
    faults.raise_any()


class _Merge(msgspec.Struct, frozen=True):
    """What a merge is to write, and what is told of it."""

    batch: WriteBatch
    into: str
    taken: Taken
    moved: int
    dropped: int
    loops: int


def _answer(node_id: str, merge_: _Merge, report: Report) -> MergeAnswer:
    return MergeAnswer(
        id=node_id,
        into=merge_.into,
        changed=report.nodes_updated + report.edges_created + report.edges_deleted > 0,
        node=render.node(written(report)),
        edges_moved=merge_.moved,
        edges_dropped=merge_.dropped,
        loops_dropped=merge_.loops,
        taken_over=merge_.taken.taken[:MAX_TOLD],
        not_taken=merge_.taken.left[:MAX_TOLD],
        sequence=report.sequence,
    )


def _planned(rows: Rows, links: LinkReader | None, wanted: MergeNode, store: str) -> _Merge:
    absorbed, into, again = _both(rows, wanted, store)
    author = wanted.created_by or ""
    taken = Taken(NodePut(0, into.id), [], []) if again else taken_over(into, absorbed, wanted)
    edges = list(_edges(rows, absorbed.id))
    moving = [row for row in edges if {row.source, row.target} != {absorbed.id, into.id}]
    keys = [moved_key(row.key, absorbed.id, into.id) for row in moving]
    there = rows.edges(keys)
    puts = [edge_again(row, key) for row, key in zip(moving, keys, strict=True) if key not in there]
    elsewhere, link_puts = _links(links, absorbed.id, into.id)
    mark = [] if again else [EdgePut(0, (absorbed.id, into.id, MERGED_INTO), extras=EdgeExtrasPut(created_by=author))]
    batch = WriteBatch(
        nodes=[taken.put] if again else [taken.put, _withdrawn(absorbed.id, author)],
        edges=[*puts, *mark],
        links=link_puts,
        delete_edges=[row.key for row in edges],
        delete_links=[row.key for row in elsewhere],
        touch=False,
        told=True,
        cost=cost([taken.put], [*puts, *(put.edge for put in link_puts)])
        + sum(sum(map(len, row.key)) for row in edges),
    )
    moved, dropped = len(puts) + len(link_puts), len(there) + len(elsewhere) - len(link_puts)
    return _Merge(batch, into.id, taken, moved, dropped, len(edges) - len(moving))


def _links(links: LinkReader | None, node_id: str, into: str) -> tuple[list[LinkRow], list[LinkPut]]:
    """The links of a node, and those of them that another one gets. Raises TooLarge for more than may be moved."""
    found = [] if links is None else links.outgoing(node_id, MAX_MOVED + 1)
    if len(found) > MAX_MOVED:
        raise TooLarge(f"node {node_id!r} has more than {MAX_MOVED} links; so many are moved by one merge at most")
    keys = [moved_link(row.key, node_id, into) for row in found]
    there = set() if links is None else {row.key for row in links.of(keys)}
    return found, [link_again(row, key) for row, key in zip(found, keys, strict=True) if key not in there]


def _both(rows: Rows, wanted: MergeNode, store: str) -> tuple[NodeRow, NodeRow, bool]:
    """The node to be merged, the one that stays, and whether they were merged before. Raises NotFound and Conflict."""
    absorbed = _there(rows.node(wanted.node_id), wanted.node_id, store)
    into = _there(rows.node(survivor(rows, wanted.into)), wanted.into, store)
    now = survivor(rows, absorbed.id)
    if now == into.id != absorbed.id:
        return absorbed, into, True
    if now != absorbed.id:
        raise Conflict(f"node {absorbed.id!r} was merged into {now!r} already; merge {now!r}, or unmerge it first")
    if into.id == absorbed.id:
        raise Conflict(f"node {wanted.into!r} was itself merged into {absorbed.id!r}; unmerge {wanted.into!r} first")
    _check_version("based_on_version", wanted.based_on_version, absorbed)
    _check_version("into_version", wanted.into_version, into)
    _check_chain(rows, absorbed.id)
    return absorbed, into, False


def _there(row: NodeRow | None, node_id: str, store: str) -> NodeRow:
    if row is None:
        raise NotFound(f"there is no node {node_id!r} in store {store!r}")
    return row


def _check_version(name: str, seen: int | None, row: NodeRow) -> None:
    if seen is not None and seen != row.version:
        raise Conflict(f"{name}: node {row.id!r} is at version {row.version}, not {seen}; look at it again, then merge")


def _check_chain(rows: Rows, node_id: str) -> None:
    """Raise Conflict where as many merges lead to a node as may."""
    level = [node_id]
    for _ in range(MAX_CHAIN - 1):
        level = [each for one in level for each in aliases(rows, one)]
        if not level:
            return
    raise Conflict(
        f"{MAX_CHAIN} merges, one after the other, have led to node {node_id!r}; merge the other one into it"
    )


def _edges(rows: Rows, node_id: str) -> Iterator[EdgeRow]:
    """The edges of a node, each once, without those of merges. Raises TooLarge for more than may be moved."""
    numbers = np.array([rows.number(node_id)])
    out, into = (rows.around(numbers, outgoing=outgoing) for outgoing in (True, False))
    if len(out) + len(into) > MAX_MOVED:
        raise TooLarge(f"node {node_id!r} has {len(out) + len(into)} edges; at most {MAX_MOVED} are moved by one merge")
    incoming = (row for row in rows.rows_of(into) if row.source != node_id)
    return (row for row in chain(rows.rows_of(out), incoming) if row.relation_type != MERGED_INTO)


def _withdrawn(node_id: str, author: str) -> NodePut:
    now = time.time_ns() // 1000
    return NodePut(0, node_id, extras=NodeExtrasPut(created_by=author, valid_from=now, valid_to=now))
