"""The process in which generated Cypher texts meet the engine: `python -m tests.cypher.engine_worker FILE TIMEOUT_MS`.

One JSON object per line in, `{"query", "parameters", "write"}`, and one out, `{"error", "rows", "seconds"}`. It may be
killed by what it runs; that is what it is for.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import tests.engines
from kgserve.projections.cypher_engine.driver.binding import Connection, Database, QueryResult  # noqa: TID251 - no server has it

CACHE_BYTES = 128 << 20
MAX_ROWS = 1000
# The engine parses and plans in the thread that calls it. A quarter of what a thread has leaves room for the rest.
STACK_BYTES = 2 << 20

_ = tests.engines.ENGINE


class Job(msgspec.Struct, frozen=True):
    """One text to run."""

    query: str
    parameters: dict[str, Any] = {}
    write: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What became of it; ``error`` is the engine's text, empty when it ran. ``seconds`` of processor time."""

    error: str
    rows: int
    seconds: float


class Runner:
    """Runs jobs on one engine file, each on a connection that no failed job has used before."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._database = self._open()
        self._connection = self._connect()

    def run(self, job: Job) -> Outcome:
        """Run one job in a transaction: a read-only one that ends, or a write that is committed."""
        start = time.process_time()
        error, rows = "", 0
        try:
            rows = self._run(job)
        except Exception as failure:  # noqa: BLE001 - whatever the engine raises is its answer
            error = str(failure) or repr(failure)
        outcome = Outcome(error, rows, time.process_time() - start)
        if error:
            self._recover(job)
        return outcome

    def _recover(self, job: Job) -> None:
        """A file that rolled back a write is not to be trusted before it is opened again."""
        self._connection.close()
        if job.write:
            self._database.close()
            self._database = self._open()
        self._connection = self._connect()

    def _open(self) -> Database:
        return Database(
            str(self._path),
            buffer_pool_size=CACHE_BYTES,
            max_num_threads=2,
            max_db_size=1 << 30,
            auto_checkpoint=False,
        )

    def _run(self, job: Job) -> int:
        if not job.write:
            self._connection.execute("BEGIN TRANSACTION READ ONLY")
        result = self._connection.execute(job.query, job.parameters)
        if isinstance(result, list):
            raise TypeError("more than one statement was run")
        rows = _through_arrow(result) if _has_times(result) else _one_by_one(result)
        result.close()
        if not job.write:
            self._connection.execute("COMMIT")
        return rows

    def _connect(self) -> Connection:
        connection = Connection(self._database)
        # Files have been damaged by it before, and what is looked for here is what texts do.
        connection.execute("CALL force_checkpoint_on_close=false")
        connection.set_query_timeout(self._timeout_ms)
        return connection


def _has_times(result: QueryResult) -> bool:
    """Whether a column can hold a date or a time before year 1 or after 9999: the binding crashes on those."""
    return any("DATE" in name or "TIMESTAMP" in name for name in result.get_column_data_types())


def _through_arrow(result: QueryResult) -> int:
    return len(result.get_as_arrow(MAX_ROWS))


def _one_by_one(result: QueryResult) -> int:
    rows = 0
    while rows < MAX_ROWS and result.has_next():
        repr(result.get_next())
        rows += 1
    return rows


def main() -> None:
    """Answer the jobs on stdin until it ends."""
    runner = Runner(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin.buffer:
        outcome = runner.run(msgspec.json.decode(line, type=Job))
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
