"""Merging and its undo under random changes, against dicts: writes, deletions, undo in any order, restarts."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

import kgserve
from kgserve.errors import Conflict, NotFound
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from tests.fuzzing import examples

IDS = [f"n{number}" for number in range(7)]
KINDS = ["R", "S"]
NAMES = ["p", "q"]
ID, KIND, WEIGHT = st.sampled_from(IDS), st.sampled_from(KINDS), st.sampled_from([1.0, 2.0])

Key = tuple[str, str, str]


class EdgeState(NamedTuple):
    """Content of an edge, and the write that it comes from; moving an edge keeps its write."""

    weight: float
    write: int


class MergeRecord(NamedTuple):
    """State before a merge."""

    into: str
    order: int
    edges: dict[Key, EdgeState]
    before: dict[str, int]
    after: dict[str, int]


class Model(msgspec.Struct):
    """Expected content of a store. ``nodes`` are attributes by id; ``merges`` are those in effect."""

    nodes: dict[str, dict[str, int]] = {}
    edges: dict[Key, EdgeState] = {}
    merges: dict[str, MergeRecord] = {}
    writes: int = 0

    def end(self, node_id: str) -> str:
        return self.end(self.merges[node_id].into) if node_id in self.merges else node_id

    def of(self, node_id: str) -> dict[Key, EdgeState]:
        return {key: said for key, said in self.edges.items() if node_id in key[:2]}

    def put_edge(self, source: str, target: str, kind: str, said: EdgeState) -> None:
        ends = self.end(source), self.end(target)
        if ends[0] in self.nodes and ends[1] in self.nodes and (source == target or ends[0] != ends[1]):
            self.edges[*ends, kind] = said

    def delete_node(self, node_id: str) -> None:
        self.nodes.pop(node_id, None)
        for key in self.of(node_id):
            del self.edges[key]
        self.merges = {each: merge for each, merge in self.merges.items() if node_id not in {each, merge.into}}

    def merge(self, node_id: str, into: str, order: int) -> None:
        edges, before = self.of(node_id), self.nodes[into]
        self.nodes[into] = self.nodes[node_id] | before
        for key, said in edges.items():
            del self.edges[key]
            moved = self.moved(key, node_id, into)
            if moved[0] != moved[1] or key[0] == key[1]:
                self.edges.setdefault(moved, said)
        self.merges[node_id] = MergeRecord(into, order, edges, before, self.nodes[into])

    def unmerge(self, node_id: str) -> None:
        merge = self.merges.pop(node_id)
        others = sorted((m.order, each, m) for each, m in self.merges.items() if m.into == merge.into)
        for key, said in merge.edges.items():
            moved = self.moved(key, node_id, merge.into)
            place = (self.end(moved[0]), self.end(moved[1]), moved[2])
            if self.edges.get(place) != said or {*key[:2]} == {node_id, merge.into}:
                continue
            del self.edges[place]
            same = ({self.moved(k, each, m.into): s for k, s in m.edges.items()} for _, each, m in others)
            heirs = [found[moved] for found in same if moved in found]
            if heirs:
                self.edges[place] = heirs[0]
        for (source, target, kind), said in merge.edges.items():
            self.put_edge(source, target, kind, said)
        now = dict(self.nodes[merge.into])
        for name, value in merge.after.items():
            shared = any(self.nodes[each].get(name) == value for _, each, _ in others)
            if name not in merge.before and now.get(name) == value and not shared:
                del now[name]
        self.nodes[merge.into] = now

    @staticmethod
    def moved(key: Key, node_id: str, into: str) -> Key:
        source, target = (into if end == node_id else end for end in key[:2])
        return source, target, key[2]

    def walked(self, start: str) -> set[str]:
        start = self.end(start)
        seen, there = {start} & self.nodes.keys(), self.edges
        while more := {b for a, b, _ in there if a in seen} - seen:
            seen |= more
        return seen


class MergeMachine(RuleBasedStateMachine):
    """A store opened in this process, with its history, and all of its past states as dicts."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kgserve-merge-"))
        self.library = kgserve.open(self.folder, indexes=False)
        self.model, self.past = Model(), {0: Model()}
        self.inject([{"id": each, "type": "t"} for each in IDS[:5]])
        self.model.nodes = {each: {} for each in IDS[:5]}
        self.remember()

    @override
    def teardown(self) -> None:
        if hasattr(self, "library"):
            try:
                for node_id in IDS:
                    self.look(node_id, None)
            finally:
                self.library.close()
                shutil.rmtree(self.folder)

    @property
    def store(self) -> Any:
        return self.library.store("s")

    def inject(self, nodes: list[Any] | None = None, edges: list[Any] | None = None) -> None:
        self.sequence = self.store.inject(nodes or [], edges or []).sequence

    def remember(self) -> None:
        self.past[self.sequence] = copy.deepcopy(self.model)

    @rule(ends=st.tuples(ID, ID), kind=KIND, weight=WEIGHT)
    def write_edge(self, ends: tuple[str, str], kind: str, weight: float) -> None:
        source, target = ends
        self.inject(edges=[{"from": source, "to": target, "relation_type": kind, "weight": weight}])
        self.model.writes += 1
        self.model.put_edge(source, target, kind, EdgeState(weight, self.model.writes))
        self.remember()

    @rule(node_id=ID, name=st.sampled_from(NAMES), value=st.integers(1, 3))
    def write_node(self, node_id: str, name: str, value: int) -> None:
        said = self.model.nodes.get(node_id, {}) | {name: value}
        node = {"id": node_id, "type": "t", "attributes": said}
        if node_id in self.model.merges and said != self.model.nodes[node_id]:
            with pytest.raises(Conflict, match="was merged into"):
                self.inject([node])
            return
        self.inject([node])
        self.model.nodes[node_id] = said
        self.remember()

    @rule(node_id=ID)
    def delete(self, node_id: str) -> None:
        self.sequence = self.store.delete_node(node_id).sequence
        self.model.delete_node(node_id)
        self.remember()

    @rule(node_id=ID, into=ID)
    def merge(self, node_id: str, into: str) -> None:
        model, end = self.model, self.model.end(into)
        if node_id == into or not {node_id, into} <= model.nodes.keys():
            return
        if model.end(node_id) == end != node_id:
            assert not self.store.merge(node_id, into).changed
            return
        if node_id in model.merges or end == node_id:
            with pytest.raises(Conflict, match="first"):
                self.store.merge(node_id, into)
            return
        told = self.store.merge(node_id, into)
        assert told.into == end
        model.merge(node_id, end, told.sequence)
        self.sequence = told.sequence
        self.remember()

    @rule(node_id=ID)
    def unmerge(self, node_id: str) -> None:
        merge = self.model.merges.get(node_id)
        if merge is None:
            if node_id in self.model.nodes:
                assert not self.store.unmerge(node_id).changed
            return
        if merge.into in self.model.merges:
            with pytest.raises(Conflict, match="first"):
                self.store.unmerge(node_id)
            return
        self.sequence = self.store.unmerge(node_id).sequence
        self.model.unmerge(node_id)
        self.remember()

    @rule(node_id=ID, into=ID)
    def merge_and_back(self, node_id: str, into: str) -> None:
        """Undo a merge immediately, which leaves no trace."""
        before, merged = self.seen(), set(self.model.merges)
        self.merge(node_id, into)
        if node_id in self.model.merges.keys() - merged:
            self.unmerge(node_id)
            assert self.seen() == before

    def seen(self) -> dict[str, Any]:
        """Return all rows, without fields that every commit changes."""
        own = {"version", "sequence", "updated_at"}
        rows: dict[str, Any] = {}
        for line in self.store.export():
            row = msgspec.to_builtins(line)
            if row["kind"] == "edge":
                rows[f"{row['from']} {row['relation_type']} {row['to']}"] = row
            else:
                rows[row["id"]] = {name: value for name, value in row.items() if name not in own and value}
        return rows

    @rule(node_id=ID, moment=st.none() | st.integers(0, 1 << 30))
    def look(self, node_id: str, moment: int | None) -> None:
        at = None if moment is None else sorted(self.past)[moment % len(self.past)]
        model = self.model if at is None else self.past[at]
        when = {} if at is None else {"as_of": at}
        end = model.end(node_id)
        if node_id not in model.nodes:
            with pytest.raises(NotFound):
                self.store.node(node_id, **when)
            return
        found = self.store.node(node_id, **when)
        assert (found.node.id, found.node.attributes) == (end, model.nodes[end])
        assert found.redirected_from == (node_id if end != node_id else msgspec.UNSET)
        edges = {
            (row.source, row.target, row.relation_type): row.weight
            for row in (*found.outgoing, *found.incoming)
            if row.relation_type != MERGED_INTO_RELATION
        }
        assert edges == {key: said.weight for key, said in model.of(end).items()}
        walk = self.store.traverse(node_id, depth=10, valid_at="any" if at == 0 else None, **when)
        assert {row.id for row in walk.nodes} == model.walked(node_id)

    @rule()
    def restart(self) -> None:
        self.library.close()
        self.library = kgserve.open(self.folder, indexes=False)

    @rule()
    def copy_over(self) -> None:
        """Check that an export into a new store has equal reads, and into the same one changes nothing."""
        before = self.seen()
        lines = [msgspec.json.encode(line) + b"\n" for line in self.store.export()]
        assert self.store.import_(b"".join(lines)).sequence == self.sequence
        self.library.store("copy").import_(b"".join(lines))
        for node_id in self.model.nodes:
            assert self.library.store("copy").node(node_id).node.id == self.model.end(node_id)
        assert self.seen() == before
        self.library.drop("copy", confirm="copy")


TestMerging = MergeMachine.TestCase
TestMerging.settings = examples(6, 40)
