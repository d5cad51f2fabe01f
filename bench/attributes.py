"""What filters by attribute cost: `python -m bench.attributes` (`--nodes` for more or fewer), within one process.

Searches and lists beside the same without a filter and by type, and what the index of attributes costs whoever writes,
beside a catalog that nobody has asked for one. Processor time, medians of what alternates.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.measure import Report, rounded
from kgserve.embedding.embedder import HashingEmbedder
from kgserve.graph.handle import Graph, Graphs
from kgserve.graph.queries import NodesQuery
from kgserve.graph.reading import count, list_nodes
from kgserve.graph.requests import CountRequest, SearchMode, SearchRequest
from kgserve.graph.search.search import search
from kgserve.platform.settings import Settings
from kgserve.projections.catalog.catalog import Catalog
from kgserve.projections.indexer import Indexer
from kgserve.storage.model.attributes import conditions
from kgserve.storage.model.batch import NodePut, WriteBatch
from kgserve.storage.model.change import NetChange
from kgserve.storage.model.filters import NodeFilter, PagePosition
from kgserve.storage.model.rows import NodeRow
from kgserve.stores.pool import StorePool

NODES, ROWS = 20_000, 5_000
STORE = "bench"
CALLS = 30
AT_ONCE = 5_000
TOPICS = 20
WORDS = 2_000
PATIENCE = 3_600.0
# Parts of all nodes that have an attribute; "far" has one half, of which none is about the topic that is asked for.
FILTERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("half of all", {"half": True}),
    ("one in ten", {"tenth": 3}),
    ("one in a hundred", {"hundredth": 3}),
    ("a single one", {"number": 77}),
    ("half and one in ten", {"half": True, "tenth": 4}),
    ("half, none of them near", {"far": True}),
)
MODES: tuple[SearchMode, ...] = ("keyword", "semantic", "hybrid")


def nodes(number_of: int) -> Iterator[NodePut]:
    """Nodes about one of twenty topics, with attributes that more or fewer of them have."""
    chance = random.Random(5)
    for number in range(number_of):
        topic = number % TOPICS
        words = [f"topic{topic}"] * 4 + [f"w{chance.randrange(WORDS)}" for _ in range(12)]
        own = {"far": topic >= TOPICS // 2, "half": chance.random() < 0.5, "hundredth": chance.randrange(100)}
        own |= {"number": number, "tenth": chance.randrange(10)}
        text = json.dumps(own, separators=(",", ":"))
        yield NodePut(0, f"n{number:07}", f"t{number % 2}", " ".join(words), text)


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=NODES, help=f"nodes of the store ({NODES:,})")
    number: int = options.parse_args().nodes
    report = Report(f"attributes: filters over {number:,} nodes, in process")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        indexer = stack.enter_context(closing(Indexer(HashingEmbedder())))
        pool = stack.enter_context(StorePool(Settings(data_dir=Path(folder), check_interval=0)))
        pool.companions.append(indexer)
        graph = Graphs(pool, indexer).graph(STORE)
        _fill(graph, indexer, [*nodes(number)])
        report.fact("a list, and the catalog with it", f"{_clock(lambda: _listed(graph, None)):,.0f} ms")
        report.fact("the first attribute, which makes the index", f"{_clock(lambda: _counted(graph)):,.0f} ms")
        _searches(report, graph)
        _lists(report, graph)
        _following(report, Path(folder))
    report.show()


def _fill(graph: Graph, indexer: Indexer, puts: list[NodePut]) -> None:
    with graph.lease(create=True) as store:
        for first in range(0, len(puts), AT_ONCE):
            store.submit(WriteBatch(nodes=puts[first : first + AT_ONCE])).result()
        indexer.of(store).wait(store.state.sequence, PATIENCE)


def _searches(report: Report, graph: Graph) -> None:
    for mode in MODES:
        found = _medians(
            {
                "none": lambda mode=mode: _found(graph, mode),
                "by type": lambda mode=mode: _found(graph, mode, types=["t0"]),
                **{
                    what: lambda mode=mode, wanted=wanted: _found(graph, mode, attributes=wanted)
                    for what, wanted in FILTERS
                },
            }
        )
        _beside(report, f"{mode} search", found)


def _lists(report: Report, graph: Graph) -> None:
    _beside(
        report,
        "100 nodes of a list",
        _medians(
            {
                "none": lambda: _listed(graph, None),
                **{what: lambda wanted=wanted: _listed(graph, json.dumps(wanted)) for what, wanted in FILTERS},
            }
        ),
    )


def _following(report: Report, folder: Path) -> None:
    """Groups of writes into a catalog that has the index and into one that has not, by turns."""
    bare, indexed = Catalog(folder / "bare.sqlite"), Catalog(folder / "indexed.sqlite")
    rows = [NodeRow(p.id, p.type or "", "", p.attributes or "{}", 1, 1, 0, 0) for p in nodes(ROWS)]
    for each in (bare, indexed):
        each.rebuild(rows, [], 0)
    indexed.index_attributes(rows)
    for size in (1_000, 5):
        taken: dict[Catalog, list[float]] = {bare: [], indexed: []}
        for turn in range(CALLS):
            net = NetChange()
            some = random.Random(turn).sample(rows, size)
            changed = f'{{"far":true,"half":false,"hundredth":{turn},"number":1,"tenth":2}}'
            net.nodes_updated = {row.id: NodeRow(row.id, row.type, "", changed, 2, 2, 0, 0) for row in some}
            for each in (bare, indexed):
                taken[each].append(_clock(lambda each=each, net=net, turn=turn: each.apply(net, turn + 1)))
        with_index, without = (statistics.median(taken[each]) for each in (indexed, bare))
        _compare(report, f"{size:,} updates into the catalog, with the index", with_index, without)
    found = indexed.listed(NodeFilter(attributes=conditions({"tenth": 2})), PagePosition(), 10)
    report.notes.append(f"the index was used: {len(found.items)} found")
    for each in (bare, indexed):
        each.close()


def _clock(call: Callable[[], object]) -> float:
    """Milliseconds of processor time that one call takes."""
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1000


def _found(graph: Graph, mode: SearchMode, **only: Any) -> None:
    search(graph, SearchRequest(query="topic3 w12 w77", mode=mode, **only))


def _listed(graph: Graph, attributes: str | None) -> None:
    list_nodes(graph, NodesQuery(attributes=attributes, type=[] if attributes else ["t0", "t1"]))


def _counted(graph: Graph) -> None:
    count(graph, CountRequest(attributes={"number": 1}))


def _medians(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {what: [] for what in calls}
    for _ in range(CALLS):
        for what, call in calls.items():
            taken[what].append(_clock(call))
    return {what: statistics.median(each) for what, each in taken.items()}


def _beside(report: Report, what: str, found: dict[str, float]) -> None:
    plain = found.pop("none")
    for only, milliseconds in found.items():
        _compare(report, f"{what}: {only}", milliseconds, plain)


def _compare(report: Report, what: str, milliseconds: float, baseline: float) -> None:
    report.compare(what, f"{rounded(milliseconds)} ms", f"{rounded(baseline)} ms", milliseconds / baseline)


if __name__ == "__main__":
    main()
