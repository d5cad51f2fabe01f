"""A store of many memories of real sentences: glosses of WordNet, and turns of conversations where their file is there.

`python -m bench.memories` embeds the sentences, which takes most of the time, and keeps the vectors in build/: at 60
texts a second and core, 100,000 take a while the first time. Everything but the times is the same in every run.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench import locomo, wordnet
from kgserve.embedding.cache import EmbeddingCache, embed_cached
from kgserve.embedding.embedder import Embedder, load_embedder
from kgserve.platform import settings

COUNT = 100_000
ENTITIES = 2_000
SEED = 20_261_123
CACHE = Path(__file__).parents[1] / "build" / "memories" / "embeddings.sqlite"
TYPES = ("observation", "decision", "learning", "error", "pattern", "preference", "fact", "procedure")
TAGS = tuple(f"topic:{number}" for number in range(40))
SOURCES = tuple(f"session-{number}" for number in range(25))
KINDS = ("person", "organization", "project", "concept", "location", "technology", "event")
DAY = 86_400
OLDEST_DAYS = 200
_AT_ONCE = 2_000
_STEP = 128


class Made(msgspec.Struct, frozen=True):
    """A memory to store: ``created`` is in seconds since 1970, ``about`` are entities with relevances."""

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
        """It in kgserve's exchange format, its associations behind it."""
        node = {"kind": "node", "id": self.id, "type": self.type, "content": self.content, "tags": self.tags}
        node |= {"confidence": self.confidence, "created_at": stamp(self.created)}
        node |= {"source": self.source} if self.source else {}
        yield node | ({} if self.layer is None else {"layer": self.layer})
        for entity, relevance in self.about:
            edge = {"kind": "edge", "from": self.id, "to": entity, "relation_type": "is_about"}
            yield edge | {"weight": relevance}


class Named(msgspec.Struct, frozen=True):
    """An entity, and what it is related to: others with strengths and confidences."""

    id: str
    name: str
    type: str
    related: list[tuple[str, float, float]]

    def lines(self) -> Iterator[dict[str, Any]]:
        """It in kgserve's exchange format, without its relations."""
        yield {"kind": "node", "id": self.id, "type": self.type, "name": self.name}

    def relations(self) -> Iterator[dict[str, Any]]:
        """Its relations."""
        for other, strength, confidence in self.related:
            edge = {"kind": "edge", "from": self.id, "to": other, "relation_type": "related_to"}
            yield edge | {"weight": strength, "confidence": confidence}


def stamp(seconds: float) -> str:
    """A time as RFC 3339."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1_000_000):06}Z"


def sentences(count: int = COUNT, conversations: Path = locomo.FILE) -> list[str]:
    """Different sentences: all turns of the conversations, if any, then glosses. Raises wordnet.Unavailable."""
    turns = [turn.text for each in locomo.read(conversations) for turn in each.turns] if conversations.exists() else []
    glosses = [node.content.partition('; "')[0] for node in wordnet.read(wordnet.folder()).nodes]
    random.Random(SEED).shuffle(glosses)
    return list(dict.fromkeys(text for text in (*turns, *glosses) if text.strip()))[:count]


def entities(count: int = ENTITIES) -> list[Named]:
    """Entities that are related to some others each, the first ones to many."""
    chance = random.Random(SEED + 1)
    names = [f"Entity {number}" for number in range(count)]
    return [
        Named(f"e{number}", name, chance.choice(KINDS), _related(chance, count)) for number, name in enumerate(names)
    ]


def _related(chance: random.Random, count: int) -> list[tuple[str, float, float]]:
    drawn = [(int(chance.random() ** 2 * count), chance.random(), chance.random()) for _ in range(3)]
    # Of two relations between the same two the last is kept.
    return [*{other: (f"e{other}", round(one, 3), round(two, 3)) for other, one, two in drawn}.values()]


def memories(texts: Sequence[str], now: float, entity_count: int = ENTITIES) -> list[Made]:
    """A memory of each text, created at some time before ``now``; few types, tags and entities are frequent."""
    chance = random.Random(SEED + 2)
    return [_made(chance, number, text, now, entity_count) for number, text in enumerate(texts)]


def _made(chance: random.Random, number: int, text: str, now: float, entity_count: int) -> Made:
    about = {f"e{int(chance.random() ** 3 * entity_count)}": round(chance.uniform(0.3, 1.0), 3) for _ in range(2)}
    return Made(
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


def lines(made: Sequence[Made], named: Sequence[Named]) -> Iterator[bytes]:
    """A whole store in kgserve's exchange format, in blocks: nodes before the edges that join them."""
    found = [line for each in (*named, *made) for line in each.lines()]
    nodes = [line for line in found if line["kind"] == "node"]
    edges = [line for line in found if line["kind"] == "edge"]
    return encoded([*nodes, *edges, *(line for each in named for line in each.relations())])


def encoded(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Rows in the exchange format, in blocks."""
    encode, left = msgspec.json.Encoder().encode, iter(rows)
    while some := [*islice(left, _AT_ONCE)]:
        yield b"".join(encode(row) + b"\n" for row in some)


def embed(texts: Sequence[str], embedder: Embedder, path: Path = CACHE) -> None:
    """Have the vectors of all texts in a cache, those of like length together; it says how far it is."""
    cache = EmbeddingCache(path)
    started, done = time.monotonic(), 0
    for first in range(0, len(texts), _AT_ONCE):
        some = sorted(texts[first : first + _AT_ONCE], key=len)
        for step in range(0, len(some), _STEP):
            embed_cached(embedder, cache, some[step : step + _STEP])
        done += len(some)
        rate = done / (time.monotonic() - started)
        print(f"{done:,} of {len(texts):,} embedded, {rate:,.0f} texts/s", flush=True)
    cache.close()


def vectors_of(texts: Sequence[str], embedder: Embedder, path: Path = CACHE) -> NDArray[np.float32]:
    """The vectors of texts, of which those that `embed` has kept cost nothing."""
    if embedder.degraded:
        return embedder.embed(texts)
    with closing(EmbeddingCache(path)) as cache:
        return embed_cached(embedder, cache, texts)


def give(data: Path, store: str, path: Path = CACHE) -> None:
    """Have the vectors that `embed` has kept in the data folder of a server, for a store that is yet to be made."""
    views = data / f"{store}_memory" / "views"
    if path.exists() and not views.exists():
        views.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(views / path.name)) as target:
            source.backup(target)


def main(arguments: Sequence[str]) -> int:
    """Embed the sentences."""
    parser = argparse.ArgumentParser(prog="python -m bench.memories", description="Embed many sentences.")
    parser.add_argument("--count", type=int, default=COUNT, help="how many")
    parser.add_argument("--conversations", type=Path, default=locomo.FILE, help="conversations as LoCoMo has them")
    options = parser.parse_args(arguments)
    embed(sentences(options.count, options.conversations), load_embedder(settings.load()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
