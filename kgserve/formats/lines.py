"""The lines of an export as records, in order and in bounded batches: what all writers are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, cast

import msgspec

from kgserve.decoding import json_decoder
from kgserve.model.fields import EDGE, NODE, EdgeExtrasInput, NodeExtrasInput, names

EMPTY_OBJECT = msgspec.Raw(b"{}")
TARGET_BYTES = 1 << 20
"""Lines are decoded in batches of about this size, however large the blocks are that they come in."""


class NodeRecord(NodeExtrasInput, tag="node", tag_field="kind", gc=False):
    """A node's line; ``attributes`` is JSON text."""

    id: str
    type: str
    content: str = ""
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None
    created_at: str | None = None
    updated_at: str | None = None


class EdgeRecord(EdgeExtrasInput, tag="edge", tag_field="kind", gc=False):
    """An edge's line; ``attributes`` is JSON text."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float = 1.0
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None


values_of_node: Callable[[NodeRecord], tuple[Any, ...]] = attrgetter(*names(NODE.exchanged))
"""What a line says, in the order of its fields; None and "" for what it leaves out."""
values_of_edge: Callable[[EdgeRecord], tuple[Any, ...]] = attrgetter(*names(EDGE.exchanged))
"""The same for an edge."""


def json_text(raw: msgspec.Raw) -> str:
    """JSON that is kept as it came, as text."""
    return bytes(raw).decode()


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
