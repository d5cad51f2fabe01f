"""Python's memory in long imports and exports, measured in a process of its own: ``python -m … DATA FILE LINES``."""

from __future__ import annotations

import sys
import tracemalloc  # noqa: TID251 - this is a process of its own
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kgserve.client import Client
from kgserve.graph.requests import NodeLine

TEXT = "x" * 600


def lines(count: int) -> Iterator[dict[str, Any] | NodeLine]:
    """Nodes, half of them as a dict and half as a Struct."""
    for number in range(count // 2):
        yield {"kind": "node", "id": f"d{number}", "type": "dict", "content": TEXT}
        yield NodeLine(id=f"s{number}", type="struct", content=TEXT)


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes of Python's memory that a piece of work took beyond what there was."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main(data: str, file: str, count: str) -> None:
    """Import into the store ``big`` and export it twice; print the peak of each as JSON."""
    with Client(data=Path(data)) as client:
        big = client.store("big")
        peaks = {
            "import": peak(lambda: big.import_(lines(int(count)))),
            "export": peak(lambda: sum(1 for _ in big.export())),
            "file": peak(lambda: big.export_to(Path(file))),
        }
    print(msgspec.json.encode(peaks).decode())  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
