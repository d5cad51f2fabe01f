"""Facts with times, told in random order: how fast they are kept, and whether what was true when is found again.

`python -m bench.timed_facts [--facts N] [--embedder local|off]`. People and clubs come from a generator: each relation
of a subject has a row of facts, one after the other, with gaps between some. They are kept in two ways: as memories
with bounds of their own (`POST /api/memories/batch`), and as versions of one memory for each subject and relation
(`POST /api/v1/retain/batch`). Then random subjects are asked for at random moments, beside a dict of the same facts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bench.measure import Report
from bench.server import Client, Server, end_when_told

SEED = 6
AT_ONCE = 1_000
QUESTIONS = 500
SHARE = 10_000
"""Facts of which each pace is measured: the first so many, and the last."""
AIM = 5_000.0
FIRST, LAST = 1_900, 2_020
RELATIONS = ("playsFor", "livesIn", "worksAt", "isMarriedTo", "isLeaderOf", "owns", "graduatedFrom", "isAffiliatedTo")
SYLLABLES = ("ba", "cor", "di", "ven", "gu", "hal", "jo", "kim", "lo", "mar", "nev", "pe", "ris", "sol", "tu", "wen")


class Fact(NamedTuple):
    """What was so of a subject from the first day of a year to the first day of another; None: it is so."""

    subject: str
    relation: str
    object: str
    start: int
    end: int | None

    @property
    def key(self) -> str:
        """The memory whose version it is."""
        return f"{self.subject}/{self.relation}"

    @property
    def text(self) -> str:
        """As a sentence."""
        return f"{self.subject} {self.relation} {self.object}"


def facts(count: int, seed: int = SEED) -> list[Fact]:
    """So many, in no order."""
    choice = random.Random(seed)
    found: list[Fact] = []
    while len(found) < count:
        found += _of_subject(choice, _name(choice, len(found)))
    found = found[:count]
    choice.shuffle(found)
    return found


def _of_subject(choice: random.Random, subject: str) -> Iterator[Fact]:
    for relation in choice.sample(RELATIONS, choice.choice((1, 1, 2, 3))):
        year = choice.randrange(FIRST, LAST - 30)
        for _ in range(choice.choice((1, 1, 1, 2, 3, 5, 8))):
            end = year + choice.randrange(1, 9)
            if end >= LAST or choice.random() < 0.05:
                yield Fact(subject, relation, f"Club_{choice.randrange(9_000)}", year, None)
                break
            yield Fact(subject, relation, f"Club_{choice.randrange(9_000)}", year, end)
            year = end + choice.choice((0, 0, 1, 4))


def _name(choice: random.Random, number: int) -> str:
    words = ("".join(choice.choice(SYLLABLES) for _ in range(choice.choice((2, 3)))).title() for _ in range(2))
    return f"{'_'.join(words)}_{number}"


def day(year: int | None) -> str | None:
    """The first moment of a year."""
    return None if year is None else f"{year}-01-01T00:00:00Z"


class Way(NamedTuple):
    """How facts are kept: where they are sent, and what is sent for one."""

    store: str
    path: str
    rows: str
    row: Callable[[Fact], dict[str, Any]]


def _row(fact: Fact) -> dict[str, Any]:
    bounds = {"valid_from": day(fact.start), "valid_to": day(fact.end)}
    return {"content": fact.text, "memory_type": "fact", "tags": [fact.subject], **bounds}


WAYS = (
    Way("bounds", "/api/memories/batch", "memories", _row),
    Way("versions", "/api/v1/retain/batch", "items", lambda fact: {**_row(fact), "entity_id": fact.key}),
)


def main() -> int:
    """Keep, measure, ask, and print a table for each way; 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=int, default=161_540)
    parser.add_argument("--embedder", default="local", choices=("local", "off"))
    parser.add_argument("--only", choices=[way.store for way in WAYS])
    options = parser.parse_args()
    end_when_told()
    told = facts(options.facts)
    settings = {"shutdown_grace": 120, **({"indexes": False} if options.embedder == "off" else {})}
    wrong = False
    for way in WAYS:
        if options.only in {None, way.store}:
            with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server:
                report = kept(server, way, told)
            report.show()
            wrong = wrong or report.wrong
    return int(wrong)


def kept(server: Server, way: Way, told: Sequence[Fact]) -> Report:
    """Keep all of them, and ask."""
    report = Report(f"{len(told):,} facts as {way.store}, {AT_ONCE:,} at once")
    with server.client() as client:
        seconds: list[float] = []
        spent: list[float] = [server.processor_seconds()]
        for first in range(0, len(told), AT_ONCE):
            rows = {way.rows: [way.row(fact) for fact in told[first : first + AT_ONCE]]}
            started = time.perf_counter()
            client.call("POST", f"{way.path}?store={way.store}", rows)
            seconds.append(time.perf_counter() - started)
            spent.append(server.processor_seconds())
        _paces(report, seconds, len(told))
        _costs(report, spent)
        _ask(report, client, way, told)
    return report


def _paces(report: Report, seconds: Sequence[float], count: int) -> None:
    share = SHARE // AT_ONCE
    all_, first, last = (AT_ONCE * len(some) / sum(some) for some in (seconds, seconds[:share], seconds[-share:]))
    report.compare("facts a second", f"{count / sum(seconds):,.0f}", f"{AIM:,.0f}", all_ / AIM, ("≥", 1.0))
    report.compare(
        f"the last {SHARE:,} beside the first", f"{last:,.0f} a second", f"{first:,.0f}", first / last, ("≤", 1.3)
    )
    slowest = max(seconds)
    report.fact("the slowest batch", f"{slowest:.2f} s")


def _costs(report: Report, spent: Sequence[float]) -> None:
    """What the server's processor did meanwhile, followers included: on a busy machine this tells more."""
    share = min(SHARE // AT_ONCE, len(spent) - 1)
    all_, first, last = (
        1_000_000 * (some[-1] - some[0]) / (AT_ONCE * (len(some) - 1))
        for some in (spent, spent[: share + 1], spent[-share - 1 :])
    )
    report.fact("processor's time for a fact", f"{all_:,.0f} µs")
    report.compare(f"the same of the last {SHARE:,}", f"{last:,.0f} µs", f"{first:,.0f} µs", last / first, ("≤", 1.3))


def _ask(report: Report, client: Client, way: Way, told: Sequence[Fact]) -> None:
    choice = random.Random(SEED + 1)
    known: dict[str, dict[str, list[Fact]]] = {}
    for fact in told:
        known.setdefault(fact.subject, {}).setdefault(fact.relation, []).append(fact)
    subjects, agreed = sorted(known), 0
    for _ in range(QUESTIONS):
        subject = choice.choice(subjects)
        moment = f"{choice.randrange(FIRST, LAST)}-{choice.randrange(1, 13):02}-15T12:00:00Z"
        asked = f"store={way.store}&tags={quote(subject)}&valid_at={moment}&limit=100"
        page = client.call("GET", f"/api/memories?{asked}")
        agreed += {each["content"] for each in page["memories"]} == true_at(known[subject], moment)
    report.check("questions that agree", f"{agreed} of {QUESTIONS}", agreed == QUESTIONS)


def true_at(relations: dict[str, list[Fact]], moment: str) -> set[str]:
    """What a dict of the facts of a subject, by relation, says of a moment."""
    found: set[str] = set()
    for some in relations.values():
        begun = max(
            (fact for fact in some if (day(fact.start) or "") <= moment), key=lambda fact: fact.start, default=None
        )
        if begun is not None and (begun.end is None or moment < (day(begun.end) or "")):
            found.add(begun.text)
    return found


if __name__ == "__main__":
    sys.exit(main())
