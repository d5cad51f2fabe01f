"""Rows and times of the clauses of a statement, counted while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kgserve.cypher.interpreter.graph_view_interface import Row
from kgserve.cypher.interpreter.opencypher_syntax_tree import QueryStage


class StatementProfile:
    """Rows that each clause has passed on, and the seconds that it took without the clauses below it."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.seconds: dict[int, float] = {}
        self._running: list[int] = []
        self._last = time.perf_counter()

    def measure(
        self, stage: QueryStage, run: Callable[[Iterator[Row]], Iterator[Row]]
    ) -> Callable[[Iterator[Row]], Iterator[Row]]:
        """Return a function of a clause that counts its rows and its time."""
        key = id(stage)
        self.rows[key], self.seconds[key] = 0, 0.0

        def run_measured(rows: Iterator[Row]) -> Iterator[Row]:
            self._enter(key)
            try:
                found = run(rows)
            finally:
                self._leave(key)
            while True:
                self._enter(key)
                try:
                    row = next(found, None)
                finally:
                    self._leave(key)
                if row is None:
                    return
                self.rows[key] += 1
                yield row

        return run_measured

    def _enter(self, key: int) -> None:
        self._charge()
        self._running.append(key)

    def _leave(self, key: int) -> None:
        self._charge()
        if self._running and self._running[-1] == key:
            self._running.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._last
        self._last = now
