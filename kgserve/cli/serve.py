"""``kgserve serve``, ``kgserve health`` and ``kgserve version``."""

from __future__ import annotations

import platform
from typing import Any

import click

from kgserve import __version__
from kgserve.cli.options import settings_options
from kgserve.cli.remote import connect, server_options, url_of
from kgserve.permissions import private_files
from kgserve.settings import load


@click.command()
@settings_options()
@private_files()
def serve(**values: Any) -> int:
    """Serve the stores of a data folder over REST and MCP until stopped."""
    settings = load(values)
    from kgserve import allocator

    allocator.bound_arenas()
    from kgserve import app

    return app.serve(settings)


@click.command()
@click.option("--ready", is_flag=True, help="Ask as well whether stores can be opened and written.")
@server_options
def health(*, ready: bool, server: str | None, data_dir: str | None) -> None:
    """Say whether a server is alive, for containers and supervisors.

    The exit code is 0 if it is, 1 if it is not ready, 3 if none answers.
    """
    with connect(server, data_dir) as client:
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
