"""The states of nodes that are over, in the order in which they ended, read from a history's file beside its owner."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from kgserve.decoding import msgpack_decoder
from kgserve.history.history import State
from kgserve.history.statements import ENDED
from kgserve.model.rows import NodeRow

_CURSOR = "SELECT sequence, oldest FROM cursor"
_PATIENCE = 1.0  # seconds to wait for the owner, who writes

_node = msgpack_decoder(NodeRow).decode


class Place(msgspec.Struct, frozen=True, order=True):
    """How far somebody has read: past the state of this node that ended with this commit."""

    last: int
    id: str = ""


class Ended(msgspec.Struct, frozen=True):
    """Some states that are over, up to a place; ``sequence`` is the last commit all of whose states have been read.

    ``seen`` is the commit that the history itself has seen, ``oldest`` the first as of which it answers.
    """

    states: list[State[NodeRow]]
    place: Place
    sequence: int
    seen: int
    oldest: int


def read_ended(path: Path, place: Place, limit: int) -> Ended | None:
    """The next states that are over, at most ``limit``; None while there is no history to be read.

    Raises sqlite3.DatabaseError when the file is damaged or held by its owner for long.
    """
    # Its owner makes the index before the cursor.
    if not {"node", "node_by_end", "cursor"} <= _tables(path):
        return None
    with closing(_connect(path)) as connection:
        connection.execute("BEGIN")
        seen, oldest = connection.execute(_CURSOR).fetchone()
        values = {"last": place.last, "id": place.id, "until": seen, "limit": limit}
        states = [_state(row) for row in connection.execute(ENDED, values)]
    if len(states) < limit:
        place = max(place, Place(seen + 1))
        return Ended(states, place, place.last - 1, seen, oldest)
    # The commit of the last one may have ended more.
    place = Place(states[-1].last or 0, states[-1].row.id)
    return Ended(states, place, place.last - 1, seen, oldest)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)


def _tables(path: Path) -> set[str]:
    # Without its owner the file may not be readable for who may only read, and it may just be about to be made.
    try:
        with closing(_connect(path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.OperationalError:
        return set()


def _state(row: tuple[Any, ...]) -> State[NodeRow]:
    content, checksum, *rest = row
    if content is None or xxhash.xxh3_64_intdigest(content) >> 1 != checksum:
        raise sqlite3.DatabaseError("a state does not fit its checksum")
    return State(_node(content), *rest)
