from __future__ import annotations

import secrets
from pathlib import Path

from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.platform.settings import MEBIBYTE
from kgserve.storage.journal.snapshot import MAX_SNAPSHOT_BATCH_BYTES
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, settings


def test_export_blocks_are_bounded_for_large_contents(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, buffer_pool_mb=512)) as pool, pool.lease(NAME, create=True) as store:
        for first in range(0, 60, 20):
            nodes = [NodeUpsert(at, f"n{first + at}", "t", secrets.token_hex(MEBIBYTE // 2)) for at in range(20)]
            store.submit(WriteBatch(nodes=nodes)).result(PATIENCE)
        with open_store_export_stream(graph_of(pool, NAME)) as stream:
            blocks = [len(block) for block in stream]
    assert sum(blocks) > 60 * MEBIBYTE
    assert max(blocks) < 2 * MAX_SNAPSHOT_BATCH_BYTES
