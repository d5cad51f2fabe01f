from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.cypher.differential.__main__ import compare, compare_interpreter
from tests.cypher.differential.comparison import DIFFERENT
from tests.cypher.differential.generator import Generator
from tests.cypher.differential.report import Report
from tests.cypher.differential.routes import compare_routes
from tests.cypher.differential.updates import compare_updates
from tests.engines import ENGINE
from tests.fuzzing import is_thorough

SEED = 45
READS, WRITES, ROUTED = (500, 120, 200) if is_thorough() else (130, 40, 40)


def test_generated_openCypher_statements_match_the_reference(tmp_path: Path) -> None:  # noqa: N802
    report = compare_interpreter(tmp_path, ENGINE, SEED, READS)
    _check(report)
    assert report.verdicts["agreed"] > 0.9 * READS


def test_generated_updates_match_the_reference(tmp_path: Path) -> None:
    report = Report(Counter(), {})
    report.include(compare_updates(tmp_path, ENGINE, SEED, WRITES))
    _check(report)
    assert report.verdicts["agreed"] > 0.6 * WRITES


def test_rest_answers_and_stores_what_the_interpreter_does(tmp_path: Path) -> None:
    assert [*compare_routes(tmp_path, ENGINE, SEED, ROUTED)] == []


def test_statements_for_the_engine_match_the_reference_in_the_interpreter(tmp_path: Path) -> None:
    generator = Generator(SEED)
    report = compare(tmp_path, ENGINE, [generator.make() for _ in range(READS)], is_interpreted=True)
    _check(report)
    assert report.verdicts["agreed"] > 0.4 * READS


def _check(report: Report) -> None:
    assert {kind: finding.result.text for kind, finding in report.findings.items()} == {}
    assert not any(report.verdicts[verdict] for verdict in DIFFERENT)
