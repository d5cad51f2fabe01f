"""``kgserve version``."""

from __future__ import annotations

import platform

import click

from kgserve import __version__


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
