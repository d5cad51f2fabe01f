"""How large an answer may be: what an agent reads costs it room, and clients cut off what is longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from kgserve.model.answers import Edge, Node

TEXT = 25_000
"""Characters of readable text."""

STRUCTURED = 50_000
"""Bytes of structured content, as JSON."""

CONTENT = 1_000
ATTRIBUTES = 1_000
_LEFT_OUT = {"…": "left out for its size"}

N = TypeVar("N", bound=Node)
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def fits(value: object, room: int = STRUCTURED) -> bool:
    """Whether ``value`` takes at most ``room`` bytes of JSON."""
    return len(_encode(value)) <= room


def first_fitting(items: Iterable[T], room: int) -> list[T]:
    """The longest beginning of ``items`` that takes at most ``room`` bytes of JSON."""
    kept: list[T] = []
    for item in items:
        room -= len(_encode(item)) + 1
        if room < 0:
            break
        kept.append(item)
    return kept


def brief(node: N) -> N:
    """The node with long content shortened and long attributes left out."""
    return msgspec.structs.replace(
        node, content=shortened(node.content, CONTENT), attributes=_brief(node.attributes, ATTRIBUTES)
    )


def brief_edge(edge: Edge) -> Edge:
    """The edge with long attributes left out."""
    return msgspec.structs.replace(edge, attributes=_brief(edge.attributes, ATTRIBUTES))


def brief_attributes(attributes: dict[str, Any], room: int) -> dict[str, Any]:
    """The attributes, or a word in their place when they take more than ``room`` bytes."""
    return _brief(attributes, room)


def shortened(text: str, most: int, mark: str = "…") -> str:
    """``text`` if it has at most ``most`` characters, else its beginning and ``mark``."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def lines_within(lines: Sequence[str], room: int) -> list[str]:
    """The longest beginning of ``lines`` that takes at most ``room`` characters with their line ends."""
    used = 0
    for number, line in enumerate(lines):
        used += len(line) + 1
        if used > room:
            return list(islice(lines, number))
    return list(lines)


def _brief(attributes: dict[str, Any], room: int) -> dict[str, Any]:
    return attributes if not attributes or fits(attributes, room) else dict(_LEFT_OUT)
