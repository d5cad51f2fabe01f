"""The hierarchy of memories against a dict: created, moved, soft-deleted, restored, deleted; restarts and kills."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import Conflict, NotFound
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory import memory_crud
from kgserve.memory.memory_models import MemoryIdRequest, StoreMemoryRequest, UpdateMemoryRequest
from kgserve.memory.serialization import now_in_microseconds
from kgserve.storage.model.soft_delete import build_memory_restore_upsert, build_memory_soft_delete_upsert
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.fuzzing import is_thorough
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

SEEDS = range(60 if is_thorough() else 2)
STEPS = 60
IDS = [f"m{number}" for number in range(12)]
LAYERS = (None, 0, 1, 2, 2, 3)


class MemoryState(msgspec.Struct):
    """Expected state of a memory: its parents by step, whether they count or not."""

    layer: int | None
    parent: str = ""
    step: int = 0
    withdrawn: bool = False


class Model:
    """Expected content of a store."""

    def __init__(self) -> None:
        self.there: dict[str, MemoryState] = {}

    def parent(self, memory: str) -> str:
        """Return the parent of a memory, ignoring cycles."""
        said = self.there[memory]
        above = self.there.get(said.parent)
        return "" if said.withdrawn or above is None or above.withdrawn else said.parent

    def counting(self) -> dict[str, str]:
        """Return the parent of each memory, without the newest step of each cycle."""
        steps = {memory: above for memory in self.there if (above := self.parent(memory))}
        for memory in list(steps):
            way = [memory]
            while (above := steps.get(way[-1])) is not None and above not in way:
                way.append(above)
            if above == memory:
                del steps[max(way, key=lambda each: self.there[each].step)]
        return steps

    def above(self, memory: str) -> list[str]:
        steps, way = self.counting(), [memory]
        while (above := steps.get(way[-1])) is not None:
            way.append(above)
        return way[1:]

    def may_move(self, memory: str, parent: str, layer: int | None) -> bool:
        """Return True if a memory of a layer may be moved below another one."""
        way = [parent]
        while (above := self.parent(way[-1])) and above not in way:
            way.append(above)
        return memory not in way and _in_order(layer, self.there[parent].layer)

    def may_be(self, memory: str, layer: int) -> bool:
        """Return True if a memory may have a layer at its position."""
        above = self.parent(memory)
        below = [child for child, parent in self.counting().items() if parent == memory]
        return (not above or _in_order(layer, self.there[above].layer)) and all(
            _in_order(self.there[child].layer, layer) for child in below
        )

    def is_there(self, memory: str) -> bool:
        return memory in self.there and not self.there[memory].withdrawn


def _in_order(child: int | None, parent: int | None) -> bool:
    return child is None or parent is None or parent <= child


class RandomizedStore:
    """A store with random changes, and its model."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.choice = random.Random(seed)
        self.folder = folder
        self.model = Model()
        self.refused = self.taken = 0

    @contextmanager
    def opened(self) -> Generator[tuple[StoreHandle, OpenStore]]:
        with StorePool(settings(self.folder)) as pool, pool.lease(NAME, create=True) as store:
            yield graph_of(pool, NAME), store

    def live(self, steps: int) -> None:
        """Change the store, and close it: cleanly, or as after a kill."""
        killed = self.choice.random() < 0.5
        with self.opened() as (graph, store):
            self.compare(store)
            for _ in range(steps):
                self.step(graph, store)
                if self.choice.random() < 0.3:
                    self.compare(store)
            self.compare(store)
            if killed:
                shutil.copytree(self.folder, self.folder.with_name("killed"), ignore=shutil.ignore_patterns("*.lock"))
        if killed:
            shutil.rmtree(self.folder)
            self.folder.with_name("killed").rename(self.folder)

    def step(self, graph: StoreHandle, store: OpenStore) -> None:
        memory, parent = self.choice.sample(IDS, 2)
        there, now = self.model.there, self.taken + self.refused + 1
        match self.choice.choice(["create", "move", "move", "move", "layer", "free", "withdraw", "back", "delete"]):
            case "create" if memory not in there:
                self._create(graph, memory, self.choice.choice(["", parent]), now)
            case "move" if self.model.is_there(memory):
                fine = self.model.is_there(parent) and self.model.may_move(memory, parent, there[memory].layer)
                if self._update(graph, memory, fine=fine, parent_id=parent) and self.model.parent(memory) != parent:
                    there[memory].parent, there[memory].step = parent, now
            case "free" if self.model.is_there(memory):
                self._update(graph, memory, fine=True, parent_id="")
                there[memory].parent = ""
            case "layer" if self.model.is_there(memory):
                layer = self.choice.randrange(4)
                if self._update(graph, memory, fine=self.model.may_be(memory, layer), layer=layer):
                    there[memory].layer = layer
            case "withdraw" | "back" as what if memory in there and there[memory].withdrawn == (what == "back"):
                self._withdraw(store, memory, back=what == "back")
            case "delete" if self.choice.random() < 0.3:
                memory_crud.delete_memory(graph, MemoryIdRequest(memory_id=memory)).result()
                there.pop(memory, None)
                for said in there.values():
                    said.parent = "" if said.parent == memory else said.parent
            case _:
                pass

    def _create(self, graph: StoreHandle, memory: str, below: str, now: int) -> None:
        layer, there = self.choice.choice(LAYERS), self.model.there
        fine = not below or (self.model.is_there(below) and _in_order(layer, there[below].layer))
        asked = StoreMemoryRequest(
            content=f"{memory} {now}", memory_id=memory, layer=layer, parent_id=below, dedup="off"
        )
        if self._done(lambda: memory_crud.store_memory(graph, asked).result(), fine=fine):
            there[memory] = MemoryState(layer, below, now)

    def _withdraw(self, store: OpenStore, memory: str, *, back: bool) -> None:
        with store.reading() as rows:
            row = rows.node(memory)
        assert row is not None
        put = build_memory_restore_upsert(row) if back else build_memory_soft_delete_upsert(row, "forgotten")
        store.submit(WriteBatch(nodes=[put])).result()
        self.model.there[memory].withdrawn = not back

    def _update(
        self, graph: StoreHandle, memory: str, *, fine: bool, parent_id: str | None = None, layer: int | None = None
    ) -> bool:
        asked = UpdateMemoryRequest(memory_id=memory, parent_id=parent_id, layer=layer)
        return self._done(lambda: memory_crud.update_memory(graph, asked).result(), fine=fine)

    def _done(self, do: object, *, fine: bool) -> bool:
        assert callable(do)
        if fine:
            do()
            self.taken += 1
        else:
            with pytest.raises((Conflict, NotFound)):
                do()
            self.refused += 1
        return fine

    def compare(self, store: OpenStore) -> None:
        now = now_in_microseconds()
        for memory in IDS:
            above = store.memories.ask(
                lambda view, _, memory=memory: [each.id for each in view.ancestors_of(memory, now)]
            )
            below = store.memories.ask(
                lambda view, _, memory=memory: view.descendants(memory, now, None, "", 99, near=False).found
            )
            ways = {each: self.model.above(each) for each in self.model.there}
            assert above == ways.get(memory, [])
            assert dict(below) == {each: way.index(memory) + 1 for each, way in ways.items() if memory in way}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hierarchy_matches_its_model(tmp_path: Path, seed: int) -> None:
    treated = RandomizedStore(tmp_path / "data", seed)
    for _ in range(4):
        treated.live(STEPS)
    for views in treated.folder.rglob("memories.sqlite*"):
        views.unlink()
    treated.live(1)
    assert treated.taken
    assert treated.refused
