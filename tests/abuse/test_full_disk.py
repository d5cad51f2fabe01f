"""Full disk: row 74 of the abuse list."""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from bench.agreement import find_inconsistencies
from bench.server import BenchClient, HttpReply, ServerProcess
from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import batch, settings, until
from tests.stores.writing import write as submitted

STORE = "full"
QUICK: dict[str, object] = {"embedding_provider": "hashing", "buffer_pool_mb": 64}
FULL = "urn:kgserve:error:storage_full"


@contextmanager
def no_file_beyond(pid: int, size: int) -> Generator[None]:
    """Limit the size of all files of a process, which has the effect of a full disk."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def write(client: BenchClient, name: str, size: int) -> HttpReply:
    nodes = [{"id": name, "type": "t", "content": "x" * size}]
    return client.send("POST", f"/api/memory/{STORE}/inject", msgspec.json.encode({"nodes": nodes}))


def assert_readable(client: BenchClient, kept: set[str], *, statements: bool = True) -> None:
    """Assert that all data can be read; ``statements`` may be refused while the engine's file cannot grow."""
    assert {line["id"] for line in client.export(STORE)} == kept
    assert client.call("GET", f"/api/memory/{STORE}/nodes/n0")["node"]["id"] == "n0"
    assert client.call("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n0"})["nodes"]
    asked = client.send("POST", f"/api/memory/{STORE}/cypher", msgspec.json.encode({"query": "RETURN 1"}))
    assert asked.status in ({200} if statements else {200, 503, 507}), asked.body
    assert client.call("GET", "/health")["status"] == "ok"


@pytest.mark.abuse(74)
def test_writes_are_refused_until_there_is_room(tmp_path: Path) -> None:
    kept: set[str] = set()
    with ServerProcess(tmp_path / "data", QUICK) as server, server.client() as client:
        for number in range(3):
            assert write(client, f"n{number}", 1_000).status == 200
            kept.add(f"n{number}")
        # The first statement starts the fork server of the engine, which passes its own limits to its processes.
        client.call("PUT", "/api/memory/other")
        client.call("POST", "/api/memory/other/cypher", {"query": "RETURN 1"})
        journal = client.call("GET", f"/api/memory/{STORE}/stats")["journal_bytes"]
        with no_file_beyond(server.pid, journal + 300_000):
            for number in range(12):
                reply = write(client, f"large{number}", 100_000)
                if reply.status == 200:
                    kept.add(f"large{number}")
                    continue
                assert (reply.status, reply.json()["type"]) == (507, FULL)
            assert 3 < len(kept) < 12
            assert_readable(client, kept, statements=False)
        until(lambda: write(client, "after", 100_000).status == 200)
        kept.add("after")
        assert_readable(client, kept)
        assert find_inconsistencies(client, STORE) == []
    with ServerProcess(tmp_path / "data", QUICK) as server, server.client() as client:
        assert_readable(client, kept)


@pytest.mark.abuse(74)
def test_export_needs_no_further_disk_space(tmp_path: Path) -> None:
    """`make crash` shows the same on a small disk that is completely full; only root may mount one."""
    with StorePool(settings(tmp_path)) as pool:
        with pool.lease(STORE, create=True) as store:
            submitted(store, batch("a", "b"))
            scratch = store.layout.scratch
            scratch.rmdir() if scratch.is_dir() else None
            scratch.write_text("in the way of any file written next to the store")
        with open_store_export_stream(graph_of(pool, STORE)) as stream:
            assert b"".join(stream).count(b'"kind":"node"') == 2
