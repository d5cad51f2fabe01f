"""``kgserve doctor``."""

from __future__ import annotations

from typing import Any

import click

from kgserve.cli.options import load, require_data, settings_options
from kgserve.cli.terminal import Column, show_table
from kgserve.permissions import private_files

COLUMNS = (Column("Store"), Column("Part"), Column("Result"), Column("Detail"))


@click.command()
@click.argument("store", required=False)
@click.option("--rebuild", is_flag=True, help="Build the engine's file anew from snapshot and journal.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Cut a damaged journal at its last whole record; what followed comes back as far as the history has it.",
)
@settings_options("data_dir", "log_format", "engine", "buffer_pool_mb", "engine_threads")
@private_files()
def doctor(store: str | None, *, rebuild: bool, salvage: bool, **values: Any) -> int:
    """Check journal, snapshot and engine file of STORE, or of every store, while no server is running.

    Files and folders of the data folder that other users of the machine may read are told, and closed to them.

    How a running server's engines fare, their processes and memory, `kgserve top` shows.

    The exit code is 1 if anything is found.
    """
    settings = load(values)
    require_data(settings)
    from kgserve import log
    from kgserve.ops.doctor import doctor as examine
    from kgserve.ops.doctor import examine_folder
    from kgserve.store.lock import DataFolderLock

    log.configure(settings.log_format, "error")  # the table says the rest
    with DataFolderLock(settings.data_dir) as lock:
        reports = [*examine_folder(settings, lock.mended), *examine(settings, store, rebuild=rebuild, salvage=salvage)]
    rows = [
        (report.store, finding.part, "ok" if finding.ok else "BAD", finding.detail)
        for report in reports
        for finding in report.findings
    ]
    show_table(COLUMNS, rows)
    return 0 if all(report.ok for report in reports) else 1
