"""Kills during writes and indexing: `python -m bench.index_crash [--rounds N] [--seed S]`.

The real server is killed (SIGKILL) while it writes and indexes. After each kill the store must be as acknowledged, and
once the indexes say that they have seen the last commit they must hold exactly the nodes that have content: every
prefix of an id is searched in both, and what is found is compared with an export. Exit code 1 on any violation.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any, ClassVar

from bench.killing import IMPORTING, Killing, run
from bench.server import Client, ServerFailed
from bench.tally import Tally, export_when_open
from bench.writers import Upload

INDEX_SECONDS = 120.0
PRESENT = ("keyword", "vector")
"""The indexes of what the store holds now; those of its past hold other texts."""
MOST_HITS = 100
WORDS = {"step": "generation", "link": "link"}
"""A word that every node of a type holds."""


class IndexCrash(Killing):
    """Kills while the indexes follow, or are made anew."""

    NAME = "index"
    PHASES = ("writing", IMPORTING, "reindexing", "opening")
    KILLED_AGAIN = ("opening",)
    SETTINGS: ClassVar = {
        "embedding_provider": "hashing",
        "journal_segment_mb": 1,
        "journal_retention_mb": 1,
        "compact_wal_mb": 1,
    }

    def is_moment(self, phase: str, upload: Upload | None) -> bool:  # noqa: ARG002
        """Whether an index is behind, as far as the server can still say; has them made anew first, if it is that."""
        if phase == "reindexing":
            with self.server.client() as client:
                client.send("POST", f"/api/memory/{self.ledger.store}/reindex")
            time.sleep(self.choice.uniform(0, 0.4))
        return self._behind()

    def summary(self) -> str:
        """How long it took."""
        return f"slowest from start to both indexes compared: {self.slowest:.1f} s"

    def _behind(self) -> bool:
        with self.server.client() as client:
            reply = client.send("GET", f"/api/memory/{self.ledger.store}/stats")
        if reply.status != 200:
            return False
        stats = reply.json()
        return any(index["sequence"] < stats["sequence"] or index["pending"] for index in stats["indexes"])

    def compare(self, tally: Tally) -> None:
        """The graph as acknowledged, and the indexes as the graph."""
        start = time.monotonic()
        self.server.wait_ready()
        with self.server.client() as client:
            lines = export_when_open(client, self.ledger.store)
            tally.violations += self.ledger.verify(lines)
            if lines:
                _await_indexes(client, self.ledger.store)
                tally.violations += disagreements(client, self.ledger.store, lines)
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
        if index["name"] in PRESENT and index["entities"] != len(nodes)
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


if __name__ == "__main__":
    sys.exit(run(IndexCrash, (__doc__ or "").split("\n", 1)[0], "; 'moment hit': an index was behind at the kill"))
