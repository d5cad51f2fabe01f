"""What reflecting places right: `python -m bench.reflecting [topics.txt] [--topics 20] [--given 12] [--orphans 10000]`.

Of sentences on twenty topics, twelve of which have a concept in the store, some are put below a concept, the others are
proposed. Topics and concepts are drawn by chance, several times over, from bench/topics.txt, from that and the shorter
sentences of bench/facts.txt, and from WordNet's domains; or from a file of that form. It prints how many of that is
right, also after all groups are accepted that are proposed, and whether a dry run, what was decided and an undo are
what they should be; then how long a run over many memories takes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import locomo, memories, wordnet
from bench.measure import Report
from bench.server import Client, Server, end_when_told
from bench.topics import FACTS, domains, topics

FEWEST = 3
SETTINGS = {"embedding_provider": "local", "memory_consolidation": "off", "memory_prune": "off"}
_INDEX_SECONDS = 600.0

Topics = Mapping[str, Sequence[str]]


class Drawn(NamedTuple):
    """Topics of one round, those that have a concept first, and the store that they are in."""

    store: str
    named: Sequence[str]
    topics: Topics

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Their ids begin with their topics."""
        return [
            {"id": f"{topic}/{at}", "content": text, "layer": 2}
            for topic in self.topics
            for at, text in enumerate(self.topics[topic])
        ]


class Placed(NamedTuple):
    """Parts: of what has a concept, what stands below it; of all, what stands below a wrong one."""

    right: float
    wrong: float


def placing(client: Client, what: str, found: Topics, asked: argparse.Namespace) -> Report:
    """Concepts for some topics at a time."""
    report = Report(f"{what}: {asked.given} of {asked.topics} topics have a concept")
    first, accepted = list[Placed](), list[Placed]()
    for seed in range(asked.seeds):
        chosen = random.Random(seed).sample([*found], min(asked.topics, len(found)))
        named, store = chosen[: asked.given], f"{what}{seed}"
        drawn = Drawn(store, named, {each: found[each] for each in sorted(chosen)})
        _store(client, drawn.store, [{"id": each, "content": each, "layer": 1} for each in drawn.named])
        _store(client, drawn.store, drawn.facts)
        one, other = _round(report, client, drawn)
        first.append(one)
        accepted.append(other)
        report.fact(f"seed {seed}: right, wrong", f"{one.right:.1%}, {one.wrong:.1%}")
        report.fact("  after groups were accepted", f"{other.right:.1%}, {other.wrong:.1%}")
    for title, some in (("by itself", first), ("after groups were accepted", accepted)):
        right, wrong = ([each[at] for each in some] for at in (0, 1))
        report.compare(
            f"placed right, {title}", f"{min(right):.1%} at least", "mean", statistics.mean(right), ("≥", 0.8)
        )
        report.compare(
            f"placed wrong, {title}", f"{max(wrong):.1%} at most", "mean", statistics.mean(wrong), ("≤", 0.05)
        )
    return report


def _round(report: Report, client: Client, drawn: Drawn) -> tuple[Placed, Placed]:
    store = drawn.store
    before = client.export(store)
    dry = _reflect(client, store, dry_run=True)
    report.check("after a dry run", "export as before", client.export(store) == before)
    done = _reflect(client, store)
    proposals = done["proposals"]
    report.check("the run", "as the dry run", (done["linked"], proposals) == (dry["linked"], dry["proposals"]))
    first = _placed(client, drawn)
    groups = [each for each in proposals if len(each["ids"]) >= FEWEST]
    refused = {each["number"] for each in proposals if each not in groups}
    _reflect(client, store, accept=[each["number"] for each in groups], refuse=[*refused])
    again = {tuple(each["ids"]) for each in _reflect(client, store, dry_run=True)["proposals"]}
    report.check(
        "what was decided", "is not proposed again", again.isdisjoint(tuple(each["ids"]) for each in proposals)
    )
    accepted = _placed(client, drawn)
    _proposed(report, drawn, groups)
    _reflect(client, store, undo=True)
    report.check("after an undo", "says what it did", _said(client.export(store)) == _said(before))
    return first, accepted


def _said(exported: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """An export but for when and how often something was written: what was absorbed and comes back is a new version."""
    return [{key: each[key] for key in each if key not in ("version", "updated_at")} for each in exported]


def _proposed(report: Report, drawn: Drawn, groups: Sequence[Mapping[str, Any]]) -> None:
    """How far groups are of one topic, and whether new concepts are proposed for topics that have none."""
    concepts = [each for each in groups if each["kind"] == "concept"]
    main = [Counter(node_id.split("/")[0] for node_id in each["ids"]).most_common(1)[0] for each in concepts]
    new = sum(topic not in drawn.named for topic, _ in main)
    count = sum(len(each["ids"]) for each in concepts)
    pure = sum(most for _, most in main) / max(count, 1)
    report.fact(f"  {len(concepts)} concepts of {count}", f"{new} of topics without one, {pure:.0%} of one topic")
    for (topic, _), each in [*zip(main, concepts, strict=True)][:3]:
        report.fact(f"    of {topic}", each["name"])


def _placed(client: Client, drawn: Drawn) -> Placed:
    listed = client.call("GET", f"/api/memories?store={drawn.store}&limit=1000&layer=2")["memories"]
    below = [(each["id"].split("/")[0], each["parent_id"]) for each in listed if "parent_id" in each]
    right = sum(topic == parent for topic, parent in below)
    wrong = sum(topic != parent and parent in drawn.named for topic, parent in below)
    may_be = sum(len(drawn.topics[each]) for each in drawn.named)
    return Placed(right / may_be, wrong / len(drawn.facts))


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
    asked = {"query": "x", "touch": False}
    end = time.monotonic() + _INDEX_SECONDS
    while client.call("POST", f"/api/memories/search?store={store}", asked)["index_sequence"] < stored["sequence"]:
        assert time.monotonic() < end
        time.sleep(0.2)


def _reflect(client: Client, store: str, **wanted: Any) -> Any:
    return client.call("POST", f"/api/v1/reflect?store={store}", wanted)


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part; 1 when something exact was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.reflecting", description="What reflecting places right.")
    parser.add_argument("file", nargs="?", type=Path, help="names behind '# ', and lines of sentences")
    parser.add_argument("--topics", type=int, default=20, help="topics of a round")
    parser.add_argument("--given", type=int, default=12, help="topics that have a concept")
    parser.add_argument("--seeds", type=int, default=5, help="rounds")
    parser.add_argument("--orphans", type=int, default=10_000, help="memories of the large run; 0: none")
    asked = parser.parse_args(arguments)
    end_when_told()
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        memories.give(Path(folder), "many")
        with Server(Path(folder), SETTINGS) as server, server.client() as client:
            reports = [placing(client, what, found, asked) for what, found in _sets(asked.file).items()]
            if asked.orphans:
                reports.append(many(client, asked.orphans))
    for report in reports:
        report.show()
    return int(any(report.wrong for report in reports))


def _sets(file: Path | None) -> dict[str, Topics]:
    if file is not None:
        return {"file": topics(file)}
    found: dict[str, Topics] = {"sentences": topics(), "facts": topics() | topics(FACTS)}
    try:
        return found | {"wordnet": domains()}
    except wordnet.Unavailable as reason:
        print(f"no WordNet: {reason}", file=sys.stderr)
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
