"""Short ids: prefixes of generated node ids that are unique within a store.

A generated id is a UUID of 36 characters, which costs a language model about 22 tokens each time. Its first eight
characters name the node as well, as those of a Git commit do. More are shown where eight are ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kgserve.errors import InvalidInput
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

UUID_CHARS = 36
SHORT_ID_LENGTHS = (8, 10, 13, 15, 18, 23)
"""Characters of a short id: the first length that is unique. A UUID's own length is the last resort."""
GENERATED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f-]{0,26})?)(@[0-9]+)?")
_SHOWN_ID = re.compile(rf"(?<=[\[\"' ])({GENERATED_ID.pattern})(?=@[0-9]+|[\]\"',;:.\s]|$)", re.MULTILINE)
_MAX_COMPARED_IDS = 200
_MAX_REPORTED_IDS = 3


def shorten_id(rows: RowsSnapshot, node_id: str) -> str:
    """Return the shortest form of a generated id that names only this node; any other id unchanged."""
    if not GENERATED_ID.fullmatch(node_id) or not rows.has(node_id):
        return node_id
    for length in SHORT_ID_LENGTHS:
        prefix = node_id[:length]
        if not rows.has(prefix) and all(each == node_id for each in _iter_ids_with_prefix(rows, prefix)):
            return prefix
    return node_id


def shorten_ids_in_text(rows: RowsSnapshot, text: str) -> str:
    """Return a text in which ids in brackets or quotes, or between spaces, have their shortest form."""
    known: dict[str, str] = {}

    def shorten(found: re.Match[str]) -> str:
        node_id = found[1]
        if node_id not in known:
            known[node_id] = shorten_id(rows, node_id)
        return known[node_id]

    return _SHOWN_ID.sub(shorten, text)


def is_short_id(text: str) -> bool:
    """Return whether a text has the form of a short id, with or without the suffix of a version."""
    return _SHORT_ID.fullmatch(text) is not None


def resolve_short_id(rows: RowsSnapshot, text: str, field: str) -> str:
    """Return the id that a short one names; the text itself if it is an id, or if no id begins with it.

    Raises InvalidInput, which names `field`, if several ids begin with it.
    """
    found = _SHORT_ID.fullmatch(text)
    if found is None or rows.has(text) or rows.has(found[1]):
        return text
    matches = list(dict.fromkeys(_iter_ids_with_prefix(rows, found[1])))
    if len(matches) > 1:
        shown = ", ".join(matches[:_MAX_REPORTED_IDS])
        raise InvalidInput.at(field, f"{text!r} could be several ids: {shown}; send more of its characters")
    return f"{matches[0]}{found[2] or ''}" if matches else text


def _iter_ids_with_prefix(rows: RowsSnapshot, prefix: str) -> Iterator[str]:
    """Yield generated ids that begin with a prefix, some more than once: a version counts as its memory."""
    for count, node_id in enumerate(rows.ids_after(prefix)):
        if not node_id.startswith(prefix) or count == _MAX_COMPARED_IDS:
            return
        base = node_id[:UUID_CHARS]
        if GENERATED_ID.fullmatch(base) and node_id[UUID_CHARS : UUID_CHARS + 1] in ("", "@"):
            yield base
