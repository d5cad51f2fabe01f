"""The lines of an export as records, in order and in bounded batches: what all writers are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import msgspec

from kgserve.decoding import json_decoder

EMPTY_OBJECT = msgspec.Raw(b"{}")
TARGET_BYTES = 1 << 20
"""Lines are decoded in batches of about this size, however large the blocks are that they come in."""


class NodeRecord(msgspec.Struct, tag="node", tag_field="kind", gc=False):
    """A node's line; ``attributes`` is JSON text."""

    id: str
    type: str
    content: str = ""
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None
    created_at: str | None = None
    updated_at: str | None = None
    summary: str = ""
    tags: list[str] = []
    freshness_at: str | None = None
    created_by: str = ""
    valid_from: str | None = None
    valid_to: str | None = None


class EdgeRecord(msgspec.Struct, tag="edge", tag_field="kind", gc=False):
    """An edge's line; ``attributes`` is JSON text."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float = 1.0
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None
    ordinal: int | None = None
    created_by: str = ""
    valid_from: str | None = None
    valid_to: str | None = None


_decode = json_decoder(NodeRecord | EdgeRecord).decode_lines


class Lines:
    """An export taken apart: first `nodes`, then `edges`, each once and to its end. Blocks may end anywhere."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._batches = (_decode(text) for text in _whole(blocks))
        self._first_edges: list[EdgeRecord] = []
        self.count = 0

    def nodes(self) -> Iterator[list[NodeRecord]]:
        """Batches of nodes."""
        for batch in self._batches:
            self.count += len(batch)
            nodes = [record for record in batch if isinstance(record, NodeRecord)]
            if nodes:
                yield nodes
            if len(nodes) < len(batch):
                self._first_edges = [record for record in batch if isinstance(record, EdgeRecord)]
                return

    def edges(self) -> Iterator[list[EdgeRecord]]:
        """Batches of edges, after the nodes."""
        if self._first_edges:
            yield self._first_edges
        for batch in self._batches:
            self.count += len(batch)
            yield cast("list[EdgeRecord]", batch)


def _whole(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes cut at ends of lines."""
    rest = b""
    for block in blocks:
        for start in range(0, len(block), TARGET_BYTES):
            piece = rest + block[start : start + TARGET_BYTES]
            end = piece.rfind(b"\n") + 1
            if end:
                yield piece[:end]
            rest = piece[end:]
    if rest:
        yield rest
