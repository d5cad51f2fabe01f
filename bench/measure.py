"""Times, percentiles, and the table that every bench ends with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec


class Times(msgspec.Struct, frozen=True):
    """Durations of one kind of call, in milliseconds."""

    p50: float
    p95: float
    longest: float
    count: int

    def __str__(self) -> str:
        """The two percentiles, for a table."""
        return f"p50 {self.p50:.1f} p95 {self.p95:.1f} ms"

    @property
    def fine(self) -> str:
        """The same with what matters below a millisecond."""
        return f"p50 {rounded(self.p50)} p95 {rounded(self.p95)} ms"


def times(milliseconds: Sequence[float]) -> Times:
    """Percentiles (nearest rank) of at least one duration."""
    ordered = sorted(milliseconds)
    at95 = min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))
    return Times(statistics.median(ordered), ordered[at95], ordered[-1], len(ordered))


def rounded(value: float) -> str:
    """Three figures that count, or whole numbers from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clock(call: Callable[[], Any]) -> float:
    """Milliseconds that one call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


class Line(msgspec.Struct, frozen=True):
    """One measurement against its baseline. `met` is None where no mark is set."""

    what: str
    figure: str
    baseline: str = ""
    ratio: str = ""
    mark: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The line's columns, the verdict last."""
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return (self.what, self.figure, self.baseline, self.ratio, self.mark, verdict)


class Report:
    """A bench's table: what was measured, the baseline of the same run, the ratio, the mark, and whether it is met."""

    HEAD = ("", "measured", "baseline, same run", "ratio", "mark", "")

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: list[Line] = []
        self.notes: list[str] = []

    def fact(self, what: str, figure: str) -> None:
        """A figure that is neither good nor bad."""
        self.lines.append(Line(what, figure))

    def at_most(self, what: str, figure: str, value: float, limit: float, unit: str) -> None:
        """A figure with an absolute upper limit."""
        self.lines.append(Line(what, figure, mark=f"at most {limit:g} {unit}", met=value <= limit))

    def compare(
        self, what: str, figure: str, baseline: str, ratio: float, mark: tuple[str, float] | None = None
    ) -> None:
        """A figure against a baseline; `mark` is ("≤", 3.0) or ("≥", 10.0) and refers to `ratio`."""
        if mark is None:
            self.lines.append(Line(what, figure, baseline, f"{ratio:.2f} x"))
            return
        sign, limit = mark
        met = ratio <= limit if sign == "≤" else ratio >= limit
        self.lines.append(Line(what, figure, baseline, f"{ratio:.2f} x", f"{sign} {limit:g} x", met))

    def within(self, what: str, figure: str, value: float, limit: float, baseline: str) -> None:
        """A figure against a limit that was measured in the same run; `baseline` says how the limit comes about."""
        self.compare(what, figure, f"{baseline} = {rounded(limit)}", value / limit, ("≤", 1.0))

    def check(self, what: str, finding: str, ok: bool) -> None:
        """Something that is right or wrong, whatever the machine."""
        self.lines.append(Line(what, finding, mark="exact", met=ok))

    @property
    def wrong(self) -> bool:
        """Whether a check failed; a missed mark depends on the machine and does not count."""
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
