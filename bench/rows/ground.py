"""What the parts of one run share: a graph, the same rows in SQLite, and data folders that hold it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from bench import graphs, wordnet
from bench.baseline import read_rows
from bench.prepared import STORE, blocks
from bench.server import Client, Server, ServerFailed
from bench.sqlite import Database
from bench.wire import Wire, request

API = f"/api/memory/{STORE}"
SEED = 20_060_925
WITHOUT_INDEXES: dict[str, object] = {"indexes": False, "shutdown_grace": 60}
# Both indexes follow, and vectors cost next to nothing, so that they have seen all of WordNet within a minute.
FOLLOWED: dict[str, object] = {"embedding_provider": "hashing", "shutdown_grace": 60}
QUICK_NODES = {"wordnet": 10_000, "dense": 3_000}
PATIENCE = 1800.0

Name = Literal["wordnet", "dense"]


class Ground:
    """The graph, or with `quick` a part of it, in a folder that is gone after the run. Raises wordnet.Unavailable."""

    def __init__(self, folder: Path, name: Name, *, quick: bool) -> None:
        self.folder, self.name, self.quick = folder, name, quick
        self.file = self._whole(name)
        self.rows = read_rows(self.file)
        if quick:
            self.rows = graphs.part(self.rows, QUICK_NODES[name])
            self.file = graphs.write([*self.rows.nodes, *self.rows.edges], folder / "part.ndjson")

    def rounds(self, quick: int, full: int) -> int:
        """How often to repeat something."""
        return quick if self.quick else full

    def ids(self, count: int) -> list[str]:
        """Ids by seed."""
        return random.Random(SEED).sample([node["id"] for node in self.rows.nodes], count)

    @property
    def total(self) -> int:
        """Nodes and edges."""
        return len(self.rows.nodes) + len(self.rows.edges)

    def database(self, name: str) -> tuple[Database, float]:
        """A new SQLite file of the rows, and how many rows a second it took them."""
        path = self.folder / f"{name}.sqlite"
        for each in self.folder.glob(f"{path.name}*"):
            each.unlink()
        made = Database(path)
        return made, self.total / made.load(self.rows)

    def plain(self) -> Path:
        """A data folder with the graph and no indexes; loaded now if no part has done it."""
        return self._loaded("plain", WITHOUT_INDEXES)

    def followed(self) -> Path:
        """The same with indexes that have seen all of it."""
        return self._loaded("followed", FOLLOWED)

    def copy(self, data: Path, name: str) -> Path:
        """A copy of a data folder that nobody serves."""
        return Path(shutil.copytree(data, self.folder / name))

    def _loaded(self, name: str, settings: dict[str, object]) -> Path:
        data = self.folder / name
        if not data.exists():
            with Server(data, settings) as server, server.client() as client:
                client.upload(STORE, blocks(self.file))
                settle(client)
        return data

    def _whole(self, name: Name) -> Path:
        if name == "wordnet":
            return wordnet.exchange_file()
        return graphs.write(graphs.dense(), self.folder / "dense.ndjson")


def settle(client: Client, store: str = STORE, but: str = "") -> None:
    """Wait until the history and all indexes have seen everything, those whose name ends in `but` excepted.

    The engine, which nobody asks meanwhile, takes its time.
    """
    left_out = ("engine_lag", but) if but else "engine_lag"
    end = time.monotonic() + PATIENCE
    while behind := {what: lag for what, lag in lags(client, store).items() if lag and not what.endswith(left_out)}:
        if time.monotonic() > end:
            raise ServerFailed(f"still behind after {PATIENCE:.0f} s: {behind}")
        time.sleep(0.2)


def lags(client: Client, store: str = STORE) -> dict[str, int]:
    """By how much everything that follows the journal and says so is behind."""
    stats: dict[str, Any] = client.call("GET", f"/api/memory/{store}/stats")
    own = {name: value for name, value in stats.items() if name.endswith("_lag") and isinstance(value, int)}
    if isinstance(stats.get("engine_sequence"), int):
        own["engine_lag"] = stats["sequence"] - stats["engine_sequence"]
    return own | {index["name"]: max(index["lag"], index["pending"]) for index in stats["indexes"]}


def walking(start: str, depth: int, **fields: object) -> bytes:
    """A walk, ready to be sent."""
    return request("POST", f"{API}/traverse", {"start_id": start, "depth": depth, **fields})


def warm_up(wire: Wire, requests: Iterable[bytes]) -> None:
    """Send and forget."""
    for ready in requests:
        wire.ask(ready)
