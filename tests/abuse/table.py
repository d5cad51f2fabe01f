"""A pytest plugin that prints the abuse list with what came of each row's tests."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import pytest

from tests.abuse.rows import PARTS

MARK = "abuse"
_WORDS = 76


class Row(msgspec.Struct):
    """What the tests of one row came to; ``seconds`` is the time that all of them took together."""

    outcomes: Counter[str] = msgspec.field(default_factory=Counter[str])
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """One word for the row. A row whose tests were all skipped was not shown."""
        for outcome in ("failed", "passed", "skipped"):
            if self.outcomes[outcome]:
                return outcome
        return "no test"


_rows: defaultdict[int, Row] = defaultdict(Row)


def numbers_of(item: pytest.Item) -> list[int]:
    """The rows that a test shows."""
    return sorted({number for mark in item.iter_markers(MARK) for number in mark.args})


def pytest_addoption(parser: pytest.Parser) -> None:
    """What takes long is done in full here, and less often among all other tests."""
    parser.addoption("--kills", type=int, default=50, help="how often row 72 kills a server (default 50)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of the list, and write on each which rows it shows: its report takes that to the main process."""
    for item in items:
        item.user_properties += [(MARK, number) for number in numbers_of(item)]
    items[:] = [item for item in items if numbers_of(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Enter a test in its rows; set-up and tear-down count when they went wrong, and with their time."""
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
