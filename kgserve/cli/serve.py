"""``kgserve serve``, ``kgserve stop``, ``kgserve health`` and ``kgserve version``."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import click

from kgserve import __version__
from kgserve.cli.options import settings_options
from kgserve.cli.remote import Unreachable, connect, server_options, url_of
from kgserve.permissions import private_files
from kgserve.settings import load
from kgserve.systems import refusal

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
    from kgserve import allocator

    allocator.bound_arenas()
    from kgserve import app

    return app.serve(settings)


@click.command()
@settings_options("data_dir")
@click.option("--force", is_flag=True, help="Kill it, without letting it finish; what it has acknowledged is kept.")
def stop(*, data_dir: str | None, force: bool) -> None:
    """Stop the server of a data folder, and wait until the folder is free.

    The exit code is 0 if one was stopped, 3 if there was none, 1 if it does not end.
    """
    from kgserve import reach

    folder = reach.data_folder(data_dir)
    try:
        stopped = reach.stop(folder, force=force)
    except reach.StopFailed as error:
        raise click.ClickException(str(error)) from None
    if stopped is None:
        raise Unreachable(f"no server has {folder}; there is nothing to stop")
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
