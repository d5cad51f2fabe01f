"""Merging the observations of imported entities with those in the store and on earlier lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kgserve.graph.compat.mcp_memory_server_api import (
    EntityWithObservations,
    append_observations_to_content,
    decode_entity_observations,
    encode_entity_observations,
)
from kgserve.storage.model.node_edge_fields import MAX_CONTENT_BYTES
from kgserve.storage.model.write_batch import NodeUpsert
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

OBSERVATIONS_TOO_LONG_MESSAGE = (
    f"its observations and those known already exceed {MAX_CONTENT_BYTES:,} bytes; the line was skipped"
)


class ObservationMergeResult(NamedTuple):
    """Puts with complete contents, and the indexes of puts left out because their content would be too long."""

    nodes: list[NodeUpsert]
    too_long: list[int]


def merge_imported_observations(
    rows: RowsSnapshot, nodes: list[NodeUpsert], entities: Mapping[int, EntityWithObservations]
) -> ObservationMergeResult:
    """Extend the puts of entities, given by index, with the observations known already.

    An entity whose line has no type keeps its current type.
    """
    known = rows.nodes({put.id for put in nodes if put.index in entities})
    texts = {name: _GrowingContent(row.content) for name, row in known.items()}
    kept: list[NodeUpsert] = []
    too_long: list[int] = []
    for put in nodes:
        entity = entities.get(put.index)
        is_known = put.id in texts
        if entity is None:
            if put.content is not None:
                texts[put.id] = _GrowingContent(put.content)
        elif not texts.setdefault(put.id, _GrowingContent("")).add(entity.observations):
            too_long.append(put.index)
            continue
        keeps_type = entity is not None and is_known and not entity.entity_type
        kept.append(replace(put, type=None) if keeps_type else put)
    whole = [replace(put, content=texts[put.id].whole) if put.index in entities else put for put in kept]
    return ObservationMergeResult(whole, too_long)


class _GrowingContent:
    """A content that observations are added to, up to the size limit."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._added: list[str] = []
        self._known: set[str] | None = None
        self._bytes = len(content.encode())

    def add(self, observations: Sequence[str]) -> bool:
        """Add the observations that are not known yet. Return False, adding none, if they exceed the limit."""
        if self._known is None:
            self._known = set(decode_entity_observations(self._content))
        new = [observation for observation in observations if observation not in self._known]
        size = self._bytes + len(encode_entity_observations(new).encode()) + bool(new and self._bytes)
        if new and size > MAX_CONTENT_BYTES:
            return False
        self._added += new
        self._known.update(new)
        self._bytes = size
        return True

    @property
    def whole(self) -> str:
        """The content with all added observations."""
        return append_observations_to_content(self._content, self._added)
