"""Small drawings of answers for notebooks: inline SVG without scripts, styles of others or network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from html import escape
from itertools import groupby
from math import hypot
from typing import NamedTuple

MAX_DRAWN_NODES = 40
MAX_DRAWN_EDGES = 80
_MAX_LABELLED_EDGES = 40
_MAX_LABEL_CHARS = 22
_MAX_COLUMNS = 8
_COLUMN_WIDTH, _ROW_HEIGHT, _MARGIN, _RADIUS = 170, 56, 70, 9
# Distinct for colour-blind readers, and legible on white and on black.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa8800", "#3399bb", "#aa3377", "#777777")
_TEXT = 'font-family="sans-serif" font-size="11" fill="currentColor" text-anchor="middle"'

NodeKey = str | tuple[str, str]


class DrawnNode(NamedTuple):
    """A node to draw: its key, texts, and its distance from the start of a walk, if there is one."""

    key: NodeKey
    id: str
    type: str
    content: str
    depth: int | None = None


class DrawnEdge(NamedTuple):
    """An edge to draw."""

    source: NodeKey
    target: NodeKey
    relation_type: str


_Positions = dict[NodeKey, tuple[float, float]]


def draw_graph_svg(nodes: Sequence[DrawnNode], edges: Sequence[DrawnEdge]) -> str:
    """Return the first nodes and the edges between them as an SVG element, or nothing for fewer than two nodes."""
    if len(nodes) < 2:  # noqa: PLR2004 - a table says as much about one
        return ""
    drawn = nodes[:MAX_DRAWN_NODES]
    keys = {node.key for node in drawn}
    between = list(dict.fromkeys(edge for edge in edges if edge.source in keys and edge.target in keys))
    positions = _lay_out(drawn, between)
    width, height = (max(place[axis] for place in positions.values()) + _MARGIN for axis in (0, 1))
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="max-width:100%;height:auto">',
        *_draw_edges(between[:MAX_DRAWN_EDGES], positions),
        *(_draw_node(node, *positions[node.key]) for node in drawn),
        "</svg>",
    ]
    if len(drawn) < len(nodes) or len(between) > MAX_DRAWN_EDGES:
        shown = min(len(between), MAX_DRAWN_EDGES)
        parts.append(f"<p>drawn: {len(drawn):,} of {len(nodes):,} nodes, {shown:,} of {len(edges):,} edges</p>")
    return "".join(parts)


def _lay_out(nodes: Sequence[DrawnNode], edges: Sequence[DrawnEdge]) -> _Positions:
    """Place nodes in columns by depth, in each column near their neighbours of the column before."""
    depths = {key: min(depth, _MAX_COLUMNS - 1) for key, depth in _choose_depths(nodes, edges).items()}
    neighbours: defaultdict[NodeKey, list[NodeKey]] = defaultdict(list)
    for edge in edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    columns = [list(keys) for _, keys in groupby(sorted(depths, key=depths.__getitem__), key=depths.__getitem__)]
    tallest = max(map(len, columns))
    positions: _Positions = {}
    for number, column in enumerate(columns):
        heights: dict[NodeKey, float] = {}
        for place, key in enumerate(column):
            before = [positions[each][1] for each in neighbours[key] if each in positions]
            heights[key] = sum(before) / len(before) if before else place * _ROW_HEIGHT
        top = _MARGIN / 2 + (tallest - len(column)) * _ROW_HEIGHT / 2
        for place, key in enumerate(sorted(column, key=heights.__getitem__)):
            positions[key] = (_MARGIN + number * _COLUMN_WIDTH, top + place * _ROW_HEIGHT)
    return positions


def _choose_depths(nodes: Sequence[DrawnNode], edges: Sequence[DrawnEdge]) -> dict[NodeKey, int]:
    """Return the column of each node: its depth, else its distance along the edges from nodes without incoming ones."""
    if all(node.depth is not None for node in nodes):
        return {node.key: node.depth or 0 for node in nodes}
    outgoing: defaultdict[NodeKey, list[NodeKey]] = defaultdict(list)
    for edge in edges:
        outgoing[edge.source].append(edge.target)
    targets = {edge.target for edge in edges if edge.source != edge.target}
    depths: dict[NodeKey, int] = {}
    # In a cycle every node has incoming edges: then the first one begins.
    for start in sorted((node.key for node in nodes), key=targets.__contains__):
        if start not in depths:
            reached = {start: 0}
            for key in (queue := [start]):
                for other in outgoing[key]:
                    if other not in depths and other not in reached:
                        reached[other] = reached[key] + 1
                        queue.append(other)
            depths |= reached
    return depths


def _draw_edges(edges: Iterable[DrawnEdge], positions: _Positions) -> Iterable[str]:
    kinds: defaultdict[tuple[NodeKey, NodeKey], list[str]] = defaultdict(list)
    for edge in edges:
        kinds[edge.source, edge.target].append(edge.relation_type)
    for (source, target), names in kinds.items():
        text = ", ".join(names)
        label = _shorten(text) if len(kinds) <= _MAX_LABELLED_EDGES else ""
        line = _loop(*positions[source], label) if source == target else _arrow(positions, source, target, label)
        yield f"<g><title>{escape(text)}</title>{line}</g>"


def _arrow(positions: _Positions, source: NodeKey, target: NodeKey, label: str) -> str:
    """Return a curved arrow; the opposite edge curves to the other side."""
    (x1, y1), (x2, y2) = positions[source], positions[target]
    length = hypot(x2 - x1, y2 - y1) or 1.0
    across_x, across_y = (y1 - y2) / length, (x2 - x1) / length
    bend = 14 if x1 != x2 else 44
    middle_x, middle_y = (x1 + x2) / 2 + across_x * bend, (y1 + y2) / 2 + across_y * bend
    along = hypot(x2 - middle_x, y2 - middle_y) or 1.0
    ahead_x, ahead_y = (x2 - middle_x) / along, (y2 - middle_y) / along
    tip_x, tip_y = x2 - ahead_x * (_RADIUS + 1), y2 - ahead_y * (_RADIUS + 1)
    base_x, base_y = tip_x - ahead_x * 8, tip_y - ahead_y * 8
    head = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in (
            (tip_x, tip_y),
            (base_x - ahead_y * 4, base_y + ahead_x * 4),
            (base_x + ahead_y * 4, base_y - ahead_x * 4),
        )
    )
    return (
        f'<path d="M{x1:.1f} {y1:.1f}Q{middle_x:.1f} {middle_y:.1f} {base_x:.1f} {base_y:.1f}" fill="none" '
        f'stroke="currentColor" stroke-opacity="0.45"/><polygon points="{head}" fill="currentColor" '
        f'fill-opacity="0.45"/>{_edge_label((x1 + x2 + 2 * middle_x) / 4, (y1 + y2 + 2 * middle_y) / 4, label)}'
    )


def _loop(x: float, y: float, label: str) -> str:
    return (
        f'<path d="M{x - 6:.1f} {y - 6:.1f}c-14 -26 26 -26 12 0" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.45"/>{_edge_label(x, y - 24, label)}'
    )


def _edge_label(x: float, y: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" opacity="0.7" {_TEXT}>{escape(label)}</text>' if label else ""


def _draw_node(node: DrawnNode, x: float, y: float) -> str:
    title = "\n".join(filter(None, (f"{node.id} ({node.type})" if node.type else node.id, node.content[:200])))
    place = blake2b(node.type.encode("utf-8", "replace"), digest_size=2).digest()
    colour = _COLOURS[int.from_bytes(place, "big") % len(_COLOURS)]
    return (
        f'<g><title>{escape(title)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{colour}"/>'
        f'<text x="{x:.1f}" y="{y + _RADIUS + 13:.1f}" {_TEXT}>{escape(_shorten(node.id))}</text></g>'
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_LABEL_CHARS else text[: _MAX_LABEL_CHARS - 1] + "…"
