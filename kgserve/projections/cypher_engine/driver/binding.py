"""The engine's package: the one that was chosen for this process. All others of the worker take it from here.

Two of them in one process end it: they have symbols in common. ``INTERNAL`` are the keys of nodes, relations and paths
among the values that it gives: id, label, source, target, nodes, relations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgserve.projections.cypher_engine.driver import chosen

if TYPE_CHECKING or chosen.engine == "kuzu":
    from kuzu import Connection, Database, PreparedStatement, QueryResult

    INTERNAL = ("_id", "_label", "_src", "_dst", "_nodes", "_rels")
else:
    from ladybug import PreparedStatement, QueryResult
    from ladybug.constants import DST, ID, LABEL, NODES, RELS, SRC

    from kgserve.projections.cypher_engine.driver.ladybug import Connection, Database

    INTERNAL = (ID, LABEL, SRC, DST, NODES, RELS)

__all__ = ["INTERNAL", "Connection", "Database", "PreparedStatement", "QueryResult"]
