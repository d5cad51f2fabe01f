"""Classes of the engine package selected for this process; other driver modules import them from here.

Kùzu and Ladybug cannot be loaded into one process because their symbols clash. ``INTERNAL`` lists the keys of nodes,
relations and paths in result values: id, label, source, target, nodes, relations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgserve.projections.cypher_engine.driver import engine_selection

if TYPE_CHECKING or engine_selection.selected_engine == "kuzu":
    from kuzu import Connection, Database, PreparedStatement, QueryResult

    INTERNAL = ("_id", "_label", "_src", "_dst", "_nodes", "_rels")
else:
    from ladybug import PreparedStatement, QueryResult
    from ladybug.constants import DST, ID, LABEL, NODES, RELS, SRC

    from kgserve.projections.cypher_engine.driver.ladybug_adapter import LadybugConnection as Connection
    from kgserve.projections.cypher_engine.driver.ladybug_adapter import LadybugDatabase as Database

    INTERNAL = (ID, LABEL, SRC, DST, NODES, RELS)

__all__ = ["INTERNAL", "Connection", "Database", "PreparedStatement", "QueryResult"]
