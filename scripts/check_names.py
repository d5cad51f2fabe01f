"""Check the names of classes, modules and constants against the rules in ``names.toml``.

Run as ``python -m scripts.check_names``; exits with 1 and lists each name with its place.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.pages import TOP

_PARTICIPLE = re.compile(r"(?:[^e]ed|ing)$", re.IGNORECASE)
_OTHER_FOLDERS = ("bench", "scripts", "tests")


def find_faults(top: Path, rules: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for every name of the package below ``top`` that a rule forbids.

    In tests, benchmarks and scripts, only vague class names are forbidden.
    """
    places: defaultdict[str, list[str]] = defaultdict(list)
    constant_patterns = [re.compile(pattern) for pattern in rules["constants"]["forbidden"]]
    for path in sorted((top / "kgserve").rglob("*.py")):
        place = path.relative_to(top).as_posix()
        module = path.parent.name if path.stem == "__init__" else path.stem
        if _PARTICIPLE.search(module) and module not in rules["modules"]["nouns"]:
            yield f"{place}: name the module with a noun, or the verb of its operation"
        tree = ast.parse(path.read_text())
        for line, name in _classes(tree):
            places[name].append(f"{place}:{line}")
            yield from _find_vague_class(place, line, name, rules["classes"])
        for line, name in _constants(tree):
            if any(pattern.search(name) for pattern in constant_patterns):
                yield f"{place}:{line}: {name}: say what the constant bounds, and its unit"
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[1]}: class {name}: the name is taken by {found[0]}"
    for path in sorted(path for folder in _OTHER_FOLDERS for path in (top / folder).rglob("*.py")):
        place = path.relative_to(top).as_posix()
        for line, name in _classes(ast.parse(path.read_text())):
            yield from _find_vague_class(place, line, name, rules["classes"])


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
    """Print every name that a rule forbids; return 1 when there are any."""
    faults = list(find_faults(TOP, tomllib.loads((TOP / "scripts" / "names.toml").read_text())))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
