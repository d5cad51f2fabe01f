"""Memory measurement of long imports and exports, as a separate process: ``python -m … DATA FILE LINES``."""

from __future__ import annotations

import sys
import tracemalloc  # noqa: TID251 - a separate process
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kgserve.client import Client
from kgserve.graph.request_bodies import NodeNdjsonLine

TEXT = "x" * 600


def lines(count: int) -> Iterator[dict[str, Any] | NodeNdjsonLine]:
    """Yield nodes, half of them as dicts and half as Structs."""
    for number in range(count // 2):
        yield {"kind": "node", "id": f"d{number}", "type": "dict", "content": TEXT}
        yield NodeNdjsonLine(id=f"s{number}", type="struct", content=TEXT)


def peak(work: Callable[[], Any]) -> int:
    """Return the maximum of additional Python memory in bytes during ``work``."""
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
