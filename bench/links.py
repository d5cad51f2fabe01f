"""Edges into other stores: `python -m bench.links [--stores N] [--links N] [--walks N]`.

Walks of depth 10 through 200 stores that are linked in a ring and as a tree, with the stores closed and open, and
beside a store that is written; whether the time of an answer tells a hidden store from one that is not there; what
writing a link costs beside an edge; and a store with 100,000 links.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Report, times
from bench.server import Client, Server, end_when_told
from bench.wire import Wire, request
from kgserve.platform.access.authentication import add_key, mint
from kgserve.storage.layout import Layout

STORES = 200
LINKS = 100_000
WALKS = 20
DEPTH = 10
MOST_STORES = 16
MOST_MS = 1_000
FEW_OPEN = 24
"""Stores kept open where walks shall find theirs closed: each opens 11 to 16, and others are walked in between."""
PAIRS = 300
SETTINGS: dict[str, object] = {"indexes": False, "shutdown_grace": 120, "rate_limit": 0}
OWN, HIDDEN, ABSENT, NOWHERE = "own", "hidden", "absent", "nowhere"
HUB_LINKS = 1_000

_encode = msgspec.json.Encoder().encode


def name(number: int) -> str:
    """A store's name."""
    return f"s{number:03}"


def link(source: str, target: str, into: str, kind: str) -> dict[str, object]:
    """An edge into another store."""
    return {"from": source, "to": target, "relation_type": kind, "to_graph": into}


def make(client: Client, stores: int) -> None:
    """Stores with a node that has 50 of its own, linked to the next one (NEXT) and to two further down (CHILD)."""
    for number in range(stores):
        nodes = [{"id": each, "type": "thing", "content": each} for each in ("n", *(f"leaf-{at}" for at in range(50)))]
        within = [{"from": "n", "to": f"leaf-{at}", "relation_type": "HAS"} for at in range(50)]
        links = [link("n", "n", name((number + 1) % stores), "NEXT")]
        links += [link("n", "n", name(at), "CHILD") for at in (2 * number + 1, 2 * number + 2) if at < stores]
        client.call("POST", f"/api/memory/{name(number)}/inject", {"nodes": nodes, "edges": [*within, *links]})


def walk(wire: Wire, start: int, kind: str, direction: str = "outgoing") -> tuple[float, int]:
    """Milliseconds, and how many stores were walked through."""
    body = {"start_id": "n", "depth": DEPTH, "relation_types": [kind], "direction": direction, "follow_symlinks": True}
    answer = wire.ask(request("POST", f"/api/memory/{name(start)}/traverse", body))
    return answer.milliseconds, len({each["store"] for each in answer.json()["nodes"]})


def walks(report: Report, data: Path, stores: int, count: int) -> None:
    """Of the ring and of the tree: cold, warm, against the links, and beside a writer."""
    step = stores // count
    with Server(data, {**SETTINGS, "max_open_stores": FEW_OPEN}) as server, Wire(server.port) as wire:
        first, _ = walk(wire, 0, "NEXT", "both")
        report.fact("the first walk both ways after a start, with nothing collected yet", f"{first:.0f} ms")
        for what, kind, direction in WAYS:
            found = [walk(wire, number * step, kind, direction) for number in range(count)]
            _note(report, f"{what}, stores closed", found)
        server.stop()
    with Server(data, {**SETTINGS, "max_open_stores": stores}) as server, Wire(server.port) as wire:
        for what, kind, direction in WAYS:
            start = 0 if kind == "CHILD" else 1
            walk(wire, start, kind, direction)
            _note(report, f"{what}, stores open", [walk(wire, start, kind, direction) for _ in range(count)])
        with writing(server.port, name(3)) as written:
            for what, kind, direction in WAYS:
                _note(
                    report,
                    f"{what}, a store of it being written",
                    [walk(wire, 1, kind, direction) for _ in range(count)],
                )
        report.notes.append(f"beside these walks {len(written):,} links were written")
        server.stop()


WAYS = (
    ("ring", "NEXT", "outgoing"),
    ("ring, both ways", "NEXT", "both"),
    ("tree", "CHILD", "outgoing"),
    ("tree, both ways", "CHILD", "both"),
)


def _note(report: Report, what: str, found: Sequence[tuple[float, int]]) -> None:
    took, most = times([each for each, _ in found]), max(through for _, through in found)
    figure = f"{took}, longest {took.longest:.0f} ms; {most} stores"
    report.at_most(what, figure, took.p50, MOST_MS, "ms at p50")
    if most > MOST_STORES:
        report.check(f"{what}: stores", f"{most}", ok=False)


@contextmanager
def writing(port: int, store: str) -> Generator[list[int]]:
    """Have a thread write links into a store's journal, one after another."""
    over, written = threading.Event(), list[int]()

    def write() -> None:
        with Client(port) as client:
            while not over.is_set():
                edges = [link("n", f"t{len(written)}", NOWHERE, "WRITTEN")]
                client.call("POST", f"/api/memory/{store}/inject", {"edges": edges})
                written.append(len(written))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def secrecy(report: Report, data: Path) -> None:
    """Answers to a key that does not see a store, beside those about stores that are not there."""
    data.mkdir()
    admin, text = mint("bench", "admin", ["*"], time.time_ns() // 1000, None)
    add_key(data, admin)
    reader, own = mint("reader", "write", [OWN], time.time_ns() // 1000, None)
    add_key(data, reader)
    with Server(data, SETTINGS) as server, Wire(server.port) as wire:

        def ask(key: str, method: str, path: str, body: object) -> tuple[float, int]:
            ready = request(method, path, body)
            answer = wire.send(ready.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1))
            return answer.milliseconds, answer.status

        nodes = [{"id": each, "type": "thing"} for each in ("x", HIDDEN, ABSENT, NOWHERE)]
        for store in (OWN, HIDDEN):
            ask(text, "POST", f"/api/memory/{store}/inject", {"nodes": nodes})
        links = [link(each, "x", each, "TO") for each in (HIDDEN, ABSENT, NOWHERE)]
        ask(text, "POST", f"/api/memory/{OWN}/inject", {"edges": links})

        def asked(what: str) -> Callable[[str], tuple[float, int]]:
            follow = {"depth": DEPTH, "follow_symlinks": True, "direction": "both"}
            links_to = {"edges": [link("x", "x", "", "R")]}
            return {
                "a walk to it": lambda store: ask(
                    own, "POST", f"/api/memory/{OWN}/traverse", {"start_id": store, **follow}
                ),
                "a link into it": lambda store: ask(
                    own, "POST", f"/api/memory/{OWN}/inject", {"edges": [{**links_to["edges"][0], "to_graph": store}]}
                ),
                "its links": lambda store: ask(own, "GET", f"/api/memory/{store}/links", None),
            }[what]

        for what in ("a walk to it", "a link into it", "its links"):
            _pairs(report, what, asked(what))
        server.stop()


def _pairs(report: Report, what: str, ask: Callable[[str], tuple[float, int]]) -> None:
    """The stores in turn, so that what else the machine does meets all of them."""
    took: dict[str, list[float]] = {store: [] for store in (HIDDEN, ABSENT, NOWHERE)}
    statuses: dict[str, set[int]] = {store: set() for store in took}
    order = [*took]
    for number in range(PAIRS):
        for store in (*order[number % 3 :], *order[: number % 3]):
            milliseconds, status = ask(store)
            took[store].append(milliseconds)
            statuses[store].add(status)
    middle = {store: statistics.median(each) for store, each in took.items()}
    apart = statistics.median(a - b for a, b in zip(took[HIDDEN], took[ABSENT], strict=True))
    noise = statistics.median(abs(a - b) for a, b in zip(took[ABSENT], took[NOWHERE], strict=True))
    figure = f"hidden {middle[HIDDEN]:.2f} ms, absent {middle[ABSENT]:.2f} ms, apart {1000 * apart:+.0f} µs"
    report.within(f"hidden: {what}", figure, abs(apart), noise, "median between two that are absent")
    report.check(
        f"hidden: {what}: the answers", f"{statuses[HIDDEN]}", ok=len(set(map(frozenset, statuses.values()))) == 1
    )


def costs(report: Report, data: Path) -> None:
    """Of writing one link beside one edge, taking turns."""
    with Server(data, SETTINGS) as server, Wire(server.port) as wire:
        nodes = [{"id": f"n{number}", "type": "thing"} for number in range(1_001)]
        wire.ask(request("POST", f"/api/memory/{OWN}/inject", {"nodes": nodes}))
        took: dict[str, list[float]] = {"edge": [], "link": []}
        for number in range(500):
            edge = {"from": "n1000", "to": f"n{number}", "relation_type": "R"}
            for kind, one in (("edge", edge), ("link", {**edge, "to_graph": NOWHERE})):
                ready = request("POST", f"/api/memory/{OWN}/inject", {"edges": [one]})
                took[kind].append(wire.ask(ready).milliseconds)
        middle = {kind: statistics.median(each) for kind, each in took.items()}
        figures = (f"{times(took['link']).fine}", f"{times(took['edge']).fine}")
        report.compare("a link is written", *figures, middle["link"] / middle["edge"])
        server.stop()


def many(report: Report, data: Path, links: int) -> None:
    """One store with many links: import, manifest, deletion of a node with 1,000, opening without views."""
    with Server(data, SETTINGS) as server, server.client() as client:
        began = time.perf_counter()
        client.upload("edges", _lines(links, None))
        of_edges = time.perf_counter() - began
        began = time.perf_counter()
        answer = client.upload("many", _lines(links, "elsewhere"))
        took = time.perf_counter() - began
        report.compare(
            f"import of {links:,} links", f"{links / took:,.0f}/s", f"{links / of_edges:,.0f} edges/s", took / of_edges
        )
        report.check("links that are there", f"{answer['edges_created']:,}", ok=answer["edges_created"] == links)
        with Wire(server.port) as wire:
            manifest = [wire.ask(request("GET", "/api/memory/many/links")) for _ in range(WALKS)]
            told = sum(each["edge_count"] for each in manifest[0].json()["outbound"])
            report.fact("the manifest", f"{times([each.milliseconds for each in manifest[1:]])}")
            report.check("links in the manifest", f"{told:,}", ok=told == links)
            gone = [wire.ask(request("DELETE", f"/api/memory/many/nodes/n{number}")) for number in range(10)]
            report.fact(f"a node with {HUB_LINKS:,} links is deleted", f"{times([each.milliseconds for each in gone])}")
            edges = [wire.ask(request("DELETE", f"/api/memory/edges/nodes/n{number}")) for number in range(10)]
            report.fact(
                f"a node with {HUB_LINKS:,} edges is deleted", f"{times([each.milliseconds for each in edges])}"
            )
        server.stop()
    shutil.rmtree(Layout(data, "many").views)
    with Server(data, SETTINGS) as server, Wire(server.port) as wire:
        opened = wire.ask(request("GET", "/api/memory/many/nodes/n20"))
        report.fact("opened without views: a node with its links", f"{opened.milliseconds:.0f} ms")
        told = wire.ask(request("GET", "/api/memory/many/links"))
        left = sum(each["edge_count"] for each in told.json()["outbound"])
        report.check("links after that", f"{left:,}", ok=left == links - 10 * HUB_LINKS)
        server.stop()


def _lines(links: int, into: str | None) -> Iterator[bytes]:
    """A store of nodes with 1,000 links each, or as many edges to nodes of its own."""
    hubs = links // HUB_LINKS
    nodes = [f"n{number}" for number in range(hubs)] + [f"t{number}" for number in range(HUB_LINKS)]
    yield b"".join(_encode({"kind": "node", "id": each, "type": "thing"}) + b"\n" for each in nodes)
    for hub in range(hubs):
        lines: list[dict[str, Any]] = [
            {"kind": "edge", "from": f"n{hub}", "to": f"t{at}", "relation_type": "R"} for at in range(HUB_LINKS)
        ]
        more = {} if into is None else {"to_graph": f"{into}-{hub % 10}"}
        yield b"".join(_encode({**line, **more}) + b"\n" for line in lines)


def run(report: Report, stores: int = STORES, links: int = LINKS, count: int = WALKS) -> None:
    """All of it, each in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kgserve-links-", ignore_cleanup_errors=True) as folder:
        data = {part: Path(folder) / part for part in ("walks", "secrecy", "costs", "many")}
        with Server(data["walks"], {**SETTINGS, "max_open_stores": FEW_OPEN}) as server, server.client() as client:
            make(client, stores)
            server.stop()
        walks(report, data["walks"], stores, count)
        secrecy(report, data["secrecy"])
        costs(report, data["costs"])
        many(report, data["many"], links)


def main(arguments: Sequence[str]) -> int:
    """Run for what is asked for, and print. Exit code 1 when a mark is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.links", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--stores", type=int, default=STORES, help=f"in the ring and the tree (default {STORES})")
    parser.add_argument("--links", type=int, default=LINKS, help=f"of one store (default {LINKS:,})")
    parser.add_argument("--walks", type=int, default=WALKS, help=f"of each kind (default {WALKS})")
    given = parser.parse_args(arguments)
    end_when_told()
    report = Report(f"links: {given.stores} stores in a ring and as a tree, and one with {given.links:,}")
    try:
        run(report, given.stores, given.links, given.walks)
    finally:
        report.show()
    return int(any(line.met is False for line in report.lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
