"""Clients that write and read registers all at once, and note when they asked what and what they were told."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import msgspec

from bench.register import READ, Checker, Operation, Step, misnumbered
from bench.register_faces import ANCHOR, EDGES, NODES, Face, Refused, Rest, Sought, Tools, Unclear

REST_CLIENTS = 5
MODES = ("auto", "legacy", "auto")
PAUSE = 0.01
SEARCH = "search"


class Site:
    """One store of a server that may go and come again, and what its clients have noted. Times are of one clock."""

    def __init__(self, store: str, seed: int, most: float = math.inf) -> None:
        """``most``: after so many operations all is over."""
        self.store = store
        self._most = most
        self.seed = seed
        self.up = asyncio.Event()
        self.over = False
        self.url = ""
        self.life = -1
        self.values = count(1)
        self.history: defaultdict[str, list[Operation]] = defaultdict(list)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.problems: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._ended: dict[int, float] = {}
        self._lost: list[tuple[int, Operation]] = []
        self._waits: list[tuple[str, Operation, int]] = []

    def begins(self, url: str) -> None:
        """A server answers there from now on."""
        self.url, self.life = url, self.life + 1
        self.up.set()

    def leaves(self) -> None:
        """The server is about to end: who has no answer yet waits for it, and nobody asks anew."""
        self.up.clear()

    def ended(self) -> None:
        """It has ended, and does nothing any more."""
        self._ended[self.life] = time.monotonic()

    def problem(self, what: str) -> None:
        """Something that must not be, whatever it is; where operations are counted all is over then."""
        self.problems[what] += 1
        self.over = self.over or self._most < math.inf

    def note(self, face: str, what: str, key: str, operation: Operation) -> None:
        """An operation that was answered."""
        self.counts[face, what, "answered"] += 1
        self.over = self.over or self.counts.total() >= self._most
        self.history[key].append(operation)

    def lose(self, face: str, what: str, key: str, operation: Operation, life: int) -> None:
        """A write that was not: it may have been carried out for as long as its server was there."""
        self.counts[face, what, "unknown"] += 1
        operation.unknown = True
        self.history[key].append(operation)
        if operation.end == math.inf:
            self._lost.append((life, operation))

    def wait_for(self, key: str, operation: Operation, sequence: int) -> None:
        """A look that has to show whatever was acknowledged up to a commit."""
        self._waits.append((key, operation, sequence))

    def violations(self) -> list[str]:
        """What cannot have been, by key."""
        for life, operation in self._lost:
            operation.end = max(self._ended.get(life, math.inf), operation.start)
        for key, operation, sequence in self._waits:
            history = enumerate(self.history[key])
            # Those that were over before it began come before it anyhow.
            operation.after = frozenset(
                place
                for place, each in history
                if 0 < each.sequence <= sequence and not each.only_looks and each.end >= operation.start
            )
        found = [
            f"{self.store}, {key}: {what}"
            for key, history in self.history.items()
            for what in (Checker(history, restarts=key in EDGES).violation(), *misnumbered(history))
            if what
        ]
        return found + [f"{self.store}: {problem}" for problem in self.problems]


class Visitor:
    """One client: what it does is chosen at random."""

    def __init__(self, site: Site, face: Face, number: int) -> None:
        self._site = site
        self._face = face
        self._name = f"{face.NAME} {number}"
        self._choice = random.Random(f"{site.seed} {site.store} {number}")
        self._seen: dict[str, int] = {}
        self._last: tuple[str, Operation] | None = None

    async def stay(self) -> None:
        """Come whenever there is a server, until all is over."""
        while not self._site.over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._site.up.wait(), 0.1)
            if self._site.up.is_set():
                await self._come()

    async def _come(self) -> None:
        site, life = self._site, self._site.life
        try:
            await self._visit(life)
        except Exception as error:  # noqa: BLE001  # a connection that breaks raises what its transport likes
            if site.up.is_set() and site.life == life:
                site.problem(f"{self._name}: {error!r}")
                await asyncio.sleep(0.5)

    async def _visit(self, life: int) -> None:
        site = self._site
        async with self._face.visit(site.url):
            while site.up.is_set() and site.life == life and not site.over:
                key = self._choice.choice((*NODES, *EDGES))
                try:
                    await (self._write(key, life) if self._choice.random() < 0.4 else self._look(key))
                except (Refused, Unclear) as problem:
                    site.refusals[str(problem)] += 1
                    await asyncio.sleep(5 * PAUSE)
                await asyncio.sleep(PAUSE * self._choice.random())

    async def _write(self, key: str, life: int) -> None:
        site, step = self._site, self._step(key)
        in_cypher = self._choice.random() < 0.1
        operation = Operation(step=step, start=time.monotonic(), end=math.inf, who=self._name)
        try:
            told = await self._face.write(key, step, in_cypher=in_cypher)
        except Refused:
            site.counts[self._face.NAME, step.kind, "refused"] += 1
            raise
        except Unclear:
            # It has said that it is done with it: what may have happened has by now.
            operation.end = time.monotonic()
            site.lose(self._face.NAME, step.kind, key, operation, life)
            raise
        except BaseException:
            site.lose(self._face.NAME, step.kind, key, operation, life)
            raise
        operation.end = time.monotonic()
        operation.answer, operation.sequence = told
        site.note(self._face.NAME, step.kind, key, operation)
        self._last = key, operation
        if isinstance(told.answer, tuple):
            self._seen[key] = told.answer[0]

    def _step(self, key: str) -> Step:
        kinds = [kind for kind in self._face.KINDS if key in NODES or kind != "put"]
        kind, value = self._choice.choice(kinds), next(self._site.values)
        match kind:
            case "delete":
                return Step(kind="delete")
            case "set":
                return Step(kind="set", value=value)
            case "put":
                seen = self._seen.get(key) if self._choice.random() < 0.7 else None
                return Step(kind="put", value=value, based_on=seen)
            case _:
                return Step(kind="inject", value=value)

    async def _look(self, key: str) -> None:
        site, start = self._site, time.monotonic()
        way = self._choice.choice(self._face.NODE_LOOKS if key in NODES else self._face.EDGE_LOOKS)
        sought, value = Sought(), 0
        if way == SEARCH:
            if self._last is None:
                return
            # What it shows may be of any moment from that write on.
            last_key, last = self._last
            start, sought = last.start, Sought(key, last.sequence)
            if last_key in NODES and last.step.value and not last.only_looks:
                key, value = last_key, last.step.value
                sought = Sought(str(value), last.sequence)
        try:
            looked = await self._face.look(way, key, sought)
        except (Refused, Unclear):
            site.counts[self._face.NAME, way, "refused"] += 1
            raise
        end, who = time.monotonic(), f"{self._name}, {way}"
        for each, (shown, sequence) in looked.items():
            operation = Operation(step=READ, start=start, end=end, answer=shown, sequence=sequence, who=who)
            if shown is None and value:
                operation.step, operation.answer = Step(kind="lacks", value=value), True
            site.note(self._face.NAME, way, each, operation)
            if sought.at_least:
                site.wait_for(each, operation, sought.at_least)
            if shown is not None:
                self._seen[each] = shown[1]


def visitors(site: Site, rest_clients: int = REST_CLIENTS, modes: Sequence[str] = MODES) -> list[Visitor]:
    """Clients of a store, over all faces."""
    faces: list[Face] = [Rest(site.store) for _ in range(rest_clients)]
    faces += [Tools(site.store, "legacy" if mode == "legacy" else "auto") for mode in modes]
    return [Visitor(site, face, number) for number, face in enumerate(faces)]


def beginning() -> bytes:
    """What a store must hold before its clients come, as an inject: what the edges join."""
    nodes = [{"id": each, "type": ANCHOR} for each in (ANCHOR, *EDGES)]
    return msgspec.json.encode({"nodes": nodes})
