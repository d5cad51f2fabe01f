"""Store with history and indexes, and a model of all its states, for searches as of any commit."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kgserve.embedding.cache import round_to_half_precision
from kgserve.embedding.embedder import Embedder, HashingEmbedder
from kgserve.graph.answers import SearchAnswer
from kgserve.graph.request_bodies import SearchRequest
from kgserve.graph.search.node_search import search_store_nodes
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, settings, write

WORDS = ("fox", "hen", "owl", "cat", "elk", "bat")
TYPES = ("bird", "beast")
TAGS = ("red", "blue", "green")


class ModelNodeState(msgspec.Struct, frozen=True):
    """State of a node in the model."""

    type: str
    content: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    valid_from: int | None = None
    valid_to: int | None = None
    attributes: str = "{}"

    def put(self, node_id: str) -> NodeUpsert:
        extras = NodeExtrasUpsert(self.summary, self.tags, None, "", self.valid_from, self.valid_to)
        return NodeUpsert(0, node_id, self.type, self.content, self.attributes, extras=extras)

    def holds(self, word: str, only: SearchRequest) -> bool:
        """Return whether a search for one word must find the node."""
        named = only.types is None or self.type in only.types
        tagged = set(only.tags or ()) <= set(self.tags) and self.has(only.attributes)
        return named and tagged and word in f"{self.content} {self.summary} {' '.join(self.tags)}".split()

    def has(self, wanted: dict[str, Any] | None) -> bool:
        """Return whether the attributes equal the requested ones, as JSON: true is not 1, but 1.0 is."""
        own = json.loads(self.attributes)
        return all(key in own and _same(own[key], value) for key, value in (wanted or {}).items())

    def true_at(self, moment: int | None) -> bool:
        if moment is None:
            return True
        return (self.valid_from or 0) <= moment and (self.valid_to is None or moment < self.valid_to)


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


class ModelCheckedStore:
    """Open store with its model; `restart` opens it again."""

    def __init__(self, data: Path, embedder: Embedder | None = None, **options: Any) -> None:
        self.data = data
        self.options = options
        self.embedder = embedder or HashingEmbedder()
        self.nodes: dict[str, ModelNodeState] = {}
        self.past: list[dict[str, ModelNodeState]] = [{}]
        self.times: list[int] = [0]
        self._stack = ExitStack()
        self.open()

    def open(self) -> None:
        self.indexer = self._stack.enter_context(closing(TextIndexWorker(self.embedder)))
        historian = self._stack.enter_context(closing(HistoryWorker()))
        self.historian: HistoryWorker | None = historian
        self.pool = self._stack.enter_context(StorePool(settings(self.data, **self.options)))
        self.pool.companions += [self.indexer, historian]
        self.store: OpenStore = self._stack.enter_context(self.pool.lease(NAME, create=True))

    def close(self) -> None:
        self._stack.close()

    def restart(self) -> None:
        self.close()
        self.open()

    @property
    def indexes(self) -> CurrentAndPastTextIndexes:
        return self.indexer.of(self.store)

    def put(self, **nodes: ModelNodeState) -> None:
        """Write nodes in the given states."""
        self._write(WriteBatch(nodes=[known.put(node_id) for node_id, known in nodes.items()]), {**self.nodes, **nodes})

    def say(self, **contents: str) -> None:
        """Write nodes of one type with the given contents."""
        self.put(**{node_id: ModelNodeState("beast", content) for node_id, content in contents.items()})

    def delete(self, *ids: str) -> None:
        left = {node_id: known for node_id, known in self.nodes.items() if node_id not in ids}
        self._write(WriteBatch(delete_nodes=list(ids)), left)

    def annotate(self, node_id: str, value: int) -> None:
        """Write a state of a node that differs only in its attributes."""
        self._write(WriteBatch(nodes=[NodeUpsert(0, node_id, attributes=f'{{"value":{value}}}')]), self.nodes)

    def relate(self, *keys: EdgeKey, valid_to: int | None = None) -> None:
        extras = None if valid_to is None else EdgeExtrasUpsert(valid_to=valid_to)
        self._write(WriteBatch(edges=[EdgeUpsert(i, key, extras=extras) for i, key in enumerate(keys)]), self.nodes)

    def _write(self, batch: WriteBatch, nodes: dict[str, ModelNodeState]) -> None:
        write(self.store, batch)
        self.nodes = nodes
        if self.store.state.sequence == len(self.past):
            self.past.append(nodes)
            self.times.append(self.store.state.time)

    def settle(self) -> None:
        """Wait until history and past indexes have applied every commit."""
        sequence = self.store.state.sequence
        assert self.indexes.wait(sequence, PATIENCE)
        assert self.historian is not None
        assert self.historian.of(self.store).wait(sequence, PATIENCE)
        for view in (self.indexes.past_keyword, self.indexes.past_vector):
            assert view.wait(sequence, PATIENCE), view.error

    def search(self, request: SearchRequest) -> SearchAnswer:
        return search_store_nodes(graph_of(self.pool, NAME, self.indexer, self.historian), request)

    def found(self, query: str, as_of: int | str | None = None, **wanted: Any) -> list[str]:
        """Return the ids of the hits, best first."""
        when = None if as_of is None else str(as_of)
        options: dict[str, Any] = {"as_of": when, "mode": "keyword", "limit": 100, **wanted}
        request = SearchRequest(query=query, **options)
        return [hit.node.id for hit in self.search(request).hits]

    def compare_words(self, source: random.Random) -> None:
        """Search for a word as of a random commit, and compare the hits with the model."""
        at = source.randrange(len(self.past))
        moment = source.choice([None, None, *range(10)])
        request = SearchRequest(
            query=source.choice(WORDS + TAGS),
            mode="keyword",
            limit=100,
            types=source.choice([None, None, [source.choice(TYPES)]]),
            tags=source.choice([None, None, [source.choice(TAGS)]]),
            attributes=some_wanted(source),
            as_of=self.named(source, at),
            valid_at="any" if moment is None else format_rfc3339_timestamp(moment),
        )
        wanted = {
            node_id
            for node_id, known in self.past[at].items()
            if known.holds(request.query, request) and known.true_at(moment)
        }
        hits = self.search(request).hits
        assert {hit.node.id for hit in hits} == wanted, request
        assert all(hit.node.content == self.past[at][hit.node.id].content for hit in hits)

    def compare_meaning(self, source: random.Random) -> None:
        """Search by vector as of a random commit, and compare order and hits with the model."""
        at = source.randrange(len(self.past))
        wanted = some_wanted(source)
        then = {key: known for key, known in self.past[at].items() if known.content and known.has(wanted)}
        query = " ".join(source.choices(WORDS, k=3))
        moment = self.named(source, at)
        request = SearchRequest(
            query=query, mode="semantic", limit=100, attributes=wanted, as_of=moment, valid_at="any"
        )
        hits = {hit.node.id: hit.score for hit in self.search(request).hits}
        assert sorted(hits) == sorted(then)
        if then:
            vectors = round_to_half_precision(self.embedder.embed([known.content for known in then.values()]))
            near = dict(zip(then, vectors @ self.embedder.embed([query])[0], strict=True))
            np.testing.assert_allclose([near[node_id] for node_id in hits], list(hits.values()), atol=1e-5)
            assert list(hits.values()) == sorted(hits.values(), reverse=True)

    def named(self, source: random.Random, at: int) -> str:
        """Return a commit as its number, or as its time if that is unique."""
        if at == 0 or source.random() < 0.5 or self.times[at] in self.times[at + 1 :]:
            return str(at)
        return format_rfc3339_timestamp(self.times[at])


@contextmanager
def watched(data: Path, embedder: Embedder | None = None, **options: Any) -> Generator[ModelCheckedStore]:
    """Yield a store with its model; everything is closed at the end."""
    with closing(ModelCheckedStore(data, embedder, **options)) as store:
        yield store


def some_node(source: random.Random) -> ModelNodeState:
    """Return a random state of a node."""
    return ModelNodeState(
        source.choice(TYPES),
        " ".join(source.choices(WORDS, k=source.randrange(4))),
        source.choice(["", "", source.choice(WORDS)]),
        tuple(sorted(source.sample(TAGS, source.choice([0, 0, 1, 2])))),
        source.choice([None, None, source.randrange(1, 5)]),
        source.choice([None, None, source.randrange(5, 10)]),
        some_attributes(source),
    )


VALUES: list[Any] = ["open", "done", "1", 1, 1.0, 2, 0.5, True, False, None, ["open"], {"status": "open"}]


def some_attributes(source: random.Random) -> str:
    """Return random attributes of a node, in storage format."""
    keys = source.sample(["status", "rank", "ä"], source.choice([0, 1, 2]))
    return json.dumps({key: source.choice(VALUES) for key in sorted(keys)}, separators=(",", ":"), ensure_ascii=False)


def some_wanted(source: random.Random) -> dict[str, Any] | None:
    """Return random attributes to search by, mostly none."""
    keys = source.sample(["status", "rank", "ä"], source.choice([0, 0, 1, 1, 2]))
    return {key: source.choice(VALUES[:-2]) for key in keys} or None
