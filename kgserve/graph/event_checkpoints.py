"""Event streams of thousands of stores: stores without news, and checkpoints that an event's id can name.

An id with the positions of 10,000 stores would exceed any header. A file is named by the hash of its content, so equal
positions share a file, and a damaged one is recognized.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, KeysView, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash

from kgserve.errors import Gone, InvalidInput
from kgserve.platform.codecs import json_decoder, msgpack_decoder
from kgserve.platform.durable_files import translate_storage_errors, write_file_atomically
from kgserve.platform.file_permissions import create_private_folder
from kgserve.storage.model.change_feed_events import (
    EVERY_OTHER_STORE,
    FeedPosition,
    format_change_feed_positions,
    parse_change_feed_positions,
)
from kgserve.storage.model.store_incarnations import StoreIncarnation
from kgserve.stores.scoped_stores import StoreRegistry

CHECKPOINTS_FOLDER = "event-positions"
MAX_CHECKPOINTS = 256
"""Files to keep. Each has about 15 bytes per store; the least recently used are removed."""
CHECKPOINT_TOUCH_SECONDS = 3_600.0
_NAME_PATTERN = re.compile("[0-9a-f]{32}")
START_POSITION = FeedPosition.after(0)
"""The position before all events of a store."""
_encode = msgspec.msgpack.Encoder().encode


def parse_multi_store_event_id(text: str, path: str) -> tuple[dict[str, FeedPosition], str]:
    """Return the positions that an event's id names, and the name of its checkpoint, "" for none.

    Raises InvalidInput naming ``path``.
    """
    named, _, checkpoint = text.partition(",@")
    return parse_change_feed_positions(named, path), checkpoint


class EventCheckpoints:
    """Checkpoints in a data folder. Safe for use from several threads and streams."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / CHECKPOINTS_FOLDER

    def save(self, positions: Mapping[str, FeedPosition]) -> str:
        """Write positions after whole commits, by store, durably, and return the name to load them by.

        Raises StorageFull.
        """
        # Numbers, except for positions in an incarnation of the store after its first.
        content = _encode(
            {name: str(at) if at.incarnation else at.sequence - 1 for name, at in sorted(positions.items())}
        )
        name = xxhash.xxh3_128_hexdigest(content)
        with translate_storage_errors("saving the position of an event stream"):
            create_private_folder(self._folder)
            if not self.touch(name):
                write_file_atomically(self._folder / name, content)
                self._prune()
        return name

    def touch(self, name: str) -> bool:
        """Record that a checkpoint is in use. Return False if it does not exist."""
        try:
            os.utime(self._folder / name)
        except OSError:
            return False
        return True

    def load(self, name: str, path: str) -> dict[str, FeedPosition]:
        """Return the positions, by store. ``path`` is the parameter that named the checkpoint.

        Raises InvalidInput for a malformed name, and Gone if the checkpoint was removed or is damaged.
        """
        if not _NAME_PATTERN.fullmatch(name):
            raise InvalidInput.at(path, "expected the id of an event after @")
        try:
            content = (self._folder / name).read_bytes()
        except OSError:
            content = b""
        if xxhash.xxh3_128_hexdigest(content) != name:
            raise Gone("the positions of this event id are no longer kept; read the stores and begin again", 0)
        self.touch(name)
        saved = msgpack_decoder(dict[str, int | str]).decode(content)
        return {store: FeedPosition.parse(str(at)) for store, at in saved.items()}

    def _prune(self) -> None:
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            used_at = sorted((entry.stat().st_mtime_ns, entry.name) for entry in entries)
            for _, name in used_at[:-MAX_CHECKPOINTS]:
                (self._folder / name).unlink(missing_ok=True)


class _DescribedIncarnations(msgspec.Struct):
    incarnations: tuple[StoreIncarnation, ...] = ()


_decode_described_incarnations = json_decoder(_DescribedIncarnations).decode


def read_store_incarnations(pool: StoreRegistry, name: str) -> tuple[StoreIncarnation, ...]:
    """Return the incarnations of a store after its first, from its folder only if nothing else has them."""
    if (entry := pool.find_closed(name)) is not None:
        return _decode_described_incarnations(entry.description).incarnations
    return pool.feeds.of(name).incarnations


class CaughtUpStreamStores:
    """Stores of a stream whose events were read as far as they go, and the checkpoint that has their positions."""

    def __init__(self, pool: StoreRegistry, wake: Callable[[], None]) -> None:
        self._pool = pool
        self._wake = wake
        self._positions: dict[str, FeedPosition] = {}
        self._markers: dict[str, int] = {}
        self._drops: dict[str, int] = {}
        self._first_marker = pool.feeds.next_number()
        self._roused: deque[str] = deque()
        self._is_roused: set[str] = set()
        self._checkpoints = EventCheckpoints(pool.data_dir)
        self._checkpoint = ""
        self._touched_at = 0.0
        self.moved: set[str] = set()
        """Stores whose positions may differ from those in the checkpoint."""
        self.unannounced: set[str] = set()
        """Stores whose creation is still to be reported, so that no id may have a position in them."""
        self._unlisten = pool.feeds.listen_to_commits(self._note_commit)

    @property
    def has_news(self) -> bool:
        """True if a dormant store has events to read."""
        return bool(self._roused)

    def names(self) -> KeysView[str]:
        """Return the names of the dormant stores."""
        return self._positions.keys()

    def latest(self, name: str) -> FeedPosition:
        """Return the position after a store's events, from its folder only if nothing else has it. Raises NotFound."""
        known = self._pool.feeds.known_latest(name)
        if known is None and (entry := self._pool.find_closed(name)) is not None:
            known = entry.sequence
        incarnations = read_store_incarnations(self._pool, name)
        after = FeedPosition.after(self._pool.feeds.of(name).latest if known is None else known)
        return after.in_incarnation(incarnations[-1].tag) if incarnations else after

    def was_dropped(self, name: str) -> bool:
        """Return whether a store was dropped since it was added. Another one may have its name."""
        return self._pool.feeds.drop_count(name) != self._drops.get(name, 0)

    def add(self, name: str, position: FeedPosition, marker: int | None = None) -> None:
        """Add a store that was read up to a position."""
        if marker is not None:
            self._markers[name] = marker
        if drops := self._pool.feeds.drop_count(name):
            self._drops[name] = drops
        self._positions[name] = position
        # A commit before this line roused no one.
        latest = self._pool.feeds.known_latest(name)
        if latest is not None and position.in_incarnation("") != FeedPosition.after(latest):
            self.rouse(name)

    def take(self, name: str) -> tuple[FeedPosition, int]:
        """Remove a store, and return its position and the number of the last marker read."""
        self.moved.add(name)
        self.unannounced.discard(name)
        self._drops.pop(name, None)
        return self._positions.pop(name), self._markers.pop(name, self._first_marker)

    def rouse(self, name: str) -> None:
        """Record that a store may have events to read."""
        if name not in self._is_roused:
            self._is_roused.add(name)
            self._roused.append(name)

    def take_roused(self) -> str | None:
        """Return the next dormant store that may have events to read, or None."""
        while self._roused:
            name = self._roused.popleft()
            self._is_roused.discard(name)
            if name in self._positions:
                return name
        return None

    def save(self, followed: Mapping[str, FeedPosition]) -> None:
        """Write the positions of all stores into a checkpoint, which ids name from then on. Raises StorageFull."""
        places = {**self._positions, **followed}
        # A position within a commit cannot be saved; ids name it.
        self.moved = {name for name, at in places.items() if at.index}
        saved = {name: at for name, at in places.items() if name not in self.unannounced}
        self._checkpoint = self._checkpoints.save(saved)
        self._touched_at = time.monotonic()

    def format_positions(self, followed: Mapping[str, FeedPosition], without: str) -> str:
        """Return the positions of all stores but one: of those that moved, and the checkpoint of all others."""
        if time.monotonic() - self._touched_at > CHECKPOINT_TOUCH_SECONDS:
            self._touched_at = time.monotonic()
            self._checkpoints.touch(self._checkpoint)
        places: dict[str, FeedPosition] = {}
        for name in self.moved - {without}:
            position = followed.get(name) or self._positions.get(name)
            if position is not None and name not in self.unannounced:
                places[name] = position
        return f"{format_change_feed_positions({**places, EVERY_OTHER_STORE: START_POSITION})},@{self._checkpoint}"

    def close(self) -> None:
        """Stop listening."""
        self._unlisten()

    def _note_commit(self, name: str) -> None:
        if name in self._positions:
            self.rouse(name)
            self._wake()
