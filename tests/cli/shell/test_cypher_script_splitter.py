from __future__ import annotations

import time

import pytest

from kgserve.cli.shell.cypher_script_splitter import is_last_statement_unfinished, split_cypher_script


def texts(script: str) -> list[str]:
    return [entry.text for entry in split_cypher_script(script)]


def test_statements_end_at_a_semicolon_and_commands_with_their_line() -> None:
    script = ':use demo\nMATCH (n)\nRETURN n;\n:timing on\nRETURN 1; RETURN 2\n:set a ";"'
    assert texts(script) == [":use demo", "MATCH (n)\nRETURN n", ":timing on", "RETURN 1", 'RETURN 2\n:set a ";"']


@pytest.mark.parametrize(
    "statement",
    [
        "RETURN ';'",
        'RETURN "a;b"',
        "RETURN 'it\\'s; so'",
        "MATCH (`a;b`) RETURN 1",
        "RETURN 1 // not; here\n + 2",
        "RETURN /* nor; here */ 1",
        "MATCH (n\n:Entity) RETURN n",
    ],
)
def test_semicolons_and_colons_inside_a_statement_do_not_end_it(statement: str) -> None:
    assert texts(f"{statement};\nRETURN 2;") == [statement, "RETURN 2"]


def test_blanks_comments_and_lone_semicolons_are_ignored() -> None:
    assert texts(" ;; \n// a comment;\n/* another */;\n") == []
    assert texts("RETURN ';' ; /* ; */ RETURN `;`;; RETURN 3;") == ["RETURN ';'", "RETURN `;`", "RETURN 3"]


def test_entries_have_the_line_of_their_start() -> None:
    found = list(split_cypher_script("// head\n\nRETURN 1;\n:use x\n  RETURN\n 2; RETURN 3"))
    assert [(entry.text, entry.line) for entry in found] == [
        ("RETURN 1", 3),
        (":use x", 4),
        ("RETURN\n 2", 5),
        ("RETURN 3", 6),
    ]


def test_an_export_contains_a_statement() -> None:
    assert texts(":export a.csv MATCH (n)\nRETURN n.id;\nRETURN 1;") == [
        ":export a.csv MATCH (n)\nRETURN n.id",
        "RETURN 1",
    ]


@pytest.mark.parametrize(
    "text", ["MATCH (n)", "RETURN ';", "RETURN 1; RETURN 2", ":export a.csv RETURN 1", "/* x */ a", "/* ;"]
)
def test_incomplete_input_needs_more_lines(text: str) -> None:
    assert is_last_statement_unfinished(text)


@pytest.mark.parametrize("text", ["", "  ", "RETURN 1;", "RETURN 1; // done", ":use demo", ":export a.csv RETURN 1;"])
def test_complete_input_needs_no_more_lines(text: str) -> None:
    assert not is_last_statement_unfinished(text)


def test_unreadable_statements_are_left_to_the_server() -> None:
    assert texts("RETURN 1 # 2; RETURN 3") == ["RETURN 1 # 2", "RETURN 3"]
    assert texts("RETURN 'a\\q'; RETURN 3")[0] == "RETURN 'a\\q'"
    assert not is_last_statement_unfinished("RETURN #")


def test_the_file_name_of_an_export_is_not_cypher() -> None:
    assert texts(":export ~/it's.csv RETURN 1;RETURN 2") == [":export ~/it's.csv RETURN 1", "RETURN 2"]
    assert texts(':export "a;b.csv" RETURN 1;RETURN 2') == [':export "a;b.csv" RETURN 1', "RETURN 2"]


def test_a_very_long_statement_is_not_split() -> None:
    assert texts(f"RETURN '{'x;' * 70_000}'; RETURN 1") == [f"RETURN '{'x;' * 70_000}'", "RETURN 1"]


def test_a_long_script_is_split_quickly() -> None:
    script = "".join(f"CREATE (:Entity {{id: 'n{number}'}});\n" for number in range(5000))
    begun = time.thread_time()
    assert len(texts(script)) == 5000
    assert time.thread_time() - begun < 5
