"""Columnar attributes of an index's entities, for filters.

A filter becomes a mask over the entities' labels, without a loop over entities. Attributes that all entities have are
full columns; for rare attributes only the labels that have them are stored. Memory per entity: 13 bytes, plus 20 for
its validity, 12 for its freshness, 17 if it is a memory and 4 for each tag. After the first id prefix filter, add the
length of the id and 9 bytes.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgserve.projections.indexed_text import EntityFilterableFields, EntitySearchFilter, MemoryFilterableFields

_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_NO_LAYER = -1
_ID_TERMINATOR = b"\xff"  # never occurs in UTF-8

Mask = NDArray[np.bool_]
LabelArray = NDArray[np.int32]
Kind = TypeVar("Kind", bound=np.generic)


class GrowableColumn(Generic[Kind]):
    """Growable array of numbers; values are appended only."""

    def __init__(self, kind: type[Kind]) -> None:
        self._buffer: NDArray[Kind] = np.empty(0, kind)
        self._count = 0

    @property
    def values(self) -> NDArray[Kind]:
        """The values, as a view that is valid until the next `extend`."""
        return self._buffer[: self._count]

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append values."""
        end = self._count + len(values)
        if end > len(self._buffer):
            buffer = np.empty(end + end // 4, self._buffer.dtype)
            buffer[: self._count] = self.values
            self._buffer = buffer
        self._buffer[self._count : end] = values
        self._count = end


class EntityFilterColumns:
    """Type, first commit and facets of each entity, by label. Labels are assigned in order, from 0."""

    def __init__(self) -> None:
        self._live = GrowableColumn(np.bool_)
        self._since = GrowableColumn(np.int64)
        self._type = GrowableColumn(np.int32)
        self._codes: dict[str, int] = {}
        # Few entities have a validity or a freshness, so these are sparse: labels and, in parallel columns, times.
        self._with_validity, self._valid_from, self._valid_to = (
            GrowableColumn(np.int32),
            GrowableColumn(np.int64),
            GrowableColumn(np.int64),
        )
        self._with_freshness, self._freshness_at = GrowableColumn(np.int32), GrowableColumn(np.int64)
        self._memories = _MemoryLabels()
        self._tagged: dict[str, array[int]] = {}
        self._id_prefixes = _IdPrefixes()

    @property
    def live(self) -> Mask:
        """Mask of the labels in use; must not be retained or changed."""
        return self._live.values

    @property
    def changed_since(self) -> NDArray[np.int64]:
        """The commit since which each label has had its text; must not be retained or changed."""
        return self._since.values

    @property
    def types(self) -> list[str]:
        """The type of each label."""
        names = list(self._codes)
        return [names[code] for code in self._type.values.tolist()]

    def add(
        self,
        types: Sequence[str],
        since: Sequence[int] | NDArray[np.int64],
        facets: Mapping[int, EntityFilterableFields],
    ) -> None:
        """Append entities with the next labels; ``facets`` is keyed by label."""
        self._live.extend(np.ones(len(types), np.bool_))
        self._since.extend(since)
        self._type.extend([self._codes.setdefault(each, len(self._codes)) for each in types])
        for label, found in facets.items():
            self._add_facets(label, found)

    def drop(self, label: int) -> None:
        """Mark a label as unused."""
        self._live.values[label] = False

    def facets(self) -> dict[int, EntityFilterableFields]:
        """Return the facets of the labels in use that have any, tags sorted."""
        tags: dict[int, list[str]] = {}
        for tag in sorted(self._tagged):
            for label in self._tagged[tag]:
                tags.setdefault(label, []).append(tag)
        bounds = zip(self._valid_from.values.tolist(), self._valid_to.values.tolist(), strict=True)
        validity = dict(zip(self._with_validity.values.tolist(), bounds, strict=True))
        freshness = dict(zip(self._with_freshness.values.tolist(), self._freshness_at.values.tolist(), strict=True))
        marks = self._memories.marks()
        return {
            label: EntityFilterableFields(
                tuple(tags.get(label, ())), freshness.get(label), *_bounds(validity.get(label)), marks.get(label)
            )
            for label in sorted(tags.keys() | validity.keys() | freshness.keys() | marks.keys())
            if self.live[label]
        }

    def passing(self, only: EntitySearchFilter, ids: Sequence[str]) -> Mask:
        """Return a new mask of the labels in use that pass a filter; ``ids`` are indexed by label."""
        passing = self.live.copy()
        if only.as_of is not None:
            passing &= self.changed_since <= only.as_of
        if only.valid_at is not None:
            late = (self._valid_from.values > only.valid_at) | (self._valid_to.values <= only.valid_at)
            passing[self._with_validity.values[late]] = False
        if only.fresh_at is not None:
            passing[self._with_freshness.values[self._freshness_at.values <= only.fresh_at]] = False
        if only.types is not None:
            passing &= self._mask_of_types(only.types)
        if only.wants_memories:
            passing &= build_mask_from_index_labels(self._memories.passing(only), len(passing))
        for tag in only.tags:
            passing &= build_mask_from_index_labels(np.array(self._tagged.get(tag, ()), np.int32), len(passing))
        if only.id_prefix:
            passing &= build_mask_from_index_labels(self._id_prefixes.labels(only.id_prefix, ids), len(passing))
        return passing

    def _mask_of_types(self, types: frozenset[str]) -> Mask:
        chosen = [self._codes[each] for each in types if each in self._codes]
        if len(chosen) == 1:
            return self._type.values == chosen[0]
        wanted = np.zeros(len(self._codes), np.bool_)
        wanted[chosen] = True
        return wanted[self._type.values]

    def _add_facets(self, label: int, found: EntityFilterableFields) -> None:
        if found.valid_from is not None or found.valid_to is not None:
            self._with_validity.extend([label])
            self._valid_from.extend([_EARLIEST if found.valid_from is None else found.valid_from])
            self._valid_to.extend([_LATEST if found.valid_to is None else found.valid_to])
        if found.freshness_at is not None:
            self._with_freshness.extend([label])
            self._freshness_at.extend([found.freshness_at])
        if found.marks is not None:
            self._memories.add(label, found.marks)
        for tag in frozenset(found.tags):
            self._tagged.setdefault(tag, array("i")).append(label)


class _MemoryLabels:
    """Labels of memories, with the columns that only memories have."""

    def __init__(self) -> None:
        self._labels, self._created = GrowableColumn(np.int32), GrowableColumn(np.int64)
        self._layer, self._source = GrowableColumn(np.int8), GrowableColumn(np.int32)
        self._codes: dict[str, int] = {}

    def add(self, label: int, marks: MemoryFilterableFields) -> None:
        """Append a memory; labels must be ascending."""
        self._labels.extend([label])
        self._created.extend([marks.created])
        self._layer.extend([_NO_LAYER if marks.layer is None else marks.layer])
        self._source.extend([self._codes.setdefault(marks.source, len(self._codes))])

    def marks(self) -> dict[int, MemoryFilterableFields]:
        """Return the marks of each label."""
        names = list(self._codes)
        columns = (self._created, self._layer, self._source)
        rows = zip(*(column.values.tolist() for column in columns), strict=True)
        marks = (
            MemoryFilterableFields(created, None if layer == _NO_LAYER else layer, names[code])
            for created, layer, code in rows
        )
        return dict(zip(self._labels.values.tolist(), marks, strict=True))

    def passing(self, only: EntitySearchFilter) -> LabelArray:
        """Return the labels that pass a filter."""
        passes = np.ones(len(self._labels.values), np.bool_)
        if only.layers is not None:
            passes &= np.isin(self._layer.values, sorted(only.layers))
        if only.sources is not None:
            passes &= np.isin(self._source.values, [self._codes[s] for s in only.sources if s in self._codes])
        if only.created is not None:
            created, (first, end) = self._created.values, only.created
            passes &= (first <= created) & (created < end)
        return self._labels.values[passes]


class _IdPrefixes:
    """Concatenated bytes of all ids, for vectorized prefix matching."""

    def __init__(self) -> None:
        # Concurrent searches append ids that were added since the last search.
        self._lock = threading.Lock()
        self._bytes = GrowableColumn(np.uint8)
        self._starts = GrowableColumn(np.int64)

    def labels(self, prefix: str, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return the labels of the ids that begin with a prefix. Deleted ids may be included.

        ``ids`` must be those of the previous call, possibly with more appended.
        """
        with self._lock:
            self._append_new(ids)
        found = np.arange(len(self._starts.values))
        for offset, byte in enumerate(prefix.encode("utf-8", "surrogatepass")):
            # A shorter id differs at its terminator, so no read goes past the last id.
            found = found[self._bytes.values[self._starts.values[found] + offset] == byte]
        return found

    def _append_new(self, ids: Sequence[str]) -> None:
        known = len(self._starts.values)
        if known == len(ids):
            return
        encoded = [each.encode("utf-8", "surrogatepass") + _ID_TERMINATOR for each in ids[known:]]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._starts.extend(len(self._bytes.values) + np.cumsum(lengths) - lengths)
        self._bytes.extend(np.frombuffer(b"".join(encoded), np.uint8))


def build_mask_from_index_labels(labels: Sequence[int] | NDArray[Any], count: int) -> Mask:
    """Return a mask of length ``count`` that is true at the given labels."""
    mask = np.zeros(count, np.bool_)
    mask[np.asarray(labels, np.intp)] = True
    return mask


def _bounds(found: tuple[int, int] | None) -> tuple[int | None, int | None]:
    first, last = found or (_EARLIEST, _LATEST)
    return None if first == _EARLIEST else first, None if last == _LATEST else last
