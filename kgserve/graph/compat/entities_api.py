r"""An entity as the official MCP memory server has it: a name, a type, and observations, the lines of a content.

So they are kept once, found by search, and read and written by who knows nothing of observations. A line that begins
with a tab goes on with the observation above it, and an empty line is none. What would be taken for one of these, an
observation that is empty or begins with a tab, has a backslash in front, and so has one that has it already: ``\``,
``\`` and a tab.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator

import msgspec
from msgspec import UNSET, UnsetType, field

DEFAULT_ENTITY_TYPE = "entity"
"""The type of an entity that has none."""
PLACEHOLDER_ATTRIBUTES = '{"placeholder":true}'
"""The attributes of a node that stands for the missing end of a relation."""


class Entity(msgspec.Struct, kw_only=True):
    """A name, a type, and what is known."""

    name: str
    entity_type: str = field(name="entityType")
    observations: list[str]


class ServerRelation(msgspec.Struct, kw_only=True):
    """What leads from one name to another."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str = field(name="relationType")


class NewObservations(msgspec.Struct, kw_only=True):
    """What is to be added to an entity."""

    name: str = field(name="entityName")
    contents: list[str]


class AddedObservations(msgspec.Struct, kw_only=True):
    """What was added to an entity: what it did not say yet."""

    name: str = field(name="entityName")
    added: list[str] = field(name="addedObservations")


class OldObservations(msgspec.Struct, kw_only=True):
    """What an entity is to say no longer."""

    name: str = field(name="entityName")
    observations: list[str]


class Created(msgspec.Struct, kw_only=True):
    """The entities that were not there before."""

    entities: list[Entity]


class Related(msgspec.Struct, kw_only=True):
    """The relations that were not there before."""

    relations: list[ServerRelation]


class Added(msgspec.Struct, kw_only=True):
    """What each entity did not say before."""

    results: list[AddedObservations]


class Deleted(msgspec.Struct, kw_only=True):
    """Nothing of it is there any more."""

    success: bool = True
    message: str


class KnowledgeGraph(msgspec.Struct, kw_only=True):
    """Entities, and relations with at least one end among them. ``more`` says what was left out, and how to get it."""

    entities: list[Entity] = []
    relations: list[ServerRelation] = []
    more: str | UnsetType = UNSET


# A carriage return may stand before the end of a line: to be empty is to have no character at all.
_AMBIGUOUS_START = re.compile(r"\\*(?:\t|\Z)")
_ESCAPED_START = re.compile(r"\\+(?:\t|\Z)")


def content_of(observations: Iterable[str]) -> str:
    """The content that holds these observations."""
    return "\n".join(map(_lines_of, observations))


def observations_of(content: str) -> list[str]:
    """The observations that a content holds: of a text that somebody else wrote its lines."""
    return [observation for observation, _ in _blocks(content)]


def with_observations(content: str, added: Iterable[str]) -> str:
    """A content with more observations at its end."""
    more = content_of(added)
    return f"{content}\n{more}" if content and more else content or more


def without_observations(content: str, removed: Container[str]) -> str:
    """A content without some observations; as it was if it holds none of them."""
    blocks = list(_blocks(content))
    if not any(observation in removed for observation, _ in blocks):
        return content
    return "\n".join(block for observation, block in blocks if observation not in removed)


def is_placeholder(node_type: str, content: str, attributes: str) -> bool:
    """Whether a node only stands for the missing end of a relation: nobody has said anything about it."""
    return not content and node_type == DEFAULT_ENTITY_TYPE and attributes == PLACEHOLDER_ATTRIBUTES


def _lines_of(observation: str) -> str:
    first, *others = observation.split("\n")
    return "\n\t".join([f"\\{first}" if _AMBIGUOUS_START.match(first) else first, *others])


def _blocks(content: str) -> Iterator[tuple[str, str]]:
    """Each observation with the lines that it is written as."""
    block: list[str] = []
    for line in content.split("\n"):
        if line.startswith("\t") and block:
            block.append(line)
            continue
        if block:
            yield _read(block), "\n".join(block)
        block = [line] if line else []
    if block:
        yield _read(block), "\n".join(block)


def _read(block: list[str]) -> str:
    first, *others = block
    first = first[1:] if _ESCAPED_START.match(first) else first
    return "\n".join([first, *(line[1:] for line in others)])
