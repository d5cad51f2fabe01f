"""What clients of a cluster were told, and what of it cannot have been: pure functions of a history and its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

End = Mapping[int, int]
"""What a store holds in the end: each value with its commit."""


class Operation(msgspec.Struct, frozen=True):
    """One call, and what its caller was told. Each value is written to its store once; times are in seconds.

    A write puts a node of its own, and its value into one node that all writes of the store have in common; a read is
    of that one. ``sequence`` is the commit that was told. Of an ``unknown`` write nobody knows whether it was done, or
    will be. A ``repeated`` one may have been done twice, by a client that asks again by itself.
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
    """One thing that must not be."""

    kind: Literal["lost", "doubled", "reordered", "stale", "back", "untold", "differing"]
    store: str
    what: str


def violations(history: Iterable[Operation], ends: Mapping[str, Mapping[str, End]]) -> list[Violation]:
    """What contradicts itself; ``ends`` are the stores as they were read in the end, by node and store."""
    stores: dict[str, list[Operation]] = defaultdict(list)
    for each in history:
        stores[each.store].append(each)
    return [fault for store, told in sorted(stores.items()) for fault in _of_store(store, told, ends)]


def _of_store(store: str, told: list[Operation], ends: Mapping[str, Mapping[str, End]]) -> Iterator[Violation]:
    told = sorted(told, key=lambda each: each.began)
    seen = {node: stores.get(store, {}) for node, stores in ends.items()}
    first = next(iter(seen.values()), {})
    for node, end in seen.items():
        if end != first:
            odd = sorted(end.items() ^ first.items())[:3]
            yield Violation("differing", store, f"node {node} ends otherwise than {next(iter(seen))}: {odd}")
    writes = [each for each in told if each.kind == "write"]
    for each in writes:
        yield from _kept(each, first)
    yield from _apart(store, writes, first)
    yield from _in_order(writes, first)
    for each in (each for each in told if each.kind == "read" and each.outcome == "ok"):
        yield from _read(each, first)
    yield from _fresh(told)


def _kept(write: Operation, end: End) -> Iterator[Violation]:
    """A write against the end: there if that was told, under the commit that was told, and not there if refused."""
    found = end.get(write.value)
    if write.outcome == "ok" and found is None:
        yield Violation("lost", write.store, f"{write.value} was acknowledged as {write.sequence}, and is not there")
    elif write.outcome == "ok" and found != write.sequence and not write.repeated:
        yield Violation("doubled", write.store, f"{write.value} was acknowledged as {write.sequence}, and is {found}")
    elif write.outcome == "fail" and found is not None:
        yield Violation("untold", write.store, f"{write.value} was refused, and is there as {found}")


def _apart(store: str, writes: list[Operation], end: End) -> Iterator[Violation]:
    """No commit is two writes'."""
    for what, pairs in {
        "told": [(each.sequence, each.value) for each in writes if each.outcome == "ok"],
        "kept": [(sequence, value) for value, sequence in end.items()],
    }.items():
        first: dict[int, int] = {}
        for sequence, value in pairs:
            if first.setdefault(sequence, value) != value:
                yield Violation("doubled", store, f"{sequence} was {what} for {first[sequence]} and for {value}")


def _in_order(writes: list[Operation], end: End) -> Iterator[Violation]:
    """A write that began after another was acknowledged comes behind it, as told and as kept."""
    for each, known in _after(writes, lambda other: other.outcome == "ok"):
        came = {each.sequence} if each.outcome == "ok" else set[int]()
        came |= {end[each.value]} if each.value in end else set()
        if known is not None and any(sequence < known.sequence for sequence in came):
            told = f"{each.value} is {min(came)}, and began after {known.value} was acknowledged as {known.sequence}"
            yield Violation("reordered", each.store, told)


def _fresh(told: list[Operation]) -> Iterator[Violation]:
    """A read sees what was acknowledged before it began, and no less than what was read before."""
    reads = [each for each in told if each.kind == "read" and each.outcome == "ok"]
    acknowledged = [each for each in told if each.kind == "write" and each.outcome == "ok"]
    kinds: dict[Literal["stale", "back"], list[Operation]] = {"stale": acknowledged, "back": reads}
    for kind, before in kinds.items():
        for each, known in _after(reads, lambda _: True, before):
            if known is not None and each.sequence < known.sequence:
                yield Violation(kind, each.store, f"{each.sequence} was read, and {known.sequence} known before")


def _read(read: Operation, end: End) -> Iterator[Violation]:
    if read.value not in end:
        yield Violation("lost", read.store, f"{read.value} was read as {read.sequence}, and is not there")


def _after(
    each_of: list[Operation], counts: Callable[[Operation], bool], among: list[Operation] | None = None
) -> Iterator[tuple[Operation, Operation | None]]:
    """Each operation with the highest commit that was told before it began; they are in the order of beginning."""
    waiting = sorted(filter(counts, each_of if among is None else among), key=lambda each: each.ended)
    highest: Operation | None = None
    at = 0
    for each in each_of:
        while at < len(waiting) and waiting[at].ended < each.began:
            if highest is None or waiting[at].sequence > highest.sequence:
                highest = waiting[at]
            at += 1
        yield each, highest


def gap(history: Iterable[Operation], since: float) -> float | None:
    """Seconds until the first write that was acknowledged of those that began after a moment, if one was."""
    ended = [each.ended for each in history if each.kind == "write" and each.outcome == "ok" and each.began >= since]
    return min(ended) - since if ended else None
