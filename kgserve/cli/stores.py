"""``kgserve stores``, ``create``, ``settings``, ``drop``, ``reindex``, ``prune-history``, ``doctor``: whole stores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import click
import msgspec
from typing_extensions import override

from kgserve.admin.store_admin_models import (
    MAX_LISTED_STORES,
    StoreList,
    StoreListState,
    StoreSettingsAnswer,
    StoreStats,
    StoreSummary,
)
from kgserve.cli.options import (
    RequestFailedOnServer,
    add_server_options,
    add_setting_options,
    get_click_option_value,
    open_server_client,
    require_data_folder,
)
from kgserve.cli.terminal import (
    IndexProgressDisplay,
    TerminalTableColumn,
    as_json_option,
    print_json_if_requested,
    print_table_or_tsv,
)
from kgserve.errors import KgserveError
from kgserve.platform.codecs import decode_json
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings
from kgserve.storage.model.projection_statuses import IndexStatus
from kgserve.storage.model.store_settings import StoreSettings

if TYPE_CHECKING:
    from kgserve.client import Client

STORE_COLUMNS = (
    TerminalTableColumn("Name"),
    TerminalTableColumn("State"),
    TerminalTableColumn("Nodes", "number"),
    TerminalTableColumn("Edges", "number"),
    TerminalTableColumn("Sequence", "number"),
    TerminalTableColumn("Journal", "bytes"),
    TerminalTableColumn("Engine", "bytes"),
    TerminalTableColumn("Lag", "number"),
    TerminalTableColumn("Last check"),
)
INDEX_COLUMNS = (
    TerminalTableColumn("Keyword lag", "number"),
    TerminalTableColumn("Vector lag", "number"),
    TerminalTableColumn("Pending", "number"),
    TerminalTableColumn("Index error"),
)
FINDING_COLUMNS = (
    TerminalTableColumn("Store"),
    TerminalTableColumn("Part"),
    TerminalTableColumn("Result"),
    TerminalTableColumn("Detail"),
)

INDEX_POLL_SECONDS = 0.25
INDEX_ERROR_TIMEOUT_SECONDS = 5.0
"""Seconds without progress after which an index's error is reported; indexes retry automatically."""


@click.command("stores")
@as_json_option
@click.option("--indexes", is_flag=True, help="Also show the lag of the indexes of open stores.")
@click.option("--prefix", default="", metavar="TEXT", help="Only stores whose names begin with TEXT.")
@click.option("--state", type=click.Choice(get_args(StoreListState)), help="Only stores in this state.")
@click.option("--kind", metavar="TYPE", help="Only stores whose settings allow nodes of this type.")
@click.option("--limit", type=click.IntRange(1, MAX_LISTED_STORES), help="Show at most this many.  [default: all]")
@click.option("--after", default="", metavar="STORE", help="Begin after this store; with --limit, the next page.")
@add_server_options
def list_stores_command(*, indexes: bool, limit: int | None, after: str, **filters: Any) -> None:
    """List the stores of a running server, with counts and sizes on disk.

    For open stores, also show the lag: the number of commits that the slowest index or the history has not applied yet.
    The last check compared engine and journal.

    With --indexes, also show the commits that each index has not applied yet, its pending entities, and its error. The
    columns are empty for closed stores, which are not opened for this.
    """
    if get_click_option_value("as_json") and indexes:
        raise click.UsageError("--json cannot be combined with --indexes.")
    with open_server_client() as client:
        answer = client.stores(limit=limit or MAX_LISTED_STORES, after=after, **filters)
        while limit is None and answer.next_after is not None:
            page = client.stores(after=answer.next_after, **filters)
            answer = StoreList(stores=answer.stores + page.stores, count=page.count, next_after=page.next_after)
        shown = [_row(each) + (_index_cells(client, each) if indexes else ()) for each in answer.stores]
    if print_json_if_requested(answer):
        return
    print_table_or_tsv(STORE_COLUMNS + INDEX_COLUMNS if indexes else STORE_COLUMNS, shown)
    if answer.next_after is not None:
        click.echo(f"{answer.count:,} stores; the next page: --after {answer.next_after}", err=True)


@click.command("reindex")
@click.argument("store")
@add_server_options
def rebuild_indexes_command(store: str) -> int:
    """Rebuild both indexes of STORE, vectors with the server's current model, and wait until they are complete.

    Interrupting the command does not stop the rebuild. The exit code is 1 if an index cannot be built.
    """
    with open_server_client() as client:
        handle = client.store(store)
        for index in wait_until_indexes_complete(handle.stats, handle.reindex().sequence):
            click.echo(f"{index.name}: {index.entities:,} entities, model {index.model}, sequence {index.sequence:,}")
    return 0


@click.command("prune-history")
@click.argument("store")
@click.option(
    "--before",
    metavar="WHEN",
    help="Delete states that ended before this: a time such as 2025-07-15T12:00:00Z, a sequence, or days such as 30d.  "
    "[default: the store's setting]",
)
@add_server_options
def prune_history_command(store: str, before: str | None) -> None:
    """Permanently delete previous states of STORE's nodes and edges, and report how many.

    Current states are kept, and so are the states at that moment and since.
    """
    with open_server_client() as client:
        done = client.store(store).prune_history(before)
    states = "1 state" if done.pruned == 1 else f"{done.pruned:,} states"
    known = f"available from sequence {done.oldest:,} on" if done.oldest else "available from the beginning"
    click.echo(f"{store}: {states} deleted; its history is {known}")


@click.command("doctor")
@click.argument("store", required=False)
@click.option("--rebuild", is_flag=True, help="Rebuild the engine's file from snapshot and journal.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Truncate a damaged journal after its last valid record; the history restores later commits if it can.",
)
@click.option(
    "--repair-times",
    is_flag=True,
    help="Set timestamps in the future, written under a clock that was ahead, to the current time in a new commit.",
)
@add_setting_options("data_dir", "log_format", "engine", "buffer_pool_mb", "engine_threads")
@private_umask()
def check_stores_command(store: str | None, *, rebuild: bool, salvage: bool, repair_times: bool, **values: Any) -> int:
    """Check journal, snapshot and engine file of STORE, or of every store, while no server is running.

    Also removes read permissions of other users from the data folder's files, and reports them.

    For the engine processes and memory of a running server, see `kgserve top`.

    The exit code is 1 if a fault is found.
    """
    settings = load_settings(values)
    require_data_folder(settings)
    from kgserve.admin.doctor import StoreRepairOptions, check_data_folder, require_repairs_in_place
    from kgserve.admin.doctor import repair_and_check_stores as examine
    from kgserve.platform import structured_log
    from kgserve.platform.data_folder_lock import DataFolderLock

    structured_log.configure_logging(settings.log_format, "error")  # findings are shown in the table
    repairs = StoreRepairOptions(rebuild=rebuild, salvage=salvage, times=repair_times)
    require_repairs_in_place(settings.data_dir, repairs)
    with DataFolderLock(settings.data_dir) as lock:
        reports = [*check_data_folder(settings, store, lock.mended), *examine(settings, store, repairs)]
    rows = [
        (report.store, finding.part, "ok" if finding.ok else "BAD", finding.detail)
        for report in reports
        for finding in report.findings
    ]
    print_table_or_tsv(FINDING_COLUMNS, rows)
    return 0 if all(report.ok for report in reports) else 1


def wait_until_indexes_complete(stats: Callable[[], StoreStats], sequence: int) -> list[IndexStatus]:
    """Wait until both indexes have applied commit ``sequence`` and have nothing pending; show progress on a terminal.

    ``stats`` returns the store's current statistics. Raises ClickException when indexes are disabled, or one makes no
    progress because of an error.
    """
    with IndexProgressDisplay() as progress:
        stall_detector = _StallDetector()
        while True:
            indexes = _current_indexes(stats())
            progress.show(indexes)
            if all(_is_complete(index, sequence) for index in indexes):
                return indexes
            stall_detector.check(indexes)
            time.sleep(INDEX_POLL_SECONDS)


def _row(each: StoreSummary) -> tuple[Any, ...]:
    counts = (each.nodes, each.edges, each.sequence, each.journal_bytes, each.engine_bytes)
    return each.name, each.state, *("" if count is None else count for count in (*counts, each.lag)), _last_check(each)


def _last_check(each: StoreSummary) -> str:
    if each.last_check is None:
        return ""
    return f"{'agreed' if each.last_check_ok else 'failed'} {each.last_check[:19]}Z"


def _index_cells(client: Client, each: StoreSummary) -> tuple[Any, ...]:
    try:
        found = client.store(each.name).stats().indexes if each.state == "open" else []
    except ConnectionError:
        raise
    except KgserveError:  # closed or dropped since it was listed
        found = []
    lags = {index.name: index.lag for index in found}
    errors = "; ".join(f"{index.name}: {index.error}" for index in found if index.error)
    pending = sum(index.pending for index in found) if found else ""
    return lags.get("keyword", ""), lags.get("vector", ""), pending, errors


def _current_indexes(stats: StoreStats) -> list[IndexStatus]:
    found = stats.indexes
    if not found:
        raise click.ClickException("indexes are turned off on this server")
    # Indexes of past states follow the history slightly later; searches of the past wait for them automatically.
    return [index for index in found if index.name in ("keyword", "vector")]


def _is_complete(index: IndexStatus, sequence: int) -> bool:
    return index.sequence >= sequence and not index.pending and index.error is None


class _StallDetector:
    """Detector of indexes that make no progress because of an error."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[object, ...], float]] = {}

    def check(self, indexes: Sequence[IndexStatus]) -> None:
        now = time.monotonic()
        for index in indexes:
            state = (index.sequence, index.entities, index.pending, index.error)
            before, since = self._seen.get(index.name, ((), now))
            if state != before:
                self._seen[index.name] = (state, now)
            elif index.error is not None and now - since > INDEX_ERROR_TIMEOUT_SECONDS:
                raise click.ClickException(f"the {index.name} index: {index.error}")


SETTING_COLUMNS = (TerminalTableColumn("Setting"), TerminalTableColumn("Value"))
_DEFAULT_STORE_SETTINGS = StoreSettings()
_STORE_SETTING_NAMES = StoreSettings.__struct_fields__


class SettingAssignment(NamedTuple):
    """A setting, as its path of names, and its new value."""

    path: list[str]
    value: Any


class _SettingAssignmentType(click.ParamType[SettingAssignment]):
    """Parameter type of ``SETTING=VALUE``."""

    name = "SETTING=VALUE"

    @override
    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> SettingAssignment:
        setting, equals, text = value.partition("=")
        if not equals or not setting:
            self.fail(f"{value!r} is not of the form SETTING=VALUE, such as history=90", param, ctx)
        path = setting.split(".")
        if path[0] not in _STORE_SETTING_NAMES:
            self.fail(f"unknown setting {path[0]!r}. Settings: {', '.join(_STORE_SETTING_NAMES)}", param, ctx)
        return SettingAssignment(path, _value(setting, text))


def _value(setting: str, text: str) -> Any:
    """Return a value parsed as JSON, else as a comma-separated list for list settings, else the text itself."""
    if setting == "name":
        return text
    try:
        return decode_json(text)
    except msgspec.MsgspecError:
        is_list = isinstance(getattr(_DEFAULT_STORE_SETTINGS, setting, None), tuple)
        return list(filter(None, map(str.strip, text.split(",")))) if is_list else text


def _request(chosen: Sequence[SettingAssignment]) -> dict[str, Any]:
    """Return the request body for the given settings, with those of `memory` nested."""
    body: dict[str, Any] = {}
    for path, value in chosen:
        place = body
        for name in path[:-1]:
            place = cast("dict[str, Any]", place.setdefault(name, {}))
        place[path[-1]] = value
    return body


_chosen = click.argument("chosen", metavar="[SETTING=VALUE]...", nargs=-1, type=_SettingAssignmentType())


@click.command("create")
@click.argument("store")
@_chosen
@add_server_options
def create_store_command(store: str, *, chosen: tuple[SettingAssignment, ...]) -> None:
    """Create STORE, empty, with settings such as history=90 or memory.dedup=off.

    The first import or write also creates a store, with default settings. The exit code is 1 if STORE exists.
    """
    fields = _request(chosen)
    if "name" in fields:
        fields["display_name"] = fields.pop("name")
    with open_server_client() as client:
        done = client.create(store, **fields)
    if not done.created:
        raise RequestFailedOnServer(
            f"store {store!r} already exists; its settings are unchanged. Use `kgserve settings` to change them"
        )
    click.echo(f"{store}: created")


@click.command("settings")
@click.argument("store")
@_chosen
@as_json_option
@add_server_options
def show_or_update_store_settings_command(store: str, *, chosen: tuple[SettingAssignment, ...]) -> None:
    """Show the settings of STORE, or change the given ones, such as history=90 or kind_whitelist=note,person.

    A VALUE is JSON, a comma-separated list, or text; an empty value resets the setting. Memory settings start with
    `memory.`, such as memory.half_life_days=null.
    """
    with open_server_client() as client:
        handle = client.store(store)
        found = handle.update_settings(**_request(chosen)) if chosen else handle.settings()
    if print_json_if_requested(found):
        return
    print_table_or_tsv(SETTING_COLUMNS, _rows(found))


@click.command("drop")
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@add_server_options
def drop_store_command(store: str, *, yes: bool) -> None:
    """Permanently delete STORE and its contents. Only a backup can restore it.

    On a terminal, confirm by typing its name. Otherwise, --yes is required.
    """
    with open_server_client() as client:
        if not yes:
            _confirm(store, client.store(store).stats().nodes)
        inbound = client.drop(store, confirm=store).inbound
    click.echo(f"{store}: dropped" + (f"; {inbound:,} edges of other stores still lead to it" if inbound else ""))


def _confirm(store: str, nodes: int) -> None:
    """Require the name to be typed. Raises UsageError without a terminal, and ClickException for another name."""
    if not sys.stdin.isatty():
        raise click.UsageError("Standard input is not a terminal; use --yes to confirm.")
    question = f"{store} has {nodes:,} nodes. Type its name to drop it"
    if click.prompt(question, default="", show_default=False) != store:
        raise click.ClickException("the name does not match; nothing was dropped")


def _rows(found: StoreSettingsAnswer) -> Iterator[tuple[str, str]]:
    shown = {name: getattr(found, name) for name in StoreSettings.__struct_fields__ if name != "memory"}
    below = {f"memory.{name}": value for name, value in msgspec.structs.asdict(found.memory).items()}
    for name, value in (shown | below).items():
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()
