"""Nodes and edges rendered as compact text within a token budget."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from kgserve.graph.answers import Edge, Node

_TOKEN_PIECE = re.compile(r"[A-Za-z]+|\d+|\s+|.", re.DOTALL)
_LETTERS_PER_TOKEN = 4
_DIGITS_PER_TOKEN = 2
_ELLIPSIS = " …"


class RenderedContext(msgspec.Struct, frozen=True):
    """Rendered text, its size in tokens, the number of entries in it, and whether any were left out."""

    text: str
    tokens: int
    count: int
    truncated: bool


class ContextNodeEntry(NamedTuple):
    """A node to render, its edges to earlier nodes, and its store if several are queried."""

    node: Node
    edges: Sequence[Edge] = ()
    store: str = ""


def build_llm_context_entries(nodes: Sequence[Node], edges: Iterable[Edge], store: str = "") -> list[ContextNodeEntry]:
    """Return entries for the nodes of one store, best first; each edge is attached to the later of its two ends."""
    places = {node.id: place for place, node in enumerate(nodes)}
    found: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in edges:
        if edge.source in places and edge.target in places:
            found[max(edge.source, edge.target, key=places.__getitem__)].append(edge)
    return [ContextNodeEntry(node, found[node.id], store) for node in nodes]


def attach_links_to_context_entries(
    entries: Sequence[ContextNodeEntry], links: Iterable[tuple[tuple[str, str], tuple[str, str], Edge]]
) -> list[ContextNodeEntry]:
    """Return entries of several stores with the links between them, each attached to the later of its two ends.

    An end is a store and an id.
    """
    places = {(entry.store, entry.node.id): place for place, entry in enumerate(entries)}
    more: dict[int, list[Edge]] = defaultdict(list)
    for source, target, edge in links:
        if source in places and target in places:
            more[max(places[source], places[target])].append(edge)
    return [entry._replace(edges=(*entry.edges, *more[place])) for place, entry in enumerate(entries)]


def estimate_llm_token_count(text: str) -> int:
    """Estimate the number of language model tokens of a text, erring high.

    Counts one token for each started group of 4 letters or 2 digits, and for each other character. White space counts
    only if it is longer than one character.
    """
    return sum(map(_piece_tokens, _TOKEN_PIECE.findall(text)))


def _piece_tokens(piece: str) -> int:
    if piece.isspace():
        return 1 if "\n" in piece or len(piece) > 1 else 0
    if piece.isdigit() and piece.isascii():
        return -(-len(piece) // _DIGITS_PER_TOKEN)
    if piece.isascii() and piece.isalpha():
        return -(-len(piece) // _LETTERS_PER_TOKEN)
    return max(1, len(piece.encode()) - 1)


def render_llm_context_markdown(entries: Sequence[ContextNodeEntry], budget: int) -> RenderedContext:
    """Render entries as a list, each node followed by its edges to nodes already in the text."""
    lines: list[str] = []
    spent = 0
    for count, entry in enumerate(entries, 1):
        line, cut = _fit_line(entry, budget - spent)
        if line is None:
            return RenderedContext("\n".join(lines), spent, count - 1, truncated=True)
        lines.append(line)
        spent += estimate_llm_token_count(line) + 1
        for edge in entry.edges:
            text = _edge_line(edge)
            cost = estimate_llm_token_count(text) + 1
            if spent + cost <= budget:
                lines.append(text)
                spent += cost
        if cut:
            return RenderedContext("\n".join(lines), spent, count, truncated=True)
    return RenderedContext("\n".join(lines), spent, len(entries), truncated=False)


def _edge_line(edge: Edge) -> str:
    source, target = (f" in {store}" if edge.to_graph else "" for store in (edge.store, edge.to_graph))
    return f"  - [{edge.source}]{source} {edge.relation_type} [{edge.target}]{target}"


def render_llm_context_json(entries: Sequence[ContextNodeEntry], budget: int) -> RenderedContext:
    """Render entries as a JSON object of nodes and edges; nodes that do not fit are left out whole."""
    written: list[bytes] = []
    related: list[bytes] = []
    spent = estimate_llm_token_count(_json_object((), ()))
    for entry in entries:
        one, more = _json_node(entry), [_json_edge(edge, entry.store) for edge in entry.edges]
        # Exact: every part begins and ends with a bracket, so no token spans two parts; only commas are added.
        commas = (1 if written else 0) + len(more) - (1 if more and not related else 0)
        cost = commas + sum(estimate_llm_token_count(part.decode()) for part in (one, *more))
        if spent + cost > budget:
            break
        spent += cost
        written.append(one)
        related += more
    if not written:
        return RenderedContext("", 0, 0, truncated=bool(entries))
    return RenderedContext(_json_object(written, related), spent, len(written), truncated=len(written) < len(entries))


def _fit_line(entry: ContextNodeEntry, budget: int) -> tuple[str | None, bool]:
    """Return the line of a node, its text cut to fit, and whether it was cut; None if not even the id fits."""
    node, place = entry.node, f", in {entry.store}" if entry.store else ""
    head = f"- [{node.id}] ({node.type}{place}{_state_suffix(node)})"
    text = " ".join(node.content.split())
    line = f"{head} {text}".rstrip()
    if estimate_llm_token_count(line) + 1 <= budget:
        return line, False
    room = budget - estimate_llm_token_count(head + _ELLIPSIS) - 1
    words = text.split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if estimate_llm_token_count(" " + " ".join(words[:middle])) <= room else (low, middle - 1)
        )
    return (f"{head} {' '.join(words[:low])}{_ELLIPSIS}", True) if low and room > 0 else (None, True)


def _json_object(nodes: Iterable[bytes], edges: Iterable[bytes]) -> str:
    return (b'{"nodes":[' + b",".join(nodes) + b'],"edges":[' + b",".join(edges) + b"]}").decode()


def _json_node(entry: ContextNodeEntry) -> bytes:
    node = entry.node
    former = {"superseded_by": node.superseded_by, "is_current": node.is_current}
    state = {name: value for name, value in former.items() if value is not UNSET}
    return _json({"id": node.id, "type": node.type, "content": node.content, **state}, entry.store)


def _state_suffix(node: Node) -> str:
    """Return the state of a version that is not current, as text; empty for the current one."""
    if node.superseded_by:
        return f", superseded by version {node.superseded_by}"
    return "" if node.is_current is UNSET else ", in conflict" if node.is_current else ", no longer"


def _json_edge(edge: Edge, store: str) -> bytes:
    into = {"to_graph": edge.to_graph} if edge.to_graph else {}
    fields = {"from": edge.source, "to": edge.target, "relation_type": edge.relation_type, **into}
    return _json(fields, edge.store or store)


def _json(fields: dict[str, Any], store: str) -> bytes:
    return msgspec.json.encode(fields | ({"store": store} if store else {}))
