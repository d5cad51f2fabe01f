"""Former versions of memories: what was true before is kept beside what is true now, so that reads of then find it.

A version is a node of its own, `ID@SEQUENCE`, with its own validity, what it was about and whose child it was; the head
keeps the id and all relations. A version ends where the next one begins. Which comes first is a matter of when each
began to be true, not of when it was told: so facts may be told in any order and come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kgserve.errors import Conflict
from kgserve.graph.former_versions import end_of, in_order, start_of
from kgserve.memory.deduplication import MemoryDraft
from kgserve.platform.text.similarity import text_hash
from kgserve.platform.times import format_time
from kgserve.storage.model.batch import EdgePut, NodePut, put_again
from kgserve.storage.model.fields import MAX_ID_BYTES, NO_EXTRAS, Moment, NodeExtrasPut
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.soft_delete import SUPERSEDED, VERSION_OF

_COPIED_RELATIONS = frozenset({IS_ABOUT, CHILD_OF})


class Fact(NamedTuple):
    """What is true from a moment on, until ``end`` if that is known. ``put`` is what is new about the memory.

    ``is_one_of_many``: others are told in the same commit, and may change the head as well.
    """

    put: NodePut
    start: int
    end: int | None
    is_one_of_many: bool = False


class FactPosition(NamedTuple):
    """Where a fact has come to: ``id`` is the head's, or that of a former version.

    ``is_new`` is false where all of it was known; ``kept`` is the version that the head's state has become, if it has.
    """

    id: str
    reason: str
    is_new: bool = True
    kept: str = ""


def former_versions(draft: MemoryDraft, head: str) -> list[NodeRow]:
    """What is kept of the times before, in their order."""
    found = map(draft.node, draft.sources(head, VERSION_OF))
    there = [row for row in found if row is not None and (row.extras or NO_EXTRAS).ended == SUPERSEDED]
    return in_order(there)


def check_bounds(draft: MemoryDraft, head: NodeRow) -> None:
    """Raise Conflict when a memory would be true while a former version of it was."""
    for version in former_versions(draft, head.id):
        start = max((at for row in (head, version) if (at := start_of(row)) is not None), default=None)
        end = min((at for row in (head, version) if (at := end_of(row)) is not None), default=None)
        if start is None or end is None or start < end:
            raise Conflict(
                f"{head.id!r} would be true {_span(head)}, and its former version {version.id!r} was {_span(version)}; "
                "choose other bounds, or retain what was true then, with valid_from"
            )


def _span(row: NodeRow) -> str:
    bounds = (("from", start_of(row)), ("until", end_of(row)))
    return " ".join(f"{word} {format_time(at)}" for word, at in bounds if at is not None) or "at all times"


def place(draft: MemoryDraft, head: NodeRow, fact: Fact) -> FactPosition:
    """Put a fact among the versions of a memory. Raises Conflict for an id with no room for that of a version."""
    former = former_versions(draft, head.id)
    same = next((row for row in (head, *former) if start_of(row) == fact.start), None)
    if same is not None:
        return _said_again(draft, same, fact, _following((head, *former), fact.start))
    start = start_of(head)
    if start is None and text_hash(head.content) == text_hash(fact.put.content or ""):
        return _begun(draft, head, fact)
    if start is None and fact.end is not None and fact.end <= draft.ahead.now:
        return _before(draft, head, former, fact)
    if start is None or fact.start > start:
        return _succeeded(draft, head, fact)
    return _between(draft, head, former, fact)


def _said_again(draft: MemoryDraft, row: NodeRow, fact: Fact, following: int | None) -> FactPosition:
    """Of two that begin at once the later told one counts; a version of no length would be true at no moment."""
    same_text, known_end = text_hash(row.content) == text_hash(fact.put.content or ""), end_of(row)
    end = known_end if fact.end is None else fact.end if following is None else min(fact.end, following)
    _put(draft, row.id, fact.put, valid_from=fact.start, valid_to=end)
    if same_text:
        return FactPosition(row.id, "is known already", is_new=end != known_end)
    return FactPosition(row.id, f"says otherwise what is true from {format_time(fact.start)} on")


def _begun(draft: MemoryDraft, head: NodeRow, fact: Fact) -> FactPosition:
    _put(draft, head.id, fact.put, valid_from=fact.start, valid_to=fact.end)
    return FactPosition(head.id, f"was known already, and now since when: {format_time(fact.start)}")


def _succeeded(draft: MemoryDraft, head: NodeRow, fact: Fact) -> FactPosition:
    """A fact that begins after the head: the head's state becomes a former version, and the head says the fact."""
    known_end = end_of(head)
    end = fact.start if known_end is None else min(known_end, fact.start)
    kept = _archive(draft, head, end)
    _put(draft, head.id, fact.put, valid_from=fact.start, valid_to=fact.end)
    return FactPosition(head.id, f"supersedes {kept!r}, which was true until {format_time(end)}", kept=kept)


def _before(draft: MemoryDraft, head: NodeRow, former: Sequence[NodeRow], fact: Fact) -> FactPosition:
    """A fact that is over, beside a head of which nobody knows since when it is true: since then at the earliest."""
    _put(draft, head.id, NodePut(0, head.id), valid_from=fact.end, valid_to=end_of(head))
    _cut(draft, former, fact.start)
    node_id = _insert(draft, head, fact, fact.end, is_beside_head=True)
    return FactPosition(node_id, f"was true until {format_time(fact.end or 0)}, before what {head.id!r} says now")


def _between(draft: MemoryDraft, head: NodeRow, former: Sequence[NodeRow], fact: Fact) -> FactPosition:
    """A fact that begins before the head: a former version, from its start to that of the next."""
    following = _following((head, *former), fact.start)
    oldest = former[0] if former and start_of(former[0]) is None else None
    is_first = all((start := start_of(row)) is None or start > fact.start for row in former)
    oldest_end = None if oldest is None else end_of(oldest)
    if oldest is not None and is_first and fact.end is not None and (oldest_end is None or fact.end < oldest_end):
        # Nobody knows since when the oldest was true: since the end of this one at the earliest.
        _bound(draft, oldest, fact.end, oldest_end)
    else:
        _cut(draft, former, fact.start)
    end = min(each for each in (fact.end, following) if each is not None)
    node_id = _insert(draft, head, fact, end)
    return FactPosition(
        node_id, f"was true until {format_time(end)}: a former version of {head.id!r}, which stays as it is"
    )


def _following(versions: Sequence[NodeRow], at: int) -> int | None:
    """When the first version after a moment begins."""
    return min((start for row in versions if (start := start_of(row)) is not None and start > at), default=None)


def _cut(draft: MemoryDraft, former: Sequence[NodeRow], at: int) -> None:
    """End the version that was true at a moment there."""
    before = [row for row in former if (start := start_of(row)) is None or start < at]
    if before and ((end := end_of(before[-1])) is None or end > at):
        _bound(draft, before[-1], start_of(before[-1]), at)


def _bound(draft: MemoryDraft, row: NodeRow, start: int | None, end: int | None) -> None:
    author = (row.extras or NO_EXTRAS).created_by
    draft.put_node(NodePut(0, row.id, extras=NodeExtrasPut(created_by=author, valid_from=start, valid_to=end)))


def _put(draft: MemoryDraft, node_id: str, put: NodePut, *, valid_from: Moment, valid_to: Moment) -> None:
    extras = msgspec.structs.replace(put.extras or NodeExtrasPut(), valid_from=valid_from, valid_to=valid_to)
    draft.put_node(msgspec.structs.replace(put, id=node_id, extras=extras))


def _archive(draft: MemoryDraft, head: NodeRow, end: int) -> str:
    """Keep a head's state as a version."""
    # One that this commit writes is not called as the commit alone: that is what it leaves as the head.
    node_id = _free(draft, head.id, head.sequence, 1 if head.sequence == draft.ahead.sequence else 0)
    old = head.extras or NO_EXTRAS
    again = put_again(head)
    extras = msgspec.structs.replace(
        again.extras or NodeExtrasPut(),
        created_by=old.created_by,
        name="",
        valid_to=end,
        ended=SUPERSEDED,
        belongs_to=head.id,
    )
    times = {"created_at": head.created_at, "updated_at": head.updated_at, "version": head.version}
    draft.put_node(msgspec.structs.replace(again, id=node_id, extras=extras, **times))
    _join(draft, node_id, head.id)
    return node_id


def _insert(draft: MemoryDraft, head: NodeRow, fact: Fact, end: int | None, *, is_beside_head: bool = False) -> str:
    """Write a version that never was the head: what the head says, but for what is said of it."""
    node_id = _free(draft, head.id, draft.ahead.sequence, 1 if is_beside_head or fact.is_one_of_many else 0)
    again = put_again(head)
    extras = fact.put.extras or NodeExtrasPut()
    extras = extras.over(again.extras)
    extras = msgspec.structs.replace(
        extras, name="", valid_from=fact.start, valid_to=end, ended=SUPERSEDED, belongs_to=head.id
    )
    draft.put_node(msgspec.structs.replace(fact.put.over(again), id=node_id, extras=extras))
    _join(draft, node_id, head.id)
    return node_id


def _join(draft: MemoryDraft, version: str, head: str) -> None:
    draft.put_edge(EdgePut(0, (version, head, VERSION_OF)))
    for put in draft.edges_from(head):
        if put.key[2] in _COPIED_RELATIONS:
            draft.put_edge(msgspec.structs.replace(put, key=(version, *put.key[1:])))


def _free(draft: MemoryDraft, head: str, sequence: int, first: int = 0) -> str:
    """The id of a version; another one where somebody has taken that."""
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
