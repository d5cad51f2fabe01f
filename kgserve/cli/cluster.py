"""``kgserve cluster``: which nodes there are, which one serves a store, and what is to be done when a log was torn."""

from __future__ import annotations

import click

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import Column, as_json_option, show_table, told_as_json

COLUMNS = (Column("Node"), Column("Address"), Column("State"), Column("Stores", "number"))


@click.group()
def cluster() -> None:
    """See the nodes of a cluster, move stores between them, and mend what their log has lost."""


@cluster.command()
@as_json_option
@server_options
def status() -> None:
    """List the nodes, whether they are alive, and how many stores each serves or would serve.

    The exit code is 0 if all are alive, 1 if not, 3 if no server answers.
    """
    with connect() as client:
        found = client.cluster()
    if not told_as_json(found):
        show_table(COLUMNS, [(each.name, each.url, each.state, each.stores) for each in found.nodes])
        if found.silent:
            click.echo(f"{found.node} is cut off from the servers of the cluster", err=True)
    if found.silent or any(each.state != "alive" for each in found.nodes):
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("store")
@click.argument("node")
@server_options
def move(store: str, node: str) -> None:
    """Have NODE serve STORE from now on. What is asked meanwhile waits for that."""
    with connect() as client:
        moved = client.store(store).move(node)
    click.echo(f"{moved.store} is served by {moved.node}, at {moved.url}")


@cluster.command()
@click.option("--undo", is_flag=True, help="Have it take stores over again.")
@server_options
def drain(*, undo: bool) -> None:
    """Have other nodes serve the stores of the node that is asked, which takes none until --undo or its next start.

    The exit code is 1 if some could not be handed over, which are named with the reason.
    """
    with connect() as client:
        found = client.drain(undo=undo)
    click.echo(f"{found.node} takes stores over again" if undo else f"{found.node}: others serve {found.moved} stores")
    for store, reason in found.failed.items():
        click.echo(f"{store} stays: {reason}", err=True)
    if found.failed:
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("store")
@server_options
def repair(store: str) -> None:
    """Make the log of STORE anew from the files of the node that is asked, when it has lost something.

    Ask the node that served the store last: one whose files lack anything refuses.
    """
    with connect() as client:
        done = client.store(store).repair()
    told = f"of its log {done.found} frames were left, as {done.node} has them"
    click.echo(f"{done.store} is served by {done.node} up to sequence {done.sequence}; {told}")


@cluster.command("finish-upgrade")
@server_options
def finish_upgrade() -> None:
    """Have all nodes write in the newest format, once each runs the new version: older ones cannot join any more."""
    with connect() as client:
        done = client.finish_upgrade()
    click.echo(f"the cluster writes format {done.format}")
