"""``kgserve stores``, ``create``, ``settings``, ``drop``, ``reindex``, ``prune-history``, ``doctor``: whole stores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
import msgspec
from typing_extensions import override

from kgserve.admin.api import StoreSettingsAnswer, StoreStats, StoreSummary
from kgserve.cli.options import RequestRefused, connect, given, require_data, server_options, settings_options
from kgserve.cli.terminal import IndexProgress, TableColumn, as_json_option, show_table, told_as_json
from kgserve.errors import KgserveError
from kgserve.platform.codecs import decode_json
from kgserve.platform.permissions import private_files
from kgserve.platform.settings import load
from kgserve.storage.model.statuses import IndexStatus
from kgserve.storage.model.store_settings import StoreSettings

if TYPE_CHECKING:
    from kgserve.client import Client

STORE_COLUMNS = (
    TableColumn("Name"),
    TableColumn("State"),
    TableColumn("Nodes", "number"),
    TableColumn("Edges", "number"),
    TableColumn("Sequence", "number"),
    TableColumn("Journal", "bytes"),
    TableColumn("Engine", "bytes"),
    TableColumn("Lag", "number"),
    TableColumn("Last check"),
)
INDEX_COLUMNS = (
    TableColumn("Keyword lag", "number"),
    TableColumn("Vector lag", "number"),
    TableColumn("Pending", "number"),
    TableColumn("Index error"),
)
FINDING_COLUMNS = (TableColumn("Store"), TableColumn("Part"), TableColumn("Result"), TableColumn("Detail"))

INDEX_POLL_SECONDS = 0.25
INDEX_ERROR_TIMEOUT_SECONDS = 5.0
"""How long an index may stand still with an error: it tries again by itself, and mostly overcomes it."""


@click.command()
@as_json_option
@click.option("--indexes", is_flag=True, help="Show how far the indexes of the open stores are behind, too.")
@server_options
def stores(*, indexes: bool) -> None:
    """List the stores of a running server, with counts and sizes on disk.

    Of open stores also the lag, which is how many commits the slowest of the indexes and the history has not seen yet,
    and when engine and journal were last compared, with the outcome.

    With --indexes also the commits that each index has not seen yet, the entities that it is just taking in, and what
    keeps it from doing so; of a closed store nothing is known, for it is not opened to ask.
    """
    if given("as_json") and indexes:
        raise click.UsageError("--json is the answer of /api/memory, which says nothing of indexes; choose one")
    with connect() as client:
        answer = client.stores()
        shown = [_row(each) + (_index_cells(client, each) if indexes else ()) for each in answer.stores]
    if told_as_json(answer):
        return
    show_table(STORE_COLUMNS + INDEX_COLUMNS if indexes else STORE_COLUMNS, shown)


@click.command()
@click.argument("store")
@server_options
def reindex(store: str) -> int:
    """Make both indexes of STORE anew, vectors with the server's present model, and wait until they are there.

    The server goes on when the waiting is interrupted. The exit code is 1 if an index cannot be made.
    """
    with connect() as client:
        there = client.store(store)
        for index in await_indexes(there.stats, there.reindex().sequence):
            click.echo(f"{index.name}: {index.entities:,} entities, model {index.model}, sequence {index.sequence:,}")
    return 0


@click.command("prune-history")
@click.argument("store")
@click.option(
    "--before",
    metavar="WHEN",
    help="Forget what had ended by then: a time such as 2025-07-15T12:00:00Z, a sequence, or days such as 30d.  "
    "[default: as the store's settings say]",
)
@server_options
def prune_history(store: str, before: str | None) -> None:
    """Forget former states of STORE for good, and say how many went.

    What nodes and edges are now stays, and so does what they were at that moment and since.
    """
    with connect() as client:
        done = client.store(store).prune_history(before)
    states = "1 state" if done.pruned == 1 else f"{done.pruned:,} states"
    known = f"known from sequence {done.oldest:,} on" if done.oldest else "known from the beginning on"
    click.echo(f"{store}: {states} forgotten; its history is {known}")


@click.command()
@click.argument("store", required=False)
@click.option("--rebuild", is_flag=True, help="Build the engine's file anew from snapshot and journal.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Cut a damaged journal at its last whole record; what followed comes back as far as the history has it.",
)
@click.option(
    "--repair-times",
    is_flag=True,
    help="Give rows that a clock which was ahead has stamped in the future the present time, in a commit.",
)
@settings_options("data_dir", "log_format", "engine", "buffer_pool_mb", "engine_threads")
@private_files()
def doctor(store: str | None, *, rebuild: bool, salvage: bool, repair_times: bool, **values: Any) -> int:
    """Check journal, snapshot and engine file of STORE, or of every store, while no server is running.

    Files and folders of the data folder that other users of the machine may read are told, and closed to them.

    How a running server's engines fare, their processes and memory, `kgserve top` shows.

    The exit code is 1 if anything is found.
    """
    settings = load(values)
    require_data(settings)
    from kgserve.admin.doctor import Repairs, examine_folder, require_alone
    from kgserve.admin.doctor import doctor as examine
    from kgserve.platform import log
    from kgserve.platform.lock import DataFolderLock

    log.configure(settings.log_format, "error")  # the table says the rest
    if repair_times:
        require_alone(settings.data_dir)
    with DataFolderLock(settings.data_dir) as lock:
        repairs = Repairs(rebuild=rebuild, salvage=salvage, times=repair_times)
        reports = [*examine_folder(settings, lock.mended), *examine(settings, store, repairs)]
    rows = [
        (report.store, finding.part, "ok" if finding.ok else "BAD", finding.detail)
        for report in reports
        for finding in report.findings
    ]
    show_table(FINDING_COLUMNS, rows)
    return 0 if all(report.ok for report in reports) else 1


def await_indexes(stats: Callable[[], StoreStats], sequence: int) -> list[IndexStatus]:
    """Wait, with progress on a terminal, until both indexes have seen a commit and have nothing left to do.

    ``stats`` tells how the store stands. Raises ClickException when indexes are turned off, or one stands still with an
    error.
    """
    with IndexProgress() as progress:
        patience = _Patience()
        while True:
            indexes = _both(stats())
            progress.show(indexes)
            if all(_is_through(index, sequence) for index in indexes):
                return indexes
            patience.check(indexes)
            time.sleep(INDEX_POLL_SECONDS)


def _row(each: StoreSummary) -> tuple[Any, ...]:
    counts = (each.nodes, each.edges, each.sequence, each.journal_bytes, each.engine_bytes)
    return each.name, each.state, *counts, "" if each.lag is None else each.lag, _last_check(each)


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


def _both(stats: StoreStats) -> list[IndexStatus]:
    found = stats.indexes
    if not found:
        raise click.ClickException("indexes are turned off on this server")
    # Those of the past follow the history, a moment later; a search that looks back waits for them by itself.
    return [index for index in found if index.name in ("keyword", "vector")]


def _is_through(index: IndexStatus, sequence: int) -> bool:
    return index.sequence >= sequence and not index.pending and index.error is None


class _Patience:
    """Ends the waiting for an index that stands still with an error."""

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


SETTING_COLUMNS = (TableColumn("Setting"), TableColumn("Value"))
_DEFAULT_STORE_SETTINGS = StoreSettings()
_STORE_SETTING_NAMES = StoreSettings.__struct_fields__


class Choice(NamedTuple):
    """A setting, by the names that lead to it, and what it is to be."""

    path: list[str]
    value: Any


class _Choices(click.ParamType[Choice]):
    """Choices as people type them."""

    name = "SETTING=VALUE"

    @override
    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Choice:
        setting, equals, text = value.partition("=")
        if not equals or not setting:
            self.fail(f"{value!r} is no SETTING=VALUE, such as history=90", param, ctx)
        path = setting.split(".")
        if path[0] not in _STORE_SETTING_NAMES:
            self.fail(f"there is no setting {path[0]!r}; there are {', '.join(_STORE_SETTING_NAMES)}", param, ctx)
        return Choice(path, _value(setting, text))


def _value(setting: str, text: str) -> Any:
    """What is meant: JSON where it is any, a list with commas for what is a list, else the text itself."""
    if setting == "name":
        return text
    try:
        return decode_json(text)
    except msgspec.MsgspecError:
        is_list = isinstance(getattr(_DEFAULT_STORE_SETTINGS, setting, None), tuple)
        return list(filter(None, map(str.strip, text.split(",")))) if is_list else text


def _request(chosen: Sequence[Choice]) -> dict[str, Any]:
    """The settings that were named, those of `memory` below it."""
    body: dict[str, Any] = {}
    for path, value in chosen:
        place = body
        for name in path[:-1]:
            place = cast("dict[str, Any]", place.setdefault(name, {}))
        place[path[-1]] = value
    return body


_chosen = click.argument("chosen", metavar="[SETTING=VALUE]...", nargs=-1, type=_Choices())


@click.command()
@click.argument("store")
@_chosen
@server_options
def create(store: str, *, chosen: tuple[Choice, ...]) -> None:
    """Create STORE, empty, with settings such as history=90 or memory.dedup=off.

    The first import or write creates a store as well, with the usual settings. The exit code is 1 if it is there.
    """
    fields = _request(chosen)
    if "name" in fields:
        fields["display_name"] = fields.pop("name")
    with connect() as client:
        done = client.create(store, **fields)
    if not done.created:
        raise RequestRefused(
            f"there is a store {store!r} already, which keeps its settings; `kgserve settings` changes them"
        )
    click.echo(f"{store}: created")


@click.command()
@click.argument("store")
@_chosen
@as_json_option
@server_options
def settings(store: str, *, chosen: tuple[Choice, ...]) -> None:
    """Show the settings of STORE, or change those that are given, such as history=90 or kind_whitelist=note,person.

    A VALUE is JSON, a list with commas, or a text; an empty one clears. Those of memories begin with memory., such as
    memory.half_life_days=null.
    """
    with connect() as client:
        there = client.store(store)
        found = there.update_settings(**_request(chosen)) if chosen else there.settings()
    if told_as_json(found):
        return
    show_table(SETTING_COLUMNS, _rows(found))


@click.command()
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@server_options
def drop(store: str, *, yes: bool) -> None:
    """Delete STORE and everything in it for good: only a backup brings it back.

    On a terminal its name has to be typed again; elsewhere --yes is needed.
    """
    with connect() as client:
        if not yes:
            _ask(store, client.store(store).stats().nodes)
        inbound = client.drop(store, confirm=store).inbound
    click.echo(f"{store}: dropped" + (f"; edges of other stores that lead there still: {inbound:,}" if inbound else ""))


def _ask(store: str, nodes: int) -> None:
    """Have the name typed once more. Raises UsageError where nobody can, Abort for another."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; --yes drops it")
    question = f"{store} has {nodes:,} nodes. Its name again, to drop it"
    if click.prompt(question, default="", show_default=False) != store:
        raise click.ClickException("that is another name; nothing was dropped")


def _rows(found: StoreSettingsAnswer) -> Iterator[tuple[str, str]]:
    shown = {name: getattr(found, name) for name in StoreSettings.__struct_fields__ if name != "memory"}
    below = {f"memory.{name}": value for name, value in msgspec.structs.asdict(found.memory).items()}
    for name, value in (shown | below).items():
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()
