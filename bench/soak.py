"""A store under random treatment for long: `python -m bench.soak [--minutes N] [--seed S]`.

Writes of every kind, alone and in groups, walks, restarts with and without damaged files, crashes with writes under way
and compactions beside writers and readers, each done to a store and to two dicts, with all contents compared after
every restart and compaction. Small stores take turns with larger ones. Exit code 1 on a violation; the store's files
are then kept.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from kgserve.storage.model.batch import EdgePut, NodePut, WriteBatch
from tests.property.batches import Batches
from tests.property.driver import DAMAGES, Driver

SIZES = (12, 60, 3_000, 40, 30_000, 300)
"""How many ids the stores are about, in turn."""
STEPS = 250
LARGE = 3_000
_LARGE_STEPS = 60


class Life:
    """One store from its making to its end."""

    def __init__(self, folder: Path, seed: int, ids: int, done: Counter[str]) -> None:
        self._random = random.Random(seed)
        self._batches = Batches(seed, ids)
        # With the smallest page cache a store of 30,000 nodes is rebuilt again and again; what is sought here is worse.
        cache = 64 if ids <= LARGE else 512
        self._driver = Driver(folder, journal_retention_mb=self._random.choice((0, 256)), buffer_pool_mb=cache)
        self._ids = ids
        self._done = done
        self._steps: list[tuple[str, int, Callable[[], None]]] = [
            ("write", 50, lambda: self._driver.write(*self._some(1, 3))),
            ("write as a group", 25, lambda: self._driver.write_group(*self._some(2, 6))),
            ("look", 10, lambda: self._driver.look(self._batches.walk())),
            ("check", 3, self._driver.check),
            ("compare", 2, self._driver.compare),
            ("restart", 4, self._driver.restart),
            ("restart after damage", 3, lambda: self._driver.restart(self._random.choice(DAMAGES))),
            ("crash", 6, lambda: self._driver.crash(*self._some(0, 4), torn=self._random.randrange(3000))),
            ("compact", 6, lambda: self._driver.compact(*self._some(0, 4))),
        ]

    def run(self, until: float) -> None:
        """Take steps until there were enough or the time is over."""
        if self._ids > LARGE:
            self._fill()
        names = [name for name, _, _ in self._steps]
        weights = [weight for _, weight, _ in self._steps]
        steps = {name: step for name, _, step in self._steps}
        for _ in range(STEPS if self._ids <= LARGE else _LARGE_STEPS):
            if time.monotonic() > until:
                break
            [name] = self._random.choices(names, weights)
            steps[name]()
            self._done[name] += 1
        self._driver.restart()
        self._done["row compared at an end"] += len(self._driver.graph.nodes) + len(self._driver.graph.edges)
        self._driver.end()

    def _some(self, least: int, most: int) -> list[WriteBatch]:
        count = self._random.randint(least, most)
        self._done["batch"] += count
        return [self._batches.any_batch(self._driver.graph) for _ in range(count)]

    def _fill(self) -> None:
        """Begin with as many nodes and three times as many edges, in batches of the size that an import has."""
        ids = [f"n{number}" for number in range(self._ids)]
        for start in range(0, self._ids, 10_000):
            some = ids[start : start + 10_000]
            ends = [(source, self._random.choice(ids[: start + len(some)])) for source in some for _ in range(3)]
            nodes = [NodePut(index, node_id, "thing", f"about {node_id}") for index, node_id in enumerate(some)]
            edges = [EdgePut(index, (*pair, "knows")) for index, pair in enumerate(ends)]
            self._driver.write(WriteBatch(nodes=nodes, edges=edges, touch=False, partial=True))
            self._done["batch"] += 1


def main() -> int:
    """Run until the time is over or a violation was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random (default 1)")
    given = parser.parse_args()
    # A damaged snapshot is an error in the log, and here one of the steps.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    start = time.monotonic()
    until = start + 60 * given.minutes
    done: Counter[str] = Counter()
    violations = lives = 0
    while time.monotonic() < until and not violations:
        ids = SIZES[lives % len(SIZES)]
        folder = Path(tempfile.mkdtemp(prefix="kgserve-soak-"))
        try:
            Life(folder, given.seed * 10_000 + lives, ids, done).run(until)
        except Exception:  # noqa: BLE001  # whatever it is, it is a violation
            traceback.print_exc()
            print(f"violation in store {lives} of seed {given.seed} ({ids} ids); its files are in {folder}")
            violations += 1
        lives += 1
    for name, count in done.most_common():
        print(f"{count:>10,}  {name}")
    seconds = time.monotonic() - start
    print(f"{lives} stores, {violations} violations, {seconds:.0f} s, seed {given.seed}")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
