"""The numbered schema files, and which of them an engine file has had."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import LiteralString, cast

import msgspec
import xxhash

from kgserve.worker.session import Session

_RECORD = "CREATE NODE TABLE IF NOT EXISTS SchemaFile (number INT64, name STRING, xxh3 STRING, PRIMARY KEY (number))"


EXTRAS = 3
"""The number of the file that a store has once a row of it has extras."""


class SchemaFile(msgspec.Struct, frozen=True):
    """One schema file: its number, its name, a checksum of its text, and the statements in it."""

    number: int
    name: str
    xxh3: str
    statements: tuple[str, ...]


def schema_files() -> list[SchemaFile]:
    """The files that this version of kgserve brings, in order."""
    packaged = files("kgserve") / "schema"
    folder: Traversable = packaged if packaged.is_dir() else Path(__file__).parents[2] / "schema"
    return sorted((_read(f) for f in folder.iterdir() if f.name.endswith(".cypher")), key=lambda f: f.number)


def create(session: Session) -> None:
    """Give a new engine file its tables and record the files; with columns for extras if the session is whole."""
    session.run(_RECORD)
    for file in schema_files():
        if file.number == EXTRAS and not session.whole:
            continue
        for statement in file.statements:
            session.run(cast("LiteralString", statement))
        session.rows(
            "CREATE (:SchemaFile {number: $number, name: $name, xxh3: $xxh3})",
            {"number": file.number, "name": file.name, "xxh3": file.xxh3},
        )


def is_current(session: Session) -> bool:
    """Whether an engine file has had exactly the files of this version; if not, it is to be built anew."""
    found = [tuple(row) for row in session.rows("MATCH (f:SchemaFile) RETURN f.number, f.xxh3 ORDER BY f.number")]
    whole = [(file.number, file.xxh3) for file in schema_files()]
    return found in (whole, [file for file in whole if file[0] != EXTRAS])


def is_whole(session: Session) -> bool:
    """Whether an engine file has columns for extras. One that is being made may have no tables yet."""
    if ["SchemaFile"] not in session.rows("CALL show_tables() RETURN name"):
        return False
    return bool(session.rows("MATCH (f:SchemaFile {number: $number}) RETURN f.number", {"number": EXTRAS}))


def _read(file: Traversable) -> SchemaFile:
    text = file.read_text(encoding="utf-8")
    statements = tuple(part.strip() for part in text.split(";") if part.strip())
    return SchemaFile(int(file.name[:4]), file.name, xxhash.xxh3_64_hexdigest(text.encode()), statements)
