"""Create the data folders that `test_upgrade.py` opens, with another version of kgserve, and record its answers.

Run it with that version on the path, from its checkout, with a folder for the archives and their names:

    PYTHONPATH=. python PATH/TO/make_store.py FOLDER closed killed

The archives "closed" and "killed" next to this script are of commit c8545b6, the last one before nodes and edges had
extras. "extended", with extras, is of 6834dd2, the last one before memories and names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from kgserve.admin import stores
from kgserve.embedding.embedder import load_embedder
from kgserve.graph import history_queries
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.mutations import delete_edge, delete_node, upsert_nodes_and_edges
from kgserve.graph.request_bodies import EdgeKeyRequest, InjectRequest
from kgserve.graph.transfer.import_export import StreamingImport, open_store_export_stream
from kgserve.graph.url_parameters import NodeHistoryRequest, NodeIdRequest, NodeListParameters, StoreChangesParameters
from kgserve.platform.settings import Settings
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of, node_of, nodes_of

STORE = "garden"
PLANTS = 24
LEAVES = 100
TOLD = "told.json"
ODD = ("it's", 'say "hi"', "two\nlines", "back\\slash", "Ünïcödé 日本 😀", " ", "a/b")


def main(target: Path, endings: list[str]) -> None:
    """Write some of the archives."""
    target.mkdir(parents=True, exist_ok=True)
    for ending in endings:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            done = subprocess.run([sys.executable, __file__, ending, str(data)], check=False)
            assert done.returncode == (-signal.SIGKILL if ending == "killed" else 0), done
            with tarfile.open(target / f"{ending}.tar.gz", "w:gz") as archive:
                archive.add(data, "data", filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def write(data: Path, ending: str) -> None:
    """Create one data folder, and record its content."""
    settings = Settings(data_dir=data, buffer_pool_mb=64, check_interval=0, embedding_provider="hashing")
    with (
        closing(TextIndexWorker(load_embedder(settings))) as indexer,
        closing(HistoryWorker()) as historian,
        StorePool(settings) as pool,
    ):
        pool.companions += [indexer, historian]
        _plant(pool)
        _compact(pool)
        _tend(pool)
        if ending == "killed":
            _add_a_tail(pool)
        if ending == "extended":
            _extend(pool)
        _tell(pool, historian, data / TOLD)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def _plant(pool: StorePool) -> None:
    plants = [{"id": f"plant-{n}", "type": "plant", "content": f"a plant called {_name(n)}"} for n in range(PLANTS)]
    odd = [{"id": name, "type": "odd", "content": name, "attributes": {"a": [1, None, name]}} for name in ODD]
    edges = [_edge(f"plant-{n}", f"plant-{(n * 7 + 1) % PLANTS}", "beside", n / PLANTS) for n in range(PLANTS)]
    edges += [_edge(name, ODD[0], "odd as", 0.25) for name in ODD]
    _inject(pool, plants + odd, edges)
    # Large enough for the engine to load by a scan, as are updates of it.
    leaves = [{"id": f"leaf-{n}", "type": "leaf", "content": f"leaf {n}"} for n in range(LEAVES)]
    _inject(pool, leaves, [_edge(f"leaf-{n}", f"plant-{n % PLANTS}", "grows on", 0.5) for n in range(LEAVES)])
    _inject(pool, [{"id": f"plant-{n}", "content": f"the {_name(n)}, watered"} for n in range(12)], [])
    delete_node(graph_of(pool, STORE), NodeIdRequest(node_id="plant-3")).result()


def _tend(pool: StorePool) -> None:
    lines = [
        {"kind": "node", "id": "sage", "type": "herb", "content": "salvia", "attributes": {"of": {"note": "ü"}},
         "version": 4, "created_at": "1999-12-31T23:59:59.5Z", "updated_at": "2001-01-01T00:00:00+02:00"},
        {"kind": "node", "id": "plant-0", "type": "plant", "content": "imported again"},
        {"kind": "edge", "from": "sage", "to": "plant-0", "relation_type": "beside", "weight": 0.75,
         "attributes": {"created_at": "2000-01-01T00:00:00Z", "since": 2}, "version": 9},
        {"kind": "edge", "from": "sage", "to": "nowhere", "relation_type": "beside"},
    ]  # fmt: skip
    importer = StreamingImport(graph_of(pool, STORE))
    importer.feed(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    importer.finish()
    edge = EdgeKeyRequest(source="plant-1", target="plant-8", relation_type="beside")
    delete_edge(graph_of(pool, STORE), edge).result()
    _inject(pool, [{"id": "plant-3", "type": "plant", "content": "planted anew"}], [])
    _inject(pool, [{"id": f"leaf-{n}", "content": f"leaf {n}, turned red"} for n in range(0, LEAVES, 2)], [])
    _inject(pool, [], [_edge("plant-2", "plant-13", "beside", 0.9)])
    _inject(pool, [], [_edge("plant-2", "plant-13", "beside", 0.9)])
    delete_node(graph_of(pool, STORE), NodeIdRequest(node_id="plant-5")).result()


def _add_a_tail(pool: StorePool) -> None:
    """Write a second snapshot, and a commit after it."""
    _compact(pool)
    _inject(pool, [{"id": "late", "type": "herb", "content": "after the second snapshot"}], [])


def _extend(pool: StorePool) -> None:
    """Write extras, also to the engine's file."""
    extras = {"summary": "in short", "tags": ["a", "b:c"], "created_by": "ada", "freshness_at": "2031-01-01T00:00:00Z"}
    edge = _edge("plant-2", "plant-13", "beside", 0.9) | {"ordinal": 7, "valid_from": "2020-01-01T00:00:00Z"}
    _inject(pool, [{"id": "plant-7", **extras}, {"id": "plant-8", "valid_from": "2020-01-01T00:00:00Z"}], [edge])


def _inject(pool: StorePool, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> None:
    upsert_nodes_and_edges(
        graph_of(pool, STORE), msgspec.convert({"nodes": nodes, "edges": edges}, InjectRequest)
    ).result()


def _edge(source: str, target: str, relation_type: str, weight: float) -> dict[str, Any]:
    return {"from": source, "to": target, "relation_type": relation_type, "weight": weight}


def _name(number: int) -> str:
    return ("fern", "moss", "rose", "lily", "thyme")[number % 5] + f" {number}"


def _compact(pool: StorePool) -> None:
    with pool.lease(STORE) as leased:
        leased.compactor.run()


def _tell(pool: StorePool, historian: HistoryWorker, path: Path) -> None:
    """Record the answers of this version."""
    with pool.lease(STORE) as leased:
        state = leased.state
    ids = [node.id for node in nodes_of(graph_of(pool, STORE), NodeListParameters(limit=1000)).nodes]
    gone = ["plant-5"]
    told = {
        "sequence": state.sequence,
        "digest": f"{state.digest:032x}",
        "stats": {
            "nodes": stores.get_store_stats(graph_of(pool, STORE)).nodes,
            "edges": stores.get_store_stats(graph_of(pool, STORE)).edges,
        },
        "nodes": {node_id: node_of(graph_of(pool, STORE), node_id) for node_id in ids},
        "export": _lines(open_store_export_stream(graph_of(pool, STORE))),
        "then": {
            str(at): _lines(open_store_export_stream(graph_of(pool, STORE), past=PastMoment(historian, str(at))))
            for at in range(state.sequence + 1)
        },
        "history": {
            node_id: history_queries.get_node_history(
                graph_of(pool, STORE, historian=historian), NodeHistoryRequest(node_id=node_id, limit=50, before=None)
            )
            for node_id in [*(node_id for node_id in ids if not node_id.startswith("leaf")), *gone]
        },
        "changes": history_queries.list_changes(graph_of(pool, STORE), StoreChangesParameters(since=0, limit=200)),
    }
    path.write_bytes(msgspec.json.encode(told))


def _lines(stream: Any) -> list[Any]:
    with stream:
        return sorted((msgspec.json.decode(line) for block in stream for line in block.splitlines()), key=repr)


if __name__ == "__main__":
    if sys.argv[1] in ("closed", "killed", "extended"):
        write(Path(sys.argv[2]), sys.argv[1])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
