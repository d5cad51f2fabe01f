"""Random memories made of sentences, and a reference recall that scans all of them without indexes."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import graphs, wordnet
from kgserve.embedding.embedder import Embedder
from kgserve.memory.recall_scoring import MAX_SPREAD_ENTITIES
from kgserve.projections.keyword_index import KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.vector.vector_index import VectorHit

ENTITIES = 2_000
SEED = 20_261_123
TYPES = ("observation", "decision", "learning", "error", "pattern", "preference", "fact", "procedure")
TAGS = tuple(f"topic:{number}" for number in range(40))
SOURCES = tuple(f"session-{number}" for number in range(25))
KINDS = ("person", "organization", "project", "concept", "location", "technology", "event")
DAY = 86_400
OLDEST_DAYS = 200
HALF_LIFE = 30 * DAY
MIN_CONFIDENCE = 0.1
DEPTH = 2
# Values this close to a bound may be on either side of it at the time of the request.
_BOUND_TOLERANCE = 2e-4


class SampleMemory(msgspec.Struct, frozen=True):
    """A memory to store. ``created`` is in seconds since 1970; ``about`` are entities with relevances."""

    id: str
    content: str
    type: str
    tags: list[str]
    confidence: float
    source: str | None
    layer: int | None
    created: float
    about: list[tuple[str, float]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the memory and its associations in kgserve's exchange format."""
        node = {"kind": "node", "id": self.id, "type": self.type, "content": self.content, "tags": self.tags}
        node |= {"confidence": self.confidence, "created_at": stamp(self.created)}
        node |= {"source": self.source} if self.source else {}
        yield node | ({} if self.layer is None else {"layer": self.layer})
        for entity, relevance in self.about:
            edge = {"kind": "edge", "from": self.id, "to": entity, "relation_type": "is_about"}
            yield edge | {"weight": relevance}


class SampleEntity(msgspec.Struct, frozen=True):
    """An entity and its relations to others, with strengths and confidences."""

    id: str
    name: str
    type: str
    related: list[tuple[str, float, float]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the entity in kgserve's exchange format, without its relations."""
        yield {"kind": "node", "id": self.id, "type": self.type, "name": self.name}

    def relations(self) -> Iterator[dict[str, Any]]:
        """Yield the entity's relations."""
        for other, strength, confidence in self.related:
            edge = {"kind": "edge", "from": self.id, "to": other, "relation_type": "related_to"}
            yield edge | {"weight": strength, "confidence": confidence}


def stamp(seconds: float) -> str:
    """Format a time as RFC 3339."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1_000_000):06}Z"


def sentences(count: int) -> list[str]:
    """Return different glosses of WordNet, shuffled by seed. Raises wordnet.Unavailable."""
    glosses = [node.content.partition('; "')[0] for node in wordnet.read(wordnet.folder()).nodes]
    random.Random(SEED).shuffle(glosses)
    return list(dict.fromkeys(filter(str.strip, glosses)))[:count]


def entities() -> list[SampleEntity]:
    """Return entities, each related to some others, the first ones to many."""
    chance = random.Random(SEED + 1)
    return [
        SampleEntity(f"e{number}", f"Entity {number}", chance.choice(KINDS), _draw_relations(chance))
        for number in range(ENTITIES)
    ]


def _draw_relations(chance: random.Random) -> list[tuple[str, float, float]]:
    drawn = [(int(chance.random() ** 2 * ENTITIES), chance.random(), chance.random()) for _ in range(3)]
    # The last of two relations between the same entities is kept.
    return [*{other: (f"e{other}", round(one, 3), round(two, 3)) for other, one, two in drawn}.values()]


def memories(texts: Sequence[str], now: float) -> list[SampleMemory]:
    """Return a memory of each text, created before ``now``. Few types, tags and entities are frequent."""
    chance = random.Random(SEED + 2)
    return [_make_memory(chance, number, text, now) for number, text in enumerate(texts)]


def _make_memory(chance: random.Random, number: int, text: str, now: float) -> SampleMemory:
    about = {f"e{int(chance.random() ** 3 * ENTITIES)}": round(chance.uniform(0.3, 1.0), 3) for _ in range(2)}
    return SampleMemory(
        f"m{number:06}",
        text,
        TYPES[int(chance.random() ** 2 * len(TYPES))],
        sorted({TAGS[int(chance.random() ** 2 * len(TAGS))] for _ in range(chance.randrange(4))}),
        round(chance.choice([1.0, 1.0, chance.random()]), 3),
        chance.choice([None, *SOURCES]),
        chance.choice([None, None, 2, 3, 1]),
        now - chance.random() ** 2 * OLDEST_DAYS * DAY,
        list(about.items()),
    )


def lines(made: Sequence[SampleMemory], named: Sequence[SampleEntity]) -> Iterator[bytes]:
    """Yield a whole store in kgserve's exchange format in blocks, nodes before edges."""
    found = [line for each in (*named, *made) for line in each.lines()]
    nodes = [line for line in found if line["kind"] == "node"]
    edges = [line for line in found if line["kind"] == "edge"]
    return graphs.blocks([*nodes, *edges, *(line for each in named for line in each.relations())])


class RecallModel:
    """Reference model: memories and entities in dictionaries."""

    def __init__(
        self, made: Sequence[SampleMemory], named: Sequence[SampleEntity], embedder: Embedder, now: float
    ) -> None:
        """Initialize the model. ``now`` is the approximate time of requests in seconds since 1970."""
        self.made = {each.id: each for each in made}
        self.now = now
        self._embedder = embedder
        self._relations: dict[str, list[tuple[str, float]]] = {}
        for one in named:
            for other, strength, confidence in one.related:
                self._relations.setdefault(one.id, []).append((other, strength * confidence))
                self._relations.setdefault(other, []).append((one.id, strength * confidence))
        self._vectors = embedder.embed([each.content for each in made])
        with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder:
            # Tokenization is not under test.
            self.terms = KeywordIndex(Path(folder) / "terms").terms
            self._words = {each.id: self._words_of(each) for each in made}

    def _words_of(self, made: SampleMemory) -> set[str]:
        text = " ".join((made.id, made.content, *made.tags, made.type, made.source or ""))
        return set(self.terms(KeywordQuery(text)))

    def worth(self, made: SampleMemory) -> float:
        """Return the decayed confidence of a memory."""
        return made.confidence * 0.5 ** ((self.now - made.created) / HALF_LIFE)

    def passing(self, filters: Mapping[str, Any], *, graph: bool) -> tuple[set[str], set[str]]:
        """Return the memories that certainly pass, and those that may because their confidence is at the bound."""
        fits = [each for each in self.made.values() if self._passes_filters(each, filters, graph=graph)]
        least = filters.get("min_confidence", MIN_CONFIDENCE)
        surely = {each.id for each in fits if self.worth(each) >= least * (1 + _BOUND_TOLERANCE)}
        return surely, surely | {each.id for each in fits if self.worth(each) >= least * (1 - _BOUND_TOLERANCE)}

    def _passes_filters(self, made: SampleMemory, filters: Mapping[str, Any], *, graph: bool) -> bool:
        created = stamp(made.created)
        return (
            ("types" not in filters or made.type in filters["types"])
            and set(filters.get("tags", ())) <= set(made.tags)
            and filters.get("after_date", "") <= created < filters.get("before_date", "9")
            and ("source" not in filters or made.source == filters["source"])
            and ("layer" not in filters or made.layer == filters["layer"])
            and (graph or "entity" not in filters or any(key == filters["entity"] for key, _ in made.about))
        )

    def holding(self, query: str, among: set[str]) -> set[str]:
        """Return the memories that contain any of the words."""
        wanted = set(self.terms(KeywordQuery(query)))
        return {key for key in among if self._words[key] & wanted}

    def near(self, query: str, among: set[str], least: float, limit: int) -> list[VectorHit]:
        """Return the nearest memories."""
        scores = self._vectors @ self._embedder.embed([query])[0]
        order = np.argsort(-scores, kind="stable")
        ids = [*self.made]
        found = (VectorHit(ids[place], float(scores[place])) for place in order if ids[place] in among)
        return [hit for hit in found if hit.similarity >= least][:limit]

    def around(self, entity: str, among: set[str]) -> dict[str, float]:
        """Return the memories associated with an entity, with their scores."""
        best = level = {entity: 1.0}
        for _ in range(DEPTH):
            further: dict[str, float] = {}
            for one, strength in level.items():
                for other, worth in self._relations.get(one, ()):
                    further[other] = max(further.get(other, 0.0), strength * worth)
            level = further
            best = {key: max(best.get(key, 0.0), level.get(key, 0.0)) for key in (*best, *level)}
        best = dict(sorted(best.items(), key=lambda each: -each[1])[:MAX_SPREAD_ENTITIES])
        ways = ((key, [best.get(e, 0.0) * r for e, r in self.made[key].about]) for key in among)
        return {key: max(found) * self.worth(self.made[key]) for key, found in ways if max(found, default=0.0) > 0}


def some_filters(chance: random.Random, now: float, made: SampleMemory, share: float) -> dict[str, Any]:
    """Return random filters; half of their values are taken from a memory, so that some memories pass."""
    first = now - chance.random() * OLDEST_DAYS * DAY
    last = first + chance.random() * OLDEST_DAYS * DAY
    own = chance.random() < 0.5
    every: dict[str, Any] = {
        "types": [made.type] if own else chance.sample(TYPES, 2),
        "tags": made.tags[:1] if own else [chance.choice(TAGS)],
        "min_confidence": chance.choice([0.0, 0.05, 0.2, 0.5, 0.9]),
        "after_date": stamp(min(first, made.created) if own else first),
        "before_date": stamp(max(last, made.created + 1) if own else last),
        "entity": made.about[0][0] if own else f"e{chance.randrange(100)}",
        "source": (made.source or SOURCES[0]) if own else chance.choice(SOURCES),
        "layer": made.layer or chance.choice([1, 2, 3]),
    }
    return {name: value for name, value in every.items() if chance.random() < share}


def some_words(chance: random.Random, made: SampleMemory) -> str:
    """Return a query made of a memory's words."""
    words = made.content.split()
    return " ".join(chance.sample(words, min(len(words), chance.randint(1, 5))))
