"""An order-independent digest of a store's rows: the sum of the rows' 128-bit hashes, modulo 2**128.

A write changes it by the difference of the rows it changes, so keeping it costs nothing that grows with the store;
reading all rows in any order gives the same number. It finds damage and defects; it is no protection against forgery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Self

import msgspec
import xxhash

from kgserve.storage.model.change import LinksState, StoreState
from kgserve.storage.model.fields import ColumnSet, EdgeExtras, NodeExtras
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow

_MODULUS = 1 << 128
_encode = msgspec.msgpack.Encoder().encode
_hash = xxhash.xxh3_128_intdigest


class Stated(msgspec.Struct, frozen=True):
    """A `StoreState` as it is written and sent, where a 128-bit digest does not fit a number."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int

    @classmethod
    def of(cls, state: StoreState, **beside: Any) -> Self:
        """What states a state, with the other fields ``beside`` it."""
        return cls(state.sequence, state.time, to_text(state.digest), state.nodes, state.edges, **beside)

    @property
    def state(self) -> StoreState:
        """The state that is meant. Raises ValueError for a digest that is none."""
        return StoreState(self.sequence, self.time, from_text(self.digest), self.nodes, self.edges)


def row_hash(row: NodeRow | EdgeRow) -> int:
    """128-bit hash of one row; the fields of nodes and edges differ in kind, so that they never meet."""
    if row.extras is None:
        return _hash(_without_last(_encode(row)))
    return _hash(_encode(row if row.extras.width is ColumnSet.MEMORY else _narrow(msgspec.structs.astuple(row))))


def rows_digest(rows: Iterable[tuple[Any, ...]]) -> int:
    """Digest of rows given as tuples in the order of the Structs' fields; extras that are None may be left out."""
    return sum(map(_hash, map(_encode, map(_narrow, rows)))) % _MODULUS


def _narrow(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row without the fields that it has no use for: it counts as it did before there were any."""
    extras = row[-1]
    if extras is None:
        return row[:-1]
    if not isinstance(extras, NodeExtras | EdgeExtras) or extras.width is ColumnSet.MEMORY:
        return row
    return (*row[:-1], extras.narrow)


def _without_last(encoded: bytes) -> bytes:
    """A short array that ends in nil without it: rows without extras count as they did before there were any."""
    return bytes((encoded[0] - 1,)) + encoded[1:-1]


def shift(digest: int, added: Iterable[NodeRow | EdgeRow], removed: Iterable[NodeRow | EdgeRow]) -> int:
    """The digest after rows were added and removed; a changed row is one of each."""
    return (digest + sum(map(row_hash, added)) - sum(map(row_hash, removed))) % _MODULUS


def link_hash(row: LinkRow) -> int:
    """128-bit hash of one link."""
    return _hash(_encode((row.store, _narrow(msgspec.structs.astuple(row.edge)))))


def shift_links(state: LinksState, added: Collection[LinkRow], removed: Collection[LinkRow]) -> LinksState:
    """What the links of a store come to after some were added and removed; a changed one is one of each."""
    digest = int.from_bytes(state.digest) + sum(map(link_hash, added)) - sum(map(link_hash, removed))
    return LinksState(state.count + len(added) - len(removed), (digest % _MODULUS).to_bytes(16))


def checksum(content: bytes) -> int:
    """A checksum of what SQLite keeps, whose integers are signed: 63 bits."""
    return xxhash.xxh3_64_intdigest(content) >> 1


def measure(nodes: Iterable[NodeRow], edges: Iterable[EdgeRow]) -> tuple[int, int, int]:
    """Digest, nodes and edges of all rows of a store."""
    digest, counts = 0, [0, 0]
    for place, rows in enumerate((nodes, edges)):
        for row in rows:
            digest += row_hash(row)
            counts[place] += 1
    return digest % _MODULUS, counts[0], counts[1]


def to_text(digest: int) -> str:
    """32 hexadecimal digits."""
    return f"{digest:032x}"


def from_text(text: str) -> int:
    """The inverse of `to_text`."""
    return int(text, 16)
