"""Opening a history that may have been damaged: what is whole is kept, what was there is set aside, gaps are named."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kgserve.platform.durable_files import sync_folder
from kgserve.projections.history import packing
from kgserve.projections.history import statements as sql
from kgserve.projections.history.history import History
from kgserve.projections.history.salvage import Gap, Salvaged, merged, read_whole
from kgserve.projections.history.seal import PAGE_HASHES_SUFFIX, PageSeal, Sealed, free_name, seal_path, sealed_of

log = structlog.get_logger()

_LOG_SUFFIXES = ("-wal", "-shm")
_REPLACEMENT_SUFFIX = ".new"
_KEYS_BY_TABLE = {
    "node": (packing.node, sql.NODE_KEY_COLUMNS),
    "edge": (packing.edge, sql.EDGE_KEY_COLUMNS),
    "link": (packing.link, sql.LINK_KEY_COLUMNS),
}


class HistoryFault(msgspec.Struct, frozen=True):
    """What is wrong with a history's file, in words, and what is known of how it was."""

    reason: str
    sealed: Sealed | None
    is_older_copy: bool = False
    """Whether all rows are whole, and only the last commits are missing."""


def open_history(path: Path, store: str, *, told_by_journal: bool) -> tuple[History, str | None]:
    """Open or make a store's history, and what was wrong with it: what is damaged is set aside, what is whole is kept.

    ``told_by_journal``: the journal has all that it ever had, so that it begins again instead. Raises
    sqlite3.DatabaseError, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fault = find_fault(path)
    if fault is None:
        history = History(path)
        if not seal_path(path).exists():
            history.settle(whole=True)
        return history, None
    if fault.is_older_copy:
        log.error("history_older_copy", store=store, reason=fault.reason)
        lost = f"{fault.reason}; what the journal no longer has of these commits is missing"
        return _sealed_again(path), None if told_by_journal else lost
    if told_by_journal:
        aside = set_aside(path)
        log.error("history_damaged", store=store, reason=fault.reason, set_aside=_name(aside), made_from="journal")
        return History(path), f"{fault.reason}; it was made from the journal, which has all of it"
    found, aside = salvage_history(path)
    counts = {f"{table}s": len(rows) for table, rows in found.rows.items()}
    gaps = [describe_gap(gap) for gap in found.gaps[:10]]
    log.error(
        "history_damaged",
        store=store,
        reason=fault.reason,
        set_aside=_name(aside),
        made_from="what is whole of it",
        damaged_pages=found.damaged_pages,
        saved=counts,
        missing=found.missing,
        gaps=gaps,
    )
    return History(path), f"{fault.reason}; " + (f"missing: {', '.join(gaps)}" if gaps else "nothing is missing")


def find_fault(path: Path) -> HistoryFault | None:
    """What is wrong with a file that is not open; None when it is whole, or when there is none and never was one.

    Every page is compared with its checksum. Where these are missing or of another state of the file, as after an
    older version wrote to it, all rows are checked instead. A whole file that has seen less than its checksums say is
    an older copy. Raises OSError.
    """
    for each in _files(path):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            return HistoryFault(f"{each.name} is no file", sealed_of(path))
    if not path.exists():
        sealed = sealed_of(path)
        return HistoryFault(f"{path.name} is missing", sealed) if sealed is not None else None
    with closing(PageSeal(path)) as seal:
        sealed = seal.sealed()
        if sealed is None:
            reason = fault_of_rows(path)
            return HistoryFault(reason, None) if reason else None
        faults = seal.faults(sealed, 1, sealed.pages)
        unknown = seal.unknown(sealed)
    if not faults and not unknown:
        return None
    return _fault_of_pages(path, sealed, faults)


def _fault_of_pages(path: Path, sealed: Sealed, faults: list[int]) -> HistoryFault | None:
    """What is wrong with a file of which some pages do not fit, or whose seal is damaged; None for a whole one."""
    reason = fault_of_rows(path)
    seen = _seen(path)
    if reason is None and 0 <= seen < sealed.sequence and faults:
        return HistoryFault(_describe_older_copy(path, seen, sealed), sealed, is_older_copy=True)
    if reason is None and seen >= 0 and (not faults or seen != sealed.sequence):
        log.warning("history_sealed_again", file=path.name, sequence=seen, sealed=sealed.sequence)
        seal_path(path).unlink(missing_ok=True)
        return None
    some = ", ".join(map(str, faults[:10])) + (f" and {len(faults) - 10} more" if len(faults) > 10 else "")  # noqa: PLR2004
    return HistoryFault(f"pages that are not as they were written: {some}; {reason or 'all rows are whole'}", sealed)


def _sealed_again(path: Path) -> History:
    seal_path(path).unlink(missing_ok=True)
    history = History(path)
    history.settle(whole=True)
    return history


def _describe_older_copy(path: Path, seen: int, sealed: Sealed) -> str:
    return f"{path.name} is an older copy: it ends at sequence {seen}, its checksums at sequence {sealed.sequence}"


def fault_of_rows(path: Path) -> str | None:
    """What is wrong with the rows of a file, whose pages nothing is known of; None if nothing is."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return next(_faults(connection), None)
    except (sqlite3.Error, msgspec.MsgspecError, ValueError) as error:
        return str(error)


def salvage_history(path: Path) -> tuple[Salvaged, Path | None]:
    """Take what is whole of a file over into another in its place, and where the former one is now.

    Raises OSError, sqlite3.Error.
    """
    for each in _files(path):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            each.rename(free_name(each))
    aside = None
    if not path.exists():
        path.touch(0o600)
    with closing(PageSeal(path)) as seal:
        found = read_whole(path, seal, seal.sealed())
    new = path.with_name(path.name + _REPLACEMENT_SUFFIX)
    for each in (new, *(new.with_name(new.name + suffix) for suffix in (*_LOG_SUFFIXES, PAGE_HASHES_SUFFIX))):
        each.unlink(missing_ok=True)
    with closing(History(new)) as history:
        history.fill(found)
    if path.stat().st_size:
        aside = free_name(path)
        os.link(path, aside)
    # Without its seal the old file is still what it was, should this be as far as it goes.
    seal_path(path).unlink(missing_ok=True)
    _move_logs(path, aside)
    new.replace(path)
    seal_path(new).replace(seal_path(path))
    sync_folder(path.parent)
    return found, aside


def set_aside(path: Path) -> Path | None:
    """Move a file that cannot be used out of the way, with its log; where it is now, None where there was none."""
    aside = None
    if path.is_symlink() or path.exists():
        aside = free_name(path)
        path.rename(aside)
    _move_logs(path, aside)
    seal = seal_path(path)
    if seal.is_dir() and not seal.is_symlink():
        seal.rename(free_name(seal))
    seal.unlink(missing_ok=True)
    sync_folder(path.parent)
    return aside


def remove_history(path: Path) -> None:
    """Delete a history that is no longer wanted; what was set aside of it stays."""
    for each in _files(path):
        each.unlink(missing_ok=True)


def gaps_of(path: Path) -> list[Gap]:
    """What is missing of a file that is whole otherwise; it may be open. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if not connection.execute(sql.SELECT_HAS_GAP_TABLE).fetchone()[0]:
            return []
        return merged(Gap(*found) for found in connection.execute(sql.SELECT_GAPS))


def describe_gap(gap: Gap) -> str:
    """A gap in words."""
    until = "now" if gap.last is None else str(gap.last)
    return f"{gap.table}s from sequence {gap.first} to {until}"


def _move_logs(path: Path, aside: Path | None) -> None:
    for suffix in _LOG_SUFFIXES:
        log_ = path.with_name(path.name + suffix)
        if log_.is_symlink() or log_.exists():
            name = free_name(path) if aside is None else aside
            log_.rename(name.with_name(name.name + suffix))


def _files(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + suffix) for suffix in (*_LOG_SUFFIXES, PAGE_HASHES_SUFFIX))]


def _name(path: Path | None) -> str | None:
    return None if path is None else path.name


def _seen(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(sql.SELECT_EXTENT).fetchone()[0]
    except (sqlite3.Error, TypeError):
        return -1


def _faults(connection: sqlite3.Connection) -> Iterator[str]:
    [(found,)] = connection.execute("PRAGMA integrity_check(1)")
    if found != "ok":
        yield str(found)
    if connection.execute(sql.SELECT_IS_FOREIGN, {"version": sql.HISTORY_VERSION}).fetchone()[0]:
        yield "it is of another kind"
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and connection.execute(sql.SELECT_EXTENT).fetchone() is None:
        yield "it does not say what it has seen"
    for table, (unpack, key) in _KEYS_BY_TABLE.items():
        if table in tables:
            yield from _faults_of(connection, table, unpack, key)
            statement = (
                sql.SELECT_INCONSISTENT_STATES[table]
                if "gap" in tables
                else sql.SELECT_INCONSISTENT_STATES[table].replace(sql.HAS_NO_GAPS, "")
            )
            for (number,) in connection.execute(statement):
                yield f"row {number} of the {table}s held between commits that have other times"


def _faults_of(connection: sqlite3.Connection, table: str, unpack: Callable[..., Any], key: str) -> Iterator[str]:
    rows = connection.execute(f"SELECT CAST(row AS BLOB), hash, {key}, rowid FROM {table}")  # noqa: S608 - constants
    for *row, number in rows:
        if unpack(*row) is None:
            yield f"row {number} of the {table}s does not fit its checksum"
