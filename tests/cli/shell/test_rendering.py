from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kgserve.cli.shell.formats import WRITERS, deduplicate_column_names, format_cell
from kgserve.cli.shell.shell_output import (
    find_statement_error_position,
    fit_column_widths,
    format_error_caret_lines,
    list_distinct_messages_of_error,
    print_rows_as_table,
)
from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.answers import CypherAnswer

A = {"_label": "Entity", "id": "a", "type": "letter", "content": "the first"}
B = {"_label": "Entity", "id": "b", "type": "letter"}
AB = {"_label": "RELATES_TO", "_from": "a", "_to": "b", "relation_type": "BEFORE", "weight": 1.0}


def answer(columns: list[str], *rows: list[Any]) -> CypherAnswer:
    return CypherAnswer(
        columns=columns, types=["ANY"] * len(columns), rows=list(rows), row_count=len(rows), truncated=False, took_ms=1
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (A, "(a :letter)"),
        ({"_label": "StoreCommit", "id": 3}, "(3 :StoreCommit)"),
        (AB, "(a)-[:BEFORE]->(b)"),
        ({"nodes": [A, B], "relations": [AB]}, "(a :letter)-[:BEFORE]->(b :letter)"),
        ({"nodes": [B, A, B], "relations": [AB, AB]}, "(b :letter)<-[:BEFORE]-(a :letter)-[:BEFORE]->(b :letter)"),
        ({"nodes": [A], "relations": []}, "(a :letter)"),
        ([A, 1, "x", None], '[(a :letter), 1, "x", null]'),
        ({"nodes": 1, "relations": [2]}, "{nodes: 1, relations: [2]}"),
        ("plain\ntext", "plain\ntext"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_values_are_compact(value: Any, shown: str) -> None:
    assert format_cell(value) == shown


def drawn(answer: CypherAnswer, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        print_rows_as_table(answer, console)
    return captured.get()


def test_a_terminal_shows_one_line_per_row_without_control_characters() -> None:
    shown = drawn(answer(["text", "n"], ["long " * 50 + "end", 1], ["two\nlines \x1b[31m", 20]), 60)
    assert "end" not in shown
    assert "…" in shown
    assert "two↵lines \N{REPLACEMENT CHARACTER}[31m" in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert len(shown.strip().splitlines()) == 4


def test_short_columns_keep_their_width_next_to_long_ones() -> None:
    assert fit_column_widths([1000, 5, 8], 60) == [47, 5, 8]
    assert fit_column_widths([1000, 5, 1000], 61) == [28, 5, 28]
    assert fit_column_widths([3, 4], 60) == [3, 4]
    for columns in range(1, 8):
        lines = drawn(answer(["name"] * columns, ["x" * 200] * columns), 100).splitlines()
        assert 97 <= max(map(len, lines)) <= 100


def test_rows_with_many_columns_are_drawn_as_lists() -> None:
    shown = drawn(answer([f"column{number}" for number in range(20)], list(range(20))), 80)
    assert "row 1" in shown
    assert [f"column{number}" in shown for number in range(20)] == [True] * 20


def test_objects_keep_values_of_columns_with_the_same_name() -> None:
    assert deduplicate_column_names(["a", "a", "b", "a_2", "a"]) == ["a", "a_2", "b", "a_2_2", "a_3"]
    assert list(WRITERS["jsonl"](answer(["a", "a"], [1, 2]))) == ['{"a":1,"a_2":2}\n']


def test_no_rows() -> None:
    empty = answer(["a"])
    assert {mode: "".join(write(empty)) for mode, write in WRITERS.items()} == {
        "table": "a\n",
        "json": "[]\n",
        "csv": "a\n",
        "jsonl": "",
    }


def test_a_caret_marks_the_position() -> None:
    error = InvalidInput("the query is wrong", (FieldError("query", "what is this at line 2, column 4"),))
    assert list_distinct_messages_of_error(error) == ["the query is wrong", "what is this at line 2, column 4"]
    assert find_statement_error_position(error) == (2, 4)
    assert format_error_caret_lines("RETURN\n\tabXcd", 2, 4) == ["   abXcd", "     ^"]
    assert format_error_caret_lines("RETURN 1", 7, 1) == []


def test_a_caret_marks_positions_in_long_lines_and_wide_letters() -> None:
    line, caret = format_error_caret_lines("a" * 500 + "X" + "b" * 500, 1, 501)
    assert line[caret.index("^")] == "X"
    assert len(line) < 150
    assert format_error_caret_lines("'東京' X", 1, 6)[1].index("^") == 2 + 7
