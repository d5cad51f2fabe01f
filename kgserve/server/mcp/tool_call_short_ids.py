"""Short ids in tool calls: answers show them as text, and arguments may contain them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgserve.errors import NotFound
from kgserve.graph.short_ids import GENERATED_ID, is_short_id, resolve_short_id, shorten_ids_in_text
from kgserve.graph.store_handle import StoreHandle
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

_ID_ARGUMENTS = frozenset(
    {
        *("id", "ids", "entity_id", "node_id", "lineage_id", "memory_id", "memory_ids", "entity"),
        *("supersedes", "parent", "under", "run", "into", "start_id"),
        *("from", "to", "from_id", "to_id", "source_id", "target_id", "from_lineage", "to_lineage"),
    }
)
_CONTAINERS = frozenset({"nodes", "edges", "entities", "relations", "queries"})


def expand_short_ids_in_tool_arguments(graph: StoreHandle, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the arguments of a call with full ids; None if they contain no short id.

    Raises InvalidInput for a short id that several nodes have.
    """
    if not _has_short_id(values):
        return None
    try:
        with graph.lease() as store, store.reading() as rows:
            return _resolve(rows, values, "")
    except NotFound:
        return None  # the call itself reports or creates the missing store


def shorten_ids_in_answer(graph: StoreHandle, text: str, verbatim: str = "") -> str:
    """Return the text of an answer with short ids, except in the passage that it quotes verbatim."""
    if not contains_generated_id(text):
        return text
    try:
        with graph.lease() as store, store.reading() as rows:
            quoted = verbatim if GENERATED_ID.search(verbatim) else ""
            parts = text.split(quoted) if quoted else [text]
            return quoted.join(shorten_ids_in_text(rows, part) for part in parts)
    except NotFound:
        return text


def contains_generated_id(text: str) -> bool:
    """Return whether a text contains a generated id, which may be shown shorter."""
    return GENERATED_ID.search(text) is not None


def _has_short_id(values: Mapping[str, Any]) -> bool:
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        if name in _ID_ARGUMENTS and any(
            isinstance(item, str) and is_short_id(_strip_brackets(item)) for item in items
        ):
            return True
        if name in _CONTAINERS and any(isinstance(item, Mapping) and _has_short_id(item) for item in items):
            return True
    return False


def _resolve(rows: RowsSnapshot, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    return {name: _resolve_value(rows, name, value, f"{place}{name}") for name, value in values.items()}


def _resolve_value(rows: RowsSnapshot, name: str, value: Any, place: str) -> Any:
    if isinstance(value, list) and (name in _ID_ARGUMENTS or name in _CONTAINERS):
        return [_resolve_value(rows, name, item, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping) and name in _CONTAINERS:
        return _resolve(rows, value, f"{place}.")
    if name not in _ID_ARGUMENTS or not isinstance(value, str) or rows.has(value):
        return value
    bare = _strip_brackets(value)
    return resolve_short_id(rows, bare, place) if is_short_id(bare) else value


def _strip_brackets(text: str) -> str:
    """Return an id without the brackets in which answers show it."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text
