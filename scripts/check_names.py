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


def find_faults(top: Path, rules: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for every name of the package below ``top`` that a rule forbids."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    constant_patterns = [re.compile(pattern) for pattern in rules["constants"]["forbidden"]]
    for path in sorted((top / "kgserve").rglob("*.py")):
        place = path.relative_to(top).as_posix()
        module = path.parent.name if path.stem == "__init__" else path.stem
        if _PARTICIPLE.search(module) and module not in rules["modules"]["nouns"]:
            yield f"{place}: name the module with a noun, or the verb of its operation"
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{place}:{node.lineno}")
        for line, name in _constants(tree):
            if any(pattern.search(name) for pattern in constant_patterns):
                yield f"{place}:{line}: {name}: say what the constant bounds, and its unit"
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[1]}: class {name}: the name is taken by {found[0]}"
        if _is_vague(name.lstrip("_"), rules["classes"]):
            yield f"{found[0]}: class {name}: choose a noun phrase of the field"


def _is_vague(name: str, rules: dict[str, list[str]]) -> bool:
    """Return True for a single word that is ruled out, and for a bare participle."""
    is_one_word = sum(letter.isupper() for letter in name) == 1
    is_participle = _PARTICIPLE.search(name) is not None and name not in rules["nouns"]
    return name in rules["forbidden"] or (is_one_word and is_participle)


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
