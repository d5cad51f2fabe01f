"""Structured content of tool replies, shortened for agents.

Times, versions, sequences, partial scores, and empty and default values are omitted unless the call asks for
``detail``. The text of a reply shows the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from kgserve.graph import answers
from kgserve.graph.versioned_writes import TIMESTAMP_NAMES

MAX_REPLY_CHARS = 25_000
"""Maximum characters of a reply, for its text and for its JSON."""
MAX_RESULT_CHARS = MAX_REPLY_CHARS - 2_000
"""Maximum characters of the results in a reply, without heading and hints."""
MAX_WHOLE_CONTENT_CHARS = 12_000
"""Maximum characters of the content of a single node or memory."""

MAX_TEASER_CHARS = 60
"""Maximum characters of a node's content in a walk."""

MAX_EXCERPT_CHARS = 200
"""Maximum characters of a search hit's content."""

OMITTED_ATTRIBUTES: dict[str, Any] = {"…": "omitted because of its size"}
"""Placeholder for attributes or metadata that are too large."""

MAX_DETAIL_CHARS = 1_000
"""Maximum characters of a content, or of attributes as JSON, in a list with details."""

_MAX_SUMMARY_CHARS = 500
_MAX_TAGS_CHARS = 1_000
_MIN_ATTRIBUTES_CHARS = 500
_MAX_VALUE_CHARS = 500
_MAX_CHANGES_CHARS = 5_000

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


def encode_json_text(value: Any) -> str:
    """Return a value as JSON."""
    return encode(value).decode()


_OMITTED_FIELDS_BY_STRUCT: dict[type[msgspec.Struct], tuple[str, ...]] = {
    **dict.fromkeys(
        (answers.Node, answers.ReachedNode, answers.ListedNode),
        ("version", "sequence", "created_at", "updated_at", "created_by", "freshness_at", "depth"),
    ),
    answers.Edge: ("id", "version", "sequence", "created_by"),
    **dict.fromkeys(
        (answers.SearchHit, answers.BatchSearchHit),
        ("keyword_score", "semantic_score", "queries_matched", "hops", "why"),
    ),
    answers.NodeHistoryState: ("from_sequence", "to_sequence"),
}
"""Fields that are omitted without ``detail``."""

_WALK_OMITTED_FIELDS = ("summary", "tags", "attributes")
"""Further fields that a walk omits; get_entity returns them."""

_DEFAULT_WEIGHT = 1.0


def build_graph_list_item(thing: Any, *, detail: bool, content: int = MAX_TEASER_CHARS) -> dict[str, Any]:
    """Return a node, edge, hit or state as a list item, with at most ``content`` characters of its content."""
    brief = _SHORTENERS[type(thing)](thing, MAX_DETAIL_CHARS if detail else content)
    return (
        msgspec.to_builtins(brief)
        if detail and not is_missing_linked_node(thing)
        else convert_to_builtins_without_defaults(brief)
    )


def is_missing_linked_node(thing: object) -> bool:
    """Return whether ``thing`` is a node of a walk that a cross-store link names but that does not exist."""
    return isinstance(thing, answers.ReachedNode) and bool(thing.missing)


def build_graph_list_items_within_length(
    things: Iterable[Any], room: int, *, detail: bool, content: int = MAX_TEASER_CHARS
) -> list[dict[str, Any]]:
    """Return the first things, each as `build_graph_list_item`, that fit into ``room`` characters of JSON."""
    return take_items_within_json_size(
        (build_graph_list_item(each, detail=detail, content=content) for each in things), room
    )


def build_traversed_node_teaser(node: answers.ReachedNode) -> dict[str, Any]:
    """Return a node of a walk with id, type and the beginning of its content."""
    return {
        name: value
        for name, value in convert_to_builtins_without_defaults(_brief_node(node, MAX_TEASER_CHARS)).items()
        if name not in _WALK_OMITTED_FIELDS
    }


def convert_to_builtins_without_defaults(thing: Any) -> Any:
    """Return `thing` as builtins, without fields shown only in detail and without empty and default values."""
    if isinstance(thing, list):
        return [convert_to_builtins_without_defaults(each) for each in thing]
    if isinstance(thing, answers.FieldChange):
        return msgspec.to_builtins(thing)
    if not isinstance(thing, msgspec.Struct):
        return thing
    values = msgspec.structs.asdict(thing)
    names = zip(thing.__struct_fields__, thing.__struct_encode_fields__, strict=True)
    unasked = _OMITTED_FIELDS_BY_STRUCT.get(type(thing), ())
    found = {wire: convert_to_builtins_without_defaults(values[name]) for name, wire in names if name not in unasked}
    if isinstance(thing, answers.Edge):
        found["attributes"] = drop_edge_timestamp_attributes(thing)
        if thing.weight == _DEFAULT_WEIGHT:
            del found["weight"]
    if isinstance(thing, answers.SearchHit | answers.BatchSearchHit):
        found["score"] = round(thing.score, 2)
    return {name: value for name, value in found.items() if not _is_empty(value) or _is_former_version(name, value)}


def _is_empty(value: object) -> bool:
    return value is None or value is UNSET or value is False or value in ("", [], {})


def _is_former_version(name: str, value: object) -> bool:
    return name == "is_current" and value is False


def drop_edge_timestamp_attributes(edge: answers.Edge) -> dict[str, Any]:
    """Return the attributes of an edge without its timestamps."""
    return {name: value for name, value in edge.attributes.items() if name not in TIMESTAMP_NAMES}


def fits_json_size(value: object, room: int) -> bool:
    """Return whether the JSON of ``value`` takes at most ``room`` bytes."""
    return len(encode(value)) <= room


def take_items_within_json_size(things: Iterable[T], room: int) -> list[T]:
    """Return the first things whose JSON fits into ``room`` bytes in total."""
    return _take_fitting(things, room, lambda thing: len(encode(thing)))


def take_lines_within_length(lines: Iterable[str], room: int) -> list[str]:
    """Return the first lines that fit into ``room`` characters, line ends included."""
    return _take_fitting(lines, room, len)


def _take_fitting(things: Iterable[T], room: int, size: Callable[[T], int]) -> list[T]:
    kept: list[T] = []
    for thing in things:
        room -= size(thing) + 1
        if room < 0:
            break
        kept.append(thing)
    return kept


def omit_oversized_attributes(attributes: dict[str, Any], room: int) -> dict[str, Any]:
    """Return the attributes, or a placeholder if they take more than ``room`` characters."""
    return attributes if not attributes or fits_json_size(attributes, room) else OMITTED_ATTRIBUTES


def shorten_tags(tags: list[str], room: int) -> list[str]:
    """Return the tags; if they take more than ``room`` characters, the first ones and an ellipsis."""
    kept = take_items_within_json_size(tags, room)
    return tags if len(kept) == len(tags) else [*kept, "…"]


def truncate_text(text: str, most: int, mark: str = "…") -> str:
    """Return ``text`` truncated to ``most`` characters, ``mark`` included."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def _brief_node(node: answers.Node | answers.ListedNode, content: int) -> answers.Node | answers.ListedNode:
    return replace(
        node,
        content=node.content and truncate_text(node.content, content),
        attributes=node.attributes and omit_oversized_attributes(node.attributes, max(content, _MIN_ATTRIBUTES_CHARS)),
        summary=node.summary and truncate_text(node.summary, _MAX_SUMMARY_CHARS),
        context=node.context and truncate_text(node.context, _MAX_SUMMARY_CHARS),
        tags=node.tags and shorten_tags(node.tags, _MAX_TAGS_CHARS),
    )


def _brief_edge(edge: answers.Edge, content: int) -> answers.Edge:
    return replace(
        edge,
        attributes=omit_oversized_attributes(edge.attributes, max(content, _MIN_ATTRIBUTES_CHARS)),
        context=edge.context and truncate_text(edge.context, _MAX_SUMMARY_CHARS),
    )


def _brief_hit(
    hit: answers.SearchHit | answers.BatchSearchHit, content: int
) -> answers.SearchHit | answers.BatchSearchHit:
    return replace(hit, node=_brief_node(hit.node, content))


def _brief_state(state: answers.NodeHistoryState, content: int) -> answers.NodeHistoryState:
    changes = [replace(each, before=_brief_value(each.before), after=_brief_value(each.after)) for each in state.diff]
    kept = take_items_within_json_size(changes, _MAX_CHANGES_CHARS)
    if len(kept) < len(changes):
        kept.append(answers.FieldChange(path="…", before=None, after=f"{len(changes) - len(kept):,} more changes"))
    return replace(state, node=_brief_node(state.node, content), diff=kept)


def _brief_value(value: Any) -> Any:
    if isinstance(value, str):
        return truncate_text(value, _MAX_VALUE_CHARS)
    return value if fits_json_size(value, 2 * _MAX_VALUE_CHARS) else "… omitted because of its size"


_SHORTENERS: dict[type[Any], Callable[[Any, int], Any]] = {
    **dict.fromkeys((answers.Node, answers.ReachedNode, answers.ListedNode), _brief_node),
    **dict.fromkeys((answers.SearchHit, answers.BatchSearchHit), _brief_hit),
    answers.Edge: _brief_edge,
    answers.NodeHistoryState: _brief_state,
}
