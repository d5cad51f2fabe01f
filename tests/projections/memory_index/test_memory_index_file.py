"""Memory index compared with a model: random commits, applied in steps, equal an index built at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives
from kgserve.projections.memory_index.memory_index_file import DecayOrderPosition, MemoryIndexSqliteFile
from kgserve.projections.memory_index.query_planner import MemoryPageStart, MemorySortKey
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.entity_names import normalize_entity_name
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_rows import NodeRow
from tests.projections.memory_index.follow import HALF_LIVES, IDS, NOW, TYPES, Writer, contents, is_active

STEPS = 60
ANY = NOW


def _holds(writer: Writer, node_id: str) -> bool:
    return writer.nodes[node_id].is_valid_at(ANY)


def steps(writer: Writer, memories: MemoryIndexSqliteFile) -> Iterator[None]:
    """Apply random commits to an index, some at a time."""
    for _ in range(STEPS):
        start = len(writer.changes)
        for _ in range(writer.choice.randint(1, 3)):
            writer.step()
        memories.apply(NetChange(writer.changes[start:]), writer.history.state.sequence, writer.edges_of)
        yield


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[MemoryIndexSqliteFile]:
    opened = MemoryIndexSqliteFile(tmp_path / "views" / "memories.sqlite", HALF_LIVES)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(3))
def test_following_equals_a_rebuild(memories: MemoryIndexSqliteFile, seed: int) -> None:
    writer = Writer(seed)
    for _ in steps(writer, memories):
        rebuilt = writer.rebuilt()
        assert contents(memories) == contents(rebuilt)
        assert memories.sequence == rebuilt.sequence == writer.history.state.sequence
        rebuilt.close()
        ways, second, circles = writer.above()
        assert memories.count_ignored_parents() == (second, circles)
        for node_id, way in ways.items():
            assert [each.id for each in memories.ancestors_of(node_id, ANY)] == [
                each for each in way if _holds(writer, each)
            ]
            below = {other: ways[other].index(node_id) + 1 for other in ways if node_id in ways[other]}
            true = {other: depth for other, depth in below.items() if _holds(writer, other)}
            assert dict(memories.descendants(node_id, ANY, None, "", 99, near=False).found) == true
            assert [each.id for each in memories.descendants(node_id, ANY, None, "", 99, near=True).found] == sorted(
                other for other, depth in true.items() if depth == 1
            )
            assert memories.filter_descendants(node_id, ways) == below.keys()


def test_rows_may_be_ahead_of_the_index(memories: MemoryIndexSqliteFile) -> None:
    writer = Writer(9)
    for _ in range(STEPS):
        start = len(writer.changes)
        for _ in range(6):
            writer.step()
        for change in writer.changes[start:]:
            memories.apply(NetChange([change]), change.sequence, writer.edges_of)
        rebuilt = writer.rebuilt()
        assert contents(memories) == contents(rebuilt)
        rebuilt.close()


def test_counts_sums_and_histograms_match_the_model(memories: MemoryIndexSqliteFile) -> None:
    writer = Writer(4)
    for _ in steps(writer, memories):
        there = writer.in_force()
        for now in (NOW, 0, 520 * DAY_MICROSECONDS, 5000 * DAY_MICROSECONDS):
            worths = [writer.worth(row, HALF_LIVES, now) for row in there.values()]
            assert memories.decayed_confidence_of(now) == pytest.approx(sum(worths), abs=1e-6)
            assert memories.histogram(now, 10) == [
                sum(min(int(worth * 10), 9) == bucket for worth in worths) for bucket in range(10)
            ]
            assert memories.below(0.5, now) == sum(worth < 0.5 for worth in worths)
        assert memories.total() == len(there)
        assert dict(memories.tallies("type", 9)) == {
            type_: count for type_ in TYPES if (count := sum(row.type == type_ for row in there.values()))
        }
        created = [row.created_at for row in there.values()]
        assert memories.creation_time_range() == ((min(created), max(created)) if created else None)


def test_changed_half_lives_recompute_all_keys(memories: MemoryIndexSqliteFile) -> None:
    writer, others = Writer(5), MemoryHalfLives(7.0, {"fact": None})
    for _ in steps(writer, memories):
        pass
    memories.set_half_lives(others)
    rebuilt = writer.rebuilt(others)
    assert contents(memories) == contents(rebuilt)
    rebuilt.close()
    memories.close()
    again = MemoryIndexSqliteFile(memories.path, HALF_LIVES)
    again.set_half_lives(HALF_LIVES)
    worths = [writer.worth(row, HALF_LIVES, NOW) for row in writer.in_force().values()]
    assert again.decayed_confidence_of(NOW) == pytest.approx(sum(worths))
    again.close()


def wanted_by(choice: random.Random) -> MemoryFilter:
    """Return a random filter."""
    pick = choice.choice
    return MemoryFilter(
        now=NOW,
        types=tuple(choice.sample(TYPES, pick((0, 0, 0, 1, 2)))),
        tags=tuple(choice.sample("xyz", pick((0, 0, 0, 1, 2)))),
        min_confidence=pick((0.0, 0.0, 0.1, 0.3, 0.7)),
        created_from=pick((None, None, None, 20_000_000)),
        created_to=pick((None, None, None, 60_000_000)),
        source=pick(("", "", "", "", "chat")),
        layer=pick((None, None, None, None, 1)),
        entity=pick(("", "", "", "", "n0", "n3")),
        ended=pick(("", "any", "merged")),
        among=pick((None, None, None, None, frozenset(choice.sample(IDS, 7)), frozenset[str]())),
    )


def fits(writer: Writer, wanted: MemoryFilter, row: NodeRow) -> bool:
    """Return whether a memory matches the filter."""
    extras = row.extras
    assert extras is not None
    about = [edge for edge in writer.edges_of(row.id) if edge.key == (row.id, wanted.entity, "is_about")]
    return (
        (is_active(row) and row.is_valid_at(NOW) if not wanted.ended else wanted.ended in ("any", extras.ended))
        and (wanted.among is None or row.id in wanted.among)
        and (not wanted.types or row.type in wanted.types)
        and set(wanted.tags) <= set(extras.tags)
        and writer.worth(row, HALF_LIVES, NOW) >= wanted.min_confidence
        and (wanted.created_from is None or row.created_at >= wanted.created_from)
        and (wanted.created_to is None or row.created_at <= wanted.created_to)
        and wanted.source in ("", extras.source)
        and wanted.layer in (None, extras.layer)
        and (not wanted.entity or any(edge.is_valid_at(NOW) for edge in about))
    )


def pages(memories: MemoryIndexSqliteFile, wanted: MemoryFilter, sort: MemorySortKey, limit: int) -> list[str]:
    """Return all pages of a list."""
    found: list[str] = []
    place: MemoryPageStart | None = MemoryPageStart()
    while place is not None:
        page = memories.list_memory_page(wanted, sort, place, limit)
        assert len(page.ids) <= limit
        found += page.ids
        place = page.next
    return found


def test_filters_match_in_every_order(memories: MemoryIndexSqliteFile) -> None:
    writer, found = Writer(6), 0
    for _ in steps(writer, memories):
        for _ in range(4):
            wanted = wanted_by(writer.choice)
            model = {node_id: row for node_id, row in writer.memories().items() if fits(writer, wanted, row)}
            found += len(model)
            assert sorted(memories.ids(wanted, 99)) == sorted(model)
            assert memories.count(wanted, 99).count == len(model)
            assert memories.count(wanted, 1).exact is (not model)
            listed = pages(memories, wanted, "updated", 2)
            assert listed == sorted(model, key=lambda each: (model[each].updated_at, each), reverse=True)
            used = {each: writer.accesses[each].last if each in writer.accesses else 0 for each in model}
            listed = pages(memories, wanted, "accessed", 3)
            assert listed == sorted(model, key=lambda each: (used[each], each), reverse=True)
            assert sorted(pages(memories, wanted, "created", 3)) == sorted(model)
            listed = pages(memories, wanted, "confidence", 2)
            assert sorted(listed) == sorted(model)
            worths = [
                min(writer.worth(model[each], HALF_LIVES, 600 * DAY_MICROSECONDS), 1.0)
                for each in pages_at(memories, wanted)
            ]
            assert worths == pytest.approx(sorted(worths, reverse=True))
    assert found > 100


def pages_at(memories: MemoryIndexSqliteFile, wanted: MemoryFilter) -> list[str]:
    """Return a list by confidence at a moment when all memories have begun to decay."""
    later = MemoryFilter(now=600 * DAY_MICROSECONDS, types=wanted.types, ended="any")
    return [each for each in pages(memories, later, "confidence", 5) if each in memories.ids(wanted, 99)]


def test_live_values_and_equal_texts(memories: MemoryIndexSqliteFile) -> None:
    writer = Writer(8)
    for _ in steps(writer, memories):
        live = memories.live([*writer.nodes, "nobody"])
        assert set(live) == set(writer.memories())
        for node_id, row in writer.memories().items():
            each, extras, access = live[node_id], row.extras, writer.accesses.get(node_id)
            assert extras is not None
            assert each.effective(NOW) == pytest.approx(writer.worth(row, HALF_LIVES, NOW))
            assert each[9:14] == (extras.layer, extras.source, extras.importance, extras.ended, extras.belongs_to)
            assert (each.access_count, each.accessed_at) == ((access.count, access.last) if access else (0, None))
        assert memories.accesses(writer.nodes) == writer.accesses
        text = "Alice likes tea."
        now = {each for each, row in writer.in_force().items() if row.is_valid_at(NOW)}
        same = [
            each.id
            for each in memories.memories_with_equal_text(hash_normalized_text(text), fingerprint_wording(text), NOW)
        ]
        assert set(same) == {
            each for each in now if fingerprint_wording(writer.nodes[each].content) == fingerprint_wording(text)
        }
        hashed = {
            each for each in same if hash_normalized_text(writer.nodes[each].content) == hash_normalized_text(text)
        }
        assert set(same[: len(hashed)]) == hashed


def test_names_relations_and_subjects_of_memories(memories: MemoryIndexSqliteFile) -> None:
    writer = Writer(11)
    for _ in steps(writer, memories):
        named = {each: row.extras for each, row in writer.nodes.items() if row.extras is not None and row.extras.name}
        found = {each.id: each.match for each in memories.nodes_named("Alice")}
        assert found == {
            each: "exact" if extras.name == "Alice" else "folded"
            for each, extras in named.items()
            if normalize_entity_name(extras.name) == "alice"
        }
        assert {each.id for each in memories.nodes_named("THE boss")} == {
            each for each in named if '"the boss"' in writer.nodes[each].attributes
        }
        for node_id in writer.memories():
            about = [edge for edge in writer.edges_of(node_id) if edge.source == node_id]
            assert dict(memories.entities_of(node_id, NOW, 99)) == {
                edge.target: edge.weight for edge in about if edge.relation_type == "is_about" and edge.is_valid_at(NOW)
            }


def test_pagination_of_faded_memories_lowest_confidence_first(memories: MemoryIndexSqliteFile) -> None:
    writer = Writer(12)
    for _ in steps(writer, memories):
        place, found = DecayOrderPosition(), list[str]()
        while some := memories.list_faded(0.25, NOW, place, 2):
            found += [each.id for each in some]
            place = DecayOrderPosition.of(some[-1])
        worths = {each: writer.worth(row, HALF_LIVES, NOW) for each, row in writer.in_force().items()}
        later = {each.id for each in memories.live(worths).values() if each.since > NOW and each.half * each.confidence}
        there = {each for each, worth in worths.items() if worth < 0.25} - later
        assert len(found) == len(set(found))
        assert set(found) == there


def test_a_foreign_file_is_replaced_and_an_empty_index_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "memories.sqlite"
    path.write_bytes(b"no database" * 100)
    for each in (MemoryIndexSqliteFile(path, HALF_LIVES), MemoryIndexSqliteFile(None, HALF_LIVES)):
        assert (each.sequence, each.total(), each.decayed_confidence_of(NOW), each.histogram(NOW, 3)) == (
            -1,
            0,
            0.0,
            [0, 0, 0],
        )
        assert (each.live(["a"]), each.nodes_named("a"), each.ids(MemoryFilter(now=NOW), 9)) == ({}, [], [])
        assert each.list_memory_page(MemoryFilter(now=NOW), "confidence", MemoryPageStart(), 9).next is None
        each.close()
