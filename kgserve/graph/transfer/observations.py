"""Adding the observations of imported entities to what the store and earlier lines say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kgserve.graph.compat.entities_api import Entity, content_of, observations_of, with_observations
from kgserve.storage.model.batch import NodePut
from kgserve.storage.model.fields import MAX_CONTENT_BYTES
from kgserve.storage.rows.snapshot import Rows

OBSERVATIONS_TOO_LONG = (
    f"its observations and those known already exceed {MAX_CONTENT_BYTES:,} bytes; the line was left out"
)


class Additions(NamedTuple):
    """Puts with whole contents, and the index of each put that was left out because its content would be too long."""

    nodes: list[NodePut]
    too_long: list[int]


def with_known_observations(rows: Rows, nodes: list[NodePut], entities: Mapping[int, Entity]) -> Additions:
    """Extend the puts of entities, given by their index, by the observations that are known already.

    An entity whose line has no type keeps the type that it has.
    """
    known = rows.nodes({put.id for put in nodes if put.index in entities})
    texts = {name: _Text(row.content) for name, row in known.items()}
    kept: list[NodePut] = []
    too_long: list[int] = []
    for put in nodes:
        entity = entities.get(put.index)
        is_known = put.id in texts
        if entity is None:
            if put.content is not None:
                texts[put.id] = _Text(put.content)
        elif not texts.setdefault(put.id, _Text("")).add(entity.observations):
            too_long.append(put.index)
            continue
        keeps_type = entity is not None and is_known and not entity.entity_type
        kept.append(replace(put, type=None) if keeps_type else put)
    whole = [replace(put, content=texts[put.id].whole) if put.index in entities else put for put in kept]
    return Additions(whole, too_long)


class _Text:
    """A content that grows by observations, up to what a content may hold."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._added: list[str] = []
        self._known: set[str] | None = None
        self._bytes = len(content.encode())

    def add(self, observations: Sequence[str]) -> bool:
        """Take in those that are not known yet; false, and nothing is taken in, if there is no room for them."""
        if self._known is None:
            self._known = set(observations_of(self._content))
        new = [observation for observation in observations if observation not in self._known]
        size = self._bytes + len(content_of(new).encode()) + bool(new and self._bytes)
        if new and size > MAX_CONTENT_BYTES:
            return False
        self._added += new
        self._known.update(new)
        self._bytes = size
        return True

    @property
    def whole(self) -> str:
        """The content with all that was added."""
        return with_observations(self._content, self._added)
