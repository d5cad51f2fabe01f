"""Planner of writes: turns a batch, the rows it concerns and the time into a change set and a report.

The module does no I/O. The writer fills a `WritePlanningWorkspace` with the rows that a group of batches names. Each
batch is then planned against it and sees the results of the batches before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Generic, Literal, Protocol, Self, TypeVar

import msgspec

from kgserve.errors import Conflict, FieldError, InvalidInput, KindNotAllowed
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.change_feed_events import build_node_before_image, classify_node_for_memory_events
from kgserve.storage.model.change_set import (
    ChangeSet,
    CrossStoreLinksCountAndDigest,
    MemoryAccessRecord,
    NodeBeforeImage,
    StoreState,
    VersionCoAuthorRecord,
)
from kgserve.storage.model.merge_redirects import (
    MERGED_INTO_RELATION,
    follow_merge_redirect_chain,
    format_merged_node_write_error,
)
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, NodeEdgeColumnSet, NodeExtras
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    encode_edge_attributes,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.soft_delete import PREDECESSOR_RELATIONS, is_memory_predecessor
from kgserve.storage.model.store_rows_digest import update_digest_for_link_changes, update_digest_for_row_changes
from kgserve.storage.model.write_batch import (
    DEFAULT_WRITE_RULES,
    KIND_CONSOLIDATION,
    CrossStoreLinkUpsert,
    EdgeUpsert,
    FieldFault,
    NodeUpsert,
    WriteBatch,
    WriteRules,
    check_conflicting_head_limit,
    compute_edge_extras_after_upsert,
    compute_node_extras_after_upsert,
    find_edge_upsert_fault,
    find_node_upsert_fault,
    get_conflicting_node_head_versions,
    has_same_optional_edge_fields,
    is_noop_node_upsert,
    is_upsert_conflicting_with_stored_node,
    set_conflicting_node_head_versions,
)

MIN_COMMIT_TIME_MICROSECONDS = 1_767_225_600_000_000
"""Start of 2026 in microseconds. No version ran before that, so an earlier clock is wrong."""
MAX_CLOCK_DRIFT_MICROSECONDS = 60_000_000
"""Microseconds that the clock may be behind the last commit and still count as drift or adjustment."""
MAX_REPORTED_ROWS = 100
"""Maximum omitted rows that a report lists; it counts the others."""


class UnwrittenRequestRow(msgspec.Struct, frozen=True):
    """Row that was not written: its position in the request, and the reason."""

    index: int
    kind: Literal["node", "edge"]
    reason: str
    key: EdgeKey | None = None


class WriteReport(msgspec.Struct, kw_only=True):
    """Result of one batch, by distinct key. ``skipped`` are edges without endpoints, ``rejected`` are invalid rows.

    Links count as edges. ``redirected`` maps merged endpoints of edges to the nodes that replaced them.

    If the batch requests it, ``rows`` are the resulting nodes and edges that it named, and ``before`` the previous
    states of those that it changed.
    """

    nodes_created: int = 0
    nodes_updated: int = 0
    nodes_unchanged: int = 0
    nodes_deleted: int = 0
    edges_created: int = 0
    edges_updated: int = 0
    edges_unchanged: int = 0
    edges_deleted: int = 0
    skipped: list[UnwrittenRequestRow] = []
    skipped_count: int = 0
    rejected: list[UnwrittenRequestRow] = []
    rejected_count: int = 0
    redirected: dict[str, str] = {}
    sequence: int = 0
    rows: list[NodeRow | EdgeRow | CrossStoreLinkRow] = []
    before: list[NodeRow | EdgeRow | CrossStoreLinkRow] = []


class WritePlanningWorkspace:
    """Rows that a group of write batches concerns, updated while the batches are planned.

    - ``present``: existing ids among all that the batches name.
    - ``nodes``: rows of nodes that a batch puts or deletes.
    - ``edges``: rows by key; None for deleted edges.
    - ``settled``: existing edges that no batch changes.
    - ``incident``: edge keys of every node that a batch deletes.
    - ``merged``: merged nodes, each with the next redirect.
    - ``decided``: nodes that a batch has put or deleted.
    - ``links``: links that the batches name and those of deleted nodes; None for deleted links.
    - ``links_from``: link keys by source.
    - ``links_state``: count and digest of all links of the store.
    - ``ended``: last versions of deleted nodes that batches put.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRow] = {}
        self.present: set[str] = set()
        self.edges: dict[EdgeKey, EdgeRow | None] = {}
        self.settled: Container[EdgeKey] = ()
        self.incident: dict[str, set[EdgeKey]] = {}
        self.merged: dict[str, str] = {}
        self.decided: set[str] = set()
        self.links: dict[CrossStoreLinkKey, CrossStoreLinkRow | None] = {}
        self.links_from: dict[str, dict[CrossStoreLinkKey, None]] = {}
        self.links_state: CrossStoreLinksCountAndDigest | None = None
        self.ended: dict[str, int] = {}

    def add_stored_rows(self, more: WritePlanningWorkspace) -> None:
        """Add the stored rows that a further batch meets; results of earlier batches take precedence."""
        new = more.present - self.decided
        self.present |= new
        self.nodes |= {node_id: row for node_id, row in more.nodes.items() if node_id in new}
        self.edges = more.edges | self.edges
        for key in more.links.keys() - self.links.keys():
            self.put_link(key, more.links[key])
        if self.links_state is None:
            self.links_state = more.links_state
        self.merged = more.merged | self.merged
        self.ended = more.ended | self.ended
        for node_id in more.incident:
            self.incident[node_id] = {key for key, row in self.edges.items() if row is not None and node_id in key[:2]}

    def edges_at(self, node_id: str) -> Collection[EdgeKey]:
        """Return the edge keys of a node that a batch deletes, or that a batch of the group created."""
        found = self.incident.get(node_id)
        return [key for key, row in self.edges.items() if row and node_id in key[:2]] if found is None else found

    def predecessors_in(self, edges: Iterable[EdgeKey], memory: str) -> list[str]:
        """Return the former versions of a memory and the memories merged into it directly, given its edges."""
        keys = (key for key in edges if key[1] == memory and key[2] in PREDECESSOR_RELATIONS)
        return [source for source, _, kind in keys if self._is_predecessor(self.nodes.get(source), kind, memory)]

    def _is_predecessor(self, row: NodeRow | None, kind: str, memory: str) -> bool:
        owner = "" if row is None else (row.extras or NO_EXTRAS).belongs_to
        return is_memory_predecessor(row, kind, memory, self.resolve_redirect(owner) if owner in self.present else None)

    def resolve_redirect(self, node_id: str) -> str:
        """Return the node's id after following merge redirects."""
        return follow_merge_redirect_chain(self.merged, node_id)

    def redirect_edge_key(self, key: EdgeKey) -> EdgeKey:
        """Return an edge key with both ends redirected; a MERGED_INTO edge is returned unchanged."""
        if not self.merged or key[2] == MERGED_INTO_RELATION:
            return key
        return self.resolve_redirect(key[0]), self.resolve_redirect(key[1]), key[2]

    def redirect_link(self, put: CrossStoreLinkUpsert) -> CrossStoreLinkUpsert:
        """Return a link with its source redirected."""
        source, *rest = put.edge.key
        if self.resolve_redirect(source) == source:
            return put
        return CrossStoreLinkUpsert(
            put.store, msgspec.structs.replace(put.edge, key=(self.resolve_redirect(source), *rest))
        )

    def put_node(self, row: NodeRow) -> None:
        """Record the next state of a node."""
        self.nodes[row.id] = row
        self.present.add(row.id)
        self.decided.add(row.id)

    def drop_node(self, node_id: str) -> None:
        """Record the deletion of a node."""
        del self.nodes[node_id]
        self.present.discard(node_id)
        self.decided.add(node_id)
        self.merged.pop(node_id, None)

    def put_edge(self, key: EdgeKey, row: EdgeRow) -> None:
        """Record the next state of an edge."""
        self.edges[key] = row
        if self.incident:
            for end in {row.source, row.target} & self.incident.keys():
                self.incident[end].add(key)

    def put_link(self, key: CrossStoreLinkKey, row: CrossStoreLinkRow | None) -> None:
        """Record the next state of a link; None for its deletion."""
        self.links[key] = row
        self.links_from.setdefault(key.edge[0], {})[key] = None

    def drop_edge(self, key: EdgeKey) -> None:
        """Record the deletion of an edge."""
        self.edges[key] = None
        if key[2] == MERGED_INTO_RELATION and self.merged.get(key[0]) == key[1]:
            del self.merged[key[0]]
        for end in {key[0], key[1]} & self.incident.keys():
            self.incident[end].discard(key)


_Row = TypeVar("_Row", EdgeRow, CrossStoreLinkRow)
_Key = TypeVar("_Key", bound=Hashable)


class _EdgeChanges(Generic[_Row, _Key]):
    """Changes of edges, or of links."""

    def __init__(self) -> None:
        self.created: list[_Row] = []
        self.updated: list[_Row] = []
        self.touched: list[_Row] = []
        self.deleted: list[_Key] = []
        self.removed: list[_Row] = []

    @property
    def added(self) -> list[_Row]:
        return [*self.created, *self.updated, *self.touched]

    def take(self, row: _Row, old: _Row | None, *, is_new: bool) -> None:
        """Record the next state of a row; unless ``is_new``, only its time differs."""
        (self.created if old is None else self.updated if is_new else self.touched).append(row)
        if old is not None:
            self.removed.append(old)


class _ChangeSetDraft:
    """Rows of one change set while it is planned."""

    def __init__(self, workspace: WritePlanningWorkspace, sequence: int, now: int, rules: WriteRules) -> None:
        self.workspace = workspace
        self.rules = rules
        self.sequence = sequence
        self.now = now
        self.now_text = format_rfc3339_timestamp(now)
        self.report = WriteReport()
        self.nodes_created: list[NodeRow] = []
        self.nodes_updated: list[NodeRow] = []
        self.nodes_deleted: list[str] = []
        self.last_versions: list[int] = []
        self.forgets = False
        # Without arguments of the type, which cost three microseconds a call.
        self.edges: _EdgeChanges[EdgeRow, EdgeKey] = _EdgeChanges()
        self.links: _EdgeChanges[CrossStoreLinkRow, CrossStoreLinkKey] = _EdgeChanges()
        self.accessed: dict[str, MemoryAccessRecord] = {}
        self.former: list[NodeBeforeImage] = []
        self.said: list[VersionCoAuthorRecord] = []
        self.nodes_removed: list[NodeRow] = []

    def reject(self, index: int, kind: Literal["node", "edge"], fault: tuple[str, str]) -> None:
        self.report.rejected_count += 1
        if self.report.rejected_count <= MAX_REPORTED_ROWS:
            self.report.rejected.append(UnwrittenRequestRow(index, kind, " ".join(fault)))

    def skip(self, put: EdgeUpsert, reason: str) -> None:
        self.report.skipped_count += 1
        if self.report.skipped_count <= MAX_REPORTED_ROWS:
            self.report.skipped.append(UnwrittenRequestRow(put.index, "edge", reason, put.key))

    def delete_edge(self, key: EdgeKey) -> None:
        row = self.workspace.edges.get(key)
        if row is None:
            return
        self.workspace.drop_edge(key)
        self.edges.deleted.append(key)
        self.edges.removed.append(row)

    def delete_link(self, key: CrossStoreLinkKey) -> None:
        row = self.workspace.links.get(key)
        if row is None:
            return
        self.workspace.put_link(key, None)
        self.links.deleted.append(key)
        self.links.removed.append(row)

    def delete_node(self, node_id: str, kept: Collection[str]) -> None:
        """Delete a node with its edges, and a memory with its predecessors except those that are also put."""
        row = self.workspace.nodes.get(node_id)
        if row is None:
            return
        edges = sorted(self.workspace.edges_at(node_id))
        predecessors = self.workspace.predecessors_in(edges, node_id) if row.is_memory else []
        for key in edges:
            self.delete_edge(key)
        for key in sorted(self.workspace.links_from.get(node_id, ())):
            self.delete_link(key)
        self.workspace.drop_node(node_id)
        self.nodes_deleted.append(node_id)
        self.last_versions.append(0 if self.forgets else row.version)
        self.workspace.ended[node_id] = self.last_versions[-1]
        self.nodes_removed.append(row)
        if kind := classify_node_for_memory_events(row):
            self.former.append(NodeBeforeImage(node_id, kind))
        for each in predecessors:
            if each not in kept:
                self.delete_node(each, kept)

    def put_node(self, put: NodeUpsert) -> None:
        old = self.workspace.nodes.get(put.id)
        fault = find_node_upsert_fault(put, old, self.rules)
        if fault is not None:
            self.reject(put.index, "node", fault)
        elif old is None:
            self._create_node(put)
        else:
            self._update_node(put, old)

    def _create_node(self, put: NodeUpsert) -> None:
        row = NodeRow(
            put.id,
            put.type or "",
            put.content or "",
            put.attributes or EMPTY_ATTRIBUTES_JSON,
            max(put.version or 1, self.workspace.ended.get(put.id, 0) + 1),
            self.sequence,
            self.now if put.created_at is None else put.created_at,
            self.now if put.updated_at is None else put.updated_at,
            compute_node_extras_after_upsert(put.extras, None),
        )
        self.workspace.put_node(row)
        self.nodes_created.append(row)

    def _update_node(self, put: NodeUpsert, old: NodeRow) -> None:
        if is_noop_node_upsert(put, old, self.rules):
            self.report.nodes_unchanged += 1
            self._note_author(put, old)
            return
        if put.id in self.workspace.merged:
            self.reject(
                put.index,
                "node",
                ("id", format_merged_node_write_error(put.id, self.workspace.resolve_redirect(put.id))),
            )
            return
        node_type = old.type if put.type is None else put.type
        content = old.content if put.content is None else put.content
        attributes = old.attributes if put.attributes is None else put.attributes
        extras = compute_node_extras_after_upsert(put.extras, old.extras)
        row = NodeRow(
            put.id,
            node_type,
            content,
            attributes,
            max(put.version or 0, old.version + 1),
            self.sequence,
            old.created_at if put.created_at is None else put.created_at,
            self.now if put.updated_at is None else put.updated_at,
            self._with_heads(put, old, extras),
        )
        self.workspace.put_node(row)
        self.nodes_updated.append(row)
        self.nodes_removed.append(old)
        if row.type == KIND_CONSOLIDATION or _has_memory_fields(old) or _has_memory_fields(row):
            former = build_node_before_image(old, row)
            self.former += [former] if former is not None else []

    def _note_author(self, put: NodeUpsert, old: NodeRow) -> None:
        """Record a second author who put a whole version equal to the stored one."""
        author = put.extras.created_by if put.resolves and put.extras is not None else ""
        if author and author != (old.extras or NO_EXTRAS).created_by and self.rules.keeps_history:
            self.said.append(VersionCoAuthorRecord(old.id, old.version, author))

    def _with_heads(self, put: NodeUpsert, old: NodeRow, extras: NodeExtras | None) -> NodeExtras | None:
        """Return the extras with the heads in conflict after this write."""
        if is_upsert_conflicting_with_stored_node(put, old, self.rules):
            return set_conflicting_node_head_versions(extras, (old.version, *get_conflicting_node_head_versions(old)))
        # A partial update has not read the other heads, so it does not resolve the conflict.
        return (
            extras
            if put.resolves or not get_conflicting_node_head_versions(old)
            else set_conflicting_node_head_versions(extras, get_conflicting_node_head_versions(old))
        )

    def follow(self, put: EdgeUpsert) -> EdgeUpsert | None:
        """Return the edge with redirected ends; None if both ends were merged into one node."""
        key = self.workspace.redirect_edge_key(put.key)
        if key == put.key:
            return put
        if key[0] == key[1] and put.key[0] != put.key[1]:
            self.skip(put, f'its ends were merged: both are "{key[0]}"')
            return None
        if len(self.report.redirected) < MAX_REPORTED_REDIRECTS:
            ends = zip(put.key[:2], key[:2], strict=True)
            self.report.redirected |= {end: survivor for end, survivor in ends if end != survivor}
        return msgspec.structs.replace(put, key=key)

    def put_edge(self, put: EdgeUpsert, *, touch: bool) -> None:
        if put.key in self.workspace.settled:
            self.report.edges_unchanged += 1
            return
        if not self._has_endpoints(put, put.key[:2]):
            return
        old = self.workspace.edges.get(put.key)
        if (row := self._next_edge(put, old, touch=touch)) is not None:
            self.workspace.put_edge(put.key, row)
            self.edges.take(row, old, is_new=row.sequence == self.sequence)

    def put_link(self, put: CrossStoreLinkUpsert, *, touch: bool) -> None:
        if not self._has_endpoints(put.edge, put.edge.key[:1]):
            return
        old = self.workspace.links.get(put.key)
        if (edge := self._next_edge(put.edge, old and old.edge, touch=touch)) is not None:
            row = CrossStoreLinkRow(put.store, edge)
            self.workspace.put_link(put.key, row)
            self.links.take(row, old, is_new=edge.sequence == self.sequence)

    def _has_endpoints(self, put: EdgeUpsert, ends: tuple[str, ...]) -> bool:
        """Return True if the endpoints exist; otherwise skip the edge."""
        if self.workspace.present.issuperset(ends):
            return True
        self.skip(put, describe_missing_endpoints(ends, self.workspace.present))
        return False

    def _next_edge(self, put: EdgeUpsert, old: EdgeRow | None, *, touch: bool) -> EdgeRow | None:
        """Return the next state of an edge; None if nothing changes.

        It keeps the old sequence if only its time changes.
        """
        fault = find_edge_upsert_fault(put, old)
        if fault is not None:
            self.reject(put.index, "edge", fault)
            return None
        return self._new_edge(put, touch=touch) if old is None else self._changed_edge(put, old, touch=touch)

    def _new_edge(self, put: EdgeUpsert, *, touch: bool) -> EdgeRow:
        updated = self.now_text if touch or put.updated_at is None else put.updated_at
        return EdgeRow(
            *put.key,
            1.0 if put.weight is None else put.weight,
            encode_edge_attributes(put.created_at or self.now_text, updated, put.own or EMPTY_ATTRIBUTES_JSON),
            put.version or 1,
            self.sequence,
            compute_edge_extras_after_upsert(put.extras, None),
        )

    def _changed_edge(self, put: EdgeUpsert, old: EdgeRow, *, touch: bool) -> EdgeRow | None:
        if not touch and put.is_noop_for(old.weight):
            self.report.edges_unchanged += 1
            return None
        weight = old.weight if put.weight is None else put.weight
        stamps = split_edge_times_from_attributes(old.attributes)
        own = stamps.own if put.own is None else put.own
        created = put.created_at or stamps.created_at
        extras = compute_edge_extras_after_upsert(put.extras, old.extras)
        changed = (weight, own, created) != (old.weight, stamps.own, stamps.created_at)
        changed = changed or not has_same_optional_edge_fields(extras, old.extras)
        updated = self.now_text if touch else put.updated_at or (self.now_text if changed else stamps.updated_at)
        if not changed:
            self.report.edges_unchanged += 1
            if updated == stamps.updated_at:
                return None
        attributes = encode_edge_attributes(created, updated, own)
        version = max(put.version or 0, old.version + 1) if changed else old.version
        sequence = self.sequence if changed else old.sequence
        return EdgeRow(*put.key, weight, attributes, version, sequence, extras if changed else old.extras)

    def access(self, access: MemoryAccessRecord) -> None:
        if access.id in self.workspace.present:
            self.accessed[access.id] = access

    def finish_report(self, sequence: int) -> WriteReport:
        report = self.report
        report.nodes_created = len(self.nodes_created)
        report.nodes_updated = len(self.nodes_updated)
        report.nodes_deleted = len(self.nodes_deleted)
        report.edges_created = len(self.edges.created) + len(self.links.created)
        report.edges_updated = len(self.edges.updated) + len(self.links.updated)
        report.edges_deleted = len(self.edges.deleted) + len(self.links.deleted)
        report.sequence = sequence
        return report

    def change_set(self, state: StoreState) -> ChangeSet | None:
        nodes, edges, links = [*self.nodes_created, *self.nodes_updated], self.edges.added, self.links.added
        if not (nodes or edges or links or self.removed or self.accessed or self.said):
            return None
        digest = update_digest_for_row_changes(
            update_digest_for_row_changes(state.digest, nodes, self.nodes_removed), edges, self.edges.removed
        )
        links_state = None
        if links or self.links.removed:
            links_state = update_digest_for_link_changes(
                self.workspace.links_state or CrossStoreLinksCountAndDigest(), links, self.links.removed
            )
            self.workspace.links_state = links_state
        return ChangeSet(
            sequence=self.sequence,
            time=self.now,
            nodes_created=self.nodes_created,
            nodes_updated=self.nodes_updated,
            nodes_deleted=self.nodes_deleted,
            last_versions=self.last_versions,
            edges_created=self.edges.created,
            edges_updated=self.edges.updated,
            edges_touched=self.edges.touched,
            edges_deleted=self.edges.deleted,
            links_created=self.links.created,
            links_updated=self.links.updated,
            links_touched=self.links.touched,
            links_deleted=self.links.deleted,
            accessed=[*self.accessed.values()],
            former=self.former,
            said=self.said,
            digest=digest.to_bytes(16),
            nodes=state.nodes + len(self.nodes_created) - len(self.nodes_deleted),
            edges=state.edges + len(self.edges.created) - len(self.edges.deleted),
            links=links_state,
        )

    @property
    def removed(self) -> list[NodeRow | EdgeRow | CrossStoreLinkRow]:
        """Previous states of the rows that the change set deletes or replaces."""
        return [*self.nodes_removed, *self.edges.removed, *self.links.removed]


def describe_missing_endpoints(ends: tuple[str, ...], present: Container[str]) -> str:
    """Return a message that names the missing endpoints of a skipped edge; "" if all exist."""
    missing = [end for end in dict.fromkeys(ends) if end not in present]
    return "no such node: " + ", ".join(f'"{end}"' for end in missing) if missing else ""


def _has_memory_fields(row: NodeRow) -> bool:
    """Return True if a node has a name or a field of a memory, which most nodes lack."""
    return row.extras is not None and row.extras.width is NodeEdgeColumnSet.MEMORY


def choose_commit_time(now: int, last: int) -> int:
    """Return the time to stamp a commit with, from the clock and the last commit's stamp, all in microseconds.

    Stamps rise with the sequence while the clock is at most `MAX_CLOCK_DRIFT_MICROSECONDS` behind the last one. Beyond
    that the last commit was stamped by a clock that was ahead, and the clock counts. A clock before
    `MIN_COMMIT_TIME_MICROSECONDS` never does.
    """
    is_last_wrong = last - now > MAX_CLOCK_DRIFT_MICROSECONDS and now >= MIN_COMMIT_TIME_MICROSECONDS
    return now if is_last_wrong else max(now, last + 1)


def plan_write_batch(
    batch: WriteBatch,
    workspace: WritePlanningWorkspace,
    state: StoreState,
    now: int,
    rules: WriteRules = DEFAULT_WRITE_RULES,
) -> tuple[ChangeSet | None, WriteReport]:
    """Plan one write batch. Return its change set, or None if nothing changes, and its report.

    Raises InvalidInput for an invalid row unless the batch is ``partial``. The workspace is then unusable, so run
    `check_write_batch` first for batches that may be rejected.
    """
    draft = _ChangeSetDraft(workspace, state.sequence + 1, choose_commit_time(now, state.time), rules)
    draft.forgets = batch.forgets
    kept = {put.id for put in batch.nodes} if batch.delete_nodes else set[str]()
    for key in batch.delete_edges:
        draft.delete_edge(key)
    for key in batch.delete_links:
        draft.delete_link(key)
    for node_id in batch.delete_nodes:
        draft.delete_node(node_id, kept)
    for put in _last_wins(batch.nodes, _id):
        draft.put_node(put)
    edges = (
        [edge for put in batch.edges if (edge := draft.follow(put)) is not None] if workspace.merged else batch.edges
    )
    for edge in _last_wins(edges, _key):
        draft.put_edge(edge, touch=batch.touch)
    for link in _last_wins(map(workspace.redirect_link, batch.links), _key):
        draft.put_link(link, touch=batch.touch)
    for access in batch.accesses:
        draft.access(access)
    change = draft.change_set(state)
    if batch.return_rows:
        draft.report.rows, draft.report.before = _named_rows(batch, workspace), draft.removed
    return change, draft.finish_report(change.sequence if change else state.sequence)


def check_write_batch(
    batch: WriteBatch, workspace: WritePlanningWorkspace, rules: WriteRules = DEFAULT_WRITE_RULES
) -> None:
    """Raise InvalidInput if a write batch that is not ``partial`` has a row that the current state does not allow.

    Raises KindNotAllowed if disallowed types are the only fault, and Conflict for a merged node or one with too many
    heads.
    """
    if batch.partial:
        return
    check_conflicting_head_limit(batch.nodes, workspace.nodes, rules)
    gone, cut = set(batch.delete_nodes), set(batch.delete_edges)
    if workspace.merged:
        _check_merged(batch, workspace, rules, gone, cut)
    wrong: list[FieldError] = []
    only_kinds = True
    for put in _last_wins(batch.nodes, _id):
        fault = find_node_upsert_fault(put, None if put.id in gone else workspace.nodes.get(put.id), rules)
        if fault is not None:
            wrong.append(FieldError(_field_path(batch, "nodes", put.index, fault[0]), fault[1]))
            only_kinds = only_kinds and not rules.allows(put.type)
    for index, fault in _edge_faults(batch, workspace, gone, cut):
        wrong.append(FieldError(_field_path(batch, "edges", index, fault[0]), fault[1]))
        only_kinds = False
    if wrong:
        kind = KindNotAllowed if only_kinds else InvalidInput
        raise kind(f"{wrong[0].path}: {wrong[0].message}", tuple(wrong[:MAX_REPORTED_ROWS]))


def _edge_faults(
    batch: WriteBatch, workspace: WritePlanningWorkspace, gone: set[str], cut: set[EdgeKey]
) -> Iterator[tuple[int, FieldFault]]:
    """Yield the faults of edges and links with their positions."""
    for put in _last_wins(batch.edges, _key) if any(put.extras is not None for put in batch.edges) else ():
        made_again = put.key in cut or not gone.isdisjoint(put.key[:2])
        old = None if made_again else workspace.edges.get(workspace.redirect_edge_key(put.key))
        if (fault := find_edge_upsert_fault(put, old)) is not None:
            yield put.index, fault
    gone_links = set(batch.delete_links)
    for put in _last_wins(map(workspace.redirect_link, batch.links), _key):
        made_again = put.key in gone_links or put.edge.key[0] in gone
        row = None if made_again else workspace.links.get(put.key)
        if (fault := find_edge_upsert_fault(put.edge, row and row.edge)) is not None:
            yield put.index, fault


def _check_merged(
    batch: WriteBatch, workspace: WritePlanningWorkspace, rules: WriteRules, gone: set[str], cut: set[EdgeKey]
) -> None:
    """Raise Conflict if the batch changes a merged node without undoing the merge."""
    for put in batch.nodes:
        into, old = workspace.merged.get(put.id), workspace.nodes.get(put.id)
        if into is None or old is None or is_noop_node_upsert(put, old, rules):
            continue
        if gone.isdisjoint((put.id, into)) and (put.id, into, MERGED_INTO_RELATION) not in cut:
            raise Conflict(format_merged_node_write_error(put.id, workspace.resolve_redirect(put.id)))


def _field_path(batch: WriteBatch, rows: str, index: int, field: str) -> str:
    # A request for a single row sends no list, and its field for the type is `kind`.
    if batch.return_rows:
        return "kind" if field == "type" else field
    return f"{rows}[{index}].{field}"


def _named_rows(batch: WriteBatch, workspace: WritePlanningWorkspace) -> list[NodeRow | EdgeRow | CrossStoreLinkRow]:
    nodes = [workspace.nodes[put.id] for put in batch.nodes if put.id in workspace.nodes]
    edges = [row for put in batch.edges if (row := workspace.edges.get(put.key)) is not None]
    links = [row for put in batch.links if (row := workspace.links.get(put.key)) is not None]
    return [*nodes, *edges, *links]


class _MergeablePut(Protocol):
    def over(self, earlier: Self) -> Self: ...


_PutType = TypeVar("_PutType", bound=_MergeablePut)
_id = attrgetter("id")
_key = attrgetter("key")


def _last_wins(puts: Iterable[_PutType], key: Callable[[_PutType], Hashable]) -> list[_PutType]:
    given = [*puts]
    if len({*map(key, given)}) == len(given):
        return given
    latest: dict[Hashable, _PutType] = {}
    for put in given:
        name = key(put)
        earlier = latest.get(name)
        latest[name] = put if earlier is None else put.over(earlier)
    return list(latest.values())


MAX_REPORTED_REDIRECTS = 1_000
