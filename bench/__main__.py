"""Run benchmarks of speed, size and quality by name, or all of them: `python -m bench [NAME] [options]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bench import cypher, engine, footprint, growth, memory, notes, peers, readers, retrieval, rows, search, write_rate

BENCHES: dict[str, Callable[[Sequence[str]], int]] = {
    "rows": rows.main,
    "peers": peers.main,
    "write_rate": write_rate.main,
    "cypher": cypher.main,
    "readers": readers.main,
    "engine": engine.main,
    "footprint": footprint.main,
    "growth": growth.main,
    "search": search.main,
    "retrieval": retrieval.main,
    "memory": memory.main,
    "notes": notes.main,
}


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmarks. Return 1 when an exact check failed, 2 for an unknown name."""
    if not arguments or arguments[0].startswith("-"):
        return max(bench(arguments) for bench in BENCHES.values())
    name, *options = arguments
    if name not in BENCHES:
        print(f"unknown bench: {name}. Benches: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    return BENCHES[name](options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
