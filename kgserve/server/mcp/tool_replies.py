"""Tool replies for agents: text and structured content with the same information, both limited in size.

The text is complete and always sent; structured content is sent to clients that ask for it. Agents pay per token, some
hosts show structured content only, where there is any, and clients truncate long replies. So lists contain the
beginnings of contents, items beyond the limit are omitted, and ``more`` says how to get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kgserve.graph import answers
from kgserve.server.mcp.tool_structured_content import (
    MAX_DETAIL_CHARS,
    MAX_REPLY_CHARS,
    MAX_TEASER_CHARS,
    build_graph_list_items_within_length,
    drop_edge_timestamp_attributes,
    encode_json_text,
    take_lines_within_length,
    truncate_text,
)

MAX_SUBJECT_CHARS = MAX_REPLY_CHARS - 1_000
"""Maximum characters of the subject of a reply, without heading and hints."""
_MAX_TAGS_LINE_CHARS = 200
MAX_ATTRIBUTES_LINE_CHARS = 300
_MAX_SHOWN_HEADS = 20
T = TypeVar("T")


class EdgeIdentity(Protocol):
    """Ends and type that identify an edge: interface of anything that has them."""

    @property
    def source(self) -> str:
        """Id of the node where the edge starts."""
        ...

    @property
    def target(self) -> str:
        """Id of the node where the edge ends."""
        ...

    @property
    def relation_type(self) -> str:
        """Relation type of the edge."""
        ...


class BitemporalArguments(Protocol):
    """Arguments with a transaction time and a valid time."""

    @property
    def as_of(self) -> str | UnsetType:
        """Commit sequence or transaction time as of which the store is read."""
        ...

    @property
    def valid_at(self) -> str | UnsetType:
        """Valid time that is asked for."""
        ...


class ToolReply(NamedTuple):
    """Reply of a tool, as text and as structured content (``values``).

    more: what was omitted, and how to get it. hint: further advice.
    alone: add nothing, because the reply has the format of another product.
    verbatim: passage of the text that is quoted exactly, with full ids.
    """

    text: str
    values: dict[str, Any]
    more: str = ""
    hint: str = ""
    alone: bool = False
    verbatim: str = ""

    def said(self, store: str, notes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
        """Return the complete text and values, with ``more``, ``hint`` and ``notes``; the values name the store."""
        if self.alone:
            return self.text, self.values
        remarks = {"more": self.more, "hint": self.hint, "notes": list(notes)}
        values = {"store": store, **self.values} if store else dict(self.values)
        values |= {name: remark for name, remark in remarks.items() if remark}
        more = [f"More: {self.more}."] if self.more else []
        hint = [f"Hint: {self.hint}."] if self.hint else []
        return "\n".join([self.text, *more, *hint, *(f"Note: {note}" for note in notes)]), values


@singledispatch
def build_tool_reply(answer: Any, _given: Any, _store: str) -> ToolReply:
    """Return the reply for an answer of a tool. Register one function per type of answer.

    Arguments: the answer, the tool's arguments, and the name of the store.
    """
    raise TypeError(f"no reply is registered for {type(answer).__name__}")


def join_lines_fitting_reply(lines: Iterable[str]) -> str:
    """Join the first lines that fit into a reply."""
    return "\n".join(take_lines_within_length(lines, MAX_SUBJECT_CHARS))


def take_items_fitting_reply(
    things: Sequence[T], line: Callable[[T], str], *, detail: bool, content: int = MAX_TEASER_CHARS
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the first things that fit into a reply, as values and as lines of text."""
    shown = build_graph_list_items_within_length(things, MAX_SUBJECT_CHARS, detail=detail, content=content)
    lines = take_lines_within_length(map(line, things[: len(shown)]), MAX_SUBJECT_CHARS)
    return shown[: len(lines)], lines


def quote_text(text: str) -> str:
    """Return a text in double quotes, escaped like JSON."""
    return encode_json_text(text)


def format_count(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def trim_zero_time_fraction(text: str) -> str:
    """Return a time without a fraction of zero."""
    return text.replace(".000000Z", "Z")


def trim_timestamp_text_to_seconds(text: str) -> str:
    """Return a time cut to seconds."""
    return f"{text[:19]}Z"


def describe_time_scope(given: BitemporalArguments) -> str:
    """Return the times that a call asks for, as a suffix of a heading; empty for the current state."""
    as_of = f" as of {given.as_of}" if given.as_of else ""
    if not given.valid_at:
        return as_of
    return as_of + (", true or not" if given.valid_at == "any" else f", true at {given.valid_at}")


def format_edge_arrow(edge: answers.Edge | EdgeIdentity) -> str:
    """Return an edge as an arrow between quoted ids, with the stores of its ends if set."""
    store, into = (edge.store, edge.to_graph) if isinstance(edge, answers.Edge) else (UNSET, UNSET)
    source, target = (
        f"{quote_text(edge.source)}{format_store_suffix(store)}",
        f"{quote_text(edge.target)}{format_store_suffix(into)}",
    )
    return f"{source} -[{edge.relation_type}]-> {target}"


def format_store_suffix(store: str | UnsetType) -> str:
    """Return the store as a suffix; empty if unset."""
    return f" of store {quote_text(store)}" if store else ""


def format_node_line(node: answers.Node | answers.ListedNode) -> str:
    """Return a node as a line of a list."""
    fields, excerpt = format_node_fields(node), format_content_excerpt(node, MAX_DETAIL_CHARS)
    return f"  - {quote_text(node.id)} ({node.type}){fields}{excerpt}"


def format_content_excerpt(node: answers.Node | answers.ListedNode, most: int) -> str:
    """Return the beginning of a content, quoted."""
    return f" {quote_text(truncate_text(node.content, most))}" if node.content else ""


def format_edge_line(edge: answers.Edge) -> str:
    """Return an edge as one line."""
    return f"  {format_edge_arrow(edge)}{''.join(f' {fact}' for fact in format_edge_fields(edge))}"


def format_edge_fields(edge: answers.Edge) -> Iterator[str]:
    """Yield the fields of an edge other than its ends and type, as `name=value`."""
    if edge.weight != 1:
        yield f"weight={edge.weight:.4g}"
    if isinstance(edge.ordinal, int):
        yield f"ordinal={edge.ordinal}"
    yield from format_valid_time_bounds(edge)
    if attributes := drop_edge_timestamp_attributes(edge):
        yield truncate_text(encode_json_text(attributes), MAX_ATTRIBUTES_LINE_CHARS)


def format_node_fields(node: answers.Node | answers.ListedNode) -> str:
    """Return the fields of a node other than id, type and content, as `` name=value …``."""
    return "".join(f" {fact}" for fact in _iter_facts(node))


def _iter_facts(node: answers.Node | answers.ListedNode) -> Iterator[str]:
    if node.summary:
        yield f"summary={quote_text(truncate_text(node.summary, MAX_TEASER_CHARS))}"
    if node.tags:
        yield f"tags={truncate_text(', '.join(map(quote_text, node.tags)), _MAX_TAGS_LINE_CHARS)}"
    if node.attributes:
        yield truncate_text(encode_json_text(node.attributes), MAX_ATTRIBUTES_LINE_CHARS)
    yield from format_valid_time_bounds(node)
    if node.stale:
        yield "stale"
    if node.conflicts:
        heads = ",".join(map(str, node.conflicts[:_MAX_SHOWN_HEADS]))
        yield f"version={node.version} conflicts_with_versions={heads}" + (
            ",…" if len(node.conflicts) > _MAX_SHOWN_HEADS else ""
        )
    if node.is_current:
        yield f"version={node.version} in conflict with the current one"
    if node.superseded_by:
        yield f"superseded_by={node.superseded_by}"


def format_valid_time_bounds(thing: answers.Node | answers.ListedNode | answers.Edge) -> Iterator[str]:
    """Yield the bounds of the valid time that are set."""
    if thing.valid_from:
        yield f"valid_from={trim_zero_time_fraction(thing.valid_from)}"
    if thing.valid_to:
        yield f"valid_to={trim_zero_time_fraction(thing.valid_to)}"


def list_nonzero_write_counts(found: answers.InjectAnswer) -> dict[str, Any]:
    """Return the nonzero counts of a write."""
    counts = msgspec.structs.asdict(found)
    unasked = ("nodes_sent", "edges_sent", "edges_skipped")
    return {name: number for name, number in counts.items() if number and name not in unasked}
