"""``kgserve stores``."""

from __future__ import annotations

import click
import msgspec

from kgserve.cli.remote import connect, decode, find, server_options
from kgserve.cli.terminal import Column, show_table
from kgserve.model.answers import StoreList

COLUMNS = (
    Column("Name"),
    Column("State"),
    Column("Nodes", "number"),
    Column("Edges", "number"),
    Column("Sequence", "number"),
    Column("Journal", "bytes"),
    Column("Engine", "bytes"),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
@server_options
def stores(*, as_json: bool, server: str | None, data_dir: str | None) -> None:
    """List the stores of a running server, with counts and sizes on disk."""
    with connect(find(server, data_dir)) as client:
        response = client.get("/api/memory")
    answer = decode(response, StoreList)
    if as_json:
        click.echo(msgspec.json.format(response.content).decode())
        return
    rows = [
        (each.name, each.state, each.nodes, each.edges, each.sequence, each.journal_bytes, each.engine_bytes)
        for each in answer.stores
    ]
    show_table(COLUMNS, rows)
