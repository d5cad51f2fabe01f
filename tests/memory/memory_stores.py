"""Stores with memories, indexed with the real model, and normalized exports of them."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kgserve.embedding.embedder import load_embedder
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.memory.maintenance import MemoryMaintenance
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.embedding.prepared import model_settings
from tests.stores.writing import PATIENCE, settings

HOOKS = (
    "React hooks allow state in functional components",
    "Hooks in React let functional components use state",
    "With React hooks, functional components can have state",
    "React hooks let functional components have state",
    "React hooks give state to functional components",
)
MOVING = {"version", "sequence", "updated_at"}


class Place(NamedTuple):
    """A pool whose stores are indexed."""

    pool: StorePool
    indexer: TextIndexWorker
    keeper: MemoryMaintenance | None = None

    def graph(self, name: str) -> StoreHandle:
        return CallerStoreHandles(self.pool, self.indexer).graph(name)


@contextmanager
def placed(data: Path, *, tick: float | None = None, **options: Any) -> Generator[Place]:
    """Yield a pool with the real model; `tick`, in seconds, enables maintenance."""
    wanted = settings(data, models_dir=model_settings().models_dir, **options)
    with closing(TextIndexWorker(load_embedder(wanted))) as indexer, StorePool(wanted) as pool:
        pool.companions.append(indexer)
        if tick is None:
            yield Place(pool, indexer)
            return
        with closing(MemoryMaintenance(indexer, tick)) as keeper:
            pool.companions.append(keeper)
            yield Place(pool, indexer, keeper)
            pool.close()


def memory(node_id: str, content: str, memory_type: str = "observation", **fields: Any) -> NodeUpsert:
    """Return a memory to write; `created_at` in microseconds, `attributes` as a dict, other fields are extras."""
    created, attributes = fields.pop("created_at", None), fields.pop("attributes", None)
    extras = NodeExtrasUpsert(confidence=fields.pop("confidence", 1.0), **fields)
    own = None if attributes is None else json.dumps(attributes, sort_keys=True, separators=(",", ":"))
    return NodeUpsert(0, node_id, memory_type, content, own, created_at=created, extras=extras)


def put(store: OpenStore, nodes: Iterable[NodeUpsert], edges: Iterable[EdgeUpsert] = ()) -> None:
    """Write nodes and edges in one commit."""
    store.submit(WriteBatch(nodes=[*nodes], edges=[*edges])).result(PATIENCE)


def row_of(store: OpenStore, node_id: str) -> NodeRow:
    """Return the row of an existing node."""
    with store.reading() as rows:
        row = rows.node(node_id)
    assert row is not None
    return row


def exported(of: StoreHandle) -> list[str]:
    """Return sorted export lines without the fields that every write changes."""
    with open_store_export_stream(of) as stream:
        lines = [json.loads(line) for line in b"".join(stream).splitlines()]
    return sorted(json.dumps(_still(line), sort_keys=True) for line in lines if line.get("kind") in {"node", "edge"})


def _still(line: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in line.items() if name not in MOVING}
    if isinstance(kept.get("attributes"), dict):
        kept["attributes"] = {name: value for name, value in kept["attributes"].items() if name not in MOVING}
    return kept
