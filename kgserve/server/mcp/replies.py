"""Answers for agents, twice over: as text to read, and as values, with the same in both and neither too long.

An agent pays for what it reads, some hosts show it the values alone, and clients cut off what is long. So lists hold
beginnings of contents, what does not fit comes off at the end, and what was left out, and how to get it, is ``more``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kgserve.graph import answers
from kgserve.server.mcp.values import (
    MAX_DETAIL_CHARS,
    MAX_REPLY_CHARS,
    MAX_TEASER_CHARS,
    as_json,
    items,
    lines_within,
    own_attributes,
    shortened,
)

MAX_SUBJECT_CHARS = MAX_REPLY_CHARS - 1_000
"""Of what an answer is about, without its frame."""
_MAX_TAGS_LINE_CHARS = 200
MAX_ATTRIBUTES_LINE_CHARS = 300
_MAX_SHOWN_HEADS = 20
T = TypeVar("T")


class EdgeEnds(Protocol):
    """Whatever names an edge by its ends and type."""

    @property
    def source(self) -> str:
        """The id of the node where it starts."""
        ...

    @property
    def target(self) -> str:
        """The id of the node where it ends."""
        ...

    @property
    def relation_type(self) -> str:
        """Its type."""
        ...


class MomentArguments(Protocol):
    """Arguments that may ask for a moment, of the store or of the world."""

    @property
    def as_of(self) -> str | UnsetType:
        """The commit, or the time, as of which the store is read."""
        ...

    @property
    def valid_at(self) -> str | UnsetType:
        """The moment of the world."""
        ...


class ToolReply(NamedTuple):
    """An answer twice over. ``more``: what was left out, and how to get it. ``hint``: what else is worth knowing.

    ``alone``: nothing is said beside it, for it has the form of somebody else's. ``names_store``: whether the text says
    which store was meant; the values always do.
    """

    text: str
    values: dict[str, Any]
    more: str = ""
    hint: str = ""
    alone: bool = False
    names_store: bool = True

    def said(self, store: str, notes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
        """The text and the values, both with the name of the store and all that is to be said beside them."""
        if self.alone:
            return self.text, self.values
        beside = {"more": self.more, "hint": self.hint, "notes": list(notes)}
        values = {"store": store, **self.values} if store else dict(self.values)
        values |= {name: said for name, said in beside.items() if said}
        names_store = store and self.names_store and f'"{store}"' not in self.text
        named = [f'Store "{store}".'] if names_store else []
        more = [f"More: {self.more}."] if self.more else []
        hint = [f"Hint: {self.hint}."] if self.hint else []
        return "\n".join([self.text, *more, *hint, *(f"Note: {note}" for note in notes), *named]), values


@singledispatch
def present(answer: Any, _given: Any, _store: str) -> ToolReply:
    """An answer of a tool, by its type, to the arguments given and of the store meant."""
    raise TypeError(f"there are no words for {type(answer).__name__}")


def joined(lines: Iterable[str]) -> str:
    """The first of some lines, as many as an answer has room for."""
    return "\n".join(lines_within(lines, MAX_SUBJECT_CHARS))


def list_page(
    things: Sequence[T], line: Callable[[T], str], *, detail: bool, content: int = MAX_TEASER_CHARS
) -> tuple[list[dict[str, Any]], list[str]]:
    """The first things that fit, as values and as lines of text."""
    shown = items(things, MAX_SUBJECT_CHARS, detail=detail, content=content)
    lines = lines_within(map(line, things[: len(shown)]), MAX_SUBJECT_CHARS)
    return shown[: len(lines)], lines


def quoted(text: str) -> str:
    """Text in double quotes on one line, as JSON writes it."""
    return as_json(text)


def counted(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def moment(text: str) -> str:
    """A time without a fraction that is none."""
    return text.replace(".000000Z", "Z")


def second(text: str) -> str:
    """Return a time cut to seconds."""
    return f"{text[:19]}Z"


def describe_moment(given: MomentArguments) -> str:
    """The moment that a call asks for, to be put behind what was asked; empty for the present."""
    as_of = f" as of {given.as_of}" if given.as_of else ""
    if not given.valid_at:
        return as_of
    return as_of + (", true or not" if given.valid_at == "any" else f", true at {given.valid_at}")


def arrow(edge: answers.Edge | EdgeEnds) -> str:
    """Return an edge as an arrow between quoted ids, with the stores of its ends where they are shown."""
    store, into = (edge.store, edge.to_graph) if isinstance(edge, answers.Edge) else (UNSET, UNSET)
    source, target = f"{quoted(edge.source)}{store_suffix(store)}", f"{quoted(edge.target)}{store_suffix(into)}"
    return f"{source} -[{edge.relation_type}]-> {target}"


def store_suffix(store: str | UnsetType) -> str:
    """Return the store of a thing, where it is shown."""
    return f" of store {quoted(store)}" if store else ""


def node_line(node: answers.Node | answers.ListedNode) -> str:
    """Return a node as a line of a list."""
    return f"  - {quoted(node.id)} ({node.type}){node_facts(node)}{content_suffix(node, MAX_DETAIL_CHARS)}"


def content_suffix(node: answers.Node | answers.ListedNode, most: int) -> str:
    """Return the beginning of a content, quoted."""
    return f" {quoted(shortened(node.content, most))}" if node.content else ""


def edge_line(edge: answers.Edge) -> str:
    """An edge in one line."""
    return f"  {arrow(edge)}{''.join(f' {fact}' for fact in edge_facts(edge))}"


def edge_facts(edge: answers.Edge) -> Iterator[str]:
    """Iterate over what an edge has beyond its ends and type, as `name=value`."""
    if edge.weight != 1:
        yield f"weight={edge.weight:.4g}"
    if isinstance(edge.ordinal, int):
        yield f"ordinal={edge.ordinal}"
    yield from validity_facts(edge)
    if attributes := own_attributes(edge):
        yield shortened(as_json(attributes), MAX_ATTRIBUTES_LINE_CHARS)


def node_facts(node: answers.Node | answers.ListedNode) -> str:
    """What a node has beyond id, type and content, as `` name=value …``; empty when it has nothing."""
    return "".join(f" {fact}" for fact in _each_fact(node))


def _each_fact(node: answers.Node | answers.ListedNode) -> Iterator[str]:
    if node.summary:
        yield f"summary={quoted(shortened(node.summary, MAX_TEASER_CHARS))}"
    if node.tags:
        yield f"tags={shortened(', '.join(map(quoted, node.tags)), _MAX_TAGS_LINE_CHARS)}"
    if node.attributes:
        yield shortened(as_json(node.attributes), MAX_ATTRIBUTES_LINE_CHARS)
    yield from validity_facts(node)
    if node.stale:
        yield "stale"
    if node.conflicts:
        heads = ",".join(map(str, node.conflicts[:_MAX_SHOWN_HEADS]))
        yield f"version={node.version} conflicts_with_versions={heads}" + (
            ",…" if len(node.conflicts) > _MAX_SHOWN_HEADS else ""
        )
    if node.is_current:
        yield f"version={node.version} in conflict with the present one"
    if node.superseded_by:
        yield f"superseded_by={node.superseded_by}"


def validity_facts(thing: answers.Node | answers.ListedNode | answers.Edge) -> Iterator[str]:
    """Iterate over the bounds of validity that are set."""
    if thing.valid_from:
        yield f"valid_from={moment(thing.valid_from)}"
    if thing.valid_to:
        yield f"valid_to={moment(thing.valid_to)}"


def write_counts(found: answers.InjectAnswer) -> dict[str, Any]:
    """Return the counts of what a write did, without those that are 0."""
    counts = msgspec.structs.asdict(found)
    unasked = ("nodes_sent", "edges_sent", "edges_skipped")
    return {name: number for name, number in counts.items() if number and name not in unasked}
