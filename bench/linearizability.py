"""Linearizability test of single keys over all interfaces: `python -m bench.linearizability [--seconds N] [--seed S]`.

Clients write and read a few nodes and edges over REST, in Cypher, over MCP, and by searches with at_least. Meanwhile
rows are folded into a new base, the engine's file and the indexes are rebuilt, and the server is killed (SIGKILL) and
restarted. The recorded answers are then checked for each key. Exit code 1 on a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench.register_clients import StoreUnderTest, initial_inject, make_store_clients
from bench.server import ServerProcess, scratch_folder, unwind_on_sigterm

ROUND_SECONDS = 20.0
BALLAST = 50_100
"""Number of rows that triggers a fold."""
SETTINGS = {
    "embedding_provider": "hashing",
    "compact_wal_mb": 1,
    "journal_segment_mb": 1,
    "buffer_pool_mb": 64,
    "log_level": "info",
}
NDJSON = {"content-type": "application/x-ndjson"}
NOTED = ("rows_folded", "columns_for_extras", "engine_rebuilt", "compacted", "internal_error", "rows_damaged")
Nemesis = Callable[[], Awaitable[None]]


class Round:
    """One store, its clients, and the faults injected."""

    def __init__(self, data: Path, seed: int, number: int) -> None:
        self.site = StoreUnderTest(f"round-{number}", seed)
        self.events: Counter[str] = Counter()
        self._data = data
        self._choice = random.Random(seed + number)
        self._server = ServerProcess(data, SETTINGS)

    async def run(self, seconds: float) -> None:
        """Run the round."""
        api = f"/api/memory/{self.site.store}"
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
            (await http.put(api, json={"conflict_policy": "manual"})).raise_for_status()
            (await http.post(f"{api}/inject", content=initial_inject())).raise_for_status()
        self.site.begins(self._url)
        clients = [asyncio.create_task(each.stay()) for each in make_store_clients(self.site)]
        faults: list[Nemesis] = [self.widen, self.kill, self.fold, self.reindex, self.kill_while_folding, self.rest]
        try:
            for each in faults:
                await asyncio.sleep(seconds / len(faults) * self._choice.uniform(0.6, 1.0))
                await each()
        finally:
            self.site.over = True
            await asyncio.wait_for(asyncio.gather(*clients), 60)
            self._note_events()
            await asyncio.to_thread(self._server.stop)

    async def rest(self) -> None:
        """Do nothing."""

    async def widen(self) -> None:
        """Write the first row with extras, for which the engine's file is rebuilt with further columns."""
        await self._post("inject", {"nodes": [{"id": "~tagged", "type": "ballast", "tags": ["a"], "summary": "b"}]})

    async def reindex(self) -> None:
        """Rebuild both indexes."""
        await self._post("reindex", {})

    async def fold(self) -> None:
        """Write enough rows at once to trigger a new base."""
        stamp = time.monotonic()
        lines = (
            msgspec.json.encode({"kind": "node", "id": f"~{number}", "type": "ballast", "attributes": {"at": stamp}})
            for number in range(BALLAST)
        )
        body = b"\n".join(lines)
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as http:
            reply = await http.post(f"/api/memory/{self.site.store}/import", content=body, headers=NDJSON)
            reply.raise_for_status()

    async def kill(self) -> None:
        """Kill the server and start another one."""
        self.site.leaves()
        self._note_events()
        await asyncio.to_thread(self._server.kill)
        self.site.ended()
        if self._choice.random() < 0.5:
            for file in self._data.glob(f"**/{self.site.store}/graph*"):
                file.unlink()
                self.events["engine file removed"] += 1
        self.events["killed"] += 1
        self._server = await asyncio.to_thread(ServerProcess, self._data, SETTINGS)
        self.site.begins(self._url)

    async def kill_while_folding(self) -> None:
        """Kill the server during a fold."""
        folding = asyncio.create_task(self.fold())
        await asyncio.sleep(self._choice.uniform(0.3, 2.0))
        await self.kill()
        with suppress(httpx.HTTPError):
            await folding

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def _post(self, what: str, body: dict[str, Any]) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as http:
            (await http.post(f"/api/memory/{self.site.store}/{what}", json=body)).raise_for_status()

    def _note_events(self) -> None:
        self.events.update(event["event"] for event in self._server.log_tail(2000) if event.get("event") in NOTED)
        if found := self._server.wait_event("internal_error", 0, 0.0):
            self.site.problems[f"in the log: {str(found)[-700:]}"] += 1


def show(rounds: Sequence[Round], seconds: float) -> int:
    """Print the table and the violations. Return the number of violations."""
    counts: Counter[tuple[str, str, str]] = Counter()
    events: Counter[str] = Counter()
    for each in rounds:
        counts.update(each.site.counts)
        events.update(each.events)
    print(f"{'':5} {'operation':14} {'answered':>9} {'unknown':>8} {'refused':>8}")
    for face, what in sorted({key[:2] for key in counts}):
        figures = [counts[face, what, outcome] for outcome in ("answered", "unknown", "refused")]
        print(f"{face:5} {what:14} {figures[0]:>9,} {figures[1]:>8,} {figures[2]:>8,}")
    histories = [history for each in rounds for history in each.site.history.values()]
    operations, unknown = sum(map(len, histories)), sum(one.unknown for history in histories for one in history)
    print(
        f"{operations:,} operations on {len(histories)} keys, {unknown} unknown, {len(rounds)} stores; {seconds:.0f} s"
    )
    print("; ".join(f"{name} {number}" for name, number in sorted(events.items())))
    _show_some("refused", Counter(text for each in rounds for text in each.site.refusals.elements()).most_common(8))
    started = time.monotonic()
    wrong = [violation for each in rounds for violation in each.site.violations()]
    for violation in wrong[:10]:
        print(f"! {violation}")
    print(f"{len(wrong)} violations, checked in {time.monotonic() - started:.1f} s")
    return len(wrong)


def _show_some(what: str, found: Iterable[tuple[str, int]]) -> None:
    for text, number in found:
        print(f"{number:>6} times {what}: {text[:200]}")


async def run(seconds: float, seed: int, data: Path) -> list[Round]:
    """Run rounds, each with its own store, until the time is over."""
    rounds: list[Round] = []
    end = time.monotonic() + seconds
    while not rounds or time.monotonic() < end - ROUND_SECONDS / 2:
        each = await asyncio.to_thread(Round, data, seed, len(rounds))
        await each.run(min(ROUND_SECONDS, seconds))
        rounds.append(each)
    return rounds


def main() -> int:
    """Run for the requested time and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.linearizability", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="duration (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the schedule (default 1)")
    given = parser.parse_args()
    unwind_on_sigterm()
    start = time.monotonic()
    with scratch_folder() as folder:
        rounds = asyncio.run(run(given.seconds, given.seed, folder))
    return int(show(rounds, time.monotonic() - start) > 0)


if __name__ == "__main__":
    sys.exit(main())
