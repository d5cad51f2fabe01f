"""``kgserve cluster``: which nodes there are, and which one serves a store."""

from __future__ import annotations

import click

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import Column, as_json_option, show_json, show_table

COLUMNS = (Column("Node"), Column("Address"), Column("State"), Column("Stores", "number"))


@click.group()
def cluster() -> None:
    """See the nodes of a cluster, and move stores between them."""


@cluster.command()
@as_json_option
@server_options
def status(*, as_json: bool, server: str | None, data_dir: str | None) -> None:
    """List the nodes, whether they are alive, and how many stores each serves or would serve.

    The exit code is 0 if all are alive, 1 if not, 3 if no server answers.
    """
    with connect(server, data_dir) as client:
        found = client.cluster()
    if as_json:
        show_json(found)
    else:
        show_table(COLUMNS, [(each.name, each.url, each.state, each.stores) for each in found.nodes])
        if found.silent:
            click.echo(f"{found.node} is cut off from the servers of the cluster", err=True)
    if found.silent or any(each.state != "alive" for each in found.nodes):
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("store")
@click.argument("node")
@server_options
def move(store: str, node: str, *, server: str | None, data_dir: str | None) -> None:
    """Have NODE serve STORE from now on. What is asked meanwhile waits for that."""
    with connect(server, data_dir) as client:
        moved = client.store(store).move(node)
    click.echo(f"{moved.store} is served by {moved.node}, at {moved.url}")
