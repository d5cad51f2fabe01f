"""``kgserve stores``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from kgserve.cli.remote import connect, decode, find, server_options, store_path
from kgserve.cli.terminal import Column, show_table
from kgserve.model.stores import StoreList, StoreStats, StoreSummary

if TYPE_CHECKING:
    import httpx

COLUMNS = (
    Column("Name"),
    Column("State"),
    Column("Nodes", "number"),
    Column("Edges", "number"),
    Column("Sequence", "number"),
    Column("Journal", "bytes"),
    Column("Engine", "bytes"),
    Column("Lag", "number"),
    Column("Last check"),
)
INDEX_COLUMNS = (
    Column("Keyword lag", "number"),
    Column("Vector lag", "number"),
    Column("Pending", "number"),
    Column("Index error"),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
@click.option("--indexes", is_flag=True, help="Show how far the indexes of the open stores are behind, too.")
@server_options
def stores(*, as_json: bool, indexes: bool, server: str | None, data_dir: str | None) -> None:
    """List the stores of a running server, with counts and sizes on disk.

    Of open stores also the lag, which is how many commits the slowest of the indexes and the history has not seen yet,
    and when engine and journal were last compared, with the outcome.

    With --indexes also the commits that each index has not seen yet, the entities that it is just taking in, and what
    keeps it from doing so; of a closed store nothing is known, for it is not opened to ask.
    """
    if as_json and indexes:
        raise click.UsageError("--json is the answer of /api/memory, which says nothing of indexes; choose one")
    with connect(find(server, data_dir)) as client:
        response = client.get("/api/memory")
        answer = decode(response, StoreList)
        shown = [_row(each) + (_index_cells(client, each) if indexes else ()) for each in answer.stores]
    if as_json:
        click.echo(msgspec.json.format(response.content).decode())
        return
    show_table(COLUMNS + INDEX_COLUMNS if indexes else COLUMNS, shown)


def _row(each: StoreSummary) -> tuple[Any, ...]:
    counts = (each.nodes, each.edges, each.sequence, each.journal_bytes, each.engine_bytes)
    return each.name, each.state, *counts, "" if each.lag is None else each.lag, _last_check(each)


def _last_check(each: StoreSummary) -> str:
    if each.last_check is None:
        return ""
    return f"{'agreed' if each.last_check_ok else 'failed'} {each.last_check[:19]}Z"


def _index_cells(client: httpx.Client, each: StoreSummary) -> tuple[Any, ...]:
    response = client.get(store_path(each.name, "stats")) if each.state == "open" else None
    if response is None or not response.is_success:  # closed, or dropped since it was listed
        return "", "", "", ""
    found = decode(response, StoreStats).indexes
    lags = {index.name: index.lag for index in found}
    errors = "; ".join(f"{index.name}: {index.error}" for index in found if index.error)
    pending = sum(index.pending for index in found) if found else ""
    return lags.get("keyword", ""), lags.get("vector", ""), pending, errors
