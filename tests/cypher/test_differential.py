from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.cypher_differential.__main__ import compare
from bench.cypher_differential.comparison import DIFFERENT, Comparison
from bench.cypher_differential.generator import Generated, Generator
from bench.cypher_differential.product import ProductStore
from bench.cypher_differential.report import Report
from bench.cypher_differential.sweep import compared_columns, swept
from bench.cypher_differential.writes import compare_writes
from bench.cypher_reference.parser import parse
from tests.engines import ENGINE
from tests.fuzzing import is_thorough

SEED = 77
STATEMENTS, WRITES = (250, 60) if is_thorough() else (120, 30)


def sampled() -> list[Generated]:
    generator = Generator(SEED)
    return [
        *(generator.make() for _ in range(STATEMENTS)),
        *list(swept())[:: 401 if is_thorough() else 802],
        *list(compared_columns())[:: 101 if is_thorough() else 202],
    ]


TEXTS = (
    r"RETURN size('e\u0301x😀') AS a, size('') AS b, size('a\nb') AS c",
    "MATCH (n) RETURN size(n.context), size(n.content), size(n.id + n.context)",
    r"RETURN '[' + trim(' \u00a0\u2003 a b \u3000\t\n\u0085') + ']' AS c",
    r"RETURN ltrim('\u00a0a ') AS a, rtrim(' a\u00a0') AS b",
    "MATCH (n) RETURN trim(n.context), ltrim(n.content), rtrim(n.content)",
    "RETURN upper('straße') AS a, toUpper('ab') AS b, toLower('İX') AS c, lower('ÀÉ') AS d",
    "MATCH (n) WHERE size(trim(n.content)) > 3 RETURN n.id, upper(n.content)",
)
MIXED = ("['', false, 0.0]", "[1, 'a', true][0]", "[{a: 1}, {b: 1}]", "[[1], [], [1.5]]")


def test_texts_are_counted_trimmed_and_mapped_as_the_reference_says(tmp_path: Path) -> None:
    store = ProductStore(tmp_path, ENGINE, has_loops=False)
    comparison = Comparison(store, store.graph())
    found = {text: comparison.compare(Generated(parse(text), {})).verdict for text in TEXTS}
    mixed = [store.ask(f"RETURN {text} AS c", {}).error for text in MIXED]
    refused = store.ask("RETURN 'ab' =~ '(?=a)ab' AS c", {}).error
    store.close()
    assert found == dict.fromkeys(TEXTS, "agreed")
    assert all("a list holds values of one type here" in error for error in mixed)
    assert "not one of RE2's: lookahead" in refused


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compare(tmp_path_factory.mktemp("differential"), ENGINE, sampled())


def test_generated_statements_are_answered_as_the_reference_says_or_refused(report: Report) -> None:
    assert {kind: finding.result.text for kind, finding in report.findings.items()} == {}
    assert not any(report.verdicts[verdict] for verdict in DIFFERENT)


def test_enough_of_the_generated_statements_are_answered(report: Report) -> None:
    answered = report.verdicts["agreed"]
    assert answered > 0.25 * (answered + report.verdicts["refused"]), report.verdicts


def test_generated_texts_are_stored_as_they_are_written(tmp_path: Path) -> None:
    store = ProductStore(tmp_path, ENGINE, has_loops=False)
    results = [result for _made, result in compare_writes(store, WRITES, SEED)]
    store.close()
    assert [result.text for result in results if result.verdict in DIFFERENT] == []
    assert Counter(result.verdict for result in results)["agreed"] > WRITES / 2
