"""Linearizability checker: one key of a store as a register of versions.

A history is linearizable if each operation can be assigned a moment between its start and end such that every answer is
the register's. The checker tracks all possible states through the history in order of time, and delays each operation
until its end requires it (Lowe, Testing for linearizability, 2017). Few operations overlap, so histories of any length
are checked quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
from typing_extensions import override

Shown = tuple[int, int]
"""A value and its version, as a reader sees them."""


class Register(NamedTuple):
    """An existing key. ``heads`` are the versions in conflict with this one."""

    value: int
    version: int = 1
    heads: frozenset[int] = frozenset()


class DeletedKey(NamedTuple):
    """A deleted key; its numbering continues after its last ``version``."""

    version: int


class RegisterStep(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a register.

    ``read`` returns its content; ``lacks`` reports the absence of a value, as a search does. ``inject`` creates or
    updates. ``put`` does too, but respects the version that it is ``based_on``. ``set`` updates an existing key, and
    ``delete`` removes it.
    """

    kind: Literal["read", "lacks", "inject", "put", "set", "delete"]
    value: int = 0
    based_on: int | None = None


Answer = Shown | tuple[int, bool] | bool | None
"""Answer of a step.

For a read, the content or None. For a put, the version, and whether it became a conflicting head. For an inject,
whether it created the key. For others, whether the key existed.
"""
READ = RegisterStep(kind="read")


State = Register | DeletedKey | None


def apply_step(register: State, step: RegisterStep) -> tuple[State, Answer]:
    """Return the register after a step, and the step's answer."""
    if not isinstance(register, Register):
        return _apply_to_missing_key(register, step)
    version = register.version + 1
    match step.kind:
        case "read":
            return register, (register.value, register.version)
        case "lacks":
            return register, register.value != step.value
        case "delete":
            return DeletedKey(register.version), True
        case "put":
            heads = register.heads | {register.version}
            beside = step.based_on is not None and step.based_on not in heads
            return Register(step.value, version, heads if beside else frozenset()), (version, beside)
        case _:
            return Register(step.value, version, register.heads), step.kind == "set"


def _apply_to_missing_key(gone: DeletedKey | None, step: RegisterStep) -> tuple[State, Answer]:
    version = 1 if gone is None else gone.version + 1
    match step.kind:
        case "inject":
            return Register(step.value, version), True
        case "put":
            return Register(step.value, version), (version, False)
        case "read":
            return gone, None
        case "lacks":
            return gone, True
        case _:
            return gone, False


class Operation(msgspec.Struct, kw_only=True):
    """One step of one client, with start and end in seconds on one clock.

    ``unknown``: the answer is missing, so the step may have happened at any time until its end, or not at all.
    ``after``: positions of operations in the history that it must have seen. ``sequence``: the commit of an
    acknowledged write, or of the write that a read returned; 0 if unknown.
    """

    step: RegisterStep
    start: float
    end: float
    answer: Answer = None
    unknown: bool = False
    after: frozenset[int] = frozenset()
    sequence: int = 0
    who: str = ""

    @property
    def only_looks(self) -> bool:
        """True if the operation never changes the register."""
        return self.step.kind in ("read", "lacks") or (self.step.kind in ("set", "delete") and self.answer is False)

    @override
    def __str__(self) -> str:
        """Format the operation for a violation."""
        based_on = "" if self.step.based_on is None else f" based on version {self.step.based_on}"
        value = f" {self.step.value}" if self.step.value else ""
        answer = "?" if self.unknown else self.answer
        at = f"{1000 * self.start:.1f} to {1000 * self.end:.1f} ms"
        return f"{self.who}: {self.step.kind}{value}{based_on} → {answer}, commit {self.sequence or '?'}, {at}"


class _PossibleState(NamedTuple):
    """A possible state: the register's content, and the operations in progress that have taken effect."""

    register: State
    done: frozenset[int]


class LinearizabilityChecker:
    """Checker of one history. `violation` returns the first contradiction, or None.

    ``restarts``: a register that is created again is numbered from 1, as edges are.
    """

    def __init__(self, history: Sequence[Operation], *, restarts: bool = False) -> None:
        self._history = history
        self._restarts = restarts
        self._pending: set[int] = set()
        self._over: set[int] = set()
        self._possible = {_PossibleState(None, frozenset())}
        self.widest = 1

    def violation(self) -> str | None:
        """Return the first operation with an impossible answer, and the concurrent operations; None if none exists."""
        for _, ends, place in _events(self._history):
            if not ends:
                self._pending.add(place)
                self._possible = {self._with_reads_applied(each) for each in self._possible}
                continue
            before = {each.register for each in self._possible}
            self._possible = self._states_after_end(place)
            self.widest = max(self.widest, len(self._possible))
            if not self._possible:
                return self._describe_violation(place, before)
            self._pending.discard(place)
            self._over.add(place)
        return None

    def _states_after_end(self, place: int) -> set[_PossibleState]:
        """Return the possible states after an operation's end, in all of which it has taken effect if it had to."""
        undone = {each for each in self._possible if place not in each.done}
        found = undone.copy() if self._history[place].unknown else set[_PossibleState]()
        met = set(self._possible)
        waiting = list(met)
        while waiting:
            each = waiting.pop()
            if place in each.done:
                found.add(_PossibleState(each.register, each.done - {place}))
                continue
            for following in self._followers(each):
                if following not in met:
                    met.add(following)
                    waiting.append(following)
        return found

    def _followers(self, possible: _PossibleState) -> Iterable[_PossibleState]:
        for place in self._pending - possible.done:
            operation = self._history[place]
            if operation.only_looks or not self._can_take_effect(operation, possible.done):
                continue
            register, answer = apply_step(possible.register, operation.step)
            register = None if self._restarts and isinstance(register, DeletedKey) else register
            if operation.unknown or answer == operation.answer:
                yield self._with_reads_applied(_PossibleState(register, possible.done | {place}))

    def _with_reads_applied(self, possible: _PossibleState) -> _PossibleState:
        """Return the state with all matching read-only operations applied; delaying them would not help."""
        register, done = possible
        fitting = [
            place
            for place in self._pending - done
            if (operation := self._history[place]).only_looks
            and self._can_take_effect(operation, done)
            and apply_step(register, operation.step)[1] == operation.answer
        ]
        return _PossibleState(register, done.union(fitting)) if fitting else possible

    def _can_take_effect(self, operation: Operation, done: frozenset[int]) -> bool:
        return all(place in done or place in self._over for place in operation.after)

    def _describe_violation(self, place: int, before: set[State]) -> str:
        beside = [self._history[other] for other in sorted(self._pending - {place})]
        states = ", ".join(
            sorted(f"{each.value}@{each.version}" if isinstance(each, Register) else "nothing" for each in before)
        )
        last = sorted((each for each in map(self._history.__getitem__, self._over)), key=lambda each: each.end)[-8:]
        lines = [f"{self._history[place]}", f"  the register may have held: {states}"]
        lines += [f"  before: {each}" for each in last] + [f"  concurrent: {each}" for each in beside]
        return "\n".join(lines)


def _events(history: Sequence[Operation]) -> list[tuple[float, bool, int]]:
    """Return starts and ends in order of time; at the same moment starts first, which permits more."""
    begun = [(each.start, False, place) for place, each in enumerate(history)]
    return sorted(begun + [(each.end, True, place) for place, each in enumerate(history)])


def find_misordered_commits(history: Sequence[Operation]) -> list[str]:
    """Return violations of the order between acknowledged commits and writes, and values with two commits."""
    wrong: list[str] = []
    written: dict[int, Operation] = {}
    writes = [each for each in history if each.sequence and each.step.kind not in ("read", "lacks")]
    newest = 0
    ended = sorted(writes, key=lambda each: each.end)
    at = 0
    for each in sorted(writes, key=lambda each: each.start):
        while at < len(ended) and ended[at].end < each.start:
            newest = max(newest, ended[at].sequence)
            at += 1
        if each.sequence < newest or (each.sequence == newest and not each.only_looks):
            wrong.append(f"{each}\n  began when commit {newest} had been answered")
    for each in history:
        value = each.answer[0] if each.step.kind == "read" and isinstance(each.answer, tuple) else each.step.value
        if not each.sequence or not value or (each.only_looks and each.step.kind != "read"):
            continue
        other = written.setdefault(value, each)
        if other.sequence != each.sequence:
            wrong.append(f"{each}\n  has another commit than {other}")
    return wrong
