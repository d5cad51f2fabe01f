"""Conversations retained as messages: how much of the evidence recall finds, and what neighbours of turns cost it.

Shares are means over questions: of the evidence found among the first 10 and 20, and of questions of which anything,
and of which all, is among the first 10.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from bench import locomo, memories
from bench.locomo import Conversation, Turn
from bench.measure import Report, clock
from bench.memories import Made
from bench.memory_model import some_words
from bench.server import Client

QUESTIONS = 200
WAYS: dict[str, dict[str, object]] = {"recall": {}, "recall with expand": {"expand": True}}
AIM = 0.80

_Ask = Callable[[str, str], list[str]]


def retained(client: Client, found: Sequence[Conversation], indexed: Callable[[Client, str], None]) -> Report:
    """Of messages with defaults, and below a concept for each session. ``indexed`` waits for a store's indexes."""
    total = sum(len(each.questions) for each in found)
    report = Report(f"{total} questions to {len(found)} conversations retained as messages")
    for concepts in (False, True):
        known: dict[str, dict[str, str]] = {}
        for each in found:
            known[store_of(each, concepts=concepts)] = _retain(client, each, concepts=concepts)
            indexed(client, store_of(each, concepts=concepts))
        what = ", a concept above each session" if concepts else ""
        ways: dict[str, _Ask] = {name: _recalling(client, body) for name, body in WAYS.items()}
        ways |= {"search": lambda store, query: _of_search(client, store, query)}
        shares = {name: _shares(found, known, ask, concepts=concepts) for name, ask in ways.items()}
        for name, share in shares.items():
            report.fact(f"{name}{what}: at 10, at 20, any, all", "/".join(f"{one:.4f}" for one in share[0]))
            for each, one in zip(found, share[1], strict=True):
                report.fact(f"  {each.name}", "/".join(f"{value:.4f}" for value in one))
        plain, expanded, searched = (shares[name][0] for name in ("recall", "recall with expand", "search"))
        report.compare(f"recall{what}, at 10", f"{plain[0]:.4f}", f"search {searched[0]:.4f}", plain[0] - searched[0],
                       ("≥", -0.005))  # fmt: skip
        report.compare(f"expand{what}, at 10", f"{expanded[0]:.4f}", f"the aim {AIM}", expanded[0] / AIM, ("≥", 1.0))
        report.compare(f"expand{what}, at 20", f"{expanded[1]:.4f}", f"without {plain[1]:.4f}", expanded[1] - plain[1],
                       ("≥", 0.01))  # fmt: skip
    return report


def store_of(each: Conversation, *, concepts: bool) -> str:
    """The store of a conversation."""
    return f"{each.name}-{'below' if concepts else 'plain'}"


def with_turns(made: Sequence[Made], blocks: Iterator[bytes]) -> Iterator[bytes]:
    """A store in the exchange format in which of each 20 memories one follows the other."""
    yield from blocks
    nexts = (
        {"kind": "edge", "from": one.id, "to": two.id, "relation_type": "next"}
        for place, (one, two) in enumerate(pairwise(made), 1)
        if place % 20
    )
    yield from memories.encoded(nexts)


def paces(client: Client, store: str, made: Sequence[Made]) -> Report:
    """What `expand` costs, asked in turns with recalls without it."""
    report = Report(f"recall of {len(made):,} memories, 20 of which are a conversation each")
    chance = random.Random(7)
    queries = [some_words(chance, one) for one in chance.sample(made, QUESTIONS)]
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    for query in queries[:20] + queries:
        for name, body in WAYS.items():
            took[name].append(clock(lambda query=query, body=body: _recalled(client, store, query, body)))
    plain, expanded = (statistics.median(times[20:]) for times in took.values())
    report.compare("with expand, p50", f"{expanded:.2f} ms", f"without {plain:.2f} ms", expanded / plain, ("≤", 1.5))
    return report


def _retain(client: Client, each: Conversation, *, concepts: bool) -> dict[str, str]:
    """Keep a conversation, a session at a time; which turn each memory is, by its id."""
    store, found, sessions = store_of(each, concepts=concepts), dict[str, str](), dict[str, list[Turn]]()
    for turn in {turn.dia_id: turn for turn in each.turns if turn.text.strip()}.values():
        sessions.setdefault(turn.dia_id.partition(":")[0], []).append(turn)
    for session, turns in sessions.items():
        body: dict[str, object] = {"source": session}
        if concepts:
            concept = {"id": f"concept-{session}", "content": f"Session {session}", "layer": 1}
            client.call("POST", f"/api/memories?store={store}", concept)
            body["parent"] = concept["id"]
        body["content"] = [{"role": turn.speaker, "content": turn.text} for turn in turns]
        steps = client.call("POST", f"/api/v1/retain?store={store}", body)["operations"]
        kept = [step["memory_id"] for step in steps if step["type"] != "link"]
        for memory, turn in zip(kept, turns, strict=True):
            found.setdefault(memory, turn.dia_id)
    return found


def _shares(
    found: Sequence[Conversation], known: Mapping[str, Mapping[str, str]], ask: _Ask, *, concepts: bool
) -> tuple[list[float], list[list[float]]]:
    """Over all questions, and over those of each conversation."""
    of_each: list[list[list[float]]] = []
    for each in found:
        store = store_of(each, concepts=concepts)
        asked = ((question, ask(store, question.question)) for question in each.questions)
        hits = ((question.evidence, [known[store].get(hit, hit) for hit in hits]) for question, hits in asked)
        of_each.append([_share(evidence, ids) for evidence, ids in hits])
    return _means([one for some in of_each for one in some]), [_means(some) for some in of_each]


def _share(evidence: Sequence[str], ids: Sequence[str]) -> list[float]:
    at_ten = locomo.recall(ids, evidence, 10)
    return [at_ten, locomo.recall(ids, evidence, 20), float(at_ten > 0.0), float(at_ten == 1.0)]


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def _recalling(client: Client, body: Mapping[str, object]) -> _Ask:
    return lambda store, query: _recalled(client, store, query, {"limit": 20, **body})


def _recalled(client: Client, store: str, query: str, body: Mapping[str, object]) -> list[str]:
    asked = {"query": query, "touch": False, **body}
    return [hit["id"] for hit in client.call("POST", f"/api/memories/search?store={store}", asked)["hits"]]


def _of_search(client: Client, store: str, query: str) -> list[str]:
    answer = client.call("POST", f"/api/memory/{store}/search", {"query": query, "limit": 20})
    return [hit["node"]["id"] for hit in answer["hits"]]
