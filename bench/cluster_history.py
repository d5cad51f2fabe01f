"""Consistency check of a cluster: pure functions of the clients' history and the final state of the stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

End = Mapping[int, int]
"""Final content of a store: each value with its commits."""


class Operation(msgspec.Struct, frozen=True):
    """One call and its result as the client saw it. Each value is written once; times are in seconds.

    A write puts its own node, and its value into a node that all writes to the store share; a read reads the shared
    node. ``sequence`` is the acknowledged commit. ``unknown``: the write may or may not have been executed, or may
    still be. ``repeated``: a retrying client may have executed the write twice.
    """

    store: str
    kind: Literal["write", "read"]
    value: int
    began: float
    ended: float
    outcome: Literal["ok", "fail", "unknown"] = "ok"
    sequence: int = 0
    repeated: bool = False


class Violation(msgspec.Struct, frozen=True):
    """One contradiction."""

    kind: Literal["lost", "doubled", "reordered", "stale", "non_monotonic", "rejected", "differing"]
    store: str
    what: str


def find_violations(history: Iterable[Operation], ends: Mapping[str, Mapping[str, End]]) -> list[Violation]:
    """Return the contradictions of a history; ``ends`` are the final contents of the stores as read from each node."""
    stores: dict[str, list[Operation]] = defaultdict(list)
    for each in history:
        stores[each.store].append(each)
    return [fault for store, operations in sorted(stores.items()) for fault in _check_store(store, operations, ends)]


def _check_store(store: str, operations: list[Operation], ends: Mapping[str, Mapping[str, End]]) -> Iterator[Violation]:
    operations = sorted(operations, key=lambda each: each.began)
    seen = {node: stores.get(store, {}) for node, stores in ends.items()}
    first = next(iter(seen.values()), {})
    for node, end in seen.items():
        if end != first:
            odd = sorted(end.items() ^ first.items())[:3]
            yield Violation("differing", store, f"node {node} differs from {next(iter(seen))}: {odd}")
    writes = [each for each in operations if each.kind == "write"]
    for each in writes:
        yield from _check_write(each, first)
    yield from _check_distinct_commits(store, writes, first)
    yield from _check_commit_order(writes, first)
    for each in (each for each in operations if each.kind == "read" and each.outcome == "ok"):
        yield from _check_read_kept(each, first)
    yield from _check_read_freshness(operations)


def _check_write(write: Operation, end: End) -> Iterator[Violation]:
    """Check a write against the final content: present at its acknowledged commit, absent if it was rejected."""
    found = end.get(write.value)
    if write.outcome == "ok" and found is None:
        yield Violation("lost", write.store, f"{write.value} was acknowledged as {write.sequence}, but is missing")
    elif write.outcome == "ok" and found != write.sequence and not write.repeated:
        yield Violation("doubled", write.store, f"{write.value} was acknowledged as {write.sequence}, and is {found}")
    elif write.outcome == "fail" and found is not None:
        yield Violation("rejected", write.store, f"{write.value} was rejected, but is present as {found}")


def _check_distinct_commits(store: str, writes: list[Operation], end: End) -> Iterator[Violation]:
    """Check that no commit belongs to two writes."""
    for what, pairs in {
        "acknowledged": [(each.sequence, each.value) for each in writes if each.outcome == "ok"],
        "kept": [(sequence, value) for value, sequence in end.items()],
    }.items():
        first: dict[int, int] = {}
        for sequence, value in pairs:
            if first.setdefault(sequence, value) != value:
                yield Violation("doubled", store, f"{sequence} was {what} for {first[sequence]} and for {value}")


def _check_commit_order(writes: list[Operation], end: End) -> Iterator[Violation]:
    """Check that a write that began after another's acknowledgement has a later commit."""
    for each, known in _with_last_acknowledged(writes, lambda other: other.outcome == "ok"):
        came = {each.sequence} if each.outcome == "ok" else set[int]()
        came |= {end[each.value]} if each.value in end else set()
        if known is not None and any(sequence < known.sequence for sequence in came):
            message = f"{each.value} is {min(came)}, but began after {known.value} was acknowledged as {known.sequence}"
            yield Violation("reordered", each.store, message)


def _check_read_freshness(operations: list[Operation]) -> Iterator[Violation]:
    """Check that a read returns everything acknowledged before it began, and never goes back in time."""
    reads = [each for each in operations if each.kind == "read" and each.outcome == "ok"]
    acknowledged = [each for each in operations if each.kind == "write" and each.outcome == "ok"]
    kinds: dict[Literal["stale", "non_monotonic"], list[Operation]] = {"stale": acknowledged, "non_monotonic": reads}
    for kind, before in kinds.items():
        for each, known in _with_last_acknowledged(reads, lambda _: True, before):
            if known is not None and each.sequence < known.sequence:
                yield Violation(kind, each.store, f"{each.sequence} was read, but {known.sequence} was known before")


def _check_read_kept(read: Operation, end: End) -> Iterator[Violation]:
    if read.value not in end:
        yield Violation("lost", read.store, f"{read.value} was read as {read.sequence}, but is missing")


def _with_last_acknowledged(
    each_of: list[Operation], counts: Callable[[Operation], bool], among: list[Operation] | None = None
) -> Iterator[tuple[Operation, Operation | None]]:
    """Yield each operation, ordered by start, with the highest commit acknowledged before it began."""
    waiting = sorted(filter(counts, each_of if among is None else among), key=lambda each: each.ended)
    highest: Operation | None = None
    at = 0
    for each in each_of:
        while at < len(waiting) and waiting[at].ended < each.began:
            if highest is None or waiting[at].sequence > highest.sequence:
                highest = waiting[at]
            at += 1
        yield each, highest


def first_write_gap(history: Iterable[Operation], since: float) -> float | None:
    """Return the seconds from ``since`` to the first acknowledged write that began after it; None without one."""
    ended = [each.ended for each in history if each.kind == "write" and each.outcome == "ok" and each.began >= since]
    return min(ended) - since if ended else None
