"""A page of a list: ids from the index that has the fewest, each with whether the filter lets it through."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from kgserve.catalog import statements as sql
from kgserve.catalog.tallies import TAGS, TYPES, count_of
from kgserve.model.listing import MAX_PASSED, Listed, NodeFilter, Place, page_of


def list_ids(reader: sqlite3.Connection, wanted: NodeFilter, place: Place, limit: int) -> Listed[str]:
    """The next ids that fit, in order; it looks at `MAX_PASSED` at most."""
    return page_of(heapq.merge(*_sources(reader, wanted, place.after)), place, limit)


def _sources(reader: sqlite3.Connection, wanted: NodeFilter, after: str) -> Iterator[Iterable[tuple[str, str, int]]]:
    values: dict[str, Any] = {"after": after, "limit": MAX_PASSED + 1, "valid_at": wanted.valid_at}
    values |= {f"tag{number}": tag for number, tag in enumerate(wanted.tags)}
    values |= {f"type{number}": type_ for number, type_ in enumerate(wanted.types)}
    source, names = _fewest(reader, wanted)
    query = sql.passing(source, wanted)
    for name in names:
        yield reader.execute(query, {**values, "source": name})


def _fewest(reader: sqlite3.Connection, wanted: NodeFilter) -> tuple[str, Iterable[str]]:
    """The index to go along, and the entries of it: each type, or the rarest tag."""
    types = set(wanted.types)
    if not wanted.tags:
        return ("type", types) if types else ("all", ("",))
    rarest, count = min(((tag, count_of(reader, TAGS, tag)) for tag in wanted.tags), key=lambda found: found[1])
    if types and sum(count_of(reader, TYPES, type_) for type_ in types) < count:
        return "type", types
    return "tag", (rarest,)
