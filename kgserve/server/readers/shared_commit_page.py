"""Shared memory in which the server announces the last visible commit of each open store to its reader processes."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

MAX_READERS = 16
MAX_ANNOUNCED_STORES = 256
"""Open stores that can be announced; requests to others are answered by the server."""
_WORD_BYTES = 8
_HEADER_WORDS = 64
_RELEASED, _HEARTBEATS = 1, 32
"""First words of the header with one word for each reader process."""
_SLOT_WORDS = 16
_INCARNATION, _BASES, _SEQUENCE, _NAME_BYTES, _NAME = range(5)
_SLOT_BYTES = _SLOT_WORDS * _WORD_BYTES


class VisibleStoreCommit(NamedTuple):
    """Last commit of an open store that its readers see.

    ``incarnation`` differs for each opening of a store. ``bases`` counts the bases put in service since the opening.
    """

    incarnation: int
    bases: int
    sequence: int


class SharedCommitPage:
    """Page of shared memory with a slot for each open store. One process writes, others read without locks.

    A slot is valid while its incarnation is not 0. The writer sets the incarnation last and clears it first. A word is
    written by one instruction, and other words of a slot only grow while its incarnation lasts.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Create a page, or open the one with a ``descriptor`` that another process has passed on."""
        size = (_HEADER_WORDS + MAX_ANNOUNCED_STORES * _SLOT_WORDS) * _WORD_BYTES
        if descriptor is None:
            descriptor = os.memfd_create("kgserve-commits")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, size)
        self._words = memoryview(self._memory).cast("Q")
        self._slots: dict[str, int] = {}
        self._lock = threading.Lock()
        self._openings = 0

    def close_descriptor(self) -> None:
        """Close the descriptor. The memory stays until all processes have ended."""
        os.close(self.descriptor)

    # For the server

    def open(self, name: str) -> Callable[[int, bool], None] | None:
        """Return the function that announces a store's commits; None while all slots are in use."""
        with self._lock:
            used = {*self._slots.values()}
            slot = next((at for at in range(MAX_ANNOUNCED_STORES) if at not in used), None)
            if slot is None:
                return None
            self._slots[name] = slot
            self._openings += 1
            place = _HEADER_WORDS + slot * _SLOT_WORDS
            self._write_name(place, name.encode())
            self._words[place + _BASES] = self._words[place + _SEQUENCE] = 0
            return partial(self._announce, place, self._openings)

    def close(self, name: str) -> None:
        """Withdraw a store; its readers answer no further requests."""
        with self._lock:
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._words[_HEADER_WORDS + slot * _SLOT_WORDS] = 0
                self._words[0] += 1

    @property
    def change(self) -> int:
        """Number of replaced bases and closed stores so far."""
        return self._words[0]

    def has_released(self, reader: int, change: int) -> bool:
        """Return whether a reader process has released all bases that were replaced up to a change."""
        return self._words[_RELEASED + reader] >= change

    def count_heartbeats(self, reader: int) -> int:
        """Return how often a reader process has reported."""
        return self._words[_HEARTBEATS + reader]

    def reset(self, reader: int) -> None:
        """Forget what a reader process has released, before another one takes its place."""
        self._words[_RELEASED + reader] = 0

    def _announce(self, place: int, incarnation: int, sequence: int, is_new_base: bool) -> None:
        self._words[place + _SEQUENCE] = sequence
        if is_new_base:
            self._words[place + _BASES] += 1
            with self._lock:
                self._words[0] += 1
        self._words[place] = incarnation

    def _write_name(self, place: int, name: bytes) -> None:
        start = (place + _NAME) * _WORD_BYTES
        self._memory[start : start + len(name)] = name
        self._words[place + _NAME_BYTES] = len(name)

    # For reader processes

    def find(self, name: str) -> VisibleStoreCommit | None:
        """Return the last visible commit of a store; None if it is not open."""
        wanted = name.encode()
        slot = self._slots.get(name)
        if slot is not None and (found := self._read(slot, wanted)) is not None:
            return found
        for slot in range(MAX_ANNOUNCED_STORES):
            found = self._read(slot, wanted)
            if found is not None:
                self._slots[name] = slot
                return found
        return None

    def release(self, reader: int, change: int) -> None:
        """Report that a reader process is alive and has released all bases that were replaced up to a change."""
        self._words[_RELEASED + reader] = change
        self._words[_HEARTBEATS + reader] += 1

    def _read(self, slot: int, wanted: bytes) -> VisibleStoreCommit | None:
        place = _HEADER_WORDS + slot * _SLOT_WORDS
        words = self._words
        incarnation = words[place]
        if not incarnation or words[place + _NAME_BYTES] != len(wanted):
            return None
        start = (place + _NAME) * _WORD_BYTES
        name = self._memory[start : start + len(wanted)]
        found = VisibleStoreCommit(incarnation, words[place + _BASES], words[place + _SEQUENCE])
        return found if name == wanted and words[place] == incarnation else None
