"""Writes of extras: kept, cleared and replaced values, and when they make a new version."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kgserve.errors import InvalidInput, KindNotAllowed
from kgserve.storage.model.change_set import StoreState, VersionCoAuthorRecord
from kgserve.storage.model.node_edge_fields import EDGE as EDGE_FIELDS
from kgserve.storage.model.node_edge_fields import (
    NODE,
    EdgeExtras,
    EdgeExtrasUpsert,
    NodeEdgeColumnSet,
    NodeExtras,
    NodeExtrasUpsert,
)
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, encode_edge_attributes, is_valid_at
from kgserve.storage.model.store_rows_digest import format_store_rows_digest, row_hash, rows_digest
from kgserve.storage.model.write_batch import (
    DEFAULT_WRITE_RULES,
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    WriteRules,
    build_node_restore_upsert,
    compute_edge_extras_after_upsert,
    compute_node_extras_after_upsert,
)
from kgserve.storage.write_planner import WritePlanningWorkspace, WriteReport, check_write_batch, plan_write_batch

NARROW = NodeExtras("short", ("b", "a"), 5, "ada", 10, 20, (3,))
NARROW_EDGE = EdgeExtras(0, "ada", 10, 20)
FULL = replace(
    NARROW, name="Ada", confidence=0.5, confidence_at=6, importance=0.25, source="chat", context="at lunch", layer=2,
    ended="merged", former_from=1, former_to=2, belongs_to="b",
)  # fmt: skip
FULL_EDGE = replace(NARROW_EDGE, confidence=0.5, context="at lunch")
MANUAL = WriteRules(keeps_both=True)

# Computed by the version before extras existed.
PLAIN = NodeRow("a", "t", "", "{}", 1, 1, 0, 1_700_000_000_000_000)
ODD = NodeRow(
    "Ünïcödé 日本 😀", "person", "it's\nsome text", '{"a":[1,null,{"b":"ü"}]}', 1 << 40, 77, -1, 1_600_000_000_000_001
)
EDGE = EdgeRow(
    "a",
    "b",
    "knows",
    0.25,
    encode_edge_attributes("2020-01-01T00:00:00Z", "2021-01-01T00:00:00.000000Z", '{"x":1}'),
    3,
    9,
)
DIGESTS = (
    (PLAIN, "3b801bb33f8179552bd2ae88c1fb2328"),
    (ODD, "581e040526f70b4e22dd872cc3013c71"),
    (EDGE, "83c3a1432806f4beb034a0f00d934a6e"),
)
# Computed by the version before memories existed.
NARROW_DIGESTS = (
    (replace(PLAIN, extras=NARROW), "f371946ad38941a3871109c3f0cef295"),
    (replace(PLAIN, extras=NodeExtras()), "739c9b289458984f4ee1d312899bb457"),
    (replace(EDGE, extras=NARROW_EDGE), "fa5b2fae5bdba911aa2a2153e4d2fd72"),
)
ALL_OF_THEM = "1761c0fb8e7f7961fee4d6a5928faa07"


@pytest.mark.parametrize("extras", [FULL, NARROW, NodeExtras(), replace(FULL, conflicts=(), tags=(), context="")])
def test_node_extras_columns_roundtrip(extras: NodeExtras) -> None:
    assert NodeExtras.of_columns(extras.columns) == extras
    assert NodeExtras.of_columns([None] * len(extras.columns)) is None
    if extras.width < NodeEdgeColumnSet.MEMORY:
        assert NodeExtras.of_columns(extras.columns[: len(NODE.extras)]) == extras


@pytest.mark.parametrize("extras", [FULL_EDGE, NARROW_EDGE, EdgeExtras(), replace(FULL_EDGE, context="")])
def test_edge_extras_columns_roundtrip(extras: EdgeExtras) -> None:
    assert EdgeExtras.of_columns(extras.columns) == extras
    assert EdgeExtras.of_columns([None] * len(extras.columns)) is None
    if extras.width < NodeEdgeColumnSet.MEMORY:
        assert EdgeExtras.of_columns(extras.columns[: len(EDGE_FIELDS.extras)]) == extras


class BatchPlanner:
    """Planner of consecutive batches."""

    def __init__(self, rules: WriteRules = DEFAULT_WRITE_RULES) -> None:
        self.workspace = WritePlanningWorkspace()
        self.rules = rules
        self.state = StoreState()
        self.said: list[VersionCoAuthorRecord] = []

    def __call__(self, batch: WriteBatch) -> WriteReport:
        check_write_batch(batch, self.workspace, self.rules)
        change, report = plan_write_batch(batch, self.workspace, self.state, 1_000, self.rules)
        self.state = self.state if change is None else change.state
        self.said = [] if change is None else change.said
        return report

    def node(self, extras: NodeExtrasUpsert | None = None, **fields: object) -> NodeRow:
        put = msgspec.structs.replace(NodeUpsert(0, "n", extras=extras), **fields)
        self(WriteBatch(nodes=[put]))
        return self.workspace.nodes["n"]

    def edge(self, extras: EdgeExtrasUpsert | None = None, weight: float | None = None) -> EdgeRow:
        self(WriteBatch(edges=[EdgeUpsert(0, ("n", "n", "r"), weight, extras=extras)], touch=False))
        row = self.workspace.edges["n", "n", "r"]
        assert row is not None
        return row


@pytest.fixture
def writing() -> BatchPlanner:
    """Return a planner of a store with one node."""
    return begun(DEFAULT_WRITE_RULES)


def begun(rules: WriteRules) -> BatchPlanner:
    writing = BatchPlanner(rules)
    writing.node(type="t")
    return writing


@pytest.mark.parametrize(("row", "digest"), DIGESTS)
def test_hash_of_rows_without_extras_is_unchanged(row: NodeRow | EdgeRow, digest: str) -> None:
    assert format_store_rows_digest(row_hash(row)) == digest
    whole = msgspec.structs.astuple(row)
    assert (
        format_store_rows_digest(rows_digest([whole])) == format_store_rows_digest(rows_digest([whole[:-1]])) == digest
    )


@pytest.mark.parametrize(("row", "digest"), NARROW_DIGESTS)
def test_hash_of_rows_without_memory_fields_is_unchanged(row: NodeRow | EdgeRow, digest: str) -> None:
    assert (
        format_store_rows_digest(row_hash(row))
        == format_store_rows_digest(rows_digest([msgspec.structs.astuple(row)]))
        == digest
    )


def test_digest_of_several_rows_is_unchanged() -> None:
    assert format_store_rows_digest(rows_digest(msgspec.structs.astuple(row) for row, _ in DIGESTS)) == ALL_OF_THEM


@pytest.mark.parametrize(("plain", "full"), [(PLAIN, FULL), (EDGE, FULL_EDGE)])
def test_every_extra_changes_the_hash(plain: NodeRow | EdgeRow, full: NodeExtras | EdgeExtras) -> None:
    names = full.__struct_fields__
    others = [None, full, type(full)(), *(replace(full, **{name: None}) for name in names)]
    rows = [replace(plain, extras=each) for each in others]
    assert len({row_hash(row) for row in rows}) == len(names) + 3
    assert [row_hash(row) for row in rows] == [rows_digest([msgspec.structs.astuple(row)]) for row in rows]


def test_omitted_extras_are_kept_except_author() -> None:
    assert compute_node_extras_after_upsert(NodeExtrasUpsert(), FULL) == replace(FULL, created_by="", conflicts=())
    assert compute_node_extras_after_upsert(None, FULL) == replace(FULL, created_by="", conflicts=())
    assert (
        compute_edge_extras_after_upsert(EdgeExtrasUpsert(), FULL_EDGE)
        == compute_edge_extras_after_upsert(None, FULL_EDGE)
        == replace(FULL_EDGE, created_by="")
    )


def test_given_extras_replace_and_none_or_empty_clears() -> None:
    memory = ("Bob", 1.0, 7, 0.0, "mail", "", 0, "", None, None, "")
    given = NodeExtrasUpsert("other", ("c",), 6, "bob", 11, 21, *memory)
    assert compute_node_extras_after_upsert(given, FULL) == NodeExtras("other", ("c",), 6, "bob", 11, 21, (), *memory)
    assert compute_node_extras_after_upsert(NodeExtrasUpsert("", (), None, "", None, None), NARROW) == NodeExtras()
    assert compute_edge_extras_after_upsert(EdgeExtrasUpsert(7, "bob", 0, None, None, ""), FULL_EDGE) == EdgeExtras(
        7, "bob", 0, None
    )


def test_zero_is_not_cleared() -> None:
    zeros = NodeExtrasUpsert(freshness_at=0, valid_from=0, valid_to=0)
    assert compute_node_extras_after_upsert(zeros, None) == NodeExtras(freshness_at=0, valid_from=0, valid_to=0)
    assert compute_edge_extras_after_upsert(EdgeExtrasUpsert(0, "", 0, 0), None) == EdgeExtras(0, "", 0, 0)


def test_empty_extras_are_kept_only_by_nodes_that_had_some() -> None:
    assert (
        compute_node_extras_after_upsert(None, None)
        is compute_node_extras_after_upsert(NodeExtrasUpsert(), None)
        is compute_node_extras_after_upsert(CLEARING, None)
        is None
    )
    assert compute_node_extras_after_upsert(CLEARING, NARROW) == NodeExtras()
    assert (
        compute_edge_extras_after_upsert(None, None)
        is compute_edge_extras_after_upsert(EdgeExtrasUpsert(), None)
        is None
    )
    assert (
        compute_edge_extras_after_upsert(
            EdgeExtrasUpsert(valid_from=None, valid_to=None), EdgeExtras(None, "ada", 1, 2)
        )
        is None
    )


CLEARING = NodeExtrasUpsert("", (), None, "", None, None)


def test_two_puts_of_a_node_in_a_batch_are_merged(writing: BatchPlanner) -> None:
    puts = [
        NodeUpsert(
            0, "n", content="x", extras=NodeExtrasUpsert("one", ("a",), 5, "ada", 10, None), based_on=1, resolves=True
        ),
        NodeUpsert(1, "n", extras=NodeExtrasUpsert(None, None, None, "", UNSET, 30)),
    ]
    assert writing(WriteBatch(nodes=puts)).nodes_updated == 1
    assert writing.workspace.nodes["n"].extras == NodeExtras("one", ("a",), None, "ada", 10, 30)


def test_two_puts_of_an_edge_in_a_batch_are_merged(writing: BatchPlanner) -> None:
    key = ("n", "n", "r")
    puts = [
        EdgeUpsert(0, key, extras=EdgeExtrasUpsert(4, "ada", 10, 20)),
        EdgeUpsert(1, key, extras=EdgeExtrasUpsert(UNSET, "", None, UNSET)),
        EdgeUpsert(2, key, 0.5),
    ]
    assert writing(WriteBatch(edges=puts)).edges_created == 1
    row = writing.workspace.edges[key]
    assert row is not None
    assert row.extras == EdgeExtras(4, "ada", None, 20)


def test_same_content_by_another_author_makes_no_version(writing: BatchPlanner) -> None:
    first, edge = writing.node(NodeExtrasUpsert("s", created_by="ada")), writing.edge(EdgeExtrasUpsert(1, "ada"))
    assert writing.node(NodeExtrasUpsert("s", created_by="bob")) is first
    assert writing.edge(EdgeExtrasUpsert(1, "bob")) is edge
    assert writing.node(NodeExtrasUpsert(created_by="bob"), content="new").extras == NodeExtras("s", created_by="bob")
    assert writing.edge(EdgeExtrasUpsert(UNSET, "bob"), 0.5).extras == EdgeExtras(1, "bob")


def test_second_author_of_same_content_is_recorded_once() -> None:
    writing = begun(WriteRules(keeps_history=True))
    writing.node(NodeExtrasUpsert("s", created_by="ada"))
    # As in another request: an equal text that is not the same object.
    again = "".join("ada")
    for author, said in ((again, []), ("bob", [VersionCoAuthorRecord("n", 2, "bob")]), (again, [])):
        assert writing.node(NodeExtrasUpsert("s", created_by=author), resolves=True).version == 2
        assert writing.said == said


def test_order_of_tags_makes_a_version(writing: BatchPlanner) -> None:
    assert writing.node(NodeExtrasUpsert(tags=("a", "b"))).version == 2
    assert writing.node(NodeExtrasUpsert(tags=("b", "a"))).version == 3


def test_touch_keeps_author_of_edge(writing: BatchPlanner) -> None:
    row = writing.edge(EdgeExtrasUpsert(1, "ada"))
    batch = WriteBatch(edges=[EdgeUpsert(0, row.key, extras=EdgeExtrasUpsert(1, "bob"))], touch=True)
    assert writing(batch).edges_unchanged == 1
    touched = writing.workspace.edges[row.key]
    assert touched is not None
    assert (touched.extras, touched.version) == (row.extras, 1)
    assert touched.attributes != row.attributes


def test_recreated_node_inherits_no_extras(writing: BatchPlanner) -> None:
    writing.node(NodeExtrasUpsert("s", ("a",), 5, "ada", 10, 20))
    writing.workspace.incident = {"n": set()}
    writing(WriteBatch(delete_nodes=["n"], nodes=[NodeUpsert(0, "n", "t")]))
    assert (writing.workspace.nodes["n"].extras, writing.workspace.nodes["n"].version) == (None, 3)


@pytest.mark.parametrize(
    ("moment", "true"), [(9, False), (10, True), (19, True), (20, False), (-(1 << 62), False), (1 << 62, False)]
)
def test_validity_is_a_half_open_interval(moment: int, *, true: bool) -> None:
    assert is_valid_at(FULL, moment) is is_valid_at(FULL_EDGE, moment) is true


def test_missing_bounds_are_unlimited() -> None:
    assert is_valid_at(None, 0)
    assert is_valid_at(NodeExtras(), 0)
    assert is_valid_at(NodeExtras(valid_from=0), 0)
    assert not is_valid_at(NodeExtras(valid_from=0), -1)
    assert is_valid_at(EdgeExtras(valid_to=0), -1)
    assert not is_valid_at(EdgeExtras(valid_to=0), 0)
    assert not is_valid_at(NodeExtras(valid_from=7, valid_to=7), 7), "an empty interval is never valid"


def test_valid_to_before_stored_valid_from_is_rejected(writing: BatchPlanner) -> None:
    writing.node(NodeExtrasUpsert(valid_from=10))
    writing.edge(EdgeExtrasUpsert(valid_to=10))
    key = ("n", "n", "r")
    for wrong, path in (
        (WriteBatch(nodes=[NodeUpsert(4, "n", extras=NodeExtrasUpsert(valid_to=9))]), "nodes[4].valid_to"),
        (WriteBatch(edges=[EdgeUpsert(5, key, extras=EdgeExtrasUpsert(valid_from=11))]), "edges[5].valid_to"),
    ):
        with pytest.raises(InvalidInput) as refused:
            writing(wrong)
        assert [error.path for error in refused.value.errors] == [path]
        assert not isinstance(refused.value, KindNotAllowed)
        report = writing(replace(wrong, partial=True))
        assert (report.rejected_count, report.nodes_updated, report.edges_updated) == (1, 0, 0)
    assert writing.node(NodeExtrasUpsert(valid_to=10)).version == 3


def test_types_outside_whitelist_are_rejected() -> None:
    writing = begun(WriteRules(frozenset("tu")))
    with pytest.raises(KindNotAllowed, match="t, u"):
        writing.node(type="x")
    assert writing.node(type="u").type == "u"
    assert (
        writing(WriteBatch(nodes=[NodeUpsert(0, "m", "x"), NodeUpsert(1, "o", "t")], partial=True)).rejected_count == 1
    )
    assert writing.workspace.present == {"n", "o"}


def test_last_writer_wins(writing: BatchPlanner) -> None:
    writing.node(content="2")
    row = writing.node(content="3", based_on=1)
    assert (row.version, row.extras) == (3, None)


def test_put_based_on_superseded_version_becomes_a_conflict() -> None:
    writing = begun(MANUAL)
    assert writing.node(content="2", based_on=1).extras is None
    assert writing.node(content="3", based_on=1).extras == NodeExtras(conflicts=(2,))
    assert writing.node(content="4", based_on=1).extras == NodeExtras(conflicts=(3, 2))


@pytest.mark.parametrize("based_on", [4, 3, 2, None])
def test_put_based_on_head_or_nothing_supersedes_all_heads(based_on: int | None) -> None:
    writing = begun(MANUAL)
    for content in ("2", "3", "4"):
        writing.node(content=content, based_on=1)
    assert writing.node(content="5", based_on=based_on, resolves=True).extras == NodeExtras()


def test_partial_update_keeps_conflicts() -> None:
    writing = begun(MANUAL)
    for content in ("2", "3"):
        writing.node(content=content, based_on=1)
    assert writing.node(content="4").extras == NodeExtras(conflicts=(2,))
    assert writing.node(NodeExtrasUpsert(valid_to=9)).extras == NodeExtras(valid_to=9, conflicts=(2,))


def test_resolving_put_merges_heads_without_other_changes() -> None:
    writing = begun(MANUAL)
    writing.node(content="2", based_on=1)
    row = writing.node(content="3", based_on=1)
    assert writing.node(content="3") is row
    joined = writing.node(content="3", based_on=2, resolves=True)
    assert (joined.version, joined.extras) == (4, NodeExtras())
    assert writing.node(content="3", resolves=True) is joined


def test_put_again_restores_extras(writing: BatchPlanner) -> None:
    first = writing.node(NodeExtrasUpsert("s", ("a",), 5, "ada", 10, 20), content="x")
    writing.node(NodeExtrasUpsert("other", (), None, "bob", None, 5), content="y")
    writing(WriteBatch(nodes=[build_node_restore_upsert(first)]))
    again = writing.workspace.nodes["n"]
    assert again.extras == NodeExtras("s", ("a",), 5, "", 10, 20)
    assert (again.content, again.version) == ("x", 4)


def test_recreated_edge_inherits_no_extras(writing: BatchPlanner) -> None:
    row = writing.edge(EdgeExtrasUpsert(valid_from=10))
    again = EdgeUpsert(0, row.key, extras=EdgeExtrasUpsert(valid_to=9))
    assert writing(WriteBatch(delete_edges=[row.key], edges=[again])).edges_created == 1
    made = writing.workspace.edges[row.key]
    assert made is not None
    assert made.extras == EdgeExtras(valid_to=9)
