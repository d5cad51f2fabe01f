"""Pytest plugin that prints the abuse list with the results of each row's tests."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import pytest

from tests.abuse.rows import PARTS

MARK = "abuse"
_WORDS = 76


class Row(msgspec.Struct):
    """Results of the tests of one row; ``seconds`` is their total time."""

    outcomes: Counter[str] = msgspec.field(default_factory=Counter[str])
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """Result of the row; a row whose tests were all skipped counts as skipped."""
        for outcome in ("failed", "passed", "skipped"):
            if self.outcomes[outcome]:
                return outcome
        return "no test"


_rows: defaultdict[int, Row] = defaultdict(Row)


def numbers_of(item: pytest.Item) -> list[int]:
    """Return the rows that a test covers."""
    return sorted({number for mark in item.iter_markers(MARK) for number in mark.args})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for slow tests, which run in full here and less often in the whole suite."""
    parser.addoption("--kills", type=int, default=50, help="how often row 72 kills a server (default 50)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the list, and record the rows of each for its report in the main process."""
    for item in items:
        item.user_properties += [(MARK, number) for number in numbers_of(item)]
    items[:] = [item for item in items if numbers_of(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test's result to its rows; setup and teardown count if they failed, and with their time."""
    numbers = {int(str(value)) for name, value in report.user_properties if name == MARK}
    for number in numbers:
        _rows[number].seconds += report.duration
        if report.when == "call" or report.outcome != "passed":
            _rows[number].outcomes[report.outcome] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    write = terminalreporter.write_line
    for part, rows in PARTS.items():
        write("")
        write(f"{part:{_WORDS + 4}}  tests  outcome     time")
        for number, words in rows.items():
            row = _rows[number]
            write(
                f"{number:2}  {words:{_WORDS}}  {row.outcomes.total():5}  {row.verdict:8}  {row.seconds:5.1f} s",
                red=row.verdict != "passed",
            )
    shown = sum(_rows[number].verdict == "passed" for rows in PARTS.values() for number in rows)
    write("")
    write(f"{shown} of {sum(map(len, PARTS.values()))} rows hold")
