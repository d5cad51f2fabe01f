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

from kgserve.engine import projection, read
from kgserve.engine.columns import edge_row, edge_rows, ids_table, node_row
from kgserve.engine.session import Session
from kgserve.model.requests import MAX_TRAVERSED_NODES, Direction
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.model.walk import MAX_EDGES, Reached, Walk, by_levels

_FIRST_DEPTH = 3
_SHORT_LIST = 1000
_LOOKUP_LAST_LEVEL = 1500
# Asking each of a few nodes for its edges (0.3 ms) costs less than the search around the start.
_LOOKUP_ALL = 10
# A row of a walk: the internal number of a node, its distance, the node.
_NODE_AT = 2

_ARROWS: dict[Direction, tuple[LiteralString, LiteralString]] = {
    "outgoing": ("-", "->"),
    "incoming": ("<-", "-"),
    "both": ("-", "-"),
}
_START = projection.nodes("MATCH (e:Entity {id: $i}) RETURN offset(id(e)), 0 AS d,")
_FROM_ONE = projection.edges(
    "MATCH (x:Entity {id: $i})-[k:RELATES_TO]->(y:Entity) RETURN offset(id(x)), offset(id(y)),"
)
_OUT_SCAN = projection.edges("LOAD FROM $rows MATCH (x:Entity {id: i})-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id,")
_IN_SCAN = projection.edges("LOAD FROM $rows MATCH (y:Entity {id: i})<-[k:RELATES_TO]-(x:Entity) RETURN x.id, y.id,")


def walk(session: Session, request: Walk) -> Reached:
    """Walk in one snapshot. An unknown start reaches nothing."""
    session.run("BEGIN TRANSACTION READ ONLY")
    start = projection.rows(session, _START, {"i": request.start})
    if not start or not _holds(request, node_row(start[0][_NODE_AT:])):
        found = Reached([], [], truncated=False)
    elif request.filtered:
        found = _by_levels(session, request, node_row(start[0][_NODE_AT:]))
    else:
        found = _by_shortest(session, request, start[0])
    session.run("COMMIT")
    return found


def _by_shortest(session: Session, request: Walk, start: list[Any]) -> Reached:
    reached = [start]
    if request.depth > 0:
        reached += _ball(session, request)
    truncated = len(reached) > request.max_nodes
    kept = reached[: request.max_nodes]
    ids = {cast("int", values[0]): cast("str", values[_NODE_AT]) for values in kept}
    edges, cut = _between(session, request, kept, ids, truncated=truncated)
    nodes = [(node_row(values[_NODE_AT:]), cast("int", values[1])) for values in kept]
    return Reached(nodes, edges, truncated or cut)


def _ball(session: Session, request: Walk) -> list[list[Any]]:
    """Nodes around the start, nearest first: one more than wanted at the most when there are that many.

    The radius grows until it is enough, for the search costs as much as the ball holds, wanted or not.
    """
    parameters = {"i": request.start}
    radius = min(request.depth, _FIRST_DEPTH)
    limit = (_SHORT_LIST if request.max_nodes <= _SHORT_LIST else MAX_TRAVERSED_NODES) + 1
    rows = projection.rows(session, _nodes_query(radius, request.direction, limit), parameters)
    while len(rows) < request.max_nodes and radius < request.depth and rows and rows[-1][1] == radius:
        radius += 1
        rows = projection.rows(session, _nodes_query(radius, request.direction, limit), parameters)
    return rows


def _between(
    session: Session, request: Walk, kept: list[list[Any]], ids: dict[int, str], *, truncated: bool
) -> tuple[list[EdgeRow], bool]:
    """Edges between the nodes kept, and whether there were more than may be returned."""
    radius: int = kept[-1][1]
    last = [values[_NODE_AT] for values in kept if values[1] == radius]
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
        edge_row([ids[source], ids[target], *rest])
        for part in parts
        for source, target, *rest in part
        if source in ids and target in ids
    )


def _edges_of(session: Session, ids: list[str]) -> Iterator[list[Any]]:
    return (values for node_id in ids for values in projection.rows(session, _FROM_ONE, {"i": node_id}))


def _edges_around(session: Session, request: Walk, radius: int) -> list[list[Any]]:
    if radius <= 0:
        return []
    return projection.rows(session, _edges_query(radius, request.direction), {"i": request.start})


@cache
def _nodes_query(radius: int, direction: Direction, limit: int) -> projection.Query:
    left, right = _ARROWS[direction]
    if radius == 1:
        # A plain pattern takes two thirds of the time of a search.
        before = f"MATCH (s:Entity {{id: $i}}){left}[:RELATES_TO]{right}(e:Entity) WHERE e.id <> $i "
        before += "RETURN DISTINCT offset(id(e)), 1 AS d,"
        order = f" ORDER BY e.id LIMIT {limit}"
    else:
        before = f"MATCH (s:Entity {{id: $i}}){left}[p:RELATES_TO* SHORTEST 1..{radius}]{right}(e:Entity) "
        before += "RETURN offset(id(e)), length(p) AS d,"
        order = f" ORDER BY d, e.id LIMIT {limit}"
    return projection.nodes(cast("LiteralString", before), cast("LiteralString", order))


@cache
def _edges_query(radius: int, direction: Direction) -> projection.Query:
    left, right = _ARROWS[direction]
    before = f"MATCH (s:Entity {{id: $i}}){left}[p:RELATES_TO* SHORTEST 1..{radius}]{right}(x:Entity)"
    before += "-[k:RELATES_TO]->(y:Entity) RETURN offset(id(x)), offset(id(y)),"
    return projection.edges(cast("LiteralString", before))


def _by_levels(session: Session, request: Walk, start: NodeRow) -> Reached:
    rows = {start.id: start}

    def standing(ids: set[str]) -> set[str]:
        found = [row for row in read.find_nodes(session, ids) if _holds(request, row)]
        rows.update((row.id, row) for row in found)
        return {row.id for row in found}

    def followed(ids: Collection[str]) -> Iterator[EdgeRow]:
        return _followed(session, request, ids)

    found = by_levels(request, start.id, followed, None if request.valid_at is None else standing)
    rows.update((row.id, row) for row in read.find_nodes(session, found.depths.keys() - rows.keys()))
    nodes = [(rows[node_id], depth) for node_id, depth in found.depths.items()]
    return Reached(nodes, found.edges, found.truncated)


def _holds(request: Walk, row: NodeRow) -> bool:
    return request.valid_at is None or row.holds_at(request.valid_at)


def _followed(session: Session, request: Walk, ids: Collection[str]) -> Iterator[EdgeRow]:
    if request.direction != "incoming":
        yield from filter(request.follows, _neighbours(session, ids, read.outgoing, _OUT_SCAN))
    if request.direction != "outgoing":
        yield from filter(request.follows, _neighbours(session, ids, read.incoming, _IN_SCAN))


def _neighbours(
    session: Session, ids: Collection[str], one: Callable[[Session, str], list[EdgeRow]], many: projection.Query
) -> Iterable[EdgeRow]:
    if len(ids) > read.LOOKUP_EDGES:
        return edge_rows(projection.arrow(session, many, {"rows": ids_table(ids)}))
    return (edge for node_id in ids for edge in one(session, node_id))
