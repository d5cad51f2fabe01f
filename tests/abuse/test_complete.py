"""Every row of the list has a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.abuse.rows import NUMBERS
from tests.project.reading import TOP

MARK = "pytest.mark.abuse"


def marked(node: ast.AST) -> Iterator[int]:
    """Yield the row numbers of a test and of its parametrized cases."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == MARK:
            yield from (ast.literal_eval(argument) for argument in call.args)


def rows_with_tests() -> dict[int, list[str]]:
    """Return the names of the tests of each row."""
    found: dict[int, list[str]] = {}
    for path in sorted((TOP / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    for number in marked(decorator):
                        found.setdefault(number, []).append(f"{path.name}::{node.name}")
    return found


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    found = rows_with_tests()
    assert sorted(NUMBERS - found.keys()) == [], "rows without a test"
    assert sorted(found.keys() - NUMBERS) == [], "tests of rows that are not in the list"


def test_rows_are_numbered_without_gaps() -> None:
    assert sorted(NUMBERS) == list(range(1, len(NUMBERS) + 1))
