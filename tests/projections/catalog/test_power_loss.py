from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.power_loss_recording import RecordedPrograms, needs_compiler

COMMITS = 10
ROWS = 2_000
STATES = 24
WORK = f"""
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.node_edge_rows import NodeRow

catalog = NodeCatalog(data / "catalog.sqlite")
for sequence in range(1, {COMMITS} + 1):
    net = NetChange()
    for at in range({ROWS}):
        node_id = f"{{at % 7}}-{{sequence}}-{{at}}-" + "y" * 100
        net.nodes_created[node_id] = NodeRow(node_id, "t", "", "{{}}", 1, sequence, 0, 0, None)
    catalog.apply(net, sequence)
"""


@needs_compiler
def test_a_power_loss_loses_only_the_last_changes(tmp_path: Path) -> None:
    recorded, choice = RecordedPrograms(tmp_path), random.Random(2)
    recorded.run(WORK, environment={})
    lengths = [choice.randrange(recorded.length) for _ in range(STATES)]
    kept = 0
    for _ in recorded.states({at: choice.choice(("pages", "torn", "anything")) for at in lengths}):
        with closing(sqlite3.connect(recorded.left / "catalog.sqlite")) as found:
            if found.execute("SELECT count(*) FROM sqlite_master WHERE name = 'cursor'").fetchone() == (0,):
                continue
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            [seen] = found.execute("SELECT sequence FROM cursor").fetchone()
            assert found.execute("SELECT count(*) FROM node").fetchone() == (max(seen, 0) * ROWS,)
            kept = max(kept, seen)
    assert kept > 0
