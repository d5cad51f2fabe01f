from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kgserve.platform.settings import EngineName
from tests.cypher.differential.__main__ import compare
from tests.cypher.differential.comparison import DIFFERENT, Comparison
from tests.cypher.differential.generator import GeneratedStatement, Generator
from tests.cypher.differential.product import ProductStore
from tests.cypher.differential.report import Report
from tests.cypher.differential.sweep import compared_columns, swept
from tests.cypher.differential.writes import compare_writes
from tests.cypher.reference_parser import parse
from tests.engines import ENGINE
from tests.fuzzing import is_thorough

SEED = 77
STATEMENTS, WRITES = (250, 60) if is_thorough() else (120, 30)


def sampled() -> list[GeneratedStatement]:
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
JOINED = (
    "MATCH (m), (n) WHERE n.layer = m.layer RETURN count(*) AS c",
    "MATCH (m), (n) WHERE n.name = m.source RETURN count(*) AS c",
    "MATCH ()-[r]->(), (n) WHERE n.layer = r.ordinal RETURN count(*) AS c",
    "UNWIND [1, 2, 3] AS x MATCH (n {layer: x}) RETURN x, count(*) AS c",
    "UNWIND [0.5, 1.0] AS x OPTIONAL MATCH (n) WHERE n.confidence = x RETURN x, n.id",
    "MATCH (n) WITH DISTINCT n.layer AS x MATCH (m {layer: x}) RETURN x, count(*) AS c",
)
COUNTED = (
    "MATCH (a) RETURN COUNT { MATCH (a)-->(b) } AS c",
    "MATCH (a) WHERE COUNT { MATCH (a)-->(b) } = 0 RETURN count(*) AS c",
    "MATCH (a) WITH a, COUNT { MATCH (a)<--() } AS c WHERE c = 0 RETURN count(*) AS n",
)
FILTERED = (
    "WITH 1 AS x WHERE x = 2 RETURN x",
    "WITH DISTINCT 'a' AS x WITH x WHERE x = 'a' RETURN x",
    "WITH 1 AS x WHERE x = 1 MATCH (n) RETURN x, count(*) AS c",
)
INTEGERS = (
    "UNWIND $list AS x RETURN x, list_position([1, 3], x) AS p, [x, 1000] AS l, x * x * x AS c",
    "RETURN list_position($list, $one) AS p, $list + [1000] AS l, CASE WHEN true THEN $one ELSE 1000 END AS c",
    "UNWIND $rows AS r RETURN r.a * 1000 AS c, list_position([1, 2], r.a) AS p, [r.a, 1000] AS l",
)
MEASURED = (
    r"RETURN substring('e\u0301xyz', 1, 2) AS a, left('e\u0301xyz', 2) AS b, right('xye\u0301', 2) AS c",
    r"RETURN reverse('e\u0301x') AS a, substring('e\u0301xyz', 2) AS b, reverse('\r\n') AS c",
    "MATCH (n) RETURN substring(n.summary, n.version), left(n.content, 2), right(n.content, 3), reverse(n.name)",
    "MATCH (n) RETURN substring(n.summary, 1, 2), left(n.content, n.version), right(n.summary, 0)",
    "MATCH (n) RETURN upper(n.content), lower(n.context), lpad(n.content, 4, '-'), rpad(n.name, 3, 'ab')",
    "RETURN radians(-1e308) AS a, degrees(-1.0) AS b",
)
MISSED = (
    "OPTIONAL MATCH p = ({id: 'n11'})-[]->() RETURN nodes(p) AS a, relationships(p) AS b",
    "OPTIONAL MATCH p = ({id: 'n11'})-[:RELATES_TO*1..2]->(m) RETURN size(nodes(p)) AS a, length(p) AS b",
    "UNWIND $list AS x RETURN list_contains([], nullif(x, 1)) AS a, list_has([3], nullif(x, 1)) AS b",
)
CHAINS = (
    "MATCH (a {id: 'n10'})-[]-()-[]-()-[]->() RETURN count(*) AS c",
    "MATCH (a {id: 'n10'})-[r]-(b)-[s]-(c)-[t]->(d) WHERE s.version > 0 AND b.id <> d.id RETURN b.id, c.id, d.id",
    "MATCH (a {id: 'n2'})-[r]-(b)-[s {relation_type: 'KNOWS'}]-(c)-[t]->(d) RETURN count(*) AS c",
    "MATCH (a)-[r]-(b)-[s]-(c)-[t]-(d) WHERE c.id > 'n5' RETURN count(*) AS c",
    "MATCH (a)-[r]->(b)-[s]->(c)-[t]->(d) WHERE s.relation_type = 'KNOWS' RETURN count(*) AS c",
)
PARAMETERS = {"list": [1, 3, 127], "one": 1, "rows": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}
MIXED = ("['', false, 0.0]", "[1, 'a', true][0]", "[{a: 1}, {b: 1}]", "[[1], [], [1.5]]")


def test_text_functions_match_the_reference(tmp_path: Path) -> None:
    store = ProductStore(tmp_path, ENGINE, has_loops=False)
    comparison = Comparison(store, store.graph())
    found = {text: comparison.compare(GeneratedStatement(parse(text), {})).verdict for text in TEXTS}
    mixed = {text: comparison.compare(GeneratedStatement(parse(f"RETURN {text} AS c"), {})).verdict for text in MIXED}
    refused = store.ask("RETURN 'ab' =~ '(?=a)ab' AS c", {}).error
    store.close()
    assert found == dict.fromkeys(TEXTS, "agreed")
    assert mixed == dict.fromkeys(MIXED, "agreed")
    assert "groups that begin with (?" in refused


GROUPS = {
    "joins": JOINED,
    "counts": COUNTED,
    "filters": FILTERED,
    "integers": INTEGERS,
    "texts": MEASURED,
    "nulls": MISSED,
}


@pytest.mark.parametrize("texts", GROUPS.values(), ids=GROUPS)
def test_answers_match_the_reference(texts: tuple[str, ...], tmp_path: Path) -> None:
    store = ProductStore(tmp_path, ENGINE, has_loops=False)
    comparison = Comparison(store, store.graph())
    found = {text: comparison.compare(GeneratedStatement(parse(text), PARAMETERS)) for text in texts}
    store.close()
    assert {text: each.verdict for text, each in found.items()} == dict.fromkeys(texts, "agreed"), found


@pytest.mark.parametrize("engine", ["kuzu", "ladybug"])
def test_condition_within_a_chain_loses_no_rows(engine: EngineName, tmp_path: Path) -> None:
    store = ProductStore(tmp_path, engine, has_loops=False)
    comparison = Comparison(store, store.graph())
    found = {text: comparison.compare(GeneratedStatement(parse(text), {})) for text in CHAINS}
    store.close()
    assert {text: each.verdict for text, each in found.items()} == dict.fromkeys(CHAINS, "agreed"), found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compare(tmp_path_factory.mktemp("differential"), ENGINE, sampled())


def test_generated_statements_match_the_reference_or_are_rejected(report: Report) -> None:
    assert {kind: finding.result.text for kind, finding in report.findings.items()} == {}
    assert not any(report.verdicts[verdict] for verdict in DIFFERENT)


def test_rejection_rate_of_generated_statements(report: Report) -> None:
    answered = report.verdicts["agreed"]
    assert answered > 0.25 * (answered + report.verdicts["refused"]), report.verdicts


def test_generated_texts_are_stored_unchanged(tmp_path: Path) -> None:
    store = ProductStore(tmp_path, ENGINE, has_loops=False)
    results = [result for _made, result in compare_writes(store, WRITES, SEED)]
    store.close()
    assert [result.text for result in results if result.verdict in DIFFERENT] == []
    assert Counter(result.verdict for result in results)["agreed"] > WRITES / 2
