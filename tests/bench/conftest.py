from __future__ import annotations

from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # found here by pytest
