"""Walking relations breadth first: every node once, at its shortest distance, with all edges between the nodes found.

Without a filter the engine's own shortest-path search does it in two queries, one for nodes and one for edges; the
edges come with internal node numbers, for reading the two ids of each would cost three times the rest. Bounds in a path
pattern must be literals, so there is a query text per depth. With a filter the walk goes level by level, because the
engine takes no parameters inside such a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, LiteralString, cast

from kgserve.engine import read
from kgserve.engine.columns import edge_rows, ids_table, node_row
from kgserve.engine.session import Session
from kgserve.model.requests import MAX_TRAVERSED_NODES, Direction
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.model.walk import MAX_EDGES, Reached, Walk, by_levels

_FIRST_DEPTH = 3
_SHORT_LIST = 1000
_LOOKUP_LAST_LEVEL = 1500
# Asking each of a few nodes for its edges (0.3 ms) costs less than the search around the start.
_LOOKUP_ALL = 10

_NODE = "e.id, e.type, e.content, e.attributes, e.version, e.sequence, e.created_at, e.updated_at"
_EDGE = "k.relation_type, k.weight, k.attributes, k.version, k.sequence"
_ARROWS: dict[Direction, tuple[LiteralString, LiteralString]] = {
    "outgoing": ("-", "->"),
    "incoming": ("<-", "-"),
    "both": ("-", "-"),
}
_START: LiteralString = f"MATCH (e:Entity {{id: $i}}) RETURN offset(id(e)), {_NODE}"
_FROM_ONE: LiteralString = f"""
MATCH (x:Entity {{id: $i}})-[k:RELATES_TO]->(y:Entity) RETURN offset(id(x)), offset(id(y)), {_EDGE}
"""
_OUT_SCAN: LiteralString = f"""
LOAD FROM $rows MATCH (x:Entity {{id: i}})-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id, {_EDGE}
"""
_IN_SCAN: LiteralString = f"""
LOAD FROM $rows MATCH (y:Entity {{id: i}})<-[k:RELATES_TO]-(x:Entity) RETURN x.id, y.id, {_EDGE}
"""


def walk(session: Session, request: Walk) -> Reached:
    """Walk in one snapshot. An unknown start reaches nothing."""
    session.run("BEGIN TRANSACTION READ ONLY")
    start = session.rows(_START, {"i": request.start})
    if not start:
        found = Reached([], [], truncated=False)
    elif request.filtered:
        found = _by_levels(session, request, node_row(start[0][1:]))
    else:
        found = _by_shortest(session, request, start[0])
    session.run("COMMIT")
    return found


def _by_shortest(session: Session, request: Walk, start: list[Any]) -> Reached:
    reached = [[*start, 0]]
    if request.depth > 0:
        reached += _ball(session, request)
    truncated = len(reached) > request.max_nodes
    kept = reached[: request.max_nodes]
    ids = {cast("int", values[0]): cast("str", values[1]) for values in kept}
    edges, cut = _between(session, request, kept, ids, truncated=truncated)
    nodes = [(node_row(values[1:9]), cast("int", values[9])) for values in kept]
    return Reached(nodes, edges, truncated or cut)


def _ball(session: Session, request: Walk) -> list[list[Any]]:
    """Nodes around the start, nearest first: one more than wanted at the most when there are that many.

    The radius grows until it is enough, for the search costs as much as the ball holds, wanted or not.
    """
    parameters = {"i": request.start}
    radius = min(request.depth, _FIRST_DEPTH)
    limit = (_SHORT_LIST if request.max_nodes <= _SHORT_LIST else MAX_TRAVERSED_NODES) + 1
    rows = session.rows(_nodes_query(radius, request.direction, limit), parameters)
    while len(rows) < request.max_nodes and radius < request.depth and rows and rows[-1][9] == radius:
        radius += 1
        rows = session.rows(_nodes_query(radius, request.direction, limit), parameters)
    return rows


def _between(
    session: Session, request: Walk, kept: list[list[Any]], ids: dict[int, str], *, truncated: bool
) -> tuple[list[EdgeRow], bool]:
    """Edges between the nodes kept, and whether there were more than may be returned."""
    radius: int = kept[-1][9]
    last = [values[1] for values in kept if values[9] == radius]
    if len(kept) <= _LOOKUP_ALL:
        return list(_inside(ids, [_edges_of(session, list(ids.values()))])), False
    parts: list[Iterable[list[Any]]] = [_edges_of(session, [request.start])]
    if truncated and len(last) <= _LOOKUP_LAST_LEVEL:
        # The last level is cut: only its nodes that are kept are asked, for the whole level may be huge.
        parts += [_edges_around(session, request, radius - 1), _edges_of(session, last if radius else [])]
    else:
        parts.append(_edges_around(session, request, radius))
    edges = list(islice(_inside(ids, parts), MAX_EDGES + 1))
    return edges[:MAX_EDGES], len(edges) > MAX_EDGES


def _inside(ids: dict[int, str], parts: Iterable[Iterable[list[Any]]]) -> Iterator[EdgeRow]:
    return (
        EdgeRow(ids[source], ids[target], *rest)
        for part in parts
        for source, target, *rest in part
        if source in ids and target in ids
    )


def _edges_of(session: Session, ids: list[str]) -> Iterator[list[Any]]:
    return (values for node_id in ids for values in session.rows(_FROM_ONE, {"i": node_id}))


def _edges_around(session: Session, request: Walk, radius: int) -> list[list[Any]]:
    return session.rows(_edges_query(radius, request.direction), {"i": request.start}) if radius > 0 else []


@cache
def _nodes_query(radius: int, direction: Direction, limit: int) -> LiteralString:
    left, right = _ARROWS[direction]
    if radius == 1:
        # A plain pattern takes two thirds of the time of a search.
        return cast(
            "LiteralString",
            f"MATCH (s:Entity {{id: $i}}){left}[:RELATES_TO]{right}(e:Entity) WHERE e.id <> $i "
            f"RETURN DISTINCT offset(id(e)), {_NODE}, 1 AS d ORDER BY e.id LIMIT {limit}",
        )
    return cast(
        "LiteralString",
        f"MATCH (s:Entity {{id: $i}}){left}[p:RELATES_TO* SHORTEST 1..{radius}]{right}(e:Entity) "
        f"RETURN offset(id(e)), {_NODE}, length(p) AS d ORDER BY d, e.id LIMIT {limit}",
    )


@cache
def _edges_query(radius: int, direction: Direction) -> LiteralString:
    left, right = _ARROWS[direction]
    return cast(
        "LiteralString",
        f"MATCH (s:Entity {{id: $i}}){left}[p:RELATES_TO* SHORTEST 1..{radius}]{right}(x:Entity)"
        f"-[k:RELATES_TO]->(y:Entity) RETURN offset(id(x)), offset(id(y)), {_EDGE}",
    )


def _by_levels(session: Session, request: Walk, start: NodeRow) -> Reached:
    found = by_levels(request, start.id, lambda ids: _followed(session, request, ids))
    rows = {row.id: row for row in read.find_nodes(session, list(found.depths))}
    nodes = [(rows[node_id], depth) for node_id, depth in found.depths.items()]
    return Reached(nodes, found.edges, found.truncated)


def _followed(session: Session, request: Walk, ids: Collection[str]) -> Iterator[EdgeRow]:
    if request.direction != "incoming":
        yield from filter(request.follows, _neighbours(session, ids, read.outgoing, _OUT_SCAN))
    if request.direction != "outgoing":
        yield from filter(request.follows, _neighbours(session, ids, read.incoming, _IN_SCAN))


def _neighbours(
    session: Session, ids: Collection[str], one: Callable[[Session, str], list[EdgeRow]], many: LiteralString
) -> Iterable[EdgeRow]:
    if len(ids) > read.LOOKUP_EDGES:
        return edge_rows(session.arrow(many, {"rows": ids_table(ids)}))
    return (edge for node_id in ids for edge in one(session, node_id))
