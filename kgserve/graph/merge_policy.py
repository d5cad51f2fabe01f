"""What a node takes over from another that is merged into it, and what of it goes back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kgserve.errors import TooLarge
from kgserve.graph.merge_api import MergeRequest
from kgserve.graph.validate import Faults, canonical
from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.batch import NodePut
from kgserve.storage.model.fields import MAX_CONTENT_BYTES, MAX_TAGS, NO_EXTRAS, NodeExtrasPut
from kgserve.storage.model.rows import NodeRow

_attributes = json_decoder(dict[str, Any]).decode


class MergeOutcome(msgspec.Struct, frozen=True):
    """What a node takes over from another, as a put, and in words: what it takes, and where its own stays."""

    put: NodePut
    taken: list[str]
    left: list[str]


class _Said(msgspec.Struct, frozen=True):
    """What a node says that another may take over."""

    content: str
    summary: str
    tags: tuple[str, ...]
    attributes: dict[str, Any]


def _said(row: NodeRow) -> _Said:
    extras = row.extras or NO_EXTRAS
    return _Said(row.content, extras.summary, extras.tags, _attributes(row.attributes))


def merge_fields(into: NodeRow, absorbed: NodeRow, wanted: MergeRequest) -> MergeOutcome:
    """What a merge makes of the node that stays. Raises TooLarge and InvalidInput where that is more than fits."""
    old, other = _said(into), _said(absorbed)
    summary_rule = "fill" if wanted.content == "append" else wanted.content
    new = _Said(
        _text(old.content, other.content, wanted.content),
        _text(old.summary, other.summary, summary_rule),
        tuple(dict.fromkeys((*old.tags, *other.tags)))[:MAX_TAGS],
        _joined(old.attributes, other.attributes, wanted.attributes),
    )
    put = _put(into.id, old, new, wanted.created_by or "")
    return MergeOutcome(put, sorted(_differing(old, new)), sorted(_differing(new, other) & _paths(other)))


def _text(own: str, other: str, rule: str) -> str:
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


def _joined(own: dict[str, Any], other: dict[str, Any], rule: str) -> dict[str, Any]:
    match rule:
        case "fill":
            return other | own
        case "overwrite":
            return own | other
        case _:
            return own


def _put(node_id: str, old: _Said, new: _Said, author: str) -> NodePut:
    """A put of what is new. Raises TooLarge and InvalidInput."""
    if len(new.content) * 4 > MAX_CONTENT_BYTES and len(new.content.encode()) > MAX_CONTENT_BYTES:
        raise TooLarge(f"content: both together are longer than {MAX_CONTENT_BYTES} bytes; merge without appending it")
    faults = Faults()
    attributes = canonical(new.attributes, faults)
    faults.raise_any()
    return NodePut(
        0,
        node_id,
        content=None if new.content == old.content else new.content,
        attributes=None if not _told(old.attributes, new.attributes) else attributes,
        extras=NodeExtrasPut(
            summary=None if new.summary == old.summary else new.summary,
            tags=None if new.tags == old.tags else new.tags,
            created_by=author,
        ),
    )


def _told(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """The names under which the attributes differ. As JSON: to Python true is 1, and null is not there."""
    names = one.keys() | other.keys()
    return {name for name in names if _json(one, name) != _json(other, name)}


def _json(attributes: dict[str, Any], name: str) -> bytes | None:
    return msgspec.json.encode(attributes[name]) if name in attributes else None


def _differing(one: _Said, other: _Said) -> set[str]:
    """The paths under which two differ."""
    found = {f"attributes.{name}" for name in _told(one.attributes, other.attributes)}
    found |= {f"tags.{tag}" for tag in {*one.tags} ^ {*other.tags}}
    return found | {name for name in ("content", "summary") if getattr(one, name) != getattr(other, name)}


def _paths(said: _Said) -> set[str]:
    """The paths of what it says."""
    found = {f"attributes.{name}" for name in said.attributes} | {f"tags.{tag}" for tag in said.tags}
    return found | {name for name in ("content", "summary") if getattr(said, name)}


class GivenBack(msgspec.Struct, frozen=True):
    """What goes back of it, as a put, and in words: what goes, and what stays for it was written since."""

    put: NodePut
    gone: list[str]
    kept: list[str]


def revert_fields(before: NodeRow, after: NodeRow, row: NodeRow, others: Iterable[NodeRow], author: str) -> GivenBack:
    """What a node gives back of what a merge changed in it, from ``before`` to ``after``.

    What was written since stays, and what ``others`` say as well that were merged into it.
    """
    old, then, now = _said(before), _said(after), _said(row)
    shared = [_said(other) for other in others]
    changed = _differing(old, then)
    since = changed & _differing(then, now)
    going = {path for path in changed - since if not any(_says(other, path, now) for other in shared)}
    attributes = {**now.attributes}
    for name in (path.removeprefix("attributes.") for path in going if path.startswith("attributes.")):
        attributes.pop(name)
        if name in old.attributes:
            attributes[name] = old.attributes[name]
    new = _Said(
        old.content if "content" in going else now.content,
        old.summary if "summary" in going else now.summary,
        tuple(tag for tag in now.tags if f"tags.{tag}" not in going),
        attributes,
    )
    return GivenBack(_put(row.id, now, new, author), sorted(going), sorted(changed - going))


def _says(other: _Said, path: str, now: _Said) -> bool:
    """Whether another one says the same under a path."""
    kind, _, name = path.partition(".")
    match kind:
        case "attributes":
            return name in other.attributes and _json(other.attributes, name) == _json(now.attributes, name)
        case "tags":
            return name in other.tags
        case _:
            return False
