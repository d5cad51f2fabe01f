"""What holds for the project as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.project.reading import TOP, files_not_ignored, project_files

PLACES = re.compile(r"/home/\w|/root/|/Users/\w|file:///(?!etc/)\w|\.internal\b|" + re.escape(str(TOP)))


def texts() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for path in project_files():
        try:
            found.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in (TOP / "kgserve").rglob("*.py")}


def test_without_a_repository_the_same_files_are_found() -> None:
    assert set(files_not_ignored()) == set(project_files())


def test_no_file_names_a_machine() -> None:
    for path, text in texts():
        found = None if path == Path(__file__) else PLACES.search(text)
        assert found is None, f"{path.relative_to(TOP)} holds {found and found[0]!r}"


def test_nothing_large_is_among_the_files() -> None:
    assert [path for path in project_files() if path.stat().st_size > 500_000] == []


def test_no_vague_module_names() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [path for path in project_files() if vague.intersection(path.with_suffix("").parts)] == []


def test_functions_stay_readable() -> None:
    sizes = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    sizes.sort()
    assert sizes[len(sizes) // 2] <= 10
    assert sizes[len(sizes) * 9 // 10] <= 35


def test_decoders_are_made_in_one_place() -> None:
    made = {
        "msgspec.convert",
        "msgspec.json.decode",
        "msgspec.json.Decoder",
        "msgspec.msgpack.decode",
        "msgspec.msgpack.Decoder",
    }
    last = {name.rpartition(".")[2] for name in made}
    makers = {
        path.relative_to(TOP)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in last and ast.unparse(node) in made
    }
    assert makers == {Path("kgserve/platform/codecs.py")}


def test_every_dependency_is_pinned() -> None:
    pinned = {
        re.split(r"[=\[ ]", line)[0].replace("_", "-").lower(): line
        for line in (TOP / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert all(re.fullmatch(r"[a-z0-9._-]+==[\w.]+( ; .+)?", line) for line in pinned.values())
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        assert re.split(r"[\[<>=~! ]", requirement)[0].lower() in pinned


def test_the_changelog_has_a_place_for_what_comes() -> None:
    text = (TOP / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text


@pytest.mark.parametrize("script", ["scripts/preflight.sh", "scripts/constraints.sh", "scripts/clean_machine.sh"])
def test_shell_scripts_are_valid(script: str) -> None:
    subprocess.run(["sh", "-n", script], cwd=TOP, check=True)


def test_class_names_are_unique() -> None:
    modules: dict[str, set[Path]] = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, set()).add(path)
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_the_top_holds_few_packages() -> None:
    packages = {path.name for path in (TOP / "kgserve").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert len(packages) <= 14, f"a package for each layer or feature, not for each thing: {sorted(packages)}"


def test_features_do_not_ask_whether_a_graph_is_current() -> None:
    """There are two readers of a graph, and what uses one does not look which it is."""
    readers = {"CurrentGraph", "AsOfGraph"}
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert {each.name for each in classes if "GraphReader" in map(ast.unparse, each.bases)} == readers
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
    assert [each for each in calls if any(name in ast.unparse(each) for name in readers)] == []
