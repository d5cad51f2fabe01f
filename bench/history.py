"""What it costs to keep every state, and what it takes to read an old one: `python -m bench.history`.

The temporal graph is WordNet, written by seed in several commits: a part is deleted later, another part is updated. Its
facts are states of nodes and edges, each with the commits between which it held. Costs are measured in alternating
pairs, for the machine's mood changes.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import wordnet
from bench.batches import PATH as INJECT
from bench.batches import changed_batch, new_batch
from bench.measure import Report, Times, clock, times
from bench.prepared import STORE, Workspace, blocks
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

SEED = 20_061_121
PARTS = 6
UPDATED = 5_000
WEIGHED = 5_000
DELETED = 200
STARTS = 100
WIDEST = 10_000
PAIRS = 3
INJECTS = 100
UPDATES = 1_000
PAGE = 50
API = f"/api/memory/{STORE}"


class Commit(NamedTuple):
    """Lines to import, and nodes to delete after that."""

    lines: list[dict[str, Any]]
    deleted: list[str]


def temporal_graph(graph: wordnet.Graph, seed: int) -> Iterator[Commit]:
    """All synsets in random order, part by part, with all edges between those there; old ones change and go."""
    choice = random.Random(seed)
    order = choice.sample(graph.nodes, len(graph.nodes))
    there: dict[str, wordnet.Synset] = {}
    pointers: list[wordnet.Pointer] = []
    for number in range(PARTS):
        part = order[number::PARTS]
        updated = choice.sample(sorted(there), min(UPDATED, len(there)))
        there.update((node.id, node) for node in part)
        fresh = {node.id for node in part}
        added = [e for e in graph.edges if e.source in there and e.target in there and {e.source, e.target} & fresh]
        weighed = choice.sample(pointers, min(WEIGHED, len(pointers)))
        lines = [_node(node, node.content) for node in part]
        lines += [_node(there[node_id], f"{there[node_id].content} ({number})") for node_id in updated]
        lines += [_edge(edge, 1.0) for edge in added]
        lines += [_edge(edge, round(choice.random(), 3)) for edge in weighed]
        doomed = choice.sample(sorted(there), DELETED)
        yield Commit(lines, doomed)
        for node_id in doomed:
            del there[node_id]
        pointers = [edge for edge in (*pointers, *added) if edge.source in there and edge.target in there]


def run(work: Workspace) -> Report:
    """Measure all three."""
    report = Report("history: WordNet as it grows and changes, over HTTP")
    graph = wordnet.read(wordnet.folder())
    _past(report, work, graph)
    _cost(report, work, graph)
    return report


def _past(report: Report, work: Workspace, graph: wordnet.Graph) -> None:
    with Server(work.folder / "temporal", {"indexes": False}) as server, server.client() as client:
        facts, middle = _write(client, temporal_graph(graph, SEED))
        report.check("dated facts", f"{facts:,} in {_sequence(client):,} commits", facts >= 100_000)
        _caught_up(client)
        starts = _starts(client, middle)
        now = _walk(client, starts, {})
        for what, moment in (("half-way", middle), ("now", _sequence(client))):
            then = _walk(client, starts, {"as_of": f"{moment}"})
            report.compare(
                f"traverse, depth 2, as of {what}", str(then), f"current {now}", then.p50 / now.p50, ("≤", 3.0)
            )
        by_time = client.call("GET", f"{API}/changes?since={middle - 1}&limit=1")["changes"][0]["time"]
        then = _walk(client, starts, {"as_of": by_time})
        report.compare("the same by time", str(then), f"current {now}", then.p50 / now.p50, ("≤", 3.0))
        pages = {moment: _list(client, moment) for moment in ("", f"?as_of={middle}", f"?as_of={middle}&type=noun")}
        report.fact("1,000 nodes listed: now, half-way, half-way of a type", ", ".join(map(str, pages.values())))
        _flat(report, client)
        report.fact("on disk", f"{_bytes(work.folder / 'temporal') / 1e6:,.0f} MB of history")
    report.notes.append(
        f"traverse: {STARTS} random starts that are there at both moments, the same for all, one client"
    )


def _write(client: Client, commits: Iterator[Commit]) -> tuple[int, int]:
    """The number of facts, and the last commit of the first half."""
    facts = middle = 0
    for number, commit in enumerate(commits):
        answer = client.upload(STORE, (msgspec.json.encode(line) + b"\n" for line in commit.lines))
        facts += sum(answer[f"{rows}_{done}"] for rows in ("nodes", "edges") for done in ("created", "updated"))
        for node_id in commit.deleted:
            client.call("DELETE", f"{API}/nodes/{node_id}")
        if number == PARTS // 2 - 1:
            middle = _sequence(client)
    return facts, middle


def _starts(client: Client, middle: int) -> list[str]:
    """Nodes that are there half-way and at the end."""
    then = {line["id"] for line in _export(client, f"?as_of={middle}") if line["kind"] == "node"}
    now = {line["id"] for line in _export(client, "") if line["kind"] == "node"}
    return random.Random(SEED).sample(sorted(then & now), STARTS)


def _flat(report: Report, client: Client) -> None:
    """A node that is updated again and again: its first page and its last take the same."""
    for number in range(UPDATES):
        client.call("POST", INJECT, {"nodes": [{"id": "restless", "type": "note", "content": f"{number}"}]})
    _caught_up(client)
    versions: list[int] = []
    pages: list[float] = []
    before: int | None = None
    while True:
        path = f"{API}/nodes/restless/history?limit={PAGE}" + (f"&before={before}" if before else "")
        start = time.perf_counter()
        page = client.call("GET", path)
        pages.append((time.perf_counter() - start) * 1000)
        versions += [state["node"]["version"] for state in page["states"]]
        before = page["next_before"]
        if before is None:
            break
    report.check("versions of a node", f"{len(versions):,}", versions == list(range(UPDATES, 0, -1)))
    first, last = statistics.median(pages[:5]), statistics.median(pages[-5:])
    figure, base = f"{last:.1f} ms", f"first five {first:.1f} ms"
    report.compare(f"history, {PAGE} a page: last five", figure, base, last / first, ("≤", 1.5))


def _cost(report: Report, work: Workspace, graph: wordnet.Graph) -> None:
    imports: dict[bool, list[float]] = {True: [], False: []}
    injects: dict[bool, list[Times]] = {True: [], False: []}
    for pair in range(PAIRS):
        for on in (False, True) if pair % 2 else (True, False):
            seconds, inject = _once(report, work, graph, pair, on=on)
            imports[on].append(seconds)
            injects[on].append(inject)
    on, off = (statistics.median(imports[kept]) for kept in (True, False))
    report.compare("import with history", f"{on:.2f} s", f"without {off:.2f} s", on / off, ("≤", 1.1))
    slow, fast = (statistics.median(each.p50 for each in injects[kept]) for kept in (True, False))
    report.compare("inject 5 + 5", f"p50 {slow:.2f} ms", f"without {fast:.2f} ms", slow / fast, ("≤", 1.1))
    report.notes.append(
        f"import, inject: medians of {PAIRS} alternating pairs, without indexes; import {_listed(imports[True])} s"
        f" with, {_listed(imports[False])} s without"
    )


def _once(report: Report, work: Workspace, graph: wordnet.Graph, pair: int, *, on: bool) -> tuple[float, Times]:
    name = f"history-{pair}-{on}"
    with Server(work.folder / name, {"indexes": False, "history": on}) as server, server.client() as client:
        start = time.perf_counter()
        client.upload(STORE, blocks(work.exchange_file))
        seconds = time.perf_counter() - start
        if on:
            start = time.perf_counter()
            _caught_up(client)
            report.fact("history seen after an import", f"{time.perf_counter() - start:.1f} s later")
        if on and pair == 0:
            before = _sequence(client)
            client.upload(STORE, blocks(work.exchange_file))
            states = client.call("GET", f"{API}/nodes/{graph.nodes[0].id}/history")["states"]
            made = _sequence(client) - before + len(states) - 1
            report.check("states made by a second import", f"{made}", made == 0)
        return seconds, _inject(client, graph)


def _inject(client: Client, graph: wordnet.Graph) -> Times:
    batches = [new_batch(f"new-{n}", random.Random(SEED + n), graph) for n in range(INJECTS)]
    batches += [changed_batch(random.Random(SEED + n), graph) for n in range(INJECTS)]
    return times([clock(lambda batch=batch: client.call("POST", INJECT, batch)) for batch in batches])


def _walk(client: Client, starts: Sequence[str], more: dict[str, str]) -> Times:
    bodies = [{"start_id": start, "depth": 2, "max_nodes": WIDEST, **more} for start in starts]
    for body in bodies[:20]:
        client.call("POST", f"{API}/traverse", body)
    return times([clock(lambda body=body: client.call("POST", f"{API}/traverse", body)) for body in bodies])


def _list(client: Client, query: str) -> Times:
    path = f"{API}/nodes{query}{'&' if query else '?'}limit=1000"
    return times([clock(lambda: client.call("GET", path)) for _ in range(10)])


def _export(client: Client, query: str) -> list[dict[str, Any]]:
    reply = client.send("GET", f"{API}/export{query}")
    if reply.status != 200:
        raise ServerFailed(f"export{query}: {reply.status} {reply.body[:300]!r}")
    return [msgspec.json.decode(line) for line in reply.body.splitlines()]


def _caught_up(client: Client) -> None:
    """Wait until the history has seen the last commit: it is asked for that one."""
    end = time.monotonic() + 300
    while client.send("GET", f"{API}/nodes?limit=1&as_of={_sequence(client)}").status != 200:
        if time.monotonic() > end:
            raise ServerFailed("the history does not catch up")


def _sequence(client: Client) -> int:
    return int(client.call("GET", f"{API}/stats")["sequence"])


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("history.sqlite*"))


def _node(node: wordnet.Synset, content: str) -> dict[str, Any]:
    return {"kind": "node", "id": node.id, "type": node.type, "content": content, "attributes": node.attributes}


def _edge(edge: wordnet.Pointer, weight: float) -> dict[str, Any]:
    ends = {"from": edge.source, "to": edge.target}
    return {"kind": "edge", **ends, "relation_type": edge.relation_type, "weight": weight}


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


if __name__ == "__main__":
    sys.exit(run_alone(run))
