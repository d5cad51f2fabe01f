"""Tests of the lock that readers share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kgserve.platform.readers_writer_lock import ReadersWriterLock


def test_readers_share_the_lock_and_a_writer_has_it_alone() -> None:
    lock, meeting, events = ReadersWriterLock(), threading.Barrier(3, timeout=10), list[str]()

    def read() -> None:
        with lock.read():
            meeting.wait()  # breaks unless both readers are inside
            events.append("read")

    def write() -> None:
        with lock.write():
            events.append("written")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    writer = threading.Thread(target=write)
    with lock.read():
        writer.start()
        meeting.wait()
        for each in readers:
            each.join()
        assert events == ["read", "read"]
    writer.join()
    assert events == ["read", "read", "written"]


def test_a_writer_that_returns_lets_waiting_readers_pass() -> None:
    lock, order = ReadersWriterLock(), list[str]()

    def read() -> None:
        with lock.read():
            order.append("reader")

    reader = threading.Thread(target=read)
    with lock.write():
        reader.start()
        _until(lock._entrance.locked)
    with lock.write():
        order.append("writer")
    reader.join()
    assert order == ["reader", "writer"]


def test_a_waiting_writer_goes_before_readers_that_come_later() -> None:
    lock, order = ReadersWriterLock(), list[str]()

    def enter(name: str) -> None:
        with lock.write() if name == "writer" else lock.read():
            order.append(name)

    writer, reader = (threading.Thread(target=enter, args=(name,)) for name in ("writer", "reader"))
    with lock.read():
        writer.start()
        _until(lock._entrance.locked)
        reader.start()
    writer.join()
    reader.join()
    assert order == ["writer", "reader"]


def test_numbers_stay_consistent_under_contention() -> None:
    lock, pair, torn = ReadersWriterLock(), [0, 0], list[tuple[int, int]]()

    def write() -> None:
        for _ in range(300):
            with lock.write():
                pair[0] += 1
                time.sleep(0)
                pair[1] += 1

    def read() -> None:
        for _ in range(300):
            with lock.read():
                if pair[0] != pair[1]:
                    torn.append((pair[0], pair[1]))

    threads = [threading.Thread(target=each) for each in (write, write, read, read, read)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (pair, torn) == ([600, 600], [])


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
