"""Kills during writes and indexing: `python -m bench.index_crash [--rounds N] [--seed S]`.

The real server is killed (SIGKILL) while it writes and indexes. After each kill the store must be as acknowledged, and
once the indexes say that they have seen the last commit they must hold exactly the nodes that have content: every
prefix of an id is searched in both, and what is found is compared with an export. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.ledger import Ledger, Stream
from bench.server import Client, Server, ServerFailed
from bench.tally import Tally, export_when_open, show
from bench.writers import Upload, Writers

PHASES = ("writing", "importing", "reindexing", "opening")
SETTINGS = {"embedding_provider": "hashing", "journal_segment_mb": 1, "journal_retention_mb": 1, "compact_wal_mb": 1}
ROUNDS_PER_STORE = 5
STEPS = 3_000
INDEX_SECONDS = 120.0
MOST_HITS = 100
WORDS = {"step": "generation", "link": "link"}
"""A word that every node of a type holds."""


class IndexCrash:
    """One data folder, the server that is killed on it, and what its current store must hold."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._choice = random.Random(seed)
        self._ledger = Ledger("index-0")
        self._server = Server(data, SETTINGS)
        self.slowest = 0.0

    def round(self, number: int, phase: str, tally: Tally) -> None:
        """Write, kill, start again, compare."""
        if number % ROUNDS_PER_STORE == 0 and number:
            self._ledger = Ledger(f"index-{number // ROUNDS_PER_STORE}")
        before = self._ledger.acknowledged
        tally.rounds += 1
        tally.reached += self._kill(f"r{number}", phase, tally)
        tally.acknowledged += self._ledger.acknowledged - before
        self._server = Server(self._data, SETTINGS)
        if phase == "opening":
            # Killed once more, while the indexes catch up or are filled anew.
            with self._server.client() as client:
                export_when_open(client, self._ledger.store)
            time.sleep(self._choice.uniform(0, 0.3))
            self._server.kill()
            self._server = Server(self._data, SETTINGS)
        self._compare(tally)

    def finish(self) -> None:
        """Stop the server."""
        self._server.stop()

    def _kill(self, name: str, phase: str, tally: Tally) -> bool:
        """Whether an index was behind, as far as the server could still say, or busy from the start."""
        with Writers(self._server.port, self._ledger, name, threads=2) as writers:
            upload: Upload | None = None
            if phase == "importing":
                upload = Upload(self._server.port, self._ledger, Stream(f"i{name}", STEPS))
                upload.start()
            time.sleep(self._choice.uniform(0.2, 1.5))
            if phase == "reindexing":
                with self._server.client() as client:
                    client.send("POST", f"/api/memory/{self._ledger.store}/reindex")
                time.sleep(self._choice.uniform(0, 0.4))
            behind = self._behind()
            self._server.kill()
        if upload is not None:
            upload.join()
            tally.violations += upload.unexpected
        tally.violations += writers.unexpected
        return behind

    def _behind(self) -> bool:
        with self._server.client() as client:
            reply = client.send("GET", f"/api/memory/{self._ledger.store}/stats")
        if reply.status != 200:
            return False
        stats = reply.json()
        return any(index["sequence"] < stats["sequence"] or index["pending"] for index in stats["indexes"])

    def _compare(self, tally: Tally) -> None:
        start = time.monotonic()
        self._server.wait_ready()
        with self._server.client() as client:
            lines = export_when_open(client, self._ledger.store)
            tally.violations += self._ledger.verify(lines)
            if lines:
                _await_indexes(client, self._ledger.store)
                tally.violations += disagreements(client, self._ledger.store, lines)
        self.slowest = max(self.slowest, time.monotonic() - start)


def _await_indexes(client: Client, store: str) -> None:
    end = time.monotonic() + INDEX_SECONDS
    while True:
        stats = client.call("GET", f"/api/memory/{store}/stats")
        if all(index["sequence"] == stats["sequence"] for index in stats["indexes"]):
            return
        if time.monotonic() > end:
            raise ServerFailed(f"the indexes of {store} are not at {stats['sequence']}: {stats['indexes']}")
        time.sleep(0.05)


def disagreements(client: Client, store: str, lines: list[dict[str, Any]]) -> list[str]:
    """Where an index and an export differ: in number, in what is found, or in the content that is found."""
    nodes = {line["id"]: line for line in lines if line["kind"] == "node" and line["content"]}
    wrong = [
        f"{store}: the {index['name']} index holds {index['entities']} entities, the graph {len(nodes)} with content"
        for index in client.call("GET", f"/api/memory/{store}/stats")["indexes"]
        if index["entities"] != len(nodes)
    ]
    groups: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for id_, line in nodes.items():
        groups[f"{id_.rpartition('/')[0]}/", WORDS[line["type"]]][id_] = line["content"]
    for (prefix, query), group in groups.items():
        for mode in ("keyword", "semantic"):
            found = _search(client, store, {"query": query, "mode": mode, "id_prefix": prefix})
            if found != group:
                wrong.append(f"{store}: {mode} search finds {len(found)} under {prefix!r}, the graph has {len(group)}")
    # By words alone a text that is out of date is found as well as the present one: the generation tells them apart.
    for line in [line for line in nodes.values() if line["type"] == "step"][:: max(1, len(nodes) // 50)]:
        body = {"query": f'"{" ".join(line["content"].split()[:2])}"', "id_prefix": line["id"], "syntax": True}
        if line["id"] not in _search(client, store, {**body, "mode": "keyword"}):
            wrong.append(f"{store}: the keyword index holds an old text of {line['id']}")
    return wrong


def _search(client: Client, store: str, body: dict[str, object]) -> dict[str, str]:
    """All hits, page by page."""
    found: dict[str, str] = {}
    while True:
        page = client.call("POST", f"/api/memory/{store}/search", {**body, "limit": MOST_HITS, "offset": len(found)})[
            "hits"
        ]
        found.update((hit["node"]["id"], hit["node"]["content"]) for hit in page)
        if len(page) < MOST_HITS:
            return found


def rounds(count: int, seed: int) -> list[Tally]:
    """Rounds in turn over the phases, on a data folder that goes away afterwards."""
    tallies = {phase: Tally(f"killed while {phase}") for phase in PHASES}
    with tempfile.TemporaryDirectory(prefix="kgserve-index-crash-", ignore_cleanup_errors=True) as folder:
        crash = IndexCrash(Path(folder), seed)
        for number in range(count):
            phase = PHASES[number % len(PHASES)]
            crash.round(number, phase, tallies[phase])
            bad = sum(len(tally.violations) for tally in tallies.values())
            print(f"\rround {number + 1} of {count}, {bad} violations", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        crash.finish()
    print(f"slowest from start to both indexes compared: {crash.slowest:.1f} s")
    return list(tallies.values())


def main() -> int:
    """Run the rounds and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.index_crash", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=40, help="kills (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the delays and of the data (default 1)")
    given = parser.parse_args()
    start = time.monotonic()
    tallies = rounds(given.rounds, given.seed)
    show(tallies)
    print(f"{time.monotonic() - start:.0f} s in all, seed {given.seed}; 'moment hit': an index was behind at the kill")
    return int(any(tally.violations for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
