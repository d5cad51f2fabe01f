"""Quality of search by method and data set: `python -m bench retrieval [--only SET] [--quick]`.

Conversations are stored as turns with `next` relations, other documents as nodes without relations, except `musique
graph`: passages with the entities that they mention. Files that are missing are skipped.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import kgserve
from bench import locomo
from bench.measure import BenchmarkReport, parser, run_parts
from bench.server import scratch_folder
from kgserve.embedding.model_files import get_embedding_models_folder
from kgserve.graph.graph_reader import CurrentGraph
from kgserve.platform import settings

FOLDER = locomo.FILE.parent
DEPTHS = (5, 10, 20)
NDCG_DEPTH = 10
QUICK_QUERIES = 40
SETTLE_SECONDS = 3_600.0

Method = tuple[Mapping[str, object], bool]
"""Options of a search, and whether turns are ranked as other nodes."""
METHODS: dict[str, Method] = {
    "words": ({"mode": "keyword"}, False),
    "meaning": ({"mode": "semantic"}, False),
    "default, turns as other nodes": ({"late": False}, True),
    "default, late: false": ({"late": False}, False),
    "default": ({}, False),
    "late: true": ({"late": True}, False),
}


class JudgedQuery(NamedTuple):
    """A query, and the ids of the documents that answer it."""

    text: str
    relevant: frozenset[str]


class JudgedStore(NamedTuple):
    """Nodes as id, type and content; relations as source, target and type; and queries."""

    name: str
    nodes: list[tuple[str, str, str]]
    edges: list[tuple[str, str, str]]
    queries: list[JudgedQuery]


class _Entities(msgspec.Struct):
    entities: list[str]


class _Document(msgspec.Struct):
    id: str
    text: str


class _Query(msgspec.Struct):
    q: str
    gold: list[str]


class _Collection(msgspec.Struct):
    docs: list[_Document]
    queries: list[_Query]
    openie: dict[str, _Entities] = {}


def read_conversations(folder: Path) -> list[JudgedStore]:
    """Read one store for each conversation. Raises FileNotFoundError."""
    return [
        JudgedStore(
            found.name,
            [(turn.dia_id, "turn", f"{turn.speaker}: {turn.text}") for turn in found.turns],
            [(one.dia_id, two.dia_id, "next") for one, two in zip(found.turns, found.turns[1:], strict=False)],
            [JudgedQuery(each.question, frozenset(each.evidence)) for each in found.questions],
        )
        for found in locomo.read(folder / locomo.FILE.name)
    ]


def read_collection(folder: Path, name: str, *, entities: bool = False) -> list[JudgedStore]:
    """Read documents with queries, and with ``entities`` those that they mention. Raises FileNotFoundError."""
    found = msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=_Collection)
    nodes = [(document.id, "passage", document.text) for document in found.docs]
    mentions = [(key, f"entity {name.lower()}", name) for key, each in found.openie.items() for name in each.entities]
    if entities:
        nodes += {entity: (entity, "entity", text) for _, entity, text in mentions}.values()
    edges = [*dict.fromkeys((key, entity, "mentions") for key, entity, _ in mentions)] if entities else []
    return [JudgedStore(name, nodes, edges, [JudgedQuery(each.q, frozenset(each.gold)) for each in found.queries])]


SETS: dict[str, Callable[[Path], list[JudgedStore]]] = {
    "locomo": read_conversations,
    "musique": lambda folder: read_collection(folder, "musique100"),
    "musique graph": lambda folder: read_collection(folder, "musique100", entities=True),
    "cranfield": lambda folder: read_collection(folder, "cranfield"),
    "xquad de": lambda folder: read_collection(folder, "xquad_de"),
    "xquad zh": lambda folder: read_collection(folder, "xquad_zh"),
}


def measure(name: str, folder: Path, *, quick: bool) -> BenchmarkReport:
    """Measure all methods on one data set. Raises FileNotFoundError if its file is missing."""
    stores = SETS[name](folder)[: 1 if quick else None]
    report = BenchmarkReport(f"{name}: recall@5/10/20, nDCG@10, milliseconds")
    figures: dict[str, list[tuple[float, ...]]] = {method: [] for method in METHODS}
    models = get_embedding_models_folder(settings.load_settings()).absolute()
    with scratch_folder() as data, kgserve.open(data, models_dir=models) as library:
        for each in stores:
            library.create(each.name, late_interaction="all")
            store = library.store(each.name)
            _fill(store, each)
            for method, how in METHODS.items():
                figures[method] += _ask(store, each.queries[: QUICK_QUERIES if quick else None], how)
    for method, rows in figures.items():
        means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
        report.fact(method, "/".join(f"{mean:.3f}" for mean in means[:-1]) + f"  {means[-1]:.1f} ms")
    return report


def _fill(store: Any, judged: JudgedStore) -> None:
    """Write the nodes and relations, with token vectors for all nodes, and wait for the indexes."""
    encode = msgspec.json.encode
    nodes = ({"kind": "node", "id": key, "type": kind, "content": text} for key, kind, text in judged.nodes)
    edges = ({"kind": "edge", "from": one, "to": two, "relation_type": kind} for one, two, kind in judged.edges)
    store.import_(encode(line) + b"\n" for line in (*nodes, *edges))
    end = time.monotonic() + SETTLE_SECONDS
    while any(index.lag or index.pending for index in store.stats().indexes):
        if time.monotonic() > end:
            raise TimeoutError("the indexes do not catch up")
        time.sleep(0.2)


def _ask(store: Any, queries: Sequence[JudgedQuery], how: Method) -> Iterator[tuple[float, ...]]:
    """Yield recall at each depth, nDCG, and milliseconds of each query."""
    options, as_nodes = how
    with _turns_as_nodes() if as_nodes else nullcontext():
        for query in queries:
            started = time.perf_counter()
            hits = store.search(query.text, limit=max(DEPTHS), **options).hits
            took = (time.perf_counter() - started) * 1000
            found = [hit.node.id for hit in hits]
            shares = (locomo.recall(found, query.relevant, depth) for depth in DEPTHS)
            yield (*shares, _ndcg(found, query.relevant), took)


@contextmanager
def _turns_as_nodes() -> Generator[None]:
    """Rank turns of conversations as other nodes, as before they had a ranking of their own."""
    before = CurrentGraph.turns_around
    CurrentGraph.turns_around = lambda _, __: {}  # type: ignore[method-assign]
    try:
        yield
    finally:
        CurrentGraph.turns_around = before


def _ndcg(found: Sequence[str], relevant: frozenset[str]) -> float:
    gain = sum(1 / math.log2(place + 2) for place, key in enumerate(found[:NDCG_DEPTH]) if key in relevant)
    return gain / sum(1 / math.log2(place + 2) for place in range(min(len(relevant), NDCG_DEPTH)))


PARTS: dict[str, Callable[..., BenchmarkReport]] = {
    name: (lambda folder, *, quick, name=name: measure(name, folder, quick=quick)) for name in SETS
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each data set; those without a file are skipped with a reason."""
    options = parser("retrieval", (__doc__ or "").split("\n", 1)[0], PARTS)
    options.add_argument("--data", type=Path, default=FOLDER, help="folder of the data sets (%(default)s)")
    given = options.parse_args(arguments)
    return run_parts(PARTS, given, given.data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
