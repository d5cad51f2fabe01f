"""Prints how the house is laid out: packages, their files and lines, and who imports whom.

Of several checkouts beside each other: ``python -m scripts.house [FOLDER …]``.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from scripts.pages import TOP

MADE = ("kgserve/client/operations.py", "kgserve/client/methods.py")
"""Written by `make docs`; counted apart."""


class House(NamedTuple):
    """One checkout: lines by module, and by module those that it imports."""

    lines: dict[str, int]
    imports: dict[str, set[str]]
    generated: int
    tests: int


def measured(top: Path) -> House:
    """The modules of ``kgserve`` below ``top``, and the lines of its tests."""
    files = {_name(path, top): path for path in sorted((top / "kgserve").rglob("*.py"))}
    written = {name: path for name, path in files.items() if str(path.relative_to(top)) not in MADE}
    return House(
        {name: _lines(path) for name, path in written.items()},
        {name: _imported(path, files) - {name} for name, path in files.items()},
        sum(_lines(top / path) for path in MADE if (top / path).exists()),
        sum(map(_lines, (top / "tests").rglob("*.py"))),
    )


def _name(path: Path, top: Path) -> str:
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            found |= inner & modules.keys() or {node.module}
    return found & modules.keys()


def _rows(house: House) -> dict[str, str]:
    packages: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name, lines in house.lines.items():
        package = name.split(".")[1] if name.count(".") > 1 or _is_package(name, house) else "(top)"
        packages[package] += lines
        files[package] += 1
    importers = Counter(name for names in house.imports.values() for name in names)
    sizes = sorted(house.lines.values())
    return {
        "modules": f"{len(house.lines)}",
        "lines": f"{sum(sizes):,}",
        "lines that are generated, beside": f"{house.generated:,}",
        "lines of a module: median, most": f"{median(sizes):.0f}, {sizes[-1]}",
        "modules with one importer": f"{sum(importers[name] == 1 for name in house.lines)}",
        "imports per module": f"{mean(map(len, house.imports.values())):.1f}",
        "lines of tests": f"{house.tests:,}",
        **{f"{package}: files, lines": f"{files[package]}, {packages[package]:,}" for package in sorted(packages)},
    }


def _is_package(name: str, house: House) -> bool:
    return any(other.startswith(f"{name}.") for other in house.lines if name != "kgserve")


def main(folders: list[str]) -> None:
    """Print a row for each figure, and a column for each checkout."""
    tables = [_rows(measured(Path(folder).resolve())) for folder in folders] or [_rows(measured(TOP))]
    for row in dict.fromkeys(name for table in tables for name in table):
        print(f"{row:<36}" + "".join(f"{table.get(row, '-'):>16}" for table in tables))


if __name__ == "__main__":
    main(sys.argv[1:])
