"""Quality of recall: `python -m bench.memory [--only filters|evidence|irrelevant|tokens] [--quick] [--embedder local]`.

`filters` compares random recalls in every mode with a scan of all memories. `evidence` retains conversations as
messages and measures the recalled share of the evidence of questions about them. `irrelevant` asks about subjects that
no memory is about. `tokens` drives ten tasks of an agent through the MCP client and counts what it reads and writes.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import agent_tokens, irrelevant_queries, locomo
from bench.locomo import Conversation, ConversationTurn
from bench.measure import BenchmarkReport, clock, parser, run_parts, times
from bench.memory_model import RecallModel, entities, lines, memories, sentences, some_filters, some_words
from bench.server import BenchClient, serving
from kgserve.embedding.embedder import load_embedder
from kgserve.platform import settings

STORE = "memories"
MODES = ("keyword", "semantic", "hybrid", "graph")
MAX_RECALL_HITS = 100
SEED = 15
AIM = 0.80
"""Target share of the evidence among the first 10 hits of a recall with `expand`."""


def filters(chosen: dict[str, object], _conversations: Path, *, quick: bool) -> BenchmarkReport:
    """Compare recalls with random filters to a scan of all memories. Raises wordnet.Unavailable."""
    count, questions = (2_000, 60) if quick else (9_000, 300)
    report = BenchmarkReport(f"recall against a scan of {count:,} memories, {questions} random recalls a mode")
    now = time.time()
    made, named = memories(sentences(count), now), entities()
    embedder = load_embedder(settings.load_settings(chosen))
    with serving(chosen) as (_, client):
        client.upload(STORE, lines(made, named))
        client.settle(STORE)
        model = RecallModel(made, named, embedder, time.time())
        for mode in MODES:
            wrong = _disagreements(client, model, mode, questions)
            report.check(mode, f"{len(wrong)} differ", not wrong)
            report.notes += wrong[:3]
        chance = random.Random(SEED)
        asked = [some_words(chance, one) for one in chance.sample(made, questions)]
        took = times([clock(lambda query=query: _recall(client, query)) for query in asked])
        report.at_most("hybrid, each query once", str(took), took.p50, 25, "ms")
    embedder.close()
    return report


def _disagreements(client: BenchClient, model: RecallModel, mode: str, questions: int) -> list[str]:
    chance, made = random.Random(SEED), [*model.made.values()]
    found: list[str] = []
    for number in range(questions):
        one = chance.choice(made)
        wanted = some_filters(chance, model.now, one, chance.choice([0.1, 0.3, 1.0]))
        if mode == "graph":
            wanted.setdefault("entity", one.about[0][0])
        query = some_words(chance, one)
        hits = _recall(client, query, mode=mode, limit=MAX_RECALL_HITS, **wanted)["hits"]
        if reason := _describe_difference(model, mode, query, wanted, hits):
            found.append(f"{mode} {number}: {reason}: {query!r} {wanted}")
    return found


def _describe_difference(model: RecallModel, mode: str, query: str, wanted: Mapping[str, Any], hits: list[Any]) -> str:
    surely, perhaps = model.passing(wanted, graph=mode == "graph")
    ids = {hit["id"] for hit in hits}
    if not ids <= perhaps:
        return f"{len(ids - perhaps)} hits do not pass the filter"
    if mode == "semantic":
        near = model.near(query, surely, 0.5, MAX_RECALL_HITS)
        least = near[-1].similarity if len(near) == MAX_RECALL_HITS else 0.5
        missing = {hit.id for hit in near if hit.similarity > least + 1e-4} - ids
    elif mode == "keyword":
        holding = model.holding(query, surely)
        missing = holding - ids if len(holding) <= MAX_RECALL_HITS else set[str]()
    elif mode == "graph":
        scores = model.around(wanted["entity"], surely)
        best = sorted(scores, key=lambda key: -scores[key])[:MAX_RECALL_HITS]
        least = scores[best[-1]] * 1.001 if len(best) == MAX_RECALL_HITS else 0.0
        missing = {key for key in best if scores[key] > least} - ids
    else:
        # Hits must share a significant word or be similar enough; their ranking is a matter of quality.
        missing = set[str]()
    return f"{len(missing)} are missing" if missing else ""


def evidence(chosen: dict[str, object], conversations: Path, *, quick: bool) -> BenchmarkReport:
    """Measure the share of the evidence among the first 10 hits. Raises FileNotFoundError without conversations."""
    found = locomo.read(conversations)[: 1 if quick else None]
    total = sum(len(each.questions) for each in found)
    report = BenchmarkReport(
        f"{total} questions to {len(found)} conversations retained as messages: evidence among the first 10"
    )
    with serving(chosen) as (_, client):
        known = {each.name: _retain(client, each) for each in found}
        for each in found:
            client.settle(each.name)
        searched = _share(found, known, lambda store, query: _search(client, store, query))
        recalled = _share(found, known, lambda store, query: _ids(client, store, query))
        expanded = _share(found, known, lambda store, query: _ids(client, store, query, expand=True))
    base = f"search {searched:.4f}"
    report.compare("recall", f"{recalled:.4f}", base, recalled / searched, ("≥", 0.99))
    report.compare("recall with expand", f"{expanded:.4f}", f"the aim {AIM}", expanded / AIM, ("≥", 1.0))
    report.notes.append("the aim is for the embedding model (--embedder local)")
    return report


def _retain(client: BenchClient, each: Conversation) -> dict[str, str]:
    """Retain a conversation by sessions. Return the turn of each memory by the memory's id."""
    found, sessions = dict[str, str](), dict[str, list[ConversationTurn]]()
    for turn in {turn.dia_id: turn for turn in each.turns if turn.text.strip()}.values():
        sessions.setdefault(turn.dia_id.partition(":")[0], []).append(turn)
    for session, turns in sessions.items():
        messages = [{"role": turn.speaker, "content": turn.text} for turn in turns]
        answer = client.call("POST", f"/api/v1/retain?store={each.name}", {"source": session, "content": messages})
        kept = [step["memory_id"] for step in answer["operations"] if step["type"] != "link"]
        for memory, turn in zip(kept, turns, strict=True):
            found.setdefault(memory, turn.dia_id)
    return found


def _share(
    found: Sequence[Conversation], known: Mapping[str, Mapping[str, str]], ask: Callable[[str, str], list[str]]
) -> float:
    shares: list[float] = []
    for each in found:
        for question in each.questions:
            ids = [known[each.name].get(hit, hit) for hit in ask(each.name, question.question)]
            shares.append(locomo.recall(ids, question.evidence, 10))
    return statistics.fmean(shares)


def _recall(client: BenchClient, query: str, store: str = STORE, **wanted: Any) -> Any:
    return client.call("POST", f"/api/memories/search?store={store}", {"query": query, "touch": False, **wanted})


def _ids(client: BenchClient, store: str, query: str, **wanted: Any) -> list[str]:
    return [hit["id"] for hit in _recall(client, query, store, limit=10, **wanted)["hits"]]


def _search(client: BenchClient, store: str, query: str) -> list[str]:
    answer = client.call("POST", f"/api/memory/{store}/search", {"query": query, "limit": 10})
    return [hit["node"]["id"] for hit in answer["hits"]]


PARTS: dict[str, Callable[..., BenchmarkReport]] = {
    "filters": filters,
    "evidence": evidence,
    "irrelevant": irrelevant_queries.irrelevant,
    "tokens": agent_tokens.tokens,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Return 1 when an exact check failed."""
    options = parser("memory", (__doc__ or "").split(":", 1)[0], PARTS)
    options.add_argument("--conversations", type=Path, default=locomo.FILE, help="file of conversations (%(default)s)")
    options.add_argument(
        "--embedder", choices=["hashing", "local"], default="hashing", help="hashed vectors, or the model"
    )
    given = options.parse_args(arguments)
    # Background maintenance must not change the store during the measurement.
    still = {"memory_prune": "off", "memory_consolidation": "off", "shutdown_grace": 60}
    return run_parts(PARTS, given, {"embedding_provider": given.embedder, **still}, given.conversations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
