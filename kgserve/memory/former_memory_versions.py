"""Former versions of memories, ordered by the time from which each is true.

A version is a separate node, `ID@SEQUENCE`, with its own validity, entities and parent. The head keeps the id and all
relations. A version ends where the next one begins. The order follows valid time, not the order of writes, so facts may
be stored in any order with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kgserve.errors import Conflict
from kgserve.graph.former_versions import sort_versions_by_validity_start, validity_end, validity_start
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.platform.text.text_equality import hash_normalized_text
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
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
    """

    id: str
    reason: str
    is_new: bool = True
    kept: str = ""


def list_superseded_memory_versions(draft: MemoryWriteBatchDraft, head: str) -> list[NodeRow]:
    """Return the former versions of a head, oldest first."""
    found = map(draft.node, draft.sources(head, VERSION_OF_RELATION))
    versions = [row for row in found if row is not None and (row.extras or NO_EXTRAS).ended == REASON_SUPERSEDED]
    return sort_versions_by_validity_start(versions)


def check_memory_validity_overlap(draft: MemoryWriteBatchDraft, head: NodeRow) -> None:
    """Raise Conflict when the validity of a memory overlaps that of a former version."""
    for version in list_superseded_memory_versions(draft, head.id):
        start = max((at for row in (head, version) if (at := validity_start(row)) is not None), default=None)
        end = min((at for row in (head, version) if (at := validity_end(row)) is not None), default=None)
        if start is None or end is None or start < end:
            raise Conflict(
                f"{head.id!r} would be valid {_span(head)}; former version {version.id!r} is valid {_span(version)}; "
                "choose other bounds, or retain the earlier state with valid_from"
            )


def _span(row: NodeRow) -> str:
    bounds = (("from", validity_start(row)), ("until", validity_end(row)))
    return " ".join(f"{word} {format_rfc3339_timestamp(at)}" for word, at in bounds if at is not None) or "at all times"


def insert_fact_as_memory_version(draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact) -> FactInsertionResult:
    """Insert a fact among the versions of a memory. Raises Conflict when the id is too long for a version id."""
    former = list_superseded_memory_versions(draft, head.id)
    same = next((row for row in (head, *former) if validity_start(row) == fact.start), None)
    if same is not None:
        return _replace_statement(draft, same, fact, _next_start((head, *former), fact.start))
    start = validity_start(head)
    if start is None and hash_normalized_text(head.content) == hash_normalized_text(fact.put.content or ""):
        return _set_start(draft, head, fact)
    if start is None and fact.end is not None and fact.end <= draft.ahead.now:
        return _insert_before_head(draft, head, former, fact)
    if start is None or fact.start > start:
        return _supersede_head(draft, head, fact)
    return _insert_between(draft, head, former, fact)


def _replace_statement(
    draft: MemoryWriteBatchDraft, row: NodeRow, fact: TimedFact, following: int | None
) -> FactInsertionResult:
    """Replace the version that begins at the same time; a version of zero length would never be valid."""
    same_text, known_end = (
        hash_normalized_text(row.content) == hash_normalized_text(fact.put.content or ""),
        validity_end(row),
    )
    end = known_end if fact.end is None else fact.end if following is None else min(fact.end, following)
    _put_fact(draft, row.id, fact.put, valid_from=fact.start, valid_to=end)
    if same_text:
        return FactInsertionResult(row.id, "is known already", is_new=end != known_end)
    return FactInsertionResult(
        row.id, f"replaces the statement that is true from {format_rfc3339_timestamp(fact.start)} on"
    )


def _set_start(draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact) -> FactInsertionResult:
    _put_fact(draft, head.id, fact.put, valid_from=fact.start, valid_to=fact.end)
    return FactInsertionResult(
        head.id, f"is known already; its start is now recorded: {format_rfc3339_timestamp(fact.start)}"
    )


def _supersede_head(draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact) -> FactInsertionResult:
    """Archive the head's state as a former version and write the fact to the head."""
    known_end = validity_end(head)
    end = fact.start if known_end is None else min(known_end, fact.start)
    kept = _archive(draft, head, end)
    _put_fact(draft, head.id, fact.put, valid_from=fact.start, valid_to=fact.end)
    return FactInsertionResult(
        head.id, f"supersedes {kept!r}, which was true until {format_rfc3339_timestamp(end)}", kept=kept
    )


def _insert_before_head(
    draft: MemoryWriteBatchDraft, head: NodeRow, former: Sequence[NodeRow], fact: TimedFact
) -> FactInsertionResult:
    """Insert a past fact before a head without a known start; the head then begins at the fact's end."""
    _put_fact(draft, head.id, NodeUpsert(0, head.id), valid_from=fact.end, valid_to=validity_end(head))
    _end_version_at(draft, former, fact.start)
    node_id = _insert_version(draft, head, fact, fact.end, is_beside_head=True)
    return FactInsertionResult(
        node_id, f"was true until {format_rfc3339_timestamp(fact.end or 0)}, before what {head.id!r} says now"
    )


def _insert_between(
    draft: MemoryWriteBatchDraft, head: NodeRow, former: Sequence[NodeRow], fact: TimedFact
) -> FactInsertionResult:
    """Insert a fact that begins before the head as a former version that ends where the next one begins."""
    following = _next_start((head, *former), fact.start)
    oldest = former[0] if former and validity_start(former[0]) is None else None
    is_first = all((start := validity_start(row)) is None or start > fact.start for row in former)
    oldest_end = None if oldest is None else validity_end(oldest)
    if oldest is not None and is_first and fact.end is not None and (oldest_end is None or fact.end < oldest_end):
        # The start of the oldest version is unknown: it begins at the end of this one at the earliest.
        _set_bounds(draft, oldest, fact.end, oldest_end)
    else:
        _end_version_at(draft, former, fact.start)
    end = min(each for each in (fact.end, following) if each is not None)
    node_id = _insert_version(draft, head, fact, end)
    return FactInsertionResult(
        node_id,
        f"was true until {format_rfc3339_timestamp(end)}: a former version of {head.id!r}, which does not change",
    )


def _next_start(versions: Sequence[NodeRow], at: int) -> int | None:
    """Return when the first version after a moment begins."""
    return min((start for row in versions if (start := validity_start(row)) is not None and start > at), default=None)


def _end_version_at(draft: MemoryWriteBatchDraft, former: Sequence[NodeRow], at: int) -> None:
    """End the version that is valid at a moment there."""
    before = [row for row in former if (start := validity_start(row)) is None or start < at]
    if before and ((end := validity_end(before[-1])) is None or end > at):
        _set_bounds(draft, before[-1], validity_start(before[-1]), at)


def _set_bounds(draft: MemoryWriteBatchDraft, row: NodeRow, start: int | None, end: int | None) -> None:
    author = (row.extras or NO_EXTRAS).created_by
    draft.put_node(NodeUpsert(0, row.id, extras=NodeExtrasUpsert(created_by=author, valid_from=start, valid_to=end)))


def _put_fact(
    draft: MemoryWriteBatchDraft, node_id: str, put: NodeUpsert, *, valid_from: TimestampPut, valid_to: TimestampPut
) -> None:
    extras = msgspec.structs.replace(put.extras or NodeExtrasUpsert(), valid_from=valid_from, valid_to=valid_to)
    draft.put_node(msgspec.structs.replace(put, id=node_id, extras=extras))


def _archive(draft: MemoryWriteBatchDraft, head: NodeRow, end: int) -> str:
    """Store the head's current state as a former version; return its id."""
    # A head written by this commit already has the id of the commit, so its archived state needs a suffix.
    node_id = _unused_version_id(draft, head.id, head.sequence, 1 if head.sequence == draft.ahead.sequence else 0)
    old = head.extras or NO_EXTRAS
    again = build_node_restore_upsert(head)
    extras = msgspec.structs.replace(
        again.extras or NodeExtrasUpsert(),
        created_by=old.created_by,
        name="",
        valid_to=end,
        ended=REASON_SUPERSEDED,
        belongs_to=head.id,
    )
    times = {"created_at": head.created_at, "updated_at": head.updated_at, "version": head.version}
    draft.put_node(msgspec.structs.replace(again, id=node_id, extras=extras, **times))
    _link_to_head(draft, node_id, head.id)
    return node_id


def _insert_version(
    draft: MemoryWriteBatchDraft, head: NodeRow, fact: TimedFact, end: int | None, *, is_beside_head: bool = False
) -> str:
    """Write a version that never was the head: the head's fields, overridden by the fact's; return its id."""
    node_id = _unused_version_id(
        draft, head.id, draft.ahead.sequence, 1 if is_beside_head or fact.is_one_of_many else 0
    )
    again = build_node_restore_upsert(head)
    extras = fact.put.extras or NodeExtrasUpsert()
    extras = extras.over(again.extras)
    extras = msgspec.structs.replace(
        extras, name="", valid_from=fact.start, valid_to=end, ended=REASON_SUPERSEDED, belongs_to=head.id
    )
    draft.put_node(msgspec.structs.replace(fact.put.over(again), id=node_id, extras=extras))
    _link_to_head(draft, node_id, head.id)
    return node_id


def _link_to_head(draft: MemoryWriteBatchDraft, version: str, head: str) -> None:
    draft.put_edge(EdgeUpsert(0, (version, head, VERSION_OF_RELATION)))
    for put in draft.edges_from(head):
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
