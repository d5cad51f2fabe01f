"""Opening of a possibly damaged history: keeps intact content, sets the damaged file aside and records gaps."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kgserve.platform.durable_files import fsync_folder
from kgserve.projections.history import history_sql as sql
from kgserve.projections.history import row_format
from kgserve.projections.history.page_checksums import (
    PAGE_HASHES_SUFFIX,
    PageChecksumFile,
    PageChecksumFileHeader,
    find_unused_damaged_file_path,
    page_checksum_path,
    read_page_checksum_file_header,
)
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.history.salvage import (
    MissingHistoryCommitRange,
    SalvagedHistory,
    merge_history_gaps,
    read_intact_history_content,
    salvage_intact_history_content,
)

log = structlog.get_logger()

_LOG_SUFFIXES = ("-wal", "-shm")
_REPLACEMENT_SUFFIX = ".new"
_KEYS_BY_TABLE = {
    "node": (row_format.unpack_history_node, sql.NODE_KEY_COLUMNS),
    "edge": (row_format.unpack_history_edge, sql.EDGE_KEY_COLUMNS),
    "link": (row_format.unpack_history_cross_store_link, sql.LINK_KEY_COLUMNS),
}


class HistoryFault(msgspec.Struct, frozen=True):
    """Damage of a history file: a description, and the file's last seal."""

    reason: str
    sealed: PageChecksumFileHeader | None
    is_older_copy: bool = False
    """True if all rows are intact and only the last commits are missing."""


def open_or_repair_history_file(path: Path, store: str, *, journal_is_complete: bool) -> tuple[HistoryFile, str | None]:
    """Open or create a store's history. Return it with a description of any damage, which is repaired.

    ``journal_is_complete``: the journal has every commit, so a damaged history is rebuilt from it. Raises
    sqlite3.DatabaseError and OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fault = find_history_file_damage(path)
    if fault is None:
        history = HistoryFile(path)
        if not page_checksum_path(path).exists():
            history.checkpoint_and_seal(whole=True)
        return history, None
    if fault.is_older_copy:
        log.error("history_older_copy", store=store, reason=fault.reason)
        lost = f"{fault.reason}; commits in between that the journal no longer has are missing"
        return _open_resealed(path), None if journal_is_complete else lost
    if journal_is_complete:
        aside = move_history_aside(path)
        log.error("history_damaged", store=store, reason=fault.reason, set_aside=_name(aside), made_from="journal")
        return HistoryFile(path), f"{fault.reason}; it was rebuilt from the journal, which is complete"
    found, aside = salvage_history(path)
    counts = {f"{table}s": len(rows) for table, rows in found.rows.items()}
    gaps = [describe_history_gap(gap) for gap in found.gaps[:10]]
    log.error(
        "history_damaged",
        store=store,
        reason=fault.reason,
        set_aside=_name(aside),
        made_from="intact content",
        damaged_pages=found.damaged_pages,
        saved=counts,
        missing=found.missing,
        gaps=gaps,
    )
    return HistoryFile(path), f"{fault.reason}; " + (f"missing: {', '.join(gaps)}" if gaps else "nothing is missing")


def find_history_file_damage(path: Path) -> HistoryFault | None:
    """Return the damage of a file that is not open; None if it is intact, or if no history was ever created.

    Every page is compared with its checksum. Where checksums are missing or belong to another state of the file, as
    after an older version wrote to it, all rows are checked instead. An intact file with fewer commits than its seal is
    an older copy. Raises OSError.
    """
    for each in _files(path):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            return HistoryFault(f"{each.name} is not a regular file", read_page_checksum_file_header(path))
    if not path.exists():
        sealed = read_page_checksum_file_header(path)
        return HistoryFault(f"{path.name} is missing", sealed) if sealed is not None else None
    with closing(PageChecksumFile(path)) as seal:
        sealed = seal.sealed()
        if sealed is None:
            reason = find_damage_in_history_rows(path)
            return HistoryFault(reason, None) if reason else None
        faults = seal.faults(sealed, 1, sealed.pages)
        unknown = seal.pages_with_damaged_checksum(sealed)
    if not faults and not unknown:
        return None
    return _fault_of_pages(path, sealed, faults)


def _fault_of_pages(path: Path, sealed: PageChecksumFileHeader, faults: list[int]) -> HistoryFault | None:
    """Return the damage of a file with mismatching pages or a damaged seal; None if all rows are intact."""
    reason = find_damage_in_history_rows(path)
    seen = _last_sequence(path)
    if reason is None and 0 <= seen < sealed.sequence and faults:
        return HistoryFault(_describe_older_copy(path, seen, sealed), sealed, is_older_copy=True)
    if reason is None and seen >= 0 and (not faults or seen != sealed.sequence):
        log.warning("history_sealed_again", file=path.name, sequence=seen, sealed=sealed.sequence)
        page_checksum_path(path).unlink(missing_ok=True)
        return None
    some = ", ".join(map(str, faults[:10])) + (f" and {len(faults) - 10} more" if len(faults) > 10 else "")  # noqa: PLR2004
    return HistoryFault(f"pages do not match their checksums: {some}; {reason or 'all rows are intact'}", sealed)


def _open_resealed(path: Path) -> HistoryFile:
    page_checksum_path(path).unlink(missing_ok=True)
    history = HistoryFile(path)
    history.checkpoint_and_seal(whole=True)
    return history


def _describe_older_copy(path: Path, seen: int, sealed: PageChecksumFileHeader) -> str:
    return f"{path.name} is an older copy: it ends at sequence {seen}, its checksums at sequence {sealed.sequence}"


def find_damage_in_history_rows(path: Path) -> str | None:
    """Return the damage of a file's rows, without the use of page checksums; None if they are intact."""
    try:
        with _reading(path) as connection:
            return next(_faults(connection), None)
    except (sqlite3.Error, msgspec.MsgspecError, ValueError) as error:
        return str(error)


def salvage_history(path: Path) -> tuple[SalvagedHistory, Path | None]:
    """Replace a file with its intact content. Return that content, and the new path of the damaged file.

    Raises OSError and sqlite3.Error.
    """
    for each in _files(path):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            each.rename(find_unused_damaged_file_path(each))
    aside = None
    if not path.exists():
        path.touch(0o600)
    with closing(PageChecksumFile(path)) as seal:
        sealed = seal.sealed()
        if sealed is not None and _last_sequence(path) == sealed.sequence and not find_damage_in_history_rows(path):
            # Only checksums of pages are wrong, such as those of a server that was killed before they were written.
            with _reading(path) as connection:
                found = read_intact_history_content(connection)
        else:
            found = salvage_intact_history_content(path, seal, sealed)
    new = path.with_name(path.name + _REPLACEMENT_SUFFIX)
    for each in (new, *(new.with_name(new.name + suffix) for suffix in (*_LOG_SUFFIXES, PAGE_HASHES_SUFFIX))):
        each.unlink(missing_ok=True)
    with closing(HistoryFile(new)) as history:
        history.load_salvaged_content(found)
    if path.stat().st_size:
        aside = find_unused_damaged_file_path(path)
        os.link(path, aside)
    # If the process ends here, the old file is still complete, only without its seal.
    page_checksum_path(path).unlink(missing_ok=True)
    _move_logs(path, aside)
    new.replace(path)
    page_checksum_path(new).replace(page_checksum_path(path))
    fsync_folder(path.parent)
    return found, aside


def move_history_aside(path: Path) -> Path | None:
    """Rename an unusable file and its log. Return the new path, None if the file did not exist."""
    aside = None
    if path.is_symlink() or path.exists():
        aside = find_unused_damaged_file_path(path)
        path.rename(aside)
    _move_logs(path, aside)
    seal = page_checksum_path(path)
    if seal.is_dir() and not seal.is_symlink():
        seal.rename(find_unused_damaged_file_path(seal))
    seal.unlink(missing_ok=True)
    fsync_folder(path.parent)
    return aside


def delete_store_history_files(path: Path) -> None:
    """Delete a history; damaged files that were set aside are kept."""
    for each in _files(path):
        each.unlink(missing_ok=True)


def read_history_gaps(path: Path) -> list[MissingHistoryCommitRange]:
    """Return the gaps recorded in an intact history file, which may be open. Raises sqlite3.Error."""
    with _reading(path) as connection:
        if not connection.execute(sql.SELECT_HAS_GAP_TABLE).fetchone()[0]:
            return []
        return merge_history_gaps(MissingHistoryCommitRange(*found) for found in connection.execute(sql.SELECT_GAPS))


def read_history_commit_times_after_time(path: Path, time: int) -> list[int]:
    """Return the times of commits after a time, in microseconds. The file may be open. Raises sqlite3.Error."""
    with _reading(path) as connection:
        return [found for (found,) in connection.execute(sql.SELECT_COMMIT_TIMES_AFTER, {"time": time})]


def _reading(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))


def describe_history_gap(gap: MissingHistoryCommitRange) -> str:
    """Return a readable description of a gap."""
    until = "now" if gap.last is None else str(gap.last)
    return f"{gap.table}s from sequence {gap.first} to {until}"


def _move_logs(path: Path, aside: Path | None) -> None:
    for suffix in _LOG_SUFFIXES:
        log_ = path.with_name(path.name + suffix)
        if log_.is_symlink() or log_.exists():
            name = find_unused_damaged_file_path(path) if aside is None else aside
            log_.rename(name.with_name(name.name + suffix))


def _files(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + suffix) for suffix in (*_LOG_SUFFIXES, PAGE_HASHES_SUFFIX))]


def _name(path: Path | None) -> str | None:
    return None if path is None else path.name


def _last_sequence(path: Path) -> int:
    try:
        with _reading(path) as connection:
            return connection.execute(sql.SELECT_EXTENT).fetchone()[0]
    except (sqlite3.Error, TypeError):
        return -1


def _faults(connection: sqlite3.Connection) -> Iterator[str]:
    [(found,)] = connection.execute("PRAGMA integrity_check(1)")
    if found != "ok":
        yield str(found)
    if connection.execute(sql.SELECT_IS_FOREIGN, {"version": sql.HISTORY_VERSION}).fetchone()[0]:
        yield "it is not a history file"
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and connection.execute(sql.SELECT_EXTENT).fetchone() is None:
        yield "its position is missing"
    for table, (unpack, key) in _KEYS_BY_TABLE.items():
        if table in tables:
            yield from _faults_of(connection, table, unpack, key)
            statement = (
                sql.SELECT_INCONSISTENT_STATES[table]
                if "gap" in tables
                else sql.SELECT_INCONSISTENT_STATES[table].replace(sql.HAS_NO_GAPS, "")
            )
            for (number,) in connection.execute(statement):
                yield f"row {number} of the {table}s has times that differ from those of its commits"


def _faults_of(connection: sqlite3.Connection, table: str, unpack: Callable[..., Any], key: str) -> Iterator[str]:
    rows = connection.execute(f"SELECT CAST(row AS BLOB), hash, {key}, rowid FROM {table}")  # noqa: S608 - constants
    for *row, number in rows:
        if unpack(*row) is None:
            yield f"row {number} of the {table}s does not match its checksum"
