"""Process that runs generated Cypher texts on the engine: `python -m tests.cypher.engine_worker FILE TIMEOUT_MS`.

Reads one JSON object `{"query", "parameters", "write"}` per line and writes `{"error", "rows", "seconds"}`. A statement
may crash the process.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import tests.engines
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database, QueryResult  # noqa: TID251 - no server has it

CACHE_BYTES = 128 << 20
MAX_ROWS = 1000
# The engine parses and plans in the calling thread; a quarter of its stack leaves room for the rest.
STACK_BYTES = 2 << 20

_ = tests.engines.ENGINE


class Job(msgspec.Struct, frozen=True):
    """Statement to run."""

    query: str
    parameters: dict[str, Any] = {}
    write: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """Result of a job; ``error`` is the engine's message, empty on success; ``seconds`` is CPU time."""

    error: str
    rows: int
    seconds: float


class Runner:
    """Runs jobs on one engine file, each on a connection that no failed job has used."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._database = self._open()
        self._connection = self._connect()

    def run(self, job: Job) -> Outcome:
        """Run a job in a transaction: a read-only one, or a write that is committed."""
        start = time.process_time()
        error, rows = "", 0
        try:
            rows = self._run(job)
        except Exception as failure:  # noqa: BLE001 - any exception of the engine is a result
            error = str(failure) or repr(failure)
        outcome = Outcome(error, rows, time.process_time() - start)
        if error:
            self._recover(job)
        return outcome

    def _recover(self, job: Job) -> None:
        """Reopen the file after a rolled-back write, which may leave it inconsistent."""
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
        # Checkpoints have damaged files before; this test is about statements.
        connection.execute("CALL force_checkpoint_on_close=false")
        connection.set_query_timeout(self._timeout_ms)
        return connection


def _has_times(result: QueryResult) -> bool:
    """Return whether a column can hold a date or time outside the years 1 to 9999, on which the binding crashes."""
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
    """Run jobs from stdin until it is closed."""
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
