"""Links of a killed server: acknowledged links exist, and so does everything derived from them.

The server is killed (SIGKILL) while several clients put and delete links, and nodes with links, over five stores. After
each start, the stores must export what was acknowledged, and requests in progress completely or not at all. Manifests
and traversals must agree with the export.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from bench.server import BenchClient, ServerFailed, ServerProcess
from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # found here by pytest
from tests.fuzzing import is_thorough

STORES = ("alpha", "beta", "gamma", "delta", "epsilon")
WRITERS = 3
NODES = 6
DEPTH = 10
SETTINGS: dict[str, object] = {"indexes": False, "max_open_stores": 3, "compact_wal_mb": 1, "journal_segment_mb": 1}

Place = tuple[str, str]
Link = tuple[Place, Place]


class Step(NamedTuple):
    """Effect of one request: put a node with a link, delete a link, or delete a node with all of its links."""

    kind: str
    source: Place
    target: Place


class AcknowledgedLinks:
    """Acknowledged nodes and links."""

    def __init__(self, nodes: Collection[Place] = (), links: Collection[Link] = ()) -> None:
        self.nodes = set(nodes)
        self.links = set(links)

    def after(self, step: Step) -> AcknowledgedLinks:
        """Return the state after a step."""
        source, link = step.source, (step.source, step.target)
        match step.kind:
            case "put":
                return AcknowledgedLinks({*self.nodes, source}, {*self.links, link})
            case "unlink":
                return AcknowledgedLinks(self.nodes, self.links - {link})
            case _:
                return AcknowledgedLinks(self.nodes - {source}, {each for each in self.links if each[0] != source})

    def of(self, writer: int) -> AcknowledgedLinks:
        """Return the part that belongs to one writer; each has its own nodes."""
        mark = f"w{writer}-"
        return AcknowledgedLinks(
            {each for each in self.nodes if each[1].startswith(mark)},
            {each for each in self.links if each[0][1].startswith(mark)},
        )

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, AcknowledgedLinks) and (self.nodes, self.links) == (other.nodes, other.links)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - mutable

    def manifest(self, store: str) -> tuple[Counter[str], Counter[str]]:
        """Return the numbers of links from a store into each other one, and from each into it."""
        out = Counter(into for (of, _), (into, _) in self.links if of == store)
        return out, Counter(of for (of, _), (into, _) in self.links if into == store)

    def reached(self, start: Place, direction: str) -> dict[Place, int]:
        """Return the nodes that a traversal over links reaches, with depths."""
        found, frontier = {start: 0}, [start]
        for depth in range(1, DEPTH + 1):
            around = {end for place in frontier for end in self._around(place, direction)}
            beyond = around - found.keys()
            found |= dict.fromkeys(beyond, depth)
            frontier = [place for place in beyond if place in self.nodes]
        return found

    def _around(self, place: Place, direction: str) -> set[Place]:
        out = {target for source, target in self.links if source == place and direction != "incoming"}
        return out | {source for source, target in self.links if target == place and direction != "outgoing"}


class Writer(threading.Thread):
    """A client that writes about its own nodes; ``under_way`` is the unanswered request."""

    def __init__(self, port: int, number: int, held: AcknowledgedLinks, seed: int) -> None:
        super().__init__()
        self.number = number
        self.held = held
        self.under_way: Step | None = None
        self.wrong: list[str] = []
        self.done = 0
        self._port = port
        self._choice = random.Random(seed)

    @override
    def run(self) -> None:
        """Write until the server is gone."""
        with suppress(OSError, HTTPException), BenchClient(self._port) as client:
            while True:
                step = self.under_way = self._step()
                try:
                    _do(client, step)
                except ServerFailed as error:
                    self.wrong.append(f"refused: {step}: {error}")
                    return
                self.held, self.under_way, self.done = self.held.after(step), None, self.done + 1

    def _step(self) -> Step:
        choice = self._choice
        source = (choice.choice(STORES), f"w{self.number}-{choice.randrange(NODES)}")
        into = choice.choice([each for each in STORES if each != source[0]])
        target = (into, f"w{choice.randrange(WRITERS)}-{choice.randrange(NODES)}")
        kind = choice.choices(("put", "unlink", "delete"), (80, 12, 8))[0]
        own = [each for each in self.held.links if each[0][0] == source[0]]
        if kind == "unlink" and own:
            source, target = choice.choice(sorted(own))
        return Step(kind if source in self.held.nodes else "put", source, target)


def _do(client: BenchClient, step: Step) -> None:
    (store, node), (into, target) = step.source, step.target
    edge = {"from": node, "to": target, "relation_type": "R", "to_graph": into}
    path = f"/api/memory/{store}"
    match step.kind:
        case "put":
            client.call("POST", f"{path}/inject", {"nodes": [{"id": node, "type": "t"}], "edges": [edge]})
        case "unlink":
            client.call("DELETE", f"{path}/edges", edge)
        case _:
            client.call("DELETE", f"{path}/nodes/{node}")


def exported(client: BenchClient) -> AcknowledgedLinks:
    """Return the content of all stores."""
    held = AcknowledgedLinks()
    for store in STORES:
        for line in client.export(store):
            if line["kind"] == "node":
                held.nodes.add((store, line["id"]))
            else:
                held.links.add(((store, line["from"]), (line["to_graph"], line["to"])))
    return held


def compared(client: BenchClient, held: AcknowledgedLinks, choice: random.Random) -> list[str]:
    """Return differences between manifests or traversals and the stores."""
    wrong: list[str] = []
    for store in STORES:
        told = client.call("GET", f"/api/memory/{store}/links")
        sides = ({each["graph_id"]: each["edge_count"] for each in told[side]} for side in ("outbound", "inbound"))
        if (found := tuple(sides)) != (expected := tuple(map(dict, held.manifest(store)))):
            wrong.append(f"manifest of {store}: {found}, not {expected}")
    for start in choice.sample(sorted(held.nodes), min(4, len(held.nodes))):
        for direction in ("outgoing", "incoming", "both"):
            body = {"start_id": start[1], "depth": DEPTH, "direction": direction, "follow_symlinks": True}
            told = client.call("POST", f"/api/memory/{start[0]}/traverse", body)
            reached = {(each["store"], each["id"]): each["depth"] for each in told["nodes"]}
            if reached != held.reached(start, direction):
                wrong.append(f"walk {direction} from {start}: {reached}, not {held.reached(start, direction)}")
    return wrong


def settled(writers: list[Writer], found: AcknowledgedLinks) -> list[str]:
    """Return differences between stores and acknowledged writes; unanswered ones may exist or not."""
    wrong = [fault for writer in writers for fault in writer.wrong]
    for writer in writers:
        own = found.of(writer.number)
        possible = [writer.held, *([writer.held.after(writer.under_way)] if writer.under_way else [])]
        if own not in possible:
            lacks, extra = writer.held.links - own.links, own.links - writer.held.links
            wrong.append(f"writer {writer.number}, {writer.under_way} under way: lacks {lacks}, has {extra}")
    return wrong


def run(rounds: int, seed: int, data: Path) -> tuple[int, list[str]]:
    """Return the number of acknowledged writes, and the violations."""
    choice, wrong, done = random.Random(seed), list[str](), 0
    server = ServerProcess(data, SETTINGS)
    try:
        with server.client() as client:
            for store in STORES:
                client.call("PUT", f"/api/memory/{store}")
            held = exported(client)
        for number in range(rounds):
            writers = [Writer(server.port, each, held.of(each), choice.getrandbits(32)) for each in range(WRITERS)]
            for writer in writers:
                writer.start()
            time.sleep(choice.uniform(0.3, 1.5))
            server.kill()
            for writer in writers:
                writer.join()
            done += sum(writer.done for writer in writers)
            server = ServerProcess(data, SETTINGS)
            with server.client() as client:
                held = exported(client)
                faults = settled(writers, held) + compared(client, held, choice)
            wrong += [f"round {number}: {fault}" for fault in faults]
        server.stop()
    finally:
        if server.running:
            server.kill()
    return done, wrong


def test_links_survive_kills(tmp_path: Path) -> None:
    done, wrong = run(20 if is_thorough() else 2, 7, tmp_path)
    assert wrong == []
    assert done > 0
