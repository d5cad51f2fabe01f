"""``kgserve backup``, ``kgserve restore`` and ``kgserve verify``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from typing_extensions import override

from kgserve.cli.exit_codes import EXIT_FAILED
from kgserve.cli.options import (
    add_server_options,
    get_click_option_value,
    iterate_server_stores,
    open_server_client,
    require_data_folder,
)
from kgserve.cli.terminal import (
    TerminalTableColumn,
    format_size,
    make_json_option,
    print_json_if_requested,
    print_table_or_tsv,
)
from kgserve.errors import NoStore
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings
from kgserve.stores.backup.api import (
    BackupAnswer,
    BackupVerification,
    PreparedStoreFolder,
    RestoreBackupAnswer,
    RestoredStore,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.admin.backup import StoreRestoreSpec
    from kgserve.client import Client
    from kgserve.platform.settings import Settings
    from kgserve.stores.backup.create import BackupOptions


_BACKUP_COLUMNS = (
    TerminalTableColumn("Store"),
    TerminalTableColumn("From", "number"),
    TerminalTableColumn("To", "number"),
    TerminalTableColumn("Copied", "bytes"),
    TerminalTableColumn("Total", "bytes"),
    TerminalTableColumn("Bases", "number"),
    TerminalTableColumn("Reason for full copy"),
)
_RESTORE_COLUMNS = (
    TerminalTableColumn("Store"),
    TerminalTableColumn("From backup of"),
    TerminalTableColumn("Sequence", "number"),
    TerminalTableColumn("Nodes", "number"),
)
_VERIFY_COLUMNS = (
    TerminalTableColumn("Store"),
    TerminalTableColumn("Result"),
    TerminalTableColumn("From", "number"),
    TerminalTableColumn("To", "number"),
    TerminalTableColumn("Since"),
    TerminalTableColumn("Until"),
    TerminalTableColumn("Runs", "number"),
    TerminalTableColumn("Size", "bytes"),
)
_as_json = make_json_option("Print the result as JSON.")


@click.command("backup")
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@click.option("--to", "folder", required=True, metavar="DIR", help="Backup folder, created or extended.")
@click.option("--full", is_flag=True, help="Copy everything instead of only what is new.")
@click.option("--keep", type=click.IntRange(1), help="Number of newest bases to keep.  [default: all]")
@_as_json
@add_server_options
@private_umask()
def backup_stores_command(stores: tuple[str, ...], folder: str, *, full: bool, keep: int | None) -> int:
    """Back up the given stores, or every store, incrementally.

    A server may be running: the command reads the files in place and does not block writes. With --server, that server
    writes the backup, and DIR is relative to its own backup folder.

    Exit codes: 0 when every store was backed up, 1 when a store failed (its previous backup is unchanged), 2 for wrong
    usage, 3 when no server is reachable.
    """
    if get_click_option_value("server") is not None:
        with open_server_client() as client:
            answer = client.backup_stores(folder, stores=stores or None, full=full, keep=keep)
    else:
        from kgserve.stores.backup.create import BackupOptions

        answer = _back_up(
            load_settings({"data_dir": get_click_option_value("data_dir")}),
            stores,
            Path(folder),
            BackupOptions(live=False, full=full, keep=keep),
        )
    if not print_json_if_requested(answer):
        _show_backup(answer)
    return EXIT_FAILED if answer.failed else 0


def _back_up(settings: Settings, names: Sequence[str], folder: Path, options: BackupOptions) -> BackupAnswer:
    from kgserve.platform.data_folder_lock import DataFolderLock
    from kgserve.platform.server_discovery import find_running_server_of_data_folder
    from kgserve.storage.store_folder_layout import StoreLayout, read_closed_store_state
    from kgserve.stores.backup.create import StoreToBackUp, back_up_all
    from kgserve.stores.backup.folder_layout import BackupFolder
    from kgserve.stores.pool import StorePool

    _log_errors_only(settings)
    require_data_folder(settings)
    if find_running_server_of_data_folder(settings.data_dir) is not None:
        with open_server_client(settings.data_dir) as client:
            data_dir, known_at = settings.data_dir.resolve(), time.time_ns() // 1000
            sequences = _sequences(client)
            wanted = [
                StoreToBackUp(StoreLayout(data_dir, name), partial(sequences.__getitem__, name), known_at)
                for name in _select_stores(names, sequences)
            ]
            return back_up_all(BackupFolder(folder), wanted, msgspec.structs.replace(options, live=True), _announce)
    with DataFolderLock(settings.data_dir), StorePool(settings) as pool:
        wanted = [
            StoreToBackUp(pool.layout(name), lambda name=name: read_closed_store_state(pool.layout(name)).sequence)
            for name in _select_stores(names, dict.fromkeys(pool.names()))
        ]
        return back_up_all(BackupFolder(folder), wanted, options, _announce)


def _sequences(client: Client) -> _Sequences:
    stores = [*iterate_server_stores(client)]
    local = {each.name: each.sequence for each in stores if each.sequence is not None}
    remote = {each.name for each in stores if each.node is not None}
    known = {name: local.get(name, 0) for name in sorted({*local, *remote})}
    return _Sequences(known, lambda name: _replicate_to_owner(client, name), remote)


class _Sequences(dict[str, int]):
    """Last sequence in each store's files. Stores of other nodes are replicated here on first access."""

    def __init__(self, sequences: dict[str, int], replicate: Callable[[str], int], remote: set[str]) -> None:
        super().__init__(sequences)
        self._replicate = replicate
        self._remote = remote

    @override
    def __getitem__(self, name: str) -> int:
        return self._replicate(name) if name in self._remote else super().__getitem__(name)

    def __missing__(self, name: str) -> int:
        raise NoStore(name)


def _replicate_to_owner(client: Client, name: str) -> int:
    """Have the connected node bring its replica of a store up to its owner; return the replica's sequence."""
    from kgserve.client import operations

    def ask(**headers: str) -> int:
        call = operations.stats(name)
        sent = {each.replace("_", "-"): text for each, text in headers.items()}
        return client.connection.answer(msgspec.structs.replace(call, headers=call.headers | sent)).sequence

    at_owner = ask(Kgserve_No_Redirect="1")
    return ask(Kgserve_Read="copy", Kgserve_At_Least=str(at_owner))


def _select_stores(names: Sequence[str], existing: Mapping[str, object]) -> list[str]:
    """Return the named stores without duplicates, or all of them. Raises NotFound when one does not exist."""
    for name in names:
        if name not in existing:
            raise NoStore(name)
    return list(dict.fromkeys(names)) or list(existing)


@click.command("restore")
@click.argument("folder", metavar="DIR")
@click.option("--store", metavar="STORE", help="Store to restore.  [default: every store of the backup]")
@click.option("--as", "into", metavar="NAME", help="Name of the restored store.  [default: the original name]")
@click.option(
    "--until",
    metavar="WHEN",
    help="State to restore: a time such as 2025-07-15T12:00:00Z, or a sequence.  [default: the newest backup]",
)
@_as_json
@add_server_options
@private_umask()
def restore_backup_command(folder: str, *, store: str | None, into: str | None, until: str | None) -> None:
    """Restore one store, or all stores, of the backup in DIR. Existing stores are never replaced.

    A store whose restore fails leaves nothing behind. With --server, DIR is relative to that server's own backup
    folder.

    Exit codes: 0 when everything was restored, 1 when the backup is damaged or the store already exists, 2 for wrong
    usage or a moment that the backup does not cover, 3 when no server is reachable.
    """
    if get_click_option_value("server") is not None:
        with open_server_client() as client:
            answer = client.restore_backup(folder, store=store, into=into, until=until)
    else:
        answer = _restore(
            load_settings({"data_dir": get_click_option_value("data_dir")}), Path(folder), store, into, until
        )
    if not print_json_if_requested(answer):
        print_table_or_tsv(
            _RESTORE_COLUMNS, [(each.store, each.source, each.sequence, each.nodes) for each in answer.stores]
        )


def _restore(
    settings: Settings, folder: Path, store: str | None, into: str | None, until: str | None
) -> RestoreBackupAnswer:
    from kgserve.admin import backup as ops
    from kgserve.platform.data_folder_lock import DataFolderLock
    from kgserve.platform.server_discovery import find_running_server_of_data_folder
    from kgserve.stores.pool import StorePool

    _log_errors_only(settings)
    sources = ops.select_backup_stores_to_restore(folder, store, into, until)
    if find_running_server_of_data_folder(settings.data_dir) is not None:
        with open_server_client(settings.data_dir) as client:
            ops.require_absent_stores(settings.data_dir, sources)
            return RestoreBackupAnswer(stores=[_hand_over(client, settings, folder, source) for source in sources])
    with DataFolderLock(settings.data_dir), StorePool(settings) as pool:
        return ops.restore_stores(pool, folder, sources)


def _hand_over(client: Client, settings: Settings, folder: Path, source: StoreRestoreSpec) -> RestoredStore:
    """Prepare the store's folder in the data folder and have the running server adopt it."""
    import shutil

    from kgserve.admin import backup as ops
    from kgserve.client.operations import RESTORE_BACKUP_ROUTE
    from kgserve.storage.model.store_rows_digest import format_store_rows_digest
    from kgserve.stores.backup.folder_layout import BackupFolder

    started = time.perf_counter()
    data_dir = settings.data_dir.resolve()
    _announce(source.into)
    staging = ops.choose_store_staging_path(data_dir, source.into)
    backups = BackupFolder(folder)
    with backups.reading():
        state = ops.restore_store_to_staging(data_dir, staging, backups.there(source.store), source)
    digest = format_store_rows_digest(state.digest)
    prepared = PreparedStoreFolder(folder=staging.name, store=source.into, sequence=state.sequence, digest=digest)
    try:
        client.connection.answer(
            RESTORE_BACKUP_ROUTE.call({}, body={"prepared": prepared}, wait=None, idempotent=False)
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return ops.build_restored_store_answer(source, state, started)


@click.command("verify")
@click.argument("folder", metavar="DIR")
@click.option("--store", metavar="STORE", help="Store to check.  [default: every store of the backup]")
@_as_json
def verify_backup_command(folder: str, *, store: str | None) -> int:
    """Check a backup: file checksums, journal records and completeness.

    The exit code is 0 when the backup is intact, and 1 otherwise. Each fault is reported with its file and position.
    """
    from kgserve.stores.backup.folder_layout import BackupFolder
    from kgserve.stores.backup.restore import verify_backup

    found = list(verify_backup(BackupFolder(Path(folder)), store))
    if not print_json_if_requested(found):
        _show_verified(found)
    return 0 if all(each.ok for each in found) else EXIT_FAILED


def _show_verified(found: list[BackupVerification]) -> None:
    rows = [
        (each.store, "ok" if base.ok else "BAD", base.first, base.last, base.since, base.until, base.runs, base.bytes)
        for each in found
        for base in each.bases
    ]
    print_table_or_tsv(_VERIFY_COLUMNS, rows)
    for each in found:
        for fault in each.faults:
            click.echo(f"kgserve: {fault}", err=True)
        if each.leftovers:
            click.echo(f"{each.store}: leftovers of an interrupted backup; the next backup removes them", err=True)


def _show_backup(answer: BackupAnswer) -> None:
    rows = [(s.store, s.first, s.sequence, s.bytes_copied, s.bytes_total, s.bases, s.new_base) for s in answer.stores]
    print_table_or_tsv(_BACKUP_COLUMNS, rows)
    for failure in answer.failed:
        click.echo(f"kgserve: {failure.store} backup failed: {failure.error}", err=True)
    if sys.stderr.isatty():
        click.echo(f"{format_size(answer.bytes_copied)} copied to {answer.folder}", err=True)


def _announce(name: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{name} …", err=True)


def _log_errors_only(settings: Settings) -> None:
    from kgserve.platform import structured_log

    structured_log.configure_logging(settings.log_format, "error")
