"""``kgserve serve``, ``stop``, ``health``, ``version``, ``open`` and ``cluster``: servers, and nodes of a cluster."""

from __future__ import annotations

import gc
import platform
from typing import TYPE_CHECKING, Any

import click

from kgserve import __version__
from kgserve.cli.options import ServerUnreachable, connect, server_options, settings_options, url_of
from kgserve.cli.terminal import TableColumn, as_json_option, show_table, told_as_json
from kgserve.platform.permissions import private_files
from kgserve.platform.platform_support import refusal
from kgserve.platform.settings import load

if TYPE_CHECKING:
    from kgserve.client import Client


@click.command()
@settings_options()
@private_files()
def serve(**values: Any) -> int:
    """Serve the stores of a data folder over REST and MCP until stopped."""
    if told := refusal():
        raise click.ClickException(told)
    settings = load(values)
    from kgserve.platform import allocator, import_env

    allocator.bound_arenas()
    gc.disable()  # until it listens: looking through what is imported is a sixth of a start
    try:
        import_env.import_lightly()
        from kgserve.server import app

        return app.serve(settings)
    finally:
        gc.enable()


@click.command()
@settings_options("data_dir")
@click.option("--force", is_flag=True, help="Kill it, without letting it finish; what it has acknowledged is kept.")
def stop(*, data_dir: str | None, force: bool) -> None:
    """Stop the server of a data folder, and wait until the folder is free.

    The exit code is 0 if one was stopped, 3 if there was none, 1 if it does not end.
    """
    from kgserve.platform import server_discovery

    folder = server_discovery.data_folder(data_dir)
    try:
        stopped = server_discovery.stop(folder, force=force)
    except server_discovery.StopFailed as error:
        raise click.ClickException(str(error)) from None
    if stopped is None:
        raise ServerUnreachable(f"no server has {folder}; there is nothing to stop")
    click.echo(f"{'killed' if force else 'stopped'} the server at {stopped.url} (process {stopped.pid}) of {folder}")


@click.command()
@click.option("--ready", is_flag=True, help="Ask as well whether stores can be opened and written.")
@server_options
def health(*, ready: bool) -> None:
    """Say whether a server is alive, for containers and supervisors.

    The exit code is 0 if it is, 1 if it is not ready, 3 if none answers.
    """
    with connect() as client:
        client.ready() if ready else client.health()
    click.echo(f"{url_of(client)} is {'ready' if ready else 'alive'}")


@click.command()
def version() -> None:
    """Print the versions of kgserve, its engines and Python."""
    from contextlib import suppress
    from importlib import metadata

    click.echo(f"kgserve {__version__}")
    for engine in ("kuzu", "ladybug"):
        with suppress(metadata.PackageNotFoundError):
            click.echo(f"{engine} {metadata.version(engine)}")
    click.echo(f"Python {platform.python_version()}")


@click.command("open")
@click.argument("store", required=False)
@click.option("--write", is_flag=True, help="Let the page write, where keys are asked for.")
@click.option("--print", "only_print", is_flag=True, help="Print the address, and open nothing.")
@server_options
def open_(*, store: str | None, write: bool, only_print: bool) -> None:
    """Open the explorer in a browser, at STORE if it is named, and print its address.

    Where keys are asked for, the server makes one for the page, which the address hands over: with it the page may
    read, or write with --write, for 12 hours or until the server ends. Whoever gets the address may do as much.
    """
    with connect() as client:
        if store is not None:
            client.store(store).settings()
        key = None if client.whoami().open else _key(client, write=write)
        address = f"{url_of(client)}/{_fragment(store, key)}"
    click.echo(address)
    if not only_print:
        import webbrowser

        if not webbrowser.open(address):
            click.echo("no browser could be started: open the address in one", err=True)


def _key(client: Client, *, write: bool) -> str | None:
    from kgserve.errors import Forbidden

    try:
        return client.browser_key("write" if write else "read").key
    except Forbidden:
        click.echo("only a key with the role admin has one made for a page: give the page your own", err=True)
        return None


def _fragment(store: str | None, key: str | None) -> str:
    """What no server sees: the store, and the key, which the page takes out of its address at once."""
    from urllib.parse import quote

    if store is None and key is None:
        return ""
    return f"#/{quote(store or '', safe='')}" + (f"?key={key}" if key else "")


CLUSTER_NODE_COLUMNS = (
    TableColumn("Node"),
    TableColumn("Address"),
    TableColumn("State"),
    TableColumn("Stores", "number"),
)


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
        show_table(CLUSTER_NODE_COLUMNS, [(each.name, each.url, each.state, each.stores) for each in found.nodes])
        if found.silent:
            click.echo(f"{found.node} is cut off from the servers of the cluster", err=True)
    if found.silent or any(each.state != "alive" for each in found.nodes):
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("store")
@click.argument("node")
@server_options
def move(store: str, node: str) -> None:
    """Have NODE serve STORE from now on, and wait until it has opened it. What is asked meanwhile waits for that.

    The exit code is 1 if NODE has not opened it within half a minute, with the reason: STORE is NODE's all the same.
    """
    with connect() as client:
        moved = client.store(store).move(node)
    click.echo(f"{moved.store} is served by {moved.node}, at {moved.url}")
    if not moved.opened:
        click.echo(moved.reason, err=True)
        raise click.exceptions.Exit(1)


@cluster.command()
@click.option("--undo", is_flag=True, help="Have it take stores over again.")
@server_options
def drain(*, undo: bool) -> None:
    """Have other nodes serve the stores of the node that is asked, which takes none until --undo or its next start.

    The exit code is 1 if some could not be handed over, or were not opened by their new nodes within half a minute,
    which are named with the reason.
    """
    with connect() as client:
        found = client.drain(undo=undo)
    click.echo(f"{found.node} takes stores over again" if undo else f"{found.node}: others serve {found.moved} stores")
    for store, reason in found.failed.items():
        click.echo(f"{store} stays: {reason}", err=True)
    for store, reason in found.unopened.items():
        click.echo(f"{store} was moved: {reason}", err=True)
    if found.failed or found.unopened:
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
