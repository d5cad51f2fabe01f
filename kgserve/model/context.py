"""Nodes and edges as compact text that stays within a budget of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from kgserve.model.answers import Edge, Node

_PIECE = re.compile(r"[A-Za-z]+|\d+|\s+|.", re.DOTALL)
_LETTERS_A_TOKEN = 4
_DIGITS_A_TOKEN = 2
_ELLIPSIS = " …"


class Context(msgspec.Struct, frozen=True):
    """The text, its size in tokens, the ids of the nodes in it, and whether something did not fit."""

    text: str
    tokens: int
    ids: list[str]
    truncated: bool


def count_tokens(text: str) -> int:
    """About the tokens that a language model makes of a text, erring high.

    A token for every 4 letters begun, 2 digits begun, or other sign; white space counts when it is more than one sign.
    """
    return sum(map(_piece_tokens, _PIECE.findall(text)))


def _piece_tokens(piece: str) -> int:
    if piece.isspace():
        return 1 if "\n" in piece or len(piece) > 1 else 0
    if piece.isdigit() and piece.isascii():
        return -(-len(piece) // _DIGITS_A_TOKEN)
    if piece.isascii() and piece.isalpha():
        return -(-len(piece) // _LETTERS_A_TOKEN)
    return max(1, len(piece.encode()) - 1)


def markdown(nodes: Sequence[Node], edges: Iterable[Edge], budget: int) -> Context:
    """A list of nodes, best first, each followed by its edges to nodes that are in the text already."""
    lines: list[str] = []
    ids: list[str] = []
    completed = _by_later_end(nodes, edges)
    spent = 0
    for node in nodes:
        line, cut = _fitted(node, budget - spent)
        if line is None:
            return Context("\n".join(lines), spent, ids, truncated=True)
        lines.append(line)
        spent += count_tokens(line) + 1
        ids.append(node.id)
        for edge in completed[node.id]:
            text = f"  - [{edge.source}] {edge.relation_type} [{edge.target}]"
            cost = count_tokens(text) + 1
            if spent + cost <= budget:
                lines.append(text)
                spent += cost
        if cut:
            return Context("\n".join(lines), spent, ids, truncated=True)
    return Context("\n".join(lines), spent, ids, truncated=False)


def as_json(nodes: Sequence[Node], edges: Iterable[Edge], budget: int) -> Context:
    """The same as a JSON object of nodes and edges; nodes that do not fit are left out whole."""
    completed = _by_later_end(nodes, edges)
    written: list[bytes] = []
    related: list[bytes] = []
    ids: list[str] = []
    spent = count_tokens(_object((), ()))
    for node in nodes:
        one, more = _json_node(node), [_json_edge(edge) for edge in completed[node.id]]
        # Exact: every part begins and ends with a bracket, so that no token reaches over a seam; the rest is commas.
        commas = (1 if written else 0) + len(more) - (1 if more and not related else 0)
        cost = commas + sum(count_tokens(part.decode()) for part in (one, *more))
        if spent + cost > budget:
            break
        spent += cost
        written.append(one)
        related += more
        ids.append(node.id)
    if not ids:
        return Context("", 0, [], truncated=bool(nodes))
    return Context(_object(written, related), spent, ids, truncated=len(ids) < len(nodes))


def _by_later_end(nodes: Sequence[Node], edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """The edges between the nodes, each with the later of its two ends."""
    places = {node.id: place for place, node in enumerate(nodes)}
    found: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in edges:
        if edge.source in places and edge.target in places:
            found[max(edge.source, edge.target, key=places.__getitem__)].append(edge)
    return found


def _fitted(node: Node, budget: int) -> tuple[str | None, bool]:
    """The node's line, its text cut if it must be; None when not even the id fits."""
    head = f"- [{node.id}] ({node.type})"
    text = " ".join(node.content.split())
    line = f"{head} {text}".rstrip()
    if count_tokens(line) + 1 <= budget:
        return line, False
    room = budget - count_tokens(head + _ELLIPSIS) - 1
    words = text.split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count_tokens(" " + " ".join(words[:middle])) <= room else (low, middle - 1)
    return (f"{head} {' '.join(words[:low])}{_ELLIPSIS}", True) if low and room > 0 else (None, True)


def _object(nodes: Iterable[bytes], edges: Iterable[bytes]) -> str:
    return (b'{"nodes":[' + b",".join(nodes) + b'],"edges":[' + b",".join(edges) + b"]}").decode()


def _json_node(node: Node) -> bytes:
    return msgspec.json.encode({"id": node.id, "type": node.type, "content": node.content})


def _json_edge(edge: Edge) -> bytes:
    return msgspec.json.encode({"from": edge.source, "to": edge.target, "relation_type": edge.relation_type})
