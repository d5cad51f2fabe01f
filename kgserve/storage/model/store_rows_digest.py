"""Order-independent digest of a store's rows: the sum of the rows' 128-bit hashes, modulo 2**128.

A write changes it by the difference of the changed rows, so its cost does not grow with the store. Reading all rows in
any order gives the same number. It detects damage and defects, not forgery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Self

import msgspec
import xxhash

from kgserve.storage.model.change_set import CrossStoreLinksCountAndDigest, StoreState
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeEdgeColumnSet, NodeExtras
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow, EdgeRow, NodeRow

_MODULUS = 1 << 128
_encode = msgspec.msgpack.Encoder().encode
_hash = xxhash.xxh3_128_intdigest
_SHORTER_ARRAY = [bytes((max(first - 1, 0),)) for first in range(256)]
"""First byte of a short MessagePack array without its last item, by the array's own first byte.

Rows without extras lose their final nil and so keep their older hash.
"""


class SerializedStoreState(msgspec.Struct, frozen=True):
    """`StoreState` as it is written and sent; the 128-bit digest is a string."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int

    @classmethod
    def of(cls, state: StoreState, **beside: Any) -> Self:
        """Create the serializable form of a state, with values for the subclass's other fields."""
        return cls(
            state.sequence, state.time, format_store_rows_digest(state.digest), state.nodes, state.edges, **beside
        )

    @property
    def state(self) -> StoreState:
        """Decoded state. Raises ValueError for an invalid digest."""
        return StoreState(self.sequence, self.time, parse_store_rows_digest(self.digest), self.nodes, self.edges)


def row_hash(row: NodeRow | EdgeRow) -> int:
    """Return the 128-bit hash of one row. Nodes and edges differ in field types, so their hashes do not collide."""
    if row.extras is None:
        encoded = _encode(row)
        return _hash(_SHORTER_ARRAY[encoded[0]] + encoded[1:-1])
    return _hash(
        _encode(row if row.extras.width is NodeEdgeColumnSet.MEMORY else _narrow(msgspec.structs.astuple(row)))
    )


def rows_digest(rows: Iterable[tuple[Any, ...]]) -> int:
    """Return the digest of rows given as tuples in the order of the Structs' fields; extras of None may be omitted."""
    return sum(map(_hash, map(_encode, map(_narrow, rows)))) % _MODULUS


def _narrow(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row without unused newer fields, so that older digests stay valid."""
    extras = row[-1]
    if extras is None:
        return row[:-1]
    if not isinstance(extras, NodeExtras | EdgeExtras) or extras.width is NodeEdgeColumnSet.MEMORY:
        return row
    return (*row[:-1], extras.narrow)


def update_digest_for_row_changes(
    digest: int, added: Iterable[NodeRow | EdgeRow], removed: Iterable[NodeRow | EdgeRow]
) -> int:
    """Return the digest after rows were added and removed; a changed row is one of each."""
    return (digest + sum(map(row_hash, added)) - sum(map(row_hash, removed))) % _MODULUS


def add_packed_rows_to_digest(digest: int, packed: Iterable[bytes]) -> int:
    """Return the digest of rows after more were added, given as MessagePack and without extras."""
    return (digest + sum(map(_hash, packed))) % _MODULUS


def hash_cross_store_link(row: CrossStoreLinkRow) -> int:
    """Return the 128-bit hash of one cross-store link."""
    return _hash(_encode((row.store, _narrow(msgspec.structs.astuple(row.edge)))))


def update_digest_for_link_changes(
    state: CrossStoreLinksCountAndDigest, added: Collection[CrossStoreLinkRow], removed: Collection[CrossStoreLinkRow]
) -> CrossStoreLinksCountAndDigest:
    """Return count and digest of cross-store links after some were added and removed; a changed link is both."""
    digest = (
        int.from_bytes(state.digest) + sum(map(hash_cross_store_link, added)) - sum(map(hash_cross_store_link, removed))
    )
    return CrossStoreLinksCountAndDigest(state.count + len(added) - len(removed), (digest % _MODULUS).to_bytes(16))


def checksum_63bit(content: bytes) -> int:
    """Return a checksum of 63 bits, which fits a signed integer of SQLite."""
    return xxhash.xxh3_64_intdigest(content) >> 1


def digest_and_count_rows(nodes: Iterable[NodeRow], edges: Iterable[EdgeRow]) -> tuple[int, int, int]:
    """Return the digest of all rows of a store, and the numbers of its nodes and edges."""
    digest, counts = 0, [0, 0]
    for place, rows in enumerate((nodes, edges)):
        for row in rows:
            digest += row_hash(row)
            counts[place] += 1
    return digest % _MODULUS, counts[0], counts[1]


def format_store_rows_digest(digest: int) -> str:
    """Return a digest as 32 hexadecimal digits."""
    return f"{digest:032x}"


def parse_store_rows_digest(text: str) -> int:
    """Parse the digest of a store's rows from the hexadecimal digits of `format_store_rows_digest`."""
    return int(text, 16)
