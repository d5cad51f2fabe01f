"""Pruning of a history, by settings and on request."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.admin.store_admin_models import PruneHistoryAnswer, PruneHistoryRequest
from kgserve.errors import Conflict, Gone, InvalidInput, Unavailable
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.history_queries import prune_history
from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp
from kgserve.projections.history import row_state_history as histories
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.history_follower import HistoryWorker
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.model.store_settings import HistoryRetention, StoreSettings
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of, node_of
from tests.projections.history.following import SMALL_JOURNAL, StoreWithHistory, kept, node
from tests.stores.writing import NAME, batch, layout, settings, until, write

VERSIONS = 10


def keeping(history: HistoryRetention) -> Callable[[StoreSettings], StoreSettings]:
    return lambda before: msgspec.structs.replace(before, history=history)


def fill(of: StoreWithHistory, versions: int = VERSIONS) -> None:
    """Write versions of one node, and an edge that changes with each."""
    for number in range(versions):
        write(of.store, node("a", f"text {number}"), batch("b", edges=[("a", "b", "R")]))
    of.caught_up()


def make_older(data: Path, days: float) -> None:
    """Backdate everything in the history by some days."""
    shift = int(days * DAY_MICROSECONDS)
    with closing(sqlite3.connect(layout(data).root / "history.sqlite")) as file, file:
        file.execute("UPDATE moment SET time = time - ?", (shift,))
        for table in ("node", "edge"):
            statement = f"UPDATE {table} SET started = started - ?, ended = ended - ?"  # noqa: S608 - two names
            file.execute(statement, (shift, shift))
    # The pages no longer match their seal.
    (layout(data).root / "history.sqlite-pages").unlink()


def prune(of: StoreWithHistory, before: str | None = None) -> PruneHistoryAnswer:
    return prune_history(graph_of(of.pool, NAME, historian=of.historian), PruneHistoryRequest(before=before))


def content(of: StoreWithHistory, as_of: str) -> str | None:
    return node_of(graph_of(of.pool, NAME, historian=of.historian), "a", as_of=as_of).node.content


def test_expired_states_are_pruned_when_the_store_opens(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
        middle = of.store.state.sequence
        assert of.store.change_settings(keeping(30))
        assert len(of.versions("a")) == VERSIONS, "all of them are young"
    make_older(tmp_path, 31)
    with kept(tmp_path) as of:
        of.caught_up()
        until(lambda: len(of.versions("a")) == 1)
        assert of.oldest() == middle
        fill(of)
        assert len(of.versions("a")) == VERSIONS + 1
        assert content(of, str(middle)) == f"text {VERSIONS - 1}"
        with pytest.raises(Gone, match=f"begins at sequence {middle}") as caught:
            content(of, str(middle - 1))
        assert caught.value.oldest == middle
    make_older(tmp_path, 29)
    with kept(tmp_path) as of:
        of.caught_up()
        assert len(of.versions("a")) == VERSIONS + 1, "those of the last 30 days stay"


def test_expired_states_are_pruned_after_settings_change_and_periodically(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
    make_older(tmp_path, 10)
    with closing(HistoryWorker(prune_seconds=0.05)) as historian, StorePool(settings(tmp_path)) as pool:
        pool.companions.append(historian)
        with pool.lease(NAME) as store:
            of = StoreWithHistory(pool, historian, store)
            of.caught_up()
            assert len(of.versions("a")) == VERSIONS
            of.store.change_settings(keeping(9))
            until(lambda: len(of.versions("a")) == 1)
            fill(of)
            assert len(of.versions("a")) == VERSIONS + 1
            make_older(tmp_path, 10)
            until(lambda: len(of.versions("a")) == 1)


def test_an_idle_store_is_not_pruned(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
        of.store.change_settings(keeping(1))
        until(lambda: not of.follower.prune_wanted)
        assert of.follower.step() is False


def test_pruning_on_request(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
        last = of.store.state.sequence
        assert prune(of) == PruneHistoryAnswer(store=NAME, pruned=0, oldest=0, sequence=last), (
            "everything is to be kept"
        )
        some = prune(of, "7")
        assert (some.oldest, some.sequence) == (7, last)
        assert some.pruned == sum(1 for version in range(1, VERSIONS) if 2 * version + 1 <= 7)
        assert prune(of, "7").pruned == prune(of, "3").pruned == prune(of, "1d").pruned == 0
        rest = prune(of, format_rfc3339_timestamp(of.store.state.time + DAY_MICROSECONDS))
        assert (rest.oldest, rest.pruned) == (last, VERSIONS - 1 - some.pruned)
        assert content(of, str(last)) == content(of, str(last + 5)) == f"text {VERSIONS - 1}"
        write(of.store, node("a", "more"))
        assert prune(of, "0d").pruned == 1


@pytest.mark.parametrize("before", ["soon", "-1", "3 d", "2025-07-15", "d", "", "٣"])
def test_an_invalid_moment_is_rejected(tmp_path: Path, before: str) -> None:
    with kept(tmp_path) as of:
        fill(of, 1)
        with pytest.raises(InvalidInput, match="before: "):
            prune(of, before)


def test_pruning_beyond_the_last_commit_keeps_current_states(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
        last = of.store.state.sequence
        assert prune(of, "1000000").oldest == last
        assert content(of, str(last)) == f"text {VERSIONS - 1}"
        fill(of, 2)
        assert content(of, str(last + 1)) == "text 0"


def test_an_export_fails_when_its_commit_is_pruned_meanwhile(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, batch(*(f"n{number:05}" for number in range(6_000))))
        fill(of)
        with open_store_export_stream(graph_of(of.pool, NAME), past=PastMoment(of.historian, "1")) as stream:
            blocks = iter(stream)
            next(blocks)
            prune(of, "5")
            with pytest.raises(Gone):
                next(blocks)


def test_pruned_states_do_not_retain_the_journal(tmp_path: Path) -> None:
    large = "x" * 250_000
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        of.store.change_settings(keeping("none"))
        for number in range(12):
            write(of.store, node("a", f"{number} {large}"))
            if number % 4 == 3:
                of.store.compactor.run()
        assert of.store.journal.oldest > 2
        with pytest.raises(Conflict, match="turned off"):
            _ = of.follower
        of.store.change_settings(keeping("all"))
        until(lambda: oldest(of) >= 0)
        assert of.oldest() == of.store.state.sequence


def test_reenabled_history_ignores_earlier_commits_in_the_journal(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of, 3)
        of.store.change_settings(keeping("none"))
        fill_without(of)
        of.store.change_settings(keeping("all"))
        last = of.store.state.sequence
    with kept(tmp_path) as of:
        of.caught_up()
        assert (of.oldest(), of.versions("a")) == (last, [(4, last, None)])
        fill(of, 2)
    with kept(tmp_path) as of:
        of.caught_up()
        assert (of.oldest(), len(of.versions("a"))) == (last, 3)


def oldest(of: StoreWithHistory) -> int:
    """Return the first known commit; -1 while the history is being rebuilt."""
    try:
        return of.oldest()
    except Unavailable:
        return -1


def fill_without(of: StoreWithHistory) -> None:
    write(of.store, node("a", "meanwhile"))


def test_a_store_without_history_has_no_file_after_a_restart(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
    root, described = layout(tmp_path).root, layout(tmp_path).description()
    assert described is not None
    layout(tmp_path).describe(msgspec.structs.replace(described, history="none"))
    with kept(tmp_path) as of:
        until(lambda: not list(root.glob("history.sqlite*")))
        write(of.store, node("a", "more"))
        assert not list(root.glob("history.sqlite*"))


def test_toggling_history_repeatedly_leaves_no_files(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        fill(of)
        before = len(of.store.after_commit), len(of.store.needed_from), len(of.store.after_change)
        for _ in range(5):
            of.store.change_settings(keeping("none"))
            of.store.change_settings(keeping("all"))
        until(lambda: not of.follower.prune_wanted and oldest(of) == of.store.state.sequence)
        assert (len(of.store.after_commit), len(of.store.needed_from), len(of.store.after_change)) == before
        fill(of, 1)
        assert len(of.versions("a")) == 2


def rows(count: int, at: int, large: str = "") -> ChangeSet:
    nodes = [NodeRow(f"n{number}", "t", f"{at} {large}", "{}", at, at, 1, 1) for number in range(count)]
    attributes = encode_edge_attributes(format_rfc3339_timestamp(1), format_rfc3339_timestamp(1), "{}")
    edges = [EdgeRow(f"n{number}", "n0", "R", 1.0 * at, attributes, at, at) for number in range(count)]
    made: dict[str, Any] = {"nodes_created": nodes, "edges_created": edges}
    changed: dict[str, Any] = {"nodes_updated": nodes, "edges_updated": edges}
    return ChangeSet(sequence=at, time=at, digest=b"", nodes=0, edges=0, **(made if at == 1 else changed))


def test_pruning_slices_are_small(tmp_path: Path) -> None:
    with closing(HistoryFile(tmp_path / "history.sqlite")) as history:
        for at in range(1, 5):
            history.take([rows(4_000, at)])
        slices = list(history.prune_in_slices(3))
        assert sum(slices) == 2 * 2 * 4_000
        assert max(slices) <= histories.PRUNE_BATCH_STATES
        assert len(history.nodes_at(3, None, None, 10_000)) == len(history.edges_at(3, ("", "", ""), 10_000)) == 4_000


def test_pruning_slices_of_large_states_have_fewer_states(tmp_path: Path) -> None:
    with closing(HistoryFile(tmp_path / "history.sqlite")) as history:
        for at in range(1, 4):
            history.take([rows(10, at, "x" * (1 << 20))])
        slices = [removed for removed in history.prune_in_slices(3) if removed]
        assert sum(slices) == 40
        assert max(slices) < 30


def test_pruning_interrupted_by_a_kill_is_completed_by_the_next(tmp_path: Path) -> None:
    with closing(HistoryFile(tmp_path / "history.sqlite")) as history:
        for at in range(1, 5):
            history.take([rows(4_000, at)])
        assert next(history.prune_in_slices(3)) > 0
    with closing(HistoryFile(tmp_path / "history.sqlite")) as history:
        assert history.oldest == 3
        with pytest.raises(Gone):
            history.nodes_at(2, None, None, 10)
        assert history.prune(3) > 0
        assert history.prune(3) == 0
