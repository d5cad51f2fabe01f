"""`python -m bench.rows [--graph wordnet|dense] [--only PART …] [--quick]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import wordnet
from bench.measure import Report
from bench.rows import hybrid, killed, loading, statements, walks, writes
from bench.rows.ground import Ground
from bench.server import end_when_told

PARTS: dict[str, Callable[[Ground], Report]] = {
    "walks": walks.run,
    "loading": loading.run,
    "statements": statements.run,
    "writes": writes.run,
    "hybrid": hybrid.run,
    "killed": killed.run,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Exit code 1 when an exact check failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.rows", description=__doc__)
    parser.add_argument("--graph", choices=["wordnet", "dense"], default="wordnet", help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, and a part of the graph")
    options = parser.parse_args(arguments)
    end_when_told()
    start, wrong = time.monotonic(), False
    try:
        with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
            ground = Ground(Path(folder), options.graph, quick=options.quick)
            for name in options.only or PARTS:
                report = PARTS[name](ground)
                report.show()
                wrong = wrong or report.wrong
    except wordnet.Unavailable as reason:
        print(f"skipped: {reason}")
    print(f"{time.monotonic() - start:.0f} s in all")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
