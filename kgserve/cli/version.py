"""``kgserve version``."""

from __future__ import annotations

import platform

import click

from kgserve import __version__


@click.command()
def version() -> None:
    """Print the versions of kgserve, its engine and Python."""
    from importlib import metadata

    click.echo(f"kgserve {__version__}")
    click.echo(f"kuzu {metadata.version('kuzu')}")
    click.echo(f"Python {platform.python_version()}")
