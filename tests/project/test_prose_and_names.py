"""The checks of prose and names find what their lists rule out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts import check_names, check_prose
from tests.project.reading import TOP


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The index is built anew.", "anew"),
        ("Who asks gets an answer.", "Who"),
        ("It keeps so many rows.", "so many"),
        ("The listener is told of it.", "told"),
    ],
)
def test_a_phrase_that_is_ruled_out_is_found_with_its_line(text: str, phrase: str) -> None:
    passage = check_prose.Passage(7, f"Index of rows.\n\n{text}")
    found = list(check_prose.find_faults([passage], check_prose.load_rules()))
    assert [(line, each) for line, each, _ in found] == [(9, phrase)]


def test_code_spans_are_not_prose() -> None:
    passage = check_prose.Passage(1, "The value `anew` restarts a store.")
    assert list(check_prose.find_faults([passage], check_prose.load_rules())) == []


def test_comments_docstrings_and_test_names_are_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_prose, "TOP", tmp_path)
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    file.write_text('"""What it is."""\n# Made anew.\ndef test_nobody_waits() -> None: ...\n')
    found = check_prose.find_faults(check_prose.read_passages(file), check_prose.load_rules())
    assert {(line, phrase) for line, phrase, _ in found} == {(1, "What"), (2, "anew"), (3, "nobody")}


def test_vague_class_module_and_constant_names_are_found(tmp_path: Path) -> None:
    package = tmp_path / "kgserve"
    package.mkdir()
    (package / "taking.py").write_text("MOST_ROWS = 3\nclass Taken: ...\nclass Row: ...\n")
    (package / "rows.py").write_text("MAX_ROWS = 3\nclass Row: ...\nclass RowReader: ...\n")
    rules = tomllib.loads((TOP / "scripts" / "names.toml").read_text())
    faults = list(check_names.find_faults(check_names.read_trees(tmp_path), rules))
    found = " ".join(faults)
    assert len(faults) == 4
    assert all(name in found for name in ("taking.py", "MOST_ROWS", "class Taken", "class Row"))


def test_exceptions_in_docstrings_exist(tmp_path: Path) -> None:
    package = tmp_path / "kgserve"
    package.mkdir()
    (package / "rows.py").write_text(
        'class RowLost(Exception): ...\ndef read() -> None:\n    """Read. Raises RowLost, Gone and OSError."""\n'
    )
    assert [*check_names.find_unknown_exceptions(check_names.read_trees(tmp_path))] == [
        "kgserve/rows.py:2: no exception Gone exists"
    ]


@pytest.mark.parametrize(
    ("place", "name", "is_allowed"),
    [
        ("kgserve/client/errors.py", "Interrupted", True),
        ("kgserve/client/custom_request_builders.py", "Interrupted", False),
        ("kgserve/client/errors.py", "_Terminated", False),
        ("tests/bench/servers.py", "Launched", False),
        ("tests/bench/servers.py", "LaunchedServer", True),
        ("tests/bench/servers.py", "Drawing", True),
    ],
)
def test_bare_participles_are_allowed_for_exported_errors_only(
    tmp_path: Path, place: str, name: str, *, is_allowed: bool
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(f"class {name}(Exception): ...\n")
    rules = tomllib.loads((TOP / "scripts" / "names.toml").read_text())
    assert (list(check_names.find_faults(check_names.read_trees(tmp_path), rules)) == []) == is_allowed
