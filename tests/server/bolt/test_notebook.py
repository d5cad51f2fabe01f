"""The notebook of the documentation: its cells are run against a server, and show what it says they show."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import ApiKeyFileCache, Authenticator
from kgserve.server.admission import ActiveCallers, ActiveRequestCounter
from kgserve.server.bolt.store_backend import BoltStoreBackend
from kgserve.server.http.rate_limits import RateLimiter
from kgserve.stores.pool import StorePool
from tests.server.bolt.running import running
from tests.stores.writing import settings

NOTEBOOK = Path(__file__).parents[3] / "docs" / "neo4j.ipynb"


class MarkdownText:
    """Stands for the class of IPython, which a notebook's kernel has."""

    def __init__(self, data: str) -> None:
        self.data = data


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None  # noqa: S307


def read_output(cell: dict[str, Any]) -> str | None:
    """Return what a cell shows: Markdown, or the text of its value."""
    shown = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    return "".join(shown[0].get("text/markdown", shown[0]["text/plain"])) if shown else None


def test_the_cells_show_what_the_notebook_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = ModuleType("IPython.display")
    display.Markdown = MarkdownText  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    names: dict[str, Any] = {}
    with StorePool(settings(tmp_path / "data")) as pool:
        audit = AuditLog(pool.data_dir)
        authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
        backend = BoltStoreBackend(
            CallerStoreHandles(pool), authenticator, audit, RateLimiter(0), ActiveRequestCounter(ActiveCallers())
        )
        with running(backend) as served:
            monkeypatch.setenv("NEO4J_URI", served.url)
            cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
            for cell in cells:
                value = run_cell("".join(cell["source"]), names)
                shown = value.data if isinstance(value, MarkdownText) else None if value is None else repr(value)
                assert shown == read_output(cell)
        audit.close()
    assert sum(read_output(cell) is not None for cell in cells) == 3
