"""Histories of nodes, entities and stores: states, versions, changes and reverting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate, islice
from typing import Any

import msgspec

from kgserve.admin.store_admin_models import PruneHistoryAnswer, PruneHistoryRequest
from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import (
    ChangesPage,
    CommitChangeEntry,
    EdgeKeyAnswer,
    EntityVersion,
    FieldChange,
    InjectAnswer,
    NodeHistory,
    NodeHistoryState,
    NodeWithEdgesAnswer,
    RepeatedValueAuthor,
)
from kgserve.graph.as_of_graph import AsOfGraph, make_history_opener_for_lease
from kgserve.graph.as_of_resolution import MAX_AS_OF_DIGITS, get_caught_up_history
from kgserve.graph.event_subscriptions import build_unreached_sequence_error
from kgserve.graph.former_versions import (
    check_version_validity_overlap,
    list_other_memory_versions,
    parse_version_id_sequence,
    sort_versions_by_validity_start,
    statement_start,
)
from kgserve.graph.mutations import build_inject_answer, estimate_batch_bytes
from kgserve.graph.request_validation import require_valid_id_or_type_length
from kgserve.graph.row_to_api_conversion import NodeVersionStatus, find_node_version_status, find_node_version_statuses
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import (
    EntityHistoryRequest,
    NodeHistoryRequest,
    RevertNodeRequest,
    StoreChangesParameters,
)
from kgserve.platform.json_values import is_same_json_value
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, ContentCoAuthorEntry, RowStateInterval
from kgserve.projections.history_follower import HistoryProjection
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_fields import AUTHOR_FIELD, NO_EXTRAS, NODE, get_row_field_names
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import REASON_FORGOTTEN, REASON_SUPERSEDED, VERSION_OF_RELATION
from kgserve.storage.model.write_batch import WriteBatch, build_node_restore_upsert, get_conflicting_node_head_versions
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_parents_of_memories
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore

_EXTRAS_WITHOUT_AUTHOR = tuple(name for name in get_row_field_names(NODE.extras) if name != AUTHOR_FIELD)
MAX_CHANGES_PAGE_ROWS = 20_000
MAX_LISTED_CHANGE_ROWS = 1_000
MAX_SCANNED_COMMITS = 10_000
"""Commits scanned for one page; some change no rows."""
_DAYS_PATTERN = re.compile(r"([0-9]{1,5})d")


def get_node_history(graph: StoreHandle, request: NodeHistoryRequest) -> NodeHistory:
    """Return the states of a node, newest first, and what each one changed.

    Each state comes with the commits and times between which it was current. `also_by` lists other authors of the same
    values.

    The history of a deleted node can be read, too. Raises NotFound for a node that never existed.
    """
    node_id, limit, before = request.node_id, request.limit, request.before
    require_valid_id_or_type_length(node_id)
    with graph.lease() as leased:
        follower = get_caught_up_history(graph.graphs.historian, leased)
        # One more than the page: the last state is compared with it, and it shows whether another page exists.
        found = follower.look(lambda history: history.node_states(node_id, before or NO_SEQUENCE_LIMIT, limit + 1))
    if not found and before is None:
        raise NotFound(f"store {graph.name!r} has no node {node_id!r}, now or in its history")
    newer = [before, *(state.first for state in found)]
    older = [*found[1:], None]
    shown = [*islice(zip(found, older, newer, strict=False), limit)]
    version_states = follower.look(lambda history: find_node_version_statuses(history, found[:limit]))
    states = [_node_state(*each, standing) for each, standing in zip(shown, version_states, strict=True)]
    versions = [state.node.version for state in states]
    if versions:
        span = range(min(versions), max(versions) + 1)
        repeated = follower.look(lambda history: history.co_authors_of(node_id, span, MAX_LISTED_CHANGE_ROWS))
        _set_also_by(states, repeated)
    return NodeHistory(id=node_id, states=states, next_before=found[limit - 1].first if len(found) > limit else None)


def _set_also_by(states: Sequence[NodeHistoryState], repeated: Iterable[ContentCoAuthorEntry]) -> None:
    by_version: dict[int, list[RepeatedValueAuthor]] = {}
    for each in repeated:
        author = RepeatedValueAuthor(
            created_by=each.created_by, sequence=each.sequence, recorded_at=format_rfc3339_timestamp(each.time)
        )
        by_version.setdefault(each.version, []).append(author)
    for state in states:
        state.also_by = by_version.get(state.node.version, msgspec.UNSET)


def get_node_version(graph: StoreHandle, node_id: str, version: int) -> NodeWithEdgesAnswer:
    """Return one state of a node, without edges. Raises NotFound."""
    state, standing = _require_version(graph, node_id, version)
    node = standing.apply_to(row_to_api_conversion.build_api_node_from_row(state.row))
    return NodeWithEdgesAnswer(node=node, outgoing=[], incoming=[], edges_truncated=False)


def revert_node(graph: StoreHandle, request: RevertNodeRequest) -> Future[InjectAnswer]:
    """Revert a node to an earlier version, written as a new state. A deleted node is restored.

    A version in conflict resolves the conflict. Edges do not change, such as those of a memory to its entities. A
    former version that kept the same state of a memory is deleted.

    Raises NotFound, and Conflict if the memory would be valid while another version of it is.
    """
    state, _ = _require_version(graph, request.node_id, request.version)
    put = build_node_restore_upsert(state.row)
    batch = WriteBatch(nodes=[put], cost=estimate_batch_bytes([put], []))

    def prepare(store: OpenStore) -> WriteBatch:
        with store.reading() as rows:
            current = rows.nodes((request.node_id,)).get(request.node_id)
            others = list_other_memory_versions(rows, state.row) if state.row.is_memory else []
        kept = [row.id for row in others if _keeps_state(row, state.row)]
        check_version_validity_overlap(state.row, (row for row in others if row.id not in kept))
        heads = () if current is None else (current.version, *get_conflicting_node_head_versions(current))
        chosen = msgspec.structs.replace(put, resolves=request.version in heads)
        return msgspec.structs.replace(batch, nodes=[chosen], delete_nodes=kept)

    def answer(report: WriteReport) -> InjectAnswer:
        return build_inject_answer(report, 1, 0)

    return graph.write(lambda store: store.submit_prepared(lambda: prepare(store)), answer)


def _keeps_state(version: NodeRow, state: NodeRow) -> bool:
    """Return whether a former version keeps what its memory said in a state."""
    return version.content == state.content and statement_start(version) == statement_start(state)


def list_changes(graph: StoreHandle, request: StoreChangesParameters) -> ChangesPage:
    """Return writes, oldest first, with the rows as each write left them.

    A write of over 1,000 rows reports only their count.

    Raises Gone when the journal no longer holds them, and for a sequence that the store has not reached.
    """
    seen = request.since
    with graph.lease() as leased:
        last = leased.state.sequence
        if seen > last and not leased.commits.is_copy:
            raise build_unreached_sequence_error(graph.name, last, leased.journal.oldest)
        found: list[CommitChangeEntry] = []
        rows = 0
        for change in JournalReader(leased.layout.journal).read(seen + 1, min(last, seen + MAX_SCANNED_COMMITS)):
            seen = change.sequence
            if change.size:
                found.append(_change_entry(change))
                rows += min(change.size, MAX_LISTED_CHANGE_ROWS)
            if len(found) == request.limit or rows >= MAX_CHANGES_PAGE_ROWS:
                break
    return ChangesPage(changes=found, next_since=seen if seen < last else None, sequence=last)


def prune_history(graph: StoreHandle, request: PruneHistoryRequest) -> PruneHistoryAnswer:
    """Delete the states that ended by `before`; without it, those that exceed the retention of the store's settings.

    Current states, states current as of `before` and versions listed in the `conflicts` of a node are kept. Later reads
    of earlier moments return 410. The journal is not pruned: `changes` still reach back as far as the journal does.

    Raises Conflict when no history is kept, and for an age after the clock was set forward since the server started.
    """
    with graph.lease() as leased:
        present = leased.state.sequence
        follower = get_caught_up_history(graph.graphs.historian, leased)
        now = RETENTION_CLOCK.require() if _is_by_age(request.before) else 0
        before = (
            follower.expired_sequence(now) if request.before is None else _parse_moment(follower, request.before, now)
        )
        pruned = follower.prune(before) if before > 0 else 0
        return PruneHistoryAnswer(
            store=graph.name, pruned=pruned, oldest=follower.look(lambda history: history.oldest), sequence=present
        )


def _is_by_age(before: str | None) -> bool:
    """Return whether the pruned states depend on the current time."""
    return before is None or _DAYS_PATTERN.fullmatch(before) is not None


def _parse_moment(follower: HistoryProjection, before: str, now: int) -> int:
    """Return the sequence for a sequence, a time, or a number of days before ``now``."""
    if found := _DAYS_PATTERN.fullmatch(before):
        time_meant = now - int(found[1]) * DAY_MICROSECONDS
        return follower.look(lambda history: history.sequence_at(time_meant))
    if before.isascii() and before.isdecimal() and len(before) <= MAX_AS_OF_DIGITS:
        return int(before)
    try:
        moment = parse_rfc3339_timestamp(before)
    except ValueError as error:
        message = f"must be a sequence, a number of days such as 30d, or a time: {error}"
        raise InvalidInput.at("before", message) from None
    return follower.look(lambda history: history.sequence_at(moment))


def _require_version(
    graph: StoreHandle, node_id: str, version: int
) -> tuple[RowStateInterval[NodeRow], NodeVersionStatus]:
    """Return a state of a node, and whether it is current."""
    with graph.lease() as leased:
        follower = get_caught_up_history(graph.graphs.historian, leased)
        state = follower.look(lambda history: history.node_version(node_id, version))
        if state is None:
            raise NotFound(f"store {graph.name!r} has no version {version} of node {node_id!r} in its history")
        return state, follower.look(lambda history: find_node_version_status(history, state))


def _node_state(
    state: RowStateInterval[NodeRow],
    older: RowStateInterval[NodeRow] | None,
    newer_first: int | None,
    standing: NodeVersionStatus,
) -> NodeHistoryState:
    follows = older is not None and older.last == state.first
    return NodeHistoryState(
        node=standing.apply_to(row_to_api_conversion.build_api_node_from_row(state.row)),
        from_sequence=state.first,
        to_sequence=state.last,
        recorded_from=format_rfc3339_timestamp(state.started),
        recorded_to=None if state.ended is None else format_rfc3339_timestamp(state.ended),
        deleted=state.last not in {None, newer_first} and standing == NodeVersionStatus(None, is_current=False),
        diff=_differences(older.row, state.row) if follows and older is not None else [],
    )


def _differences(before: NodeRow, after: NodeRow) -> list[FieldChange]:
    one, other = _flat_fields(before), _flat_fields(after)
    paths = dict.fromkeys([*one, *other])
    return [
        FieldChange(path=path, before=one.get(path), after=other.get(path))
        for path in paths
        if not (path in one and path in other and is_same_json_value(one[path], other[path]))
    ]


def _flat_fields(row: NodeRow) -> dict[str, Any]:
    node = row_to_api_conversion.build_api_node_from_row(row)
    attributes = {f"attributes.{key}": value for key, value in node.attributes.items()}
    extras = {name: value for name in _EXTRAS_WITHOUT_AUTHOR if (value := getattr(node, name)) is not msgspec.UNSET}
    return {"type": node.type, "content": node.content, **attributes, **extras}


def _change_entry(change: ChangeSet) -> CommitChangeEntry:
    listed = change.size <= MAX_LISTED_CHANGE_ROWS
    return CommitChangeEntry(
        sequence=change.sequence,
        time=format_rfc3339_timestamp(change.time),
        rows=change.size,
        nodes_created=[row_to_api_conversion.build_api_node_from_row(row) for row in change.nodes_created]
        if listed
        else [],
        nodes_updated=[row_to_api_conversion.build_api_node_from_row(row) for row in change.nodes_updated]
        if listed
        else [],
        nodes_deleted=change.nodes_deleted if listed else [],
        edges_created=[row_to_api_conversion.build_api_edge_from_row(row) for row in change.edges_created]
        if listed
        else [],
        edges_updated=[
            row_to_api_conversion.build_api_edge_from_row(row) for row in (*change.edges_updated, *change.edges_touched)
        ]
        if listed
        else [],
        edges_deleted=[EdgeKeyAnswer(*key) for key in change.edges_deleted] if listed else [],
        truncated=not listed,
    )


MAX_STATES_PAGE_BYTES = 16 << 20
HISTORY_BATCH_STATES = 20


class EntityVersionPage(msgspec.Struct, frozen=True):
    """A page of entity versions; ``next_after`` is the sequence to continue after, or None on the last page."""

    versions: list[EntityVersion]
    next_after: int | None


def list_entity_versions(graph: StoreHandle, request: EntityHistoryRequest) -> EntityVersionPage:
    """Return the states of an entity that began after a sequence, oldest first.

    For a memory that was superseded, those are its versions, in the order in which they were true.

    A page ends early once its rows exceed 16 MiB. Raises NotFound for an entity that never existed and for a forgotten
    memory, Conflict when no history is kept (except for a memory), and Unavailable.
    """
    entity_id, after = request.entity_id, request.after_sequence
    require_valid_id_or_type_length(entity_id, "entity_id")
    with graph.lease() as leased:
        with leased.reading() as rows:
            found = _memory_versions(rows, entity_id)
            above = find_parents_of_memories(rows, [row.id for row in found or ()])
        if found is not None and len(found) > 1:
            return _page_of_versions(found, above, request)
        try:
            follower = get_caught_up_history(graph.graphs.historian, leased)
        except Conflict:
            if found is None:
                raise
            return _page_of_versions(found, above, request)
        found, cut = _read_states(follower, entity_id, request.limit, after)
        above = [_find_parent(leased, follower, state) for state in found]
    if not found and after == 0:
        raise NotFound(f"store {graph.name!r} has no entity {entity_id!r}, now or in its history")
    versions = [_entity_version(*each) for each in zip(found, above, strict=True)]
    return EntityVersionPage(versions, found[-1].first if cut else None)


def _memory_versions(rows: RowsSnapshot, entity_id: str) -> list[NodeRow] | None:
    """Return the versions of a memory in order, the current one last; None if it is not an active memory.

    Raises NotFound if it was forgotten.
    """
    row = rows.node(entity_id)
    extras = NO_EXTRAS if row is None else row.extras or NO_EXTRAS
    if row is not None and extras.ended == REASON_SUPERSEDED:
        row = rows.node(extras.belongs_to)
        extras = NO_EXTRAS if row is None else row.extras or NO_EXTRAS
    if row is not None and extras.ended == REASON_FORGOTTEN:
        raise NotFound(f"memory {row.id!r} was forgotten; restore it with `forget` and `undo`")
    if row is None or not row.is_memory or extras.ended:
        return None
    found = rows.nodes([edge.source for edge in incoming_edges_of_type(rows, row.id, VERSION_OF_RELATION)])
    former = [each for each in found.values() if (each.extras or NO_EXTRAS).ended == REASON_SUPERSEDED]
    return [*sort_versions_by_validity_start(former), row]


def _page_of_versions(
    versions: Sequence[NodeRow], above: Mapping[str, str], request: EntityHistoryRequest
) -> EntityVersionPage:
    head = versions[-1].id
    entries = [_version_of_memory(row, head, above.get(row.id)) for row in versions]
    first = next((at + 1 for at, each in enumerate(entries) if each.sequence == request.after_sequence), 0)
    sizes = accumulate(len(row.content) + len(row.attributes) for row in versions[first:])
    count = sum(1 for size, _ in zip(sizes, range(request.limit), strict=False) if size < MAX_STATES_PAGE_BYTES)
    last = min(first + max(count, 1), len(entries))
    counts = Counter(each.sequence for each in entries)
    while last < len(entries) and counts[entries[last - 1].sequence] > 1:
        last += 1  # a page must not end between versions of one commit: the next page begins after its last sequence
    return EntityVersionPage(entries[first:last], entries[last - 1].sequence if last < len(entries) else None)


def _version_of_memory(row: NodeRow, head: str, parent: str | None) -> EntityVersion:
    """Return a version with its own validity.

    An unknown start is replaced by the creation time, if that precedes the end.
    """
    extras = row.extras or NO_EXTRAS
    since = row.created_at if extras.valid_from is None else extras.valid_from
    is_unknown = extras.valid_from is None and extras.valid_to is not None and since >= extras.valid_to
    is_head = row.id == head
    attributes = row_to_api_conversion.build_api_node_from_row(row).attributes
    return EntityVersion(
        id=f"{row.id}@{row.sequence}" if is_head else row.id,
        entity_id=head,
        content=row.content,
        layer=_layer(row, attributes),
        parent_id=attributes.get("parent_id") if parent is None else parent,
        valid_from=None if is_unknown else format_rfc3339_timestamp(since),
        valid_to=None if extras.valid_to is None else format_rfc3339_timestamp(extras.valid_to),
        version=row.version,
        type=row.type,
        attributes=attributes,
        sequence=row.sequence if is_head else parse_version_id_sequence(row.id, row.sequence),
    )


def _read_states(
    follower: HistoryProjection, entity_id: str, limit: int, after: int
) -> tuple[list[RowStateInterval[NodeRow]], bool]:
    """Return the next states, read in small batches because one may be large, and whether more may follow."""
    found: list[RowStateInterval[NodeRow]] = []
    size = 0
    while len(found) < limit and size < MAX_STATES_PAGE_BYTES:
        start, most = found[-1].first if found else after, min(limit - len(found), HISTORY_BATCH_STATES)
        states = follower.look(lambda history, at=start, some=most: history.node_states_after(entity_id, at, some))
        found += states
        if len(states) < most:
            return found, False
        size += sum(len(state.row.content) + len(state.row.attributes) for state in states)
    return found, True


def _find_parent(store: OpenStore, follower: HistoryProjection, state: RowStateInterval[NodeRow]) -> str | None:
    """Return the parent of a memory when one of its states ended; the current parent for the current state."""
    if not state.row.is_memory:
        return None
    at = store.state.sequence if state.last is None else state.last - 1
    return AsOfGraph(make_history_opener_for_lease(store, follower), at).parents((state.row.id,)).get(state.row.id)


def _entity_version(state: RowStateInterval[NodeRow], parent: str | None) -> EntityVersion:
    row, extras = state.row, state.row.extras
    attributes = row_to_api_conversion.build_api_node_from_row(row).attributes
    since = state.started if extras is None or extras.valid_from is None else extras.valid_from
    until = state.ended if extras is None or extras.valid_to is None else extras.valid_to
    return EntityVersion(
        id=f"{row.id}@{state.first}",
        entity_id=row.id,
        content=row.content,
        layer=_layer(row, attributes),
        parent_id=attributes.get("parent_id") if parent is None else parent,
        valid_from=format_rfc3339_timestamp(since),
        valid_to=None if until is None else format_rfc3339_timestamp(until),
        version=row.version,
        type=row.type,
        attributes=attributes,
        sequence=state.first,
    )


def _layer(row: NodeRow, attributes: Mapping[str, Any]) -> Any:
    """Return the layer of a memory, or else the attribute of that name, which other nodes may have."""
    layer = (row.extras or NO_EXTRAS).layer
    return attributes.get("layer") if layer is None else layer
