"""Scenarios of feature files, and their execution on a store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from gherkin.parser import Parser
from gherkin.pickles.compiler import Compiler

from kgserve.errors import KgserveError
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.storage.model.node_edge_rows import split_edge_times_from_attributes
from tests.cypher.tck.expected_values import is_same_bag, is_same_value, parse_answer_value, parse_value

_WRITE = re.compile(r"\b(CREATE|MERGE|SET|DELETE|REMOVE)\b", re.IGNORECASE)
_MAX_ROWS = 100_000


class ScenarioStep(msgspec.Struct, frozen=True):
    """Step of a scenario: its text, its statement, and its table with a header."""

    text: str
    statement: str
    table: list[list[str]]


class TckScenario(msgspec.Struct, frozen=True):
    """Scenario with a name, and the folder of its feature."""

    category: str
    name: str
    steps: list[ScenarioStep]


class ScenarioOutcome(msgspec.Struct, frozen=True):
    """Outcome of a scenario; ``column`` means that only the names of columns differ."""

    status: str
    reason: str = ""


PASSED = ScenarioOutcome("passed")


def read_scenarios(folder: Path) -> Iterator[TckScenario]:
    """Yield all scenarios below a folder, with those of outlines expanded."""
    for path in sorted(folder.rglob("*.feature")):
        document: Any = Parser().parse(path.read_text())
        document["uri"] = str(path)
        for pickle in Compiler().compile(document):
            steps = [_read_step(step) for step in pickle["steps"]]
            category = str(path.parent.relative_to(folder))
            yield TckScenario(category, f"{path.stem} {pickle['name']}", steps)


def _read_step(step: Any) -> ScenarioStep:
    argument = step.get("argument", {})
    rows = argument.get("dataTable", {}).get("rows", ())
    table = [[cell["value"] for cell in row["cells"]] for row in rows]
    return ScenarioStep(step["text"].rstrip(":"), argument.get("docString", {}).get("content", ""), table)


class _GraphState(msgspec.Struct, frozen=True):
    """Content of a store, to count side effects."""

    nodes: frozenset[str]
    relationships: frozenset[tuple[str, str, str]]
    properties: frozenset[tuple[Any, ...]]
    labels: frozenset[str]


class ScenarioRunner:
    """Runs scenarios one after the other on one store."""

    def __init__(self, graph: StoreHandle, graphs: Path) -> None:
        """Look up named graphs in the folder ``graphs``."""
        self._graph = graph
        self._graphs = graphs
        self._is_empty = False

    def run(self, scenario: TckScenario) -> ScenarioOutcome:
        """Return the outcome of a scenario on an empty graph."""
        if not self._is_empty:
            self.execute("MATCH (n) DETACH DELETE n", {})
            self._is_empty = True
        try:
            return _ScenarioExecution(self, scenario).run()
        except Exception as error:  # noqa: BLE001 - an internal error is an outcome
            return ScenarioOutcome("crashed", f"{type(error).__name__}: {error}")

    def execute(self, statement: str, parameters: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows of a statement. Raises KgserveError."""
        self._is_empty = False
        mode = "write" if _WRITE.search(statement) else "read"
        request = CypherRequest(query=statement, params=parameters, mode=mode, max_rows=_MAX_ROWS)
        answer = run_cypher_request(self._graph, request)
        rows = msgspec.json.decode(msgspec.json.encode(answer.rows))
        return answer.columns, [[parse_answer_value(value) for value in row] for row in rows]

    def read_named_graph(self, name: str) -> str:
        """Return the statement that creates a named graph."""
        return (self._graphs / name / f"{name}.cypher").read_text().strip().rstrip(";")

    def read_state(self) -> _GraphState:
        """Return the content of the store."""
        with self._graph.lease(create=True) as store, store.reading() as rows:
            nodes, edges = list(rows.all_nodes()), list(rows.all_edges())
        properties = [(row.id, *each) for row in nodes for each in _list_properties(row.attributes)]
        properties += [(*row.key, *each) for row in edges for each in _list_properties(_own_attributes(row.attributes))]
        return _GraphState(
            frozenset(row.id for row in nodes),
            frozenset(row.key for row in edges),
            frozenset(properties),
            frozenset(row.type for row in nodes) - {"_"},
        )


def _own_attributes(attributes: str) -> str:
    return split_edge_times_from_attributes(attributes).own


def _list_properties(attributes: str) -> list[tuple[str, str]]:
    found: dict[str, Any] = msgspec.json.decode(attributes)
    return [(key, msgspec.json.encode(value).decode()) for key, value in found.items() if value is not None]


class _ScenarioExecution:
    def __init__(self, runner: ScenarioRunner, scenario: TckScenario) -> None:
        self._runner = runner
        self._scenario = scenario
        self._parameters: dict[str, Any] = {}
        self._before: _GraphState | None = None
        self._columns: list[str] = []
        self._rows: list[list[Any]] = []
        self._error: KgserveError | None = None
        self._column_fault = ""

    def run(self) -> ScenarioOutcome:
        for step in self._scenario.steps:
            outcome = self._run_step(step)
            if outcome is not None:
                return outcome
        return ScenarioOutcome("column", self._column_fault) if self._column_fault else PASSED

    def _run_step(self, step: ScenarioStep) -> ScenarioOutcome | None:  # noqa: PLR0911 - one for each kind of step
        text = step.text
        if text in {"an empty graph", "any graph"}:
            return None
        if named := re.fullmatch(r"the (.*) graph", text):
            return self._set_up(self._runner.read_named_graph(named[1]))
        if text == "having executed":
            return self._set_up(step.statement)
        if text.startswith("there exists a procedure"):
            return ScenarioOutcome("setup", "test procedures are not supported")
        if text == "parameters are":
            self._parameters = {name: parse_value(value) for name, value in step.table}
            return None
        if text in {"executing query", "executing control query"}:
            return self._execute(step.statement, keeps_state=text == "executing control query")
        if "should be raised" in text:
            return None if self._error is not None else ScenarioOutcome("missing_error", f"{text}; got {self._rows}")
        if self._error is not None:
            return ScenarioOutcome("refused", str(self._error))
        if "side effects" in text:
            return self._check_side_effects(step)
        return self._check_rows(step)

    def _set_up(self, statement: str) -> ScenarioOutcome | None:
        try:
            self._runner.execute(statement, {})
        except KgserveError as error:
            return ScenarioOutcome("setup", str(error))
        return None

    def _execute(self, statement: str, *, keeps_state: bool) -> None:
        if not keeps_state:
            self._before = self._runner.read_state()
        try:
            self._columns, self._rows = self._runner.execute(statement, self._parameters)
            self._error = None
        except KgserveError as error:
            self._error = error
        self._parameters = {}

    def _check_rows(self, step: ScenarioStep) -> ScenarioOutcome | None:
        header, *cells = step.table or [[]]
        expected = [[parse_value(cell) for cell in row] for row in cells]
        rows = self._rows
        if sorted(self._columns) == sorted(header):
            places = [self._columns.index(name) for name in header]
            rows = [[row[at] for at in places] for row in rows]
        elif header:
            self._column_fault = f"columns {self._columns} instead of {header}"
        ignores_order = "ignoring element order" in step.text
        same = (
            len(rows) == len(expected)
            and all(is_same_value(*pair, ignores_order=ignores_order) for pair in zip(rows, expected, strict=True))
            if "in order" in step.text
            else is_same_bag(rows, expected, ignores_order=ignores_order)
        )
        return None if same else ScenarioOutcome("wrong", f"rows {rows} instead of {expected}")

    def _check_side_effects(self, step: ScenarioStep) -> ScenarioOutcome | None:
        before, after = self._before, self._runner.read_state()
        assert before is not None
        found: Counter[str] = Counter()
        for name in _GraphState.__struct_fields__:
            found[f"+{name}"] = len(getattr(after, name) - getattr(before, name))
            found[f"-{name}"] = len(getattr(before, name) - getattr(after, name))
        expected = Counter({name: int(count) for name, count in step.table})
        return None if +found == +expected else ScenarioOutcome("wrong", f"effects {+found} instead of {+expected}")
