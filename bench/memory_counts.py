"""What memories come to in numbers: how long that takes, and whether it is so after many writes, by a recount."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.mcp import Stateless, Work
from bench.measure import Report, clock, times
from bench.memories import DAY, TAGS, TYPES, stamp
from bench.server import Client, Server

HALF_LIFE = 30 * DAY
LEAST = 0.1
BUCKETS = 10
ROUNDS = 60
WRITES = 500
AIM_MS = 20.0
_EDGE = 1e-6
_APART = {"is_about", "MERGED_INTO"}


def paces(report: Report, server: Server, client: Client, store: str) -> None:
    """How long each question takes, and that of an agent."""
    asked = {name: f"/api/analytics/{name}?store={store}" for name in ("overview", "types", "tags", "confidence")}
    asked |= {f"growth by {by}": f"/api/analytics/growth?store={store}&by={by}" for by in ("day", "week", "month")}
    tool = Stateless(server.port)
    work = Work("", "", "get_memory_stats", {}, {"index": store})
    asks: dict[str, Callable[[], Any]] = {
        name: lambda path=path: client.call("GET", path) for name, path in asked.items()
    }
    for name, ask in {**asks, "get_memory_stats": lambda: tool.send(work)}.items():
        took = times([clock(ask) for _ in range(ROUNDS)])
        report.at_most(name, str(took), took.p50, AIM_MS, "ms")


class Recount(NamedTuple):
    """The numbers of an export, at a moment in seconds."""

    total: int
    entities: int
    relations: int
    types: Counter[str]
    tags: Counter[str]
    days: Counter[str]
    ended: Counter[str]
    low: int
    worths: list[float]

    @classmethod
    def of(cls, lines: Sequence[dict[str, Any]], now: float) -> Recount:
        """Count everything."""
        nodes = {line["id"]: line for line in lines if line.get("kind") == "node"}
        memories = [line for line in nodes.values() if "confidence" in line]
        there = [line for line in memories if not line.get("ended") and not line.get("belongs_to")]
        edges = [line for line in lines if line.get("kind") == "edge"]
        # A node that was merged is withdrawn, also once the one that it was merged into is gone.
        gone = {key for key, line in nodes.items() if "valid_to" in line and line["valid_to"] == line.get("valid_from")}
        named = {key for key, line in nodes.items() if "name" in line and "confidence" not in line} - gone
        related = [line for line in edges if line["relation_type"] not in _APART]
        worths = [_worth(line, now) for line in there]
        return cls(
            total=len(there),
            entities=len(named),
            relations=sum(1 for line in related if {line["from"], line["to"]} <= named),
            types=Counter(line["type"] for line in there),
            tags=Counter(tag for line in there for tag in line.get("tags", ())),
            days=Counter(line["created_at"][:10] for line in there),
            ended=Counter(line["ended"] for line in memories if line.get("ended")),
            low=sum(worth < LEAST for worth in worths),
            worths=worths,
        )

    def close(self, value: float, bound: float) -> int:
        """How many are so near a bound that a moment later they may be on its other side."""
        return abs(value - sum(worth < bound for worth in self.worths)) <= sum(
            abs(worth - bound) < _EDGE for worth in self.worths
        )


def _worth(line: dict[str, Any], now: float) -> float:
    confidence, since = line["confidence"], _seconds(line.get("confidence_at", line["created_at"]))
    if "access_confidence" in line and _seconds(line["last_accessed_at"]) > since:
        confidence, since = line["access_confidence"], _seconds(line["last_accessed_at"])
    return confidence * 0.5 ** (max(now - since, 0) / HALF_LIFE)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Told(NamedTuple):
    """What the server says of a store."""

    overview: dict[str, Any]
    types: dict[str, Any]
    tags: dict[str, Any]
    growth: dict[str, Any]
    confidence: dict[str, Any]

    @classmethod
    def by(cls, client: Client, store: str) -> Told:
        """Ask for all of it."""
        ask = "/api/analytics/{}?store=" + store
        more = {"types": "&limit=1000", "tags": "&limit=1000", "growth": "&by=day&limit=1000"}
        more |= {"confidence": f"&buckets={BUCKETS}"}
        return cls(*(client.call("GET", ask.format(name) + more.get(name, "")) for name in cls._fields))


def compare(report: Report, client: Client, store: str, what: str) -> None:
    """Say whether the numbers are those of the export."""
    told, now = Told.by(client, store), time.time()
    due = Recount.of(client.export(store), now)
    stats = told.overview
    report.check(f"{what}: memories", f"{stats['total_memories']:,}", stats["total_memories"] == due.total)
    found = (stats["total_entities"], stats["total_relations"])
    joined = (due.entities, due.relations)
    report.check(
        f"{what}: entities, relations", f"{found[0]:,}, {found[1]:,} of {joined[0]:,}, {joined[1]:,}", found == joined
    )
    types = {each["memory_type"]: each["count"] for each in told.types["types"]}
    tags = {each["tag"]: each["count"] for each in told.tags["tags"]}
    days = {each["period"]: each["created"] for each in told.growth["periods"]}
    same = (types, tags, days, stats["ended"]) == (due.types, due.tags, due.days, due.ended)
    report.check(f"{what}: types, tags, days, ended", f"{len(types)}, {len(tags)}, {len(days)}, {stats['ended']}", same)
    average = sum(due.worths) / due.total
    off = abs(stats["average_confidence"] - average)
    report.check(f"{what}: average confidence", f"{average:.4f}, {off:.6f} off", off <= 0.001)
    counts = [each["count"] for each in told.confidence["buckets"]]
    exact = all(due.close(sum(counts[:at]), at / BUCKETS) for at in range(1, BUCKETS)) and sum(counts) == due.total
    low = due.close(stats["low_confidence_count"], LEAST)
    report.check(f"{what}: histogram, and how many are low", " ".join(map(str, counts)), bool(exact and low))


def worked_over(client: Client, store: str, ids: Sequence[str], entities: Sequence[str]) -> Counter[str]:
    """Write at random; how often what was done."""
    writing = _Writing(client, store, list(ids), list(entities))
    for number in range(WRITES):
        writing.one(number)
    return writing.done


class _Writing:
    """Random writes by hand: new memories, the same again, changes, merges and deletions."""

    def __init__(self, client: Client, store: str, ids: list[str], entities: list[str]) -> None:
        self._client, self._store = client, store
        self._ids, self._entities = ids, entities
        self._chance = random.Random(10)
        self.done: Counter[str] = Counter()

    def one(self, number: int) -> None:
        """Write something."""
        ways = (
            self._create,
            self._create,
            self._again,
            self._update,
            self._delete,
            self._use,
            self._merge,
            self._sweep,
        )
        way = self._chance.choice(ways)
        way(number)
        self.done[way.__name__[1:]] += 1

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return self._client.call(method, f"{path}?store={self._store}", body)

    def _create(self, number: int) -> None:
        chance = self._chance
        body = {
            "content": f"The {number} of {chance.random()} is new",
            "memory_type": chance.choice(TYPES),
            "tags": chance.sample(TAGS, 2),
            "confidence": round(chance.random(), 2),
            "created_at": stamp(time.time() - chance.uniform(0, 100 * DAY)),
            "entity_names": [f"Name {chance.randrange(40)}"],
        }
        self._ids.append(self._call("POST", "/api/memories", body)["id"])

    def _again(self, number: int) -> None:
        chance = self._chance
        text = f"Thing {chance.randrange(20)} is in the place"
        said = text if chance.random() < 0.5 else text.replace("the place", "places") + "!"
        self._call(
            "POST", "/api/memories", {"content": said, "tags": [f"again {number % 7}"], "metadata": {"n": number}}
        )

    def _update(self, number: int) -> None:
        change = [{"content": f"Changed {number}"}, {"tags": [TAGS[number % 40]]}, {"confidence": 0.5}]
        change += [{"memory_type": TYPES[number % 8]}, {"entity_names": [f"Name {number % 40}"]}]
        memory = self._chance.choice(self._ids)
        reply = self._client.send(
            "PATCH",
            f"/api/memories/{memory}?store={self._store}",
            msgspec.json.encode(self._chance.choice(change)),
        )
        assert reply.status in {200, 404}, reply.body

    def _delete(self, _: int) -> None:
        some = self._chance.sample(self._ids, 3)
        self._call("POST", "/api/memories/delete", {"memory_ids": some})
        self._ids = [each for each in self._ids if each not in some]

    def _use(self, _: int) -> None:
        query = f"/api/memories/{self._chance.choice(self._ids)}?store={self._store}"
        assert self._client.send("GET", query).status in {200, 404}

    def _merge(self, _: int) -> None:
        if len(self._entities) > 10:
            one, other = self._chance.sample(self._entities, 2)
            self._entities.remove(one)
            self._call("POST", f"/api/entities/{one}/merge", {"into": other})

    def _sweep(self, number: int) -> None:
        """Relations, an entity that goes, now and then a prune."""
        chance = self._chance
        ends = [f"Name {chance.randrange(40)}" for _ in range(2)]
        self._call("POST", "/api/relations", {"source": ends[0], "target": ends[1], "relation_type": "knows"})
        if number % 5 == 0:
            self._call("POST", "/api/memories/prune", {})
        elif number % 3 == 0 and len(self._entities) > 10:
            name = self._entities.pop(chance.randrange(len(self._entities)))
            self._client.call("DELETE", f"/api/entities/{name}?store={self._store}&cascade_memories=false")


def without_views(data: Path, store: str) -> None:
    """Delete the views of a store that nobody has open."""
    for path in (data / f"{store}_memory" / "views").glob("memories*"):
        path.unlink()
