"""``kgserve audit``: what was refused, and what was administered."""

from __future__ import annotations

import click

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import Column, as_json_option, show_json, show_table

COLUMNS = tuple(map(Column, ("Time", "Node", "Caller", "Address", "Act", "Store", "Outcome")))


@click.command()
@click.option("--node", metavar="NODE", help="Only what this node of the cluster wrote.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="So many, the newest.")
@as_json_option
@server_options
def audit(*, node: str | None, limit: int, as_json: bool, server: str | None, data_dir: str | None) -> None:
    """Show what was refused, and what was administered, oldest first; in a cluster, at all of its nodes."""
    with connect(server, data_dir) as client:
        found = client.audit(node=node, limit=limit)
    if as_json:
        show_json(found)
        return
    show_table(
        COLUMNS,
        [
            (each.time, each.node, each.caller, each.address, each.act, each.store or "", each.outcome)
            for each in found.records
        ],
    )
