"""Former versions of memories, ordered by the time from which each is true.

A version is a separate node, `ID@SEQUENCE`, with its own validity, entities and parent. The head keeps the id and all
relations. Of the facts that cover a moment, the one that began last is true then, as `_plan_fact_insertion` says. So
facts may be stored in any order with the same result. `former_from` of an interrupted version that is true again is the
start of what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kgserve.errors import Conflict
from kgserve.graph.former_versions import (
    LATEST,
    ValiditySpan,
    check_version_validity_overlap,
    known_statement_start,
    sort_versions_by_validity_start,
    statement_start,
    subtract_validity_spans,
    validity_end,
    validity_span,
    validity_start,
)
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.platform.text.text_equality import hash_normalized_text
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.merge_redirects import is_node_never_valid
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES, NO_EXTRAS, NodeExtrasUpsert, TimestampPut
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import REASON_SUPERSEDED, VERSION_OF_RELATION
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, build_node_restore_upsert

_COPIED_RELATIONS = frozenset({IS_ABOUT_RELATION, CHILD_OF_RELATION})


class TimedFact(NamedTuple):
    """A statement that is true from `start` to `end`, if known; `put` holds the changed fields.

    `is_one_of_many`: other items of the same commit may also change the head.
    """

    put: NodeUpsert
    start: int
    end: int | None
    is_one_of_many: bool = False


class FactInsertionResult(NamedTuple):
    """Result of inserting a fact among the versions of a memory: `id` is the head or a former version.

    `is_new` is false if all of it was known; `kept` is the version that preserves the head's previous state, if any.
    `others` are further versions, if others that began later interrupt it.
    """

    id: str
    reason: str
    is_new: bool = True
    kept: str = ""
    others: tuple[str, ...] = ()


def list_superseded_memory_versions(draft: MemoryWriteBatchDraft, head: str) -> list[NodeRow]:
    """Return the former versions of a head, oldest first."""
    found = map(draft.node, draft.sources(head, VERSION_OF_RELATION))
    versions = [row for row in found if row is not None and (row.extras or NO_EXTRAS).ended == REASON_SUPERSEDED]
    return sort_versions_by_validity_start(versions)


def find_version_true_now(draft: MemoryWriteBatchDraft, head: NodeRow) -> NodeRow:
    """Return the version of a memory that is true now; the head if none is."""
    versions = [head] if head.is_valid_at(draft.ahead.now) else list_superseded_memory_versions(draft, head.id)
    return next((row for row in versions if row.is_valid_at(draft.ahead.now)), head)


def check_memory_validity_overlap(draft: MemoryWriteBatchDraft, head: NodeRow) -> None:
    """Raise Conflict when the validity of a memory overlaps that of a former version."""
    check_version_validity_overlap(head, list_superseded_memory_versions(draft, head.id))


class _FactInsertionPlan(NamedTuple):
    """Result of comparing a fact with the versions of a memory.

    `pieces` are the spans in which the fact is true. `left` are the spans that remain of each version that began
    before it or with it. `replaced` are the versions that began with it.
    """

    pieces: list[ValiditySpan]
    left: dict[str, list[ValiditySpan]]
    replaced: list[NodeRow]
    is_head: bool

    def is_changed(self, row: NodeRow) -> bool:
        """Return whether the fact changes the validity of a version, or replaces it."""
        return self.left.get(row.id, [span := validity_span(row)]) != [span] or row in self.replaced


def _plan_fact_insertion(head: NodeRow, former: Sequence[NodeRow], fact: TimedFact, now: int) -> _FactInsertionPlan:
    """Return where a fact is true: at each moment, the version that began last counts.

    A fact that has ended interrupts the version before it, which is true again after that. A fact that has not ended
    ends the version before it, also if it will end itself.
    """
    versions, end = [*former, head], LATEST if fact.end is None else fact.end
    later = [row for row in versions if statement_start(row) > fact.start]
    limit = min((span.start for span in map(validity_span, later) if span.end > now), default=LATEST)
    pieces = subtract_validity_spans(ValiditySpan(fact.start, min(end, limit)), map(validity_span, later))
    covered = ValiditySpan(fact.start, end if end <= now else LATEST)
    replaced = [row for row in versions if statement_start(row) == fact.start]
    left = {row.id: _span_outside(row, covered) for row in versions if statement_start(row) < fact.start}
    left |= {row.id: [] for row in replaced}
    head_left = left.get(head.id, [validity_span(head)])
    return _FactInsertionPlan(pieces, left, replaced, not head_left or pieces[-1].start > head_left[-1].start)


def _span_outside(row: NodeRow, covered: ValiditySpan) -> list[ValiditySpan]:
    """Return the parts of a version's validity outside a span; an unknown start is assumed to be after it."""
    parts = subtract_validity_spans(validity_span(row), (covered,))
    return parts[1:] if len(parts) > 1 and validity_start(row) is None else parts


def insert_fact_as_memory_version(draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact) -> FactInsertionResult:
    """Insert a fact among the versions of a memory. Raises Conflict when the id is too long for a version id."""
    now, is_head_text = draft.ahead.now, _is_text_of(head, fact)
    former = [row for row in list_superseded_memory_versions(draft, head.id) if not is_node_never_valid(row.extras)]
    is_present = fact.start <= now and (fact.end is None or fact.end > now)
    if is_head_text and is_present and validity_start(head) is None and head.is_valid_at(now):
        return _set_start(draft, head, fact)
    plan = _plan_fact_insertion(head, former, fact, now)
    is_known = bool(plan.replaced) and all(_is_text_of(row, fact) for row in plan.replaced)
    if is_known and (fact.end is None or plan.pieces == sorted(map(validity_span, plan.replaced))):
        row = plan.replaced[-1]
        _put_fact(draft, row.id, fact.put, valid_from=msgspec.UNSET, valid_to=msgspec.UNSET)
        return FactInsertionResult(row.id, format_known_reason(row), is_new=False)
    kept = _end_other_versions(draft, head, former, fact, plan)
    ids = _write_pieces(draft, head, fact, plan)
    reason = _format_insertion_reason(head, fact, plan, kept, now, is_known=is_known)
    placed = head.id if plan.is_head else ids[0]
    return FactInsertionResult(placed, reason, kept=kept, others=tuple(each for each in ids if each != placed))


def _is_text_of(row: NodeRow, fact: TimedFact) -> bool:
    return hash_normalized_text(row.content) == hash_normalized_text(fact.put.content or "")


def format_known_reason(row: NodeRow) -> str:
    """Return the reason for storing nothing, with the end of the known statement."""
    end = validity_end(row)
    return "is known already" if end is None else f"is known already, until {format_rfc3339_timestamp(end)}"


def _format_insertion_reason(
    head: NodeRow, fact: TimedFact, plan: _FactInsertionPlan, kept: str, now: int, *, is_known: bool
) -> str:
    last, head_left = plan.pieces[-1], plan.left.get(head.id, [validity_span(head)])
    if is_known:
        return f"is known already; its end is now recorded: {format_rfc3339_timestamp(fact.end or last.end)}"
    if plan.replaced or not head_left:
        return f"replaces the statement that is true from {format_rfc3339_timestamp(fact.start)} on"
    if plan.is_head:
        until = format_rfc3339_timestamp(head_left[-1].end)
        return f"supersedes {kept!r}, which was true until {until}"
    until = f"{'was' if last.end <= now else 'is'} true until {format_rfc3339_timestamp(last.end)}"
    if plan.is_changed(head):
        return f"{until}, before what {head.id!r} says now"
    return f"{until}: a former version of {head.id!r}, which does not change"


def _set_start(draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact) -> FactInsertionResult:
    end = validity_end(head) if fact.end is None else fact.end
    after = _put_fact(draft, head.id, fact.put, valid_from=fact.start, valid_to=end)
    check_memory_validity_overlap(draft, after)
    return FactInsertionResult(
        head.id, f"is known already; its start is now recorded: {format_rfc3339_timestamp(fact.start)}"
    )


def set_known_fact_end(draft: MemoryWriteBatchDraft, head: NodeRow, put: NodeUpsert, end: int) -> FactInsertionResult:
    """Record the end of what a memory says. Raises Conflict if it would overlap a former version."""
    after = _put_fact(draft, head.id, put, valid_from=msgspec.UNSET, valid_to=end)
    check_memory_validity_overlap(draft, after)
    return FactInsertionResult(head.id, f"is known already; its end is now recorded: {format_rfc3339_timestamp(end)}")


def _end_other_versions(
    draft: MemoryWriteBatchDraft,
    head: NodeRow,
    former: Sequence[NodeRow],
    fact: TimedFact,
    plan: _FactInsertionPlan,
) -> str:
    """Set the spans that remain of the versions before a fact; return the version that keeps the head's state."""
    for row in former:
        spans = plan.left.get(row.id, [validity_span(row)])
        if spans and plan.is_changed(row):
            _set_span(draft, row, spans[0])
            for span in spans[1:]:
                _copy_version(draft, row, head.id, span, draft.ahead.sequence, 1)
        elif not spans and row not in plan.replaced:
            # It resumed a statement, of which an earlier version remains.
            draft.drop_node(row.id)
    spans = plan.left.get(head.id, [validity_span(head)])
    if not spans and _is_unsaved(draft, head, fact):
        same = (row.id for row in former if statement_start(row) == statement_start(head) != fact.start)
        if earlier := next(same, ""):
            return earlier
        spans = [ValiditySpan(fact.start, fact.start)]
    # A head written by this commit already has the id of the commit, so its archived state needs a suffix.
    number = 1 if head.sequence == draft.ahead.sequence else 0
    archived = spans if plan.is_head else spans[:-1]
    ids = [_copy_version(draft, head, head.id, span, head.sequence, number) for span in archived]
    if not plan.is_head and plan.is_changed(head):
        _set_span(draft, head, spans[-1])
    return ids[-1] if plan.is_head and ids else ""


def _is_unsaved(draft: MemoryWriteBatchDraft, row: NodeRow, fact: TimedFact) -> bool:
    """Return whether only this commit holds what a version says, so that the history will not have it."""
    return row.sequence == draft.ahead.sequence and not _is_text_of(row, fact)


def _write_pieces(
    draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact, plan: _FactInsertionPlan
) -> tuple[str, ...]:
    """Write a fact for each of its spans; return the ids of the versions in order, the last may be the head."""
    replaced = [row for row in plan.replaced if row.id != head.id]
    places = [row.id for row in replaced if not _is_unsaved(draft, row, fact)][: len(plan.pieces) - plan.is_head]
    for row in replaced:
        if row.id not in places and row.sequence == draft.ahead.sequence:
            # Listed among the versions, because this commit reports it, but never true.
            at = validity_span(row).start
            _set_span(draft, row, ValiditySpan(at, at))
        elif row.id not in places:
            draft.drop_node(row.id)
    number = 1 if fact.is_one_of_many or plan.is_changed(head) else 0
    ids: list[str] = []
    for position, piece in enumerate(plan.pieces):
        again = {"former_from": fact.start if piece.start != fact.start else None}
        if plan.is_head and position == len(plan.pieces) - 1:
            place = head.id
        elif position < len(places):
            place = places[position]
        else:
            ids.append(_insert_version(draft, head, fact, piece, number))
            continue
        _put_fact(draft, place, fact.put, valid_from=piece.start, valid_to=piece.known_end, **again)
        ids.append(place)
    return tuple(ids)


def _set_span(draft: MemoryWriteBatchDraft, row: NodeRow, span: ValiditySpan) -> None:
    """Set the validity of a version; a later start than before does not change when its statement began."""
    old = row.extras or NO_EXTRAS
    began = old.former_from if span.start == validity_span(row).start else known_statement_start(row)
    extras = NodeExtrasUpsert(
        created_by=old.created_by, valid_from=span.known_start, valid_to=span.known_end, former_from=began
    )
    draft.put_node(NodeUpsert(0, row.id, extras=extras))


def _put_fact(draft: MemoryWriteBatchDraft, node_id: str, put: NodeUpsert, **bounds: TimestampPut) -> NodeRow:
    extras = msgspec.structs.replace(put.extras or NodeExtrasUpsert(), **bounds)
    return draft.put_node(msgspec.structs.replace(put, id=node_id, extras=extras))


def _copy_version(
    draft: MemoryWriteBatchDraft, row: NodeRow, head: str, span: ValiditySpan, sequence: int, number: int
) -> str:
    """Store the state of a version, with another validity, as a former version; return its id."""
    node_id = _unused_version_id(draft, head, sequence, number)
    old = row.extras or NO_EXTRAS
    again = build_node_restore_upsert(row)
    extras = msgspec.structs.replace(
        again.extras or NodeExtrasUpsert(),
        created_by=old.created_by,
        name="",
        valid_from=span.known_start,
        valid_to=span.known_end,
        former_from=old.former_from if span.start == validity_span(row).start else known_statement_start(row),
        ended=REASON_SUPERSEDED,
        belongs_to=head,
    )
    times = {"created_at": row.created_at, "updated_at": row.updated_at, "version": row.version}
    draft.put_node(msgspec.structs.replace(again, id=node_id, extras=extras, **times))
    _link_to_head(draft, node_id, head, row.id)
    return node_id


def _insert_version(
    draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact, span: ValiditySpan, number: int
) -> str:
    """Write a version that never was the head: the head's fields, overridden by the fact's; return its id."""
    node_id = _unused_version_id(draft, head.id, draft.ahead.sequence, number)
    again = build_node_restore_upsert(head)
    extras = fact.put.extras or NodeExtrasUpsert()
    extras = extras.over(again.extras)
    extras = msgspec.structs.replace(
        extras,
        name="",
        valid_from=span.known_start,
        valid_to=span.known_end,
        former_from=fact.start if span.start != fact.start else None,
        ended=REASON_SUPERSEDED,
        belongs_to=head.id,
    )
    draft.put_node(msgspec.structs.replace(fact.put.over(again), id=node_id, extras=extras))
    _link_to_head(draft, node_id, head.id, head.id)
    return node_id


def _link_to_head(draft: MemoryWriteBatchDraft, version: str, head: str, source: str) -> None:
    """Relate a version to its head, and to the entities and the parent of `source`."""
    draft.put_edge(EdgeUpsert(0, (version, head, VERSION_OF_RELATION)))
    for put in draft.edges_from(source):
        if put.key[2] in _COPIED_RELATIONS:
            draft.put_edge(msgspec.structs.replace(put, key=(version, *put.key[1:])))


def _unused_version_id(draft: MemoryWriteBatchDraft, head: str, sequence: int, first: int = 0) -> str:
    """Return an unused id for a version. Raises Conflict when it would be too long."""
    number = first
    while True:
        node_id = f"{head}@{sequence}.{number}" if number else f"{head}@{sequence}"
        if len(node_id.encode()) > MAX_ID_BYTES:
            raise Conflict(
                f"the id {head[:80]!r}… is too long to have versions: at most {MAX_ID_BYTES} bytes with theirs"
            )
        if draft.node(node_id) is None:
            return node_id
        number += 1
