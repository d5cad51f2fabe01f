"""``kgserve open``: the explorer in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kgserve.cli.remote import connect, server_options, url_of

if TYPE_CHECKING:
    from kgserve.client import Client


@click.command("open")
@click.argument("store", required=False)
@click.option("--write", is_flag=True, help="Let the page write, where keys are asked for.")
@click.option("--print", "only_print", is_flag=True, help="Print the address, and open nothing.")
@server_options
def open_(*, store: str | None, write: bool, only_print: bool, server: str | None, data_dir: str | None) -> None:
    """Open the explorer in a browser, at STORE if it is named, and print its address.

    Where keys are asked for, the server makes one for the page, which the address hands over: with it the page may
    read, or write with --write, for 12 hours or until the server ends. Whoever gets the address may do as much.
    """
    with connect(server, data_dir) as client:
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
