"""Run the scenarios of a folder and print their outcomes by category: `python -m tests.cypher.tck FOLDER`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from kgserve.stores.pool import StorePool
from tests.cypher.tck.scenarios import ScenarioRunner, read_scenarios
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

STATUSES = ("passed", "column", "refused", "setup", "wrong", "missing_error", "crashed")
FAULTS = ("wrong", "missing_error", "crashed")


def main() -> int:
    """Print a table; return 1 if an answer was wrong, an error was missing, or a statement crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cypher.tck", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with feature files")
    parser.add_argument("--graphs", type=Path, help="folder with named graphs")
    parser.add_argument("--filter", default="", help="only scenarios whose category or name contains this text")
    parser.add_argument("--list", default="", metavar="STATUS", help="print the scenarios with these outcomes")
    options = parser.parse_args()
    graphs = options.graphs or next((each for each in _graph_folders(options.folder) if each.is_dir()), options.folder)
    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        pool = StorePool(settings(Path(folder) / "data"))
        try:
            runner = ScenarioRunner(graph_of(pool, NAME), graphs)
            for scenario in read_scenarios(options.folder):
                if options.filter in f"{scenario.category} {scenario.name}":
                    outcome = runner.run(scenario)
                    table[scenario.category][outcome.status] += 1
                    if outcome.status in options.list.split(","):
                        line = {"scenario": f"{scenario.category} {scenario.name}", "reason": outcome.reason}
                        statements = [step.statement for step in scenario.steps if step.statement]
                        print(msgspec.json.encode({**line, "statements": statements}).decode())
        finally:
            pool.close()
    _print_table(table)
    return any(counts[fault] for counts in table.values() for fault in FAULTS)


def _graph_folders(folder: Path) -> tuple[Path, ...]:
    return folder / "graphs", folder.parent / "tck-graphs"


def _print_table(table: dict[str, Counter[str]]) -> None:
    total: Counter[str] = Counter()
    for counts in table.values():
        total.update(counts)
    print(f"{'category':44}", *(f"{status:>13}" for status in STATUSES), f"{'total':>7}")
    for category, counts in [*sorted(table.items()), ("all", total)]:
        print(f"{category:44}", *(f"{counts[each]:13}" for each in STATUSES), f"{counts.total():7}")


if __name__ == "__main__":
    sys.exit(main())
