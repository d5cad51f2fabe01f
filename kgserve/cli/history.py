"""``kgserve prune-history``."""

from __future__ import annotations

import click

from kgserve.cli.remote import connect, decode, find, server_options, store_path
from kgserve.model.stores import PruneAnswer


@click.command("prune-history")
@click.argument("store")
@click.option(
    "--before",
    metavar="WHEN",
    help="Forget what had ended by then: a time such as 2025-07-15T12:00:00Z, a sequence, or days such as 30d.  "
    "[default: as the store's settings say]",
)
@server_options
def prune_history(store: str, before: str | None, server: str | None, data_dir: str | None) -> None:
    """Forget former states of STORE for good, and say how many went.

    What nodes and edges are now stays, and so does what they were at that moment and since.
    """
    with connect(find(server, data_dir)) as client:
        body = {} if before is None else {"before": before}
        done = decode(client.post(store_path(store, "history", "prune"), json=body), PruneAnswer)
    states = "1 state" if done.pruned == 1 else f"{done.pruned:,} states"
    known = f"known from sequence {done.oldest:,} on" if done.oldest else "known from the beginning on"
    click.echo(f"{store}: {states} forgotten; its history is {known}")
