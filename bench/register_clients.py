"""Clients that write and read registers concurrently, and record requests and answers with their times."""

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

from bench.register import READ, LinearizabilityChecker, Operation, RegisterStep, find_misordered_commits
from bench.register_interfaces import (
    ANCHOR,
    EDGES,
    NODES,
    McpRegisters,
    OperationRejected,
    OutcomeUnknown,
    RegisterInterface,
    RestRegisters,
    SearchExpectation,
)

REST_CLIENTS = 5
MODES = ("auto", "legacy", "auto")
PAUSE = 0.01
SEARCH = "search"


class StoreUnderTest:
    """One store of a server that may restart, and the records of its clients. All times are on one clock."""

    def __init__(self, store: str, seed: int, most: float = math.inf) -> None:
        """Initialize the site; the test ends after ``most`` operations."""
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
        """Record that a server answers at ``url`` from now on."""
        self.url, self.life = url, self.life + 1
        self.up.set()

    def leaves(self) -> None:
        """Record that the server is about to end: clients finish their requests, and start no new ones."""
        self.up.clear()

    def ended(self) -> None:
        """Record that the server has ended."""
        self._ended[self.life] = time.monotonic()

    def problem(self, what: str) -> None:
        """Record a violation; if operations are counted, it ends the test."""
        self.problems[what] += 1
        self.over = self.over or self._most < math.inf

    def note(self, face: str, what: str, key: str, operation: Operation) -> None:
        """Record an acknowledged operation."""
        self.counts[face, what, "answered"] += 1
        self.over = self.over or self.counts.total() >= self._most
        self.history[key].append(operation)

    def lose(self, face: str, what: str, key: str, operation: Operation, life: int) -> None:
        """Record a write without answer; it may have been executed until its server ended."""
        self.counts[face, what, "unknown"] += 1
        operation.unknown = True
        self.history[key].append(operation)
        if operation.end == math.inf:
            self._lost.append((life, operation))

    def wait_for(self, key: str, operation: Operation, sequence: int) -> None:
        """Record a read that must show everything up to a commit."""
        self._waits.append((key, operation, sequence))

    def violations(self) -> list[str]:
        """Return the violations by key."""
        for life, operation in self._lost:
            operation.end = max(self._ended.get(life, math.inf), operation.start)
        for key, operation, sequence in self._waits:
            history = enumerate(self.history[key])
            # Operations that ended before it began precede it anyway.
            operation.after = frozenset(
                place
                for place, each in history
                if 0 < each.sequence <= sequence and not each.only_looks and each.end >= operation.start
            )
        found = [
            f"{self.store}, {key}: {what}"
            for key, history in self.history.items()
            for what in (
                LinearizabilityChecker(history, restarts=key in EDGES).violation(),
                *find_misordered_commits(history),
            )
            if what
        ]
        return found + [f"{self.store}: {problem}" for problem in self.problems]


class RegisterClient:
    """A client that performs random operations."""

    def __init__(self, site: StoreUnderTest, face: RegisterInterface, number: int) -> None:
        self._site = site
        self._face = face
        self._name = f"{face.NAME} {number}"
        self._choice = random.Random(f"{site.seed} {site.store} {number}")
        self._seen: dict[str, int] = {}
        self._last: tuple[str, Operation] | None = None

    async def stay(self) -> None:
        """Visit every server until the test ends."""
        while not self._site.over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._site.up.wait(), 0.1)
            if self._site.up.is_set():
                await self._visit_server()

    async def _visit_server(self) -> None:
        site, life = self._site, self._site.life
        try:
            await self._run_operations(life)
        except Exception as error:  # noqa: BLE001  # a broken connection raises errors of its transport
            if site.up.is_set() and site.life == life:
                site.problem(f"{self._name}: {error!r}")
                await asyncio.sleep(0.5)

    async def _run_operations(self, life: int) -> None:
        site = self._site
        async with self._face.visit(site.url):
            while site.up.is_set() and site.life == life and not site.over:
                key = self._choice.choice((*NODES, *EDGES))
                try:
                    await (self._write(key, life) if self._choice.random() < 0.4 else self._look(key))
                except (OperationRejected, OutcomeUnknown) as problem:
                    site.refusals[str(problem)] += 1
                    await asyncio.sleep(5 * PAUSE)
                await asyncio.sleep(PAUSE * self._choice.random())

    async def _write(self, key: str, life: int) -> None:
        site, step = self._site, self._step(key)
        in_cypher = self._choice.random() < 0.1
        operation = Operation(step=step, start=time.monotonic(), end=math.inf, who=self._name)
        try:
            acknowledged = await self._face.write(key, step, in_cypher=in_cypher)
        except OperationRejected:
            site.counts[self._face.NAME, step.kind, "refused"] += 1
            raise
        except OutcomeUnknown:
            # The server has acknowledged the end: effects are complete.
            operation.end = time.monotonic()
            site.lose(self._face.NAME, step.kind, key, operation, life)
            raise
        except BaseException:
            site.lose(self._face.NAME, step.kind, key, operation, life)
            raise
        operation.end = time.monotonic()
        operation.answer, operation.sequence = acknowledged
        site.note(self._face.NAME, step.kind, key, operation)
        self._last = key, operation
        if isinstance(acknowledged.answer, tuple):
            self._seen[key] = acknowledged.answer[0]

    def _step(self, key: str) -> RegisterStep:
        kinds = [kind for kind in self._face.KINDS if key in NODES or kind != "put"]
        kind, value = self._choice.choice(kinds), next(self._site.values)
        match kind:
            case "delete":
                return RegisterStep(kind="delete")
            case "set":
                return RegisterStep(kind="set", value=value)
            case "put":
                seen = self._seen.get(key) if self._choice.random() < 0.7 else None
                return RegisterStep(kind="put", value=value, based_on=seen)
            case _:
                return RegisterStep(kind="inject", value=value)

    async def _look(self, key: str) -> None:
        site, start = self._site, time.monotonic()
        way = self._choice.choice(self._face.NODE_LOOKS if key in NODES else self._face.EDGE_LOOKS)
        sought, value = SearchExpectation(), 0
        if way == SEARCH:
            if self._last is None:
                return
            # The answer may be of any moment since that write.
            last_key, last = self._last
            start, sought = last.start, SearchExpectation(key, last.sequence)
            if last_key in NODES and last.step.value and not last.only_looks:
                key, value = last_key, last.step.value
                sought = SearchExpectation(str(value), last.sequence)
        try:
            looked = await self._face.look(way, key, sought)
        except (OperationRejected, OutcomeUnknown):
            site.counts[self._face.NAME, way, "refused"] += 1
            raise
        end, who = time.monotonic(), f"{self._name}, {way}"
        for each, (shown, sequence) in looked.items():
            operation = Operation(step=READ, start=start, end=end, answer=shown, sequence=sequence, who=who)
            if shown is None and value:
                operation.step, operation.answer = RegisterStep(kind="lacks", value=value), True
            site.note(self._face.NAME, way, each, operation)
            if sought.at_least:
                site.wait_for(each, operation, sought.at_least)
            if shown is not None:
                self._seen[each] = shown[1]


def make_store_clients(
    site: StoreUnderTest, rest_clients: int = REST_CLIENTS, modes: Sequence[str] = MODES
) -> list[RegisterClient]:
    """Return clients of a store over all interfaces."""
    faces: list[RegisterInterface] = [RestRegisters(site.store) for _ in range(rest_clients)]
    faces += [McpRegisters(site.store, "legacy" if mode == "legacy" else "auto") for mode in modes]
    return [RegisterClient(site, face, number) for number, face in enumerate(faces)]


def initial_inject() -> bytes:
    """Return an inject request with the initial content of a store: the ends of the edges."""
    nodes = [{"id": each, "type": ANCHOR} for each in (ANCHOR, *EDGES)]
    return msgspec.json.encode({"nodes": nodes})
