"""The keys as the server sees them: read anew whenever the file changes, without anybody telling it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from kgserve.access.caller import Caller
from kgserve.access.key import NOBODYS, Key, parse
from kgserve.access.key_file import KEY_FILE, KeysDamaged, read_keys

log = structlog.get_logger()

_Mark = tuple[int, int, int] | None
_UNREAD = (-1, -1, -1)


class Keyring:
    """The keys of a data folder. One `stat` per look says whether the file is still the one that was read (2 µs)."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = str(data_dir / KEY_FILE)
        self._mark: _Mark = _UNREAD
        self._keys: dict[str, Key] = {}
        self._callers: dict[str, Caller] = {}
        self.damaged = False

    @property
    def empty(self) -> bool:
        """Whether there has never been a key: revoked and expired ones count, a file that cannot be read counts."""
        self._look()
        return not (self._keys or self.damaged)

    @property
    def usable(self) -> bool:
        """Whether some key opens something now."""
        self._look()
        now = time.time_ns() // 1000
        return any(key.state(now) == "active" for key in self._keys.values())

    def caller(self, text: str) -> Caller | None:
        """Who comes with this key. None for what is none, and for unknown, revoked and expired ones, all alike."""
        self._look()
        given = parse(text)
        if given is None:
            return None
        key = self._keys.get(given.id, NOBODYS)
        right = key.matches(given.secret)
        return self._callers[key.id] if right and self._opens(key) else None

    def stands(self, key_id: str) -> bool:
        """Whether a key that was let in would be let in still."""
        self._look()
        key = self._keys.get(key_id)
        return key is not None and self._opens(key)

    @staticmethod
    def _opens(key: Key) -> bool:
        return key.state(time.time_ns() // 1000) == "active"

    def _look(self) -> None:
        mark = self._present_mark()
        if mark != self._mark:
            self._mark = mark
            self._read()

    def _present_mark(self) -> _Mark:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a Path takes three times as long
        except FileNotFoundError:
            return None
        except OSError:
            return (0, 0, 0)
        # Of its times the one that cannot be set; it moves with the content, and with the permissions.
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _read(self) -> None:
        try:
            keys, self.damaged = read_keys(self._data_dir), False
        except KeysDamaged as error:
            keys, self.damaged = [], True
            log.error("keys_damaged", error=str(error), consequence="every key is refused")
        if keys or self._keys:
            log.info("keys_read", keys=len(keys))
        self._keys = {key.id: key for key in keys}
        self._callers = {key.id: key.caller for key in keys}
