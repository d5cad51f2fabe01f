"""Bases that are made before the commit that they are for: shown, followed by another, given up, left by a kill."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.rows import EdgeKey
from kgserve.storage.rows.view import STAGED_MARK, RowsView, StagedBase
from tests.storage.rows.test_view import IDS, Model, check


class Given(Exception):
    """Somebody gives up."""


def taking(at: int, gone: list[str], cut: list[EdgeKey], nodes: int, edges: int) -> ChangeSet:
    """A commit that takes rows away and leaves so many."""
    return ChangeSet(
        sequence=at, time=at, nodes_deleted=gone, edges_deleted=cut, digest=bytes(16), nodes=nodes, edges=edges
    )  # fmt: skip


class Filled:
    """A view of some of a model's commits in a base, and some beside it."""

    def __init__(self, folder: Path) -> None:
        self.view, self.model, self.journal = RowsView(folder), Model(7), list[ChangeSet]()
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

    def check(self, view: RowsView | None = None) -> None:
        with (view or self.view).reading() as rows:
            check(rows, self.model.nodes, self.model.edges)

    def leave_out(self, foreseen: StagedBase) -> ChangeSet:
        """Have a third of the nodes left out, with their edges; the commit that takes them away."""
        model, rows = self.model, foreseen.rows
        gone = sorted(model.nodes)[::3]
        cut = sorted(key for key in model.edges if key[0] in gone or key[1] in gone)
        foreseen.leave_out({rows.number(node_id) for node_id in gone}, {*rows.edge_numbers(cut).values()})
        model.at += 1
        return taking(model.at, gone, cut, len(model.nodes) - len(gone), len(model.edges) - len(cut))

    def show(self, foreseen: StagedBase, change: ChangeSet) -> None:
        self.journal.append(change)
        foreseen.catch_up()
        foreseen.show(change)
        for node_id in change.nodes_deleted:
            del self.model.nodes[node_id]
        for key in change.edges_deleted:
            del self.model.edges[key]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path / "rows")


def test_it_is_shown_and_followed_by_a_base_that_lasts(filled: Filled) -> None:
    with filled.view.reading() as before, filled.view.foreseeing() as foreseen:
        nodes, edges = dict(filled.model.nodes), dict(filled.model.edges)
        change = filled.leave_out(foreseen)
        filled.show(foreseen, change)
        filled.check()
        check(before, nodes, edges)
    assert filled.view.wants_fold()
    filled.write(2)
    filled.check()
    # As a kill leaves it: what was made ahead is not used.
    reopened = RowsView(copied(filled.view.folder))
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


def test_one_after_the_other_leave_only_what_is_needed(filled: Filled) -> None:
    lasting = filled.names()
    for _ in range(3):
        with filled.view.foreseeing() as foreseen:
            filled.show(foreseen, filled.leave_out(foreseen))
        filled.check()
        made = filled.names() - lasting
        assert sum(STAGED_MARK in name for name in made) == 1
        assert len(made) <= 2
        assert lasting <= filled.names()
    filled.view.fold()
    filled.check()
    assert len(filled.names()) == 2


def test_what_is_written_meanwhile_is_in_it(filled: Filled) -> None:
    with filled.view.foreseeing() as foreseen:
        change, model = filled.leave_out(foreseen), filled.model
        new = next(node_id for node_id in IDS if node_id not in model.nodes)
        row = model.nodes[new] = model.node(new)
        at, nodes, edges = change.sequence, len(model.nodes), len(model.edges)
        another = taking(at, [], [], nodes, edges)
        another.nodes_created.append(row)
        filled.put(another)
        model.at += 1
        last = taking(model.at, change.nodes_deleted, change.edges_deleted, change.nodes + 1, change.edges)
        assert foreseen.catch_up() == filled.journal[-1:]
        filled.show(foreseen, last)
    filled.check()
    assert filled.view.state == last.state


def test_one_that_is_given_up_leaves_nothing(filled: Filled) -> None:
    names, state = filled.names(), filled.view.state
    with contextlib.suppress(Given), filled.view.foreseeing() as foreseen:
        filled.leave_out(foreseen)
        assert filled.names() > names
        raise Given
    filled.model.at -= 1
    assert (filled.names(), filled.view.state) == (names, state)
    filled.check()
    filled.write(2)
    filled.view.fold()
    filled.check()
