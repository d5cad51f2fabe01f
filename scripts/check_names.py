"""Check the names of classes, modules and constants against ``names.toml``, and the exceptions that docstrings name.

Run as ``python -m scripts.check_names``; exits with 1 and lists each name with its place.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from scripts.pages import TOP

_PARTICIPLE = re.compile(r"(?:[^e]ed|ing)$", re.IGNORECASE)
_OTHER_FOLDERS = ("bench", "scripts", "tests")
_RAISED = re.compile(r"\b[Rr]aises? ((?:[A-Z]\w+)(?:(?:,| and| or|, and|, or) [A-Z]\w+)*)")


def read_trees(top: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of every module below ``top`` by its path."""
    paths = (path for folder in ("kgserve", *_OTHER_FOLDERS) for path in sorted((top / folder).rglob("*.py")))
    return {path.relative_to(top).as_posix(): ast.parse(path.read_text()) for path in paths}


def find_faults(trees: Mapping[str, ast.Module], rules: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for every name that a rule forbids.

    In tests, benchmarks and scripts, only vague class names are forbidden.
    """
    places: defaultdict[str, list[str]] = defaultdict(list)
    constant_patterns = [re.compile(pattern) for pattern in rules["constants"]["forbidden"]]
    for place, tree in trees.items():
        if not place.startswith("kgserve/"):
            for line, name in _classes(tree):
                yield from _find_vague_class(place, line, name, rules["classes"])
            continue
        path = PurePosixPath(place)
        module = path.parent.name if path.stem == "__init__" else path.stem
        if _PARTICIPLE.search(module) and module not in rules["modules"]["nouns"]:
            yield f"{place}: name the module with a noun, or the verb of its operation"
        for line, name in _classes(tree):
            places[name].append(f"{place}:{line}")
            yield from _find_vague_class(place, line, name, rules["classes"])
        for line, name in _constants(tree):
            if any(pattern.search(name) for pattern in constant_patterns):
                yield f"{place}:{line}: {name}: say what the constant bounds, and its unit"
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[1]}: class {name}: the name is taken by {found[0]}"


def find_unknown_exceptions(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for every exception that a docstring names and no module defines or uses."""
    known = {*dir(builtins), *(name for tree in trees.values() for name in _imported_or_defined_classes(tree))}
    for place, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for raised in _RAISED.findall(ast.get_docstring(node) or ""):
                    unknown = [name for name in re.findall(r"[A-Z]\w+", raised) if name not in known]
                    yield from (f"{place}:{getattr(node, 'lineno', 1)}: no exception {name} exists" for name in unknown)


def _imported_or_defined_classes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _find_vague_class(place: str, line: int, name: str, rules: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for a single word that is ruled out, and for a bare participle."""
    word, exported = name.lstrip("_"), rules["exported_errors"]
    if name in exported["names"] and place in exported["modules"]:
        return
    is_one_word = sum(letter.isupper() for letter in word) == 1
    is_participle = _PARTICIPLE.search(word) is not None and word not in rules["nouns"]
    if word in rules["forbidden"] or (is_one_word and is_participle):
        yield f"{place}:{line}: class {name}: choose a noun phrase of the field"


def _classes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of all classes, nested ones included."""
    yield from ((node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of a module's constants."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from ((node.lineno, each.id) for each in targets if isinstance(each, ast.Name) and each.id.isupper())


def main() -> int:
    """Print every fault; return 1 when there are any."""
    rules = tomllib.loads((TOP / "scripts" / "names.toml").read_text())
    trees = read_trees(TOP)
    faults = [*find_faults(trees, rules), *find_unknown_exceptions(trees)]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
