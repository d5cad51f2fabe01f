"""Timing, percentiles, the table that every benchmark prints, and the command line of a benchmark with parts."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from bench import wordnet
from bench.server import unwind_on_sigterm


class DurationPercentiles(NamedTuple):
    """Durations of one kind of call, in milliseconds."""

    p50: float
    p95: float
    longest: float

    @override
    def __str__(self) -> str:
        """Format both percentiles for a table."""
        return f"p50 {rounded(self.p50)} p95 {rounded(self.p95)} ms"


def times(milliseconds: Sequence[float]) -> DurationPercentiles:
    """Return the percentiles of at least one duration."""
    p50, p95, longest = map(float, np.percentile(milliseconds, [50, 95, 100]))
    return DurationPercentiles(p50, p95, longest)


def rounded(value: float) -> str:
    """Format three significant digits, or whole numbers from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clock(call: Callable[[], Any]) -> float:
    """Return the milliseconds that one call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


class ReportLine(NamedTuple):
    """A measurement and its baseline. `met` is None without a target."""

    what: str
    figure: str
    baseline: str = ""
    ratio: str = ""
    mark: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the line's columns, the verdict last."""
        return (*self[:5], {True: "met", False: "MISSED", None: ""}[self.met])


class BenchmarkReport:
    """Table of a benchmark: measurement, baseline of the same run, ratio, target, and whether the target is met."""

    HEAD = ("", "measured", "baseline, same run", "ratio", "mark", "")

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: list[ReportLine] = []
        self.notes: list[str] = []

    def fact(self, what: str, figure: str) -> None:
        """Add a figure without a verdict."""
        self.lines.append(ReportLine(what, figure))

    def at_most(self, what: str, figure: str, value: float, limit: float, unit: str) -> None:
        """Add a figure with an absolute upper limit."""
        self.lines.append(ReportLine(what, figure, mark=f"at most {limit:g} {unit}", met=value <= limit))

    def compare(
        self, what: str, figure: str, baseline: str, ratio: float, mark: tuple[str, float] | None = None
    ) -> None:
        """Add a figure against a baseline; `mark` is ("≤", 3.0) or ("≥", 10.0) and refers to `ratio`."""
        sign, limit = mark or ("", 0.0)
        met = None if mark is None else ratio <= limit if sign == "≤" else ratio >= limit
        self.lines.append(
            ReportLine(what, figure, baseline, f"{ratio:.2f} x", f"{sign} {limit:g} x" if mark else "", met)
        )

    def check(self, what: str, finding: str, ok: bool) -> None:
        """Add a check whose result does not depend on the machine."""
        self.lines.append(ReportLine(what, finding, mark="exact", met=ok))

    @property
    def wrong(self) -> bool:
        """True if a check failed; a missed target depends on the machine and does not count."""
        return any(line.mark == "exact" and line.met is False for line in self.lines)

    def show(self) -> None:
        """Print the table and the notes."""
        rows = [self.HEAD, *(line.cells() for line in self.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.HEAD))]
        print(f"\n{self.title}\n{'-' * len(self.title)}")
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for note in self.notes:
            print(f"* {note}")
        print(flush=True)


def parser(name: str, description: str, parts: Mapping[str, object]) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark with parts."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    made.add_argument("--only", nargs="+", choices=list(parts), help="parts to run (default: all)")
    made.add_argument("--quick", action="store_true", help="smaller data and fewer repetitions")
    return made


def run_parts(parts: Mapping[str, Callable[..., BenchmarkReport]], options: argparse.Namespace, *given: object) -> int:
    """Print the table of each chosen part, called with `given` and `quick`; return 1 when an exact check failed."""
    unwind_on_sigterm()
    wrong = False
    for name in options.only or parts:
        try:
            report = parts[name](*given, quick=options.quick)
        except (wordnet.Unavailable, FileNotFoundError) as reason:
            print(f"{name} skipped: {reason}")
            continue
        report.show()
        wrong = wrong or report.wrong
    return int(wrong)
