"""The engine's package: the one that was chosen for this process. All others of the worker take it from here.

Two of them in one process end it: they have symbols in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgserve.worker import chosen

if TYPE_CHECKING or chosen.engine == "kuzu":
    from kuzu import Connection, Database, PreparedStatement, QueryResult
else:
    from ladybug import PreparedStatement, QueryResult

    from kgserve.worker.ladybug import Connection, Database

__all__ = ["Connection", "Database", "PreparedStatement", "QueryResult"]
