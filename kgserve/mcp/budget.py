"""How large an answer may be: what an agent reads costs it room, and clients cut off what is longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from kgserve.model.answers import Edge, ListedNode, Node

TEXT = 25_000
"""Characters of readable text."""

STRUCTURED = 50_000
"""Bytes of structured content, as JSON."""

CONTENT = 1_000
ATTRIBUTES = 1_000
SUMMARY = 500
TAGS = 1_000
_LEFT_OUT = {"…": "left out for its size"}

N = TypeVar("N", bound=Node | ListedNode)
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
    """The node with long content and summary shortened, long attributes and late tags left out."""
    return msgspec.structs.replace(
        node,
        content=node.content and shortened(node.content, CONTENT),
        attributes=node.attributes and brief_attributes(node.attributes, ATTRIBUTES),
        summary=node.summary and shortened(node.summary, SUMMARY),
        tags=node.tags and brief_tags(node.tags, TAGS),
    )


def brief_edge(edge: Edge) -> Edge:
    """The edge with long attributes left out."""
    return msgspec.structs.replace(edge, attributes=brief_attributes(edge.attributes, ATTRIBUTES))


def brief_attributes(attributes: dict[str, Any], room: int) -> dict[str, Any]:
    """The attributes, or a word in their place when they take more than ``room`` bytes."""
    return attributes if not attributes or fits(attributes, room) else dict(_LEFT_OUT)


def brief_tags(tags: list[str], room: int) -> list[str]:
    """The tags, or the first ones and a sign when they take more than ``room`` bytes."""
    kept = first_fitting(tags, room)
    return tags if len(kept) == len(tags) else [*kept, "…"]


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
