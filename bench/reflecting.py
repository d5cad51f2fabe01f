"""What reflecting places right: `python -m bench.reflecting [topics.txt] [--given 12] [--orphans 10000]`.

Of sentences on twenty topics (bench/topics.txt, or a file of that form), twelve of which have a concept in the store,
some are put below a concept, the others are proposed. It prints how many of that is right, and whether a dry run, what
was decided and an undo are what they should be; then how long a run over many memories takes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import locomo, memories
from bench.measure import Report
from bench.server import Client, Server, end_when_told
from bench.topics import TOPICS, topics

STORE = "topics"
ROUNDS = 3
SETTINGS = {"embedding_provider": "local", "memory_consolidation": "off", "memory_prune": "off"}
_INDEX_SECONDS = 600.0


def placing(client: Client, found: Mapping[str, Sequence[str]], given: int) -> Report:
    """Concepts for some topics at a time."""
    report = Report(f"{given} of {len(found)} topics have a concept; {sum(map(len, found.values()))} sentences")
    for seed in range(ROUNDS):
        store, named = f"{STORE}{seed}", random.Random(seed).sample([*found], given)
        _store(client, store, [{"id": each, "content": each, "layer": 1} for each in named])
        facts = [
            {"id": f"{topic}/{at}", "content": text, "layer": 2}
            for topic in found
            for at, text in enumerate(found[topic])
        ]
        _store(client, store, facts)
        before = client.export(store)
        dry = _reflect(client, store, dry_run=True)
        report.check("after a dry run", "export as before", client.export(store) == before)
        done = _reflect(client, store)
        report.check(
            "the run", "as the dry run", (done["linked"], done["proposals"]) == (dry["linked"], dry["proposals"])
        )
        _placed(report, client, store, named, facts)
        numbers = [each["number"] for each in done["proposals"]][:2]
        _reflect(client, store, accept=numbers[:1], refuse=numbers[1:])
        again = {tuple(each["ids"]) for each in _reflect(client, store, dry_run=True)["proposals"]}
        decided = {tuple(each["ids"]) for each in done["proposals"] if each["number"] in numbers}
        report.check("what was decided", "is not proposed again", again.isdisjoint(decided))
        _reflect(client, store, undo=True)
        report.check("after an undo", "export as before", client.export(store) == before)
    return report


def _placed(
    report: Report, client: Client, store: str, named: Sequence[str], facts: Sequence[Mapping[str, Any]]
) -> None:
    listed = client.call("GET", f"/api/memories?store={store}&limit=1000&layer=2")["memories"]
    parents = {each["id"]: each["parent_id"] for each in listed if "parent_id" in each}
    right = sum(key.startswith(f"{parent}/") for key, parent in parents.items())
    may_be = sum(each["id"].split("/")[0] in named for each in facts)
    wrong = len(parents) - right
    report.compare("placed right", str(right), f"{may_be} with a concept", right / may_be, ("≥", 0.8))
    report.compare("placed wrong", str(wrong), f"{len(facts)} sentences", wrong / len(facts), ("≤", 0.05))


def many(client: Client, count: int) -> Report:
    """How long a dry run over many takes."""
    report = Report(f"a dry run over {count:,} memories without a parent")
    texts = memories.sentences(count, locomo.FILE)
    _store(client, "many", [{"content": name, "layer": 1} for name in topics()])
    for first in range(0, len(texts), 1_000):
        _store(client, "many", [{"content": text, "layer": 2} for text in texts[first : first + 1_000]])
    started = time.monotonic()
    found = _reflect(client, "many", dry_run=True, limit=count)
    took = time.monotonic() - started
    report.at_most("the run", f"{took:.1f} s for {found['looked_at']:,}", took, 60, "s")
    report.fact("placed, proposed", f"{found['linked_count']}, {found['proposals_count']}")
    return report


def _store(client: Client, store: str, some: Sequence[Mapping[str, Any]]) -> None:
    body = {"memories": [{"dedup": "off", **each} for each in some]}
    stored = client.call("POST", f"/api/memories/batch?store={store}", body)
    asked = {"query": "x", "touch": False, "at_least": stored["sequence"]}
    end = time.monotonic() + _INDEX_SECONDS
    while client.call("POST", f"/api/memories/search?store={store}", asked)["index_sequence"] < stored["sequence"]:
        assert time.monotonic() < end


def _reflect(client: Client, store: str, **wanted: Any) -> Any:
    return client.call("POST", f"/api/v1/reflect?store={store}", wanted)


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part; 1 when something exact was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.reflecting", description="What reflecting places right.")
    parser.add_argument(
        "topics", nargs="?", type=Path, default=TOPICS, help="names behind '# ', and lines of sentences"
    )
    parser.add_argument("--given", type=int, default=12, help="topics that have a concept")
    parser.add_argument("--orphans", type=int, default=10_000, help="memories of the large run")
    given = parser.parse_args(arguments)
    end_when_told()
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        memories.give(Path(folder), "many")
        with Server(Path(folder), SETTINGS) as server, server.client() as client:
            reports = [placing(client, topics(given.topics), given.given), many(client, given.orphans)]
    for report in reports:
        report.show()
    return int(any(report.wrong for report in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
