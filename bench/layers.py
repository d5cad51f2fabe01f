"""What the hierarchy of memories costs, with 100,000 in 20 domains: `python -m bench.layers [--memories N]`.

Pages of what stands below a domain over HTTP, beside the same asked of Cypher by recursion; moving a subtree of 5,000;
making all anew. Of the ways to know what is below, that both come to the same is checked.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.server import Client, Server, end_when_told
from kgserve.platform.settings import load
from kgserve.projections.memory_index.closure import Hierarchy
from kgserve.stores.pool import StorePool

STORE = "layers"
DOMAINS = 20
CONCEPTS = 50
"""Of each domain."""
TIMES = 100
BUSY = 503
SETTINGS: dict[str, object] = {"indexes": False, "shutdown_grace": 120}
BELOW = (
    "MATCH (d:Entity {id: $id})<-[:RELATES_TO* ACYCLIC 1..20 (r, n | WHERE r.relation_type = 'child_of')]-(m:Entity) "
    "RETURN m.id ORDER BY m.id LIMIT $limit"
)


def main() -> int:
    """Fill a store, ask, move, and make it anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    count = parser.parse_args().memories
    end_when_told()
    with tempfile.TemporaryDirectory() as folder:
        with Server(Path(folder), SETTINGS) as server, server.client() as client:
            client.upload(STORE, lines(count))
            while client.send("POST", f"/api/memory/{STORE}/cypher", b'{"query": "RETURN 1"}').status == BUSY:
                time.sleep(0.5)
            pages(client)
            moves(client, count)
        anew(Path(folder))
    return 0


def lines(count: int) -> Iterator[bytes]:
    """Domains, their concepts, and facts and episodes below one of these or below each other, nodes first."""
    encode = msgspec.json.Encoder().encode
    parents = hierarchy(count)
    for number, parent in enumerate(parents):
        layer = 0 if parent < 0 else 1 if parent < DOMAINS else 2
        node = {"kind": "node", "id": name(number), "type": "fact", "content": f"Note {number}", "layer": layer}
        yield encode(node | {"confidence": 1.0}) + b"\n"
    for number, parent in enumerate(parents):
        if parent >= 0:
            edge = {"kind": "edge", "from": name(number), "to": name(parent), "relation_type": "child_of"}
            yield encode(edge) + b"\n"


def hierarchy(count: int) -> list[int]:
    """What each stands below: the domains nothing, then concepts below them, then facts, at times below each other."""
    choice = random.Random(1)
    general = DOMAINS * (CONCEPTS + 1)
    parents = [-1] * DOMAINS + [number % DOMAINS for number in range(DOMAINS * CONCEPTS)]
    for number in range(len(parents), count):
        deep = number > general + 1_000 and choice.random() < 0.3
        parents.append(choice.randrange(general, number) if deep else choice.randrange(DOMAINS, general))
    return parents


def name(number: int) -> str:
    """The id of a memory."""
    return f"m{number:07}"


def pages(client: Client) -> None:
    """A page of what is below a domain, all of it, its ancestors and a list of it; the same of Cypher."""
    first = {"limit": 100, "id": name(0)}
    page = timed("descendants, a page of 100", lambda: client.call("GET", below(0, 100)))
    recursive = timed("the same ids by recursive Cypher", lambda: cypher(client, first), 10)
    assert [each["id"] for each in client.call("GET", below(0, 100))] == cypher(client, first)
    print(f"    Cypher takes {recursive / page:.0f} times as long")
    timed("descendants of one layer, a page of 100", lambda: client.call("GET", f"{below(0, 100)}&layer=1"))
    timed("a list of 100 under a domain", lambda: client.call("GET", listed("under=m0000000&limit=100")))
    timed("a list of 100 orphans", lambda: client.call("GET", listed("orphans=true&limit=100")))
    timed("ancestors of a leaf", lambda: client.call("GET", f"/api/v1/memories/{name(99_999)}/ancestors?store={STORE}"))
    timed(
        "one memory with children and parent", lambda: client.call("GET", f"/api/v1/memories/{name(0)}?store={STORE}")
    )
    found, after = set[str](), ""
    while some := client.call("GET", f"{below(0, 1000)}&cursor={after}" if after else below(0, 1000)):
        found |= {each["id"] for each in some}
        after = some[-1]["id"]
    assert found == set(cypher(client, {"id": name(0), "limit": 100_000}))
    print(f"    {len(found)} below a domain, the same by both")


def moves(client: Client, count: int) -> None:
    """A whole domain's memories to another one and back, a concept, a leaf; each with a read behind it."""
    for what, moved, here, there in (
        ("a subtree of a domain's size", 1, "", name(2)),
        ("a concept", DOMAINS, name(0), name(3)),
        ("a leaf", count - 1, name(DOMAINS), name(DOMAINS + 1)),
    ):
        size = len(client.call("GET", below(moved, 1000)))
        places = iter([there, here] * TIMES)
        timed(
            f"moving {what} ({size if size < 1000 else '1000 or more'} below), with a read",
            lambda moved=moved, places=places: move(client, name(moved), next(places)),
            10,
        )
    timed("a read alone", lambda: client.call("GET", below(5, 1)), 10)


def move(client: Client, memory: str, parent: str) -> None:
    """Put a memory elsewhere, and see it."""
    client.call("PUT", f"/api/memories/{memory}?store={STORE}", {"parent_id": parent})
    client.call("GET", f"/api/v1/memories/{memory}/ancestors?store={STORE}")


def anew(folder: Path) -> None:
    """Make the view, and of it the hierarchy alone, anew."""
    for each in folder.rglob("memories.sqlite*"):
        each.unlink()
    with StorePool(load({"data_dir": folder}, {})) as pool, pool.lease(STORE) as store:
        started, worked = time.perf_counter(), time.thread_time()
        store.memories.ask(lambda memories, _: memories.total())
        took, worked = time.perf_counter() - started, time.thread_time() - worked
        print(f"the memory view made anew: {took:.1f} s, {worked:.1f} s of the processor")
    with sqlite3.connect(next(folder.rglob("memories.sqlite"))) as connection:
        started, worked = time.perf_counter(), time.thread_time()
        Hierarchy(connection).rebuild()
        took, worked = time.perf_counter() - started, time.thread_time() - worked
        [pairs] = connection.execute("SELECT count(*) FROM closure").fetchone()
        print(f"    of it the hierarchy: {took:.1f} s, {worked:.1f} s of the processor, {pairs} pairs")


def below(number: int, limit: int) -> str:
    """The path of a page of what is below a memory."""
    return f"/api/v1/memories/{name(number)}/descendants?store={STORE}&limit={limit}"


def listed(query: str) -> str:
    """The path of a list."""
    return f"/api/memories?store={STORE}&{query}"


def cypher(client: Client, params: dict[str, Any]) -> list[str]:
    """What Cypher finds below a memory."""
    asked = {"query": BELOW, "params": params, "max_rows": 100_000, "timeout_ms": 120_000}
    return [row[0] for row in client.call("POST", f"/api/memory/{STORE}/cypher", asked)["rows"]]


def timed(what: str, do: Callable[[], object], times: int = TIMES) -> float:
    """Print the middle of several, in milliseconds."""
    do()
    spent: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        do()
        spent.append(1000 * (time.perf_counter() - started))
    print(f"{what}: {statistics.median(spent):.2f} ms (best {min(spent):.2f})", flush=True)
    return min(spent)


if __name__ == "__main__":
    sys.exit(main())
