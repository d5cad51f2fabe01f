"""One bench by itself: `python -m bench.NAME`."""

from __future__ import annotations

from collections.abc import Callable

from bench import wordnet
from bench.measure import Report
from bench.prepared import Workspace, workspace

Bench = Callable[[Workspace], Report]


def run_alone(*benches: Bench) -> int:
    """Run benches in one workspace and print each table when it is done. Exit code 1 when an exact check failed."""
    wrong = False
    try:
        with workspace() as work:
            for bench in benches:
                report = bench(work)
                report.show()
                wrong = wrong or report.wrong
    except wordnet.Unavailable as reason:
        print(f"skipped: {reason}")
    return int(wrong)
