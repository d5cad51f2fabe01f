"""Requests that begin where their bytes arrive, and become tasks only when they have to wait.

A task costs a turn of the event loop and two calls of the system, more than a short answer takes. Python 3.12 has eager
tasks for this; here a coroutine is begun by hand, and what is left of it, if anything is, goes on in a task.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import coroutine
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


def begin(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Begin ``work``, in a context of its own; the task that it goes on in, if it is not over already."""
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    rest = cast("Coroutine[Any, Any, None]", _rest(work, awaited))
    return loop.create_task(rest, context=context)


async def in_task() -> None:
    """From here on there is a task, without which what takes threads or may be cancelled cannot be awaited."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


@coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, None, None]:
    """``work`` from where it waits for ``awaited``; for nothing when it only wanted to be in a task."""
    try:
        if awaited is None:
            awaited = work.send(None)
        while True:
            try:
                # None is a turn of the loop, which others may need before the work can go on.
                yield awaited
            except BaseException as error:  # noqa: BLE001 - the work's business
                awaited = work.throw(error)
            else:
                awaited = work.send(None)
    except StopIteration:
        return
