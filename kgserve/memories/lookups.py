"""What is asked of single memories and names, by a connection of its own also beside one that takes commits in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from kgserve.memories import statements as sql
from kgserve.memories.entries import LiveMemory
from kgserve.model.change import Access
from kgserve.model.names import folded
from kgserve.sqlite_files import of_some

MOST_ALIKE = 100
MOST_NAMED = 1_000

Match = Literal["exact", "folded", "alias"]


class Named(NamedTuple):
    """A node that has a name, and how it was found. It stands unless it was withdrawn, or is a memory."""

    id: str
    type: str
    name: str
    match: Match
    stands: bool


class Lookups:
    """The memory view as of what was committed to its file. For one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._run = connection.execute

    @classmethod
    def beside(cls, path: Path) -> Lookups:
        """A connection that only reads a file that is there. Raises sqlite3.Error."""
        uri = f"{path.absolute().as_uri()}?mode=ro"
        return cls(sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16))

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def accesses(self, ids: Iterable[str]) -> dict[str, Access]:
        """What has been journaled of reading some nodes."""
        return {row[0]: Access(*row) for row in of_some(self._run, sql.ACCESSES_OF, [*ids])}

    def alike(self, hash_: bytes, print_: bytes, now: int, limit: int = MOST_ALIKE) -> list[LiveMemory]:
        """The memories in force that say the same, the oldest first: those of this hash, then those of this print."""
        found: dict[str, LiveMemory] = {}
        for query, value in ((sql.BY_HASH, hash_), (sql.BY_PRINT, print_)):
            for row in self._run(query, {"value": value, "now": now, "limit": limit}):
                found.setdefault(row[0], LiveMemory(*row))
        return [*found.values()][:limit]

    def saying(self, hash_: bytes, print_: bytes, now: int) -> list[str]:
        """The ids of those, in one statement: at each the writing thread has to wait for others to let it go on."""
        values = {"hash": hash_, "print": print_, "now": now, "limit": MOST_ALIKE}
        return list(dict.fromkeys(node_id for (node_id,) in self._run(sql.SAYING, values)))

    def said(self, keys: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
        """Those of some hashes and prints that a memory in force has."""
        hashes, prints = zip(*keys, strict=True)
        found = (*of_some(self._run, sql.HASHES, hashes), *of_some(self._run, sql.PRINTS, prints))
        return {digest for (digest,) in found}

    def known_names(self, folds: Iterable[str]) -> set[str]:
        """Those of some folded names that anything has."""
        return {fold for (fold,) in of_some(self._run, sql.KNOWN_NAMES, [*folds])}

    def named(self, name: str) -> list[Named]:
        """The nodes of a name: by exactly that, by one that counts as the same, then by another name of theirs."""
        rows = self._run(sql.NAMED, (folded(name), MOST_NAMED)).fetchall()
        found = [Named(row[0], row[1], row[2], _match(name, row[3], row[4]), bool(row[5])) for row in rows]
        found.sort(key=lambda each: _MATCHES.index(each.match))
        return list({each.id: each for each in reversed(found)}.values())[::-1]


_MATCHES: tuple[Match, ...] = ("exact", "folded", "alias")


def _match(wanted: str, alias: int, name: str) -> Match:
    return "alias" if alias else "exact" if name == wanted else "folded"
