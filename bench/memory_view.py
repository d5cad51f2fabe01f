"""What the memory view costs with 100,000 memories: making it, following, and every question.

    python -m bench.memory_view [memories]

It prints milliseconds of the processor, the middle of several, for each question alone; the rows are made up.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kgserve.memory import analytics
from kgserve.memory import lists as memory_lists
from kgserve.memory.api import MemoriesQuery
from kgserve.memory.entities_api import ConfidenceQuery, CountsQuery, EntitiesQuery, GrowthQuery, RelationsQuery
from kgserve.memory.presentation import now_in_microseconds
from kgserve.platform.text.similarity import fingerprint, text_hash
from kgserve.projections.memory_index.decay import DAY
from kgserve.projections.memory_index.memories import Fading
from kgserve.storage.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.storage.model.change import Access
from kgserve.storage.model.fields import NodeExtrasPut
from kgserve.storage.model.filters import MemoryFilter
from kgserve.stores.pool import StorePool
from kgserve.stores.store import OpenStore
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

MEMORIES = 100_000
ENTITIES = 5_000
AT_ONCE = 5_000
TIMES = 15
TYPES = ("observation", "fact", "decision", "preference", "learning", "error", "pattern", "procedure")
NOW = now_in_microseconds()


def main() -> None:
    """Fill a store, and ask."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MEMORIES
    with (
        tempfile.TemporaryDirectory() as folder,
        StorePool(settings(Path(folder))) as pool,
        pool.lease(NAME, create=True) as store,
    ):
        fill(store, count)
        build(store)
        follow(store)
        ask(store)
        lists(pool)


def fill(store: OpenStore, count: int) -> None:
    """Memories about entities, of which one is a hub; relations between entities; and uses."""
    choice = random.Random(1)
    entities = [NodePut(0, f"e{n}", "person", extras=NodeExtrasPut(name=f"Entity {n}")) for n in range(ENTITIES)]
    relations = [EdgePut(0, (f"e{n}", f"e{choice.randrange(ENTITIES)}", f"r{n % 9}")) for n in range(ENTITIES)]
    store.submit(WriteBatch(nodes=entities, edges=relations)).result()
    for start in range(0, count, AT_ONCE):
        puts = [memory(choice, number) for number in range(start, min(start + AT_ONCE, count))]
        edges = [EdgePut(0, (put.id, f"e{choice.randrange(ENTITIES)}", "is_about")) for put in puts]
        edges += [EdgePut(0, (put.id, "e0", "is_about")) for put in puts[::2]]
        store.submit(WriteBatch(nodes=puts, edges=edges)).result()
        used = [Access(put.id, 3, NOW - choice.randrange(50) * DAY, 0.8) for put in puts[::5]]
        store.submit(WriteBatch(accesses=used)).result()


def memory(choice: random.Random, number: int) -> NodePut:
    """A memory of some type, tags and age."""
    extras = NodeExtrasPut(
        tags=(f"topic:{choice.randrange(200)}", f"user:{choice.randrange(20)}"),
        confidence=choice.choice((0.5, 0.8, 1.0)),
        source=choice.choice(("", "chat", "file")),
        layer=choice.choice((None, 2, 3)),
        ended="" if number % 20 else "merged",
    )
    created = NOW - choice.randrange(400 * 24) * (DAY // 24)
    text = f"Note {number}: the service {choice.randrange(999)} listens on port {choice.randrange(65_536)}."
    return NodePut(0, f"m{number:07}", choice.choice(TYPES), text, extras=extras, created_at=created)


def build(store: OpenStore) -> None:
    """Make the file anew."""
    started = time.thread_time()
    total = store.memories.ask(lambda memories, _: memories.total())
    size = store.layout.memories.stat().st_size / 1e6
    print(f"made anew: {time.thread_time() - started:.1f} s, {total} memories in force, {size:.0f} MB")


def follow(store: OpenStore) -> None:
    """Take in one new memory with two edges, and one change, at a time."""
    choice = random.Random(2)
    spent: list[float] = []
    for number in range(200):
        put = memory(choice, 10_000_000 + number)
        batch = WriteBatch(nodes=[put], edges=[EdgePut(0, (put.id, each, "is_about")) for each in ("e1", "e2")])
        store.submit(batch).result()
        started = time.thread_time()
        store.memories.ask(lambda memories, _: memories.total())
        spent.append(time.thread_time() - started)
    print(f"following one new memory: {1000 * statistics.median(spent):.2f} ms")


def ask(store: OpenStore) -> None:
    """The questions of the write path, the keeper and recall."""
    ids = [f"m{number:07}" for number in range(1, 100_000, 997)]
    text = "Note 5: the service 5 listens on port 5."
    digests = text_hash(text), fingerprint(text)
    strong = MemoryFilter(NOW, min_confidence=0.3)
    narrow = MemoryFilter(NOW, types=("fact",), tags=("topic:7",), min_confidence=0.3, source="chat", layer=2)
    hub = MemoryFilter(NOW, entity="e0", min_confidence=0.5)
    measure("live values of 100", lambda: store.memories.ask(lambda memories, _: memories.live(ids)))
    measure("by hash and print", lambda: store.memories.ask(lambda memories, _: memories.alike(*digests, NOW)))
    measure("by name", lambda: store.memories.ask(lambda memories, _: memories.named("ENTITY 77")))
    measure("count by confidence", lambda: store.memories.ask(lambda memories, _: memories.count(strong, 20_000)))
    measure("count, all filters", lambda: store.memories.ask(lambda memories, _: memories.count(narrow, 20_000)))
    measure("ids, all filters", lambda: store.memories.ask(lambda memories, _: memories.ids(narrow, 20_000)))
    measure("ids about a hub", lambda: store.memories.ask(lambda memories, _: memories.ids(hub, 20_000)))
    measure("1,000 to prune", lambda: store.memories.ask(lambda view, _: view.faded(0.05, NOW, Fading(), 1000)))


def lists(pool: StorePool) -> None:
    """Lists and analytics, as callers get them, without HTTP."""
    graph = graph_of(pool, NAME)

    def page(**query: object) -> Callable[[], object]:
        return lambda: memory_lists.list_memories(graph, MemoriesQuery(**query))  # pyright: ignore[reportArgumentType]

    measure("list: newest 20", page())
    measure("list: newest 100", page(limit=100))
    measure("list: by confidence", page(sort="confidence"))
    measure("list: by use, at least 0.3", page(sort="accessed", min_confidence=0.3))
    measure("list: a tag, by update", page(sort="updated", tags=["topic:7"]))
    measure("list: a type and a source", page(types=["fact"], source="chat"))
    measure("list: about a hub", page(entity="e0"))
    measure("list: about another", page(entity="e7"))
    measure("list: three tags that nothing has", page(tags=["user:1", "user:2", "user:3"]))
    measure("list: nothing in all", page(source="nobody"))
    measure("list: with 10,000 passed over", page(offset=10_000))
    measure("entities", lambda: memory_lists.list_entities(graph, EntitiesQuery(name="entity 1")))
    measure("relations", lambda: memory_lists.list_relations(graph, RelationsQuery()))
    measure("overview", lambda: analytics.overview(graph))
    measure("histogram", lambda: analytics.confidence(graph, ConfidenceQuery()))
    measure("growth", lambda: analytics.growth(graph, GrowthQuery(by="month")))
    measure("types", lambda: analytics.types(graph, CountsQuery()))
    measure("tags", lambda: analytics.tags(graph, CountsQuery()))


def measure(name: str, question: Callable[[], object]) -> None:
    """Print the middle of several."""
    spent: list[float] = []
    for _ in range(TIMES):
        started = time.thread_time()
        question()
        spent.append(time.thread_time() - started)
    print(f"{name}: {1000 * statistics.median(spent):.2f} ms (worst {1000 * max(spent):.1f})")


if __name__ == "__main__":
    main()
