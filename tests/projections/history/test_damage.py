"""Damage to a history that is the only copy of the past: intact content survives, and losses are reported as gaps."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kgserve.admin.doctor import StoreRepairOptions, repair_and_check_stores
from kgserve.admin.stores import get_store_stats
from kgserve.errors import BackupDamaged, Gone
from kgserve.graph.as_of_graph import PastMoment
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.damaged_sqlite_reader import DatabasePages, UnreadableSqlitePage
from kgserve.projections.history.history_sql import HISTORY_PAGE_BYTES
from kgserve.projections.history.page_checksums import PageChecksumFile
from kgserve.projections.history.recovery import (
    find_history_file_damage,
    open_or_repair_history_file,
    read_history_gaps,
    salvage_history,
)
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile
from kgserve.projections.history.salvage import salvage_intact_history_content
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.projection_statuses import HistoryStatus
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.fuzzing import is_thorough
from tests.graphs import graph_of
from tests.projections.history.following import SMALL_JOURNAL, StoreWithHistory, kept, node
from tests.stores.backup.holding import back_up
from tests.stores.writing import NAME, flip, layout, settings, until, write

NODES = 30
COMMITS = 60
DISTANCE = 1 if is_thorough() else 5
"""Every n-th page is damaged."""
ALL = 100_000
Harm = Callable[[Path], object]


class Answers(NamedTuple):
    """Results of all queries, and messages of those that are refused."""

    found: dict[Any, Any]
    refused: dict[Any, str]
    damage: str | None


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """Return a store whose journal is truncated, and all results from its history."""
    data = tmp_path_factory.mktemp("filled")
    with kept(data, **SMALL_JOURNAL) as of:
        fill(of)
        return data, answers(of).found


def fill(of: StoreWithHistory) -> None:
    source = random.Random(5)
    for number in range(COMMITS):
        ids = sorted({f"n{source.randrange(NODES)}" for _ in range(6)})
        text = f"said {number} " + "y" * source.choice([5, 50, 900, 9_000 if number % 20 == 0 else 30])
        edges = [EdgeUpsert(at, (each, ids[at - 1], "R")) for at, each in enumerate(ids)]
        put = WriteBatch(
            nodes=[NodeUpsert(at, each, "t", f"{each} {text}") for at, each in enumerate(ids)], edges=edges
        )
        write(of.store, WriteBatch(delete_nodes=ids[:1]) if number % 7 == 6 else put)
    of.caught_up()
    of.store.end_segment()
    of.store.compactor.run()
    assert of.store.journal.oldest > of.store.journal.last


def answers(of: StoreWithHistory) -> Answers:
    """Query everything, as of each commit and for each node."""
    last = of.store.state.sequence
    asked: dict[Any, Callable[[HistoryFile], Any]] = {
        ("states", each): lambda history, each=each: history.node_states(each, NO_SEQUENCE_LIMIT, ALL)
        for each in _ids()
    }
    asked |= {at: lambda history, at=at: _as_of(history, at) for at in range(1, last + 1)}
    found = Answers({}, {}, of.follower.damage)
    for key, question in asked.items():
        try:
            found.found[key] = of.follower.look(question)
        except Gone as error:
            found.refused[key] = error.message
    return found


def _ids() -> list[str]:
    return [f"n{number}" for number in range(NODES)]


def _as_of(history: HistoryFile, at: int) -> Any:
    nodes = [state.row for state in history.nodes_at(at, None, None, ALL)]
    edges = [state.row for state in history.edges_at(at, ("", "", ""), ALL)]
    single = [(state := history.node_at(each, at)) and state.row for each in _ids()]
    around = [sorted(state.row.key for state in history.incoming(each, at, ALL)) for each in _ids()]
    return nodes, edges, single, around


def harmed(filled: Path, target: Path, harm: Harm) -> Answers:
    """Return the results from a copy with a damaged history, after recovery."""
    shutil.copytree(filled, target)
    harm(layout(target).history)
    with kept(target, **SMALL_JOURNAL) as of:
        of.caught_up()
        history = of.follower.history
        assert history is not None
        until(lambda: not history.has_open_gaps)
        return answers(of)


def flip_in(page: int, source: random.Random) -> Harm:
    def harm(path: Path) -> None:
        data = bytearray(path.read_bytes())
        used = [at for at in range(page * HISTORY_PAGE_BYTES, (page + 1) * HISTORY_PAGE_BYTES) if data[at]]
        data[source.choice(used or [page * HISTORY_PAGE_BYTES])] ^= 1 << source.randrange(8)
        path.write_bytes(data)

    return harm


def test_a_flipped_bit_in_any_page_is_detected(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    data, before = filled
    source = random.Random(3)
    pages = layout(data).history.stat().st_size // HISTORY_PAGE_BYTES
    saved = 0
    for page in range(0, pages, DISTANCE):
        found = harmed(data, tmp_path / str(page), flip_in(page, source))
        assert found.found == {key: before[key] for key in found.found}, page
        assert found.damage is not None, page
        assert all("gap from sequence" in said or "begins at" in said for said in found.refused.values()), page
        aside = tmp_path / str(page) / layout(data).root.name / "history.sqlite.damaged"
        assert aside.stat().st_size == pages * HISTORY_PAGE_BYTES
        saved += len(found.found)
    assert saved > 0.8 * len(before) * len(range(0, pages, DISTANCE)), "most can be saved"


def test_a_kill_with_a_long_log_leaves_no_page_without_its_checksum(tmp_path: Path) -> None:
    """SQLite itself would move a log of 1,000 pages to the file at the first write after the kill."""
    path, killed = tmp_path / "history.sqlite", tmp_path / "killed" / "history.sqlite"
    killed.parent.mkdir()
    source = random.Random(1)
    nodes = [NodeRow(f"n{at}", "t", source.randbytes(1_500).hex(), "{}", 1, 2, 0, 0) for at in range(3_000)]
    with closing(HistoryFile(path)) as history:
        history.take([ChangeSet(sequence=1, time=1, digest=b"", nodes=0, edges=0)])
        history.checkpoint_and_seal()
        with closing(sqlite3.connect(path)) as reader:
            # What a reader still needs stays in the log.
            reader.execute("BEGIN").execute("SELECT count(*) FROM node").fetchone()
            history.take([ChangeSet(sequence=2, time=2, nodes_created=nodes, digest=b"", nodes=3_000, edges=0)])
            for file in path.parent.glob("history.sqlite*"):
                shutil.copy(file, killed.parent)
    history, damage = open_or_repair_history_file(killed, NAME, journal_is_complete=False)
    history.close()
    assert damage is None
    assert find_history_file_damage(killed) is None
    with closing(HistoryFile(killed)) as history:
        assert len(history.nodes_at(2, None, None, NO_SEQUENCE_LIMIT)) == 3_000


def test_rows_survive_wrong_checksums_of_their_pages(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    def seal_other_content(path: Path) -> None:
        with closing(PageChecksumFile(path)) as seal:
            sealed = seal.sealed()
            assert sealed is not None
            content = path.read_bytes()
            path.write_bytes(b"\1" * len(content))
            seal.seal(sealed, None)
            path.write_bytes(content)

    data, before = filled
    found = harmed(data, tmp_path / "copy", seal_other_content)
    assert found.found == before
    assert found.damage is not None
    assert "all rows are intact; nothing is missing" in found.damage


def copy_page(data: bytearray, at: int, source: random.Random) -> None:
    other = source.randrange(len(data) // HISTORY_PAGE_BYTES) * HISTORY_PAGE_BYTES
    data[at : at + HISTORY_PAGE_BYTES] = data[other : other + HISTORY_PAGE_BYTES]


def clear_range(data: bytearray, at: int, source: random.Random) -> None:
    low, high = sorted(source.sample(range(HISTORY_PAGE_BYTES + 1), 2))
    data[at + low : at + high] = bytes(high - low)


def change_bytes(data: bytearray, at: int, source: random.Random) -> None:
    for _ in range(source.randrange(1, 40)):
        data[at + source.randrange(HISTORY_PAGE_BYTES)] = source.randrange(256)


def flip_header_or_pointer(data: bytearray, at: int, source: random.Random) -> None:
    data[at + source.randrange(300)] ^= 1 << source.randrange(8)


def test_every_row_of_a_damaged_file_is_unchanged_or_within_a_gap(
    filled: tuple[Path, dict[Any, Any]], tmp_path: Path
) -> None:
    path = shutil.copytree(filled[0], tmp_path / "copy") and layout(tmp_path / "copy").history
    original, checksums = path.read_bytes(), PageChecksumFile(path)
    with closing(sqlite3.connect(path)) as connection:
        nodes, edges = ({*connection.execute(select)} for select in ("SELECT * FROM node", "SELECT * FROM edge"))
    source = random.Random(11)
    for case in range(3_000 if is_thorough() else 150):
        data = bytearray(original)
        for _ in range(source.randrange(1, 4)):
            harm = source.choice([copy_page, clear_range, change_bytes, flip_header_or_pointer, flip_header_or_pointer])
            harm(data, source.randrange(len(data) // HISTORY_PAGE_BYTES) * HISTORY_PAGE_BYTES, source)
        path.write_bytes(data)
        found = salvage_intact_history_content(path, checksums, checksums.sealed())
        for table, first, rows in ("node", 1, nodes), ("edge", 3, edges):
            intact = {*found.rows[table]}
            gaps = [gap for gap in found.gaps if gap.table == table]
            assert intact <= rows, (case, table)
            for row in rows - intact:
                last = row[first + 1]
                assert any(
                    gap.first <= row[first]
                    and (gap.last is None or (last is not None and last <= gap.last))
                    and (table == "edge" or gap.id in {None, row[0]})
                    for gap in gaps
                ), (case, table, row)


def test_a_restored_edge_ends_only_its_own_gap(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        edges = [EdgeUpsert(3, ("a", "b", "R")), EdgeUpsert(4, ("a", "c", "R"))]
        write(
            of.store, WriteBatch(nodes=[NodeUpsert(at, each, "t", each) for at, each in enumerate("abc")], edges=edges)
        )
        write(of.store, WriteBatch(delete_edges=[("a", "b", "R")]))
        write(of.store, node("a", "2"))
        of.caught_up()
        of.store.end_segment()
        of.store.compactor.run()
    path = layout(tmp_path).history
    with closing(sqlite3.connect(path)) as connection:
        [root] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'edge'").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * HISTORY_PAGE_BYTES : root * HISTORY_PAGE_BYTES] = bytes(HISTORY_PAGE_BYTES)
    path.write_bytes(data)
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        of.caught_up()
        until(lambda: of.follower.history is not None and not of.follower.history.has_open_gaps)
        assert [state.row.key for state in of.follower.look(lambda h: h.edges_at(3, ("", "", ""), ALL))] == [
            ("a", "c", "R")
        ]
        with pytest.raises(Gone, match="gap from sequence 1 up to"):
            of.follower.look(lambda h: h.edges_at(1, ("", "", ""), ALL))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_within_a_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def overwritten(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


@pytest.mark.parametrize(
    "harm",
    [
        emptied,
        halved,
        cut_within_a_page,
        Path.unlink,
        replaced_by_a_folder,
        replaced_by_a_dangling_link,
        overwritten,
    ],
)
def test_a_replaced_or_truncated_file_is_detected(
    filled: tuple[Path, dict[Any, Any]], tmp_path: Path, harm: Harm
) -> None:
    data, before = filled
    last = max(key for key in before if isinstance(key, int))
    found = harmed(data, tmp_path / "copy", harm)
    assert found.found == {key: before[key] for key in found.found}
    assert last in found.found, "the present is there again"
    assert all("gap from sequence" in said for said in found.refused.values())
    assert found.damage is not None


def test_gaps_persist_across_a_restart_and_new_states_are_stored(
    filled: tuple[Path, dict[Any, Any]], tmp_path: Path
) -> None:
    data, before = filled
    found = harmed(data, tmp_path / "copy", halved)
    assert found.refused
    with kept(tmp_path / "copy", **SMALL_JOURNAL) as of:
        of.caught_up()
        assert of.follower.damage is None, "nothing more is wrong with it"
        assert answers(of)[:2] == found[:2]
        last = of.store.state.sequence
        write(of.store, node("n1", "new"))
        of.caught_up()
        assert answers(of).found[last] == before[last]
        assert of.versions("n1" * 2) == []


def test_a_second_salvage_keeps_the_gaps_of_the_first(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    shutil.copytree(filled[0], tmp_path, dirs_exist_ok=True)
    path = layout(tmp_path).history
    halved(path)
    first, _ = salvage_history(path)
    named = read_history_gaps(path)
    salvage_history(path)
    assert first.gaps
    assert read_history_gaps(path) == named


def test_an_older_copy_catches_up_from_the_journal(tmp_path: Path) -> None:
    with kept(tmp_path / "older") as of:
        write(of.store, node("a", "1"), node("a", "2"))
        of.caught_up()
    shutil.copytree(tmp_path / "older", tmp_path / "newer")
    with kept(tmp_path / "newer") as of:
        write(of.store, node("a", "3"))
        of.caught_up()
        before = of.versions("a")
    shutil.copyfile(layout(tmp_path / "older").history, layout(tmp_path / "newer").history)
    with kept(tmp_path / "newer") as of:
        of.caught_up()
        assert of.versions("a") == before
        assert of.follower.damage is None


def test_an_older_copy_beyond_the_journal_has_a_gap(tmp_path: Path) -> None:
    with kept(tmp_path / "older", **SMALL_JOURNAL) as of:
        write(of.store, node("a", "1"), node("a", "2"), node("b", "1"))
        of.caught_up()
    shutil.copytree(tmp_path / "older", tmp_path / "newer")
    with kept(tmp_path / "newer", **SMALL_JOURNAL) as of:
        write(of.store, node("a", "3"), node("a", "4"), WriteBatch(delete_nodes=["b"]))
        of.caught_up()
        of.store.end_segment()
        of.store.compactor.run()
    shutil.copyfile(layout(tmp_path / "older").history, layout(tmp_path / "newer").history)
    with kept(tmp_path / "newer", **SMALL_JOURNAL) as of:
        of.caught_up()
        assert (of.ids(3), of.ids(6)) == (["a", "b"], ["a"])
        for at in (4, 5):
            with pytest.raises(Gone, match="gap from sequence 4 up to sequence 6"):
                of.ids(at)
        with pytest.raises(Gone, match="node 'b' has a gap"):
            of.versions("b")


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[Any, Any]]:
    """Return a store with part of its commits in the journal, an older copy of its folder, and all query results."""
    root = tmp_path_factory.mktemp("trimmed")
    data, older = root / "data", root / "older"
    with kept(data, **SMALL_JOURNAL) as of:
        write(of.store, *(node(f"o{number}", "once") for number in range(4)), node("o0", "twice"))
        of.caught_up()
    shutil.copytree(data, older)
    with kept(data, **SMALL_JOURNAL) as of:
        write(of.store, node("o1", "twice"), WriteBatch(delete_nodes=["o2"]), node("n", "1"), node("n", "2"))
        of.caught_up()
        of.store.end_segment()
        of.store.compactor.run()
        write(of.store, node("n", "3"), WriteBatch(delete_nodes=["o3"]), node("m", "1"))
        of.caught_up()
        assert of.store.journal.oldest == LOST_UNTIL + 1
        return data, older, every_answer(of)


SEEN_BY_COPY, LOST_UNTIL, LAST = 5, 9, 12


def every_answer(of: StoreWithHistory) -> dict[Any, Any]:
    """Return the nodes as of each commit, by sequence and by time, and the states of each node, or the errors."""
    times = {at: of.follower.look(lambda history, at=at: history.time_of(at)) for at in range(LAST + 1)}

    def asked(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Gone as error:
            return error

    def as_of(moment: str) -> list[str]:
        follower, at = PastMoment(of.historian, moment).of(of.store)
        return [state.row.id for state in follower.look(lambda history: history.nodes_at(at, None, None, ALL))]

    found = {at: asked(lambda at=at: of.ids(at)) for at in times}
    found |= {
        format_rfc3339_timestamp(time): asked(lambda time=time: as_of(format_rfc3339_timestamp(time)))
        for time in times.values()
        if time
    }
    return found | {each: asked(lambda each=each: of.versions(each)) for each in ("o0", "o1", "o2", "o3", "n", "m")}


def compared(data: Path, before: dict[Any, Any]) -> tuple[set[Any], str | None]:
    """Return the queries that a folder refuses because of a gap; all others must have the previous results."""
    with kept(data, **SMALL_JOURNAL) as of:
        of.caught_up()
        now = every_answer(of)
        times = [each for each in before if isinstance(each, str) and each.startswith("2")]
        # Times of lost commits are unknown, so those of the undamaged store are used.
        for each in times:
            try:
                follower, at = PastMoment(of.historian, each).of(of.store)
                now[each] = [state.row.id for state in follower.look(lambda h, at=at: h.nodes_at(at, None, None, ALL))]
            except Gone as error:
                now[each] = error
        refused = {key for key in before if isinstance(now[key], Gone)}
        assert all("gap from sequence" in now[key].message for key in refused), now
        assert {key: now[key] for key in before.keys() - refused} == {
            key: each for key, each in before.items() if key not in refused
        }
        return {key for key in refused if key not in times} | {times.index(key) + 1 for key in refused & {*times}}, (
            of.follower.damage
        )


def test_a_history_deleted_with_its_checksums_becomes_a_gap(
    trimmed: tuple[Path, Path, dict[Any, Any]], tmp_path: Path
) -> None:
    data = shutil.copytree(trimmed[0], tmp_path / "data")
    for path in layout(data).root.glob("history.sqlite*"):
        path.unlink()
    refused, damage = compared(data, trimmed[2])
    # Nodes o3 and m had one version only; the deletion of o3 is known.
    assert refused == {*range(1, LOST_UNTIL), "o0", "o1", "o2", "n"}
    assert damage is not None
    assert "the file was missing" in damage


@pytest.mark.parametrize("with_checksums", [False, True])
def test_an_older_copy_applies_the_journal_and_reports_gaps(
    trimmed: tuple[Path, Path, dict[Any, Any]], tmp_path: Path, *, with_checksums: bool
) -> None:
    data = shutil.copytree(trimmed[0], tmp_path / "data")
    for suffix in ("", "-pages") if with_checksums else ("",):
        name = layout(data).history.name + suffix
        shutil.copyfile(layout(trimmed[1]).history.with_name(name), layout(data).history.with_name(name))
    fault = find_history_file_damage(layout(data).history)
    assert (fault is not None and fault.is_older_copy) is not with_checksums
    refused, damage = compared(data, trimmed[2])
    assert refused == {*range(SEEN_BY_COPY + 1, LOST_UNTIL), "o2", "n"}
    if not with_checksums:
        assert damage is not None
        assert f"an older copy: it ends at sequence {SEEN_BY_COPY}, its checksums at sequence {LAST}" in damage


def test_a_file_without_checksums_is_sealed_at_opening(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    def unseal(path: Path) -> None:
        path.with_name("history.sqlite-pages").unlink()

    data, before = filled
    found = harmed(data, tmp_path / "copy", unseal)
    assert (found.found, found.damage) == (before, None)
    path = layout(tmp_path / "copy").history
    assert find_history_file_damage(path) is None
    flip_in(9, random.Random(1))(path)
    fault = find_history_file_damage(path)
    assert fault is not None
    assert "pages do not match their checksums: 10" in fault.reason


def test_a_history_deleted_while_open_is_restored(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        fill(of)
        before = answers(of).found
        for path in layout(tmp_path).root.glob("history.sqlite*"):
            path.unlink()
        assert of.follower.scrub(ALL) is False
        until(layout(tmp_path).history.exists)
        of.caught_up()
        assert answers(of).found == before


def test_scrub_detects_damage_before_a_reader_does(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        fill(of)
        before = answers(of).found
        assert of.follower.history is not None
        assert of.follower.history.checkpoint_and_seal()
        while of.follower.scrub(10):
            assert of.follower.scrubbed_bytes > 0
        assert of.follower.scrubbed_at is not None
        path = layout(tmp_path).history
        with path.open("r+b") as file:
            file.seek(20 * HISTORY_PAGE_BYTES + 2000)
            file.write(b"damage")
        while of.follower.scrub(10):
            pass
        until(lambda: of.follower.damage is not None)
        of.caught_up()
        until(lambda: of.follower.history is not None and not of.follower.history.has_open_gaps)
        found = answers(of).found
        assert found == {key: before[key] for key in found}


def test_pages_are_parsed_as_sqlite_does(filled: tuple[Path, dict[Any, Any]]) -> None:
    path = layout(filled[0]).history
    pages, unread = DatabasePages(path, frozenset()), list[UnreadableSqlitePage]()
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
        for table, root in pages.root_pages().items():
            if table in {"node", "edge"}:
                rows = file.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608
                assert [(row.rowid, *row.values) for row in pages.iterate_tree(root, unread.append)] == rows
    assert not unread


def test_doctor_reports_damage_and_salvages_intact_content(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    data = shutil.copytree(filled[0], tmp_path / "data")

    def found(*, salvage: bool = False) -> tuple[bool, list[str]]:
        [report] = repair_and_check_stores(settings(data), NAME, StoreRepairOptions(salvage=salvage))
        parts = [finding for finding in report.findings if finding.part in {"history", "salvage"}]
        return all(finding.ok for finding in parts), [finding.detail for finding in parts]

    assert found() == (True, [f"all pages are intact; seen up to sequence {COMMITS}"])
    flip(layout(data).history, layout(data).history.read_bytes().index(b" said 3"))
    ok, [detail] = found()
    assert not ok
    assert "does not match its checksum" in detail
    with StorePool(settings(data)) as pool, pytest.raises(BackupDamaged, match="damaged"):
        back_up(pool, tmp_path / "backup", live=False)
    _, [saved, after] = found(salvage=True)
    assert "are whole" in saved
    assert "history.sqlite.damaged" in saved
    assert "it has gaps" in after or "all pages are intact" in after


def test_stats_report_gaps_and_scrub_progress(filled: tuple[Path, dict[Any, Any]], tmp_path: Path) -> None:
    shutil.copytree(filled[0], tmp_path, dirs_exist_ok=True)
    halved(layout(tmp_path).history)
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        of.caught_up()
        history = get_store_stats(graph_of(of.pool, NAME, historian=of.historian)).history
        assert isinstance(history, HistoryStatus)
        assert {gap.part for gap in history.gaps} <= {"node", "edge", "link"}
        assert history.gaps
        assert history.damage is not None
        assert "pages do not match their checksums" in history.damage
