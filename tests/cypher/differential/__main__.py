"""Compare an engine with the reference: `python -m tests.cypher.differential --statements 5000 --seed 1 --engine kuzu`.

Prints the numbers of agreeing, rejected and differing statements, the smallest statement for each kind of difference,
and the share of rejections by construct. Exits with 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import get_args

import structlog

from kgserve.platform.settings import EngineName
from tests.cypher.differential.comparison import DIFFERENT, Comparison, InterpreterComparison
from tests.cypher.differential.generator import GeneratedStatement, Generator
from tests.cypher.differential.graph_generator import GraphGenerator
from tests.cypher.differential.product import ProductStore
from tests.cypher.differential.property_graph import PropertyGraphStore
from tests.cypher.differential.report import Report
from tests.cypher.differential.sweep import swept
from tests.cypher.differential.updates import compare_updates
from tests.cypher.differential.writes import compare_writes


def main() -> int:
    """Run the comparison and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cypher.differential", description=__doc__)
    parser.add_argument("--statements", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=get_args(EngineName), default="kuzu")
    parser.add_argument("--sweep", type=float, default=0.0, help="also this share of all pairs of values, by operator")
    parser.add_argument("--writes", type=int, default=0, help="writing statements, too")
    parser.add_argument("--refusals", action="store_true", help="print an example of each refusal, too")
    parser.add_argument("--dialect", choices=("engine", "opencypher"), default="engine")
    parser.add_argument("--interpreted", action="store_true", help="run statements of the engine in the interpreter")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"seed {options.seed}, {options.statements} statements, engine {options.engine}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder:
        if options.dialect == "opencypher":
            report = compare_interpreter(Path(folder), options.engine, options.seed, options.statements)
            report.include(compare_updates(Path(folder), options.engine, options.seed, options.writes))
        else:
            report = compare(Path(folder), options.engine, list(chosen(options)), is_interpreted=options.interpreted)
            compare_sets(Path(folder), options, report)
    report.show(refusals=options.refusals)
    return 1 if any(report.verdicts[each] for each in DIFFERENT) else 0


def chosen(options: argparse.Namespace) -> Iterator[GeneratedStatement]:
    """Yield the selected statements."""
    generator, choice = Generator(options.seed), random.Random(options.seed)
    for _ in range(options.statements):
        yield generator.make()
    if options.sweep:
        yield from (each for each in swept() if choice.random() < options.sweep)


def compare(
    folder: Path, engine: EngineName, statements: list[GeneratedStatement], *, is_interpreted: bool = False
) -> Report:
    """Run statements on an engine, or in the interpreter, and minimize those that differ."""
    stores = [ProductStore(folder / str(loops), engine, has_loops=loops) for loops in (False, True)]
    try:
        if is_interpreted:
            return run(
                statements, [InterpreterComparison(each, each.graph(), is_engine_dialect=True) for each in stores]
            )
        return run(statements, [Comparison(store, store.graph()) for store in stores])
    finally:
        for store in stores:
            store.close()


def compare_interpreter(folder: Path, engine: EngineName, seed: int, count: int) -> Report:
    """Run statements with labels and attributes, and minimize those that differ."""
    store, generator = PropertyGraphStore(folder / "graph", engine), GraphGenerator(seed)
    try:
        return run([generator.make() for _ in range(count)], [InterpreterComparison(store, store.graph())])
    finally:
        store.close()


def run(statements: list[GeneratedStatement], comparisons: Sequence[Comparison]) -> Report:
    """Run statements, on each store in turn, and minimize those that differ."""
    report = Report(Counter(), {})
    for generated, comparison in zip(statements, cycle(comparisons), strict=False):
        result = comparison.compare(generated)
        report.count(result)
        if result.verdict in DIFFERENT | {"lost"} and report.wants(generated, result):
            report.add(*comparison.minimise(generated, result.verdict))
    return report


def compare_sets(folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Add statements with SET to a report."""
    if not options.writes:
        return
    store = ProductStore(folder / "writes", options.engine, has_loops=False)
    report.include(compare_writes(store, options.writes, options.seed))
    store.close()


if __name__ == "__main__":
    sys.exit(main())
