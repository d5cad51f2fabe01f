"""Short ids in requests about memories."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kgserve.errors import NotFound
from kgserve.graph.short_ids import is_short_id, resolve_short_id
from kgserve.graph.store_handle import StoreHandle

RequestType = TypeVar("RequestType", bound=msgspec.Struct)
_ID_FIELDS = ("memory_id", "entity_id", "supersedes", "parent", "ids")


def expand_short_memory_ids(graph: StoreHandle, request: RequestType) -> RequestType:
    """Return a request in which each short id of a memory is replaced by the id that it names.

    Raises InvalidInput for a short id that several nodes have.
    """
    given = {name: getattr(request, name, None) or () for name in _ID_FIELDS}
    short = {name: value for name, value in given.items() if any(map(is_short_id, _as_list(value)))}
    if not short:
        return request
    try:
        with graph.lease() as store, store.reading() as rows:
            full = {name: [resolve_short_id(rows, each, name) for each in _as_list(short[name])] for name in short}
    except NotFound:
        return request  # the operation itself reports or creates the missing store
    changes = {name: ids if isinstance(given[name], list) else ids[0] for name, ids in full.items()}
    return msgspec.structs.replace(request, **changes)


def _as_list(value: str | list[str] | tuple[()]) -> list[str]:
    return [value] if isinstance(value, str) else [*value]
