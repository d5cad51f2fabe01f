"""Generated files are up to date; `make check` runs this, too."""

from __future__ import annotations

import re

from scripts import generate_clients
from scripts.tables import TABLES, fill_tables, pages_with_tables


def test_every_generated_table_is_up_to_date() -> None:
    written_tables = {
        name for page in pages_with_tables() for name in re.findall(r"<!-- table: (\w+) -->", page.read_text())
    }
    assert written_tables == set(TABLES)
    assert [page.name for page in pages_with_tables() if fill_tables(page.read_text()) != page.read_text()] == [], (
        "run: make docs"
    )


def test_the_methods_of_the_clients_are_those_of_the_table() -> None:
    for path, text in generate_clients.generate_files().items():
        assert path.read_text() == text, "run: make docs"
