"""Handing a batch to a store's writer, and turning the report into an answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Report
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

Answer = TypeVar("Answer")


def submit(
    pool: StorePool, store: str, batch: WriteBatch, answer: Callable[[Report], Answer], *, create: bool
) -> Future[Answer]:
    """Queue a batch; the store stays leased until its report is there."""
    return carry_out(pool, store, lambda leased: leased.submit(batch), answer, create=create)


def carry_out(
    pool: StorePool,
    store: str,
    begin: Callable[[Store], Future[Report]],
    answer: Callable[[Report], Answer],
    *,
    create: bool,
) -> Future[Answer]:
    """Begin a write; the store stays leased until its report is there."""
    leased = pool.acquire(store, create=create)
    result: Future[Answer] = Future()

    def settle(report: Future[Report]) -> None:
        pool.release(leased)
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(answer(report.result()))
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits for the answer
            result.set_exception(error)

    try:
        begin(leased).add_done_callback(settle)
    except BaseException:
        pool.release(leased)
        raise
    return result
