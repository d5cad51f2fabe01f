"""Recall in four modes, compared with a brute-force model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kgserve.embedding.cache import round_to_half_precision
from kgserve.embedding.embedder import HashingEmbedder
from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph import graph_reader
from kgserve.graph.graph_reader import open_graph_reader
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.memory import memory_crud
from kgserve.memory import recall as recaller
from kgserve.memory.memory_models import ReadMemoryRequest, RecallAnswer, RecallRequest
from kgserve.memory.multi_store_recall import recall_best_memories
from kgserve.memory.recall_scoring import MIN_TOP_KEYWORD_SCORE
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import NAME, PATIENCE, settings, write

WORDS = ("fox", "hen", "owl", "cat", "elk", "bat", "cow", "dog", "yak", "emu", "ant", "bee")
TYPES = ("fact", "decision", "error")
TAGS = ("red", "blue", "green")
SOURCES = ("", "chat", "mail")
ENTITIES = ("e0", "e1", "e2", "e3")
COUNT = 700
MODES = ("keyword", "semantic", "hybrid", "graph")


class World:
    """An open store with indexes and a history."""

    def __init__(self, data: Path, stack: ExitStack) -> None:
        self.indexer = stack.enter_context(closing(TextIndexWorker(HashingEmbedder())))
        self.historian = stack.enter_context(closing(HistoryWorker()))
        self.pool = stack.enter_context(StorePool(settings(data)))
        self.pool.companions += [self.indexer, self.historian]
        self.store: OpenStore = stack.enter_context(self.pool.lease(NAME, create=True))

    def graph(self, role: Any = "admin") -> StoreHandle:
        return CallerStoreHandles(self.pool, self.indexer, self.historian, AuthenticatedCaller("tester", role)).graph(
            NAME
        )

    def write(self, *batches: WriteBatch) -> int:
        write(self.store, *batches)
        assert self.indexer.of(self.store).wait(self.store.state.sequence, PATIENCE)
        return self.store.state.sequence

    def recall(self, query: str = "fox", *, role: Any = "admin", touch: bool = False, **more: Any) -> RecallAnswer:
        return recall_best_memories(self.graph(role), RecallRequest(query=query, touch=touch, **more))

    def found(self, query: str = "fox", **more: Any) -> list[str]:
        return [hit.id for hit in self.recall(query, **more).hits]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


class ModelMemory(NamedTuple):
    """A memory of the model: `age` in days, `about` with relevances."""

    id: str
    content: str
    type: str
    tags: tuple[str, ...]
    source: str
    layer: int | None
    confidence: float
    age: float
    attributes: str
    ended: str
    about: dict[str, float]

    @property
    def worth(self) -> float:
        return self.confidence * 0.5 ** (self.age / 30)

    def put(self, now: int) -> NodeUpsert:
        created = now - round(self.age * DAY_MICROSECONDS)
        bounds: dict[str, Any] = {"valid_from": created, "valid_to": created} if self.ended else {}
        extras = NodeExtrasUpsert(
            tags=self.tags,
            confidence=self.confidence,
            source=self.source,
            layer=self.layer,
            ended=self.ended,
            **bounds,
        )
        return NodeUpsert(0, self.id, self.type, self.content, self.attributes, created_at=created, extras=extras)


def some_memories(chance: random.Random) -> list[ModelMemory]:
    return [
        ModelMemory(
            f"m{number}",
            " ".join(chance.choices(WORDS, weights=range(1, 13), k=chance.randint(1, 5))),
            chance.choice(TYPES),
            tuple(tag for tag in TAGS if chance.random() < 0.4),
            chance.choice(SOURCES),
            chance.choice([None, 1, 2]),
            round(chance.random(), 3),
            chance.choice([0.0, 0.0, chance.uniform(0, 120)]),
            chance.choice(['{"open":true}', "{}"]),
            chance.choice([""] * 6 + ["forgotten", "superseded"]),
            {entity: round(chance.uniform(0.1, 1), 2) for entity in ENTITIES if chance.random() < 0.3},
        )
        for number in range(COUNT)
    ]


RELATED = [("e0", "e1", 0.5, 0.8), ("e1", "e2", 0.9, None), ("e3", "e2", 0.4, 1.0)]
"""Related entities, with strength and confidence of the relation."""


class Whole(NamedTuple):
    world: World
    known: list[ModelMemory]
    now: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Return many memories, every seventh updated once, and other nodes with the same words."""
    chance, now = random.Random(15), now_in_microseconds()
    known = some_memories(chance)
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("whole"), stack)
        named = [NodeUpsert(0, key, "person", "", extras=NodeExtrasUpsert(name=f"Person {key[1]}")) for key in ENTITIES]
        about = [EdgeUpsert(0, (m.id, key, "is_about"), weight) for m in known for key, weight in m.about.items()]
        for one, other, strength, confidence in RELATED:
            about.append(EdgeUpsert(0, (one, other, "knows"), strength, extras=EdgeExtrasUpsert(confidence=confidence)))
        others = [NodeUpsert(0, f"n{word}", "fact", word) for word in WORDS]
        first = [each._replace(content="fox yak", ended="").put(now) for each in known[::7]]
        world.write(WriteBatch(nodes=[*named, *others, *first]))
        world.write(WriteBatch(nodes=[each.put(now) for each in known], edges=about))
        yield Whole(world, known, now)


def some_filters(chance: random.Random, now: int) -> dict[str, Any]:
    days = chance.uniform(0, 100)
    every = {
        "types": [chance.choice(TYPES)],
        "tags": chance.sample(TAGS, chance.randint(1, 2)),
        "min_confidence": chance.choice([0.0, 0.3, 0.6, 0.9, 0.99]),
        "after_date": format_rfc3339_timestamp(now - round(days * DAY_MICROSECONDS)),
        "before_date": format_rfc3339_timestamp(now - round(days * chance.random() * DAY_MICROSECONDS)),
        "entity": chance.choice([*ENTITIES, "person 2"]),
        "source": chance.choice(SOURCES[1:]),
        "layer": chance.choice([1, 2]),
        "metadata": {"open": True},
    }
    share = chance.choice([0.1, 0.3, 1.0])
    return {name: value for name, value in every.items() if chance.random() < share}


def passes(known: ModelMemory, filters: dict[str, Any], now: int, *, graph: bool) -> bool:
    created = format_rfc3339_timestamp(now - round(known.age * DAY_MICROSECONDS))
    entity = str(filters.get("entity", "")).replace("person ", "e")
    return (
        not known.ended
        and known.worth >= filters.get("min_confidence", 0.1)
        and known.type in filters.get("types", TYPES)
        and set(known.tags) >= set(filters.get("tags", ()))
        and filters.get("after_date", "") <= created < filters.get("before_date", "3")
        and (graph or not entity or entity in known.about)
        and filters.get("source", known.source) == known.source
        and filters.get("layer", known.layer) == known.layer
        and ("metadata" not in filters or "open" in known.attributes)
    )


def paths(start: str, depth: int) -> dict[str, float]:
    """Return the entities within a distance, with the strongest path product."""
    best = level = {start: 1.0}
    for _ in range(depth):
        further: dict[str, float] = {}
        for one, other, strength, confidence in RELATED:
            worth = strength * (1.0 if confidence is None else confidence)
            for a, b in ((one, other), (other, one)):
                further[b] = max(further.get(b, 0.0), level.get(a, 0.0) * worth)
        level = further
        best = {key: max(best.get(key, 0.0), level.get(key, 0.0)) for key in (*best, *level)}
    return {key: strength for key, strength in best.items() if strength}


@pytest.mark.parametrize("seed", range(4))
def test_random_recalls_equal_brute_force(whole: Whole, seed: int) -> None:
    chance, embedder = random.Random(seed), HashingEmbedder()
    for _ in range(30):
        mode, filters = chance.choice(MODES), some_filters(chance, whole.now)
        query, limit = " ".join(chance.sample(WORDS, 2)), chance.choice([1, 5, 20, 100])
        if mode == "graph":
            filters.setdefault("entity", "e0")
        least = {"min_similarity": -1.0} if mode == "hybrid" else {}
        hits = whole.world.recall(query, mode=mode, limit=limit, **least, **filters).hits
        there = {each.id: each for each in whole.known if passes(each, filters, whole.now, graph=mode == "graph")}
        assert {hit.id for hit in hits} <= set(there), (mode, filters)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert hit.effective_confidence == pytest.approx(there[hit.id].worth, abs=1e-4)
        vectors = round_to_half_precision(embedder.embed([each.content for each in there.values()]))
        near = dict(zip(there, (vectors @ embedder.embed([query])[0]).tolist(), strict=True))
        if mode == "keyword":
            holding = [each.id for each in there.values() if set(each.content.split()) & set(query.split())]
            assert len(hits) == min(limit, len(holding))
            assert {hit.id for hit in hits} <= set(holding)
        elif mode == "semantic":
            wanted = sorted((score for score in near.values() if score >= 0.5), reverse=True)[:limit]
            assert [hit.score for hit in hits] == pytest.approx(wanted, abs=1e-4)
        elif mode == "hybrid":
            assert len(hits) == min(limit, len(there))
            for hit in hits:
                assert hit.semantic_score == pytest.approx(near[hit.id], abs=1e-4)
        else:
            strengths = paths(filters["entity"].replace("person ", "e"), 2)
            scores = {
                each.id: each.worth * max(strengths.get(key, 0.0) * weight for key, weight in each.about.items())
                for each in there.values()
                if set(each.about) & set(strengths)
            }
            wanted = sorted(scores.values(), reverse=True)[:limit]
            assert [hit.score for hit in hits] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filters", [{}, {"types": ["fact"], "tags": ["red"]}])
def test_pagination_of_hits(whole: Whole, mode: str, filters: dict[str, Any]) -> None:
    wanted = {"mode": mode, "entity": "e0" if mode == "graph" else None, **filters}
    once = whole.world.found("fox cat", limit=60, **wanted)
    parts = [whole.world.found("fox cat", limit=20, offset=offset, **wanted) for offset in (0, 20, 40)]
    assert [each for part in parts for each in part] == once


def test_hybrid_score_is_fused_scores_times_confidence(whole: Whole) -> None:
    hits = whole.world.recall("yak ant", limit=100).hits
    words = {hit.id: hit.keyword_score for hit in hits if hit.keyword_score}
    assert len(words) > 10
    for hit in hits:
        said = (hit.keyword_score or 0.0) / max(words.values()) if hit.id in words else 0.0
        match = 0.4 * said + 0.6 * max(hit.semantic_score or 0.0, 0.0)
        assert hit.score <= match * hit.effective_confidence * 1.001
    assert whole.world.recall("yak ant", limit=5, alpha=1.0).hits[0].keyword_score is not None


def test_withheld_counts(whole: Whole) -> None:
    query: dict[str, Any] = {"mode": "keyword", "limit": 100}
    every = [each for each in whole.known if "fox" in each.content.split()]
    answer = whole.world.recall("fox", min_confidence=0.97, **query)
    assert len(every) < 100
    wanted = {"below_confidence": sum(1 for each in every if not each.ended and each.worth < 0.97)}
    wanted |= {why: sum(1 for each in every if each.ended == why) for why in ("forgotten", "superseded")}
    assert answer.withheld == wanted


def memory(key: str, content: str, **fields: Any) -> NodeUpsert:
    created = fields.pop("created_at", None)
    extras = NodeExtrasUpsert(confidence=fields.pop("confidence", 1.0), **fields)
    return NodeUpsert(0, key, "fact", content, created_at=created, extras=extras)


def time_ago(days: float) -> int:
    return now_in_microseconds() - round(days * DAY_MICROSECONDS)


def test_only_returned_hits_count_as_used_once(world: World) -> None:
    world.write(WriteBatch(nodes=[memory(f"m{number}", "fox", created_at=time_ago(15)) for number in range(5)]))
    hits = world.recall(limit=2, offset=1, touch=True).hits
    assert [hit.access_count for hit in hits] == [1, 1]
    for hit in hits:
        assert hit.effective_confidence == pytest.approx(0.5**0.5, abs=1e-3)
        assert hit.confidence == 1.0
    counts = {key: counted(world, key) for key in ("m0", "m1", "m2", "m3", "m4")}
    assert counts == {key: int(key in {hit.id for hit in hits}) for key in counts}
    sequence = world.store.state.sequence
    unused: list[dict[str, Any]] = [{"touch": False}, {"role": "read"}, {"as_of": str(sequence)}, {"limit": 1}]
    for untouched in unused:
        wanted: dict[str, Any] = {"touch": True, **untouched}
        world.recall("fox", role=wanted.pop("role", "admin"), touch=wanted.pop("touch"), **wanted)
    assert sum(counted(world, key) for key in counts) == 3
    assert world.recall(limit=100, mode="keyword").hits[0].version == 1


def counted(world: World, key: str) -> int:
    return memory_crud.get_memory(world.graph(), ReadMemoryRequest(memory_id=key, touch=False)).access_count


def test_use_is_visible_to_next_recall_and_filters(world: World) -> None:
    world.write(
        WriteBatch(nodes=[memory("m1", "fox", created_at=time_ago(90)), memory("m2", "fox", created_at=time_ago(120))])
    )
    assert set(world.found(min_confidence=0.12)) == {"m1"}
    world.recall(min_confidence=0.12, touch=True)
    assert world.found(min_confidence=0.2) == ["m1"]
    assert world.recall(min_confidence=0.5).withheld == {"below_confidence": 1}


def test_confident_memories_among_many_decayed_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memories near the query have decayed; all confident ones are found in each mode."""
    faded = [memory(f"f{number}", "fox fox fox", confidence=0.2) for number in range(400)]
    strong = [memory(f"s{number}", "fox hen owl cat elk bat", confidence=0.9) for number in range(3)]
    world.write(WriteBatch(nodes=[*faded, *strong]))
    for many, judged in ((10_000, 3_200), (1, 3_200), (1, 1)):
        monkeypatch.setattr(recaller, "MAX_NAMED_MEMORIES", many)
        monkeypatch.setattr(recaller, "MAX_POSTFILTERED_HITS", judged)
        for mode in ("keyword", "semantic", "hybrid"):
            found = world.found(mode=mode, min_confidence=0.5, min_similarity=0.0)
            assert sorted(found) == ["s0", "s1", "s2"], (many, judged, mode)
        world.recall(touch=True, limit=1, min_confidence=0.5)
    past: dict[str, Any] = {"min_confidence": 0.5, "min_similarity": 0.0, "as_of": str(world.store.state.sequence)}
    for judged, expected in ((3_200, ["s0", "s1", "s2"]), (200, [])):
        monkeypatch.setattr(recaller, "MAX_POSTFILTERED_HITS", judged)
        assert sorted(world.found(mode="semantic", limit=3, **past)) == expected


def test_as_of_recall_uses_past_confidence(world: World) -> None:
    world.write(WriteBatch(nodes=[memory("m1", "fox", created_at=time_ago(30))]))
    first = world.store.state.sequence
    about = [EdgeUpsert(0, ("m1", "Ann", "is_about"), 0.5)]
    world.write(WriteBatch(nodes=[memory("m1", "hen"), NodeUpsert(0, "Ann", "person", "")], edges=about))
    assert world.historian.of(world.store).wait(world.store.state.sequence, PATIENCE)
    assert (world.found("fox", mode="keyword"), world.found("hen", mode="keyword")) == ([], ["m1"])
    [then] = world.recall("fox", mode="keyword", as_of=str(first), touch=True).hits
    assert (then.content, then.entities, then.access_count) == ("fox", [], 0)
    assert then.effective_confidence == pytest.approx(0.5, abs=1e-3)
    now = str(world.store.state.sequence)
    for mode in MODES:
        [hit] = world.recall("hen", mode=mode, entity="Ann", as_of=now).hits
        assert [(each.id, each.relevance) for each in hit.entities] == [("Ann", 0.5)]
    with pytest.raises(NotFound):
        world.recall("fox", entity="Ann", as_of=str(first))


def test_valid_at_recall(world: World) -> None:
    bounds = {"valid_from": time_ago(300), "valid_to": time_ago(100)}
    world.write(
        WriteBatch(
            nodes=[
                memory("paris", "fox lives in paris", ended="superseded", belongs_to="home", **bounds),
                memory("home", "fox lives in berlin", valid_from=time_ago(100)),
                memory("void", "fox lives nowhere", ended="forgotten", valid_from=time_ago(9), valid_to=time_ago(9)),
            ]
        )
    )
    answer = world.recall("where does the fox live", mode="keyword")
    assert [hit.id for hit in answer.hits] == ["home"]
    assert answer.withheld == {"forgotten": 1, "superseded": 1}
    for mode in ("keyword", "hybrid"):
        assert world.found("where does the fox live", mode=mode, valid_at=format_rfc3339_timestamp(time_ago(200))) == [
            "paris"
        ]
        assert len(world.found("where does the fox live", mode=mode, valid_at="any")) == 3


def put_people(*names: str) -> list[NodeUpsert]:
    return [NodeUpsert(0, f"p{at}", "person", "", extras=NodeExtrasUpsert(name=name)) for at, name in enumerate(names)]


def about(memory_id: str, entity: str, weight: float = 1.0) -> EdgeUpsert:
    return EdgeUpsert(0, (memory_id, entity, "is_about"), weight)


def test_graph_mode_starting_points(world: World) -> None:
    """Graph mode starts at the given entity, else at named ones, else at entities of the best hits."""
    nodes = [*put_people("Ann Lee", "Bob", "Web Shop"), *(memory(f"m{at}", word) for at, word in enumerate(WORDS[:4]))]
    edges = [about("m0", "p0"), about("m1", "p1", 0.5), about("m2", "p2"), about("m3", "p0", 0.25)]
    sure = EdgeExtrasUpsert(confidence=0.5)
    edges += [EdgeUpsert(0, ("p1", "p0", "knows"), 0.8), EdgeUpsert(0, ("p1", "p2", "works_on"), 0.5, extras=sure)]
    world.write(WriteBatch(nodes=nodes, edges=edges))
    given: dict[str, Any] = {"mode": "graph", "entity": "ann lee"}
    answer = world.recall("anything", explain=True, **given)
    assert [(hit.id, hit.hops) for hit in answer.hits] == [("m0", 0), ("m1", 1), ("m3", 0), ("m2", 2)]
    assert [hit.score for hit in answer.hits] == pytest.approx([1.0, 0.4, 0.25, 0.2], abs=1e-3)
    assert "1 hop to p1: path 0.80, relevance 0.50" in str(answer.hits[1].why)
    assert world.found("anything", depth=1, **given) == ["m0", "m1", "m3"]
    assert world.found("what did Ann Lee's cat say", mode="graph", depth=1) == ["m0", "m1", "m3"]
    assert world.found("owl", mode="graph", depth=1, limit=1) == ["m2"]
    assert world.found("anything", types=["fact"], min_confidence=1.01 - 1.0, **given)[0] == "m0"
    with pytest.raises(NotFound, match="Nobody"):
        world.recall("anything", mode="graph", entity="Nobody")


def test_graph_mode_filter_reaches_all_memories_of_hub(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [memory(f"m{number}", "fox", tags=("rare",) if number < 3 else ()) for number in range(60)]
    world.write(WriteBatch(nodes=[*put_people("User"), *nodes], edges=[about(each.id, "p0", 0.5) for each in nodes]))
    assert set(world.found(mode="graph", entity="User", tags=["rare"])) == {"m0", "m1", "m2"}
    monkeypatch.setattr(recaller, "_JUDGE_BATCH_SIZE", 10)
    assert len(world.found(mode="graph", entity="User", limit=100)) == 60
    monkeypatch.setattr(recaller, "MAX_MEMORIES_PER_ENTITY", 20)
    assert len(world.found(mode="graph", entity="User", limit=100)) == 20
    assert set(world.found(mode="graph", entity="User", tags=["rare"])) == {"m0", "m1", "m2"}
    monkeypatch.setattr(recaller, "MAX_NAMED_MEMORIES", 30)
    for mode in ("keyword", "hybrid"):
        assert set(world.found(mode=mode, entity="User", tags=["rare"])) == {"m0", "m1", "m2"}


def test_ambiguous_name_and_invalid_date_are_rejected(world: World) -> None:
    world.write(WriteBatch(nodes=[*put_people("Ann", "ann"), memory("m1", "fox")]))
    with pytest.raises(Conflict, match="name of 2 entities"):
        world.recall(entity="ANN")
    for field in ("after_date", "before_date"):
        wanted: dict[str, Any] = {field: "2026-01"}
        with pytest.raises(InvalidInput, match=f"{field}: is neither a day"):
            world.recall("fox", **wanted)


def test_importance_breaks_ties_in_recall(world: World) -> None:
    created = time_ago(1)
    importance = (None, None, 1.0, None)
    nodes = [memory(f"m{at}", "fox", importance=each, created_at=created) for at, each in enumerate(importance)]
    world.write(WriteBatch(nodes=nodes))
    assert world.found()[0] == "m2"


def test_semantic_mode_applies_min_similarity(world: World) -> None:
    world.write(WriteBatch(nodes=[memory("m1", "fox"), memory("m2", "fox hen owl cat elk bat cow"), memory("m3", "x")]))
    assert world.found("fox", mode="semantic") == ["m1"]
    assert world.found("fox", mode="semantic", min_similarity=-1.0)[0] == "m1"
    assert len(world.found("fox", mode="semantic", min_similarity=-1.0)) == 3
    assert set(world.found("fox", mode="hybrid")) == {"m1", "m2"}
    assert set(world.found("fox", mode="hybrid", min_similarity=-1.0)) == {"m1", "m2", "m3"}


def test_min_relevance_filters_hits_without_content_word(world: World) -> None:
    world.write(WriteBatch(nodes=[memory("m1", "The cafeteria closes at 3 pm"), memory("m2", "Quantum leap")]))
    assert world.found("what is quantum chromodynamics at the moment?") == ["m2"]
    assert world.found("at the", mode="keyword") == ["m1"]
    assert world.found("at the leap", mode="keyword") == ["m2", "m1"]
    for _ in range(5):
        world.recall("the zebra at dawn", touch=True)
    assert [counted(world, each) for each in ("m1", "m2")] == [0, 0]
    assert set(world.found("the zebra at dawn", min_similarity=-1.0)) == {"m1", "m2"}


def test_recall_from_empty_store(world: World) -> None:
    for mode in MODES:
        answer = world.recall("fox in Paris", mode=mode)
        assert (answer.hits, answer.withheld) == ([], {})
        assert answer.index_sequence >= 0


def below(child: str, parent: str) -> EdgeUpsert:
    return EdgeUpsert(0, (child, parent, "child_of"), 1.0)


def test_expand_boosts_neighbours_of_best_hits(world: World) -> None:
    """A hit among a domain, a concept, two facts and an episode boosts its parent, sibling and child."""
    layers = {"domain": 0, "functional": 1, "haskell": 2, "erlang": 2, "talk": 3, "other": 2}
    texts = {
        "domain": "all that runs on computers",
        "functional": "Functional Programming",
        "haskell": "technical skills: experienced with Haskell",
        "erlang": "knows some Erlang, too",
        "talk": "a talk on monads",
        "other": "has a garden",
    }
    nodes = [memory(key, texts[key], layer=layer) for key, layer in layers.items()]
    nodes += [
        memory("faded", "bygone", layer=2, confidence=0.01),
        memory("void", "gone", ended="forgotten", valid_from=time_ago(9), valid_to=time_ago(9)),
        memory("later", "to come", layer=2, valid_from=time_ago(-9)),
        memory("again", "Technical skills: experienced with Haskell!", layer=2, confidence=0.5),
        *put_people("Ann"),
    ]
    tree = [("functional", "domain"), ("haskell", "functional"), ("talk", "haskell")]
    tree += [(child, "functional") for child in ("erlang", "faded", "void", "later")]
    ways = [about("haskell", "p0"), about("other", "p0"), EdgeUpsert(0, ("haskell", "erlang", "next"), 0.2)]
    sequence = world.write(WriteBatch(nodes=nodes, edges=[*(below(*pair) for pair in tree), *ways]))
    asked: dict[str, Any] = {"query": "technical skills", "mode": "keyword"}
    assert world.found(**asked) == ["haskell", "again"]
    answer = world.recall(expand=True, explain=True, **asked)
    hits = {hit.id: hit for hit in answer.hits}
    assert [*hits] == ["haskell", "functional", "talk", "erlang", "other"]
    assert (hits["haskell"].said, hits["haskell"].via) == (2, msgspec.UNSET)
    assert [(hits[key].via, hits[key].hops) for key in ("functional", "talk", "erlang", "other")] == [
        ("haskell", 1),
        ("haskell", 1),
        ("haskell", 2),
        ("haskell", 2),
    ]
    shares = [hit.score / hits["haskell"].score for hit in answer.hits]
    assert shares == pytest.approx([1.0, 0.5, 0.4, 0.3, 0.15], abs=1e-3)
    assert str(hits["talk"].why).startswith("child of haskell: +")
    assert world.found(expand=True, layer=2, types=["fact"], **asked) == ["haskell", "erlang", "other"]
    assert world.found(expand=True, entity="Ann", **asked) == ["haskell", "other"]
    assert world.historian.of(world.store).wait(sequence, PATIENCE)
    assert world.found(expand=True, as_of=str(sequence), **asked) == [*hits]
    for mode in ("semantic", "hybrid"):
        found = world.recall("technical skills", mode=mode, expand=True, min_similarity=0.3).hits
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
        assert len({hit.id for hit in found}) == len(found)
        assert {"functional", "talk", "erlang"} < {hit.id for hit in found if isinstance(hit.via, str)}
    by_id = {hit.id: hit for hit in found}
    assert all(hit.score < by_id[hit.via].score for hit in found if isinstance(hit.via, str))


SAID = {
    "t1": "Ann: which instrument did you buy?",
    "t2": "Bob: an old cello",
    "t3": "Ann: how lovely",
    "u1": "Bob: it rains",
    "u2": "Ann: a pity",
}


def put_conversation(**fields: dict[str, Any]) -> WriteBatch:
    nodes = [memory(key, said, layer=3, **fields.get(key, {})) for key, said in SAID.items()]
    edges = [EdgeUpsert(0, (*pair, "next"), 1.0) for pair in (("t1", "t2"), ("t2", "t3"), ("u1", "u2"))]
    return WriteBatch(nodes=nodes, edges=edges)


def test_conversation_turns_are_found_by_context(world: World) -> None:
    sequence = world.write(put_conversation())
    asked: dict[str, Any] = {"query": "which instrument did Bob buy", "explain": True}
    assert world.found("instrument", mode="keyword") == ["t1"]
    for expand in (False, True):
        hits = {hit.id: hit for hit in world.recall(expand=expand, **asked).hits}
        assert [*hits][:2] == ["t1", "t2"]
        assert (hits["t2"].via, hits["t2"].hops) == ("t1", 1)
        assert "1 turn from t1" in str(hits["t2"].why)
    assert world.found(as_of=str(sequence), **asked)[:2] == ["t1", "t2"]


def test_turns_around_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [memory(f"t{number}", f"fox {number}") for number in range(30)]
    edges = [EdgeUpsert(0, ("t0", put.id, "next"), 1.0) for put in nodes[1:]]
    sequence = world.write(WriteBatch(nodes=nodes, edges=edges))
    for past in (None, world.graph().resolve_as_of(sequence)):
        for bound, expected in ((1_000, 30), (8, 8)):
            monkeypatch.setattr(graph_reader, "MAX_TURNS_AROUND", bound)
            with open_graph_reader(world.store, past, None) as reader:
                around = reader.turns_around(["t0"])
            assert len(around) == expected
            assert {end for near in around.values() for end, _ in near} <= around.keys()


def test_filtered_turns_are_not_boosted(world: World) -> None:
    world.write(put_conversation(t2={"tags": ("red",)}, t3={"confidence": 0.01}))
    asked: dict[str, Any] = {"query": "which instrument did Bob buy", "expand": True, "explain": True}
    hits = {hit.id: hit for hit in world.recall(**asked).hits}
    assert hits["t2"].via == "t1"
    assert "t3" not in hits
    assert [hit.via for hit in world.recall(tags=["red"], **asked).hits] == [msgspec.UNSET]


def test_filler_word_in_small_store_has_low_score(world: World) -> None:
    world.write(WriteBatch(nodes=[memory("fox", "fox"), memory("hen", "hen elk"), memory("owl", "owl")]))
    best = world.recall("hen cat dog yak", explain=True).hits[0]
    assert best.id == "hen"
    assert isinstance(best.keyword_score, float)
    assert best.keyword_score < MIN_TOP_KEYWORD_SCORE
    assert f"words {best.keyword_score / MIN_TOP_KEYWORD_SCORE:.2f}" in str(best.why)


def test_hub_boosts_nothing_and_only_nearest_children_are_boosted(world: World) -> None:
    nodes = [memory("hub", "fox"), memory("one", "hen"), *(memory(f"m{at}", "cat") for at in range(40))]
    nodes += [memory(f"c{at}", "owl" if at % 4 else "fox owl") for at in range(20)]
    edges = [EdgeUpsert(0, ("hub", f"m{at}", "next"), 1.0) for at in range(40)] + [
        EdgeUpsert(0, ("one", "m7", "next"), 1.0)
    ]
    world.write(WriteBatch(nodes=nodes, edges=[*edges, *(below(f"c{at}", "hub") for at in range(20))]))
    asked: dict[str, Any] = {"expand": True, "min_similarity": 0.5, "limit": 50}
    assert world.found("hen", mode="keyword", **asked) == ["one", "m7"]
    hits = world.recall("fox", mode="semantic", **asked).hits
    assert hits[0].id == "hub"
    assert {hit.content for hit in hits} == {"fox", "fox owl", "owl"}
    assert sum(hit.said for hit in hits if isinstance(hit.said, int)) == 9


def test_superseded_memories_on_request_and_token_budget(world: World) -> None:
    bounds = {"valid_from": time_ago(300), "valid_to": time_ago(100)}
    then = memory("paris", "fox lives in paris", ended="superseded", belongs_to="home", **bounds)
    world.write(WriteBatch(nodes=[then, memory("home", "fox lives in berlin", valid_from=time_ago(100))]))
    for mode in ("keyword", "semantic", "hybrid"):
        asked: dict[str, Any] = {"query": "fox lives in", "mode": mode, "min_similarity": 0.1}
        plain = world.recall(valid_at="any", **asked).hits
        answer = world.recall(past="show", **asked)
        assert [hit.id for hit in answer.hits] == ["home", "paris"]
        scores = {hit.id: hit.score for hit in plain}
        assert answer.hits[1].score == pytest.approx(0.7 * scores["paris"], rel=1e-3)
        assert answer.withheld == {}
        short = world.recall(past="show", budget=8, touch=True, **asked)
        assert [hit.id for hit in short.hits] == ["home"]
        assert short.withheld == {"over_budget": 1}
    assert world.recall("paris", mode="keyword", past="show").hits[0].access_count == 0
