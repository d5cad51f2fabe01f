"""Acknowledged writes survive a power loss, although only synced data is certain to be on disk."""

from __future__ import annotations

import random
from pathlib import Path

import kgserve
from kgserve.client.embedded import Store
from kgserve.graph.request_bodies import NodeNdjsonLine
from tests.power_loss_recording import RecordedPrograms, needs_compiler

COMMITS = 8
MOMENTS = ("gone", "0", "6", "9", "closed")
"""Number of answers after which the power fails and only synced data is left."""
TORN = 3
SMALL = {"KGSERVE_JOURNAL_SEGMENT_MB": "1", "KGSERVE_JOURNAL_RETENTION_MB": "0", "KGSERVE_BUFFER_POOL_MB": "64"}
WORK = f"""
import kgserve
life = int(sys.argv[3])
with kgserve.open(data, indexes=False) as library:
    store = library.store("s")
    if life == 0:
        library.store("gone").inject([{{"id": "a", "type": "t"}}])
        library.drop("gone", confirm="gone")
        say("gone")
    for number in range(life * {COMMITS}, (life + 1) * {COMMITS}):
        if number == {COMMITS} - 1:
            os.fdatasync = lambda _: os._exit(0)  # killed: written, and not synced
        new = {{"id": f"n{{number:02}}", "type": "t", "content": f"{{number:02}}" * 150_000}}
        sequence = store.inject([new, {{"id": "all", "type": f"t{{number}}"}}]).sequence
        say(number)
        if number % 3 == 2:
            list(store.nodes())
            store.node("all", as_of=sequence)
            with library.handle.use() as opened, opened.pool.lease("s") as leased:
                leased.compactor.run()
    store.cypher("MATCH (n:Entity) RETURN count(n)")
say("closed")
"""


@needs_compiler
def test_acknowledged_writes_and_drops_survive_a_power_loss(tmp_path: Path) -> None:
    recorded, choice = RecordedPrograms(tmp_path), random.Random(1)
    for life in ("0", "1"):
        recorded.run(WORK, life, environment=SMALL)
    said = recorded.said
    moments = {choice.randrange(recorded.length): "pages" for _ in range(TORN)}
    for at in recorded.states(moments | {said[what]: "nothing more" for what in MOMENTS}):
        # Writes of both processes that were acknowledged by then, and the one that was not.
        least = max((int(what) + 1 for what, when in said.items() if when <= at and what.isdecimal()), default=0)
        with kgserve.open(recorded.left, indexes=False) as library:
            names = {store.name for store in library.stores().stores}
            assert "gone" not in names or at < said["gone"]
            assert "s" in names or not least
            if least:
                check(library.store("s"), least)


def check(store: Store, least: int) -> None:
    nodes = {line.id for line in store.export() if isinstance(line, NodeNdjsonLine)}
    assert nodes >= {"all", *(f"n{number:02}" for number in range(least))}
    assert {node.id for node in store.nodes()} == nodes
    assert store.cypher("MATCH (n:Entity) RETURN count(n)").rows == [[len(nodes)]]
    store.node("all", as_of=store.stats().sequence)
    assert len(store.history("all", limit=100).states) == len(nodes) - 1
