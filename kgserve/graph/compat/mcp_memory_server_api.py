r"""Entities of the official MCP memory server: a name, a type, and observations, stored as the lines of a content.

Observations are thus stored once, found by search, and readable without knowledge of this format. A line that begins
with a tab continues the observation above it, and an empty line is ignored. Observations that are empty or begin with a
tab are prefixed with a backslash. So are those that already have such a prefix: ``\``, or ``\`` and a tab.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator

import msgspec
from msgspec import UNSET, UnsetType, field

DEFAULT_ENTITY_TYPE = "entity"
"""Type of an entity without a type."""
PLACEHOLDER_ATTRIBUTES = '{"placeholder":true}'
"""Attributes of a node that represents the missing end of a relation."""


class EntityWithObservations(msgspec.Struct, kw_only=True):
    """An entity with its observations."""

    name: str
    entity_type: str = field(name="entityType")
    observations: list[str]


class EntityNameRelation(msgspec.Struct, kw_only=True):
    """A relation between two names."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str = field(name="relationType")


class ObservationAddition(msgspec.Struct, kw_only=True):
    """Observations to add to an entity."""

    name: str = field(name="entityName")
    contents: list[str]


class AddedObservations(msgspec.Struct, kw_only=True):
    """The observations added to an entity, without those that it already had."""

    name: str = field(name="entityName")
    added: list[str] = field(name="addedObservations")


class ObservationDeletion(msgspec.Struct, kw_only=True):
    """Observations to delete from an entity."""

    name: str = field(name="entityName")
    observations: list[str]


class CreatedEntities(msgspec.Struct, kw_only=True):
    """The entities created, without those that existed before."""

    entities: list[EntityWithObservations]


class CreatedRelations(msgspec.Struct, kw_only=True):
    """The relations created, without those that existed before."""

    relations: list[EntityNameRelation]


class ObservationsAddedAnswer(msgspec.Struct, kw_only=True):
    """The observations that each entity did not have before."""

    results: list[AddedObservations]


class DeletionDoneAnswer(msgspec.Struct, kw_only=True):
    """Confirmation of a deletion."""

    success: bool = True
    message: str


class EntitiesWithRelations(msgspec.Struct, kw_only=True):
    """Entities, and relations with at least one end among them. ``more`` says what was left out and how to get it.

    It also says so if no word of a query was found.
    """

    entities: list[EntityWithObservations] = []
    relations: list[EntityNameRelation] = []
    more: str | UnsetType = UNSET


# A line with only a carriage return is not empty.
_AMBIGUOUS_START = re.compile(r"\\*(?:\t|\Z)")
_ESCAPED_START = re.compile(r"\\+(?:\t|\Z)")


def encode_entity_observations(observations: Iterable[str]) -> str:
    """Encode observations as the content of a node."""
    return "\n".join(map(_lines_of, observations))


def decode_entity_observations(content: str) -> list[str]:
    """Decode the observations in a node's content; any other text consists of one observation per line."""
    return [observation for observation, _ in _blocks(content)]


def append_observations_to_content(content: str, added: Iterable[str]) -> str:
    """Return a content with observations appended."""
    more = encode_entity_observations(added)
    return f"{content}\n{more}" if content and more else content or more


def remove_observations_from_content(content: str, removed: Container[str]) -> str:
    """Return a content without some observations; unchanged if it contains none of them."""
    blocks = list(_blocks(content))
    if not any(observation in removed for observation, _ in blocks):
        return content
    return "\n".join(block for observation, block in blocks if observation not in removed)


def is_placeholder_node(node_type: str, content: str, attributes: str) -> bool:
    """Return whether a node only represents the missing end of a relation."""
    return not content and node_type == DEFAULT_ENTITY_TYPE and attributes == PLACEHOLDER_ATTRIBUTES


def _lines_of(observation: str) -> str:
    first, *others = observation.split("\n")
    return "\n\t".join([f"\\{first}" if _AMBIGUOUS_START.match(first) else first, *others])


def _blocks(content: str) -> Iterator[tuple[str, str]]:
    """Yield each observation with the lines that store it."""
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
