"""Files of links: opened, or made anew when they cannot be read, and rows in them with their checksums."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from kgserve.decoding import msgpack_decoder
from kgserve.model.digest import checksum
from kgserve.model.rows import LinkKey, LinkRow

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(LinkRow).decode


def opened(path: Path, schema: str, format_: int) -> sqlite3.Connection:
    """The file, which any thread may use; one that cannot be read, or has another format, is replaced."""
    try:
        return _connected(path, schema, format_)
    except sqlite3.DatabaseError:
        remove(path)
        return _connected(path, schema, format_)


def remove(path: Path) -> None:
    """Delete the file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _connected(path: Path, schema: str, format_: int) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        [(found,)] = connection.execute("PRAGMA user_version")
        if tables and found != format_:
            raise sqlite3.DatabaseError("another format")
        connection.executescript(schema)
    except BaseException:
        connection.close()
        raise
    return connection


def values(key: LinkKey) -> dict[str, Any]:
    """A key as the values of columns, by name."""
    source, target, relation_type = key.edge
    return {"source": source, "relation_type": relation_type, "store": key.store, "target": target}


def stored(row: LinkRow) -> dict[str, Any]:
    """A row as the values of columns, by name."""
    content = _encode(row)
    return {**values(row.key), "row": content, "hash": checksum(content)}


def intact(content: bytes, expected: int) -> LinkRow:
    """The inverse of `stored`. Raises sqlite3.DatabaseError for what does not fit its checksum."""
    if checksum(content) != expected:
        raise sqlite3.DatabaseError("a link does not fit its checksum")
    return _decode(content)
