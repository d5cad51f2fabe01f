"""Fuzz test of guard and engine: real queries with mutated values, tokens and characters.

Accepted statements run in a separate process, in a read-only transaction with a time limit, on a small store. A crash,
a time limit overrun or memory above 1 GiB is a violation.
"""

from __future__ import annotations

import hashlib
import random
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement, validate_cypher_statement_for_engine
from kgserve.errors import InvalidInput, KgserveError
from kgserve.projections.cypher_engine.driver import engine_selection
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database  # noqa: TID251 - no server has it
from tests.cypher.engine_worker import Job, Outcome
from tests.cypher.sample_texts import PARAMETERS, READS, WRITES, mutate

TIMEOUT_MS = 1_000
GRACE = 1.5 if engine_selection.selected_engine == "kuzu" else 30.0
"""Seconds over the time limit that planning, and one step that cannot be interrupted, may take on a busy machine.

Ladybug plans a star of ten relations for five times as long as Kùzu does.
"""
PATIENCE = 60.0
MAX_RESIDENT = 1 << 30
RESTART_AFTER = 2_000
NODES, EDGES = 300, 900
_SCHEMA = Path(__file__).parents[2] / "schema"
_PAGE = 4096


class Violation(Exception):
    """Raised for behavior that must not occur."""


class Worker:
    """Process with the engine; started on demand, killed if it does not reply."""

    def __init__(self, path: Path, timeout_ms: int = TIMEOUT_MS) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job) -> Outcome:
        """Run one statement. Raises Violation if the process dies, does not reply, or grows too large."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()
        end = time.monotonic() + PATIENCE
        answer = select.poll()  # select does not support descriptors above 1,023
        answer.register(process.stdout, select.POLLIN)
        while not answer.poll(50):
            if time.monotonic() > end:
                self.stop()
                raise Violation(f"no answer within {PATIENCE:.0f} s")
            self._check_memory(process)
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self.stop()
            raise Violation(f"the engine's process died with {status}")
        self._check_memory(process)
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.seconds > self._timeout_ms / 1000 + GRACE:
            raise Violation(f"took {outcome.seconds:.1f} s of processor time")
        return outcome

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.__exit__(None, None, None)
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.cypher.engine_worker", str(self._path), str(self._timeout_ms)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._process

    def _check_memory(self, process: subprocess.Popen[bytes]) -> None:
        resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * _PAGE
        if resident > MAX_RESIDENT:
            self.stop()
            raise Violation(f"{resident >> 20} MiB of memory")


def fill(path: Path) -> None:
    """Create the store that statements run on: 300 nodes, 900 edges."""
    database = Database(str(path), buffer_pool_size=64 << 20, max_db_size=1 << 30)
    connection = Connection(database)
    for file in sorted(_SCHEMA.glob("*.cypher")):
        for statement in filter(str.strip, file.read_text().split(";")):
            connection.execute(statement)
    choice = random.Random(0)
    kinds = ("Requirement", "Test", "Document")
    for number in range(NODES):
        text = f"node {number}, " + "words that say something. " * choice.randrange(4)
        row: dict[str, Any] = {"id": f"n{number}", "type": choice.choice(kinds)}
        # Some rows have nulls: nulls in strings have crashed the engine.
        row["content"] = text if number % 7 else None
        row["attributes"] = f'{{"rank": {number}}}' if number % 5 else None
        connection.execute(
            "CREATE (:Entity {id: $id, type: $type, content: $content, attributes: $attributes,"
            " version: 1, sequence: 1, created_at: timestamp('2024-02-29 10:00:00'),"
            " updated_at: timestamp('2025-01-01 00:00:00')})",
            row,
        )
    for number in range(EDGES):
        ends = {"a": f"n{choice.randrange(NODES)}", "b": f"n{choice.randrange(NODES)}"}
        connection.execute(
            "MATCH (a:Entity {id: $a}), (b:Entity {id: $b}) CREATE (a)-[:RELATES_TO {relation_type: $t, weight: 0.5,"
            " attributes: '{}', version: 1, sequence: 1}]->(b)",
            ends | {"t": ("verifies", "mentions")[number % 2]},
        )
    connection.close()
    database.close()


def digest(path: Path) -> str:
    """Return a digest of all rows, in order."""
    database = Database(str(path), buffer_pool_size=64 << 20, max_db_size=1 << 30, read_only=True)
    connection = Connection(database)
    found = hashlib.sha256()
    for query in (
        "MATCH (n:Entity) RETURN n.* ORDER BY n.id",
        "MATCH (a)-[e:RELATES_TO]->(b) RETURN a.id, b.id, e.* ORDER BY a.id, b.id, e.relation_type",
        "MATCH (s:StoreCommit) RETURN s.* ORDER BY s.sequence",
        "CALL show_tables() RETURN name ORDER BY name",
    ):
        result: Any = connection.execute(query)
        while result.has_next():
            found.update(repr(result.get_next()).encode())
    connection.close()
    database.close()
    return found.hexdigest()


class Run(msgspec.Struct):
    """Counters of a run."""

    outcomes: Counter[str] = msgspec.field(default_factory=Counter[str])
    violations: list[str] = msgspec.field(default_factory=list[str])
    slowest: float = 0.0


def judge(text: str, *, writable: bool) -> GuardedCypherStatement | str:
    """Return the guard's statement, or the kind of its rejection; any other exception is a defect."""
    try:
        return validate_cypher_statement_for_engine(text, PARAMETERS, writable=writable)
    except InvalidInput:
        return "refused: invalid"
    except KgserveError:
        return "refused: forbidden"


def fuzz(path: Path, texts: int, seed: int, *, writable: bool) -> Run:
    """Generate, check and run statements."""
    choice, worker, run = random.Random(seed), Worker(path), Run()
    sources: list[str] = [*READS, *WRITES] if writable else [*READS]
    accepted = 0
    for _ in range(texts):
        text = mutate(choice, sources)
        judged = judge(text, writable=writable)
        if isinstance(judged, str):
            run.outcomes[judged] += 1
            continue
        accepted += 1
        _try(worker, judged, text, run)
        if accepted % RESTART_AFTER == 0:
            worker.stop()
    worker.stop()
    return run


def _try(worker: Worker, statement: GuardedCypherStatement, text: str, run: Run) -> None:
    try:
        outcome = worker.run(Job(statement.text, statement.parameters, statement.updates))
    except Violation as violation:
        run.outcomes["violation"] += 1
        run.violations.append(f"{violation}: {text}")
        return
    run.slowest = max(run.slowest, outcome.seconds)
    run.outcomes[_kind(outcome)] += 1


def _kind(outcome: Outcome) -> str:
    if not outcome.error:
        return "ran"
    head = outcome.error.split(":", 1)[0] if "exception" in outcome.error.split(":", 1)[0] else outcome.error[:60]
    return f"engine: {head}"
