from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.memory.organize_memories import place_memories_under_concepts
from kgserve.memory.reflect_models import CONTRADICTS, OrganizeMemoriesAnswer, OrganizeMemoriesRequest
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_parents_of_memories
from tests.memory.memory_stores import Place, exported, memory, placed, put, row_of

_BLOCKS = Path(__file__).with_name("topics.txt").read_text(encoding="utf-8").split("# ")[1:]
TOPICS = {name: sentences for name, *sentences in map(str.splitlines, _BLOCKS[:6])}
GIVEN = [*TOPICS][:4]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


def run(place: Place, name: str, **wanted: object) -> OrganizeMemoriesAnswer:
    return place_memories_under_concepts(place.graph(name), OrganizeMemoriesRequest(**wanted))  # type: ignore[arg-type]


def put_topics(place: Place, name: str) -> None:
    """Store concepts for four topics, and facts on six; ids begin with their topic."""
    concepts = [memory(topic, topic, "concept", layer=1) for topic in GIVEN]
    facts = [
        memory(f"{topic}/{at:02}", text, "fact", layer=2) for topic in TOPICS for at, text in enumerate(TOPICS[topic])
    ]
    with place.pool.lease(name, create=True) as store:
        put(store, [*concepts, *facts])


def test_certain_memories_are_placed_and_others_proposed(place: Place, store: str) -> None:
    put_topics(place, store)
    before = exported(place.graph(store))
    dry = run(place, store, dry_run=True)
    assert exported(place.graph(store)) == before
    assert (dry.run, dry.looked_at, dry.near_checked) == (None, 72, True)

    done = run(place, store)
    assert done.run is not None
    assert (done.linked, done.proposals) == (dry.linked, dry.proposals)
    right = sum(link.id.startswith(f"{link.parent_id}/") for link in done.linked)
    assert right > 32
    assert len(done.linked) - right < 4
    with place.pool.lease(store) as leased, leased.reading() as rows:
        assert find_parents_of_memories(rows, [link.id for link in done.linked]) == {
            link.id: link.parent_id for link in done.linked
        }
        edge = rows.edge((done.linked[0].id, done.linked[0].parent_id, CHILD_OF_RELATION))
        assert edge is not None
        assert edge.weight == done.linked[0].score
    texts = {f"{topic}/{at:02}": text for topic in TOPICS for at, text in enumerate(TOPICS[topic])}
    for concept in (each for each in done.proposals if each.kind == "concept"):
        assert len(concept.ids) >= 3
        said = " ".join(texts[node_id] for node_id in concept.ids)
        assert all(word in said for word in concept.name.split())
        assert len(concept.name.split()) == 2

    again = run(place, store, dry_run=True)
    assert not {link.id for link in again.linked} & {link.id for link in done.linked}
    undone = run(place, store, undo=True)
    assert (undone.run, undone.undone, undone.skipped) == (done.run, done.linked_count, [])
    assert exported(place.graph(store)) == before
    with pytest.raises(NotFound, match="no run yet"):
        run(place, store, undo=True)


def test_proposal_is_decided_only_once(place: Place, store: str) -> None:
    put_topics(place, store)
    before = exported(place.graph(store))
    done = run(place, store, threshold=0.9)
    concept, refused, *_ = (each for each in done.proposals if each.kind == "concept")
    link = next(each for each in done.proposals if each.kind == "link" and len(each.candidates) > 1)
    other = link.candidates[1].id
    names = {str(concept.number): "A concept", str(link.number): other}
    accepted = run(place, store, accept=[concept.number, link.number], refuse=[refused.number], names=names)
    states = {each.number: each.state for each in accepted.proposals}
    assert states[concept.number] == states[link.number] == "accepted"
    assert states[refused.number] == "refused"
    placed_below = {each.id: each.parent_id for each in accepted.linked}
    assert {placed_below[each] for each in link.ids} == {other}
    made = {placed_below[each] for each in concept.ids}
    assert len(made) == 1
    with place.pool.lease(store) as leased:
        row = row_of(leased, *made)
    assert (row.content, row.type, row.extras and row.extras.layer) == ("A concept", "concept", 1)

    again = (({"accept": [concept.number]}, "accepted already"), ({"refuse": [refused.number]}, "refused already"))
    for wrong, reason in again:
        with pytest.raises(Conflict, match=reason):
            run(place, store, **wrong)
    for nonsense in ({"accept": [99]}, {"accept": [1], "dry_run": True}, {"accept": [3], "refuse": [3]}):
        with pytest.raises(InvalidInput):
            run(place, store, **nonsense)
    keys = {each.key for each in run(place, store, threshold=0.9, dry_run=True).proposals}
    assert keys.isdisjoint({concept.key, link.key, refused.key})

    assert run(place, store, undo=True).skipped == []
    assert exported(place.graph(store)) == before


def test_shared_entities_support_placement_and_contradiction(place: Place, store: str) -> None:
    ports = [memory(f"port{at}", f"The shop's database listens on port 543{at}.") for at in (2, 3)]
    with place.pool.lease(store, create=True) as leased:
        put(leased, [NodeUpsert(0, "Shop", "project", "")])
        put(leased, ports, [EdgeUpsert(0, (each.id, "Shop", IS_ABOUT_RELATION)) for each in ports])
    done = run(place, store)
    [proposal] = done.proposals
    assert (proposal.kind, sorted(proposal.ids), proposal.differs) == ("contradiction", ["port2", "port3"], "numbers")
    run(place, store, accept=[1])
    with place.pool.lease(store) as leased, leased.reading() as rows:
        younger, older = proposal.ids
        assert rows.edge((younger, older, CONTRADICTS)) is not None
    assert run(place, store, dry_run=True).proposals == []


def test_reflect_merges_duplicates_and_undo_restores_them(place: Place, store: str) -> None:
    texts = ("Alice prefers tea.", "alice prefers the tea")
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory(f"m{at}", text) for at, text in enumerate(texts)])
    before = exported(place.graph(store))
    assert run(place, store).merged == 1
    assert run(place, store, undo=True).undone == 1
    assert exported(place.graph(store)) == before


def test_concept_without_words_is_named_after_first_memory(place: Place, store: str) -> None:
    texts = ("1 + 1 = 2", "1 + 2 = 3", "2 + 2 = 4", "2 + 3 = 5")
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory(f"sum{at}", text) for at, text in enumerate(texts)])
    [concept] = (each for each in run(place, store, dry_run=True).proposals if each.kind == "concept")
    assert concept.name == texts[int(concept.ids[0][3:])]
