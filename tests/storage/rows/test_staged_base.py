"""Staged bases, built before their commit: published, superseded, abandoned, left by a kill."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.rows.base_segment_merge import write_merged_row_base_segment
from kgserve.storage.rows.current_rows import (
    STAGED_MARK,
    BaseSegmentStagedBeforeDelete,
    CurrentRowsProjection,
    DeltaMergeLimits,
)
from tests.storage.rows.test_view import IDS, Model, check


class StagingAbandonment(Exception):
    """Abandons a staged base."""


def deleting_change(at: int, gone: list[str], cut: list[EdgeKey], nodes: int, edges: int) -> ChangeSet:
    """Return a change set that deletes rows; ``nodes`` and ``edges`` are the remaining counts."""
    return ChangeSet(
        sequence=at, time=at, nodes_deleted=gone, edges_deleted=cut, digest=bytes(16), nodes=nodes, edges=edges
    )  # fmt: skip


class FilledView:
    """View of a model with some commits in the base and some in the delta."""

    def __init__(self, folder: Path) -> None:
        self.view, self.model, self.journal = CurrentRowsProjection(folder), Model(7), list[ChangeSet]()
        self.write(8)
        self.view.fold()
        self.write(3)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.put(self.model.next())

    def put(self, change: ChangeSet) -> None:
        self.journal.append(change)
        self.view.apply([change])

    def names(self) -> set[str]:
        return {path.name for path in self.view.folder.iterdir()}

    def check(self, view: CurrentRowsProjection | None = None) -> None:
        with (view or self.view).reading() as rows:
            check(rows, self.model.nodes, self.model.edges)

    def leave_out(self, staged_base: BaseSegmentStagedBeforeDelete) -> ChangeSet:
        """Stage the deletion of a third of the nodes with their edges; return the commit that deletes them."""
        model, rows = self.model, staged_base.rows
        gone = sorted(model.nodes)[::3]
        cut = sorted(key for key in model.edges if key[0] in gone or key[1] in gone)
        staged_base.leave_out({rows.number(node_id) for node_id in gone}, {*rows.edge_numbers(cut).values()})
        model.at += 1
        return deleting_change(model.at, gone, cut, len(model.nodes) - len(gone), len(model.edges) - len(cut))

    def show(self, staged_base: BaseSegmentStagedBeforeDelete, change: ChangeSet) -> None:
        self.journal.append(change)
        staged_base.catch_up()
        staged_base.show(change)
        for node_id in change.nodes_deleted:
            del self.model.nodes[node_id]
        for key in change.edges_deleted:
            del self.model.edges[key]


@pytest.fixture
def filled(tmp_path: Path) -> FilledView:
    return FilledView(tmp_path / "rows")


def test_staged_base_is_published_and_superseded(filled: FilledView) -> None:
    with filled.view.reading() as before, filled.view.stage_deletion() as staged_base:
        nodes, edges = dict(filled.model.nodes), dict(filled.model.edges)
        change = filled.leave_out(staged_base)
        filled.show(staged_base, change)
        filled.check()
        check(before, nodes, edges)
    assert filled.view.needs_merge()
    filled.write(2)
    filled.check()
    # As after a kill: the staged base is not used.
    reopened = CurrentRowsProjection(copied(filled.view.folder))
    reopened.catch_up(lambda after: filled.journal[after:])
    filled.check(reopened)
    assert not any(STAGED_MARK in path.name for path in reopened.folder.iterdir())
    filled.view.fold()
    filled.check()
    assert len(filled.names()) == 2


def copied(folder: Path) -> Path:
    target = folder.with_name("copied")
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_consecutive_staged_bases_leave_only_needed_files(filled: FilledView) -> None:
    lasting = filled.names()
    for _ in range(3):
        with filled.view.stage_deletion() as staged_base:
            filled.show(staged_base, filled.leave_out(staged_base))
        filled.check()
        made = filled.names() - lasting
        assert sum(STAGED_MARK in name for name in made) == 1
        assert len(made) <= 2
        assert lasting <= filled.names()
    filled.view.fold()
    filled.check()
    assert len(filled.names()) == 2


def test_staged_base_includes_concurrent_writes(filled: FilledView) -> None:
    with filled.view.stage_deletion() as staged_base:
        change, model = filled.leave_out(staged_base), filled.model
        new = next(node_id for node_id in IDS if node_id not in model.nodes)
        row = model.nodes[new] = model.node(new)
        at, nodes, edges = change.sequence, len(model.nodes), len(model.edges)
        another = deleting_change(at, [], [], nodes, edges)
        another.nodes_created.append(row)
        filled.put(another)
        model.at += 1
        last = deleting_change(model.at, change.nodes_deleted, change.edges_deleted, change.nodes + 1, change.edges)
        assert staged_base.catch_up() == filled.journal[-1:]
        filled.show(staged_base, last)
    filled.check()
    assert filled.view.state == last.state


def test_abandoned_staged_base_leaves_no_files(filled: FilledView) -> None:
    names, state = filled.names(), filled.view.state
    with contextlib.suppress(StagingAbandonment), filled.view.stage_deletion() as staged_base:
        filled.leave_out(staged_base)
        assert filled.names() > names
        raise StagingAbandonment
    filled.model.at -= 1
    assert (filled.names(), filled.view.state) == (names, state)
    filled.check()
    filled.write(2)
    filled.view.fold()
    filled.check()


@pytest.mark.parametrize("work", ["stage a deletion", "rewrite all files"])
def test_merge_of_a_large_commit_ends_before_other_merges(
    filled: FilledView, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    view, merging, finish, reached = filled.view, threading.Event(), threading.Event(), list[int]()
    view.limits = DeltaMergeLimits(rows=1, share=0.0)

    def write_when_told(*args: Any, **options: Any) -> None:
        if not merging.is_set():
            merging.set()
            finish.wait()
        write_merged_row_base_segment(*args, **options)

    def merge_as_well() -> None:
        if work == "rewrite all files":
            view.fold(copying=True)
            reached.append(view.base_sequence)
            return
        with view.stage_deletion() as staged_base:
            reached.append(staged_base.rows.at)

    monkeypatch.setattr(f"{CurrentRowsProjection.__module__}.write_merged_row_base_segment", write_when_told)
    writer, other = threading.Thread(target=filled.write, args=(1,)), threading.Thread(target=merge_as_well)
    writer.start()
    merging.wait()
    texts = {name for name in filled.names() if name.endswith(".texts")}
    other.start()
    other.join(0.2)
    finish.set()
    writer.join()
    other.join()
    assert reached == [filled.model.at]
    filled.check()
    if work == "rewrite all files":
        assert texts.isdisjoint(filled.names())
