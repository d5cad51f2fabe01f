"""Batches of supersessions in a process that is killed while writing them."""

from __future__ import annotations

from pathlib import Path

from kgserve.graph.history_queries import list_entity_versions
from kgserve.graph.url_parameters import EntityHistoryRequest
from kgserve.stores.pool import StorePool
from tests.cli.running import PythonProcess
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

SUBJECTS = 20
RETAIN = """
import sys
from pathlib import Path
from kgserve.memory.retain_forget_recall_models import RetainBatchRequest, RetainTextRequest
from kgserve.memory.retain import retain_text_batch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

with StorePool(settings(Path(sys.argv[1]))) as pool, pool.lease(NAME, create=True) as store:
    for year in range(int(sys.argv[2]), 2900):
        items = [
            RetainTextRequest(content=f"{year}", entity_id=f"m{each}", valid_from=f"{year + part}-01-01T00:00:00Z")
            for part in (0, 100)
            for each in range(int(sys.argv[3]))
        ]
        waiting = [retain_text_batch(graph_of(pool, NAME), RetainBatchRequest(items=items))]
        print(year, flush=True)
        for each in waiting:
            each.result(60)
"""


def kill_in_batch(data: Path, first: int, batches: int) -> int:
    """Retain batches in a process, and kill it within one; return the last year that it started."""
    with PythonProcess(RETAIN, str(data), str(first), str(SUBJECTS)) as process:
        years = (int(line) for line in process.stdout if line.strip().isdigit())
        last = next(year for year in years if year >= first + batches)
        process.kill()
        # It may have completed more before it was killed.
        return max([last, *years])


def test_killed_supersede_batch_is_atomic(tmp_path: Path) -> None:
    first = 2000
    for batches in (1, 2, 5, 8):
        last = kill_in_batch(tmp_path, first, batches)
        with StorePool(settings(tmp_path)) as pool:
            graph = graph_of(pool, NAME)
            chains = [
                list_entity_versions(graph, EntityHistoryRequest(entity_id=f"m{at}")).versions for at in range(SUBJECTS)
            ]
        told = [[(each.content, each.valid_from, each.valid_to) for each in chain] for chain in chains]
        # Each batch is in all chains or in none.
        assert told == [told[0]] * SUBJECTS
        assert [end for _, _, end in told[0]] == [*(start for _, start, _ in told[0][1:]), None]
        starts = {start[:4] for _, start, _ in told[0] if start is not None}
        done = max(int(each) for each in starts) - 100
        assert starts == {str(year + part) for year in range(2000, done + 1) for part in (0, 100)}
        assert done in {last - 1, last}
        first = done + 1
