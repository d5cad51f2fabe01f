"""Cypher over HTTP against the same statements in the bare engine, and what a statement that writes costs."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from contextlib import closing

import msgspec

from bench import baseline
from bench.measure import Report, Times, clock, times
from bench.prepared import STORE, Workspace
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

REPETITIONS = 100
WRITE_REPETITIONS = 5
SIZES = (100, 10_000)
STREAMED = 100_000
READS = {
    "one node by id": "MATCH (n:Entity {id: $id}) RETURN n.id, n.type, n.content",
    "neighbours": "MATCH (n:Entity {id: $id})-[e:RELATES_TO]->(m:Entity) RETURN m.id, e.relation_type",
    "three hops": "MATCH (n:Entity {id: $id})-[e:RELATES_TO* SHORTEST 1..3]->(m:Entity) RETURN m.id, length(e)",
    "counts by type": "MATCH (n:Entity) RETURN n.type, count(*)",
    "1,000 nodes": "MATCH (n:Entity) WHERE n.id >= $id RETURN n.id, n.type, n.content LIMIT 1000",
}
STREAMS = {
    "100,000 rows as NDJSON": (
        f"MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) RETURN a.id, e.relation_type, b.id LIMIT {STREAMED}"
    ),
    "100,000 relations as NDJSON": f"MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) RETURN e LIMIT {STREAMED}",
}
WRITE = "MATCH (n:Entity {id: $id}) SET n.content = n.content + '.' RETURN n.id"
ENGINE_POOL_MB = 512


def run(work: Workspace) -> Report:
    """Measure; changes the workspace's store."""
    nodes = baseline.read_rows(work.exchange_file).nodes
    ids = [node["id"] for node in nodes[:: len(nodes) // REPETITIONS]][:REPETITIONS]
    report = Report("Cypher over HTTP, WordNet")
    with Server(work.loaded_data()) as server, server.client() as client:
        engine = baseline.Engine(work.loaded_database(), ENGINE_POOL_MB)
        for what, query in READS.items():
            _compare(report, what, _served(client, STORE, query, ids), _bare(engine, query, ids))
        for what, query in STREAMS.items():
            served = clock(lambda query=query: _stream(server.port, query))
            bare = clock(lambda query=query: engine.run(query))
            report.compare(what, f"{served / 1000:.2f} s", f"{bare / 1000:.2f} s, no text", served / bare)
        _measure_writes(report, client, ids)
    report.notes.append(
        "a statement that writes is tried on a copy of the store; what that costs: bench.write_statements"
    )
    return report


def _compare(report: Report, what: str, served: Times, bare: Times) -> None:
    report.compare(what, str(served), str(bare), served.p50 / bare.p50)


def _measure_writes(report: Report, client: Client, ids: Sequence[str]) -> None:
    for size in SIZES:
        store, lines = f"cypher-{size}", b"".join(_line(number) for number in range(size))
        client.upload(store, [lines])
        written = _served(client, store, WRITE, [f"n{number}" for number in range(WRITE_REPETITIONS)], "write")
        report.fact(f"a write, {size:,} nodes", _seconds(written))
    written = _served(client, STORE, WRITE, ids[:WRITE_REPETITIONS], "write")
    report.fact("a write, WordNet", _seconds(written))
    asked = {"query": READS["one node by id"], "params": {"id": ids[0]}}
    content: str = client.call("POST", f"/api/memory/{STORE}/cypher", asked)["rows"][0][2]
    report.check("what was written is there", "yes" if content.endswith(".") else content, content.endswith("."))


def _line(number: int) -> bytes:
    return msgspec.json.encode({"kind": "node", "id": f"n{number}", "type": "t", "content": "x" * 100}) + b"\n"


def _served(client: Client, store: str, query: str, ids: Sequence[str], mode: str = "read") -> Times:
    path = f"/api/memory/{store}/cypher"
    bodies = [{"query": query, "params": {"id": node_id}, "mode": mode} for node_id in ids]
    return times([clock(lambda body=body: client.call("POST", path, body)) for body in bodies])


def _bare(engine: baseline.Engine, query: str, ids: Sequence[str]) -> Times:
    values = [{"id": node_id} if "$id" in query else {} for node_id in ids]
    return times([clock(lambda each=each: engine.run(query, each)) for each in values])


def _stream(port: int, query: str) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        connection.request("POST", f"/api/memory/{STORE}/cypher", msgspec.json.encode({"query": query}), headers)
        lines = connection.getresponse().read().count(b"\n")
    if lines != STREAMED + 2:
        raise ServerFailed(f"{lines} lines came of a stream of {STREAMED} rows")


def _seconds(measured: Times) -> str:
    return f"p50 {measured.p50 / 1000:.2f} longest {measured.longest / 1000:.2f} s"


if __name__ == "__main__":
    sys.exit(run_alone(run))
