"""All benches of speed and size, with WordNet loaded once: `python -m bench [NAME …]`.

Those that take their time run when they are named, each with options of its own: `python -m bench rows --quick`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from bench import (
    backup,
    cypher,
    engine,
    events,
    footprint,
    growth,
    history,
    http_floor,
    indexing,
    ingest,
    inject,
    mcp,
    pool,
    schema,
    search,
    temporal,
    traverse,
    write_statements,
)
from bench.measure import Report
from bench.prepared import Workspace
from bench.rows import __main__ as rows
from bench.single import Bench, run_alone


def _pool(_work: Workspace) -> Report:
    return pool.run()


def _events(_work: Workspace) -> Report:
    return events.run()


def _floor(_work: Workspace) -> Report:
    return http_floor.run()


BENCHES: dict[str, Bench] = {
    "ingest": ingest.run,
    "traverse": traverse.run,
    "inject": inject.run,
    "indexing": indexing.run,
    "events": _events,
    "floor": _floor,
    "cypher": cypher.run,
    "write-statements": write_statements.run,
    "mcp": mcp.run,
    "history": history.run,
    "schema": schema.run,
    "temporal": temporal.run,
    "backup": backup.run,
    "pool": _pool,
}
BY_NAME: dict[str, Callable[[Sequence[str]], int]] = {
    "rows": rows.main,
    "engine": engine.main,
    "footprint": footprint.main,
    "growth": growth.main,
    "search": search.main,
}


def main(names: list[str]) -> int:
    """Run the named benches, or all but those that are run by name alone.

    Exit code 1 when an exact check failed, 2 for an unknown name.
    """
    if names and names[0] in BY_NAME:
        return BY_NAME[names[0]](names[1:])
    if unknown := set(names) - set(BENCHES):
        there = ", ".join((*BENCHES, *BY_NAME))
        print(f"no such bench: {', '.join(sorted(unknown))}; there are {there}", file=sys.stderr)
        return 2
    start = time.monotonic()
    code = run_alone(*(BENCHES[name] for name in names or BENCHES))
    # Search brings its own stores: conversations, and WordNet with and without a model.
    code = code if names else max(code, search.main([]))
    print(f"{time.monotonic() - start:.0f} s in all")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
