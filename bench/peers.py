"""Reads, statements, small writes and an import over HTTP, next to PostgreSQL, SQLite and the bare engine in one run.

`python -m bench.peers [--graph wordnet|dense] [--only PART …] [--quick]`. PostgreSQL takes part if `BENCH_POSTGRES` is
the URL of a database, such as `postgresql://bench@127.0.0.1:5432/bench`, whose server trusts the connection. It makes
the same JSON from tables with indexes, and each request is made to both in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from bench import graphs
from bench.measure import BenchmarkReport, clock, rounded, times
from bench.postgres import CREATE_GRAPH, POSTGRES_URL_VARIABLE, PUT_BATCH, PostgresConnection, get_postgres_url
from bench.rows import API, COUNT, HEALTH, POINT, STORE, BenchmarkGraph, run_parts_on_graph
from bench.server import HASHING, ServerProcess, serving
from bench.wire import RawConnection, request

PAGE = 100
MIN_HUB_EDGES = 40
"""Edges from which on a node is asked for its neighbours: WordNet has few with a hundred."""
TWO_STEPS = "MATCH (a:Entity {id: $id})-[:RELATES_TO]->()-[:RELATES_TO]->(c:Entity) RETURN count(*)"
BY_RELATION = "MATCH ()-[r:RELATES_TO]->() RETURN r.relation_type, count(*) ORDER BY r.relation_type"
NODE = "json_build_object('id', id, 'type', type, 'content', content, 'attributes', attributes)"
EDGE = "json_build_object('from', source, 'relation_type', relation_type, 'to', target, 'weight', weight)"
STATEMENTS = {
    "get": f"SELECT {NODE} FROM node WHERE id = $1",
    "node": f"""SELECT json_build_object('node', {NODE},
        'outgoing', (SELECT json_agg({EDGE}) FROM edge WHERE source = $1),
        'incoming', (SELECT json_agg({EDGE}) FROM edge WHERE target = $1)) FROM node WHERE id = $1""",
    "list": f"SELECT json_agg({NODE}) FROM (SELECT * FROM node WHERE type = $1 ORDER BY id LIMIT {PAGE}) AS page",
    "neighbours": f"""SELECT json_agg(json_build_object('edge', {EDGE}, 'node', {NODE})) FROM
        (SELECT e.source, e.relation_type, e.target, e.weight, n.id, n.type, n.content, n.attributes
        FROM edge e JOIN node n ON n.id = e.target WHERE source = $1 ORDER BY e.target LIMIT {PAGE}) AS page""",
    "walk": f"""WITH RECURSIVE walk(id, depth) AS (SELECT $1::text, 0 UNION
        SELECT e.target, w.depth + 1 FROM walk w JOIN edge e ON e.source = w.id WHERE w.depth < $2::int),
        reached AS MATERIALIZED (SELECT id, min(depth) AS depth FROM walk GROUP BY id)
        SELECT json_build_object('nodes', (SELECT json_agg({NODE}) FROM reached JOIN node USING (id)), 'edges',
        (SELECT json_agg({EDGE}) FROM edge JOIN reached s ON s.id = source JOIN reached t ON t.id = target))""",
    "point": "SELECT json_build_array(id, content) FROM node WHERE id = $1",
    "two steps": "SELECT count(*) FROM edge a JOIN edge b ON b.source = a.target WHERE a.source = $1",
    "by relation": """SELECT json_agg(json_build_array(relation_type, total) ORDER BY relation_type)
        FROM (SELECT relation_type, count(*) AS total FROM edge GROUP BY relation_type) AS counted""",
    "put": PUT_BATCH,
}


class GraphPeer(NamedTuple):
    """The graph in PostgreSQL, and the rows per second at which it was copied there."""

    connection: PostgresConnection
    copied: float


class MeasuredRequest(NamedTuple):
    """A request to kgserve, and the statement and parameters of the same question to PostgreSQL."""

    ready: bytes
    statement: str
    parameters: tuple[str, ...]


def load_into_postgres(ground: BenchmarkGraph, url: str) -> GraphPeer:
    """Copy all rows into new tables with indexes, and prepare the statements."""
    connection = PostgresConnection(url)
    connection.run(CREATE_GRAPH)
    start = time.perf_counter()
    connection.copy("node (id, type, content, attributes)", _copy_blocks(map(_node_columns, ground.rows.nodes)))
    connection.copy("edge (source, relation_type, target, weight)", _copy_blocks(map(_edge_columns, ground.rows.edges)))
    copied = ground.total / (time.perf_counter() - start)
    connection.run("VACUUM ANALYZE node, edge")
    for name, statement in STATEMENTS.items():
        connection.prepare(name, statement)
    return GraphPeer(connection, copied)


def _node_columns(node: dict[str, Any]) -> tuple[str, ...]:
    return node["id"], node["type"], node["content"], json.dumps(node.get("attributes", {}))


def _edge_columns(edge: dict[str, Any]) -> tuple[str, ...]:
    return edge["from"], edge["relation_type"], edge["to"], str(edge.get("weight", 1.0))


def _copy_blocks(rows: Iterator[tuple[str, ...]], size: int = 1_000) -> Iterator[bytes]:
    """Yield rows as text of COPY."""
    escapes = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
    lines: list[str] = []
    for row in rows:
        lines.append("\t".join(each.translate(escapes) for each in row) + "\n")
        if len(lines) == size:
            yield "".join(lines).encode()
            lines.clear()
    yield "".join(lines).encode()


class PeerComparison:
    """Asks kgserve and PostgreSQL the same in turn, and reports the medians."""

    def __init__(self, report: BenchmarkReport, server: ServerProcess, peer: GraphPeer | None) -> None:
        self.report = report
        self.server = server
        self._peer = peer
        self._wire = RawConnection(server.port)

    def compare(self, what: str, questions: Sequence[MeasuredRequest], count: Callable[[Any], Any] = len) -> None:
        """Report the p50 of both; ``count`` turns a decoded answer into what both must agree on."""
        own, other, differing = list[float](), list[float](), 0
        for question in questions[:10]:
            self._wire.ask(question.ready)
        for question in questions:
            answer = self._wire.ask(question.ready)
            own.append(answer.milliseconds)
            if self._peer is not None:
                theirs = self._peer.connection.ask(question.statement, *question.parameters)
                other.append(theirs.milliseconds)
                differing += count(answer.json()) != count(msgspec.json.decode(theirs.value or b"null"))
        figure = f"{times(own)}, {self._processor_milliseconds(questions):.2f} ms CPU"
        if not other:
            self.report.fact(what, figure)
            return
        took = times(other)
        self.report.compare(what, figure, f"PostgreSQL {took}", times(own).p50 / took.p50, ("≤", 1.0))
        if differing:
            self.report.check(f"{what}: answers that differ from PostgreSQL's", str(differing), ok=False)

    def processor_milliseconds_of_health(self) -> float:
        """Return the processor time of the server's smallest answer."""
        return self._processor_milliseconds([MeasuredRequest(HEALTH, "", ())] * 500)

    def _processor_milliseconds(self, questions: Sequence[MeasuredRequest]) -> float:
        """Return the server's processor time for each request, of enough requests for the clock of the system."""
        asked = [question.ready for question in questions]
        asked *= max(1, 500 // len(asked))
        before = self.server.processor_seconds()
        for ready in asked:
            self._wire.ask(ready)
        return (self.server.processor_seconds() - before) * 1000 / len(asked)


def reads(ground: BenchmarkGraph, peer: GraphPeer | None, *, quick: bool) -> BenchmarkReport:
    """Compare nodes, lists, neighbours and walks."""
    report, ids = BenchmarkReport(f"reads: {ground.title}"), ground.ids(20, 200)
    counted = Counter(edge["from"] for edge in ground.rows.edges)
    hubs = [id_ for id_, edges in counted.most_common(100) if edges >= MIN_HUB_EDGES] or ids[:10]
    kinds = [kind for kind, _ in Counter(node["type"] for node in ground.rows.nodes).most_common(4)]
    with serving(HASHING, ground.copy("read")) as (server, _):
        both = PeerComparison(report, server, peer)
        both.compare(
            "get, one id",
            [MeasuredRequest(request("POST", f"{API}/get", {"ids": [id_]}), "get", (id_,)) for id_ in ids],
            lambda answer: answer["nodes"][0]["content"] if "nodes" in answer else answer["content"],
        )
        both.compare(
            "node and its edges",
            [MeasuredRequest(request("GET", f"{API}/nodes/{id_}"), "node", (id_,)) for id_ in ids],
            lambda answer: (answer["node"]["content"], *(len(answer[side] or ()) for side in ("outgoing", "incoming"))),
        )
        both.compare(
            f"list by type, {PAGE}",
            [
                MeasuredRequest(request("GET", f"{API}/nodes?type={kind}&limit={PAGE}"), "list", (kind,))
                for kind in kinds * (5 if quick else 25)
            ],
            lambda answer: sorted(node["id"] for node in (answer["nodes"] if isinstance(answer, dict) else answer)),
        )
        both.compare(
            f"neighbours, at most {PAGE}",
            [
                MeasuredRequest(request("GET", f"{API}/nodes/{id_}/outgoing?limit={PAGE}"), "neighbours", (id_,))
                for id_ in hubs
            ],
            lambda answer: len(answer["edges"] if isinstance(answer, dict) else answer),
        )
        for depth in (1, 2, 3):
            walk = {"depth": depth, "max_nodes": 10_000}
            both.compare(
                f"walk, depth {depth}",
                [
                    MeasuredRequest(
                        request("POST", f"{API}/traverse", {"start_id": id_, **walk}), "walk", (id_, str(depth))
                    )
                    for id_ in ids
                ],
                lambda answer: (len(answer["nodes"]), len(answer["edges"] or ())),
            )
    return report


def statements(ground: BenchmarkGraph, peer: GraphPeer | None, *, quick: bool) -> BenchmarkReport:
    """Compare Cypher with SQL, and with the same statements in the bare engine."""
    report, ids, (engine, _) = BenchmarkReport(f"statements: {ground.title}"), ground.ids(20, 200), ground.engine

    def cypher(query: str, **values: str) -> bytes:
        return request("POST", f"{API}/cypher", {"query": query, "params": values})

    with serving(HASHING, ground.copy("asked")) as (server, _):
        both = PeerComparison(report, server, peer)
        for what, query, statement in (
            ("Cypher, by id", POINT, "point"),
            ("Cypher, two steps", TWO_STEPS, "two steps"),
        ):
            both.compare(
                what,
                [MeasuredRequest(cypher(query, id=id_), statement, (id_,)) for id_ in ids],
                lambda answer: _flat(answer["rows"]) if isinstance(answer, dict) else _flat(answer),
            )
            bare = [clock(lambda id_=id_, query=query: engine.run(query, {"id": id_})) for id_ in ids]
            report.fact(f"{what}: bare engine", str(times(bare)))
        both.compare(
            f"aggregate over {len(ground.rows.edges):,} edges",
            [MeasuredRequest(cypher(BY_RELATION), "by relation", ())] * (3 if quick else 20),
            lambda answer: answer["rows"] if isinstance(answer, dict) else answer,
        )
        report.fact("/health", f"{both.processor_milliseconds_of_health():.2f} ms CPU")
    return report


def _flat(value: Any) -> list[Any]:
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]


def writes(ground: BenchmarkGraph, peer: GraphPeer | None, *, quick: bool) -> BenchmarkReport:
    """Compare batches of 5 nodes and 5 edges from one client: new, updated, and unchanged."""
    report, count = BenchmarkReport(f"writes of 5 nodes and 5 edges: {ground.title}"), 40 if quick else 200
    kinds = {
        "new": [_batch(f"new-{number}", "A note.") for number in range(count)],
        "updated": [_batch(f"new-{number}", "A note, once more.") for number in range(count)],
        "unchanged": [_batch(f"new-{number}", "A note, once more.") | {"touch": False} for number in range(count)],
    }
    with serving(HASHING, ground.copy("written")) as (server, _):
        both = PeerComparison(report, server, peer)
        for kind, batches in kinds.items():
            path, encoded = f"{API}/inject", [msgspec.json.encode(batch).decode() for batch in batches]
            questions = [
                MeasuredRequest(request("POST", path, batch), "put", (text,))
                for batch, text in zip(batches, encoded, strict=True)
            ]
            _compare_writes(both, f"inject, {kind}", questions, peer)
    return report


def _compare_writes(
    both: PeerComparison, what: str, questions: Sequence[MeasuredRequest], peer: GraphPeer | None
) -> None:
    own, other = list[float](), list[float]()
    with RawConnection(both.server.port) as wire:
        for question in questions:
            own.append(wire.ask(question.ready).milliseconds)
            other += [peer.connection.ask(question.statement, *question.parameters).milliseconds] if peer else []
    if other:
        took = times(other)
        both.report.compare(what, str(times(own)), f"PostgreSQL {took}", times(own).p50 / took.p50, ("≤", 1.0))
    else:
        both.report.fact(what, str(times(own)))


def _batch(name: str, content: str) -> dict[str, Any]:
    ids = [f"{name}-{number}" for number in range(5)]
    ends = zip(ids, ids[1:] + ids[:1], strict=True)
    edges = [{"from": a, "to": b, "relation_type": "mentions", "weight": 0.5} for a, b in ends]
    return {"nodes": [{"id": id_, "type": "note", "content": content} for id_ in ids], "edges": edges}


def loading(ground: BenchmarkGraph, peer: GraphPeer | None, *, quick: bool) -> BenchmarkReport:
    """Compare an import of all lines with decoding them and inserting the rows into SQLite and PostgreSQL."""
    report, total = BenchmarkReport(f"import: {ground.title}{', part' if quick else ''}"), ground.total
    began, start = time.process_time(), time.perf_counter()
    graphs.read(ground.file)
    decoding = time.perf_counter() - start
    _, near = ground.loaded
    near_used = (time.process_time() - began) / total * 1e6
    with serving(HASHING | {"indexes": False}) as (server, client):
        parts = [ground.file.read_bytes()]
        before = server.processor_seconds()
        seconds = clock(lambda: client.upload(STORE, parts)) / 1000
        used = (server.processor_seconds() - before) / total * 1e6
        with RawConnection(server.port) as wire:
            wire.ask(request("POST", f"{API}/cypher", {"query": COUNT}))
    rate = total / seconds
    near_rate = total / (decoding + near)
    report.compare("rows per second", rounded(rate), f"SQLite {rounded(near_rate)}", rate / near_rate)
    report.compare("CPU per row", f"{used:.2f} µs", f"SQLite {near_used:.2f} µs", used / near_used, ("≤", 0.8))
    if peer is not None:
        peer_rate = 1 / (1 / peer.copied + decoding / total)
        report.compare("rows per second", rounded(rate), f"PostgreSQL {rounded(peer_rate)}", rate / peer_rate)
    return report


PARTS: dict[str, Callable[..., BenchmarkReport]] = {
    "loading": loading,
    "reads": reads,
    "statements": statements,
    "writes": writes,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Return 1 if answers differ."""
    url = get_postgres_url()
    if url is None:
        print(f"PostgreSQL is not measured: {POSTGRES_URL_VARIABLE} is not set")
    return run_parts_on_graph(
        "peers", __doc__ or "", PARTS, arguments, lambda ground: [load_into_postgres(ground, url) if url else None]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
