"""Calls that are made again: who has lost the answer sends the same call id, and gets the answer of the first."""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from kgserve.ops.made_calls import MadeCall, making

T = TypeVar("T")

CALL_HEADER = "kgserve-call"
AGE_HEADER = "kgserve-call-age"

KEPT = 512
"""Calls that are remembered, each with an answer of at most about 75 kB."""
KEPT_OF_A_CALLER = 128

_ID = re.compile(r"[!-~]{16,128}")


def made_call(headers: Mapping[str, str], tool: str, arguments: Mapping[str, Any] | None) -> MadeCall | None:
    """The call that a request is, if it has an id; another tool or other arguments are another call."""
    given = headers.get(CALL_HEADER, "")
    if not _ID.fullmatch(given):
        return None
    try:
        said = msgspec.json.encode([tool, arguments])
    except (TypeError, ValueError, RecursionError):
        return None  # no such arguments are taken
    return MadeCall(f"{given} {blake2b(said, digest_size=16).hexdigest()}", _age(headers))


class Repeats:
    """The latest calls that had an id, under way and answered."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], asyncio.Task[Any]] = OrderedDict()

    async def once(self, caller: str, made: MadeCall | None, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a call, which is carried out once while it is remembered.

        It goes on when who has asked is cut off: the answer may be asked for again.
        """
        if made is None:
            return await answer()
        task = self._calls.get((caller, made.key))
        if task is None:
            task = self._begun(made, answer)
            self._keep((caller, made.key), task)
        return await asyncio.shield(task)

    def _begun(self, made: MadeCall, answer: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        before = making.set(made)
        try:
            return asyncio.create_task(answer(), name="call")
        finally:
            making.reset(before)

    def _keep(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        self._calls[key] = task
        task.add_done_callback(lambda done: self._forget_failed(key, done))
        self._forget_oldest([each for each in self._calls if each[0] == key[0]], KEPT_OF_A_CALLER)
        self._forget_oldest([*self._calls], KEPT)

    def _forget_oldest(self, keys: list[tuple[str, str]], most: int) -> None:
        """Those under way stay, however many they are."""
        done = [each for each in keys if self._calls[each].done()]
        for each in done[: max(0, len(keys) - most)]:
            del self._calls[each]

    def _forget_failed(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        """What was broken off has no answer to repeat."""
        if task.cancelled() or task.exception() is not None:
            self._calls.pop(key, None)


def _age(headers: Mapping[str, str]) -> float:
    with suppress(ValueError):
        age = float(headers.get(AGE_HEADER, "0"))
        return max(age, 0.0) if math.isfinite(age) else 0.0
    return 0.0
