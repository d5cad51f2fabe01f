"""Answers to recent calls with an idempotency key, for REST and MCP.

A client that lost an answer repeats the call with the same key and gets the answer of the first call. The answers are
in memory, bounded by number, size and age. Those of REST are also in files. After a restart any other repeated call
runs again; the ids that it generates are the same (`generate_idempotent_node_id`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from kgserve.errors import Conflict, IdempotencyKeyReused
from kgserve.platform.idempotency import IdempotencyKey, current_idempotency_key

T = TypeVar("T")

MAX_REMEMBERED_CALLS = 10_000
MAX_REMEMBERED_CALLS_PER_CALLER = 2_500
MAX_REMEMBERED_BYTES = 64 << 20
"""Maximum size of all remembered answers."""
MAX_REMEMBERED_BYTES_PER_CALLER = 16 << 20
MAX_REMEMBERED_ANSWER_BYTES = 1 << 20
"""Size of the largest answer that is remembered; of a larger one only that the call was carried out."""
CALL_RETENTION_SECONDS = 24 * 3600.0
KEY_REUSED_MESSAGE = "this idempotency key was used for another request; send a new key"


class CachedIdempotentCall(msgspec.Struct, eq=False):
    """A call and its answer; ``task`` is None if the answer was too large. ``at`` is on the monotonic clock."""

    task: asyncio.Task[Any] | None
    fingerprint: bytes
    at: float
    size: int = 0


class CallerRememberedCalls(OrderedDict[str, CachedIdempotentCall]):
    """Remembered calls of one caller by key, oldest first, and the size of their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0


def weigh_answer_as_zero(_: object) -> int:
    """Return 0 as the weight of any answer, so that it is remembered without counting its size."""
    return 0


class IdempotentCallCache:
    """Recent calls with an idempotency key, running and finished. Belongs to the event loop."""

    def __init__(self) -> None:
        self._callers: dict[str, CallerRememberedCalls] = {}
        self.on_forget_all: Callable[[], object] = dict
        """Called when all answers have to be forgotten."""

    @property
    def size(self) -> int:
        """Size of all remembered answers in bytes."""
        return sum(calls.size for calls in self._callers.values())

    def __len__(self) -> int:
        return sum(map(len, self._callers.values()))

    async def run_once(
        self,
        caller: str,
        made: IdempotencyKey | None,
        answer: Callable[[], Coroutine[Any, Any, T]],
        fingerprint: bytes = b"",
        weigh: Callable[[T], int | None] = weigh_answer_as_zero,
        name: str = "",
    ) -> T:
        """Return the answer to a call, which runs once while it is remembered.

        The call continues when its client disconnects, so that the answer can be fetched later. A call that fails is
        not remembered. name: identifies the call, instead of the whole key. weigh: returns the bytes of an answer, or
        None for one that is not to be remembered. Raises IdempotencyKeyReused for a call with another fingerprint, and
        Conflict if the answer was too large to keep.
        """
        if made is None:
            return await answer()
        name = name or made.key
        found = self._callers.get(caller, CallerRememberedCalls()).get(name)
        if found is not None and time.monotonic() - found.at > CALL_RETENTION_SECONDS and _is_done(found):
            self._forget(caller, name)
            found = None
        if found is None:
            found = CachedIdempotentCall(_start(made, answer), fingerprint, time.monotonic())
            self._callers.setdefault(caller, CallerRememberedCalls())[name] = found
            self._watch(caller, name, found, weigh)
            self._forget_oldest(caller)
        elif found.fingerprint != fingerprint:
            raise IdempotencyKeyReused(KEY_REUSED_MESSAGE)
        if found.task is None:
            raise Conflict(
                "the request with this idempotency key was carried out, but its answer was too large to keep; read the "
                "result, or send a new key to carry it out again"
            )
        return await asyncio.shield(found.task)

    def forget_all(self) -> None:
        """Forget all answers, because they may contain what was erased."""
        self._callers = {}
        self.on_forget_all()

    def _watch(self, caller: str, key: str, call: CachedIdempotentCall, weigh: Callable[[T], int | None]) -> None:
        def finish(done: asyncio.Task[Any]) -> None:
            calls = self._callers.get(caller)
            if calls is None or calls.get(key) is not call:
                return
            has_failed = done.cancelled() or done.exception() is not None
            size = None if has_failed else weigh(done.result())
            if size is None:
                self._forget(caller, key)
                return
            if size > MAX_REMEMBERED_ANSWER_BYTES:
                call.task, size = None, 0
            call.size = size
            calls.size += size
            self._forget_oldest(caller)

        if call.task is not None:
            call.task.add_done_callback(finish)

    def _forget(self, caller: str, key: str) -> None:
        calls = self._callers[caller]
        calls.size -= calls.pop(key).size
        if not calls:
            del self._callers[caller]

    def _forget_oldest(self, caller: str) -> None:
        """Apply the bounds of one caller, then those of all callers, at the expense of the largest."""
        self._shrink(caller, MAX_REMEMBERED_CALLS_PER_CALLER, MAX_REMEMBERED_BYTES_PER_CALLER)
        if len(self._callers) * MAX_REMEMBERED_CALLS_PER_CALLER <= MAX_REMEMBERED_CALLS:
            return
        if len(self) > MAX_REMEMBERED_CALLS:
            largest = max(self._callers, key=lambda each: len(self._callers[each]))
            self._shrink(largest, len(self._callers[largest]) - 1, MAX_REMEMBERED_BYTES_PER_CALLER)
        if self.size > MAX_REMEMBERED_BYTES:
            largest = max(self._callers, key=lambda each: self._callers[each].size)
            excess = self.size - MAX_REMEMBERED_BYTES
            self._shrink(largest, MAX_REMEMBERED_CALLS_PER_CALLER, self._callers[largest].size - excess)

    def _shrink(self, caller: str, most: int, size: int) -> None:
        calls = self._callers.get(caller, CallerRememberedCalls())
        while len(calls) > most or calls.size > size:
            # Running calls are never forgotten.
            oldest = next((key for key, call in calls.items() if _is_done(call)), None)
            if oldest is None:
                return
            self._forget(caller, oldest)


def _is_done(call: CachedIdempotentCall) -> bool:
    return call.task is None or call.task.done()


def _start(made: IdempotencyKey, answer: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    before = current_idempotency_key.set(made)
    try:
        return asyncio.create_task(answer(), name="call")
    finally:
        current_idempotency_key.reset(before)
