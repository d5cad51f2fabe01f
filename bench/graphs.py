"""Generated graphs, as records of the exchange format: a dense one of a known shape, and one of any size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

SEED = 20_150_726
# The shape of FB15k-237's training part: https://doi.org/10.18653/v1/W15-4007
DENSE_NODES = 14_505
DENSE_EDGES = 272_115
DENSE_TYPES = 237
# These exponents give maximum degrees of about 1,500 out and 7,500 in, as in FB15k-237.
_OUT, _IN, _TYPE = 0.55, 0.8, 0.75
_WORDS = "river city film actor award team season country language music party school year person place record"

GROWN_DEGREE = 4
GROWN_ROWS = 1 + GROWN_DEGREE
"""Rows per node of a grown graph: the node and its edges."""

Record = dict[str, Any]


class Rows(NamedTuple):
    """Records of an exchange file."""

    nodes: list[Record]
    edges: list[Record]


def read(path: Path) -> Rows:
    """Decode an exchange file."""
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        records = [decode(line) for line in file]
    return Rows([r for r in records if r["kind"] == "node"], [r for r in records if r["kind"] == "edge"])


def file_blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in blocks of 256 KiB."""
    with path.open("rb") as file:
        while block := file.read(1 << 18):
            yield block


def dense_graph_records(seed: int = SEED) -> Iterator[Record]:
    """Yield nodes, then edges, all distinct, with heavy-tailed degrees and types and weights from 0 to 1."""
    choice, words = random.Random(seed), _WORDS.split()
    ids = [f"e{number:05d}" for number in range(DENSE_NODES)]
    for number, id_ in enumerate(ids):
        content = f"Entity {number}: " + " ".join(choice.choices(words, k=10))
        yield _node(id_, choice.choice(words), content, number)
    seen: set[tuple[str, str, str]] = set()
    sources, targets = choice.sample(ids, DENSE_NODES), choice.sample(ids, DENSE_NODES)
    kinds = [f"relation_{number:03d}" for number in range(DENSE_TYPES)]
    tails = [_tail(DENSE_NODES, _OUT), _tail(DENSE_NODES, _IN), _tail(DENSE_TYPES, _TYPE)]
    while len(seen) < DENSE_EDGES:
        # Each node is a source once, so that none is isolated.
        source = ids[len(seen)] if len(seen) < DENSE_NODES else choice.choices(sources, cum_weights=tails[0])[0]
        target = choice.choices(targets, cum_weights=tails[1])[0]
        key = (source, target, choice.choices(kinds, cum_weights=tails[2])[0])
        if source != target and key not in seen:
            seen.add(key)
            yield _edge(*key) | {"weight": round(choice.random(), 3)}


def grown_graph_records(first: int, last: int, seed: int = SEED) -> Iterator[Record]:
    """Yield nodes `first` to `last` - 1 of a growing graph, then their edges to earlier nodes."""
    for number in range(first, last):
        content = f"Number {number}, one of many that were written down in turn."
        yield _node(grown_id(number), "number", content, number)
    for number in range(max(first, GROWN_DEGREE), last):
        for target in random.Random(seed * number).sample(range(number), GROWN_DEGREE):
            yield _edge(grown_id(number), grown_id(target), "follows") | {"weight": 1.0}


def grown_id(number: int) -> str:
    """Return the id of a node of a grown graph."""
    return f"g{number:08d}"


def blocks(records: Iterable[Record], size: int = 2_000) -> Iterator[bytes]:
    """Yield records as lines, in blocks of ``size``."""
    encode, left = msgspec.json.Encoder().encode, iter(records)
    while some := [*islice(left, size)]:
        yield b"".join(encode(record) + b"\n" for record in some)


def write(records: Iterable[Record], path: Path) -> Path:
    """Write records to an exchange file."""
    with path.open("wb") as file:
        file.writelines(blocks(records))
    return path


def subgraph_rows(rows: Rows, nodes: int) -> Rows:
    """Return the first ``nodes`` nodes and the edges between them."""
    known = {node["id"] for node in rows.nodes[:nodes]}
    return Rows(rows.nodes[:nodes], [edge for edge in rows.edges if edge["from"] in known and edge["to"] in known])


def _node(id_: str, kind: str, content: str, number: int) -> Record:
    return {"kind": "node", "id": id_, "type": kind, "content": content, "attributes": {"n": number}}


def _edge(source: str, target: str, relation_type: str) -> Record:
    return {"kind": "edge", "from": source, "to": target, "relation_type": relation_type}


def _tail(count: int, exponent: float) -> list[float]:
    """Return cumulative weights that fall as a power of the rank."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))
