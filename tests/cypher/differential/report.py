"""Report of a run: counts, kinds of differences, and reasons of rejections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from tests.cypher.differential.comparison import DIFFERENT, Result, Verdict
from tests.cypher.differential.generator import GeneratedStatement
from tests.cypher.reference import tree as t
from tests.cypher.reference.interpreter import Answer
from tests.cypher.reference.text import render
from tests.cypher.reference.values import type_name

MAX_MINIMISED = 400


class Finding(msgspec.Struct):
    """Kind of difference: its frequency and its smallest statement."""

    count: int
    result: Result
    parameters: dict[str, Any]


class Report(msgspec.Struct):
    """Results of a run."""

    verdicts: Counter[Verdict]
    findings: dict[str, Finding]
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, str] = {}
    minimised: int = 0

    def count(self, result: Result) -> None:
        """Count the verdict on a statement, and the reason of a rejection."""
        self.verdicts[result.verdict] += 1
        if result.verdict == "refused":
            reason = _general(result.outcome.error)
            self.reasons[reason] += 1
            self.examples.setdefault(reason, result.text)

    def wants(self, generated: GeneratedStatement, result: Result) -> bool:
        """Return whether to minimize a difference: it is of a new kind and below the limit."""
        kind = f"{result.verdict}: {_shape(generated)}"
        if kind in self.findings:
            self.findings[kind].count += 1
            return False
        self.minimised += 1
        return self.minimised <= MAX_MINIMISED

    def add(self, generated: GeneratedStatement, result: Result) -> None:
        """Add a minimised difference."""
        kind = f"{result.verdict}: {_shape(generated)}"
        known = self.findings.get(kind)
        if known is None:
            self.findings[kind] = Finding(1, result, generated.parameters)
            return
        known.count += 1
        if len(result.text) < len(known.result.text):
            known.result, known.parameters = result, generated.parameters

    def include(self, results: Iterable[tuple[GeneratedStatement, Result]]) -> None:
        """Count results, and add those that differ as they are."""
        for generated, result in results:
            self.count(result)
            if result.verdict in DIFFERENT:
                self.add(generated, result)

    def show(self, *, refusals: bool) -> None:
        """Print everything."""
        for verdict, count in self.verdicts.most_common():
            print(f"{count:7} {verdict}")
        for kind, found in sorted(self.findings.items(), key=lambda each: -each[1].count):
            print(f"\n{found.count:4} x {kind}\n       {found.result.text}   {found.parameters or ''}")
            print(f"       answered {_rows(found.result.outcome.rows) or found.result.outcome.error[:200]}")
            print(f"       expected {_expected(found.result.expected)}")
        print("\nrefused, by reason:")
        for reason, count in self.reasons.most_common(200 if refusals else 25):
            print(f"{count:7} {reason}" + (f"\n          {self.examples[reason]}" if refusals else ""))


def _shape(generated: GeneratedStatement) -> str:
    """Return the text of a statement with values replaced by their types."""

    def blur(part: t.Tree) -> t.Tree:
        if isinstance(part, t.Literal):
            return part if part.value is None else t.Variable(type_name(part.value))
        if isinstance(part, t.Parameter):
            return t.Variable(f"p_{type_name(generated.parameters.get(part.name))}")
        return part

    statement = generated.statement
    paths = [part for part in t.parts(statement) if isinstance(part, t.PathPattern)]
    steps = [each for path in paths for each in path.elements if isinstance(each, t.RelationshipPattern)]
    if len(steps) > 1 or any(step.lengths or step.direction == "-" for step in steps):
        forms = sorted({"of variable length" if step.lengths else "of one step" for step in steps})
        return f"a pattern of several relationships, {' and '.join(forms)}"
    return render(t.transform(statement, blur))


def _general(error: str) -> str:
    """Return the text of an error without the details of its statement."""
    first = re.sub(r",? at line \d+, column \d+", "", error.splitlines()[0])
    first = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", first)
    return re.sub(r"\b\d+(\.\d+)?\b", "N", first)[:130]


def _rows(rows: list[list[Any]]) -> str:
    return f"{len(rows)} rows {rows[:3]!r}"[:230] if rows else ""


def _expected(expected: Answer | str) -> str:
    return expected if isinstance(expected, str) else _rows(expected.rows) or "no rows"
