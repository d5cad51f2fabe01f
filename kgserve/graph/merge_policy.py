"""Which fields a node takes over from a node merged into it, and which it returns when the merge is reverted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kgserve.errors import TooLarge
from kgserve.graph.node_merge_models import MergeIntoRequest
from kgserve.graph.request_validation import ValidationErrorCollector, encode_canonical_attributes_json
from kgserve.platform.codecs import json_decoder
from kgserve.platform.json_values import is_same_json_value
from kgserve.storage.model.node_edge_fields import MAX_CONTENT_BYTES, MAX_TAGS, NO_EXTRAS, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import NodeUpsert

_attributes = json_decoder(dict[str, Any]).decode


class MergeSurvivorWrite(msgspec.Struct, frozen=True):
    """The write to the surviving node, and the paths of the fields it took over.

    ``left`` are the fields where the two differed and its own value was kept.
    """

    put: NodeUpsert
    taken: list[str]
    left: list[str]


class _MergeableFields(msgspec.Struct, frozen=True):
    """The fields of a node that a merge may take over."""

    content: str
    summary: str
    tags: tuple[str, ...]
    attributes: dict[str, Any]


def _mergeable(row: NodeRow) -> _MergeableFields:
    extras = row.extras or NO_EXTRAS
    return _MergeableFields(row.content, extras.summary, extras.tags, _attributes(row.attributes))


def build_merge_survivor_write(into: NodeRow, absorbed: NodeRow, wanted: MergeIntoRequest) -> MergeSurvivorWrite:
    """Return the write to the surviving node. Raises TooLarge and InvalidInput if the result exceeds a limit."""
    old, other = _mergeable(into), _mergeable(absorbed)
    summary_rule = "fill" if wanted.content == "append" else wanted.content
    new = _MergeableFields(
        _merge_text(old.content, other.content, wanted.content),
        _merge_text(old.summary, other.summary, summary_rule),
        tuple(dict.fromkeys((*old.tags, *other.tags)))[:MAX_TAGS],
        _merge_attributes(old.attributes, other.attributes, wanted.attributes),
    )
    put = _put(into.id, old, new, wanted.created_by or "")
    return MergeSurvivorWrite(
        put, sorted(_differing_paths(old, new)), sorted(_differing_paths(new, other) & _set_paths(other))
    )


def _merge_text(own: str, other: str, rule: str) -> str:
    match rule:
        case "fill":
            return own or other
        case "overwrite":
            return other or own
        case "append" if own and other and own != other:
            return f"{own}\n\n{other}"
        case "append":
            return own or other
        case _:
            return own


def _merge_attributes(own: dict[str, Any], other: dict[str, Any], rule: str) -> dict[str, Any]:
    match rule:
        case "fill":
            return other | own
        case "overwrite":
            return own | other
        case _:
            return own


def _put(node_id: str, old: _MergeableFields, new: _MergeableFields, author: str) -> NodeUpsert:
    """Return a put of the changed fields. Raises TooLarge and InvalidInput."""
    if len(new.content) * 4 > MAX_CONTENT_BYTES and len(new.content.encode()) > MAX_CONTENT_BYTES:
        raise TooLarge(f"content: the merged content exceeds {MAX_CONTENT_BYTES} bytes; merge without `append`")
    faults = ValidationErrorCollector()
    attributes = encode_canonical_attributes_json(new.attributes, faults)
    faults.raise_any()
    return NodeUpsert(
        0,
        node_id,
        content=None if new.content == old.content else new.content,
        attributes=None if not _differing_attributes(old.attributes, new.attributes) else attributes,
        extras=NodeExtrasUpsert(
            summary=None if new.summary == old.summary else new.summary,
            tags=None if new.tags == old.tags else new.tags,
            created_by=author,
        ),
    )


def _differing_attributes(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Return the names of the attributes that differ."""
    shared = one.keys() & other.keys()
    return (one.keys() ^ other.keys()) | {name for name in shared if not is_same_json_value(one[name], other[name])}


def _differing_paths(one: _MergeableFields, other: _MergeableFields) -> set[str]:
    """Return the paths of the fields that differ."""
    found = {f"attributes.{name}" for name in _differing_attributes(one.attributes, other.attributes)}
    found |= {f"tags.{tag}" for tag in {*one.tags} ^ {*other.tags}}
    return found | {name for name in ("content", "summary") if getattr(one, name) != getattr(other, name)}


def _set_paths(fields: _MergeableFields) -> set[str]:
    """Return the paths of the fields that are set."""
    found = {f"attributes.{name}" for name in fields.attributes} | {f"tags.{tag}" for tag in fields.tags}
    return found | {name for name in ("content", "summary") if getattr(fields, name)}


class MergeSurvivorReversalWrite(msgspec.Struct, frozen=True):
    """The write that reverts a merge in the survivor, with the paths reverted and those kept."""

    put: NodeUpsert
    gone: list[str]
    kept: list[str]


def build_merge_survivor_reversal_write(
    before: NodeRow, after: NodeRow, row: NodeRow, others: Iterable[NodeRow], author: str
) -> MergeSurvivorReversalWrite:
    """Return the write that reverts, in the survivor, what a merge changed from ``before`` to ``after``.

    Fields written since are kept, and so are values that ``others``, also merged into it, have in common.
    """
    old, then, now = _mergeable(before), _mergeable(after), _mergeable(row)
    shared = [_mergeable(other) for other in others]
    changed = _differing_paths(old, then)
    since = changed & _differing_paths(then, now)
    going = {path for path in changed - since if not any(_has_same_value(other, path, now) for other in shared)}
    attributes = {**now.attributes}
    for name in (path.removeprefix("attributes.") for path in going if path.startswith("attributes.")):
        attributes.pop(name)
        if name in old.attributes:
            attributes[name] = old.attributes[name]
    new = _MergeableFields(
        old.content if "content" in going else now.content,
        old.summary if "summary" in going else now.summary,
        tuple(tag for tag in now.tags if f"tags.{tag}" not in going),
        attributes,
    )
    return MergeSurvivorReversalWrite(_put(row.id, now, new, author), sorted(going), sorted(changed - going))


def _has_same_value(other: _MergeableFields, path: str, now: _MergeableFields) -> bool:
    """Return whether another node has the same value at a path."""
    kind, _, name = path.partition(".")
    match kind:
        case "attributes":
            return (
                name in other.attributes
                and name in now.attributes
                and is_same_json_value(other.attributes[name], now.attributes[name])
            )
        case "tags":
            return name in other.tags
        case _:
            return False
