"""Keys that all nodes of a cluster take: one that was made or revoked at any of them is known to the others soon."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kgserve.access.authentication import KEY_FILE, Key, merge_keys
from kgserve.cluster.protocols import Entry, Registry
from kgserve.decoding import decode_json

_NAME = "key."
_encode = msgspec.json.Encoder().encode


class SharedKeys:
    """What a node's keys.json and the registry know of keys, each of which is to know what the other does.

    Keys are only added and revoked, so both sides come to the same whoever was first.
    """

    def __init__(self, registry: Registry, data_dir: Path) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self._held: dict[str, Entry] = {}
        self._seen = 0
        self._file: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Have each side know the other's keys, where either has changed. Raises Unavailable and KeysDamaged."""
        found = {name: each for name, each in self._registry.entries(self._seen).items() if name.startswith(_NAME)}
        self._held |= found
        self._seen = max([self._seen, *(each.revision for each in found.values())])
        if not found and self._mark() == self._file:
            return
        keys = merge_keys(self._data_dir, [decode_json(each.data, Key) for each in self._held.values()])
        for key in keys:
            self._tell(_NAME + key.id, _encode(key))
        self._file = self._mark()

    def _tell(self, name: str, data: bytes) -> None:
        held = self._held.get(name, Entry(b"", 0))
        # Who was overtaken meets at the next look what the other has told.
        if held.data != data and (revision := self._registry.put_entry(name, data, held.revision)) is not None:
            self._held[name] = Entry(data, revision)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = (self._data_dir / KEY_FILE).stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
