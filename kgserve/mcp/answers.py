"""What the tools answer, as Structs: those of the REST interface, with a word on what was left out for its size."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kgserve.model import answers, stores

More = Annotated[str | msgspec.UnsetType, msgspec.Meta(description="What was left out or shortened, and how to get it")]


class Walked(answers.TraverseAnswer, kw_only=True):
    """The nodes reached, nearest first, and the edges between them."""

    more: More = msgspec.UNSET


class Found(answers.SearchAnswer, kw_only=True):
    """Hits, best first."""

    more: More = msgspec.UNSET


class BatchFound(answers.BatchSearchAnswer, kw_only=True):
    """The hits of all variants, joined, best first."""

    more: More = msgspec.UNSET


class Entity(answers.NodeAnswer, kw_only=True):
    """One node with its edges."""

    content_length: Annotated[int, msgspec.Meta(description="Of the whole content, in characters")]
    more: More = msgspec.UNSET


class Stores(stores.StoreList, kw_only=True):
    """A page of the stores by name; ``count`` is that of all."""

    more: More = msgspec.UNSET


class Rows(answers.CypherAnswer, kw_only=True):
    """The rows of a statement."""

    more: More = msgspec.UNSET


class Example(msgspec.Struct, kw_only=True):
    """A node to learn from how ids and contents look here."""

    id: str
    content: str


class TypeDescription(msgspec.Struct, kw_only=True):
    """A type of node."""

    type: str
    count: int
    examples: list[Example]


class Description(msgspec.Struct, kw_only=True):
    """What a store holds."""

    name: str
    nodes: int
    edges: int
    sequence: Annotated[int, msgspec.Meta(description="The number of its last commit")]
    types: Annotated[list[TypeDescription], msgspec.Meta(description="The most frequent first, at most 100")]
    relation_types: Annotated[dict[str, int], msgspec.Meta(description="Edges by relation type, at most 100")]
    indexes_behind: Annotated[int, msgspec.Meta(description="Commits that search has not seen yet")]
