"""Links of a server that is killed: all that was acknowledged is there, and so is what comes of it."""

from __future__ import annotations

from pathlib import Path

from bench.links_crash import run
from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # pytest finds it here


def test_links_outlive_kills(tmp_path: Path) -> None:
    done, wrong = run(2, 7, tmp_path)
    assert wrong == []
    assert done > 0
