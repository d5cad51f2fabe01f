"""``kgserve replicate``, ``kgserve follow`` and ``kgserve promote``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgserve.cli.options import SERVER_OPTION_FIELDS, add_setting_options, require_data_folder
from kgserve.cli.serve import serve_stores
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings

if TYPE_CHECKING:
    from kgserve.platform.settings import Settings
    from kgserve.stores.replication.journal_shipper import ShipperOptions


@click.command("replicate")
@click.argument("names", nargs=-1, required=True, metavar="[STORE]... TARGET")
@click.option("--all", "every", is_flag=True, help="Replicate every store, including later ones.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=0.5,
    show_default=True,
    help="Seconds between two looks at the journals. Commits of this time and of one upload can be lost.",
)
@click.option(
    "--keep-hours",
    type=click.FloatRange(1),
    default=168.0,
    show_default=True,
    help="Hours back to which any second can be restored.",
)
@click.option("--take-over", is_flag=True, help="Replace the data folder that was replicated to TARGET before.")
@click.option("--once", is_flag=True, help="Ship what is there, and exit.")
@add_setting_options("data_dir", "log_format", "log_level")
@private_umask()
def replicate_stores_command(
    names: tuple[str, ...],
    *,
    every: bool,
    interval: float,
    keep_hours: float,
    take_over: bool,
    once: bool,
    **values: Any,
) -> None:
    """Ship the given stores, or --all, to TARGET until stopped: a folder, or a URL such as s3://bucket/folder.

    A server may be running; it is not asked and not delayed. TARGET serves `kgserve restore`, `verify` and `follow`.

    Exit codes: 0 when stopped, 1 when TARGET is damaged, belongs to another data folder or was taken over, 2 for wrong
    usage.
    """
    *stores, target = names
    if every == bool(stores):
        raise click.UsageError("Name the stores to replicate before TARGET, or pass --all.")
    from kgserve.stores.replication.journal_shipper import ShipperOptions

    chosen = None if every else frozenset(stores)
    options = ShipperOptions(chosen, interval, keep_hours, take_over)
    _replicate(load_settings(values), target, options, once=once)


def _replicate(settings: Settings, target: str, options: ShipperOptions, *, once: bool) -> None:
    from contextlib import closing

    from kgserve.platform import structured_log
    from kgserve.stores.replication.journal_shipper import JournalShipper
    from kgserve.stores.replication.leader_files import get_or_create_data_folder_identity, lock_replication
    from kgserve.stores.replication.target_address import open_target_storage, require_target_outside

    structured_log.configure_logging(settings.log_format, settings.log_level)
    require_data_folder(settings)
    folder = settings.data_dir.resolve()
    require_target_outside(target, folder)
    with lock_replication(folder, target):
        identity = get_or_create_data_folder_identity(folder)
        shipper = JournalShipper(open_target_storage(target), folder, identity, options)
        with stop_event_on_signals() as stopping, closing(shipper):
            shipper.claim()
            if once:
                shipper.ship()
                shipper.wait_for_bases()
                stopping.set()
            shipper.run(stopping)


@contextmanager
def stop_event_on_signals() -> Generator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set instead of ending the process."""
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command("follow")
@click.argument("target", metavar="TARGET")
@add_setting_options(*(name for name in SERVER_OPTION_FIELDS if name not in {"follow", "cluster"}))
@private_umask()
def follow_target_command(target: str, **values: Any) -> int:
    """Serve a warm, read-only copy of the stores in TARGET, which `kgserve replicate` maintains.

    The same as `kgserve serve --follow TARGET`. Writes are refused; every answer has its age in the header Kgserve-Age.
    """
    return serve_stores({**values, "follow": target})


@click.command("promote")
@click.option("--offline", is_flag=True, help="Use what this copy has. For when the target is lost with the leader.")
@add_setting_options("data_dir")
@private_umask()
def promote_follower_command(*, offline: bool, data_dir: str | None) -> None:
    """Make a stopped follower writable: apply all that was shipped, and refuse what the former leader ships later.

    Start `kgserve serve` afterwards. Exit codes: 0 if the copy is complete and writable, 1 if not; it still follows
    then.
    """
    from kgserve.platform import structured_log
    from kgserve.platform.data_folder_lock import DataFolderLock
    from kgserve.stores.replication.follower import promote_follower

    settings = load_settings({"data_dir": data_dir})
    structured_log.configure_logging(settings.log_format, "error")
    require_data_folder(settings)
    with DataFolderLock(settings.data_dir):
        target = promote_follower(settings, offline=offline)
    click.echo(f"{settings.data_dir} is writable and no longer follows {target}; start it with `kgserve serve`")


def is_replication_target(target: str) -> bool:
    """Return whether a path or URL names a replication target rather than a backup folder."""
    return "://" in target or any((Path(target) / name).is_dir() for name in ("log", "checkpoints"))
