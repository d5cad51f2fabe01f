from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgserve.cypher import limits
from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.cypher.lexer import ALLOWED_FUNCTIONS, JSON_FUNCTIONS
from tests.cypher.engine_worker import Job, Outcome
from tests.cypher.sample_texts import PARAMETERS, READS, WRITES
from tests.cypher.spoilt import Worker, digest, fill, fuzz
from tests.engines import ENGINE

ABSENT = JSON_FUNCTIONS if ENGINE == "ladybug" else frozenset[str]()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cypher") / "store.kz"
    fill(path)
    return path


@pytest.fixture
def worker(store: Path) -> Any:
    worker = Worker(store, timeout_ms=30_000)
    yield worker
    worker.stop()


def run(worker: Worker, text: str, parameters: dict[str, Any]) -> Outcome:
    statement = validate_cypher_statement_for_engine(text, parameters, writable=True)
    return worker.run(Job(statement.text, statement.parameters, statement.updates))


def test_sample_queries_run(worker: Worker) -> None:
    for text in READS:
        if not any(name in text for name in ABSENT):
            assert not run(worker, text, PARAMETERS).error, text


LARGEST = {
    "nesting": "RETURN " + "(" * 32 + "1" + ")" * 32,
    "lists": "RETURN " + "[" * 32 + "1" + "]" * 32,
    "operators": "RETURN " + "+".join(["1"] * limits.MAX_OPERATORS),
    "not": "RETURN " + "NOT " * limits.MAX_OPERATORS + "true",
    "cases": "RETURN " + "CASE WHEN true THEN " * limits.MAX_CASE_DEPTH + "1" + " ELSE 2 END" * limits.MAX_CASE_DEPTH,
    "star": "MATCH (a:Entity {id: 'n1'}), "
    + ", ".join(f"(a)-[:RELATES_TO]->(b{i})" for i in range(10))
    + " RETURN count(*)",
    "clauses": " ".join(f"UNWIND [1] AS x{i}" for i in range(99)) + " RETURN 1",
    "unions": " UNION ".join(["RETURN 1 AS x"] * 21),
    "optional": "MATCH (n:Entity {id: 'n1'}) " + "OPTIONAL MATCH (n) " * 20 + "RETURN count(*)",
    "functions": "RETURN " + "".join(f"list_transform([1], x{i} -> " for i in range(3)) + "1" + ")" * 3,
    "growth": "WITH range(1, 700) AS a " + "WITH [a, a] AS a " * 6 + "RETURN a",
    "columns": "RETURN " + ", ".join(f"{i} AS c{i}" for i in range(1_200)),
    "range": "MATCH (n:Entity), (m:Entity) RETURN sum(size(list_append(range(1, 10000), n.version)))",
}


@pytest.mark.parametrize("name", LARGEST)
def test_engine_handles_the_largest_statements(worker: Worker, name: str) -> None:
    assert not run(worker, LARGEST[name], {}).error


def test_parameters_round_trip_unchanged(store: Path) -> None:
    """Check round trips in a separate process, because invalid parameters have crashed it."""
    program = (
        "import tests.engines\n"
        "from kgserve.cypher.guard import validate_cypher_statement_for_engine\n"
        "from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database\n"
        f"connection = Connection(Database({str(store)!r}, buffer_pool_size=64 << 20, max_db_size=1 << 30))\n"
        "rows = [{'a': 1, 'b': 'x'}, {'b': 'y', 'a': 2.5}, {'b': None}]\n"
        "for value in (None, [], [1, 2.5], rows, {'a': [1]}, [[1], []], 'a\\0b', 2**63 - 1, True):\n"
        "    text = 'RETURN $v IS NULL' if value is None else 'RETURN $v'\n"
        "    found = validate_cypher_statement_for_engine(text, {'v': value}, writable=False)\n"
        "    print(connection.execute(found.text, found.parameters).get_next())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    expected = [True, [], [1.0, 2.5], [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": "y"}, {"a": None, "b": None}]]
    expected += [{"a": [1]}, [[1], []], "a\0b", 2**63 - 1, True]
    assert done.stdout.splitlines() == [repr([value]) for value in expected]


def called(worker: Worker, name: str) -> str:
    return worker.run(Job(f"RETURN {name}(1)")).error.replace("is not defined", "does not exist")


def test_every_allowed_function_exists(worker: Worker) -> None:
    known = {name for name in ALLOWED_FUNCTIONS if "does not exist" not in called(worker, name)}
    assert ALLOWED_FUNCTIONS - known == ABSENT
    assert "does not exist" in called(worker, "no_such_function")
    assert {"copy_csv", "nextval", "error", "string_split"} & ALLOWED_FUNCTIONS == set()


def test_mutated_queries_cause_no_violation(store: Path) -> None:
    before = digest(store)
    done = fuzz(store, 400, seed=77, writable=False)
    assert done.violations == []
    assert done.outcomes["ran"] > 30
    assert digest(store) == before


def test_writes_run(tmp_path: Path) -> None:
    path = tmp_path / "scratch.kz"
    fill(path)
    worker = Worker(path)
    try:
        for text in WRITES:
            assert not run(worker, text, PARAMETERS).error, text
    finally:
        worker.stop()
    assert digest(path)
