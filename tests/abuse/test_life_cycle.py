"""Server process lifecycle: rows 71, 72 and 77 of the abuse list."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bench.agreement import find_inconsistencies
from bench.ledger import Ledger
from bench.listener import EventListener, ReceivedEvent
from bench.server import BenchClient, ServerProcess
from bench.tally import Tally, check_with_doctor, export_when_open
from bench.writers import Writers
from tests.stores.writing import PATIENCE, until

GRACE = 10
QUICK: dict[str, object] = {"embedding_provider": "hashing", "buffer_pool_mb": 64}


class EventReaderThread(threading.Thread):
    """Reader of an event stream until its end."""

    def __init__(self, port: int, store: str) -> None:
        super().__init__(daemon=True)
        self._listener = EventListener(port, f"/api/memory/{store}/events?since=0")
        self.told: list[ReceivedEvent] = []
        self.start()

    @override
    def run(self) -> None:
        with self._listener:
            self.told += self._listener.events()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Expected content of a store, checked with the doctor as well."""
    ledger = Ledger("abused")
    yield ledger
    tally = Tally("at the end")
    check_with_doctor(tmp_path / "data", ledger.store, tally)
    assert tally.violations == []


def assert_whole(client: BenchClient, ledger: Ledger) -> None:
    """Assert that all acknowledged data exists, none partly, and that all files of the store agree."""
    assert ledger.verify(export_when_open(client, ledger.store)) == []
    assert find_inconsistencies(client, ledger.store) == []


@pytest.mark.abuse(71)
def test_sigterm_in_mid_write_with_an_event_stream_open(tmp_path: Path, ledger: Ledger) -> None:
    with ServerProcess(tmp_path / "data", QUICK | {"shutdown_grace": GRACE}) as server, server.client() as client:
        client.call("PUT", f"/api/memory/{ledger.store}")
        following = EventReaderThread(server.port, ledger.store)
        with Writers(server.port, ledger, "writers") as writers:
            until(lambda: ledger.acknowledged > 40)
            begun = time.monotonic()
            server.stop()  # Stopped with SIGTERM; the exit code must be 0.
            took = time.monotonic() - begun
        assert writers.unexpected == [], "only 503 and closed connections may meet a writer"
        following.join(PATIENCE)
        assert took < GRACE
        assert not following.is_alive()
        assert not server.wait_event("grace_time_over", 0, 0.0)
    with ServerProcess(tmp_path / "data", QUICK) as server, server.client() as client:
        assert_whole(client, ledger)
        assert not server.wait_event("rebuild_started", 0, 0.0), "it was closed cleanly"
        last = client.call("GET", f"/api/memory/{ledger.store}/stats")["sequence"]
    assert 0 < int(following.told[-1].id.partition("-")[0]) <= last


@pytest.mark.abuse(72)
@pytest.mark.timeout(900)
def test_kill_in_mid_inject(tmp_path: Path, ledger: Ledger, kills: int) -> None:
    choice = random.Random(72)
    server = ServerProcess(tmp_path / "data", QUICK)
    for number in range(kills):
        goal = ledger.acknowledged + choice.randint(1, 30)
        with Writers(server.port, ledger, f"w{number}") as writers:
            until(lambda goal=goal: ledger.acknowledged >= goal)
            server.kill()
        assert writers.unexpected == []
        server = ServerProcess(tmp_path / "data", QUICK)
        with server.client() as client:
            assert ledger.verify(export_when_open(client, ledger.store)) == [], f"after kill {number}"
    with server, server.client() as client:
        assert_whole(client, ledger)


@pytest.mark.abuse(77)
def test_more_stores_than_may_be_open(tmp_path: Path) -> None:
    names = [f"store-{number}" for number in range(6)]

    def states(client: BenchClient) -> dict[str, str]:
        stores: list[dict[str, Any]] = client.call("GET", "/api/memory")["stores"]
        return {store["name"]: store["state"] for store in stores}

    def write(client: BenchClient, name: str, node: str) -> None:
        nodes = [{"id": node, "type": "t", "content": f"{node} in {name}"}]
        client.call("POST", f"/api/memory/{name}/inject", {"nodes": nodes})

    with ServerProcess(tmp_path / "data", QUICK | {"max_open_stores": 3}) as server, server.client() as client:
        for turn in range(2):
            for name in names:
                write(client, name, f"n{turn}")
        assert set(states(client)) == set(names)
        until(lambda: [name for name, state in states(client).items() if state == "open"] == names[-3:])
        write(client, names[3], "last")  # That store was the next to be closed; now it is the following one.
        write(client, names[0], "last")
        # Which third store stays open depends on current maintenance.
        until(
            lambda: (
                {*names[::3]} < (now := {n for n, state in states(client).items() if state == "open"}) and len(now) == 3
            )
        )
        for name in names:
            found = {line["id"]: line["content"] for line in client.export(name)}
            assert {node: f"{node} in {name}" for node in ("n0", "n1")}.items() <= found.items()
        assert find_inconsistencies(client, names[1]) == []
