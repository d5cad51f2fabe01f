"""Check the prose of the project against the phrases ruled out in ``prose.toml``.

Prose is every docstring, comment and test name, every string of the product that holds a space, and Markdown without
its code. Run as ``python -m scripts.check_prose [PATH …]``; exits with 1 and lists each phrase with its place.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from scripts.pages import TOP

CHECKED = ("kgserve", "tests", "bench", "scripts", "docs", "schema", "*.md")
_CODE_BLOCK = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_CODE_SPAN = re.compile(r"(`+)[^`\n]+\1")


class Rule(NamedTuple):
    """A phrase that is ruled out, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str
    docstrings_only: bool


class Passage(NamedTuple):
    """A piece of prose and the line on which it begins."""

    line: int
    text: str
    is_docstring: bool = False


def load_rules(path: Path = TOP / "scripts" / "prose.toml") -> list[Rule]:
    """Return the rules of a list."""
    listed = tomllib.loads(path.read_text())["rule"]
    return [
        Rule(re.compile(each["pattern"], re.MULTILINE), each["instead"], each.get("docstrings_only", False))
        for each in listed
    ]


def find_faults(passages: Iterable[Passage], rules: list[Rule]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the phrase and what to write instead for every phrase that a rule forbids."""
    for passage in passages:
        text = _CODE_SPAN.sub("`…`", passage.text)
        for rule in rules:
            if rule.docstrings_only and not passage.is_docstring:
                continue
            for match in rule.pattern.finditer(text):
                yield passage.line + text.count("\n", 0, match.end()), match[0].strip(), rule.instead


def read_passages(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Python or Markdown file."""
    text = path.read_text()
    if path.suffix == ".md":
        without_code = _CODE_BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
        yield Passage(1, without_code)
        return
    yield from _read_comments(text)
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    is_product = path.relative_to(TOP).parts[0] == "kgserve"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(node.lineno, node.name.removeprefix("test_").replace("_", " "))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield Passage(node.lineno, node.value.strip(), is_docstring=True)
            elif is_product and " " in node.value.strip():
                yield Passage(node.lineno, node.value)


def _read_comments(text: str) -> Iterator[Passage]:
    """Yield the comments of a Python file; those on successive lines as one."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.string.lstrip("#! ")) for token in tokens if token.type == tokenize.COMMENT]
    for _, block in groupby(enumerate(comments), lambda each: each[1][0] - each[0]):
        lines = [comment for _, comment in block]
        yield Passage(lines[0][0], "\n".join(comment for _, comment in lines))


def find_files(names: Iterable[str]) -> Iterator[Path]:
    """Yield the Python and Markdown files at some paths or patterns, relative to the project."""
    for name in names:
        for found in sorted(TOP.glob(name)):
            files = sorted(found.rglob("*")) if found.is_dir() else [found]
            yield from (each for each in files if each.suffix in {".py", ".md"} and "node_modules" not in each.parts)


def main(names: list[str]) -> int:
    """Print every phrase that is ruled out; return 1 when there are any."""
    rules = load_rules()
    count = 0
    for path in find_files(names or CHECKED):
        for line, phrase, instead in find_faults(read_passages(path), rules):
            print(f"{path.relative_to(TOP)}:{line}: {phrase!r}; write {instead}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
