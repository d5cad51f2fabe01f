"""``kgserve health``."""

from __future__ import annotations

import click

from kgserve.cli.remote import check, connect, find, server_options


@click.command()
@click.option("--ready", is_flag=True, help="Ask as well whether stores can be opened and written.")
@server_options
def health(*, ready: bool, server: str | None, data_dir: str | None) -> None:
    """Say whether a server is alive, for containers and supervisors.

    The exit code is 0 if it is, 1 if it is not ready, 3 if none answers.
    """
    found = find(server, data_dir)
    with connect(found) as client:
        check(client.get("/ready" if ready else "/health"))
    click.echo(f"{found.url} is {'ready' if ready else 'alive'}")
