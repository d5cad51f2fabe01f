"""Structural rules of the whole project."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.reading import TOP, files_not_ignored, project_files

PLACES = re.compile(r"/home/\w|/root/|/Users/\w|file:///(?!etc/)\w|\.internal\b|" + re.escape(str(TOP)))

DECODERS = {
    "msgspec.convert",
    "msgspec.json.decode",
    "msgspec.json.Decoder",
    "msgspec.msgpack.decode",
    "msgspec.msgpack.Decoder",
}
ATTRIBUTES = {name.rpartition(".")[2] for name in DECODERS}


def texts() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for path in project_files():
        try:
            found.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


class Parts(NamedTuple):
    """Lines of each function, and the modules that call a name of ``DECODERS``."""

    function_lines: list[int]
    decoders: set[Path]


@cache
def parts() -> Parts:
    found = Parts([], set())
    for path, tree in trees("kgserve").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.function_lines.append((node.end_lineno or 0) - node.lineno + 1)
            elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES and ast.unparse(node) in DECODERS:
                found.decoders.add(path.relative_to(TOP))
    return found


def trees(*folders: str) -> dict[Path, ast.Module]:
    return {path: parsed(path) for folder in folders for path in (TOP / folder).rglob("*.py")}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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
    sizes = sorted(parts().function_lines)
    assert sizes[len(sizes) // 2] <= 10
    assert sizes[len(sizes) * 9 // 10] <= 35


def test_decoders_are_made_in_one_place() -> None:
    assert parts().decoders == {Path("kgserve/platform/codecs.py")}


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


def test_the_top_holds_few_packages() -> None:
    packages = {path.name for path in (TOP / "kgserve").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert len(packages) <= 15, f"a package for each layer or feature, not for each thing: {sorted(packages)}"


FOLLOWERS = ("kgserve/projections", "kgserve/stores", "kgserve/memory")
"""Folders with classes that follow the journal of a store."""
READERS_OF_THE_JOURNAL = {
    "kgserve/projections/base.py": "follows it for all projections",
    "kgserve/stores/scratch_database.py": "a copy for one statement, thrown away when it cannot follow at once",
    "kgserve/stores/backup/restore.py": "reads a backup's journal once",
    "kgserve/memory/memory_erasure_targets.py": "reads the whole journal once",
    "kgserve/memory/forget_entity.py": "reads the whole journal once, where no history is kept",
}


def test_only_projections_follow_the_journal() -> None:
    following = trees(*FOLLOWERS)
    tails = {
        path.relative_to(TOP).as_posix()
        for path, tree in following.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and {alias.name for alias in node.names} & {"JournalReader", "read_net_change"}
    }
    assert tails == READERS_OF_THE_JOURNAL.keys()
    classes = [node for tree in following.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base).split("[")[0] for base in node.bases} for node in classes}
    projections = {"Projection"}
    while more := {name for name, of in bases.items() if of & projections} - projections:
        projections |= more
    reading = {
        node.name
        for node in classes
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and ast.unparse(each).endswith(("._tail", "journal.frames"))
    }
    assert reading - projections == {"ScratchDatabase"}
    assert len(projections) > 12


def test_features_do_not_ask_whether_a_graph_is_current() -> None:
    """There are two readers of a graph, and what uses one does not look which it is."""
    readers = {"CurrentGraph", "AsOfGraph"}
    nodes = [node for tree in trees("kgserve/graph", "kgserve/memory").values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert {each.name for each in classes if "GraphReader" in map(ast.unparse, each.bases)} == readers
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
    assert [each for each in calls if any(name in ast.unparse(each) for name in readers)] == []


def test_subclasses_are_initialized_by_their_bases() -> None:
    """A class that skips the `__init__` of its base lacks attributes that inherited methods need."""
    classes = {
        node.name: node
        for tree in trees("kgserve").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    own = {name: next((each for each in node.body if _is_init(each)), None) for name, node in classes.items()}

    def inherits_init(name: str) -> bool:
        bases = [ast.unparse(base).split("[")[0].rpartition(".")[2] for base in classes[name].bases]
        return any(own.get(base) or (base in classes and inherits_init(base)) for base in bases)

    called = re.compile(r"(super\(\)|\w+)\.__init__\(")
    skipping = {
        name for name, init in own.items() if init and inherits_init(name) and not called.search(ast.unparse(init))
    }
    assert skipping == set()


def _is_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"
