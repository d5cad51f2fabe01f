"""Files of the engine and of the present rows deleted, truncated and altered under a stopped server.

The next start must have everything.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.ledger import Ledger
from bench.server import Client, Server, doctor
from bench.tally import Tally, export_when_open
from bench.writers import Writers

STORE = "damaged"
SETTINGS = {"compact_wal_mb": 1}
FILES = ("graph.kuzu", "graph.kuzu.wal", "views/rows/*.rows", "views/rows/*.texts")

Damage = Callable[[Path, random.Random], None]


def delete(path: Path, _choice: random.Random) -> None:
    """The file is gone."""
    path.unlink()


def truncate(path: Path, choice: random.Random) -> None:
    """The file ends too early."""
    os.truncate(path, choice.randrange(path.stat().st_size))


def flip(path: Path, choice: random.Random) -> None:
    """One bit is another, at each of 20 places."""
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    path.write_bytes(data)


def empty(path: Path, _choice: random.Random) -> None:
    """The file is there with nothing in it."""
    os.truncate(path, 0)


KINDS: tuple[Damage, ...] = (delete, truncate, flip, empty)


def rounds(seed: int, repetitions: int = 3, kinds: tuple[Damage, ...] = KINDS) -> list[Tally]:
    """Each kind of damage to each file, several times; then silent damage, which only the doctor can see."""
    choice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kgserve-damage-", ignore_cleanup_errors=True) as folder:
        data = Path(folder)
        tallies = [_rounds(data, kind, file, choice, repetitions) for file in FILES for kind in kinds]
        return [*tallies, _silent(data, choice, repetitions)]


def _rounds(data: Path, kind: Damage, file: str, choice: random.Random, repetitions: int) -> Tally:
    tally = Tally(f"{kind.__name__} {file}")
    for number in range(repetitions):
        tally.rounds += 1
        before = _write(data, f"{kind.__name__}-{FILES.index(file)}-{number}", tally)
        path = next((data / f"{STORE}_memory").glob(file), None)
        if path is None or not path.stat().st_size:
            continue
        kind(path, choice)
        tally.reached += 1
        after = _content(data)
        if after != before:
            tally.violations.append(f"{len(before.keys() ^ after.keys())} rows more or less, or some differ")
    return tally


def _silent(data: Path, choice: random.Random, repetitions: int) -> Tally:
    """Altered bits under the old size and time: the doctor finds them and mends the file, or they do not matter."""
    tally = Tally("flip, size and time kept; doctor")
    noticed = 0
    for number in range(repetitions):
        tally.rounds += 1
        before = _write(data, f"silent-{number}", tally)
        path = data / f"{STORE}_memory" / FILES[0]
        if not path.exists():
            continue
        status = path.stat()
        flip(path, choice)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        tally.reached += 1
        if doctor(data, STORE).returncode != 0:
            noticed += 1
            doctor(data, STORE, "--rebuild")
        if _content(data) != before:
            tally.violations.append("the content differs after the doctor")
    tally.remark = f"noticed {noticed}, the rest in unused places"
    return tally


def _write(data: Path, name: str, tally: Tally) -> dict[Any, Any]:
    """Let clients write for a while, stop cleanly, and return the content."""
    ledger = Ledger(STORE)
    with Server(data, SETTINGS, module="bench.eager") as server, server.client() as client:
        since = server.mark()
        with Writers(server.port, ledger, name, size=2_000) as writers:
            while not ledger.acknowledged:
                time.sleep(0.01)
            _counted(client)
            server.wait_event("compaction_started", since, 0.7)
            writers.pause()
        tally.violations += writers.unexpected
        tally.acknowledged += ledger.acknowledged
        return _everything(client)


def _content(data: Path) -> dict[Any, Any]:
    with Server(data, SETTINGS) as server, server.client() as client:
        return _everything(client)


def _everything(client: Client) -> dict[Any, Any]:
    """All rows, and how many nodes the engine says there are."""
    return {**_rows(export_when_open(client, STORE)), "nodes in the engine": _counted(client)}


def _counted(client: Client) -> int:
    query = {"query": "MATCH (n:Entity) RETURN count(n)"}
    return client.call("POST", f"/api/memory/{STORE}/cypher", query)["rows"][0][0]


def _rows(exported: list[dict[str, Any]]) -> dict[Any, Any]:
    return {
        (line["kind"], *(line.get(name) for name in ("id", "from", "to", "relation_type"))): msgspec.json.encode(line)
        for line in exported
    }
