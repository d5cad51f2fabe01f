"""``kgserve backup``, ``kgserve restore`` and ``kgserve verify``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from typing_extensions import override

from kgserve.cli.exit_codes import EXIT_FAILED
from kgserve.cli.options import connect, given, require_data, server_options
from kgserve.cli.terminal import TableColumn, as_size, json_option, show_table, told_as_json
from kgserve.errors import NoStore
from kgserve.platform.permissions import private_files
from kgserve.platform.settings import load
from kgserve.stores.backup.api import BackupAnswer, PreparedStore, RestoreBackupAnswer, RestoredStore, VerifiedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.admin.backup import Source
    from kgserve.client import Client
    from kgserve.platform.settings import Settings
    from kgserve.stores.backup.create import BackupOptions


_BACKUP_COLUMNS = (
    TableColumn("Store"),
    TableColumn("From", "number"),
    TableColumn("To", "number"),
    TableColumn("Copied", "bytes"),
    TableColumn("In all", "bytes"),
    TableColumn("Bases", "number"),
    TableColumn("Full copy because"),
)
_RESTORE_COLUMNS = (
    TableColumn("Store"),
    TableColumn("From backup of"),
    TableColumn("Sequence", "number"),
    TableColumn("Nodes", "number"),
)
_VERIFY_COLUMNS = (
    TableColumn("Store"),
    TableColumn("Result"),
    TableColumn("From", "number"),
    TableColumn("To", "number"),
    TableColumn("Since"),
    TableColumn("Until"),
    TableColumn("Runs", "number"),
    TableColumn("Size", "bytes"),
)
_as_json = json_option("Print the result as JSON.")


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@click.option("--to", "folder", required=True, metavar="DIR", help="Folder to keep the backup in, and to add to.")
@click.option("--full", is_flag=True, help="Copy everything, not only what is new.")
@click.option("--keep", type=click.IntRange(1), help="Keep this many bases, the newest.  [default: all]")
@_as_json
@server_options
@private_files()
def backup(stores: tuple[str, ...], folder: str, *, full: bool, keep: int | None) -> int:
    """Back up STORE, or every store, whether a server runs or not; only what is new since the last time is copied.

    The files of the data folder are read where they are, beside a running server, and no write waits for it. With
    --server the server of that address makes the backup, and DIR lies below its own folder for backups.

    The exit code is 0 when every store was backed up, 1 when one was not (its former backup is as it was), 2 for wrong
    usage, and 3 when no server answers.
    """
    if given("server") is not None:
        with connect() as client:
            answer = client.backup_stores(folder, stores=stores or None, full=full, keep=keep)
    else:
        from kgserve.stores.backup.create import BackupOptions

        answer = _back_up(
            load({"data_dir": given("data_dir")}), stores, Path(folder), BackupOptions(live=False, full=full, keep=keep)
        )
    if not told_as_json(answer):
        _show_backup(answer)
    return EXIT_FAILED if answer.failed else 0


def _back_up(settings: Settings, names: Sequence[str], folder: Path, ways: BackupOptions) -> BackupAnswer:
    from kgserve.platform.lock import DataFolderLock
    from kgserve.platform.server_discovery import find
    from kgserve.storage.layout import Layout, closed_state
    from kgserve.stores.backup.create import BackupSource, back_up
    from kgserve.stores.backup.folder import BackupFolder
    from kgserve.stores.pool import StorePool

    _log_errors_only(settings)
    require_data(settings)
    if find(settings.data_dir) is not None:
        with connect(settings.data_dir) as client:
            wanted = [
                BackupSource(Layout(settings.data_dir.resolve(), name), lambda name=name: _sequences(client)[name])
                for name in _chosen(names, list(_sequences(client)))
            ]
            return back_up(BackupFolder(folder), wanted, msgspec.structs.replace(ways, live=True), _announce)
    with DataFolderLock(settings.data_dir), StorePool(settings) as pool:
        wanted = [
            BackupSource(pool.layout(name), lambda name=name: closed_state(pool.layout(name)).sequence)
            for name in _chosen(names, pool.names())
        ]
        return back_up(BackupFolder(folder), wanted, ways, _announce)


def _sequences(client: Client) -> _Sequences:
    stores = client.stores().stores
    away = {each.name for each in stores if each.node is not None}
    return _Sequences({each.name: each.sequence for each in stores}, lambda name: _copied(client, name), away)


class _Sequences(dict[str, int]):
    """How far the files of each store have come. Those that other nodes serve are ``copied`` here when asked for."""

    def __init__(self, sequences: dict[str, int], copied: Callable[[str], int], away: set[str]) -> None:
        super().__init__(sequences)
        self._copied = copied
        self._away = away

    @override
    def __getitem__(self, name: str) -> int:
        return self._copied(name) if name in self._away else super().__getitem__(name)

    def __missing__(self, name: str) -> int:
        raise NoStore(name)


def _copied(client: Client, name: str) -> int:
    """Have the node that is asked bring its copy of a store to where its owner is now; the sequence of the copy."""
    from kgserve.client import operations

    def ask(**headers: str) -> int:
        call = operations.stats(name)
        sent = {each.replace("_", "-"): text for each, text in headers.items()}
        return client.connection.answer(msgspec.structs.replace(call, headers=call.headers | sent)).sequence

    at_owner = ask(Kgserve_No_Redirect="1")
    return ask(Kgserve_Read="copy", Kgserve_At_Least=str(at_owner))


def _chosen(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """The stores that were named, or all. Raises NotFound."""
    for name in names:
        if name not in there:
            raise NoStore(name)
    return list(dict.fromkeys(names)) or list(there)


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--store", metavar="STORE", help="The store to restore.  [default: every store of the backup]")
@click.option("--as", "into", metavar="NAME", help="Name of the restored store.  [default: its own]")
@click.option(
    "--until",
    metavar="WHEN",
    help="Restore it as it was then: a time such as 2025-07-15T12:00:00Z, or a sequence.  [default: the newest backup]",
)
@_as_json
@server_options
@private_files()
def restore(folder: str, *, store: str | None, into: str | None, until: str | None) -> None:
    """Make a store, or all stores of a backup, out of DIR; a store that exists is never replaced.

    Nothing is left of a store whose restore fails. With --server the server of that address reads DIR below its own
    folder for backups.

    The exit code is 0 when all is restored, 1 when something stands in the way, such as a damaged backup or a store of
    that name, 2 for wrong usage or a moment that is not covered, and 3 when no server answers.
    """
    if given("server") is not None:
        with connect() as client:
            answer = client.restore_backup(folder, store=store, into=into, until=until)
    else:
        answer = _restore(load({"data_dir": given("data_dir")}), Path(folder), store, into, until)
    if not told_as_json(answer):
        show_table(_RESTORE_COLUMNS, [(each.store, each.source, each.sequence, each.nodes) for each in answer.stores])


def _restore(
    settings: Settings, folder: Path, store: str | None, into: str | None, until: str | None
) -> RestoreBackupAnswer:
    from kgserve.admin import backup as ops
    from kgserve.platform.lock import DataFolderLock
    from kgserve.platform.server_discovery import find
    from kgserve.stores.pool import StorePool

    _log_errors_only(settings)
    sources = ops.sources(folder, store, into, until)
    if find(settings.data_dir) is not None:
        with connect(settings.data_dir) as client:
            ops.require_free(settings.data_dir, sources)
            return RestoreBackupAnswer(stores=[_hand_over(client, settings, folder, source) for source in sources])
    with DataFolderLock(settings.data_dir), StorePool(settings) as pool:
        return ops.restore(pool, folder, sources)


def _hand_over(client: Client, settings: Settings, folder: Path, source: Source) -> RestoredStore:
    """Make the store's folder beside the others, and have the running server take it."""
    import shutil
    import time

    from kgserve.admin import backup as ops
    from kgserve.client.operations import RESTORE_BACKUP_ROUTE
    from kgserve.storage.model.digest import to_text
    from kgserve.stores.backup.folder import BackupFolder

    started = time.perf_counter()
    data_dir = settings.data_dir.resolve()
    _announce(source.into)
    staging = ops.staging(data_dir, source.into)
    backups = BackupFolder(folder)
    with backups.reading():
        state = ops.prepare(data_dir, staging, backups.there(source.store), source)
    digest = to_text(state.digest)
    prepared = PreparedStore(folder=staging.name, store=source.into, sequence=state.sequence, digest=digest)
    try:
        client.connection.answer(
            RESTORE_BACKUP_ROUTE.call({}, body={"prepared": prepared}, wait=None, idempotent=False)
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return ops.restored(source, state, started)


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--store", metavar="STORE", help="Look at one store alone.  [default: every store of the backup]")
@_as_json
def verify(folder: str, *, store: str | None) -> int:
    """Check a backup: every file against its checksum, every record of the journals, and that nothing is missing.

    The exit code is 0 when it is whole, and 1 when anything is wrong; each fault is told with the file and the place.
    """
    from kgserve.stores.backup.folder import BackupFolder
    from kgserve.stores.backup.restore import verify as look

    found = list(look(BackupFolder(Path(folder)), store))
    if not told_as_json(found):
        _show_verified(found)
    return 0 if all(each.ok for each in found) else EXIT_FAILED


def _show_verified(found: list[VerifiedStore]) -> None:
    rows = [
        (each.store, "ok" if base.ok else "BAD", base.first, base.last, base.since, base.until, base.runs, base.bytes)
        for each in found
        for base in each.bases
    ]
    show_table(_VERIFY_COLUMNS, rows)
    for each in found:
        for fault in each.faults:
            click.echo(f"kgserve: {fault}", err=True)
        if each.leftovers:
            click.echo(f"{each.store}: an interrupted backup has left files; the next one removes them", err=True)


def _show_backup(answer: BackupAnswer) -> None:
    rows = [(s.store, s.first, s.sequence, s.bytes_copied, s.bytes_total, s.bases, s.new_base) for s in answer.stores]
    show_table(_BACKUP_COLUMNS, rows)
    for failure in answer.failed:
        click.echo(f"kgserve: {failure.store} was not backed up: {failure.error}", err=True)
    if sys.stderr.isatty():
        click.echo(f"{as_size(answer.bytes_copied)} copied to {answer.folder}", err=True)


def _announce(name: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{name} …", err=True)


def _log_errors_only(settings: Settings) -> None:
    from kgserve.platform import log

    log.configure(settings.log_format, "error")
